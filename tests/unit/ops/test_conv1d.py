"""Causal convolutions against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.sequence import conv_kernels as kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

conv1d = op.conv1d


def exact(x, weight, bias=None, activation=None):
    """The sums, element by element of the filter."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    found = np.zeros_like(x)
    size = weight.shape[1]
    for back in range(size):
        kept = max(x.shape[2] - back, 0)
        found[..., back:] += x[..., :kept] * weight[:, size - 1 - back, None]
    found = found if bias is None else found + bias.astype(np.float64)[:, None]
    return found / (1 + np.exp(-found)) if activation else found


SHAPES = [
    ((2, 5, 33), 4, None),
    ((2, 5, 33), 4, "silu"),
    ((1, 3, 700), 2, None),
    ((2, 1, 3), 8, "silu"),
    ((0, 3, 4), 4, None),
    ((2, 0, 4), 4, "silu"),
    ((2, 3, 0), 4, None),
]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(("shape", "width", "activation"), SHAPES, ids=str)
def test_shapes(library, shape, width, activation):
    rng = np.random.default_rng(1)
    x, w, b = lib.normal(rng, *shape), lib.normal(rng, shape[1], width), lib.normal(rng, shape[1])
    x2, w2, b2 = (lib.of_library(library, one) for one in (x, w, b))
    lib.close(conv1d(x2, w2, b2, activation), exact(x, w, b, activation), ts.f32, 4)
    assert np.allclose(conv1d.reference(x2, w2, b2, activation), exact(x, w, b, activation))
    found = conv1d.backward(x2, x2, w2, b2, activation)
    assert [tuple(one.shape) for one in found.values()] == [x.shape, w.shape, b.shape]
    assert x.size or not any(np.asarray(one).any() for one in found.values())


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_results_and_gradients(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, grad = (lib.normal(rng, 2, 3, 300, dtype=dtype) for _ in range(2))
    w, b = lib.normal(rng, 3, 4, dtype=dtype), lib.normal(rng, 3, dtype=dtype)
    lib.close(conv1d(x, w, b, "silu"), exact(x, w, b, "silu"), dtype)
    found = conv1d.backward(grad, x, w, b, "silu")
    x2, w2, b2 = (torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, w, b))
    f = torch.nn.functional
    y = f.silu(f.conv1d(f.pad(x2, (3, 0)), w2[:, None], b2, groups=3))
    y.backward(torch.from_numpy(grad.astype(np.float64)))
    for one, wanted in zip(found.values(), (x2, w2, b2), strict=True):
        lib.close(one, wanted.grad.numpy(), dtype, 4)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_are_finite_differences(activation):
    rng = np.random.default_rng(3)
    at = {"x": rng.standard_normal((2, 2, 4)), "weight": rng.standard_normal((2, 4)), "bias": rng.standard_normal(2)}
    grad = rng.standard_normal((2, 2, 4))
    found = conv1d.backward(grad, **at, activation=activation)
    slopes = lib.differences(lambda given: float((conv1d(**given, activation=activation) * grad).sum()), at)
    for one, slope in slopes.items():
        assert np.allclose(found[one], slope, atol=1e-8), one
    rest = conv1d.backward(grad, at["x"], at["weight"])
    assert list(rest) == ["x", "weight"]


@pytest.mark.parametrize(("length", "dtype", "width"), [(264, ts.bf16, 4), (261, ts.bf16, 3)])
def test_what_gpus_would_compute(length, dtype, width):
    rng, dims = np.random.default_rng(9), {"B": 2, "D": 5, "L": length, "W": width}
    x, grad = (rng.standard_normal((2, 5, length)).astype(dtype.numpy()) for _ in range(2))
    w, b = rng.standard_normal((5, width)).astype(dtype.numpy()), rng.standard_normal(5).astype(dtype.numpy())
    options = {"T": dtype, "U": dtype, "taps": width, "acc": ts.f32}
    out, inner, of_x = (np.full_like(x, np.nan) for _ in range(3))
    of_w, of_b = np.full((2, 5, width), np.nan, np.float32), np.full((2, 5, 1), np.nan, np.float32)
    emulated(kernels.forward, "sm_90a", [x, w, b, out], dims, (), activates=True, rough="bf16", **options)
    parts, more = [grad, x, w, b, inner, of_w, of_b], options | {"rough": "bf16"}
    emulated(kernels.weight_gradients, "sm_90a", parts, {**dims, "P": 2}, (2,), S=ts.f32, BL=256, **more)
    emulated(kernels.input_gradient, "sm_90a", [inner, w, of_x], dims, (), **options)
    wide = [one.astype(np.float64) for one in (grad, x, w, b)]
    lib.close(out, op.conv1d.reference(x, w, b, "silu"), dtype)
    exact = torch_gradients(*wide)
    lib.close(of_w.sum(0), exact[1], ts.f32, 8)
    lib.close(of_b.sum(0)[:, 0], exact[2], ts.f32, 8)
    lib.close(of_x, exact[0], dtype, 4 * width)


