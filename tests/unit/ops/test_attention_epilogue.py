"""Epilogues of attention against the same steps in NumPy and float64."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.mods import NAMES
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import by_torch, emulated, operands

attention, epilogue = op.flash_attention, op.epilogue
B, H, S, E = 2, 4, 37, 24


@ts.function
def shifted(self, x, rows, cols, batch):
    """Number rows, columns and heads."""
    at = (rows + ts.tile.arange(x.shape[0]))[:, None] + 0.5 * (cols + ts.tile.arange(x.shape[1]))[None, :].to(x.dtype)
    return x + self.step * (at + batch)


def silu(x):
    return x / (1 + np.exp(-x))


RNG = np.random.default_rng(1)
OF_ELEMENTS, OF_HEADS = lib.normal(RNG, E), lib.normal(RNG, B * H, E)
REST, OF_QUERIES = lib.normal(RNG, B * H, S, E), lib.normal(RNG, S)
STEPS = {
    "bias and SiLU": (
        lambda put: [epilogue.bias(put(OF_ELEMENTS)), epilogue.silu()],
        lambda x: silu(x + OF_ELEMENTS),
    ),
    "a bias of each head": (
        lambda put: [epilogue.bias(put(OF_HEADS))],
        lambda x: x + OF_HEADS.reshape(B, H, 1, E),
    ),
    "factors of queries, a residual": (
        lambda put: [epilogue.scale(put(OF_QUERIES), "row"), epilogue.residual(put(REST), 0.5)],
        lambda x: x * OF_QUERIES[:, None] + 0.5 * REST.reshape(B, H, S, E),
    ),
    "a function": (
        lambda put: [epilogue.step(shifted, step=0.25), epilogue.scale(2.0)],
        lambda x: 2 * (x + 0.25 * (np.arange(S)[:, None] + 0.5 * np.arange(E) + np.arange(B * H).reshape(B, H, 1, 1))),
    ),
}


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": (9, 4)}], ids=str)
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, library, options):
    q, k, v, grad = operands(np.random.default_rng(2), (B, H, 2, S, 53, 16, E))
    steps, meaning = STEPS[name]
    out, lse, _ = by_torch(q, k, v, grad, **options)
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    chain = epilogue.chain(steps(lambda one: lib.of_library(library, one)))
    found, sums = attention(*ours, epilogue=chain, return_lse=True, **options)
    lib.close(found, meaning(out), ts.f32, 8)
    lib.close(sums, lse, ts.f32, 8)
    if name != "a function":
        assert np.allclose(attention.reference(q, k, v, epilogue=chain, **options), meaning(out), atol=1e-9)


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_places_before_heads_into_a_given_array(library):
    q, k, v, grad = operands(np.random.default_rng(3), (B, H, 2, S, 53, 16, E))
    steps, meaning = STEPS["a bias of each head"]
    out, _, _ = by_torch(q, k, v, grad)
    ours = [lib.of_library(library, np.ascontiguousarray(one.swapaxes(1, 2))) for one in (q, k, v)]
    chain = epilogue.chain(steps(lambda one: lib.of_library(library, one)))
    goal = lib.of_library(library, np.full((B, S, H, E), np.nan, np.float32))
    for given in ({}, {"out": goal}):
        found = attention(*ours, epilogue=chain, layout="bshd", **given)
        lib.close(found, meaning(out).swapaxes(1, 2), ts.f32, 8)
    assert found is goal


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_beside_dropout_and_rope(dtype):
    q, k, v, _ = operands(np.random.default_rng(4), (B, H, 2, S, 53, 16, E), dtype)
    angle = np.random.default_rng(5).uniform(0, 6, (53, 8)).astype(np.float32)
    chain = epilogue.chain([epilogue.bias(OF_ELEMENTS), epilogue.silu(), epilogue.cast(dtype)])
    options = {"rope": (np.cos(angle), np.sin(angle)), "dropout_p": 0.3, "seed": 7, "epilogue": chain}
    found = attention(q, k, v, **options)
    assert found.dtype == q.dtype
    lib.close(found, attention.reference(q, k, v, **options), ts.f32 if dtype == ts.f64 else dtype, 16)


def test_few_queries_and_none():
    q, k, v, grad = operands(np.random.default_rng(6), (1, H, 2, 3, 700, 16, E))
    chain = epilogue.chain([epilogue.bias(OF_ELEMENTS), epilogue.silu()])
    out, _, _ = by_torch(q, k, v, grad, causal=True)
    lib.close(attention(q, k, v, causal=True, epilogue=chain), silu(out + OF_ELEMENTS), ts.f32, 8)
    none = attention(q, k[:, :, :0], v[:, :, :0], epilogue=chain)
    lib.close(none, np.broadcast_to(silu(OF_ELEMENTS.astype(np.float64)), none.shape), ts.f32, 8)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_gpus_would_compute(target):
    q, k, v, grad = operands(np.random.default_rng(7), (1, 2, 1, 72, 136, 32, 32), ts.f16)
    out, _, _ = by_torch(q, k, v, grad)
    shift = lib.normal(np.random.default_rng(8), 2, 32)
    chain = epilogue.chain([epilogue.bias(shift), epilogue.silu()])
    options = dict.fromkeys(("bias", "slopes", "sinks", "tiles", "partials", "counts", "blocks"))
    options |= {"causal": False, "windowed": False, "caps": False, "empties": False, "plain": True}
    options |= {"mods": NAMES.mods_of("", (), None, chain.layout), "acc": ts.f32, "T": ts.f16, "S": ts.f32}
    found, sums = np.full(out.shape, np.nan, np.float16), np.full(out.shape[:3], np.nan, np.float32)
    dims, numbers = {"B": 1, "H": 2, "G": 1, "M": 72, "N": 136, "D": 32, "E": 32}, (32**-0.5, 1.0, 0, 0, 0)
    emulated(kernels.forward, target, [q, k, v, shift, found, sums], dims, numbers, **options, BM=64, BN=64)
    lib.close(found, silu(out + shift[None, :, None, :]), ts.f16, 4)


@pytest.mark.parametrize("head", [64, 128])
def test_kernels_spill_no_registers(head):
    chain = epilogue.chain([epilogue.bias(np.zeros(head, np.float32)), epilogue.silu()])
    made = attention.compile(head, ts.bf16, epilogue=chain, target="sm_90a")
    assert lib.spills(made) == 0
    plain = attention.compile(head, ts.bf16, target="sm_90a").reflection["schedule"]
    assert made.reflection["schedule"] == plain


Q = np.zeros((1, 2, 3, 8), np.float32)
BIAS = epilogue.chain([epilogue.bias(np.zeros(8, np.float32))])
SUMS = epilogue.chain([epilogue.row_sum(np.zeros(3, np.float32))])
RESIDUAL = np.zeros((2, 3, 8), np.float32)
ADDS = epilogue.chain([epilogue.residual(RESIDUAL)])
WRONG = {
    "bad-argument": lambda: attention(Q, Q, Q, epilogue=epilogue.relu),
    "bad-argument, sums": lambda: attention(Q, Q, Q, epilogue=SUMS),
    "bad-argument, cast": lambda: attention(Q, Q, Q, epilogue=epilogue.chain([epilogue.cast(ts.f16)])),
    "bad-argument, out": lambda: attention(Q, Q, Q, out=RESIDUAL[None], epilogue=ADDS),
    "wrong-shape": lambda: attention(Q[..., :4], Q[..., :4], Q[..., :4], epilogue=BIAS),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(",")[0]
    assert "test_attention_epilogue.py" in str(caught.value)


def test_what_has_no_gradient_or_graph():
    torch = pytest.importorskip("torch")
    q = torch.zeros(1, 2, 3, 8)
    bias = epilogue.chain([epilogue.bias(torch.zeros(8, requires_grad=True))])
    for given, chain in ((q.clone().requires_grad_(), epilogue.chain([epilogue.silu()])), (q, bias)):
        with pytest.raises(ts.errors.CallError, match="no-gradient"):
            attention(given, q, q, epilogue=chain)
        with torch.no_grad():
            assert attention(given, q, q, epilogue=chain).shape == q.shape
    with pytest.raises(ts.errors.CallError, match="not-in-graphs"):
        ts.jit(lambda x: attention(x, x, x, epilogue=BIAS))(Q)
