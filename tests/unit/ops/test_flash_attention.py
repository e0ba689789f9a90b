"""Attention against PyTorch in float64: masks, shared heads, gradients; and what GPUs would compute, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.attn import flash_gradient_kernels as gradients
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.blocks import Blocks
from tessera.ops.attn.flash_steps import in_parts
from tessera.ops.attn.join import join_rows
from tessera.ops.attn.mods import NO_MODS
from tessera.target.registry import target_named
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device
from tests.unit.ops import library as lib

attention = op.flash_attention
FAR = 10**6


def operands(rng, shape=(2, 4, 2, 37, 53, 16, 24), dtype=ts.f32, order="bhsd"):
    """Return queries, keys, values and a gradient of sizes (B, H, G, S, N, D, E)."""
    b, h, g, s, n, d, e = shape
    made = (lib.normal(rng, b, *sizes, dtype=dtype) for sizes in ((h, s, d), (g, n, d), (g, n, e), (h, s, e)))
    return [np.ascontiguousarray(one.swapaxes(1, 2)) if order == "bshd" else one for one in made]


def by_torch(q, k, v, grad, *, causal=False, scale=None, window=None, softcap=None, bias=None, alibi_slopes=None):
    """Return result, logsumexp and gradients in float64, the bias's among them."""
    torch = pytest.importorskip("torch")
    given = [q, k, v] if bias is None else [q, k, v, bias]
    wide = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in given]
    shared = q.shape[1] // k.shape[1]
    keys, values = (one.repeat_interleave(shared, 1) for one in wide[1:3])
    scores = wide[0] @ keys.transpose(-1, -2) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + wide[3]
    apart = torch.arange(k.shape[2])[None, :] - (torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2])
    if alibi_slopes is not None:
        scores = scores - torch.from_numpy(alibi_slopes.astype(np.float64))[:, None, None] * apart.abs()
    before, after = (FAR if one is None else one for one in window or (None, None))
    hidden = (apart < -before) | (apart > (0 if causal else after))
    scores = scores.masked_fill(hidden, -np.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse == -np.inf, 0.0, lse)[..., None])
    out = weights @ values
    out.backward(torch.from_numpy(grad.astype(np.float64)))
    return out.detach().numpy(), lse.detach().numpy(), [one.grad.numpy() for one in wide]


FORMS = {
    "plain": {},
    "causal": {"causal": True},
    "scaled": {"scale": -0.3},
    "window": {"window": (9, 4)},
    "one-sided": {"window": (None, 2)},
    "causal window": {"causal": True, "window": (5, 7)},
    "cap": {"softcap": 0.7, "causal": True},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 1.0], np.float32)},
    "alibi that grows": {"alibi_slopes": np.array([-1.0, 0.0, -1.0, -0.5], np.float32)},
    "bias": {"bias": (1, 4, 37, 53), "softcap": 1.5},
    "bias of keys": {"bias": (2, 1, 1, 53), "causal": True},
}


def options_of(rng, name, dtype=ts.f32):
    made = dict(FORMS[name])
    if "bias" in made:
        made["bias"] = lib.normal(rng, *made["bias"], dtype=dtype)
    return made


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, library):
    rng = np.random.default_rng(1)
    q, k, v, grad = operands(rng)
    options = options_of(rng, name)
    out, lse, slopes = by_torch(q, k, v, grad, **options)
    assert np.allclose(attention.reference(q, k, v, **options), out, atol=1e-10)
    given = {
        key: lib.of_library(library, one) if key in ("bias", "alibi_slopes") else one for key, one in options.items()
    }
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    found, sums = attention(*ours, **given, return_lse=True)
    large = 16 if "grows" in name else 1  # scores of 50 have steps as many times as large as those of 3
    lib.close(found, out, ts.f32, 8 * large)
    lib.close(sums, lse, ts.f32, 8)
    made = attention.backward(lib.of_library(library, grad), *ours, **given)
    for one, exact in zip(made.values(), slopes, strict=True):
        lib.close(one, exact, ts.f32, 32 * large)


