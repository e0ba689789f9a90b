"""Softmax, its logarithm and logsumexp against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.softmaxes import kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

FORMS = {"softmax": op.softmax, "log_softmax": op.log_softmax}
each_form = pytest.mark.parametrize("name", FORMS)


def exact(name, x, axis=-1):
    """The functions as textbooks write them; logsumexp without its dimension."""
    x = np.asarray(x, np.float64)
    if not x.size:
        return np.full(np.delete(x.shape, axis), -np.inf) if name == "logsumexp" else x
    with np.errstate(invalid="ignore", divide="ignore"):
        top = x.max(axis, keepdims=True)
        shift = np.where(np.isinf(top), 0.0, top)
        powers = np.exp(x - shift)
        total = powers.sum(axis, keepdims=True)
        if name == "logsumexp":
            return (np.log(total) + shift).squeeze(axis)
        return powers / total if name == "softmax" else x - shift - np.log(total)


SHAPES = [
    ((5, 33), -1),
    ((3, 4, 6), 1),
    ((2, 3, 9), 0),
    ((7,), 0),
    ((4, 1), -1),
    ((2, 0), -1),
    ((0, 9), -1),
    ((0, 4), 0),
]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    [
        *(("softmax", *one) for one in SHAPES),
        *(("log_softmax", *one) for one in SHAPES[:2]),
        *(("logsumexp", *one) for one in SHAPES),
    ],
    ids=str,
)
def test_shapes(name, library, shape, dim):
    x = lib.normal(np.random.default_rng(1), *shape, scale=3.0)
    got = getattr(op, name)(lib.of_library(library, x), dim)
    lib.close(got, exact(name, x, dim), ts.f32, 8)
    reference = getattr(op, name).reference(x, dim)
    assert np.allclose(reference, exact(name, x, dim), atol=1e-12)


def test_a_number_alone():
    assert op.softmax(np.array(3.0, np.float32), 0) == 1
    assert op.log_softmax(np.array(3.0, np.float32)) == 0
    assert op.logsumexp(np.array(3.0, np.float32), 0) == 3


@pytest.mark.parametrize(
    ("name", "dtype", "dim"),
    [
        ("softmax", ts.f64, 0),
        ("softmax", ts.f32, 2),
        ("softmax", ts.bf16, 2),
        ("softmax", ts.f16, 0),
        ("log_softmax", ts.f32, 0),
        ("log_softmax", ts.bf16, 0),
        ("log_softmax", ts.f16, 2),
        ("logsumexp", ts.f64, 2),
        ("logsumexp", ts.bf16, 2),
        ("logsumexp", ts.f16, 0),
    ],
    ids=str,
)
def test_dtypes_results_and_gradients(name, dtype, dim):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x = lib.normal(rng, 37, 2, 130, dtype=dtype, scale=2.0)
    y = getattr(op, name)(x, dim)
    assert y.dtype == dtype.numpy()
    lib.close(y, exact(name, x, dim), dtype)
    grad = lib.normal(rng, *y.shape, dtype=dtype)
    found = getattr(op, name).backward(grad, x, dim)["input"]
    x2 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    wanted = getattr(torch, name)(x2, dim)
    (wanted * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    # Results are rounded before gradients are taken from them.
    lib.close(found, x2.grad.numpy(), dtype, 8)


@pytest.mark.parametrize(("name", "dim"), [("softmax", -1), ("log_softmax", 0)])
def test_wide_and_narrow_dtypes_of_results(name, dim):
    x = lib.normal(np.random.default_rng(3), 6, 40, dtype=ts.bf16)
    for dtype in (ts.f32, ts.f64):
        got = FORMS[name](x, dim, dtype=dtype)
        assert got.dtype == dtype.numpy()
        lib.close(got, exact(name, x, dim), dtype, 8)
    torch = pytest.importorskip("torch")
    got = FORMS[name](lib.of_library("torch", x), dim, dtype=torch.float32)
    assert got.dtype == torch.float32
    lib.close(got, exact(name, x, dim), ts.f32, 8)


@each_form
def test_gradients_are_finite_differences(name):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, 5))
    mask = rng.random((3, 5)) < 0.6
    mask[0] = False
    added = rng.standard_normal((2, 1, 5))
    for options in (
        {"dim": 1, "scale": 0.5},
        {"mask": mask},
        {"mask": added, "scale": -2.0},
        {"causal": True},
    ):
        sees = np.isfinite(op.log_softmax.reference(x, **options))
        grad = np.where(sees, rng.standard_normal(x.shape), 0.0)

        def value(given, options=options, grad=grad, sees=sees):
            return float((np.where(sees, FORMS[name](**given, **options), 0.0) * grad).sum())

        found = FORMS[name].backward(grad, x, **options)["input"]
        assert np.allclose(found, lib.differences(value, {"input": x})["input"], atol=1e-7, rtol=1e-6), options


def test_gradients_of_logsumexp_are_finite_differences():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 2, 4))
    for dim, shape in ((2, (3, 2)), (0, (2, 4)), ((0, 2), (2,)), ((0, 1), (4,))):
        grad = rng.standard_normal(shape)
        found = op.logsumexp.backward(grad, x, dim)["input"]
        slopes = lib.differences(
            lambda given, d=dim, g=grad: float((op.logsumexp(dim=d, **given) * g).sum()), {"input": x}
        )
        assert np.allclose(found, slopes["input"], atol=1e-7, rtol=1e-6), dim


@pytest.mark.parametrize(
    ("name", "width"), [("softmax", 1000), ("softmax", 40000), ("log_softmax", 40000), ("logsumexp", 40000)]
)
def test_rows_that_no_program_holds(name, width):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x = lib.normal(rng, 3, width, scale=5.0)
    got = getattr(op, name)(x, -1)
    lib.close(got, exact(name, x), ts.f32, 16)
    grad = lib.normal(rng, *got.shape)
    found = getattr(op, name).backward(grad, x, -1)["input"]
    x2 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    (getattr(torch, name)(x2, -1) * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    lib.close(found, x2.grad.numpy(), ts.f32, 64)


@pytest.mark.parametrize(("name", "width"), [("softmax", 9), ("softmax", 17000), ("log_softmax", 9)])
def test_masks(name, width):
    rng = np.random.default_rng(7)
    x = lib.normal(rng, 2, 3, 4, width)
    for shape in ((width,), (4, width), (3, 1, width), (2, 3, 4, width), (1, 1)) if width < 99 else ((4, width),):
        kept = rng.random(shape) < 0.5
        want = exact(name, np.where(kept, x, -np.inf))
        empty = np.broadcast_to(~kept, x.shape).all(-1)
        want[empty] = 0 if name == "softmax" else -np.inf
        lib.close(FORMS[name](x, mask=kept), want, ts.f32, 16)
        lib.close(FORMS[name](x, -1, mask=np.where(kept, 0.0, -np.inf)), want, ts.f32, 16)
    added = lib.normal(rng, 4, width)
    lib.close(FORMS[name](x, scale=0.25, mask=added), exact(name, 0.25 * x.astype(np.float64) + added), ts.f32, 16)


@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        ("softmax", 4, 4),
        ("softmax", 3, 7),
        ("softmax", 7, 3),
        ("softmax", 2, 17000),
        ("log_softmax", 7, 3),
        ("log_softmax", 2, 17000),
    ],
)
def test_causal(name, queries, keys):
    x = lib.normal(np.random.default_rng(8), 2, queries, keys)
    sees = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    want = exact(name, np.where(sees, x, -np.inf))
    want[:, ~sees.any(-1)] = 0 if name == "softmax" else -np.inf
    lib.close(FORMS[name](x, causal=True), want, ts.f32, 16)
    assert np.allclose(FORMS[name].reference(x, causal=True), want)


@pytest.mark.parametrize("name", [*FORMS, "logsumexp"])
@pytest.mark.parametrize("shape", [(6, 64), (6, 17000), (6, 64, 3)], ids=str)
def test_extreme_values(name, shape):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    x[0, 3], x[1, 4], x[2], x[3, 2] = np.nan, np.inf, -np.inf, -np.inf
    x[4] += 1e30
    x[5] *= 1e-40  # denormal
    want = getattr(torch, name)(torch.from_numpy(x).double(), 1).numpy()
    lib.close(getattr(op, name)(x, 1), want, ts.f32, 16)


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(
    ("name", "dim"),
    [("softmax", 0), ("softmax", 1), ("softmax", 2), ("log_softmax", 1), ("logsumexp", 0), ("logsumexp", 2)],
)
def test_results_in_given_arrays(name, library, dim):
    x = lib.normal(np.random.default_rng(10), 2, 3, 10)
    want = exact(name, x, dim)
    first, second, third = (*want.shape, 1)[:3]
    base = lib.of_library(library, np.zeros((12, 24, 20), np.float32))
    places = [
        base[:first, :second, :third],
        base[: 2 * first : 2, : 2 * second : 2, : 2 * third : 2],
        base.swapaxes(0, 1)[:first, :second, :third],
        base.reshape(-1)[: first * second * third].reshape(first, second, third),
    ]
    for out in places:
        goal = out[..., 0] if name == "logsumexp" else out
        assert getattr(op, name)(lib.of_library(library, x), dim, out=goal) is goal
        lib.close(goal, want, ts.f32, 8)


@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_inputs_of_any_strides(name):
    base = np.random.default_rng(11).standard_normal((6, 8, 10)).astype(np.float32)
    flat = np.broadcast_to(base[0], (4, 8, 10))
    for x, dim in ((base.T, 2), (base[::2, 1:, ::3], 1), (base[:, ::-1], 2), (flat, 1)):
        lib.close(getattr(op, name)(x, dim), exact(name, x, dim), ts.f32, 8)


def test_logsumexp_over_several_dimensions():
    x = lib.normal(np.random.default_rng(12), 3, 4, 5)
    for dim in ((0, 1), (1, 2), (0, 2), (0, 1, 2), (-1, 0)):
        rest = [at for at in range(3) if at not in [one % 3 for one in dim]]
        whole = np.transpose(x, (*rest, *(one % 3 for one in dim))).reshape(*(x.shape[at] for at in rest), -1)
        lib.close(op.logsumexp(x, dim), exact("logsumexp", whole), ts.f32, 8)
        kept = op.logsumexp(x, dim, keepdim=True)
        assert kept.shape == tuple(size if at in rest else 1 for at, size in enumerate(x.shape))


@pytest.mark.parametrize(("name", "dims"), [("softmax", (-1, 1)), ("log_softmax", (1,)), ("logsumexp", (-1,))])
def test_training_with_pytorch(name, dims):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for dim in dims:
        x = torch.randn(4, 6, 33, requires_grad=True)
        y = getattr(op, name)(x, dim)
        grad = torch.randn(y.shape)
        (y * grad).sum().backward()
        found, x.grad = x.grad, None
        (getattr(torch, name)(x, dim) * grad).sum().backward()
        assert torch.allclose(found, x.grad, atol=1e-5)
        with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
            getattr(op, name)(x, dim, out=torch.empty(y.shape))
        with torch.no_grad():
            getattr(op, name)(x, dim, out=torch.empty(y.shape))


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, block = torch.randn(6, 33, requires_grad=True), torch.randn(2, 5, 3, requires_grad=True)
    mask = torch.rand(6, 33) < 0.5
    operators = torch.ops.tessera
    torch.library.opcheck(operators.softmax.default, (x, mask, 0.5, 6, "softmax", "f32"))
    torch.library.opcheck(operators.logsumexp.default, (block,), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_torch_compile_takes_softmax_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    def loss(f, x):
        return (f.softmax(x, 1) * f.log_softmax(x, -1, dtype=torch.float32)).sum() + f.logsumexp(x, 0).sum()

    x = torch.randn(4, 9, requires_grad=True)
    torch.compile(lambda x: loss(op, x), backend="aot_eager", fullgraph=True)(x).backward()
    found, x.grad = x.grad, None
    loss(torch, x).backward()
    assert torch.allclose(found, x.grad, atol=1e-5)


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda f: f(3, 0),
    "bad-axis": lambda f: f(X, 2),
    "bad-axis, twice": lambda f: op.logsumexp(X, (0, -2)),
    "bad-axis, none": lambda f: f(X, None),
    "bad-axis with a mask": lambda f: f(X, 0, mask=X),
    "wrong-shape of a mask": lambda f: f(X, mask=X[:2]),
    "wrong-shape, no queries": lambda f: f(X[0], causal=True),
    "wrong-shape of out": lambda f: f(X, 1, out=X[:2]),
    "wrong-shape of grad": lambda f: f.backward(X[:2], X),
    "wrong-dtype": lambda f: f(X.astype(np.int32), 1),
    "wrong-dtype asked for": lambda f: f(X, 1, dtype=ts.i32),
    "wrong-dtype of a mask": lambda f: f(X, mask=X.astype(np.int32)),
    "wrong-dtype of out": lambda f: f(X, 1, out=X.astype(np.float64)),
    "wrong-dtype of grad": lambda f: f.backward(X.astype(np.float64), X),
    "bad-argument, scale": lambda f: f(X, scale="small"),
    "bad-argument, dim": lambda f: f(X, "last"),
}


@each_form
@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(name, mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake](FORMS[name])
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_softmax.py" in str(caught.value)


def test_masks_have_no_gradients():
    torch = pytest.importorskip("torch")
    with pytest.raises(ts.errors.CallError, match="mask-needs-no-gradient"):
        op.softmax(torch.zeros(3, 9), mask=torch.zeros(9, requires_grad=True))


def test_kernels_compile_without_a_device():
    for made, target in (
        (op.softmax.compile((1024, 16384), dtype=ts.f32, mask=ts.bool_, causal=True, target="sm_90a"), "sm_90a"),
        (op.log_softmax.compile((64, 128256), mask=ts.f32, target="sm_90a"), "sm_90a"),
        (op.softmax.compile((8, 512, 640), 1, target="sm_90a"), "sm_90a"),
        (op.logsumexp.compile((1024, 4096), target="sm_90a"), "sm_90a"),
        (op.softmax.compile((1024, 4096), target="sm_80"), "sm_80"),
    ):
        assert made.reflection["target"].startswith(target)
        assert lib.spills(made) == 0
    assert op.softmax.compile((1024, 4096), target="cpu").reflection


def test_costs():
    assert op.softmax.bytes((4, 8), ts.bf16) == 4 * 8 * 2 * 2
    assert op.logsumexp.bytes((4, 8), ts.f32) == 4 * 9 * 4
    assert (op.log_softmax.flops((4, 8)), op.logsumexp.flops((4, 8))) == (160, 128)
    assert op.softmax.explain() is not None


@pytest.mark.parametrize("form", ["softmax", "log"])
def test_what_gpus_would_compute_of_rows_that_shared_memory_keeps(form):
    rng, width = np.random.default_rng(13), 8200
    x, grad = (rng.standard_normal((1, width)).astype(ts.bf16.numpy()) for _ in range(2))
    y = op.softmax.reference(x, 1) if form == "softmax" else op.log_softmax.reference(x, 1)
    y = y.astype(ts.bf16.numpy())
    y64, g64 = y.astype(np.float64), grad.astype(np.float64)
    exact = (g64 - (g64 * y64).sum()) * y64 if form == "softmax" else g64 - np.exp(y64) * g64.sum()
    found, options = np.full_like(x, np.nan), {"T": ts.bf16, "Y": ts.bf16, "acc": ts.f32}
    dims = {"M": 1, "N": width}
    emulated(kernels.rows_backward, "sm_90a", [grad, y, found], dims, (1.0,), form=form, masked=False, **options)
    lib.close(found, exact, ts.bf16, 4)
