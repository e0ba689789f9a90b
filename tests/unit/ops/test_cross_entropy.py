"""Cross entropy against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.loss import soft_kernels
from tessera.ops.loss.class_kernels import LOWEST
from tessera.ops.loss.class_steps import blocks
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

IGNORED = -100


def exact(x, t, weight=None, reduction="mean", label_smoothing=0.0, z_loss=0.0, ignore_index=IGNORED):
    """Cross entropy as PyTorch's manual writes it, row by row, with z-loss."""
    x = x.astype(np.float64)
    weight = np.ones(x.shape[1]) if weight is None else weight.astype(np.float64)
    losses, shares = [], []
    for row, at in zip(x, t, strict=True):
        if at == ignore_index:
            losses.append(0.0)
            continue
        logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        loss = -(1 - label_smoothing) * weight[at] * logs[at] - label_smoothing / len(row) * (weight * logs).sum()
        losses.append(loss + z_loss * weight[at] * np.log(np.exp(row).sum()) ** 2)
        shares.append(weight[at])
    if reduction == "mean":
        return np.sum(losses) / np.sum(shares)
    return np.array(losses) if reduction == "none" else np.sum(losses)


def operands(rng, count, width, dtype=ts.f32, kind=np.int64):
    x = lib.normal(rng, count, width, dtype=dtype, scale=2.0)
    t = rng.integers(0, width, count).astype(kind)
    if count > 1:
        t[1] = IGNORED
    return x, t


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", [(5, 33), (1, 1), (7, 3000), (300, 64)], ids=str)
def test_shapes_and_reductions(library, shape):
    x, t = operands(np.random.default_rng(1), *shape, kind=np.int32 if shape[1] == 33 else np.int64)
    x2, t2 = (lib.of_library(library, one) for one in (x, t))
    for reduction in ("mean", "sum", "none"):
        got = op.loss.cross_entropy(x2, t2, reduction=reduction)
        lib.close(got, exact(x, t, reduction=reduction), ts.f32, 8)
        assert np.array_equal(got, op.loss.cross_entropy(x2, t2, reduction=reduction))
        reference = op.loss.cross_entropy.reference(x2, t2, reduction=reduction)
        assert np.allclose(reference, exact(x, t, reduction=reduction), rtol=1e-12)


def test_one_row_and_more_dimensions():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for size, reductions in (
        ((9,), ("mean",)),
        ((4, 9), ("mean", "none")),
        ((2, 9, 3), ("none",)),
        ((2, 9, 3, 4), ("mean",)),
    ):
        x = torch.randn(size, requires_grad=True)
        t = torch.randint(0, 9, (*size[:1], *size[2:]) if len(size) > 1 else ())
        for reduction in reductions:
            want = torch.nn.functional.cross_entropy(x, t, reduction=reduction)
            grad = torch.rand_like(want)
            slope = torch.autograd.grad(want, x, grad)[0]
            got = op.loss.cross_entropy(x, t, reduction=reduction)
            assert torch.allclose(got, want, atol=1e-6)
            assert torch.allclose(torch.autograd.grad(got, x, grad)[0], slope, atol=1e-6)
            found = op.loss.cross_entropy.backward(grad, x.detach(), t, reduction=reduction)["input"]
            assert torch.allclose(found, slope, atol=1e-6)
            of_numpy = op.loss.cross_entropy.backward(grad.numpy(), x.detach().numpy(), t.numpy(), reduction=reduction)
            assert np.array_equal(of_numpy["input"], found.numpy())
            reference = op.loss.cross_entropy.reference(x.detach(), t, reduction=reduction)
            assert np.allclose(reference, want.detach().numpy(), atol=1e-6)


