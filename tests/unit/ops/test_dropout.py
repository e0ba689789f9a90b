"""Dropout against its definition by Philox in NumPy, its statistics, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

dropout = op.dropout
SEED = 2**40 + 7


def philox(seed, counters):
    """Return the words of Philox4x32-10 for each counter (Salmon et al., SC 2011)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [counters & low, counters >> half, np.zeros_like(counters), np.zeros_like(counters)]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (second >> half) ^ c[1] ^ np.uint64(key[0]),
            second & low,
            (first >> half) ^ c[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def exact(x, p, seed=SEED):
    """Return what is kept over its probability."""
    words = np.stack(philox(seed, np.arange(-(-x.size // 4), dtype=np.uint64)), 1).reshape(-1)[: x.size]
    uniform = (words >> np.uint64(8)) * 2.0**-24
    kept = (uniform >= np.float32(p)).reshape(x.shape)
    return np.where(kept, x.astype(np.float64) / (1 - np.float64(np.float32(p)) or 1), 0.0)


SHAPES = [(5, 33), (3, 4, 300), (5, 4100), (7,), (), (0, 9), (2, 0)]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_shapes(library, shape, p):
    x = np.asarray(lib.normal(np.random.default_rng(1), 1, *shape)[0], np.float32)
    got = dropout(lib.of_library(library, x), p, seed=SEED)
    lib.close(got, exact(x, p), ts.f32)
    assert np.allclose(dropout.reference(x, p, seed=SEED), exact(x, p), rtol=1e-6)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_and_gradients(dtype):
    rng = np.random.default_rng(2)
    x, grad = lib.normal(rng, 19, 130, dtype=dtype), lib.normal(rng, 19, 130, dtype=dtype)
    lib.close(dropout(x, 0.25, seed=-3), exact(x, 0.25, -3), dtype if dtype.bits < 64 else ts.f32)
    lib.close(
        dropout.backward(grad, 0.25, seed=-3)["input"], exact(grad, 0.25, -3), dtype if dtype.bits < 64 else ts.f32
    )


def test_a_gradient_is_a_finite_difference():
    rng = np.random.default_rng(3)
    x, grad = rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    slopes = lib.differences(lambda given: float((dropout(given["input"], 0.4, seed=5) * grad).sum()), {"input": x})
    assert np.allclose(dropout.backward(grad, 0.4, seed=5)["input"], slopes["input"], atol=1e-8)


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_in_place(library):
    x = np.random.default_rng(4).standard_normal((6, 10)).astype(np.float32)
    given = lib.of_library(library, x.copy())
    assert dropout(given, 0.4, True, True, seed=SEED) is given
    lib.close(given, exact(x, 0.4), ts.f32)
    assert dropout(given, 0.4, False, True, seed=SEED) is given
    lib.close(given, exact(x, 0.4), ts.f32)
    with pytest.raises(ts.errors.CallError, match="bad-argument"):
        dropout(given, 0.4, True, True, seed=SEED, out=lib.of_library(library, x))


def test_without_training_the_input_is_the_result():
    x, out = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    assert dropout(x, 0.5, False, seed=1) is x
    assert dropout(x, 0.0, seed=1) is x
    assert dropout(x, 0.5, False, seed=1, out=out) is out
    assert np.array_equal(out, x)
    assert dropout.backward(x, 0.5, False, seed=1)["input"] is x


def test_statistics():
    x, p = np.ones(1_000_000, np.float32), 0.3
    masks = [dropout(x, p, seed=seed) > 0 for seed in (1, 1, 2)]
    assert abs(masks[0].mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / x.size)
    assert np.array_equal(masks[0], masks[1])
    assert abs((masks[0] & masks[2]).mean() - (1 - p) ** 2) < 3e-3


def test_any_strides_and_results_in_given_arrays():
    base = np.random.default_rng(7).standard_normal((6, 8, 10)).astype(np.float32)
    for x in (base.T, base[::2, 1:, ::3], base[:, ::-1], np.broadcast_to(base[0], (4, 8, 10))):
        lib.close(dropout(x, 0.3, seed=SEED), exact(x, 0.3), ts.f32)
    big, whole = np.zeros((12, 16, 20), np.float32), base.copy()
    for out in (big[:6, :8, :10], big[::2, ::2, ::2], big.reshape(-1)[:480].reshape(6, 8, 10), whole):
        assert dropout(whole, 0.3, seed=SEED, out=out) is out
        lib.close(out, exact(base, 0.3), ts.f32)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 4, 10, requires_grad=True)
    y = dropout(x, 0.4, seed=9)
    y.sum().backward()
    assert torch.allclose(y, x * x.grad)
    assert set(np.unique(x.grad)) == {np.float32(0), np.float32(1 / (1 - np.float32(0.4)))}
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        dropout(x, seed=1, out=torch.empty(3, 4, 10))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    torch.library.opcheck(torch.ops.tessera.dropout.default, (torch.randn(6, 34, requires_grad=True), 0.3, 5))


X = np.zeros((3, 10), np.float32)
WRONG = {
    "not-an-array": lambda: dropout(3, seed=1),
    "wrong-dtype": lambda: dropout(X.astype(np.int32), seed=1),
    "wrong-shape of out": lambda: dropout(X, seed=1, out=X[:2]),
    "wrong-dtype of out": lambda: dropout(X, seed=1, out=X.astype(np.float64)),
    "bad-argument": lambda: dropout(X, 1.5, seed=1),
    "bad-argument p": lambda: dropout(X, "half", seed=1),
    "bad-argument seed": lambda: dropout(X, 0.5, seed=None),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_dropout.py" in str(caught.value)


def test_the_kernel_compiles_without_a_device():
    assert lib.spills(dropout.compile(4096, ts.bf16, target="sm_90a")) == 0


def test_costs():
    assert (dropout.bytes((4, 8), ts.bf16), dropout.flops((4, 8))) == (128, 32)


@pytest.mark.parametrize("width", [8, 20, 33])
def test_norms_drop_the_same_elements(width):
    x = np.random.default_rng(3).standard_normal((7, width), np.float32)
    _, summed = op.norm.rms(x, width, residual=np.zeros_like(x), dropout=0.3, seed=SEED)
    assert np.array_equal(summed, dropout(x, 0.3, seed=SEED))
