"""RMSNorm and LayerNorm against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.norm import kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

NORMS = {"rms": op.norm.rms, "ln": op.norm.ln}
each_norm = pytest.mark.parametrize("name", NORMS)


def exact(name, x, sizes, weight=None, bias=None, eps=1e-5):
    """The norms as their papers write them."""
    axes = tuple(range(-len(sizes), 0))
    x = x.astype(np.float64)
    if name == "ln":
        x = x - x.mean(axes, keepdims=True)
    y = x / np.sqrt((x**2).mean(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight.astype(np.float64)
    return y if bias is None else y + bias.astype(np.float64)


SHAPES = [((5, 33), (33,)), ((3, 4, 6, 8), (6, 8)), ((7,), (7,)), ((1, 1), (1,)), ((2, 0), (0,)), ((0, 9), (9,))]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(
    ("name", "shape", "sizes"), [*(("rms", *one) for one in SHAPES), *(("ln", *one) for one in SHAPES[:2])], ids=str
)
def test_shapes(name, library, shape, sizes):
    rng = np.random.default_rng(1)
    x, w, b = lib.normal(rng, *shape), lib.normal(rng, *sizes), lib.normal(rng, *sizes)
    x2, w2, b2 = (lib.of_library(library, one) for one in (x, w, b))
    got = NORMS[name](x2, sizes, w2, eps=1e-5, bias=b2)
    lib.close(got, exact(name, x, sizes, w, b) if x.size else x, ts.f32, 8)


@pytest.mark.parametrize(
    ("name", "dtype"), [("rms", ts.f64), ("rms", ts.bf16), ("ln", ts.f32), ("ln", ts.f16)], ids=str
)
def test_dtypes_results_and_gradients(name, dtype):
    rng = np.random.default_rng(2)
    x, residual, grad, more = (lib.normal(rng, 37, 130, dtype=dtype) for _ in range(4))
    w, b = lib.normal(rng, 130, dtype=dtype), lib.normal(rng, 130, dtype=dtype)
    norm = NORMS[name]
    y, h = norm(x, 130, w, eps=1e-5, bias=b, residual=residual)
    whole = x.astype(np.float64) + residual.astype(np.float64)
    lib.close(h, whole, dtype, 1)
    lib.close(y, exact(name, whole, (130,), w, b), dtype)
    reference = norm.reference(x, 130, w, eps=1e-5, bias=b, residual=residual)
    assert np.allclose(reference[0], exact(name, whole, (130,), w, b), atol=1e-12)
    found = norm.backward(grad, x, 130, w, eps=1e-5, bias=b, residual=residual, grad_summed=more)
    torch = pytest.importorskip("torch")
    h2 = torch.from_numpy(h.astype(np.float64)).requires_grad_()  # as it is kept
    w2 = torch.from_numpy(w.astype(np.float64)).requires_grad_()
    f = torch.nn.functional
    y2 = f.layer_norm(h2, (130,), w2, None, 1e-5) if name == "ln" else f.rms_norm(h2, (130,), w2, 1e-5)
    g2 = torch.from_numpy(grad.astype(np.float64))
    (y2 * g2).sum().backward()
    lib.close(found["input"], (h2.grad + torch.from_numpy(more.astype(np.float64))).numpy(), dtype)
    lib.close(found["residual"], (h2.grad + torch.from_numpy(more.astype(np.float64))).numpy(), dtype)
    lib.close(found["weight"], w2.grad.numpy(), dtype)
    lib.close(found["bias"], grad.astype(np.float64).sum(0), dtype)


@pytest.mark.parametrize(("name", "dropout"), [("rms", 0.0), ("rms", 0.3), ("ln", 0.3)])
def test_gradients_are_finite_differences(name, dropout):
    rng = np.random.default_rng(3)
    at = {"input": rng.standard_normal((3, 5)), "residual": rng.standard_normal((3, 5))}
    at |= {one: rng.standard_normal(5) for one in ("weight", "bias", "input_bias")}
    grad, more = rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    options = {"eps": 1e-3, "dropout": dropout, "seed": 11}

    def value(given):
        y, h = NORMS[name](normalized_shape=5, **given, **options)
        return float((y * grad).sum() + (h * more).sum())

    found = NORMS[name].backward(grad, normalized_shape=5, **at, **options, grad_summed=more)
    for one, slope in lib.differences(value, at).items():
        assert np.allclose(found[one], slope, atol=1e-7, rtol=1e-6), one


@pytest.mark.parametrize(("name", "width"), [("rms", 3), ("ln", 1000), ("rms", 20000), ("ln", 20000)])
def test_sums_over_many_rows(name, width):
    rng = np.random.default_rng(4)
    x, grad = lib.normal(rng, 70, width), lib.normal(rng, 70, width)
    w = lib.normal(rng, width)
    found = NORMS[name].backward(grad, x, width, w, eps=1e-5, bias=w, input_bias=0 * w)
    normal = exact(name, x, (width,))
    lib.close(found["weight"], (grad * normal).sum(0), ts.f32, 8)
    lib.close(found["bias"], grad.astype(np.float64).sum(0), ts.f32, 8)
    lib.close(found["input_bias"], found["input"].astype(np.float64).sum(0), ts.f32, 8)
    again = NORMS[name].backward(grad, x, width, w, eps=1e-5, bias=w, input_bias=0 * w)
    assert all(np.array_equal(found[one], again[one]) for one in found)


@pytest.mark.parametrize(("width", "centred", "stages"), [(256, True, 2), (77, False, 4)])
def test_what_gpus_would_compute_of_rows_in_shared_memory(width, centred, stages):
    rng, count, each = np.random.default_rng(12), 7, 3
    x, grad, added = (rng.standard_normal((count, width)).astype(ts.bf16.numpy()) for _ in range(3))
    w = rng.standard_normal(width).astype(ts.bf16.numpy())
    x64, g64, w64 = (one.astype(np.float64) for one in (x, grad, w))
    mean = x64.mean(1, keepdims=True) * centred
    rstd = 1 / np.sqrt(((x64 - mean) ** 2).mean(1, keepdims=True) + 1e-5)
    normal, g = (x64 - mean) * rstd, g64 * w64
    rest = (g - normal * (g * normal).mean(1, keepdims=True) - g.mean(1, keepdims=True) * centred) * rstd
    of_x, parts = np.full_like(x, np.nan), np.full((3, 3, width), np.nan, np.float32)
    statistics = [one.astype(np.float32)[:, 0] for one in ((mean, rstd) if centred else (rstd,))]
    options = {"drops": False, "wanted": (True, True, False), "acc": ts.f32, "kind": ts.bf16, "stages": stages}
    options |= {"grad_residual": None, "T": ts.bf16, "W": ts.bf16, "S": ts.f32} | ({} if centred else {"mean": None})
    given, dims = [grad, added, x, w, *statistics, of_x, parts], {"M": count, "N": width, "P": 3}
    emulated(kernels.backward_through_shared, "sm_90a", given, dims, (each, 0.0, 0), **options)
    lib.close(of_x, rest + added.astype(np.float64), ts.bf16, 4)
    lib.close(parts[0].sum(0), (g64 * normal).sum(0), ts.f32, 16)
    lib.close(parts[1].sum(0), g64.sum(0), ts.f32, 16)


@each_norm
def test_extreme_values(name):
    x = np.random.default_rng(5).standard_normal((6, 64)).astype(np.float32)
    x[0, 3], x[1, 4], x[2] = np.nan, np.inf, 0.0
    x[3] += 1e4  # a large mean
    x[4] *= 1e-40  # denormal
    with np.errstate(invalid="ignore"):
        want = exact(name, x, (64,))
    got = NORMS[name](x, 64, eps=1e-5)
    assert (np.isnan(got) == np.isnan(want)).all()
    for row in (2, 3, 4, 5):
        # The mean of a row of 1e4 is right to a step of f32 there.
        assert np.allclose(got[row], want[row], atol=2e-3 if row == 3 else 1e-6)


@each_norm
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_results_in_given_arrays(name, library):
    rng = np.random.default_rng(6)
    x = lib.normal(rng, 2, 3, 10)
    base = lib.of_library(library, np.zeros((4, 6, 20), np.float32))
    places = [
        base[:2, :3, :10],
        base[::2, ::2, ::2],
        base[:3, :2, :10].swapaxes(0, 1),
        base.reshape(-1)[:60].reshape(2, 3, 10),
    ]
    for out in places:
        assert NORMS[name](lib.of_library(library, x), 10, eps=1e-5, out=out) is out
        lib.close(out, exact(name, x, (10,)), ts.f32, 8)
    for out in (np.empty((20, 3), np.float32).T, np.empty((3, 41), np.float32)[:, 1::2]):  # rows of both dimensions
        x = lib.normal(rng, 3, 20)
        assert NORMS[name](x, (3, 20), eps=1e-5, out=out) is out
        lib.close(out, exact(name, x, (3, 20)), ts.f32, 8)


@each_norm
def test_inputs_of_any_strides(name):
    base = np.random.default_rng(7).standard_normal((10, 8, 10)).astype(np.float32)
    for x in (base.T, np.repeat(base, 3, 2)[::2, 1:, ::3], base[:, ::-1], np.broadcast_to(base[0], (4, 8, 10))):
        lib.close(NORMS[name](x, x.shape[-1], eps=1e-5), exact(name, x, x.shape[-1:]), ts.f32, 8)


def test_eps_is_pytorchs_where_none_is_given():
    torch = pytest.importorskip("torch")
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        x = torch.full((2, 8), 1e-3, dtype=getattr(torch, dtype))
        want = torch.nn.functional.rms_norm(x, (8,))
        assert torch.allclose(op.norm.rms(x, 8).double(), want.double(), rtol=1e-2), dtype


@each_norm
def test_training_with_pytorch(name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    grad = torch.randn(4, 6, 33)
    (NORMS[name](x, 33, w, eps=1e-5) * grad).sum().backward()
    found = x.grad, w.grad
    x.grad = w.grad = None
    f = torch.nn.functional
    y = f.layer_norm(x, (33,), w, None, 1e-5) if name == "ln" else f.rms_norm(x, (33,), w, 1e-5)
    (y * grad).sum().backward()
    assert torch.allclose(found[0], x.grad, atol=1e-5)
    assert torch.allclose(found[1], w.grad, atol=1e-5)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        NORMS[name](x, 33, out=torch.empty(4, 6, 33))
    with torch.no_grad():
        NORMS[name](x, 33, out=torch.empty(4, 6, 33))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    x, w, b = (torch.randn(size, requires_grad=True) for size in ((6, 33), 33, 33))
    residual = torch.randn(6, 33, requires_grad=True)
    step = torch.ops.tessera.norm_rows.default
    torch.library.opcheck(step, (x, b, residual, w, b, 1e-5, 0.25, 7, True, True))
    plain = x, None, None, w, None, 1e-5, 0.0, 0, False, True
    torch.library.opcheck(step, plain, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_torch_compile_takes_norms_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x, w):
        return (op.norm.rms(x, 9, w) * op.norm.ln(x, (9,))).sum()

    x, w = torch.randn(4, 9, requires_grad=True), torch.randn(9, requires_grad=True)
    loss(x, w).backward()
    found = x.grad
    x.grad = None
    f = torch.nn.functional
    (f.rms_norm(x, (9,), w) * f.layer_norm(x, (9,))).sum().backward()
    assert torch.allclose(found, x.grad, atol=1e-5)


@each_norm
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("dtype", [ts.fp8_e4m3, ts.fp8_e5m2], ids=str)
def test_results_of_8_bits_with_scales(name, dtype, block):
    rng = np.random.default_rng(8)
    x, residual, w = lib.normal(rng, 3, 5, 64), lib.normal(rng, 3, 5, 64), lib.normal(rng, 64)
    x[1, 2], residual[1, 2] = 0.0, 0.0
    q, scales, h = NORMS[name](x, 64, w, eps=1e-5, residual=residual, quantize=dtype, quantize_block=block)
    want = exact(name, x.astype(np.float64) + residual, (64,), w)
    parts = want.reshape(3, 5, -1, block or 64)
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype.name]
    sizes = np.abs(parts).max(-1)
    assert q.dtype == dtype.numpy()
    assert np.allclose(scales, np.where(sizes == 0, 1.0, sizes / largest), rtol=1e-5)
    found = q.astype(np.float64).reshape(parts.shape) * scales.astype(np.float64)[..., None]
    step = {"fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}[dtype.name]
    assert (np.abs(found - parts) <= step * np.abs(parts) + 2.0**-9 * step * sizes[..., None]).all()
    lib.close(h, x.astype(np.float64) + residual, ts.f32, 1)


X = np.zeros((3, 9), np.float32)
WRONG = {
    "not-an-array": lambda f: f(3, 9),
    "wrong-shape": lambda f: f(X, 8),
    "wrong-shape of weights": lambda f: f(X, 9, X),
    "wrong-shape of a residual": lambda f: f(X, 9, residual=X[:2]),
    "wrong-shape of out": lambda f: f(X, 9, out=X[:2]),
    "wrong-dtype": lambda f: f(X.astype(np.int32), 9),
    "wrong-dtype of out": lambda f: f(X, 9, out=X.astype(np.float64)),
    "wrong-dtype of vectors": lambda f: f(X, 9, X[0], bias=X[0].astype(np.float64)),
    "wrong-dtype of a residual": lambda f: f(X, 9, residual=X.astype(np.float64)),
    "bad-argument": lambda f: f(X, 9, dropout=1.0),
    "bad-argument, eps": lambda f: f(X, 9, eps="small"),
    "bad-argument, quantize": lambda f: f(X, 9, quantize=ts.bf16),
    "bad-argument, block": lambda f: f(X, 9, quantize=ts.fp8_e4m3, quantize_block=2),
    "bad-argument, only a block": lambda f: f(X, 9, quantize_block=3),
    "bad-argument, sizes": lambda f: f(X, "nine"),
}


@each_norm
@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(name, mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake](NORMS[name])
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_norm.py" in str(caught.value)


@pytest.mark.parametrize(("name", "target"), [("rms", "sm_80"), ("ln", "sm_90a"), ("rms", "cpu")])
def test_kernels_compile_without_a_device(name, target):
    made = NORMS[name].compile(4096, ts.bf16, weight=ts.bf16, bias=ts.bf16, residual=True, target=target)
    assert made.reflection["target"].startswith(target) or target == "cpu"
    if target != "cpu":
        assert lib.spills(made) == 0


def test_costs():
    assert op.norm.rms.bytes((4, 8), ts.bf16) == 4 * 8 * 2 * 2
    assert op.norm.ln.bytes((4, 8), ts.f32, residual=True) == 4 * 8 * 4 * 4
    assert (op.norm.rms.flops((4, 8)), op.norm.ln.flops((4, 8))) == (128, 192)