def test_no_rows():
    x, t = np.zeros((0, 7), np.float32), np.zeros(0, np.int64)
    assert np.isnan(op.loss.cross_entropy(x, t))
    assert op.loss.cross_entropy(x, t, reduction="sum") == 0
    assert op.loss.cross_entropy(x, t, reduction="none").shape == (0,)
    found = op.loss.cross_entropy.backward(np.array(1, np.float32), x, t)
    assert found["input"].shape == (0, 7)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_and_options(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, t = operands(rng, 9, 130, dtype)
    weight = rng.uniform(0.5, 2, 130).astype(dtype.numpy())
    x64 = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    ways = {"f64": [(weight, 0.1, 0.01)], "bf16": [(weight, 0.0, 0.0)], "f16": [(None, 0.1, 0.01)]}
    all_ways = [(None, 0.0, 0.0), (weight, 0.0, 0.0), (None, 0.1, 0.01), (weight, 0.1, 0.01)]
    for w, smoothing, z_loss in ways.get(dtype.name, all_ways):
        for reduction in ("mean", "none"):
            options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss}
            got = op.loss.cross_entropy(x, t, w, **options)
            assert got.dtype == x.dtype
            lib.close(got, exact(x, t, w, **options), dtype, 8 if dtype.name in ("f32", "f64") else 1)
            if z_loss and reduction == "mean":
                assert np.allclose(op.loss.cross_entropy.reference(x, t, w, **options), exact(x, t, w, **options))
            w64 = None if w is None else torch.from_numpy(w.astype(np.float64))
            at = torch.from_numpy(t)
            whole = torch.nn.functional.cross_entropy(x64, at, w64, reduction=reduction, label_smoothing=smoothing)
            shares = (torch.ones(130).double() if w64 is None else w64)[at.clamp(0)] * (at != IGNORED)
            more = z_loss * shares * torch.logsumexp(x64, 1) ** 2
            whole = whole + (more.sum() / shares.sum() if reduction == "mean" else more)
            grad = np.ones(got.shape) if reduction == "mean" else rng.standard_normal(got.shape)
            grad = np.asarray(grad, dtype.numpy())
            slope = torch.autograd.grad(whole, x64, torch.from_numpy(grad.astype(np.float64)))[0]
            found = op.loss.cross_entropy.backward(grad, x, t, w, **options)["input"]
            lib.close(found, slope.numpy(), dtype, 8 if dtype.name in ("f32", "f64") else 1)


@pytest.mark.parametrize(("weighted", "reduction"), [(False, "none"), (True, "mean")])
def test_gradients_are_finite_differences(weighted, reduction):
    rng = np.random.default_rng(3)
    x, t = operands(rng, 4, 6, ts.f64)
    weight = rng.uniform(0.5, 2, 6) if weighted else None
    grad = np.asarray(rng.standard_normal(() if reduction == "mean" else 4))
    options = {"reduction": reduction, "label_smoothing": 0.2, "z_loss": 0.05}

    def value(given):
        return float((op.loss.cross_entropy(given["input"], t, weight, **options) * grad).sum())

    found = op.loss.cross_entropy.backward(grad, x, t, weight, **options)
    assert np.allclose(found["input"], lib.differences(value, {"input": x})["input"], atol=1e-7, rtol=1e-6)


def test_targets_that_count_for_nothing():
    x, t = operands(np.random.default_rng(4), 4, 10)
    one = np.array(1, np.float32)
    assert np.isnan(op.loss.cross_entropy(x, np.full(4, IGNORED)))
    assert (op.loss.cross_entropy.backward(one, x, np.full(4, IGNORED))["input"] == 0).all()
    assert np.allclose(op.loss.cross_entropy(x, t % 10, ignore_index=3), exact(x, t % 10, ignore_index=3), rtol=1e-6)
    for wrong in (10, -1, 2**40):
        t[2] = wrong
        losses = op.loss.cross_entropy(x, t, reduction="none")
        assert np.isnan(losses).tolist() == [False, False, True, False]
        found = op.loss.cross_entropy.backward(one, x, t, reduction="sum")["input"]
        assert np.isnan(found).any(1).tolist() == [False, False, True, False]
        assert np.isnan(op.loss.cross_entropy(x, t))
        assert np.isnan(op.loss.cross_entropy.reference(x, t))


def test_extreme_values():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(5).standard_normal((8, 70)).astype(np.float32)
    x[0, 3], x[1, 4], x[2, 5], x[3], x[4] = np.nan, np.inf, -np.inf, -np.inf, 3e38
    x[5] *= 1e30
    x[6, 7] = 1e4
    x[7] -= 1e4
    t = np.arange(8) + 3
    t[2] = 5  # a logit of -inf: an infinite loss
    x2 = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.cross_entropy(x2, torch.from_numpy(t), reduction="none")
    want.sum().backward()
    got = op.loss.cross_entropy(x, t, reduction="none")
    assert np.allclose(got, want.detach().numpy(), equal_nan=True, rtol=1e-5)
    found = op.loss.cross_entropy.backward(np.array(1, np.float32), x, t, reduction="sum")["input"]
    assert np.allclose(found[[2, 4, 5, 6, 7]], x2.grad.numpy()[[2, 4, 5, 6, 7]], atol=1e-3)
    got = op.loss.cross_entropy(x[4:], t[4:], reduction="none", label_smoothing=0.1)
    x2 = x2.detach()[4:]
    want = torch.nn.functional.cross_entropy(x2, torch.from_numpy(t[4:]), reduction="none", label_smoothing=0.1)
    assert np.allclose(got, want.numpy(), rtol=1e-5)
    low = np.full((1, 5), -1e300)
    assert np.allclose(op.loss.cross_entropy(low, np.array([2])), np.log(5))