SHAPES = {
    "one query": (1, 2, 1, 1, 300, 16, 16),
    "more queries than keys": (1, 2, 2, 150, 40, 16, 16),
    "wide heads": (1, 1, 1, 130, 140, 192, 128),
    "odd heads": (2, 3, 1, 20, 33, 40, 7),
    "no keys": (1, 2, 2, 5, 0, 16, 8),
    "no queries": (1, 2, 2, 0, 5, 16, 8),
    "no batch": (0, 2, 2, 4, 5, 16, 8),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, causal):
    q, k, v, grad = operands(np.random.default_rng(2), SHAPES[name])
    out, lse, slopes = by_torch(q, k, v, grad, causal=causal)
    found, sums = attention(q, k, v, causal=causal, return_lse=True)
    lib.close(found, out, ts.f32, 8)
    lib.close(sums, lse, ts.f32, 8)
    made = attention.backward(grad, q, k, v, causal=causal)
    for one, exact in zip(made.values(), slopes, strict=True):
        lib.close(one, exact, ts.f32, 32)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    q, k, v, grad = operands(np.random.default_rng(3), dtype=dtype)
    out, _, slopes = by_torch(q, k, v, grad, causal=True)
    found = attention(q, k, v, causal=True)
    assert found.dtype == q.dtype
    lib.close(found, out, dtype, 8)
    for one, exact in zip(attention.backward(grad, q, k, v, causal=True).values(), slopes, strict=True):
        lib.close(one, exact, dtype, 16)


def test_rows_that_see_nothing_are_zeros():
    q, k, v, _ = operands(np.random.default_rng(4))
    bias = np.zeros((37, 53), np.float32)
    bias[5] = -np.inf
    found, lse = attention(q, k, v, bias=bias, return_lse=True)
    assert (found[:, :, 5] == 0).all()
    assert (lse[:, :, 5] == -np.inf).all()
    assert np.isfinite(np.delete(lse, 5, 2)).all()
    made = attention.backward(np.ones_like(found), q, k, v, bias=bias)
    assert all(np.isfinite(one).all() for one in made.values())
    assert (made["q"][:, :, 5] == 0).all()


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_masks_of_bool_hide_keys(library):
    rng = np.random.default_rng(13)
    q, k, v, grad = operands(rng)
    mask = rng.random((2, 1, 37, 53)) < 0.6
    out, lse, slopes = by_torch(q, k, v, grad, bias=np.where(mask, 0.0, -np.inf))
    assert np.allclose(attention.reference(q, k, v, bias=mask), out, atol=1e-10)
    given = mask if library == "numpy" else pytest.importorskip("torch").from_numpy(mask)
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    found, sums = attention(*ours, bias=given, return_lse=True)
    lib.close(found, out, ts.f32, 8)
    lib.close(sums, lse, ts.f32, 8)
    made = attention.backward(lib.of_library(library, grad), *ours, bias=given)
    for name, exact in zip("qkv", slopes, strict=False):
        lib.close(made[name], exact, ts.f32, 32)


