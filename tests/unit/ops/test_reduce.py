"""Reductions against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

r = op.reduce
SUMS = {
    "sum": (r.sum, lambda x, axis, k: x.sum(axis, keepdims=k)),
    "mean": (r.mean, lambda x, axis, k: x.mean(axis, keepdims=k)),
    "var": (r.var, lambda x, axis, k: x.var(axis, keepdims=k, ddof=1)),
    "norm": (r.norm, lambda x, axis, k: np.sqrt((x * x).sum(axis, keepdims=k))),
}
each_sum = pytest.mark.parametrize("name", SUMS)
EXTREMES = {"max": (r.max, r.argmax), "min": (r.min, r.argmin)}
each_extreme = pytest.mark.parametrize("name", EXTREMES)
SHAPES = [
    ((5, 33), 1),
    ((5, 33), 0),
    ((3, 4, 6), 1),
    ((3, 4, 6), (0, 2)),
    ((2, 3, 4, 5), (1, 2)),
    ((7,), None),
    ((2, 3, 4), None),
    ((), None),
    ((1, 1), -1),
    ((0, 9), 1),
]


of_negative_rows = ts.jit(lambda x: np.sum(-x, axis=1))
ARRAYS = 10
"""Arrays of which all is added up: one number alone may be off by chance."""
LONG = {
    "rows in a graph": lambda x: -np.asarray(of_negative_rows(x)),
    "rows": lambda x: r.sum(x, 1),
    "columns": lambda x: r.sum(np.ascontiguousarray(x.T), 0),
    "arrays": lambda x: np.array([r.sum(part) for part in np.split(x, ARRAYS)]),
}


@pytest.mark.parametrize("shape", [(50, 40000), (30, 300001)])
@pytest.mark.parametrize("name", LONG)
def test_long_sums_of_f32_are_as_exact_as_pairwise_ones(name, shape):
    x = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
    exact, allowed = x.sum(1, dtype=np.float64), x.sum(1) - x.sum(1, dtype=np.float64)
    if name == "arrays":  # errors of rows add up as their squares do
        exact = exact.reshape(ARRAYS, -1).sum(1)
    error = np.linalg.norm(np.asarray(LONG[name](x), np.float64) - exact)
    assert error <= 2 * np.linalg.norm(allowed)


@each_sum
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shapes_of_sums(name, library):
    rng = np.random.default_rng(1)
    function, exact = SUMS[name]
    for shape, dim in SHAPES if name in ("sum", "var") else SHAPES[:4]:
        x = lib.normal(rng, *shape, shift=1.0) if shape else np.array(2.5, np.float32)
        for keepdim in (False, True):
            got = function(lib.of_library(library, x), dim=dim, keepdim=keepdim)
            want = exact(x.astype(np.float64), dim, keepdim)
            lib.close(got, want, ts.f32, 8)
            assert np.allclose(function.reference(x, dim=dim, keepdim=keepdim), want, equal_nan=True)


@each_extreme
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_shapes_of_extremes(name, library):
    rng = np.random.default_rng(2)
    function, places = EXTREMES[name]
    for shape, dim in SHAPES if name == "max" else SHAPES[:3]:
        if isinstance(dim, tuple):
            continue
        x = rng.integers(0, 9, shape).astype(np.float32)  # with equal ones
        x2 = lib.of_library(library, x)
        want = getattr(np, f"arg{name}")(x, dim) if x.size else np.zeros(0)
        best = getattr(np, name)(x, dim) if x.size else np.zeros(0)
        if dim is None:
            assert function(x2) == best
        else:
            values, indices = function(x2, dim)
            assert np.array_equal(values, best)
            assert np.array_equal(indices, want)
        if x.ndim:
            found = places(x2, dim, keepdim=True)
            assert np.array_equal(np.asarray(found).reshape(np.shape(want)), want)
            assert len(found.shape) == x.ndim
            assert not x.size or np.array_equal(places.reference(x, dim), want)


@pytest.mark.parametrize(
    ("name", "dtype", "dim"),
    [
        ("sum", ts.f64, 0),
        ("sum", ts.bf16, 2),
        ("mean", ts.f32, 2),
        ("mean", ts.f16, 0),
        ("var", ts.f64, 2),
        ("var", ts.f32, 0),
        ("var", ts.bf16, 0),
        ("norm", ts.f64, 0),
        ("norm", ts.f32, 2),
        ("norm", ts.f16, 2),
    ],
    ids=str,
)
def test_dtypes_results_and_gradients(name, dtype, dim):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x = lib.normal(rng, 37, 2, 130, dtype=dtype, shift=0.5)
    function, exact = SUMS[name]
    y = function(x, dim=dim)
    assert y.dtype == dtype.numpy()
    lib.close(y, exact(x.astype(np.float64), dim, False), dtype, 4)
    grad = lib.normal(rng, *y.shape, dtype=dtype)
    x2 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    theirs = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
    (theirs(x2, dim=dim) * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    lib.close(function.backward(grad, x, dim=dim)["input"], x2.grad.numpy(), dtype, 4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("max", one) for one in (ts.f64, ts.bf16, ts.f16, ts.i8, ts.i64)),
        *(("min", one) for one in (ts.f32, ts.u8, ts.i32)),
    ],
    ids=str,
)
def test_dtypes_of_extremes(name, dtype):
    rng = np.random.default_rng(4)
    if dtype.is_float:
        x = lib.normal(rng, 9, 70, dtype=dtype)
    else:
        ends = np.iinfo(dtype.numpy())
        x = rng.integers(ends.min, ends.max, (9, 70), dtype.numpy(), endpoint=True)
        x[1], x[2] = ends.min, ends.max
    for dim in (0, 1) if dtype.is_float else (1,):
        values, indices = EXTREMES[name][0](x, dim)
        assert np.array_equal(values, getattr(np, name)(x, dim))
        assert np.array_equal(indices, getattr(np, f"arg{name}")(x, dim))


def test_sums_of_integers_and_other_dtypes_of_results():
    rng = np.random.default_rng(5)
    x = rng.integers(-100, 100, (6, 300))
    for kind in (np.int8, np.int32, np.int64, np.bool_):
        got = r.sum(x.astype(kind), 1)
        assert got.dtype == np.int64
        assert np.array_equal(got, x.astype(kind).sum(1))
    assert np.array_equal(r.sum(x.astype(np.int16), dtype=ts.f32), np.float32(x.sum()))
    y = lib.normal(rng, 5, 400, dtype=ts.bf16)
    for dtype in (ts.f32, ts.f64):
        for function, exact in (SUMS["sum"], SUMS["mean"], SUMS["norm"]):
            got = function(y, dim=1, dtype=dtype)
            assert got.dtype == dtype.numpy()
            lib.close(got, exact(y.astype(np.float64), 1, False), dtype, 8)


PARTS = [(300_001,), (50_000, 3), (2, 40_000, 2)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("sum", one) for one in PARTS),
        *(("var", one) for one in PARTS),
        ("mean", PARTS[1]),
        ("norm", PARTS[0]),
    ],
    ids=str,
)
def test_sums_in_parts(name, shape):
    x = lib.normal(np.random.default_rng(6), *shape, shift=3.0)
    dim = len(shape) // 2
    function, exact = SUMS[name]
    got = function(x, dim=dim)
    lib.close(got, exact(x.astype(np.float64), dim, False), ts.f32, 8)
    assert np.array_equal(got, function(x, dim=dim))


@each_extreme
def test_extremes_in_parts(name):
    rng = np.random.default_rng(7)
    for shape in (PARTS[0], PARTS[2]) if name == "max" else PARTS[2:]:
        x = rng.integers(-9999, 9999, shape).astype(np.float32)
        dim = len(shape) // 2
        values, indices = EXTREMES[name][0](x, dim)
        assert np.array_equal(values, getattr(np, name)(x, dim))
        assert np.array_equal(indices, getattr(np, f"arg{name}")(x, dim))
        assert EXTREMES[name][1](x) == getattr(np, f"arg{name}")(x)
    x = np.full(100_000, np.inf if name == "min" else -np.inf, np.float32)
    assert EXTREMES[name][1](x) == 0


def test_a_mean_far_from_zero_spoils_no_variance():
    x = lib.normal(np.random.default_rng(8), 4, 5000, dtype=ts.f64).astype(np.float32) + np.float32(4096)
    lib.close(r.var(x, 1), x.astype(np.float64).var(1, ddof=1), ts.f32, 64)
    lib.close(r.var(x, 1, correction=0), x.astype(np.float64).var(1), ts.f32, 64)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_sums_of_nothing_are_pytorchs():
    torch = pytest.importorskip("torch")
    x = np.zeros((3, 0), np.float32)
    assert np.array_equal(r.sum(x, 1), np.zeros(3))
    assert np.array_equal(r.norm(x, dim=1), np.zeros(3))
    assert np.isnan(r.mean(x, 1)).all()
    assert np.isnan(r.var(x, 1)).all()
    one = np.ones((3, 1), np.float32)
    for correction in (0, 1, 2):
        want = torch.var(torch.from_numpy(one), 1, correction=correction).numpy()
        assert np.array_equal(r.var(one, 1, correction=correction), want, equal_nan=True)
    for function in (r.max, r.argmin):
        with pytest.raises(ts.errors.CallError, match="wrong-shape"):
            function(x, 1)
        assert function(x.T, 1, out=None) is not None


def test_extreme_values():
    x = np.random.default_rng(9).standard_normal((5, 64)).astype(np.float32)
    x[0, 3], x[0, 9], x[1, 4], x[2], x[3, 2] = np.nan, np.nan, np.inf, -np.inf, -np.inf
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        for name, (function, exact) in SUMS.items():
            lib.close(function(x, dim=1), exact(wide, 1, False), ts.f32, 16 if name != "sum" else 64)
    for name, (function, _places) in EXTREMES.items():
        values, indices = function(x, 1)
        assert np.array_equal(values, getattr(np, name)(x, 1), equal_nan=True)
        assert np.array_equal(indices, getattr(np, f"arg{name}")(x, 1))
    assert np.array_equal(r.norm(x, np.inf, 1), np.abs(x).max(1), equal_nan=True)


@pytest.mark.parametrize("shape", [(), (5, 7), (3, 5000), (40, 3, 5)], ids=str)
def test_equal_elements_share_gradients(shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(11)
    for missing in (False, True):
        x = torch.from_numpy(np.asarray(rng.integers(-2, 3, shape), np.float64))
        if missing:
            x.view(-1)[:3] = np.nan
        calls = [(r.max, torch.max, ()), (r.min, torch.min, ())]
        calls += [(r.norm, torch.linalg.vector_norm, (np.inf, dim)) for dim in ((None, 0, -1) if shape else (None,))]
        calls += [(r.norm, torch.linalg.vector_norm, (1, None))]
        for ours, theirs, options in calls:
            one, other = (x.clone().requires_grad_() for _ in range(2))
            got, want = ours(one, *options), theirs(other, *options)
            grad = torch.rand_like(want)
            slope = torch.autograd.grad(want, other, grad)[0]
            assert torch.allclose(torch.autograd.grad(got, one, grad)[0], slope, equal_nan=True)
            assert torch.allclose(ours.backward(grad, x, *options)["input"], slope, equal_nan=True)


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(10)
    x = rng.standard_normal((3, 2, 4))
    calls = {
        r.sum: {},
        r.mean: {},
        r.var: {"correction": 0.5},
        r.norm: {},
    }
    for function, options in calls.items():
        for dim, shape in ((0, (2, 4)), ((0, 2), (2,))) if function in (r.sum, r.var) else ((0, (2, 4)),):
            check(function, x, rng.standard_normal(shape), {"dim": dim, **options})
    check(r.norm, x, rng.standard_normal((3, 4)), {"ord": 1, "dim": 1})
    check(r.norm, x, rng.standard_normal((2,)), {"ord": np.inf, "dim": (0, 2)})
    for function in (r.max, r.min):
        check(function, x, rng.standard_normal(()), {"dim": None})


def check(function, x, grad, options):
    """Check a gradient against differences."""

    def value(given):
        y = function(**given, **options)
        return float(((y[0] if isinstance(y, tuple) else y) * grad).sum())

    found = function.backward(grad, x, **options)["input"]
    assert np.allclose(found, lib.differences(value, {"input": x})["input"], atol=1e-7, rtol=1e-6), options


@pytest.mark.parametrize("ord", [0, 0.5, 1.5, 3, 7.0])
@pytest.mark.parametrize("shape", [(), (5, 33), (2, 3, 4), (2, 9000), (0, 3)], ids=str)
def test_norms_of_any_exponent_are_those_of_pytorch(shape, ord):
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    for dim in (None, 0, -1) if shape else (None,):
        wide = torch.randn(shape).double()
        wide.view(-1)[:1] = 0.0
        theirs, ours = wide.clone().requires_grad_(), wide.float().requires_grad_()
        want, got = torch.linalg.vector_norm(theirs, ord, dim), r.norm(ours, ord, dim)
        assert torch.allclose(got.double(), want, rtol=2e-6)
        assert np.allclose(r.norm.reference(wide, ord, dim), want.detach().numpy())
        grad = torch.rand_like(want)
        slope = torch.autograd.grad(want, theirs, grad, allow_unused=True)[0]
        slope = torch.zeros_like(wide) if slope is None else slope
        near = {"rtol": 1e-5, "atol": 1e-6 * float(slope.abs().max()) if slope.numel() else 0.0}
        assert torch.allclose(torch.autograd.grad(got, ours, grad.float())[0].double(), slope, **near)
        assert torch.allclose(r.norm.backward(grad, wide, ord, dim)["input"], slope, **near)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((4, 1), 1), ((1, 4), 0), ((2, 1, 2), (1,)), ((1,), None), ((), None)])
@pytest.mark.parametrize("ord", [1, 2, float("inf")])
def test_norms_of_one_element_are_its_size(ord, shape, dim, dtype):
    largest, least = ml_dtypes.finfo(dtype.numpy()).max, ml_dtypes.finfo(dtype.numpy()).smallest_subnormal
    x = np.array([largest, -largest, least, 0.0], dtype.numpy()).ravel()[: int(np.prod(shape))].reshape(shape)
    kept = tuple(one for one in np.shape(np.sum(np.abs(x.astype(np.float64)), dim)))
    found = r.norm(x, ord, dim)
    assert np.array_equal(np.asarray(found, np.float64), np.abs(x.astype(np.float64)).reshape(kept))
    slopes = r.norm.backward(np.ones(kept, dtype.numpy()), x, ord, dim)["input"]
    assert np.array_equal(np.asarray(slopes, np.float64), np.sign(x.astype(np.float64)))


def test_a_norm_of_zero_has_no_gradient():
    assert not r.norm.backward(np.ones(2, np.float32), np.zeros((2, 3), np.float32), dim=1)["input"].any()


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_results_in_given_arrays(library):
    x = lib.normal(np.random.default_rng(11), 2, 3, 10)
    x2 = lib.of_library(library, x)
    base = lib.of_library(library, np.zeros((12, 24), np.float32))
    index = lib.of_library(library, np.zeros((12, 24), np.int64))
    for dim, (rows, columns) in ((0, (3, 10)), (1, (2, 10)), (2, (2, 3))):
        for place in (lambda b, m=rows, n=columns: b[: 2 * m : 2, : 2 * n : 2], lambda b, m=rows, n=columns: b[:m, :n]):
            out, where = place(base), place(index)
            for function, exact in (SUMS["sum"], SUMS["var"])[: 2 if dim == 1 else 1]:
                assert function(x2, dim=dim, out=out) is out
                lib.close(out, exact(x.astype(np.float64), dim, False), ts.f32, 8)
            assert r.max(x2, dim, out=(out, where))[0] is out
            assert np.array_equal(out, x.max(dim))
            assert np.array_equal(where, x.argmax(dim))
            if dim == 1:
                assert r.argmin(x2, dim, out=where) is where
                assert np.array_equal(where, x.argmin(dim))
    out = base[0, :3]
    r.sum(x2, (0, 2), out=out)
    lib.close(out, x.astype(np.float64).sum((0, 2)), ts.f32, 8)
    big = lib.normal(np.random.default_rng(12), 30_000, 2, 3)
    out = base[::2, ::3][:2, :3]
    r.sum(lib.of_library(library, big), 0, out=out)  # in parts, to where nothing is side by side
    lib.close(out, big.astype(np.float64).sum(0), ts.f32, 8)


def test_inputs_of_any_strides():
    base = np.random.default_rng(13).standard_normal((6, 8, 10)).astype(np.float32)
    flat = np.broadcast_to(base[0], (4, 8, 10))
    for x, dim in ((base.T, 2), (base[::2, 1:, ::3], 1), (base[:, ::-1], (0, 1)), (flat, (0, 2)), (base.T, None)):
        lib.close(r.sum(x, dim), x.astype(np.float64).sum(dim), ts.f32, 8)
        if not isinstance(dim, tuple):
            assert np.array_equal(r.argmax(x, dim), x.argmax(dim))


@pytest.mark.parametrize(
    ("name", "dims"),
    [("sum", (-1, 0)), ("mean", (0,)), ("var", (-1,)), ("norm", (0,)), ("max", (-1, 0)), ("min", (0,))],
)
def test_training_with_pytorch(name, dims):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    function = getattr(r, name)
    theirs = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
    for dim in dims:
        x = torch.randn(4, 6, 33, requires_grad=True)
        y = function(x, dim=dim)
        first = y[0] if name in EXTREMES else y
        grad = torch.randn(first.shape)
        (first * grad).sum().backward()
        found, x.grad = x.grad, None
        wanted = theirs(x, dim=dim)
        ((wanted[0] if name in EXTREMES else wanted) * grad).sum().backward()
        assert torch.allclose(found, x.grad, atol=1e-5)
    if name in SUMS:
        with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
            function(x, dim=0, out=torch.empty(6, 33))
        with torch.no_grad():
            function(x, dim=0, out=torch.empty(6, 33))


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, block = torch.randn(6, 33, requires_grad=True), torch.randn(2, 5, 3, requires_grad=True)
    operators = torch.ops.tessera
    torch.library.opcheck(operators.reduce_sums.default, (block, "var", 4.0, "f32"))
    for shared in (False, True):
        given = x, "max", shared
        torch.library.opcheck(operators.reduce_extremes.default, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_torch_compile_takes_reductions_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    def loss(f, norm, x):
        values, _ = f.max(x, 1)
        return (f.sum(x, (0, 2)) * f.mean(x, dim=(0, 2))).sum() + f.var(x) + norm(x, dim=1).sum() + values.sum()

    x = torch.randn(4, 9, 5, requires_grad=True)
    torch.compile(lambda x: loss(r, r.norm, x), backend="aot_eager", fullgraph=True)(x).backward()
    found, x.grad = x.grad, None
    loss(torch, torch.linalg.vector_norm, x).backward()
    assert torch.allclose(found, x.grad, atol=1e-5)


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda: r.sum(3),
    "bad-axis": lambda: r.mean(X, 2),
    "bad-axis, twice": lambda: r.sum(X, (0, -2)),
    "wrong-shape of out": lambda: r.sum(X, 1, out=X[0]),
    "wrong-shape of grad": lambda: r.sum.backward(X[0], X, 1),
    "wrong-shape, empty": lambda: r.max(X[:0]),
    "wrong-dtype": lambda: r.mean(X.astype(np.int32), 1),
    "wrong-dtype of bools": lambda: r.max(X.astype(np.bool_), 1),
    "wrong-dtype asked for": lambda: r.sum(X, 1, dtype=ts.i32),
    "wrong-dtype of out": lambda: r.argmax(X, 1, out=X[:, 0]),
    "wrong-dtype of grad": lambda: r.sum.backward(X[:, 0].astype(np.int64), X, 1),
    "wrong-dtype of sizes": lambda: r.norm(X, np.inf, dtype=ts.f64),
    "bad-argument, ord": lambda: r.norm(X, -1),
    "bad-argument, a name": lambda: r.norm(X, "fro"),
    "bad-argument, dim": lambda: r.sum(X, "last"),
    "bad-argument, dims of max": lambda: r.max(X, (0, 1)),
    "bad-argument, out of max": lambda: r.max(X, 1, out=X[:, 0]),
    "bad-argument, correction": lambda: r.var(X, correction="none"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_reduce.py" in str(caught.value)


def test_kernels_compile_without_a_device():
    for made, target in (
        (r.sum.compile((1024, 4096), 1, ts.bf16, target="sm_80"), "sm_80"),
        (r.var.compile((64, 512, 640), 1, target="sm_90a"), "sm_90a"),
        (r.max.compile((1024, 4096), 1, ts.f64, target="sm_80"), "sm_80"),
        (r.argmin.compile((4096, 640), 0, ts.bf16, target="sm_90a"), "sm_90a"),
    ):
        assert made.reflection["target"].startswith(target)
        assert lib.spills(made) == 0
    assert r.sum.compile((1024, 4096), 1, ts.bf16, target="cpu").reflection


def test_costs():
    assert r.sum.bytes((4, 8), ts.bf16, 1) == (4 * 8 + 4) * 2
    assert r.max.flops((4, 8)) == 32
    r.mean(X)
    assert r.mean.explain() is not None
