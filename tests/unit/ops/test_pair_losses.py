"""Losses of vectors against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.loss import triplet_kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

COSINE, TRIPLET = op.loss.cosine_embedding, op.loss.triplet_margin


def exact_cosine(x, y, signs, margin=0.0):
    x, y = x.astype(np.float64), y.astype(np.float64)
    cosine = (x * y).sum(-1) / np.sqrt(((x * x).sum(-1) + 1e-12) * ((y * y).sum(-1) + 1e-12))
    return np.where(signs == 1, 1 - cosine, np.maximum(cosine - margin, 0))


def exact_triplet(a, b, c, margin=1.0, p=2.0):
    a, b, c = (one.astype(np.float64) for one in (a, b, c))
    near, far = ((np.abs(a - one + 1e-6) ** p).sum(-1) ** (1 / p) for one in (b, c))
    return np.maximum(near - far + margin, 0)


def signs_of(rng, *shape):
    return np.asarray(rng.integers(0, 2, shape) * 2 - 1)


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 1500), (7,), (1, 2)], ids=str)
def test_shapes_and_reductions(library, shape):
    rng = np.random.default_rng(1)
    given = [lib.normal(rng, *shape) for _ in range(3)]
    signs = signs_of(rng, *shape[:-1])
    a, b, c, s = (lib.of_library(library, one) for one in (*given, signs))
    cosine, triplet = exact_cosine(*given[:2], signs, 0.1), exact_triplet(*given)
    for reduction in ("mean", "sum", "none"):
        for got, whole in (
            (COSINE(a, b, s, margin=0.1, reduction=reduction), cosine),
            (TRIPLET(a, b, c, reduction=reduction), triplet),
        ):
            lib.close(got, whole if reduction == "none" else getattr(whole, reduction)(), ts.f32, 8)
    assert np.allclose(COSINE.reference(a, b, s, margin=0.1), cosine.mean(), rtol=1e-10)
    assert np.allclose(TRIPLET.reference(a, b, c), triplet.mean(), rtol=1e-10)


def test_zero_sizes():
    x, signs, one = np.zeros((0, 7), np.float32), np.zeros(0, np.int64), np.array(1, np.float32)
    assert np.isnan(COSINE(x, x, signs))
    assert TRIPLET(x, x, x, reduction="sum") == 0
    assert COSINE.backward(one, x, x, signs)["input2"].shape == (0, 7)
    assert TRIPLET.backward(one, x, x, x)["anchor"].shape == (0, 7)
    x = np.zeros((2, 0), np.float32)
    assert COSINE(x, x, np.array([1, -1])) == 0.5
    assert TRIPLET(x, x, x, margin=0.5) == 0.5


@pytest.mark.parametrize(
    ("dtype", "reduction"), [(ts.f64, "mean"), (ts.f32, "none"), (ts.bf16, "none"), (ts.f16, "mean")], ids=str
)
def test_dtypes_and_training_with_pytorch(dtype, reduction):
    torch = pytest.importorskip("torch")
    f, rng = torch.nn.functional, np.random.default_rng(2)
    given = [lib.normal(rng, 9, 130, dtype=dtype) for _ in range(3)]
    ours = [lib.of_library("torch", one).requires_grad_() for one in given]
    wide = [one.detach().double().requires_grad_() for one in ours]
    signs = torch.from_numpy(signs_of(rng, 9))
    near = 8 if dtype.name in ("f32", "f64") else 2
    for got, want, count in (
        (
            COSINE(*ours[:2], signs.to(ours[0].dtype), reduction=reduction),
            f.cosine_embedding_loss(*wide[:2], signs, reduction=reduction),
            2,
        ),
        (TRIPLET(*ours, reduction=reduction), f.triplet_margin_loss(*wide, reduction=reduction), 3),
    ):
        lib.close(got, want.detach().numpy(), dtype, near)
        grad = torch.rand_like(want).to(got.dtype)
        left = torch.autograd.grad(got, ours[:count], grad)
        right = torch.autograd.grad(want, wide[:count], grad.double())
        for one, other in zip(left, right, strict=True):
            lib.close(one, other.numpy(), dtype, 4 * near)


@pytest.mark.parametrize(("p", "reduction"), [(1.0, "mean"), (2.0, "none"), (3.5, "mean")])
def test_gradients_are_finite_differences(p, reduction):
    rng = np.random.default_rng(3)
    vectors = {name: rng.standard_normal((4, 5)) for name in ("anchor", "positive", "negative")}
    grad = np.asarray(rng.standard_normal(() if reduction == "mean" else 4))
    options = {"p": p, "reduction": reduction, "margin": 2.0}
    lib.close(
        TRIPLET(**vectors, **options | {"reduction": "none"}),
        exact_triplet(*vectors.values(), margin=2.0, p=p),
        ts.f64,
        8,
    )

    def value(given):
        return float((TRIPLET(**given, **options) * grad).sum())

    found = TRIPLET.backward(grad, **vectors, **options)
    for one, slope in lib.differences(value, vectors).items():
        assert np.allclose(found[one], slope, atol=1e-7, rtol=1e-6), one
    pair = {"input1": vectors["anchor"], "input2": vectors["positive"]}
    signs = np.array([1, -1, 1, -1])

    def of_pair(given):
        return float((COSINE(**given, target=signs, margin=0.05, reduction=reduction) * grad).sum())

    found = COSINE.backward(grad, **pair, target=signs, margin=0.05, reduction=reduction)
    for one, slope in lib.differences(of_pair, pair).items():
        assert np.allclose(found[one], slope, atol=1e-7, rtol=1e-6), one


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, np.inf])
@pytest.mark.parametrize("width", [9, 5000])
def test_triplets_are_those_of_pytorch(width, p, swap):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    # Small whole numbers have equal distances, and several differences as large as the largest.
    for kind, missing in (("whole", False), ("real", False), ("whole", True)):
        made = [rng.integers(-2, 3, (6, width)) if kind == "whole" else rng.standard_normal((6, width))] * 3
        given = [torch.from_numpy(rng.permuted(one, axis=1).astype(np.float64)) for one in made]
        if missing:
            given[0][1, 2], given[2][3, 0] = np.nan, np.inf
        ours, theirs = ([one.clone().requires_grad_() for one in given] for _ in range(2))
        got = TRIPLET(*ours, 1.0, p, 0.0, swap, reduction="none")
        want = torch.nn.functional.triplet_margin_loss(*theirs, 1.0, p, 0.0, swap, reduction="none")
        assert torch.allclose(got, want, rtol=1e-11, equal_nan=True)
        assert missing or np.allclose(TRIPLET.reference(*given, 1.0, p, 0.0, swap, reduction="none"), want.detach())
        grad = torch.rand(6).double()
        for one, other in zip(
            torch.autograd.grad(got, ours, grad),
            torch.autograd.grad(want, theirs, grad, allow_unused=True),
            strict=True,
        ):
            slope = torch.zeros_like(one) if other is None else other
            assert torch.allclose(one, slope, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("mean", [0.0, 100.0, 1e4, 1e6])
def test_equal_rows_have_the_gradients_of_eps(mean, p):
    rng = np.random.default_rng(9)
    rows = lib.normal(rng, 5, 33, shift=mean)
    grad = lib.normal(rng, 5)
    given = rows, rows.copy(), rows.copy()
    found = op.loss.triplet_margin.backward(grad, *given, p=p, reduction="none")
    # All differences are eps, so that each is the same part of the norm.
    slope = (1 / 33 ** (1 / p)) ** (p - 1) * grad[:, None] * np.ones(33)
    for name, exact in (("anchor", 0.0 * slope), ("positive", -slope), ("negative", slope)):
        assert np.abs(found[name] - exact).max() <= (4 if p < 3 else 300) * 2.0**-23 * np.abs(slope).max()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("power", "p"), [(2, 2.0), ("max", np.inf)])
def test_what_gpus_would_compute_of_triplets(power, p, whole):
    rng, count, width = np.random.default_rng(10), 3, 70
    vectors = [lib.normal(rng, count, width) for _ in range(3)]
    losses, stats = np.zeros(count, np.float32), np.zeros((6 if power == "max" else 3, count), np.float32)
    options = {**dict.fromkeys("TLS", ts.f32), "acc": ts.f32, "power": power, "swap": True, "whole": whole}
    dims, numbers = {"M": count, "D": width, "K": len(stats)}, (1.0, p if power == 2 else 1.0, 1e-6)
    given = [*vectors, losses, stats]
    emulated(triplet_kernels.triplets, "sm_90a", given, dims, numbers, **options, BM=1, B=1 if whole else 64)
    lib.close(losses, TRIPLET.reference(*vectors, 1.0, p, 1e-6, True, reduction="none"), ts.f32, 16)


def test_extreme_values_and_strides():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(4).standard_normal((6, 8)).astype(np.float32)
    x[0], x[1, 2], x[2] = 0.0, np.nan, x[2] * 1e-20
    y = np.asfortranarray(x[::-1])
    signs = np.ones(12, np.int32)[::2]
    want = torch.nn.functional.cosine_embedding_loss(
        torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(signs.copy()), reduction="none"
    )
    out = np.zeros((6, 2), np.float32)[:, 0]
    assert COSINE(x, y, signs, reduction="none", out=out) is out
    assert np.allclose(out, want.numpy(), atol=1e-6, equal_nan=True)
    found = TRIPLET.backward(np.array(1, np.float32), x, x, x, eps=0.0, reduction="sum")
    assert np.isnan(found["anchor"]).any(1).tolist() == [False, True, False, False, False, False]
    assert (found["positive"][2:] == 0).all()


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, y, z = (torch.randn(6, 33, requires_grad=True) for _ in range(3))
    signs = torch.ones(6)
    torch.library.opcheck(torch.ops.tessera.cosine_embedding_loss.default, (x, y, signs, 0.1, True, 5))
    given = x, y, z, 1.0, 2.0, 1e-6, False, False, 1
    step = torch.ops.tessera.triplet_margin_loss.default
    torch.library.opcheck(step, given, test_utils=("test_schema", "test_faketensor"))


X, S = np.zeros((3, 9), np.float32), np.ones(3, np.int64)
WRONG = {
    "not-an-array": lambda: COSINE(3, X, S),
    "not-an-array, target": lambda: COSINE(X, X, 1),
    "wrong-rank": lambda: TRIPLET(X[0, :1].reshape(()), X, X),
    "wrong-shape": lambda: TRIPLET(X, X, X[:2]),
    "wrong-shape of targets": lambda: COSINE(X, X, S[:2]),
    "wrong-dtype": lambda: TRIPLET(X, X, X.astype(np.float64)),
    "wrong-dtype of targets": lambda: COSINE(X, X, S.astype(np.int8)),
    "bad-argument": lambda: TRIPLET(X, X, X, p=-1.0),
    "bad-argument, margin": lambda: TRIPLET(X, X, X, margin=0.0),
    "bad-argument, reduction": lambda: COSINE(X, X, S, reduction="all"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_pair_losses.py" in str(caught.value)


@pytest.mark.parametrize(("loss", "target"), [(COSINE, "sm_80"), (TRIPLET, "sm_90a")], ids=["cosine", "triplet"])
def test_kernels_compile_without_a_device(loss, target):
    made = loss.compile(4096, target=target)
    assert made.reflection["target"].startswith(target)
    assert lib.spills(made) == 0


def test_costs():
    assert (COSINE.bytes((4, 8), ts.bf16), TRIPLET.bytes((4, 8), ts.bf16)) == (128, 192)
    assert (COSINE.flops((4, 8)), TRIPLET.flops((4, 8))) == (192, 256)
