"""Exported DLPack capsules, with NumPy as the consumer."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tessera.errors import CallError
from tessera.numerics import dtypes
from tessera.runtime import dlpack
from tessera.runtime.device import CPU, Device


class Producer:
    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        versioned = options.get("max_version") is not None
        return dlpack.make_capsule(self, self.array.ctypes.data, self.array.shape, (3, 1), dtypes.f32, CPU, versioned)


def test_a_consumer_sees_the_memory_and_releases_it():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    producer = Producer(array)
    alive = weakref.ref(producer)
    seen = np.from_dlpack(producer)
    del producer
    gc.collect()
    assert alive() is not None, "the capsule keeps its owner alive"
    np.testing.assert_array_equal(seen, array)
    assert seen.ctypes.data == array.ctypes.data
    del seen
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("versioned", [True, False])
def test_an_unused_capsule_releases_its_owner(versioned):
    producer = Producer(np.zeros((1, 3), np.float32))
    alive = weakref.ref(producer)
    capsule = producer.__dlpack__(**({"max_version": (1, 0)} if versioned else {}))
    del producer
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_a_capsule_read_back_says_what_was_put_in():
    capsule = dlpack.make_capsule(None, 4096, (2, 3), (1, 2), dtypes.bf16, Device("cuda", 3), True)
    imported = dlpack.read_capsule(capsule)
    kind, shape, strides, device_kind, index, readonly = imported.layout
    assert (imported.pointer, shape, strides, readonly) == (4096, (2, 3), (1, 2), False)
    assert dlpack.dtype_of(kind) == dtypes.bf16
    assert dlpack.device_of(device_kind, index) == Device("cuda", 3)


def test_a_used_capsule_is_refused():
    capsule = Producer(np.zeros((1, 3), np.float32)).__dlpack__()

    class Once:
        def __dlpack__(self, **_):
            return capsule

        def __dlpack_device__(self):
            return (1, 0)

    np.from_dlpack(Once())
    with pytest.raises(CallError) as caught:
        dlpack.read_capsule(capsule)
    assert caught.value.code == "not-an-array"


def test_a_dtype_without_a_code_is_an_error():
    with pytest.raises(CallError) as caught:
        dlpack.make_capsule(None, 0, (), (), dtypes.fp6_e2m3, CPU, True)
    assert caught.value.code == "wrong-dtype"
