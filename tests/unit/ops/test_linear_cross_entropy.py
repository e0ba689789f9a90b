"""Cross entropy of a linear layer's logits against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.loss.linear_steps import chunk_of
from tests.unit.ops import library as lib

LOSS = op.loss.linear_cross_entropy


def operands(rng, count, features, classes, dtype=ts.f32):
    x, weight = lib.normal(rng, count, features, dtype=dtype), lib.normal(rng, classes, features, dtype=dtype)
    target = rng.integers(0, classes, count)
    target[1::5] = -100
    return x, weight, target


def by_torch(x, weight, target, grad=None, reduction="mean", label_smoothing=0.0, z_loss=0.0):
    """Return PyTorch's loss in f64, and its gradients."""
    torch = pytest.importorskip("torch")
    x2, w2 = (torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, weight))
    logits, at = x2 @ w2.T, torch.from_numpy(target)
    kept = at != -100
    losses = torch.nn.functional.cross_entropy(logits, at, reduction="none", label_smoothing=label_smoothing)
    losses = losses + z_loss * torch.logsumexp(logits, 1) ** 2 * kept
    loss = {"mean": losses.sum() / kept.sum(), "sum": losses.sum(), "none": losses}[reduction]
    loss.backward(torch.ones_like(loss) if grad is None else torch.from_numpy(grad.astype(np.float64)))
    return loss.detach().numpy(), x2.grad.numpy(), w2.grad.numpy()


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_chunks_and_reductions(library, reduction):
    rng = np.random.default_rng(1)
    given = operands(rng, 12, 19, 33)
    grad = np.asarray(rng.standard_normal(12 if reduction == "none" else ()), np.float32)
    options = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 0.01}
    loss, *slopes = by_torch(*given, grad, **options)
    ours = [lib.of_library(library, one) for one in given]
    lib.close(LOSS(*ours, chunk=5, **options), loss, ts.f32, 16)
    assert np.allclose(LOSS.reference(*ours, **options), loss, rtol=1e-10)
    found = LOSS.backward(lib.of_library(library, grad), *ours, chunk=5, **options)
    lib.close(found["x"], slopes[0], ts.f32, 32)
    lib.close(found["weight"], slopes[1], ts.f32, 32)


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16], ids=str)
def test_dtypes(dtype):
    given = operands(np.random.default_rng(2), 12, 19, 33, dtype)
    loss, *slopes = by_torch(*given)
    got = LOSS(*given, chunk=6)
    assert got.dtype == given[0].dtype
    lib.close(got, loss, dtype)
    if dtype == ts.bf16:  # products in f16 compile for seconds, and differ in nothing else
        found = LOSS.backward(np.ones((), dtype.numpy()), *given, chunk=6)
        lib.close(found["x"], slopes[0], dtype, 4)
        lib.close(found["weight"], slopes[1], dtype, 4)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_are_finite_differences(reduction):
    rng = np.random.default_rng(3)
    x, weight, target = operands(rng, 4, 3, 5, ts.f64)
    grad = np.asarray(rng.standard_normal(() if reduction == "mean" else 4))
    options = {"reduction": reduction, "label_smoothing": 0.2, "z_loss": 0.05, "chunk": 2}

    def value(given):
        return float((LOSS(given["x"], given["weight"], target, **options) * grad).sum())

    found = LOSS.backward(grad, x, weight, target, **options)
    for one, slope in lib.differences(value, {"x": x, "weight": weight}).items():
        assert np.allclose(found[one], slope, atol=1e-7, rtol=1e-6), one


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_training_with_pytorch(reduction):
    torch = pytest.importorskip("torch")
    given = operands(np.random.default_rng(4), 12, 19, 33)
    x, weight, target = (torch.from_numpy(one) for one in given)
    loss, *slopes = by_torch(*given, reduction=reduction)
    for of_x, of_weight in ((True, True), (True, False), (False, True)):
        x2, w2 = x.reshape(3, 4, 19).requires_grad_(of_x), weight.clone().requires_grad_(of_weight)
        got = LOSS(x2, w2, target.reshape(3, 4), reduction=reduction, chunk=5)
        assert np.allclose(got.detach().numpy().reshape(loss.shape), loss, rtol=1e-5)
        (got.sum() * 3).backward()
        assert (x2.grad is not None, w2.grad is not None) == (of_x, of_weight)
        if of_x:
            lib.close(x2.grad.reshape(12, 19), 3 * slopes[0], ts.f32, 32)
        if of_weight:
            lib.close(w2.grad, 3 * slopes[1], ts.f32, 32)
        x = x.detach()
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        LOSS(x, w2, target, out=torch.empty(()))


