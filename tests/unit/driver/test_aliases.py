"""Arguments that share memory: which code a call gets, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tessera as ts
from tessera.driver.settings import settings
from tessera.entry import host
from tessera.errors import CallError
from tessera.runtime import cuda
from tessera.runtime.cuda_array import HostCopies
from tessera.runtime.device import Device
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView


@ts.kernel
def twice(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32]):
    """Reads `x` after a store to `z`, `y` before it."""
    for i in ts.tile.grid((n, 64)):
        kept = y[i : i + 64]
        z[i : i + 64] = kept + 1.0
        z[i : i + 64] = x[i : i + 64] * 2.0 + kept


def numbers(count: int, seed: int = 0) -> np.ndarray:
    """Return small whole numbers as f32."""
    return np.random.default_rng(seed).integers(0, 50, count).astype(np.float32)


def expected(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    """Do what `twice` does, for arrays of less than one block."""
    kept = y.copy()
    z[:] = kept + 1
    z[:] = x * 2 + kept


PATTERNS = ((0, 1, 2), (0, 1, 0), (0, 1, 1), (0, 0, 2), (0, 0, 0))


def test_patterns_of_sharing_are_told_apart_at_every_call():
    for turn in range(8):
        for pattern in PATTERNS if turn % 2 else reversed(PATTERNS):
            ours = [numbers(40, seed) for seed in range(3)]
            theirs = [array.copy() for array in ours]
            twice(*(ours[place] for place in pattern))
            expected(*(theirs[place] for place in pattern))
            np.testing.assert_array_equal(ours, theirs)
    if not host.why_not():
        assert twice._direct.count == len(PATTERNS) - 1, "two arguments that are only read make no difference"


def test_arguments_that_are_only_read_share_the_code_of_arrays_of_their_own():
    @ts.kernel
    def total(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 64)):
            z[i : i + 64] = x[i : i + 64] + y[i : i + 64]

    x, y, z = numbers(64), numbers(64, 1), numbers(64, 2)
    total(x, y, z)
    total(x, x, z)
    np.testing.assert_array_equal(z, x + x)
    assert sum(map(len, total.variants._entries.values())) == 1
    total(x, z, z)
    np.testing.assert_array_equal(z, x + x + x)
    assert sum(map(len, total.variants._entries.values())) == 2


def test_a_read_only_view_of_what_is_stored_to():
    x = numbers(64)
    seen, before = x.view(), x.copy()
    seen.flags.writeable = False
    for _ in range(4):
        x[:] = before
        twice(seen, seen, x)
        np.testing.assert_array_equal(x, (before + 1) * 2 + before)


def test_empty_arrays_share_nothing(tmp_path):
    ts.compile(twice, target="cpu").save(tmp_path / "twice.tessera")
    loaded, empty = ts.load(tmp_path / "twice.tessera"), np.empty(0, np.float32)
    for _ in range(4):
        loaded(empty, empty, empty)


@pytest.mark.parametrize("mode", ["debug", "interpret"])
@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (np.s_[0:64], np.s_[1:65], False),
        (np.s_[0:64], np.s_[63:127], False),
        (np.s_[0:64], np.s_[64:128], True),
        (np.s_[0:128:2], np.s_[1:129:2], True),
        (np.s_[0:128:2], np.s_[2:130:2], False),
        (np.s_[63::-1], np.s_[0:64], False),
        (np.s_[0:64], np.s_[0:128:2], True),  # one start
    ],
)
def test_overlaps_are_found(monkeypatch, mode, first, second, fits):
    monkeypatch.setattr(settings(), mode, True)
    memory, other = numbers(200), numbers(64)
    wanted = memory.copy()
    if fits:
        expected(wanted[first], other, wanted[second])
        twice(memory[first], other, memory[second])
        np.testing.assert_array_equal(memory, wanted)
    else:
        for _ in range(3):  # at every call
            with pytest.raises(CallError) as caught:
                twice(memory[first], other, memory[second])
            assert caught.value.code == "overlapping-arguments"
        np.testing.assert_array_equal(memory, wanted)
    twice(memory[second], memory[first], other)  # both are only read


def test_an_artefact_takes_arrays_of_their_own(tmp_path):
    ts.compile(twice, target="cpu").save(tmp_path / "twice.tessera")
    loaded = ts.load(tmp_path / "twice.tessera")
    x, z = numbers(64), numbers(64, 1)
    for _ in range(5):
        wanted = x * 3
        loaded(x, x, z)
        np.testing.assert_array_equal(z, wanted)
        with pytest.raises(CallError) as caught:
            loaded(x, z, z)
        assert caught.value.code == "aliased-arguments"


def test_an_artefact_refuses_arrays_that_overlap(tmp_path):
    ts.compile(twice, target="cpu").save(tmp_path / "twice.tessera")
    loaded = ts.load(tmp_path / "twice.tessera")
    memory, other = numbers(200), numbers(64)
    wanted = memory.copy()
    with pytest.raises(CallError) as caught:
        loaded(memory[:64], other, memory[32:96])
    assert caught.value.code == "overlapping-arguments"
    np.testing.assert_array_equal(memory, wanted)


def test_host_copies_share_what_device_arrays_share(monkeypatch):
    """Memory of the host stands for a GPU's."""
    move = lambda device, to, source, size, stream: ctypes.memmove(to, source, size)  # noqa: E731
    monkeypatch.setattr(cuda, "cuda_device", lambda index: None)
    monkeypatch.setattr(cuda, "copy_to_host", move)
    monkeypatch.setattr(cuda, "copy_to_device", move)
    there, apart, kept = (
        np.arange(40, dtype=np.int32),
        np.arange(8, dtype=np.int32),
        np.arange(6, dtype=np.int32),
    )
    parts = [there[4:20:2], there[5:21:2], there[10:30].view(np.uint32).reshape(4, 5), apart, kept[:0], kept]
    views = []
    for part in parts:
        _, view, _ = view_of(part)
        views.append(ArrayView(view.shape, view.strides, view.dtype, Device("cuda", 0), part is kept))
    copies = HostCopies([part.ctypes.data for part in parts], views, 0)
    for part, copy in zip(parts, copies.arrays, strict=True):
        np.testing.assert_array_equal(part, copy)
        assert not np.shares_memory(part, copy)
    for place, array in enumerate(copies.arrays[:4]):
        array[...] = 100 * (place + 1)
    assert not copies.arrays[5].flags.writeable
    wanted = there.copy()
    wanted[4:20:2], wanted[5:21:2], wanted[10:30] = 100, 200, 300
    copies.write_back()
    np.testing.assert_array_equal(there, wanted)
    assert (apart == 400).all()
    np.testing.assert_array_equal(kept, np.arange(6))


def test_overlaps_are_found_at_the_first_call_of_a_kind():
    kernel = ts.kernel(twice.__wrapped__)
    whole = np.zeros(41, np.float32)
    with pytest.raises(CallError) as caught:
        kernel(whole[:40], numbers(40), whole[1:])
    assert caught.value.code == "overlapping-arguments"
    assert not whole.any()
