"""Dropout of attention's weights against PyTorch in float64 by a mask that is counted out one weight at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.driver.settings import settings
from tessera.ops.attn import flash_gradient_kernels as gradients
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.blocks import Blocks
from tessera.ops.attn.drops import BY_NUMBER, BY_TENSOR
from tessera.ops.attn.mods import NAMES
from tessera.target.registry import target_named
from tests.unit.ops import library as lib
from tests.unit.ops.test_dropout import philox
from tests.unit.ops.test_flash_attention import emulated, operands, options_of

attention, varlen = op.flash_attention, op.flash_attention_varlen
SEED, P = 2**40 + 7, 0.3


def kept(shape, p=P, seed=SEED, first=0, squares=None):
    """Return which weights are kept: counters and words as docs/library.md says, for squares of 16 queries and keys."""
    b, h, q, k = np.indices(shape)
    row = ((b * shape[1] + h) * (squares or -(-shape[2] // 16)) + first + q // 16) * 8 + q % 8
    words = np.stack(philox(seed, (row * 2**32 + k // 16 * 8 + k % 8).astype(np.uint64)))
    word = np.take_along_axis(words, (q % 16 // 8 * 2 + k % 16 // 8)[None], 0)[0]
    return (word >> np.uint64(8)) * 2.0**-24 >= np.float32(p)


MASK = kept((2, 4, 37, 53))


def by_torch(q, k, v, grad, keeps, p=P, causal=False, window=None, bias=None, sinks=None):
    """Return result and gradients in float64, those of the bias and the sinks among them."""
    torch = pytest.importorskip("torch")
    given = [one for one in (q, k, v, bias, sinks) if one is not None]
    wide = [torch.from_numpy(np.asarray(one, np.float64)).requires_grad_() for one in given]
    keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in wide[1:3])
    scores = wide[0] @ keys.transpose(-1, -2) * q.shape[3] ** -0.5
    scores = scores if bias is None else scores + wide[3]
    apart = torch.arange(k.shape[2])[None, :] - (torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2])
    before, after = window or (10**6, 10**6)
    scores = scores.masked_fill((apart < -before) | (apart > (0 if causal else after)), -np.inf)
    if sinks is not None:
        scores = torch.cat((scores, wide[-1][:, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    growth = 1 / (1 - float(np.float32(p))) if p < 1 else 0.0
    out = (weights * torch.from_numpy(keeps * growth)) @ values
    out.backward(torch.from_numpy(grad.astype(np.float64)))
    return out.detach().numpy(), [one.grad.numpy() for one in wide]


FORMS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (9, 4)},
    "bias": {"bias": (2, 4, 37, 53)},
    "bias of keys": {"bias": (1, 1, 1, 53), "causal": True},
    "sinks": {"sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)},
}


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, library):
    rng = np.random.default_rng(1)
    q, k, v, grad = operands(rng)
    options = dict(FORMS[name])
    if "bias" in options:
        options["bias"] = lib.normal(rng, *options["bias"])
    out, slopes = by_torch(q, k, v, grad, MASK, **options)
    assert np.allclose(attention.reference(q, k, v, dropout_p=P, seed=SEED, **options), out, atol=1e-9)
    given = {x: lib.of_library(library, y) if isinstance(y, np.ndarray) else y for x, y in options.items()}
    given |= {"dropout_p": P, "seed": SEED}
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    lib.close(attention(*ours, **given), out, ts.f32, 8)
    made = attention.backward(lib.of_library(library, grad), *ours, **given)
    for one, exact in zip(made.values(), slopes, strict=True):
        lib.close(one, exact, ts.f32, 32)


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_places_before_heads_and_seeds_in_arrays(library):
    q, k, v, grad = operands(np.random.default_rng(2))
    out, slopes = by_torch(q, k, v, grad, MASK)
    ours = [lib.of_library(library, np.ascontiguousarray(one.swapaxes(1, 2))) for one in (q, k, v, grad)]
    for seed in (np.array([SEED]), np.array(SEED)):
        options = {"layout": "bshd", "dropout_p": P, "seed": lib.of_library(library, seed)}
        found, lse = attention(*ours[:3], **options, return_lse=True)
        lib.close(found, out.swapaxes(1, 2), ts.f32, 8)
        made = attention.backward(ours[3], *ours[:3], **options)
        for one, exact in zip(made.values(), slopes, strict=True):
            lib.close(one, exact.swapaxes(1, 2), ts.f32, 32)
    plain = attention(*ours[:3], layout="bshd", return_lse=True)[1]
    assert np.array_equal(lse, plain)  # of all weights


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    q, k, v, grad = operands(np.random.default_rng(3), dtype=dtype)
    out, slopes = by_torch(q, k, v, grad, MASK, causal=True)
    options = {"causal": True, "dropout_p": P, "seed": SEED}
    wide = ts.f32 if dtype == ts.f64 else dtype  # p is rounded to f32
    lib.close(attention(q, k, v, **options), out, wide, 8)
    for one, exact in zip(attention.backward(grad, q, k, v, **options).values(), slopes, strict=True):
        lib.close(one, exact, wide, 16)


def test_the_interpreter_agrees(monkeypatch):
    q, k, v, grad = operands(np.random.default_rng(4))
    out, slopes = by_torch(q, k, v, grad, MASK, causal=True)
    monkeypatch.setattr(settings(), "interpret", True)
    options = {"causal": True, "dropout_p": P, "seed": SEED}
    lib.close(attention(q, k, v, **options), out, ts.f32, 8)
    for one, exact in zip(attention.backward(grad, q, k, v, **options).values(), slopes, strict=True):
        lib.close(one, exact, ts.f32, 32)


@ts.function
def near(b, h, q, k):
    return k < q + 90


@ts.function
def bent(score, b, h, q, k):
    return score - 0.01 * ts.tile.abs(q - k).to(score.dtype)


@pytest.mark.parametrize("listed", [False, True])
def test_beside_functions_and_lists_of_blocks(listed):
    q, k, v, _ = operands(np.random.default_rng(5), (1, 2, 1, 150, 290, 16, 16))
    mask = op.attn.block_mask(near, 1, 1, 150, 290, like=q) if listed else near
    found = attention(q, k, v, score_mod=bent, mask_mod=mask, dropout_p=P, seed=SEED)
    functions = {"score_mod": lambda s, b, h, q, k: s - 0.01 * abs(q - k), "mask_mod": lambda b, h, q, k: k < q + 90}
    exact = attention.reference(q, k, v, **functions, dropout_p=P, seed=SEED)
    lib.close(found, exact, ts.f32, 8)
    grad = lib.normal(np.random.default_rng(6), *found.shape)
    made = attention.backward(grad, q, k, v, score_mod=bent, mask_mod=mask, dropout_p=P, seed=SEED)
    step, way = 1e-3, lib.normal(np.random.default_rng(7), *k.shape)
    options = functions | {"dropout_p": P, "seed": SEED}
    plus, minus = (attention.reference(q, k + way * at, v, **options) for at in (step, -step))
    slope = ((plus - minus) * grad).sum() / (2 * step)
    assert np.isclose((made["k"].astype(float) * way).sum(), slope, rtol=1e-3, atol=1e-3)


def test_nothing_and_everything_is_left_out():
    q, k, v, grad = operands(np.random.default_rng(8))
    assert np.array_equal(attention(q, k, v, dropout_p=0.0, seed=3), attention(q, k, v))
    assert (attention(q, k, v, dropout_p=1.0, seed=3) == 0).all()
    assert all((one == 0).all() for one in attention.backward(grad, q, k, v, dropout_p=1.0, seed=3).values())
    assert (attention.reference(q, k, v, dropout_p=1.0, seed=3) == 0).all()


def test_statistics():
    q = k = np.zeros((2, 3, 300, 8), np.float32)
    v = np.eye(300, dtype=np.float32)[None, None].repeat(2, 0).repeat(3, 1)
    masks = [attention(q, k, v, dropout_p=P, seed=seed) > 0 for seed in (1, 1, 2)]
    assert abs(masks[0].mean() - (1 - P)) < 5 * np.sqrt(P * (1 - P) / v.size)
    assert np.array_equal(masks[0], masks[1])
    chance = (1 - P) ** 2
    for other in (
        masks[2],
        *(np.roll(masks[0], by, axis) for axis in range(4) for by in (1, 8) if axis > 1 or by == 1),
    ):
        assert abs((masks[0] & other).mean() - chance) < 4e-3


SELF = [0, 70, 70, 71, 200, 233]


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_packed_sequences(library):
    rng = np.random.default_rng(9)
    shapes = (233, 4, 16), (233, 2, 16), (233, 2, 24), (233, 4, 24)
    q, k, v, grad = (lib.normal(rng, *shape) for shape in shapes)
    starts = np.array(SELF, np.int32)
    options = {"causal": True, "dropout_p": P, "seed": SEED}
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    given = lib.of_library(library, starts)
    found = varlen(*ours, given, max_seqlen_q=133, **options)
    lib.close(found, varlen.reference(q, k, v, starts, **options), ts.f32, 8)
    made = varlen.backward(lib.of_library(library, grad), *ours, given, **options)
    whole = {name: np.zeros(one.shape) for name, one in zip("qkvo", (q, k, v, grad), strict=True)}
    for z, (a, b) in enumerate(pairwise(SELF)):
        one = [x[None, a:b].swapaxes(1, 2) for x in (q, k, v, grad)]
        mask = kept((1, 4, b - a, b - a), first=a // 16 + z, squares=15 + 5)
        out, slopes = by_torch(*one, mask, causal=True)
        for name, exact in zip("qkvo", (*slopes, out), strict=True):
            whole[name][a:b] = exact[0].swapaxes(0, 1)
    lib.close(found, whole["o"], ts.f32, 8)
    for name, one in made.items():
        lib.close(one, whole[name], ts.f32, 32)


@pytest.mark.parametrize("by", [BY_NUMBER, BY_TENSOR], ids=["number", "tensor"])
@pytest.mark.parametrize(("target", "causal"), [("sm_80", False), ("sm_90a", True)])
def test_what_gpus_would_compute(target, causal, by):
    shape = (1, 2, 1, 72, 136, 32, 32)
    q, k, v, grad = operands(np.random.default_rng(10), shape, ts.f16)
    out, slopes = by_torch(q, k, v, grad, kept((1, 2, 72, 136)), causal=causal)
    lse = attention.reference(q, k, v, causal=causal, return_lse=True)[1].astype(np.float32)
    drop = P, np.array([SEED]) if by is BY_TENSOR else SEED
    numbers = 32**-0.5, 1.0, 0, 0, 0
    options = dict.fromkeys(("bias", "slopes", "tiles", "partials", "counts", "blocks"))
    options |= {"causal": causal, "windowed": False, "caps": False, "empties": False, "plain": True}
    options |= {"mods": NAMES.mods_of("", (), by), "acc": ts.f32, "T": ts.f16, "S": ts.f32, "BM": 64, "BN": 64}
    dims = {"B": 1, "H": 2, "G": 1, "M": 72, "N": 136, "D": 32, "E": 32}
    found, sums = np.full(out.shape, np.nan, np.float16), np.full(lse.shape, np.nan, np.float32)
    emulated(kernels.forward, target, [q, k, v, *drop, found, sums], dims, numbers, sinks=None, **options)
    lib.close(found, out, ts.f16, 4)
    lib.close(sums, lse, ts.f16, 4)
    common = [grad, q, k, v, lse, (grad.astype(np.float64) * out).sum(-1).astype(np.float32)]
    made = [np.full_like(one, np.nan) for one in (q, k, v)]
    emulated(gradients.query_gradients, target, [*common, made[0], *drop], dims, numbers, of_bias=None, **options)
    options |= {"BM": 64, "BN": 128, "grouped": True}
    emulated(gradients.key_gradients, target, [*common, *made[1:], *drop], dims, numbers, **options)
    for one, exact in zip(made, slopes, strict=True):
        lib.close(one, exact, ts.f16, 8)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("head", [64, 128])
def test_kernels_spill_no_registers(head, target):
    made = attention.compile(head, ts.bf16, causal=True, dropout=True, target=target, dump=["ptx"])
    assert lib.spills(made) == 0
    runs = made.dumps["ptx"].count("mul.hi.u32")
    per_thread = 128 * (128 if head == 64 else 64) // 256
    # Ten rounds of two for four weights; the first ones are the same for several counters.
    assert 12 * per_thread // 4 < runs < 18 * per_thread // 4


@pytest.mark.parametrize(
    ("target", "head", "most"), [("sm_80", 64, 16), ("sm_80", 128, 0), ("sm_90a", 64, 128), ("sm_90a", 128, 256)]
)
def test_gradients_spill_few_registers(target, head, most):
    blocks = Blocks(target_named(target), ts.bf16, (head, head), (4096, 4096), (64, 64), False, causal=True, drops=True)
    options = dict.fromkeys(("bias", "slopes", "tiles", "partials", "counts", "blocks"))
    options |= {"causal": True, "windowed": False, "caps": False, "empties": False, "plain": True}
    options |= {"mods": NAMES.mods_of("", (), BY_TENSOR), "acc": ts.f32, "T": ts.bf16, "S": ts.f32}
    dims = {"B": 4, "H": 16, "G": 16, "M": 4096, "N": 4096, "D": head, "E": head}
    of_queries = ts.compile(gradients.query_gradients, target, [], dims, of_bias=None, **options, **blocks.of_queries())
    assert lib.spills(of_queries) == 0
    of_keys = ts.compile(gradients.key_gradients, target, [], dims, grouped=False, **options, **blocks.of_keys())
    assert lib.spills(of_keys) <= most


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401 - registers what is traced

    q, k, v, grad = operands(np.random.default_rng(11))
    bias = options_of(np.random.default_rng(12), "bias")["bias"]
    _, slopes = by_torch(q, k, v, grad, MASK, bias=np.broadcast_to(bias, MASK.shape))
    wide = [torch.from_numpy(one).requires_grad_() for one in (q, k, v, bias)]

    def call(q, k, v, bias):
        return attention(q, k, v, bias=bias, dropout_p=P, seed=SEED)

    for form in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(form(*wide), wide, torch.from_numpy(grad))
        for one, exact in zip(found, [*slopes[:3], slopes[3].sum(0, keepdims=True)], strict=True):
            lib.close(one, exact, ts.f32, 32)


@pytest.mark.slow
def test_the_operator_of_pytorch_is_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    q, k, v, _ = (torch.from_numpy(one).requires_grad_() for one in operands(np.random.default_rng(13)))
    far = 2**31 - 1
    given = (q, k, v, *[None] * 5, [], "", False, 0.25, 0.0, far, far, True, 0, 0, torch.tensor([SEED]), 0, P)
    torch.library.opcheck(torch.ops.tessera.flash_attention.default, given)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "enable_gqa": True}], ids=str)
def test_in_place_of_pytorchs(options):
    torch = pytest.importorskip("torch")
    import tessera.torch

    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v, grad = operands(np.random.default_rng(14), (2, 4, 2 if options else 4, 37, 37, 16, 24))
    torch.manual_seed(5)
    seed = int(torch.randint(-(2**63), 2**63 - 1, (1,)))
    out, slopes = by_torch(q, k, v, grad, kept((2, 4, 37, 37), seed=seed), causal=bool(options))
    wide = [torch.from_numpy(one).requires_grad_() for one in (q, k, v)]

    def call(*given):
        return torch.nn.functional.scaled_dot_product_attention(*given, dropout_p=P, **options)

    with tessera.torch.sdpa():
        forms = [call, torch.compile(call, backend="tessera", fullgraph=True)]
        for form in forms:
            torch.manual_seed(5)
            found = form(*wide)
            lib.close(found.detach(), out, ts.f32, 8)
            for one, exact in zip(torch.autograd.grad(found, wide, torch.from_numpy(grad)), slopes, strict=True):
                lib.close(one, exact, ts.f32, 32)
            assert not torch.equal(form(*wide), found)
        with pytest.raises(RuntimeError):
            torch.nn.functional.scaled_dot_product_attention(*wide, dropout_p=1.5)
    assert torch.nn.functional.scaled_dot_product_attention is attend


def test_what_a_checkpoint_computes_twice_leaves_out_the_same():
    torch = pytest.importorskip("torch")
    import tessera.torch

    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x * 2, dropout_p=P).sin()

    def twice(x):
        return torch.utils.checkpoint.checkpoint(attend, x, use_reentrant=False)

    x, found = torch.randn(1, 2, 33, 16, requires_grad=True), []
    for form in (attend, twice, torch.compile(twice, backend="tessera", fullgraph=True)):
        torch.manual_seed(3)
        with tessera.torch.sdpa():
            out = form(x)
            found.append((out, *torch.autograd.grad(out.sum(), x)))
    for other in found[1:]:
        assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(found[0], other, strict=True))


Q = np.zeros((1, 2, 3, 8), np.float32)
WRONG = {
    "bad-argument": lambda: attention(Q, Q, Q, dropout_p=0.1),
    "bad-argument, p": lambda: attention(Q, Q, Q, dropout_p=1.5, seed=1),
    "bad-argument, NaN": lambda: attention(Q, Q, Q, dropout_p=float("nan"), seed=1),
    "bad-argument, text": lambda: attention(Q, Q, Q, dropout_p="some", seed=1),
    "not-an-array": lambda: attention(Q, Q, Q, dropout_p=0.1, seed="one"),
    "wrong-dtype": lambda: attention(Q, Q, Q, dropout_p=0.1, seed=np.zeros(1, np.int32)),
    "wrong-shape": lambda: attention(Q, Q, Q, dropout_p=0.1, seed=np.zeros(2, np.int64)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(",")[0]
    assert "test_attention_dropout.py" in str(caught.value)
