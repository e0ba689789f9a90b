"""Sorting and the largest elements against NumPy, finite differences and PyTorch."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.ordering import long_kernels
from tests.unit.ops import library as lib

CASES = [((5, 7), 1), ((3, 5, 3), 1), ((8,), -1), ((4, 1), 1), ((2, 0), 1), ((0, 9), 1), ((), 0)]


def theirs(function, x, *args, **more):
    """What PyTorch gives, as NumPy arrays."""
    torch = pytest.importorskip("torch")
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    return [one.numpy() for one in getattr(torch, function)(torch.from_numpy(np.array(wide)), *args, **more)]


def agree(found, wanted):
    """Check values and places."""
    for one, other in zip(found, wanted, strict=True):
        assert tuple(one.shape) == other.shape
        assert np.array_equal(np.asarray(one, other.dtype), other, equal_nan=other.dtype.kind == "f")


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(("shape", "dim"), CASES, ids=str)
def test_shapes(library, shape, dim):
    x = np.random.default_rng(1).integers(-3, 3, shape).astype(np.float32)  # with equal ones
    own = lib.of_library(library, x)
    for descending in (False, True):
        wanted = theirs("sort", x, dim=dim, descending=descending, stable=True)
        agree(op.sort(own, dim, descending), wanted)
        agree(op.sort.reference(x, dim, descending), wanted)
    size = shape[dim] if shape else 1
    for count in {0, min(size, size // 2 + 1)}:
        most = [np.atleast_1d(one).take(range(count), dim) for one in wanted] if shape else wanted
        if shape or count:
            agree(op.topk(own, count, dim), most)
            agree([one.reshape(most[0].shape) for one in op.topk.reference(x, count, dim)], most)


@pytest.mark.parametrize("dtype", [*lib.FLOATS, ts.u8, ts.i64], ids=str)
def test_dtypes_and_extreme_values(dtype):
    x = np.random.default_rng(2).standard_normal((6, 7)) * 50
    x[0, 3], x[0, 5], x[1, 4], x[2], x[3, :3], x[4, ::2], x[4, 1::2] = np.nan, np.nan, np.inf, np.inf, -np.inf, 0, -0.0
    given = (x if dtype.is_float else np.abs(np.nan_to_num(x, posinf=9, neginf=9)) % 100).astype(dtype.numpy())
    if not dtype.is_float:
        given[5, ::3], given[5, 1::3] = np.iinfo(given.dtype).max, np.iinfo(given.dtype).min
    for descending in (False, True):
        wanted = theirs("sort", given, dim=1, descending=descending, stable=True)
        found = op.sort(given, 1, descending)
        assert found.values.dtype == given.dtype
        agree(found, wanted)
        assert np.array_equal(np.signbit(np.float64(found.values[4])), np.signbit(wanted[0][4]))
    agree(op.topk(given, 3, 1), [one[:, :3] for one in wanted])


def test_long_rows_and_strides():
    rng = np.random.default_rng(3)
    x = rng.integers(-999, 999, (1, 900)).astype(np.float32)
    agree(op.sort(x), theirs("sort", x, stable=True))
    agree(op.topk(x, 100, largest=False), [one[:, :100] for one in theirs("sort", x, stable=True)])
    base = rng.standard_normal((6, 8, 10)).astype(np.float32)
    for strided in (base.T, base[::2, 1:, ::3], base[:, ::-1], np.broadcast_to(base[0], (3, 8, 10))):
        agree(op.sort(strided, 1, True), theirs("sort", strided, dim=1, descending=True, stable=True))


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.i64], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((2, 701), 1), ((3, 130, 2), 1), ((129,), 0)], ids=str)
def test_rows_that_no_program_has_at_once(dtype, shape, dim, monkeypatch):
    steps = importlib.import_module("tessera.ops.ordering.steps")
    monkeypatch.setattr(steps, "_WHOLE", 64)
    monkeypatch.setattr(steps, "RUN", 32)
    x = np.random.default_rng(7).integers(-99, 99, shape).astype(np.float32) / 4
    if dtype.is_float:
        for first, step, value in ((0, 7, np.nan), (3, 11, np.inf), (5, 13, -np.inf)):
            x.reshape(-1)[first::step] = value
    given = x.astype(dtype.numpy())
    for descending in (False, True):
        wanted = theirs("sort", given, dim=dim, descending=descending, stable=True)
        agree(op.sort(given, dim, descending), wanted)
        for count in (1, 20, shape[dim] - 5):
            some = [one.take(range(count), dim) for one in wanted]
            agree(op.topk(given, count, dim, descending), some)


def test_kernels_of_long_rows_keep_to_registers():
    sizes, given = {"A": 4, "N": 10**5, "B": 1, "C": 10**5}, {"kind": "min", "T": ts.f32}
    made = ts.compile(long_kernels.runs, "sm_90a", ["ptx"], sizes, **given, last=None, top=None, BN=8192, BK=8192)
    assert lib.spills(made) == 0


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients(dim):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, grad = rng.standard_normal((5, 5)).astype(np.float32), rng.standard_normal((5, 5)).astype(np.float32)
    for name, more in (("sort", ()), ("topk", (3,))):
        found = []
        some = grad.take(range(*(more or (5,))), dim)
        for function in (getattr(op, name), getattr(torch, name)):
            given = torch.from_numpy(x).clone().requires_grad_()
            function(given, *more, dim).values.backward(torch.from_numpy(some))
            found.append(given.grad.numpy())
        assert np.array_equal(*found)
        assert np.array_equal(getattr(op, name).backward(some, x, *more, dim)["input"], found[1])


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(5)
    x, grad = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    slopes = lib.differences(lambda given: float((op.sort(**given)[0] * grad).sum()), {"input": x})
    assert np.allclose(op.sort.backward(grad, x)["input"], slopes["input"], atol=1e-7, rtol=1e-6)


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    torch.library.opcheck(torch.ops.tessera.ordered.default, (torch.randn(2, 5, 3, requires_grad=True), "max", 2))


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda: op.sort(3),
    "wrong-dtype": lambda: op.sort(X.astype(np.complex64)),
    "bad-axis": lambda: op.topk(X, 2, 2),
    "bad-argument": lambda: op.topk(X, 10),
    "bad-argument, no dimension": lambda: op.topk(np.zeros((), np.float32), 0),
    "bad-argument, dim": lambda: op.sort(X, "last"),
    "wrong-shape": lambda: op.topk.backward(X, X, 2),
    "too-long": lambda: op.sort.compile((1, 65537), target="cpu"),
    "too-long, GPUs": lambda: op.topk.compile((1, 65536), 3, target="sm_90a"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(",")[0]
    assert "test_sort.py" in str(caught.value)


def test_costs_and_kernels_without_a_device():
    assert (op.sort.bytes((4, 8), ts.bf16), op.sort.flops((4, 8))) == (384, 96)
    assert (op.topk.bytes((4, 8), 2, ts.bf16), op.topk.flops((4, 8), 2)) == (144, 64)
    assert lib.spills(op.sort.compile((64, 128), target="sm_90a")) == 0
    assert lib.spills(op.topk.compile((64, 128), 8, target="sm_90a")) == 0


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(("shape", "dim"), [*CASES, ((2, 5000), 1), ((5000, 2), 0), ((2, 3, 10), 1)], ids=str)
def test_results_in_given_arrays(library, shape, dim):
    x = np.random.default_rng(12).integers(-9, 9, shape).astype(np.float32)
    own, size = lib.of_library(library, x), shape[dim] if shape else 1
    for call, count in ((op.sort, None), *((op.topk, each) for each in sorted({min(1, size), size // 2, size}))):
        if not shape and count == 0:
            continue
        given = (own, dim) if count is None else (own, count, dim)
        wanted = call(*given)
        every = tuple(slice(None, None, 2) for _ in wanted.values.shape)
        whole = [np.zeros([2 * extent for extent in wanted.values.shape], kind) for kind in (np.float32, np.int64)]
        outs = tuple(lib.of_library(library, one)[every] for one in whole)
        if not shape:
            outs = tuple(lib.of_library(library, one) for one in whole)
        found = call(*given, out=outs)
        assert all(one is other for one, other in zip(found, outs, strict=True))
        agree(found, [np.asarray(one) for one in wanted])


def test_what_given_arrays_are_refused():
    torch = pytest.importorskip("torch")
    x, values, places = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32), np.zeros((3, 4), np.int64)
    mistakes = [
        (values, "bad-argument"),
        ((values, values), "wrong-dtype"),
        ((values[:2], places), "wrong-shape"),
        ((places.view(np.float64), places), "wrong-dtype"),
    ]
    for out, code in mistakes:
        with pytest.raises(ts.errors.CallError, match=code):
            op.sort(x, out=out)
    asks = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        op.topk(asks, 2, out=(torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.int64)))
