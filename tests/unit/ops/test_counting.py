"""Counts of numbers, of elements in ranges and of runs, against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(("size", "least"), [(700, 0), (1, 9), (0, 0), (0, 4)])
def test_bincount(library, size, least):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 40, size)
    found = op.bincount(lib.of_library(library, x), minlength=least)
    assert np.array_equal(found, np.bincount(x, minlength=least))
    assert np.array_equal(found, op.bincount.reference(x, minlength=least))
    assert str(found.dtype).endswith("int64")
    for dtype in (ts.f32, ts.f64):
        weights = lib.normal(rng, size, dtype=dtype)
        given = [lib.of_library(library, one) for one in (x, weights)]
        sums = op.bincount(*given, least)
        lib.close(sums, np.bincount(x, weights.astype(np.float64), least), dtype, 8)
        assert sums.dtype == given[1].dtype
        assert np.array_equal(sums, op.bincount(*given, least))


@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_bincount_of_short_integers_and_strides(kind):
    x = np.random.default_rng(2).integers(0, 100, 900).astype(kind)
    for strided in (x[::3], x[::-1]):
        assert np.array_equal(op.bincount(strided), np.bincount(strided))
        weights = np.ones(x.size, np.float32)[: strided.size]
        assert np.array_equal(op.bincount(strided, weights), np.bincount(strided))


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_histogram(dtype):
    torch = pytest.importorskip("torch")
    x = lib.normal(np.random.default_rng(3), 20, 30, dtype=dtype, scale=3)
    own = lib.of_library("torch", x)
    exact = own if dtype.bits > 16 else own.float()  # PyTorch rounds the ranges of short floats
    for bins, low, high in ((16, -2, 2), (8, 0, 0), (1, 0, 1)):
        wanted = torch.histc(exact, bins, low, high).to(own.dtype)
        found = op.histogram(own, bins, low, high)
        assert found.dtype == own.dtype
        assert torch.equal(found, wanted)
        assert np.array_equal(op.histogram(x, bins, low, high), found.to(torch.float64).numpy())
        if dtype is ts.f64:
            assert np.array_equal(op.histogram.reference(x, bins, low, high), wanted)


def test_histograms_of_special_values():
    torch = pytest.importorskip("torch")
    x = np.array([0, 1, np.nan, 4, 5, -0.0, np.inf], np.float32)
    assert np.array_equal(op.histogram(x, 4, 0, 4), torch.histc(torch.from_numpy(x), 4, 0, 4))
    for given in (x[:0], x[1:2], x[::-3]):
        ends = (0, 9) if given.size == 3 else ()
        wanted = torch.histc(torch.from_numpy(given.copy()), 4, *ends)
        assert np.array_equal(op.histogram(given, 4, *ends), wanted)
    with pytest.raises(ts.errors.CallError, match="finite"):
        op.histogram(x)


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", [(3000,), (3, 5, 4), (1,), (0,), ()], ids=str)
def test_runs(library, shape):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(4).integers(0, 2, shape).astype(np.float32)
    wanted = torch.unique_consecutive(torch.from_numpy(np.array(x)), True, True)
    own = lib.of_library(library, x)
    found = op.unique_consecutive(own, True, True)
    for one, other, exact in zip(found, wanted, op.unique_consecutive.reference(x), strict=True):
        assert tuple(one.shape) == tuple(other.shape)
        assert np.array_equal(one, other)
        assert np.array_equal(exact, other)
    assert np.array_equal(op.unique_consecutive(own), wanted[0])
    assert np.array_equal(op.unique_consecutive(own, return_counts=True)[1], wanted[2])


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_histograms_in_given_arrays(library):
    x = np.random.default_rng(6).standard_normal((5, 40)).astype(np.float32)
    wanted = op.histogram(x, 7, -1, 1)
    out = lib.of_library(library, np.zeros((7, 3), np.float32))[:, 1]
    assert op.histogram(lib.of_library(library, x), 7, -1, 1, out=out) is out
    assert np.array_equal(out, wanted)
    with pytest.raises(ts.errors.CallError, match="wrong-shape"):
        op.histogram(x, 7, out=np.zeros(3, np.float32))


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", [(7,), (6, 3), (4, 5, 2), (90, 130), (0,), (1, 4)], ids=str)
def test_parts_that_repeat_the_one_before(library, shape):
    torch = pytest.importorskip("torch")
    for dim in range(-1, len(shape)):
        some = np.random.default_rng(sum(shape)).integers(0, 2, shape)
        x = np.take(some, np.arange(shape[dim]) // 3, dim).astype(np.float32)
        found = op.unique_consecutive(lib.of_library(library, x), True, True, dim)
        wanted = torch.unique_consecutive(torch.from_numpy(x), return_inverse=True, return_counts=True, dim=dim)
        for one, other, exact in zip(found, wanted, op.unique_consecutive.reference(x, dim), strict=True):
            assert np.array_equal(one, other)
            assert np.array_equal(one, exact)


def test_runs_of_other_dtypes_and_strides():
    torch = pytest.importorskip("torch")
    x = np.array([np.nan, np.nan, 1, 1, 0.0, -0.0, 2, 2, 2])
    for given in (x, x[::-1], x[2:].astype(np.int64), x[2::2].astype(np.int8), x.astype(np.float16)):
        found = op.unique_consecutive(given, return_counts=True)
        wanted = torch.unique_consecutive(torch.from_numpy(given.copy()), return_counts=True)
        assert found[0].dtype == given.dtype
        assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(found, wanted, strict=True))


X, I = np.zeros(9, np.float32), np.arange(9)  # noqa: E741
WRONG = {
    "not-an-array": lambda: op.bincount(3),
    "wrong-rank": lambda: op.bincount(I[None]),
    "wrong-dtype": lambda: op.bincount(X),
    "wrong-dtype of weights": lambda: op.bincount(I, I),
    "wrong-shape": lambda: op.bincount(I, X[:3]),
    "bad-argument, numbers": lambda: op.bincount(-I),
    "bad-argument, length": lambda: op.bincount(I, minlength=-1),
    "bad-argument, bins": lambda: op.histogram(X, 0),
    "bad-argument, ends": lambda: op.histogram(X, 3, 2, 1),
    "wrong-dtype of a histogram": lambda: op.histogram(I),
    "bad-axis of runs": lambda: op.unique_consecutive(X, dim=2),
    "wrong-shape of parts": lambda: op.unique_consecutive(np.zeros((3, 0), np.float32), dim=0),
    "wrong-dtype of runs": lambda: op.unique_consecutive(X.astype(np.complex64)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_counting.py" in str(caught.value)


def test_costs_and_kernels_without_a_device():
    assert (op.bincount.bytes((9,), ts.i32, 4), op.bincount.flops((9,))) == (68, 9)
    assert (op.histogram.bytes((9,), ts.f32, 4), op.histogram.flops((9,))) == (52, 36)
    assert (op.unique_consecutive.bytes((9,), ts.f32, 4), op.unique_consecutive.flops((9,))) == (156, 18)
    for one in (op.bincount, op.histogram, op.unique_consecutive):
        assert lib.spills(one.compile(target="sm_90a")) == 0
