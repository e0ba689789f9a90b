"""L2 normalisation against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

l2 = op.norm.l2
CASES = [
    ((5, 33), 1),
    ((5, 33), 0),
    ((3, 4, 6), 1),
    ((3, 4, 6), (0, 2)),
    ((7,), 0),
    ((2, 0), 1),
    ((0, 9), 1),
    ((1, 1), -1),
]


def exact(x, dim):
    x = x.astype(np.float64)
    return x / np.maximum(np.sqrt((x**2).sum(dim, keepdims=True)), 1e-12)


@pytest.mark.parametrize(("shape", "dim"), CASES, ids=str)
def test_shapes(shape, dim):
    x = lib.normal(np.random.default_rng(1), *shape)
    lib.close(l2(x, dim), exact(x, dim), ts.f32, 8)
    assert np.allclose(l2.reference(x, dim), exact(x, dim))


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_and_training(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    for dim in (0, 1):
        x, grad = (lib.normal(rng, 40, 50, dtype=dtype) for _ in range(2))
        own = lib.of_library("torch", x).requires_grad_()
        y = l2(own, dim)
        y.backward(lib.of_library("torch", grad))
        wide = torch.from_numpy(x.astype(np.float64)).requires_grad_()
        want = torch.nn.functional.normalize(wide, dim=dim)
        want.backward(torch.from_numpy(grad.astype(np.float64)))
        lib.close(y.detach(), want.detach().numpy(), dtype)
        lib.close(own.grad, wide.grad.numpy(), dtype)
        lib.close(l2.backward(grad, x, dim)["input"], wide.grad.numpy(), dtype)


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_are_finite_differences(dim):
    rng = np.random.default_rng(3)
    x, grad = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    x[:, 1] *= 1e-3
    for eps in (1e-12, 5.0):  # longer and shorter than all
        found = l2.backward(grad, x, dim, eps)["input"]
        slopes = lib.differences(lambda given, eps=eps: float((l2(given["x"], dim, eps) * grad).sum()), {"x": x}, 1e-7)
        assert np.allclose(found, slopes["x"], atol=1e-5, rtol=1e-5)


def test_strides_given_arrays_and_extreme_values():
    base = np.random.default_rng(4).standard_normal((6, 8, 10)).astype(np.float32)
    for x in (base.T, base[::2, 1:, ::3], base[:, ::-1]):
        lib.close(l2(x, 1), exact(x, 1), ts.f32, 8)
        out = np.zeros(x.shape[::-1], np.float32).T
        assert l2(x, 1, out=out) is out
        lib.close(out, exact(x, 1), ts.f32, 8)
    base[0], base[1, 2, 3], base[2, 0, 0] = 0.0, np.nan, np.inf
    with np.errstate(invalid="ignore"):
        lib.close(l2(base, 2), exact(base, 2), ts.f32, 8)


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    torch.library.opcheck(torch.ops.tessera.norm_l2.default, (torch.randn(6, 33, requires_grad=True), 1e-12, True))
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        l2(torch.randn(6, 33, requires_grad=True), out=torch.empty(6, 33))


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda: l2(3),
    "wrong-shape": lambda: l2(X, out=X[:2]),
    "wrong-dtype": lambda: l2(X.astype(np.int32)),
    "bad-axis": lambda: l2(X, 2),
    "bad-argument": lambda: l2(X, 1, "small"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake
    assert "test_l2.py" in str(caught.value)


def test_costs_and_kernels_without_a_device():
    assert (l2.bytes((4, 8), ts.bf16), l2.flops((4, 8))) == (128, 96)
    assert lib.spills(l2.compile(4096, ts.bf16, target="sm_90a")) == 0