@pytest.mark.slow
def test_logits_are_never_all_there():
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(122, 19, requires_grad=True), torch.randn(33, 19, requires_grad=True)
    target = torch.randint(0, 33, (122,))
    LOSS(x, weight, target, chunk=5)  # kernels are compiled
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        LOSS(x, weight, target, chunk=5).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 122 * 33 * 4


def test_no_rows():
    x, weight, target = np.zeros((0, 7), np.float32), np.ones((5, 7), np.float32), np.zeros(0, np.int64)
    assert np.isnan(LOSS(x, weight, target))
    assert LOSS(x, weight, target, reduction="sum") == 0
    assert LOSS(x, weight, target, reduction="none").shape == (0,)
    found = LOSS.backward(np.array(1, np.float32), x, weight, target, reduction="sum")
    assert found["x"].shape == (0, 7)
    assert (found["weight"] == 0).all()
    losses = LOSS(np.zeros((3, 0), np.float32), weight[:, :0], np.zeros(3, np.int64))
    assert np.allclose(losses, np.log(5))


def test_arrays_of_any_strides():
    rng = np.random.default_rng(5)
    x, weight, target = operands(rng, 12, 19, 33)
    x, weight = np.asfortranarray(x), np.repeat(weight, 2, 0)[::2]
    loss, *slopes = by_torch(x, weight, target, reduction="none")
    out = np.zeros((12, 2), np.float32)[:, 1]
    assert LOSS(x, weight, target, reduction="none", chunk=6, out=out) is out
    lib.close(out, loss, ts.f32, 16)
    found = LOSS.backward(np.ones(12, np.float32), x, weight, target, reduction="none", chunk=6)
    lib.close(found["weight"], slopes[1], ts.f32, 32)


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, weight = torch.randn(12, 19, requires_grad=True), torch.randn(33, 19, requires_grad=True)
    step, target = torch.ops.tessera.linear_cross_entropy.default, torch.randint(0, 33, (12,))
    torch.library.opcheck(step, (x, weight, target, -100, 0.1, 0.01, "mean", 5))


X, W, T = np.zeros((3, 9), np.float32), np.zeros((5, 9), np.float32), np.zeros(3, np.int64)
WRONG = {
    "not-an-array": lambda: LOSS(3, W, T),
    "not-an-array, weight": lambda: LOSS(X, None, T),
    "wrong-rank": lambda: LOSS(X, W[0], T),
    "wrong-shape": lambda: LOSS(X, W[:, :4], T),
    "wrong-shape, no classes": lambda: LOSS(X, W[:0], T),
    "wrong-shape of targets": lambda: LOSS(X, W, T[:2]),
    "wrong-dtype": lambda: LOSS(X.astype(np.int32), W, T),
    "wrong-dtype of the weight": lambda: LOSS(X, W.astype(np.float64), T),
    "wrong-dtype of targets": lambda: LOSS(X, W, T.astype(np.float32)),
    "bad-argument": lambda: LOSS(X, W, T, reduction="average"),
    "bad-argument, chunk": lambda: LOSS(X, W, T, chunk=0),
    "bad-argument, smoothing": lambda: LOSS(X, W, T, label_smoothing=-0.1),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_linear_cross_entropy.py" in str(caught.value)


def test_kernels_compile_without_a_device():
    made = LOSS.compile(8192, 4096, 128256, target="sm_90a")
    assert sorted(made) == ["gradients", "logits", "losses", "weight", "x"]
    assert all(lib.spills(one) == 0 for one in made.values())


def test_chunks_take_the_memory_of_the_rows():
    assert chunk_of(4096, 128256, 0) == 4096
    assert chunk_of(64, 128256, 0) == 1024
    assert chunk_of(4096, 128256, 100) == 100
    assert chunk_of(4096, 33, 0) == chunk_of(4096, 33, 40) == 33


def test_costs():
    assert LOSS.flops(2, 3, 4) == 48
    assert LOSS.flops(2, 3, 4, gradient=True) == 192
    assert LOSS.bytes(2, 3, 4, ts.bf16) == 36
