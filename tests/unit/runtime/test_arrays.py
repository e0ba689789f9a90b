"""`ts.empty` and its kin on the CPU."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from tessera.errors import CallError, LanguageError, TargetError
from tessera.numerics import dtypes
from tessera.runtime import arrays
from tessera.runtime.readers import view_of


@pytest.mark.parametrize("shape", [5, (3, 7), (0, 4), ()])
@pytest.mark.parametrize("dtype", [dtypes.f32, "bf16", dtypes.fp8_e4m3, "bool", "i64"])
def test_empty_is_aligned_and_of_the_dtype(shape, dtype):
    array = arrays.empty(shape, dtype)
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.size == 0 or array.ctypes.data % 64 == 0
    name = dtype if isinstance(dtype, str) else dtype.name
    assert view_of(array)[1].dtype.name == name
    assert array.flags.c_contiguous


def test_zeros_ones_full():
    np.testing.assert_array_equal(arrays.zeros((2, 3)), np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(arrays.ones(4, "i32"), np.ones(4, np.int32))
    np.testing.assert_array_equal(arrays.full(3, 1.5, "bf16").astype(np.float32), np.full(3, 1.5, np.float32))


def test_asarray_copies_only_when_it_must():
    source = np.arange(6, dtype=np.float32)
    assert arrays.asarray(source) is source
    converted = arrays.asarray(source, dtype="bf16")
    assert converted.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(converted.astype(np.float32), source)


def test_asarray_of_numbers():
    assert arrays.asarray([1.0, 2.0]).dtype == np.float32
    assert arrays.asarray([1, 2]).dtype == np.int64
    assert arrays.asarray([1.0, 2.0], dtype="f64").dtype == np.float64


class Foreign:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_from_dlpack_shares_memory_and_keeps_its_owner():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-1]
    shared = arrays.from_dlpack(Foreign(array))
    np.testing.assert_array_equal(shared, array)
    array[0, 0] = 99
    assert shared[0, 0] == 99
    owned = arrays.from_dlpack(Foreign(np.full(1000, 7.0)))
    gc.collect()
    assert (owned == 7.0).all()


def test_to_numpy_of_a_read_only_source_is_read_only():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert not arrays.to_numpy(Foreign(array)).flags.writeable


def test_errors():
    with pytest.raises(TargetError) as caught:
        arrays.empty(3, device="gpu")
    assert caught.value.code == "unknown-device"
    with pytest.raises(LanguageError) as unknown:
        arrays.empty(3, "f33")
    assert unknown.value.code == "unknown-dtype"
    with pytest.raises(CallError):
        arrays.asarray(np.zeros(3, "c8"))
