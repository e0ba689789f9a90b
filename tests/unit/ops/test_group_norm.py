"""GroupNorm against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.norm import group_kernels as kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

group = op.norm.group
SHAPES = [((2, 6, 5), 3), ((3, 4), 2), ((2, 8, 3, 7), 1), ((1, 5, 2), 5), ((0, 4, 3), 2), ((2, 4, 0), 2)]
SHAPES += [((2, 12, 3, 16), 4), ((1, 10, 4104), 2), ((3, 2, 8), 2)]  # channels begin where 16 bytes do


def exact(x, groups, weight=None, bias=None, eps=1e-5):
    """Each group by itself."""
    y = np.zeros(x.shape)
    wide = x.astype(np.float64)
    per = x.shape[1] // groups
    for n in range(x.shape[0]):
        for g in range(groups):
            part = wide[n, g * per : (g + 1) * per]
            y[n, g * per : (g + 1) * per] = (part - part.mean()) / np.sqrt(part.var() + eps)
    for c in range(x.shape[1]):
        y[:, c] = y[:, c] * (1 if weight is None else float(weight[c])) + (0 if bias is None else float(bias[c]))
    return y


@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_shapes(shape, groups):
    rng = np.random.default_rng(1)
    x, w, b = lib.normal(rng, *shape), lib.normal(rng, shape[1]), lib.normal(rng, shape[1])
    got = group(x, groups, w, b)
    lib.close(got, exact(x, groups, w, b) if x.size else x, ts.f32, 8)
    if x.size:
        assert np.allclose(group.reference(x, groups, w, b), exact(x, groups, w, b))


@pytest.mark.parametrize("size", [50, 56])
@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_and_training(dtype, size):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, grad = (lib.normal(rng, 3, 6, size, dtype=dtype) for _ in range(2))
    w, b = lib.normal(rng, 6, dtype=dtype), lib.normal(rng, 6, dtype=dtype)
    own = [lib.of_library("torch", one).requires_grad_() for one in (x, w, b)]
    y = group(own[0], 2, own[1], own[2])
    y.backward(lib.of_library("torch", grad))
    wide = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, w, b)]
    want = torch.nn.functional.group_norm(wide[0], 2, wide[1], wide[2])
    want.backward(torch.from_numpy(grad.astype(np.float64)))
    lib.close(y.detach(), want.detach().numpy(), dtype)
    for one, other in zip(own, wide, strict=True):
        lib.close(one.grad, other.grad.numpy(), dtype)
    found = group.backward(grad, x, 2, w, b)
    for name, other in zip(("input", "weight", "bias"), wide, strict=True):
        lib.close(found[name], other.grad.numpy(), dtype)


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(3)
    at = {"input": rng.standard_normal((2, 4, 3)), "weight": rng.standard_normal(4), "bias": rng.standard_normal(4)}
    grad = rng.standard_normal((2, 4, 3))
    found = group.backward(grad, num_groups=2, eps=1e-3, **at)
    slopes = lib.differences(lambda given: float((group(num_groups=2, eps=1e-3, **given) * grad).sum()), at)
    for name, slope in slopes.items():
        assert np.allclose(found[name], slope, atol=1e-7, rtol=1e-6), name


def test_statistics_of_large_means_are_exact():
    rng = np.random.default_rng(5)
    x = lib.normal(rng, 2, 4, 5000, scale=0.1, shift=300.0)
    x[0, :2, :2500] += 50.0
    lib.close(group(x, 2), exact(x, 2), ts.f32, 600)  # 300 is 3000 times the deviation
    x[0] = np.float32(1e-3)
    assert np.abs(group(x, 2)[0]).max() < 1e-3


def test_kernels_of_a_gpu_by_channels():
    rng = np.random.default_rng(6)
    x, grad = (lib.normal(rng, 4, 3, 104, dtype=ts.bf16) for _ in range(2))
    weight, bias = lib.normal(rng, 6), lib.normal(rng, 6)
    made, mean, rstd = np.full_like(x, np.nan), np.zeros(4, np.float32), np.zeros(4, np.float32)
    found, sums = np.full_like(x, np.nan), np.full((2, 4, 3), np.nan, np.float32)
    sizes, block = {"M": 4, "K": 3, "L": 104, "C": 6}, {"BK": 2, "BS": 64}
    options = {"T": ts.bf16, "W": ts.f32, "A": ts.f32, "acc": ts.f32, **block}
    given = [x.reshape(4, -1), x, weight, bias, made, mean, rstd]
    emulated(kernels.forward_by_channels, "sm_90a", given, sizes | {"N": 312}, (2, 1e-5), size=312, **options)
    images = x.reshape(2, 6, 104)
    lib.close(made.reshape(images.shape), exact(images, 2, weight, bias), ts.bf16, 1)
    emulated(kernels.backward_by_channels, "sm_90a", [grad, x, weight, mean, rstd, found, sums], sizes, (2,), **options)
    want = group.backward(grad.reshape(images.shape), images, 2, weight, bias)
    lib.close(found.reshape(images.shape), want["input"].astype(np.float64), ts.bf16, 1)
    for got, name in zip(sums.reshape(2, 2, 6).sum(1), ("weight", "bias"), strict=True):
        lib.close(got, want[name].astype(np.float64), ts.f32, 8)


def test_strides_given_arrays_and_extreme_values():
    base = np.random.default_rng(4).standard_normal((6, 8, 10)).astype(np.float32)
    for x in (base.T, base[::2, 1:7, ::3], base[:, ::-1]):
        lib.close(group(x, 2), exact(x, 2), ts.f32, 8)
    out = np.zeros((10, 8, 6), np.float32).T
    assert group(base, 4, out=out) is out
    lib.close(out, exact(base, 4), ts.f32, 8)
    base[0, 1, 2], base[1] = np.nan, 0.0
    with np.errstate(invalid="ignore"):
        want = exact(base, 4)
    lib.close(group(base, 4), want, ts.f32, 8)


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, w, b = (torch.randn(size, requires_grad=True) for size in ((2, 4, 5), 4, 4))
    torch.library.opcheck(torch.ops.tessera.norm_groups.default, (x, w, b, 2, 1e-5, True))
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        group(x, 2, out=torch.empty(2, 4, 5))


X = np.zeros((2, 6, 5), np.float32)
WRONG = {
    "not-an-array": lambda: group(3, 2),
    "wrong-shape": lambda: group(X[0, 0], 1),
    "wrong-shape of weights": lambda: group(X, 2, X[0, 0]),
    "wrong-shape of out": lambda: group(X, 2, out=X[:1]),
    "wrong-dtype": lambda: group(X.astype(np.int32), 2),
    "wrong-dtype of vectors": lambda: group(X, 2, X[0, :, 0], X[0, :, 0].astype(np.float64)),
    "bad-argument": lambda: group(X, 4),
    "bad-argument, no groups": lambda: group(X, 0),
    "bad-argument, eps": lambda: group(X, 2, eps="small"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_group_norm.py" in str(caught.value)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_kernels_compile_without_a_device(target):
    made = group.compile((2, 320, 64, 64), 32, ts.bf16, weight=ts.f32, target=target)
    assert made.reflection["target"] == target
    assert lib.spills(made) == 0


def test_costs():
    assert group.bytes((2, 4, 5), ts.bf16) == 2 * 40 * 2
    assert group.flops((2, 4, 5)) == 240
