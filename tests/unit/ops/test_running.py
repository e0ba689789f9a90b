"""Running sums and products against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.running import logarithms, steps
from tests.unit.ops import library as lib

SCANS = {"cumsum": (op.cumsum, np.cumsum), "cumprod": (op.cumprod, np.cumprod)}
each_scan = pytest.mark.parametrize("name", SCANS)
SHAPES = [((5, 33), 1), ((3, 4, 6), 1), ((3, 5), 0), ((7,), -1), ((4, 1), 1), ((2, 0), 1), ((0, 9), 1), ((0, 4), 0)]


@each_scan
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_shapes(name, library):
    function, exact = SCANS[name]
    for shape, dim in SHAPES:
        x = lib.normal(np.random.default_rng(1), *shape)
        lib.close(function(lib.of_library(library, x), dim), exact(x.astype(np.float64), dim), ts.f32, 8)
        assert np.array_equal(function.reference(x, dim), exact(x.astype(np.float64), dim))
    assert function(np.array(3.0, np.float32), 0) == 3


@pytest.mark.parametrize(
    ("name", "dtype", "dim"),
    [
        ("cumsum", ts.f64, 0),
        ("cumsum", ts.f32, 2),
        ("cumsum", ts.bf16, 0),
        ("cumsum", ts.f16, 2),
        ("cumprod", ts.f64, 2),
        ("cumprod", ts.f32, 0),
        ("cumprod", ts.bf16, 2),
        ("cumprod", ts.f16, 0),
    ],
    ids=str,
)
def test_dtypes_results_and_gradients(name, dtype, dim):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x = rng.uniform(0.7, 1.3, (37, 2, 37)).astype(dtype.numpy())
    function, exact = SCANS[name]
    y = function(x, dim)
    assert y.dtype == dtype.numpy()
    lib.close(y, exact(x.astype(np.float64), dim), dtype, 8)
    grad = lib.normal(rng, *x.shape, dtype=dtype)
    x2 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    (getattr(torch, name)(x2, dim) * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    lib.close(function.backward(grad, x, dim)["input"], x2.grad.numpy(), dtype, 16)


@each_scan
def test_integers_and_other_dtypes_of_results(name):
    rng = np.random.default_rng(3)
    function, exact = SCANS[name]
    x = rng.integers(-3, 4, (3, 300))
    for kind in (np.int8, np.int64, np.bool_):
        got = function(x.astype(kind), 1)
        assert got.dtype == np.int64
        assert np.array_equal(got, exact(x.astype(kind), 1, dtype=np.int64))
    y = rng.uniform(0.9, 1.1, (5, 40)).astype(ts.bf16.numpy())
    got = function(y, 1, dtype=ts.f64)
    lib.close(got, exact(y.astype(np.float64), 1), ts.f64, 64)


@each_scan
@pytest.mark.parametrize(("shape", "dim"), [((3, 9000), 1), ((2, 1000, 3), 1)], ids=str)
def test_what_no_block_holds(name, shape, dim):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x = rng.uniform(0.99, 1.01, shape).astype(np.float32)
    function, exact = SCANS[name]
    lib.close(function(x, dim), exact(x.astype(np.float64), dim), ts.f32, 256)
    grad = lib.normal(rng, *shape)
    x2 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    (getattr(torch, name)(x2, dim) * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    lib.close(function.backward(grad, x, dim)["input"], x2.grad.numpy(), ts.f32, 256)


@each_scan
def test_gradients_are_finite_differences(name):
    rng = np.random.default_rng(5)
    x, grad = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 2, 4))
    x[1, 0, 1] = x[1, 0, 3] = x[2, 1, 0] = 0.0
    function = SCANS[name][0]
    for dim in (0, 2):
        slopes = lib.differences(lambda given, d=dim: float((function(dim=d, **given) * grad).sum()), {"input": x})
        found = function.backward(grad, x, dim)["input"]
        assert np.allclose(found, slopes["input"], atol=1e-7, rtol=1e-6), dim


@each_scan
def test_extreme_values(name):
    x = np.random.default_rng(6).standard_normal((4, 64)).astype(np.float32)
    x[0, 30], x[1, 40], x[1, 50], x[2, 9], x[3] = np.nan, np.inf, -np.inf, 0.0, x[3] * 1e-40
    function, exact = SCANS[name]
    with np.errstate(all="ignore"):
        want = exact(x, 1)
    assert np.allclose(function(x, 1), want, equal_nan=True, atol=1e-5)


@each_scan
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_results_in_given_arrays_and_inputs_of_any_strides(name, library):
    function, exact = SCANS[name]
    x = lib.normal(np.random.default_rng(7), 2, 3, 10)
    base = lib.of_library(library, np.zeros((12, 24, 20), np.float32))
    for dim in (0, 1, 2) if name == "cumsum" else (1,):
        for out in (base[:2, :3, :10], base[::6, ::8, ::2], base.swapaxes(0, 1)[:2, :3, :10]):
            assert function(lib.of_library(library, x), dim, out=out) is out
            lib.close(out, exact(x.astype(np.float64), dim), ts.f32, 8)
    if library == "numpy":
        for strided in (x.T, x[:, ::-1], np.broadcast_to(x[0], (4, 3, 10))):
            lib.close(function(strided, 1), exact(strided.astype(np.float64), 1), ts.f32, 8)


@each_scan
def test_training_with_pytorch(name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for dim in (-1, 1) if name == "cumsum" else (1,):
        x = torch.randn(4, 6, 50, requires_grad=True)
        grad = torch.randn(x.shape)
        (SCANS[name][0](x, dim) * grad).sum().backward()
        found, x.grad = x.grad, None
        (getattr(torch, name)(x, dim) * grad).sum().backward()
        assert torch.allclose(found, x.grad, atol=1e-4)
        with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
            SCANS[name][0](x, dim, out=torch.empty(x.shape))


EXTREMES = {"cummax": (op.cummax, np.maximum), "cummin": (op.cummin, np.minimum)}
each_extreme = pytest.mark.parametrize("name", EXTREMES)


def theirs(name, x, dim):
    """What PyTorch gives, as NumPy arrays."""
    torch = pytest.importorskip("torch")
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    return [one.numpy() for one in getattr(torch, name)(torch.from_numpy(np.ascontiguousarray(wide)), dim)]


@each_extreme
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_extremes(name, library):
    function, exact = EXTREMES[name]
    rng = np.random.default_rng(8)
    for shape, dim in (*(SHAPES if name == "cummax" else SHAPES[:3]), ((2, 5000), 1), ((2, 300, 3), 1)):
        x = rng.integers(-99, 99, shape).astype(np.float32)  # with equal ones
        values, indices = function(lib.of_library(library, x), dim)
        wanted = theirs(name, x, dim)
        assert np.array_equal(values, wanted[0])
        assert np.array_equal(indices, wanted[1])
        assert np.array_equal(function.reference(x, dim), exact.accumulate(x, dim))


@each_extreme
def test_dtypes_and_extreme_values_of_extremes(name):
    rng = np.random.default_rng(9)
    x = rng.standard_normal((5, 40)) * 50
    x[0, 20], x[0, 30], x[1, 4], x[2], x[3, :5] = np.nan, np.nan, np.inf, np.inf, -np.inf
    for dtype in (ts.f64, ts.bf16, ts.f16, ts.i8) if name == "cummax" else (ts.f32, ts.bf16, ts.i64):
        given = (x if dtype.is_float else np.nan_to_num(x, posinf=9, neginf=9)).astype(dtype.numpy())
        for found, wanted in zip(EXTREMES[name][0](given, 1), theirs(name, given, 1), strict=True):
            assert np.array_equal(found, wanted.astype(found.dtype), equal_nan=dtype.is_float)


@each_extreme
def test_gradients_of_extremes(name):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(10)
    function = EXTREMES[name][0]
    x, grad = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 2, 4))
    slopes = lib.differences(lambda given: float((function(dim=2, **given)[0] * grad).sum()), {"input": x})
    assert np.allclose(function.backward(grad, x, 2)["input"], slopes["input"], atol=1e-7, rtol=1e-6)
    for shape, dim in (((4, 5000), 1), ((2, 300, 3), 1)):
        x2 = torch.from_numpy(rng.integers(0, 9, shape).astype(np.float32)).requires_grad_()
        grad2 = torch.randn(shape)
        (function(x2, dim).values * grad2).sum().backward()
        found, x2.grad = x2.grad, None
        (getattr(torch, name)(x2, dim).values * grad2).sum().backward()
        assert torch.allclose(found, x2.grad, atol=1e-3)


@each_extreme
def test_extremes_in_given_arrays(name):
    x = lib.normal(np.random.default_rng(11), 2, 3, 10)
    values, indices = np.zeros((4, 6, 10), np.float32), np.zeros((3, 2, 10), np.int64)
    for dim in (0, 1, 2):
        outs = values[::2, ::2], indices.swapaxes(0, 1)
        EXTREMES[name][0](x, dim, out=outs)
        assert all(np.array_equal(got, wanted) for got, wanted in zip(outs, theirs(name, x, dim), strict=True))
    for mistake, code in ((values, "bad-argument"), ((values[::2, ::2], values[::2, ::2]), "wrong-dtype")):
        with pytest.raises(ts.errors.CallError, match=code):
            EXTREMES[name][0](x, 0, out=mistake)


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x = torch.randn(2, 5, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.tessera.cumsum.default, (x, "f32"))
    quick = "test_schema", "test_faketensor"
    torch.library.opcheck(torch.ops.tessera.cumprod.default, (x, "f64"), test_utils=quick)
    torch.library.opcheck(torch.ops.tessera.cumulative_extremes.default, (x, "max"), test_utils=quick)


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda f: f(3, 0),
    "bad-axis": lambda f: f(X, 2),
    "wrong-shape of out": lambda f: f(X, 1, out=X[:2]),
    "wrong-shape of grad": lambda f: f.backward(X[:2], X, 1),
    "wrong-dtype": lambda f: f(X.astype(np.complex64), 1),
    "wrong-dtype asked for": lambda f: f(X, 1, dtype=ts.i32),
    "wrong-dtype of out": lambda f: f(X, 1, out=X.astype(np.float64)),
    "bad-argument, dim": lambda f: f(X, "last"),
    "bad-argument, dims": lambda f: f(X, (0, 1)),
}


@each_scan
@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(name, mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake](SCANS[name][0])
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_running.py" in str(caught.value)


def test_kernels_compile_without_a_device():
    for made in (
        op.cumsum.compile((1024, 4096), 1, ts.bf16, target="sm_80"),
        op.cumprod.compile((64, 512, 640), 1, target="sm_90a"),
        op.cummax.compile((1024, 4096), 1, target="sm_90a"),
    ):
        assert lib.spills(made) == 0
    assert op.cumsum.compile((1024, 4096), 1, ts.bf16, target="cpu").reflection


def test_costs():
    assert op.cumsum.bytes((4, 8), ts.bf16) == 4 * 8 * 2 * 2
    assert op.cumprod.flops((4, 8)) == 32


PARTS = [((2, 1000), {"BA": 2, "BN": 64}), ((1, 129), {"BA": 1, "BN": 32}), ((2, 70, 40), {"BN": 8, "BB": 32})]


@pytest.mark.parametrize("kind", ["sum", "prod", "logarithms"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "block"), PARTS, ids=str)
@pytest.mark.parametrize("each", [1, 2, 5])
def test_parts_go_on_where_the_one_before_ends(kind, reverse, shape, block, each):
    x = np.random.default_rng(4).uniform(0.95, 1.05, shape).astype(np.float32)
    y, parts = np.full_like(x, 99), -(-shape[1] // block["BN"] // each)
    if kind == "logarithms":
        x[0, :90] = -np.inf
        logarithms.run(x, y, ts.f64, block, parts, each)
        exact = np.logaddexp.accumulate(x.astype(np.float64), 1)
    else:
        steps.run(x, y, kind, reverse, ts.f64, block, parts, each)
        turned = np.flip(x, 1) if reverse else x
        exact = (np.cumsum if kind == "sum" else np.cumprod)(turned.astype(np.float64), 1)
        exact = np.flip(exact, 1) if reverse else exact
    lib.close(y, exact, ts.f32, 8)


def test_parts_compile_for_gpus():
    from tessera.ops.running import kernels, logarithm_kernels

    for target in ("sm_80", "sm_90a"):
        for rows in (True, False):
            block = {"BA": 1, "BN": 512} if rows else {"BN": 16, "BB": 32}
            own = {"T": ts.bf16, "S": ts.f32, **block}
            sums, logarithms_ = (one.rows if rows else one.columns for one in (kernels, logarithm_kernels))
            assert sums.compile(target=target, Y=ts.bf16, kind="sum", reverse=True, acc=ts.f32, **own)
            assert logarithms_.compile(target=target, acc=ts.f32, **own)
