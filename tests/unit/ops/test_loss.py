"""Losses of elements against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib


def xlogy(x, y):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0, 0.0, x * np.log(y))


def log(x):
    with np.errstate(divide="ignore"):
        return np.log(x)


def of_js(p, q):
    return (xlogy(p, 2 * p / (p + q)) + xlogy(q, 2 * q / (p + q))) / 2


SIGNED, CHANCES, LOGS = "signed", "chances", "logs"
EXACT = {
    "mse": lambda x, y: (x - y) ** 2,
    "l1": lambda x, y: np.abs(x - y),
    "huber": lambda x, y: np.where(np.abs(x - y) < 0.7, (x - y) ** 2 / 2, 0.7 * (np.abs(x - y) - 0.35)),
    "smooth_l1": lambda x, y: np.where(np.abs(x - y) < 0.7, (x - y) ** 2 / 1.4, np.abs(x - y) - 0.35),
    "bce": lambda x, y: -y * np.maximum(log(x), -100) - (1 - y) * np.maximum(log(1 - x), -100),
    "bce_with_logits": lambda x, y: np.logaddexp(0, x) - x * y,
    "kl_div": lambda x, y: xlogy(y, y) - y * x,
    "kl_div of logs": lambda x, y: np.exp(y) * (y - x),
    "js": of_js,
    "js of logs": lambda x, y: of_js(np.exp(x), np.exp(y)),
}
"""The losses of elements as their papers write them."""
OPTIONS = {
    "huber": {"delta": 0.7},
    "smooth_l1": {"beta": 0.7},
    "kl_div of logs": {"log_target": True},
    "js of logs": {"log": True},
}
DOMAINS = {
    "bce": (CHANCES, CHANCES),
    "bce_with_logits": (SIGNED, CHANCES),
    "kl_div": (LOGS, CHANCES),
    "kl_div of logs": (LOGS, LOGS),
    "js": (CHANCES, CHANCES),
    "js of logs": (LOGS, LOGS),
}
each_loss = pytest.mark.parametrize("name", EXACT)


def loss_of(name):
    return getattr(op.loss, name.split(" ")[0])


def operands(name, rng, *shape, dtype=ts.f32):
    """Return input and target that a loss is meant for."""
    made = []
    for domain in DOMAINS.get(name, (SIGNED, SIGNED)):
        values = rng.standard_normal(shape) if domain == SIGNED else rng.uniform(0.05, 0.95, shape)
        made.append(np.asarray(np.log(values) if domain == LOGS else values).astype(dtype.numpy()))
    return made


def exact(name, x, y, reduction="none"):
    losses = EXACT[name](x.astype(np.float64), y.astype(np.float64))
    if reduction == "batchmean":
        return losses.sum() / x.shape[0]
    return losses if reduction == "none" else getattr(losses, reduction)()


SHAPES = [(5, 33), (2, 3, 4), (1,), (), (70, 1000)]


@each_loss
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_shapes_and_reductions(name, library):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x, y = operands(name, rng, *shape)
        x2, y2 = (lib.of_library(library, one) for one in (x, y))
        for reduction in ("mean", "sum", "none"):
            got = loss_of(name)(x2, y2, reduction=reduction, **OPTIONS.get(name, {}))
            assert type(got) is type(x2)
            lib.close(got, exact(name, x, y, reduction), ts.f32, 8)
            again = loss_of(name)(x2, y2, reduction=reduction, **OPTIONS.get(name, {}))
            assert np.array_equal(got, again)
            reference = loss_of(name).reference(x2, y2, reduction=reduction, **OPTIONS.get(name, {}))
            assert np.allclose(reference, exact(name, x, y, reduction), rtol=1e-12, atol=1e-12)


@each_loss
def test_no_elements(name):
    x = np.zeros((0, 7), np.float32)
    options = OPTIONS.get(name, {})
    assert np.isnan(loss_of(name)(x, x, reduction="mean", **options))
    assert loss_of(name)(x, x, reduction="sum", **options) == 0
    assert loss_of(name)(x, x, reduction="none", **options).shape == (0, 7)
    found = loss_of(name).backward(np.array(1, np.float32), x, x, **options)
    assert found["input"].shape == found["target"].shape == (0, 7)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("huber", one) for one in lib.FLOATS), ("bce_with_logits", ts.bf16), ("js", ts.f16)],
    ids=str,
)
def test_dtypes(name, dtype):
    x, y = operands(name, np.random.default_rng(2), 37, 130, dtype=dtype)
    options = OPTIONS.get(name, {})
    for reduction in ("mean", "none"):
        got = loss_of(name)(x, y, reduction=reduction, **options)
        assert got.dtype == x.dtype
        lib.close(got, exact(name, x, y, reduction), dtype, 8 if dtype.name in ("f32", "f64") else 1)


@pytest.mark.parametrize(
    ("name", "reduction"), [*((name, "mean") for name in EXACT), ("mse", "none"), ("bce_with_logits", "none")]
)
def test_gradients_are_finite_differences(name, reduction):
    rng = np.random.default_rng(3)
    x, y = operands(name, rng, 4, 5, dtype=ts.f64)
    grad = rng.standard_normal(() if reduction == "mean" else (4, 5))
    grad = np.asarray(grad)
    options = OPTIONS.get(name, {}) | {"reduction": reduction}

    def value(given):
        return float((loss_of(name)(**given, **options) * grad).sum())

    found = loss_of(name).backward(grad, x, y, **options)
    for one, slope in lib.differences(value, {"input": x, "target": y}).items():
        assert np.allclose(found[one], slope, atol=1e-7, rtol=1e-6), one


@each_loss
@pytest.mark.parametrize("dtype", [ts.bf16], ids=str)
def test_training_with_pytorch(name, dtype):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    theirs = {
        "mse": f.mse_loss,
        "l1": f.l1_loss,
        "huber": f.huber_loss,
        "smooth_l1": f.smooth_l1_loss,
        "bce": f.binary_cross_entropy,
        "bce_with_logits": f.binary_cross_entropy_with_logits,
        "kl_div": f.kl_div,
        "kl_div of logs": f.kl_div,
    }
    given = operands(name, np.random.default_rng(4), 9, 31, dtype=dtype)
    x, y = (lib.of_library("torch", one).requires_grad_() for one in given)
    wide = [one.detach().double().requires_grad_() for one in (x, y)]
    options = OPTIONS.get(name, {})
    for reduction in ("sum", "batchmean") if name[:2] in ("kl", "js") else ("mean", "sum"):
        got = loss_of(name)(x, y, reduction=reduction, **options)
        (got * 3).backward()
        if name in theirs:
            want = theirs[name](*wide, reduction=reduction, **options)
        else:
            p, q = (one.exp() for one in wide) if options else wide
            m = (p + q) / 2
            want = ((p * (p / m).log() + q * (q / m).log()) / 2).sum()
            want = want / (9 if reduction == "batchmean" else 1)
        (want * 3).backward()
        lib.close(got, want.detach().numpy(), dtype, 4)
        for ours, other in zip((x, y), wide, strict=True):
            lib.close(ours.grad, other.grad.numpy(), dtype, 8 if dtype.name == "f32" else 2)
            ours.grad = other.grad = None


@pytest.mark.parametrize(("shape", "reduction"), [((6, 10), "mean"), ((10,), "none"), ((6, 1), "mean")], ids=str)
def test_weights_of_binary_losses(shape, reduction):
    torch = pytest.importorskip("torch")
    f, rng = torch.nn.functional, np.random.default_rng(5)
    x, y = (torch.from_numpy(rng.uniform(0.1, 0.9, (6, 10))).requires_grad_() for _ in range(2))
    w, pos = (torch.from_numpy(np.asarray(rng.uniform(0.5, 2, shape))) for _ in range(2))
    for ours, theirs, more in (
        (op.loss.bce, f.binary_cross_entropy, {}),
        (op.loss.bce_with_logits, f.binary_cross_entropy_with_logits, {"pos_weight": pos}),
    ):
        got = ours(x, y, w, reduction=reduction, **more)
        want = theirs(x, y, w, reduction=reduction, **more)
        assert torch.allclose(got, want, rtol=1e-12)
        reference = ours.reference(x.detach(), y.detach(), w, reduction=reduction, **more)
        assert np.allclose(reference, want.detach().numpy(), rtol=1e-12)
        grad = torch.rand_like(want)
        for left, right in zip(
            torch.autograd.grad(got, (x, y), grad), torch.autograd.grad(want, (x, y), grad), strict=True
        ):
            assert torch.allclose(left, right, rtol=1e-10)
        left = ours.backward(grad, x.detach(), y.detach(), w, reduction=reduction, **more)
        assert torch.allclose(
            left["input"], torch.autograd.grad(theirs(x, y, w, reduction=reduction, **more), x, grad)[0]
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 33), (), (0, 3)], ids=str)
def test_weights_of_distances(shape, reduction):
    torch = pytest.importorskip("torch")
    f, rng = torch.nn.functional, np.random.default_rng(9)
    x, y = (torch.from_numpy(np.asarray(rng.standard_normal(shape))).requires_grad_() for _ in range(2))
    w = torch.from_numpy(np.asarray(rng.uniform(0, 2, shape)))
    for ours, theirs in ((op.loss.mse, f.mse_loss), (op.loss.l1, f.l1_loss), (op.loss.huber, f.huber_loss)):
        got, want = ours(x, y, weight=w, reduction=reduction), theirs(x, y, weight=w, reduction=reduction)
        assert torch.allclose(got, want, rtol=1e-12, equal_nan=True)
        reference = ours.reference(x.detach(), y.detach(), weight=w, reduction=reduction)
        assert np.allclose(reference, want.detach().numpy(), rtol=1e-12, equal_nan=True)
        grad = torch.rand_like(want)
        slopes = torch.autograd.grad(want, (x, y), grad)
        for left, right in zip(torch.autograd.grad(got, (x, y), grad), slopes, strict=True):
            assert torch.allclose(left, right, rtol=1e-10)
        found = ours.backward(grad, x.detach(), y.detach(), weight=w, reduction=reduction)
        assert torch.allclose(found["target"], slopes[1], rtol=1e-10)
        with pytest.raises(ts.errors.CallError, match="no-gradient"):
            ours(x, y, weight=w.clone().requires_grad_())
        if shape:
            with pytest.raises(ts.errors.CallError, match="wrong-shape"):
                ours(x, y, weight=w[..., :1])


def test_the_slope_of_no_number_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x = torch.tensor([1.0, float("nan"), -2.0, float("inf")], requires_grad=True)
    for ours, theirs in ((op.loss.l1, f.l1_loss), (op.loss.huber, f.huber_loss), (op.loss.smooth_l1, f.smooth_l1_loss)):
        zero = torch.zeros(4)
        found, want = (torch.autograd.grad(one(x, zero, reduction="sum"), x)[0] for one in (ours, theirs))
        assert torch.equal(found.nan_to_num(7), want.nan_to_num(7))


def test_extreme_values():
    big = np.array([1e30, -1e30, np.nan, np.inf, 0.0, 200.0, -200.0], np.float32)
    zero = np.zeros_like(big)
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    for ours, theirs, x, y in (
        (op.loss.mse, f.mse_loss, big, zero),
        (op.loss.l1, f.l1_loss, big, zero),
        (op.loss.huber, f.huber_loss, big, zero),
        (op.loss.smooth_l1, f.smooth_l1_loss, big, zero),
        (op.loss.bce_with_logits, f.binary_cross_entropy_with_logits, big, zero),
        (op.loss.bce, f.binary_cross_entropy, np.float32([0, 1, 0, 1]), np.float32([0, 1, 1, 0])),
        (op.loss.kl_div, f.kl_div, np.float32([-1, -200, -1]), np.float32([0, 1e-30, 1])),
    ):
        want = theirs(torch.from_numpy(x), torch.from_numpy(y), reduction="none").numpy()
        assert np.allclose(ours(x, y, reduction="none"), want, equal_nan=True, rtol=1e-5)
    never = np.float32([-np.inf, 0.0])
    assert np.allclose(op.loss.js(never, never[::-1].copy(), log=True, reduction="sum"), np.log(2))
    assert np.allclose(op.loss.js(np.float32([0, 1]), np.float32([1, 0]), reduction="sum"), np.log(2))
    assert op.loss.kl_div(never, never, log_target=True) == 0
    assert np.isnan(op.loss.bce(np.float32([1.5]), np.float32([0.5])))


def test_beta_of_zero_is_l1():
    x, y = operands("l1", np.random.default_rng(6), 40)
    assert op.loss.smooth_l1(x, y, beta=0.0) == op.loss.l1(x, y)
    assert np.allclose(op.loss.smooth_l1.reference(x, y, beta=0.0), op.loss.l1.reference(x, y))


def test_mse_stands_among_the_ops():
    assert op.mse is op.loss.mse


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_results_in_given_arrays(library):
    x, y = operands("mse", np.random.default_rng(7), 6, 10)
    x2, y2 = (lib.of_library(library, one) for one in (x, y))
    out = lib.of_library(library, np.zeros((12, 20), np.float32))[::2, ::2]
    assert op.mse(x2, y2, reduction="none", out=out) is out
    lib.close(out, exact("mse", x, y), ts.f32, 8)
    out = lib.of_library(library, np.zeros((), np.float32))
    assert op.mse(x2, y2, out=out) is out
    lib.close(out, exact("mse", x, y, "mean"), ts.f32, 8)


def test_inputs_of_any_strides():
    base = np.random.default_rng(8).standard_normal((6, 8, 10)).astype(np.float32)
    for x in (base.T, base[::2, 1:, ::3], base[:, ::-1], np.broadcast_to(base[0], (4, 8, 10)), base[0, ::-2, 0]):
        y = x[::-1]
        lib.close(op.mse(x, y), exact("mse", x, y, "mean"), ts.f32, 8)
        found = op.mse.backward(np.array(1, np.float32), x, y, reduction="sum")
        lib.close(found["input"], 2 * (x - y), ts.f32, 2)


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, y = (torch.randn(40, requires_grad=True) for _ in range(2))
    step = torch.ops.tessera.loss_of_elements.default
    torch.library.opcheck(step, (x, y, None, None, None, "huber", 1.0, True, 10))
    weighted = x, y, torch.rand(40), torch.rand(8), None, "bce_with_logits", 0.0, False, 1
    torch.library.opcheck(step, weighted, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        op.mse(x, y, out=torch.empty(()))


@pytest.mark.slow
def test_torch_compile_takes_losses_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x, y):
        return op.mse(x, y) + op.loss.bce_with_logits(x, y.sigmoid(), reduction="none").sum()

    x, y = torch.randn(4, 9, requires_grad=True), torch.randn(4, 9)
    loss(x, y).backward()
    found = x.grad
    x.grad = None
    f = torch.nn.functional
    (f.mse_loss(x, y) + f.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="sum")).backward()
    assert torch.allclose(found, x.grad, atol=1e-5)


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda: op.mse(3, X),
    "not-an-array, target": lambda: op.mse(X, None),
    "wrong-shape": lambda: op.mse(X, X[0]),
    "wrong-shape of out": lambda: op.mse(X, X, out=X),
    "wrong-shape of a gradient": lambda: op.mse.backward(X, X, X),
    "wrong-shape of weights": lambda: op.loss.bce(X, X, X[:, :4]),
    "wrong-dtype": lambda: op.loss.l1(X.astype(np.int32), X),
    "wrong-dtype of the target": lambda: op.loss.l1(X, X.astype(np.float64)),
    "wrong-dtype of out": lambda: op.mse(X, X, reduction="none", out=X.astype(np.float64)),
    "wrong-dtype of weights": lambda: op.loss.bce(X, X, X.astype(np.int32)),
    "bad-argument": lambda: op.mse(X, X, reduction="average"),
    "bad-argument, batches": lambda: op.mse(X, X, reduction="batchmean"),
    "bad-argument, delta": lambda: op.loss.huber(X, X, delta=0.0),
    "bad-argument, beta": lambda: op.loss.smooth_l1(X, X, beta=-1.0),
    "bad-argument, text": lambda: op.loss.huber(X, X, delta="wide"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_loss.py" in str(caught.value)


GRADIENTS = ("huber", "bce", "bce_with_logits", "kl_div of logs", "js of logs")
SUMS = ("huber", "js of logs")


@pytest.mark.parametrize(
    ("name", "gradient"), [*((name, True) for name in GRADIENTS), *((name, False) for name in SUMS)]
)
def test_kernels_compile_without_a_device(name, gradient):
    for target in ("sm_80", "sm_90a") if name == "huber" else ("sm_90a",):
        made = loss_of(name).compile(ts.bf16, gradient=gradient, target=target)
        assert made.reflection["target"].startswith(target)
        assert lib.spills(made) == 0


def test_costs():
    assert op.mse.bytes((4, 8), ts.bf16) == 128
    assert op.mse.flops((4, 8)) == 96