def torch_gradients(grad, x, w, b):
    """Return the gradients of input, weight and bias by PyTorch in float64."""
    torch = pytest.importorskip("torch")
    inputs = [torch.tensor(one, requires_grad=True) for one in (x, w, b)]
    sums = torch.nn.functional.conv1d(inputs[0], inputs[1][:, None], inputs[2], padding=w.shape[1] - 1, groups=len(b))
    found = torch.autograd.grad(torch.nn.functional.silu(sums[..., : x.shape[2]]), inputs, torch.tensor(grad))
    return [one.numpy() for one in found]


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("length", [1, 3, 255, 256, 300])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_reach_the_filters_that_meet_them(value, length, activation):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    x, w, b, grad = (lib.normal(rng, *shape) for shape in ((2, 3, length), (3, 4), (3,), (2, 3, length)))
    x[0, 1, -1] = value
    inputs = [torch.from_numpy(one).double().requires_grad_() for one in (x, w, b)]
    padded = torch.nn.functional.pad(inputs[0], (3, 0))
    y = torch.nn.functional.conv1d(padded, inputs[1][:, None], inputs[2], groups=3)
    y = torch.nn.functional.silu(y) if activation else y
    wanted = [one.numpy() for one in torch.autograd.grad(y, inputs, torch.from_numpy(grad).double())]
    found = conv1d.backward(grad, x, w, b, activation)
    for one, exact_one in zip(found.values(), wanted, strict=True):
        assert np.array_equal(np.isnan(one), np.isnan(exact_one))
        lib.close(np.where(np.isfinite(one), one, 0.0), np.where(np.isfinite(exact_one), exact_one, 0.0), ts.f32, 64)


def test_any_strides_and_results_in_given_arrays():
    rng = np.random.default_rng(4)
    base, w = rng.standard_normal((6, 10, 8)).astype(np.float32), lib.normal(rng, 8, 12)[::2, 2::3]
    for x in (base.transpose(0, 2, 1)[:, ::2], base[:, :4], base[:, 7:3:-1, ::-1], base[::2, 2::2, ::3]):
        lib.close(conv1d(x, w), exact(x, w), ts.f32, 4)
    out = np.zeros((6, 8, 8), np.float32)[:, ::2]
    assert conv1d(base[:, :4], w, out=out) is out
    lib.close(out, exact(base[:, :4], w), ts.f32, 4)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    x, w = torch.randn(2, 3, 9, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    conv1d(x, w).square().sum().backward()
    found, x.grad, w.grad = (x.grad, w.grad), None, None
    f = torch.nn.functional
    f.conv1d(f.pad(x, (3, 0)), w[:, None], groups=3).square().sum().backward()
    assert torch.allclose(found[0], x.grad, atol=1e-4)
    assert torch.allclose(found[1], w.grad, atol=1e-4)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        conv1d(x, w, out=torch.empty(2, 3, 9))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, w, b = (torch.randn(size, requires_grad=True) for size in ((2, 3, 9), (3, 4), 3))
    torch.library.opcheck(torch.ops.tessera.conv1d.default, (x, w, b, True))


X, W = np.zeros((2, 3, 9), np.float32), np.zeros((3, 4), np.float32)
WRONG = {
    "not-an-array": lambda: conv1d(3, W),
    "not-an-array for weights": lambda: conv1d(X, None),
    "wrong-rank": lambda: conv1d(X[0], W),
    "wrong-shape of weights": lambda: conv1d(X, W[:2]),
    "wrong-shape of short weights": lambda: conv1d(X, W[:, :1]),
    "wrong-shape of a bias": lambda: conv1d(X, W, W[0]),
    "wrong-shape of out": lambda: conv1d(X, W, out=X[:1]),
    "wrong-shape of a gradient": lambda: conv1d.backward(X[:1], X, W),
    "wrong-dtype": lambda: conv1d(X.astype(np.int32), W),
    "wrong-dtype of a bias": lambda: conv1d(X, W, np.zeros(3)),
    "bad-argument": lambda: conv1d(X, W, None, "gelu"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_conv1d.py" in str(caught.value)


@pytest.mark.parametrize(("gradient", "target"), [(False, "sm_90a"), (True, "sm_80")])
def test_kernels_compile_without_a_device(target, gradient):
    assert lib.spills(conv1d.compile(4096, ts.bf16, gradient=gradient, target=target)) == 0


def test_costs():
    assert (conv1d.bytes((1, 2, 3), ts.bf16), conv1d.flops((1, 2, 3), 4)) == (24, 48)