@pytest.mark.parametrize("scale", [1e-30, 30.0])
def test_large_and_small_scores(scale):
    q, k, v, grad = operands(np.random.default_rng(5))
    out, _, slopes = by_torch(q, k, v, grad, scale=scale)
    lib.close(attention(q, k, v, scale=scale), out, ts.f32, 256)
    for one, exact in zip(attention.backward(grad, q, k, v, scale=scale).values(), slopes, strict=True):
        lib.close(one, exact, ts.f32, 512)


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(6)
    q, k, v, grad = operands(rng, (1, 2, 1, 3, 4, 3, 2), ts.f64)
    bias = lib.normal(rng, 2, 3, 4, dtype=ts.f64)
    options = {"causal": True, "softcap": 2.0}
    given = {"q": q, "k": k, "v": v, "bias": bias}
    slopes = lib.differences(lambda at: float((attention(**at, **options) * grad).sum()), given)
    for name, one in attention.backward(grad, q, k, v, bias=bias, **options).items():
        assert np.allclose(one, slopes[name], atol=1e-6), name


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_places_before_heads(library):
    rng = np.random.default_rng(7)
    q, k, v, grad = operands(rng, order="bshd")
    turned = [one.swapaxes(1, 2) for one in (q, k, v, grad)]
    out, _, slopes = by_torch(*turned, causal=True)
    ours = [lib.of_library(library, one) for one in (q, k, v, grad)]
    found = attention(*ours[:3], causal=True, layout="bshd")
    lib.close(found, out.swapaxes(1, 2), ts.f32, 8)
    goal = lib.of_library(library, np.full(out.swapaxes(1, 2).shape, np.nan, np.float32))
    assert attention(*ours[:3], causal=True, layout="bshd", out=goal) is goal
    lib.close(goal, out.swapaxes(1, 2), ts.f32, 8)
    made = attention.backward(ours[3], *ours[:3], causal=True, layout="bshd")
    for one, exact in zip(made.values(), slopes, strict=True):
        lib.close(one, exact.swapaxes(1, 2), ts.f32, 32)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    q, k, v, grad = (torch.from_numpy(one) for one in operands(rng))
    bias = torch.from_numpy(lib.normal(rng, 4, 1, 53))
    given = [one.requires_grad_() for one in (q, k, v, bias)]
    out, lse = attention(q, k, v, bias=bias, return_lse=True)
    (out * grad).sum().backward(retain_graph=True)
    exact = by_torch(*(one.detach().numpy() for one in (q, k, v, grad)), bias=bias.detach().numpy())
    for one, want in zip(given, exact[2], strict=True):
        lib.close(one.grad, want.sum(0) if one is bias and want.ndim > 3 else want, ts.f32, 32)
        one.grad = None
    (lse * lse).sum().backward()
    keys = k.repeat_interleave(2, 1)
    scores = q.detach().double() @ keys.detach().double().transpose(-1, -2) * 0.25 + bias.detach()
    weights = torch.softmax(scores, -1) * 2 * torch.logsumexp(scores, -1, keepdim=True)
    lib.close(q.grad, (weights @ keys.detach().double() * 0.25).numpy(), ts.f32, 32)
    assert float(v.grad.abs().max()) == 0
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        attention(q, k, v, out=torch.empty(2, 4, 37, 24))


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    q, k, v, _ = (torch.from_numpy(one).requires_grad_() for one in operands(np.random.default_rng(9)))
    far = 2**31 - 1
    given = (q, k, v, *[None] * 5, [], "", False, 0.25, 0.0, far, far, True, 0, 0, None, 0, 0.0)
    torch.library.opcheck(torch.ops.tessera.flash_attention.default, given)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 8, 2, 1, 700, 16, 24), (1, 4, 1, 5, 129, 32, 16), (1, 2, 2, 3, 64, 16, 16)], ids=str
)
def test_few_queries_of_many_keys_in_parts(shape, causal):
    q, k, v, grad = operands(np.random.default_rng(11), shape)
    out, lse, _ = by_torch(q, k, v, grad, causal=causal)
    found, sums = np.full(out.shape, np.nan, np.float32), np.full(lse.shape, np.nan, np.float32)
    given = {"causal": causal, "caps": False, "plain": True, "acc": ts.f32}
    for parts in (1, 3):
        in_parts((found, sums), q, k, v, shape[5] ** -0.5, 0.0, given, parts, {"BM": 32, "BN": 32})
        lib.close(found, out, ts.f32, 8)
        lib.close(sums, lse, ts.f32, 8)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_parts_fill_a_gpu(target):
    blocks = Blocks(target_named(target), ts.bf16, (128, 128))
    one, few, many = (np.zeros((1, 32, count, 128), np.float16) for count in (1, 4, 64))
    keys = np.zeros((1, 8, 32768, 128), np.float16)
    units = target_named(target).machine.units
    assert blocks.parts(one, keys) == 2 * units // 8
    assert blocks.parts(few, keys) == 2 * units // 8
    assert blocks.parts(many, keys) == blocks.parts(one, keys[:, :, :200]) == 1
    for head in ((128, 128), (64, 64), (192, 128)):
        blocks = Blocks(target_named(target), ts.bf16, head)
        given = {"causal": False, "caps": False, "plain": True, "acc": ts.f32, "T": ts.bf16, "S": ts.f32}
        sizes = {"D": head[0], "E": head[1]}
        made = ts.compile(kernels.parts_forward, target, [], sizes, **given, **blocks.in_parts())
        assert lib.spills(made) == 0