def test_results_in_given_arrays_and_strides():
    base = np.random.default_rng(6).standard_normal((12, 40)).astype(np.float32)
    for x in (base.T, base[::2, 1::3], base[:, ::-1], np.broadcast_to(base[0], (4, 40))):
        t = np.arange(2 * len(x))[::2] % x.shape[1]
        out = np.zeros((len(x), 2), np.float32)[:, 1]
        assert op.loss.cross_entropy(x, t, reduction="none", out=out) is out
        lib.close(out, exact(x, t, reduction="none"), ts.f32, 8)
        found = op.loss.cross_entropy.backward(np.array(1, np.float32), x, t, reduction="sum")["input"]
        chances = np.exp(x - np.log(np.exp(x).sum(1, keepdims=True)))
        chances[np.arange(len(x)), t] -= 1
        lib.close(found, chances, ts.f32, 8)


@pytest.mark.parametrize(("smoothing", "weighted"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((5, 33), "float32"), ((7,), "float64"), ((2, 9, 3), "bfloat16"), ((0, 4), "float32")], ids=str
)
def test_probabilities_of_classes(shape, dtype, smoothing, weighted):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    axis, kind = min(1, len(shape) - 1), getattr(torch, dtype)
    x, p = torch.randn(shape).to(kind), torch.softmax(torch.randn(shape), axis).to(kind)
    if dtype == "float32" and x.numel():
        x[0, 3], x[2, 5] = -np.inf, np.nan
    weight = torch.rand(shape[axis]).to(kind) if weighted else None
    wide = None if weight is None else weight.double()
    for reduction in ("mean", "none"):
        options = {"reduction": reduction, "label_smoothing": smoothing}
        ours, theirs = ([one.to(to).requires_grad_() for one in (x.clone(), p.clone())] for to in (kind, torch.float64))
        got = op.loss.cross_entropy(*ours, weight, **options)
        want = torch.nn.functional.cross_entropy(*theirs, wide, **options)
        grad = torch.rand_like(got)
        slopes = torch.autograd.grad(want, theirs, grad.double())
        near = {"rtol": 4 * torch.finfo(kind).eps, "atol": 4 * torch.finfo(kind).eps, "equal_nan": True}
        for one, other in zip((got, *torch.autograd.grad(got, ours, grad)), (want, *slopes), strict=True):
            assert one.dtype == kind
            assert torch.allclose(one.double(), other, **near)
        found = op.loss.cross_entropy.backward(grad, x, p, weight, **options)
        assert torch.allclose(found["target"].double(), slopes[1], **near)
        exactly = op.loss.cross_entropy.reference(x, p, weight, **options)
        assert np.allclose(exactly, want.detach().numpy(), rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_a_certain_class_is_that_class(library):
    rng = np.random.default_rng(8)
    for width in (40, 9000):
        x, t = lib.normal(rng, 3, width), rng.integers(0, width, 3)
        certain = np.eye(width, dtype=np.float32)[t]
        x2, certain2 = (lib.of_library(library, one) for one in (x, certain))
        got = op.loss.cross_entropy(x2, certain2, label_smoothing=0.1, z_loss=0.01)
        lib.close(got, exact(x, t, label_smoothing=0.1, z_loss=0.01), ts.f32, 8)


def test_gradients_by_probabilities_are_finite_differences():
    rng = np.random.default_rng(9)
    given = {"input": rng.standard_normal((3, 5)), "target": rng.uniform(0.1, 1, (3, 5))}
    weight, options = rng.uniform(0.5, 2, 5), {"label_smoothing": 0.2, "z_loss": 0.05}

    def value(given):
        return float(op.loss.cross_entropy(given["input"], given["target"], weight, **options))

    found = op.loss.cross_entropy.backward(np.array(1.0), **given, weight=weight, **options)
    for name, slope in lib.differences(value, given).items():
        assert np.allclose(found[name], slope, atol=1e-7, rtol=1e-6), name


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, t = torch.randn(6, 33, requires_grad=True), torch.randint(0, 33, (6,))
    (op.loss.cross_entropy(x, t) * 3).backward()
    found = x.grad
    x.grad = None
    (torch.nn.functional.cross_entropy(x, t) * 3).backward()
    assert torch.allclose(found, x.grad, atol=1e-6)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        op.loss.cross_entropy(x, t, out=torch.empty(()))
    with torch.no_grad():
        op.loss.cross_entropy(x, t, out=torch.empty(()))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, t = torch.randn(6, 33, requires_grad=True), torch.randint(0, 33, (6,))
    step = torch.ops.tessera.cross_entropy.default
    torch.library.opcheck(step, (x, t, None, -100, 0.1, 0.01, "mean"))
    step, p = torch.ops.tessera.soft_cross_entropy.default, torch.rand(6, 33, requires_grad=True)
    torch.library.opcheck(step, (x, p, torch.rand(33), 0.1, 0.01, True, 6))


def test_what_gpus_would_compute_of_probabilities():
    rng, count, width = np.random.default_rng(10), 3, 70
    x, w = lib.normal(rng, count, width), lib.normal(rng, width) ** 2
    p = rng.uniform(0, 1, (count, width)).astype(np.float32)
    single = {**dict.fromkeys("TYWLS", ts.f32), "smooths": True, "acc": ts.f32}
    dims, numbers = {"M": count, "V": width}, (0.1, 0.01)
    wanted = op.loss.cross_entropy.reference(x, p, w, reduction="none", label_smoothing=0.1, z_loss=0.01)
    for kernel, more in ((soft_kernels.forward, {}), (soft_kernels.forward_wide, {"lowest": LOWEST["f32"]})):
        losses, stats = np.zeros(count, np.float32), np.zeros((3, count), np.float32)
        emulated(kernel, "sm_90a", [x, p, w, losses, stats], dims, numbers, **single, **more)
        lib.close(losses, wanted, ts.f32, 8)
    grad, of_x, of_p = np.ones(count, np.float32), np.zeros_like(x), np.zeros_like(p)
    given = [grad, x, p, w, stats, of_x, of_p]
    options = {"reduced": False, **blocks(width)}
    emulated(soft_kernels.backward, "sm_90a", given, {**dims, "G": count}, (*numbers, 1.0), **single, **options)
    found = op.loss.cross_entropy.backward(grad, x, p, w, reduction="none", label_smoothing=0.1, z_loss=0.01)
    lib.close(of_x, found["input"], ts.f32, 8)
    lib.close(of_p, found["target"], ts.f32, 8)


X, T = np.zeros((3, 9), np.float32), np.zeros(3, np.int64)
WRONG = {
    "not-an-array": lambda f: f(3, T),
    "not-an-array, target": lambda f: f(X, 2),
    "wrong-rank": lambda f: f(np.zeros((), np.float32), T),
    "wrong-shape": lambda f: f(X, T[:2]),
    "wrong-shape, no classes": lambda f: f(X[:, :0], T),
    "wrong-shape of weights": lambda f: f(X, T, X),
    "wrong-shape of out": lambda f: f(X, T, out=X),
    "wrong-dtype": lambda f: f(X.astype(np.int32), T),
    "wrong-dtype of classes": lambda f: f(X, T.astype(np.int8)),
    "wrong-shape of probabilities": lambda f: f(X, X[:, :8]),
    "bad-argument, index of probabilities": lambda f: f(X, X, ignore_index=3),
    "wrong-dtype of out": lambda f: f(X, T, reduction="none", out=np.zeros(3)),
    "bad-argument": lambda f: f(X, T, reduction="average"),
    "bad-argument, smoothing": lambda f: f(X, T, label_smoothing=1.5),
    "bad-argument, z_loss": lambda f: f(X, T, z_loss=-1.0),
    "bad-argument, index": lambda f: f(X, T, ignore_index="none"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake](op.loss.cross_entropy)
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_cross_entropy.py" in str(caught.value)


@pytest.mark.parametrize(("target", "gradient"), [("sm_90a", False), ("sm_80", True)])
def test_kernels_compile_without_a_device(target, gradient):
    made = op.loss.cross_entropy.compile(128256, label_smoothing=0.1, gradient=gradient, target=target)
    assert made.reflection["target"].startswith(target)
    assert lib.spills(made) == 0


def test_costs():
    assert op.loss.cross_entropy.bytes((4, 8), ts.bf16) == 64
    assert op.loss.cross_entropy.bytes((4, 8), ts.bf16, gradient=True) == 192
    assert op.loss.cross_entropy.flops((4, 8)) == 128