def attend(torch, x, **options):
    """Return what a model's attention gives, with its gradient."""
    x = x.clone().requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x * 2, **options)
    y.backward(torch.ones_like(y))
    return y.detach(), x.grad


def test_gradients_that_are_not_there():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 2, 3, 8, requires_grad=True)
    with pytest.raises(ts.errors.CallError, match="no-gradient"):
        attention(q, q, q, alibi_slopes=torch.ones(2, requires_grad=True))
    with pytest.raises(ts.errors.CallError, match="mixed-libraries"):
        attention(q, Q, Q)
    with torch.no_grad():
        assert attention(q, Q, Q).shape == q.shape


def test_autocast_and_what_pytorch_does_itself():
    torch = pytest.importorskip("torch")
    import tessera.torch

    q, functional = torch.randn(1, 2, 5, 8), torch.nn.functional
    with tessera.torch.sdpa():
        with torch.autocast("cpu", torch.bfloat16):
            assert functional.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
        each = torch.func.vmap(functional.scaled_dot_product_attention)(q, q, q)
        empty = functional.scaled_dot_product_attention(q, q, q[..., :0])
        shape = functional.scaled_dot_product_attention(*(torch.empty(1, 2, 5, 8, device="meta") for _ in range(3)))
    assert torch.allclose(each, functional.scaled_dot_product_attention(q, q, q), atol=1e-6)
    assert (empty.shape, shape.shape) == ((1, 2, 5, 0), (1, 2, 5, 8))


def test_sums_of_biases_are_not_rounded_on_the_way():
    rng = np.random.default_rng(14)
    q, k, v, grad = operands(rng, (2, 4, 4, 300, 11, 8, 5), ts.f16)
    bias = np.zeros((1, 1, 1, 11), np.float16)
    *_, slopes = by_torch(q, k, v + np.float16(4), grad, bias=bias)
    found = attention.backward(grad, q, k, v + np.float16(4), bias=bias)["bias"]
    lib.close(found, slopes[3], ts.f16, 8)


def test_in_place_of_pytorchs():
    torch = pytest.importorskip("torch")
    import tessera.torch

    torch.manual_seed(0)
    theirs, x = torch.nn.functional.scaled_dot_product_attention, torch.randn(2, 3, 17, 8)
    mask = torch.rand(17, 17) < 0.7
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": torch.randn(3, 1, 17), "scale": 0.1}):
        with tessera.torch.sdpa():
            assert torch.nn.functional.scaled_dot_product_attention is not theirs
            found = attend(torch, x, **options)
        for one, other in zip(found, attend(torch, x, **options), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    q, k = torch.randn(4, 5, 8), torch.randn(2, 9, 8)
    with tessera.torch.sdpa():
        shared = torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        first = torch.nn.functional.scaled_dot_product_attention(q[:2], k, k, is_causal=True)
        dropped = torch.nn.functional.scaled_dot_product_attention(q[:2], k, k, dropout_p=1.0)
        with pytest.raises(RuntimeError):
            torch.nn.functional.scaled_dot_product_attention(q, k, k)
    assert torch.nn.functional.scaled_dot_product_attention is theirs
    assert torch.allclose(shared, theirs(q, k, k, enable_gqa=True), atol=1e-5)
    assert torch.equal(first, theirs(q[:2], k, k, is_causal=True))
    assert float(dropped.abs().max()) == 0


def emulated(kernel, target, arrays, dims, numbers, **constants):
    """Run a kernel for a GPU on an emulated one, whose arguments are arrays, some numbers or None, and then numbers."""
    artifact = ts.compile(kernel, target, ["ptx"], dims, **constants)
    device, given = Device(), [*(one for one in arrays if one is not None), *numbers]
    tensors = [one for one in given if isinstance(one, np.ndarray)]
    scalars = [one for one in given if not isinstance(one, np.ndarray)]
    pointers = [device.add(one.reshape(-1).view(np.uint8), np.ones(one.nbytes, bool)) for one in tensors]
    shapes = [
        (one.shape, tuple(step // one.itemsize for step in one.strides)) if isinstance(one, np.ndarray) else None
        for one in given
    ]
    Emulation(artifact).run(device, pointers, shapes, scalars, Limits(10**9))
    for number, one in enumerate(tensors):
        one.reshape(-1).view(np.uint8)[...] = device.back(number)


@pytest.mark.parametrize(
    ("target", "causal", "groups", "sizes", "rows", "block"),
    [
        ("sm_80", False, 1, (70, 100, 32), (64, 64), (64, 64)),
        ("sm_90a", True, 1, (70, 100, 32), (64, 64), (64, 64)),
        # rows of statistics go through rings, two groups of warps
        ("sm_90a", True, 2, (136, 136, 64), (64, 64), (64, 128)),
        ("sm_90a", False, 1, (136, 136, 64), (64, 64), (64, 128)),
        ("sm_90a", True, 1, (200, 232, 64), (192, 128), (64, 192)),  # three groups divide rows
    ],
)
def test_what_gpus_would_compute(target, causal, groups, sizes, rows, block):
    rng = np.random.default_rng(10)
    queries, keys, head = sizes
    q, k, v, grad = operands(rng, (1, 2, groups, queries, keys, head, head), ts.f16)
    out, lse, slopes = by_torch(q, k, v, grad, causal=causal)
    numbers = head**-0.5, 1.0, 0, 0, 0
    options = dict.fromkeys(("bias", "slopes", "tiles", "partials", "counts", "blocks"))
    options |= {"causal": causal, "windowed": False, "caps": False, "empties": False, "plain": True, "mods": NO_MODS}
    options |= {"acc": ts.f32, "T": ts.f16, "S": ts.f32, "BM": rows[0], "BN": rows[1]}
    dims = {"B": 1, "H": 2, "G": groups, "M": queries, "N": keys, "D": head, "E": head}
    found, sums = np.full(out.shape, np.nan, np.float16), np.full(lse.shape, np.nan, np.float32)
    emulated(kernels.forward, target, [q, k, v, found, sums], dims, numbers, sinks=None, **options)
    lib.close(found, out, ts.f16, 4)
    lib.close(sums, lse, ts.f16, 4)
    delta = (grad.astype(np.float64) * out).sum(-1).astype(np.float32)
    common = [grad, q, k, v, lse.astype(np.float32), delta]
    made = [np.full_like(one, np.nan) for one in (q, k, v)]
    options |= {"BM": 64, "BN": 64}
    emulated(gradients.query_gradients, target, [*common, made[0]], dims, numbers, of_bias=None, **options)
    options |= dict(zip(("BM", "BN"), block, strict=True)) | {"grouped": groups != 2}
    emulated(gradients.key_gradients, target, [*common, *made[1:]], dims, numbers, **options)
    for one, exact in zip(made, slopes, strict=True):
        lib.close(one, exact, ts.f16, 8)


@pytest.mark.parametrize(("head", "rows"), [(64, 192), (128, 128)])  # through rings; loaded by the threads that add it
def test_what_hopper_would_compute_with_a_bias(head, rows):
    rng = np.random.default_rng(14)
    q, k, v, grad = operands(rng, (1, 2, 2, 200, 136, head, head), ts.f16)
    bias = rng.standard_normal((1, 2, 200, 136)).astype(np.float16)
    out, lse, _ = by_torch(q, k, v, grad, bias=bias)
    options = dict.fromkeys(("slopes", "sinks", "tiles", "partials", "counts", "blocks"))
    options |= {"causal": False, "windowed": False, "caps": False, "empties": True, "plain": False, "mods": NO_MODS}
    options |= {"acc": ts.f32, "T": ts.f16, "U": ts.f16, "S": ts.f32, "BM": rows, "BN": 128}
    dims = {"B": 1, "H": 2, "G": 2, "M": 200, "N": 136, "D": head, "E": head}
    found, sums = np.full(out.shape, np.nan, np.float16), np.full(lse.shape, np.nan, np.float32)
    numbers = head**-0.5, 1.0, 0, 0, 0
    emulated(kernels.forward, "sm_90a", [q, k, v, bias, found, sums], dims, numbers, **options)
    lib.close(found, out, ts.f16, 4)
    lib.close(sums, lse, ts.f16, 4)
    made = attention.compile(head, ts.f16, bias=ts.f16, target="sm_90a")
    assert made.reflection["schedule"]["persistent"] == 1
    assert lib.spills(made) == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_gpus_would_compute_in_parts(target):
    q, k, v, grad = operands(np.random.default_rng(12), (1, 4, 2, 2, 200, 32, 32), ts.f16)
    out, lse, _ = by_torch(q, k, v, grad, causal=True)
    some, sums = np.full((2, 1, 2, 4, 32), np.nan, np.float32), np.full((2, 1, 2, 4), np.nan, np.float32)
    given = {"causal": True, "caps": False, "plain": True, "acc": ts.f32, "T": ts.f16, "S": ts.f32}
    shared, numbers = q.reshape(1, 2, 4, 32), (2, 128, 32**-0.5, 1.0)
    sizes = {"B": 1, "G": 2, "R": 4, "N": 200, "P": 2, "D": 32, "E": 32}
    blocks = Blocks(target_named(target), ts.f16, (32, 32)).in_parts()
    emulated(kernels.parts_forward, target, [shared, k, v, some, sums], sizes, numbers, **given, **blocks)
    found, whole = np.full((8, 32), np.nan, np.float16), np.full(8, np.nan, np.float32)
    options = {"sinks": None, "acc": ts.f32, "BP": 2, "BE": 32, "T": ts.f32, "U": ts.f16, "S": ts.f32}
    joining = [some.reshape(2, 8, 32), sums.reshape(2, 8), found, whole]
    emulated(join_rows, target, joining, {"P": 2, "K": 8, "E": 32}, (2,), **options)
    lib.close(found.reshape(out.shape), out, ts.f16, 4)
    lib.close(whole.reshape(lse.shape), lse, ts.f16, 4)


Q = np.zeros((1, 2, 3, 8), np.float32)
WRONG = {
    "not-an-array": lambda: attention(3, Q, Q),
    "wrong-rank": lambda: attention(Q[0], Q, Q),
    "wrong-shape": lambda: attention(Q, Q[..., :4], Q),
    "wrong-shape of values": lambda: attention(Q, Q, Q[:, :, :2]),
    "wrong-shape of heads": lambda: attention(Q, np.repeat(Q, 2, 1)[:, :3], np.repeat(Q, 2, 1)[:, :3]),
    "wrong-shape of the bias": lambda: attention(Q, Q, Q, bias=Q),
    "wrong-shape of slopes": lambda: attention(Q, Q, Q, alibi_slopes=np.zeros(3, np.float32)),
    "wrong-shape of out": lambda: attention(Q, Q, Q, out=Q[..., :4]),
    "wrong-shape, empty heads": lambda: attention(Q[..., :0], Q[..., :0], Q),
    "bad-argument, out is an input": lambda: attention(Q.copy(), Q, Q.copy(), out=Q),
    "wrong-shape of grad": lambda: attention.backward(Q[..., :4], Q, Q, Q),
    "wrong-dtype": lambda: attention(Q.astype(np.int32), Q, Q),
    "wrong-dtype of keys": lambda: attention(Q, Q.astype(np.float16), Q),
    "wrong-dtype of slopes": lambda: attention(Q, Q, Q, alibi_slopes=np.zeros(2, np.float64)),
    "wrong-dtype of the bias": lambda: attention(Q, Q, Q, bias=np.zeros((3, 3), np.int32)),
    "bad-argument, window": lambda: attention(Q, Q, Q, window=3),
    "bad-argument, negative window": lambda: attention(Q, Q, Q, window=(-1, 0)),
    "bad-argument, layout": lambda: attention(Q, Q, Q, layout="sbhd"),
    "bad-argument, cap": lambda: attention(Q, Q, Q, softcap=0.0),
    "bad-argument, scale": lambda: attention(Q, Q, Q, scale="small"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_flash_attention.py" in str(caught.value)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_86", "sm_75", "cpu"])
def test_kernels_compile_without_a_device(target):
    made = attention.compile(128, ts.f16, causal=True, target=target)
    assert target == "cpu" or lib.spills(made) == 0


@pytest.mark.parametrize("head", [(64, 64), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("target", ["sm_75", "sm_86", "sm_90a"])
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)
def test_blocks_fit_shared_memory(target, head, dtype):
    record = target_named(target)
    blocks = Blocks(record, dtype, head)
    for block, stays in ((blocks.forward(), head[0]), (blocks.of_queries(), sum(head))):
        held = block["BM"] * stays + 2 * block["BN"] * sum(head)
        assert held * dtype.bytes <= record.shared_bytes or block == {"BM": 16, "BN": 16}
        assert block["BM"] >= 16 <= block["BN"]
    turned = blocks.of_keys()
    assert turned["BN"] * sum(head) + 2 * turned["BM"] * sum(head) <= record.shared_bytes or turned["BM"] == 16


def test_three_groups_share_blocks_where_that_takes_less_time():
    hopper = target_named("sm_90a")
    long = {"lengths": (4096, 4096), "heads": (64, 64)}
    assert Blocks(hopper, ts.bf16, (64, 64), **long).forward() == {"BM": 192, "BN": 128}
    assert Blocks(hopper, ts.bf16, (64, 64), **long).of_keys() == {"BM": 64, "BN": 192}
    assert Blocks(hopper, ts.bf16, (64, 64), **long, causal=True).of_keys() == {"BM": 64, "BN": 128}
    assert Blocks(hopper, ts.bf16, (128, 128), **long, biased=True).forward() == {"BM": 128, "BN": 64}
    few = {"lengths": (1024, 1024), "heads": (16, 16)}  # as many programs as multiprocessors: they would only be longer
    for other in (
        Blocks(hopper, ts.bf16, (64, 64), **few),
        Blocks(hopper, ts.bf16, (64, 64), **long, dense=False),
        Blocks(hopper, ts.bf16, (72, 72), **long),
        Blocks(hopper, ts.f32, (64, 64), **long),
        Blocks(target_named("sm_80"), ts.bf16, (64, 64), **long),
    ):
        assert other.forward()["BM"] <= 128 >= other.of_keys()["BN"]


def test_blocks_of_short_sequences_waste_neither_rows_nor_steps():
    def block(queries, keys, head=64, **options):
        lengths, heads = (queries, keys), (16 * (16384 // queries),) * 2
        return tuple(
            Blocks(target_named("sm_90a"), ts.bf16, (head, head), lengths, heads, **options).forward().values()
        )

    assert block(1024, 1024) == (128, 256)  # six blocks of 192 rows would be 1152
    assert block(1024, 1024, capped=True) == block(1024, 1024, biased=True) == (128, 128)
    assert block(1024, 1024, causal=True) == (128, 128)  # 36 of 64 steps; of 192 rows 32 of 48
    assert block(8192, 8192, causal=True) == (192, 128)
    assert block(1024, 1024, head=32) == (128, 128)
    assert block(1024, 0, causal=True)[0] in (128, 192)  # no step at all


def test_costs():
    shape = (1, 2, 3, 8)
    assert attention.flops(shape, shape, shape) == 2 * 2 * 3 * 3 * 16
    assert attention.flops(shape, shape, shape, causal=True, gradient=True) == 2 * 3 * 3 * 16 * 7 // 2
    assert attention.bytes(shape, shape, shape, ts.bf16) == 4 * 48 * 2
