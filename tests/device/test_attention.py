"""`ops.flash_attention` on a real GPU, forward and backward, against PyTorch in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.attn.drops import factors
from tests.device.test_library import agree

pytestmark = pytest.mark.device


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def attend(torch: Any, q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> Any:
    """Return attention as it is defined."""
    keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = q @ keys.transpose(-1, -2) / math.sqrt(q.shape[3])
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    queries, places = (torch.arange(count, device="cuda") for count in scores.shape[2:])
    apart = places - (queries[:, None] + len(places) - len(queries))
    before, after = options.get("window", (10**6, 10**6))
    hidden = (apart < -before) | (apart > (0 if options.get("causal") else after))
    if "bias" in options:
        scores = scores + options["bias"].double()
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    return torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)) @ values


FORMS = {
    "shared heads": ((2, 4, 2, 333, 333, 128, 128), {"causal": True}),
    "narrow heads": ((2, 4, 4, 300, 517, 64, 64), {}),
    "one key for all": ((1, 4, 1, 129, 700, 96, 96), {"causal": True}),
    "window": ((1, 2, 2, 200, 200, 80, 80), {"window": (50, 20)}),
    "other values": ((1, 2, 1, 150, 300, 192, 128), {"causal": True}),
    "wide heads": ((1, 2, 2, 100, 128, 256, 256), {}),
    "more queries": ((1, 2, 2, 200, 70, 64, 64), {"causal": True}),
    "cap": ((1, 2, 2, 65, 130, 128, 128), {"causal": True, "softcap": 5.0}),
    "one query": ((3, 8, 2, 1, 515, 128, 128), {"causal": True}),
}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_forms(torch, name, kind):
    (b, h, g, s, n, d, e), options = FORMS[name]
    shapes = ((b, h, s, d), (b, g, n, d), (b, g, n, e))
    inputs = [torch.randn(shape, device="cuda").to(getattr(torch, kind)) for shape in shapes]
    ours = lambda q, k, v: op.flash_attention(q, k, v, **options)  # noqa: E731
    agree(torch, ours, lambda q, k, v: attend(torch, q, k, v, options), inputs, 32 if kind == "float32" else 4)


def test_bias(torch):
    inputs = [torch.randn(2, 3, 130, 64, device="cuda").bfloat16() for _ in range(3)]
    bias = torch.randn(3, 1, 130, device="cuda").bfloat16()
    theirs = lambda q, k, v, bias: attend(torch, q, k, v, {"bias": bias})  # noqa: E731
    agree(torch, lambda q, k, v, bias: op.flash_attention(q, k, v, bias=bias), theirs, [*inputs, bias], 4)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(torch, size, causal):
    seed = torch.tensor([2**40 + 7], device="cuda")
    mask = torch.from_numpy(factors(0.3, 2**40 + 7, (2, 4, 333, 333))).cuda()

    def theirs(q, k, v):
        keys, values = (one.repeat_interleave(2, 1) for one in (k, v))
        scores = q @ keys.transpose(-1, -2) / math.sqrt(size)
        hidden = torch.ones(333, 333, dtype=torch.bool, device="cuda").triu(1) & causal
        return (torch.softmax(scores.masked_fill(hidden, -math.inf), -1) * mask) @ values

    inputs = [torch.randn(2, heads, 333, size, device="cuda").bfloat16() for heads in (4, 2, 2)]
    ours = lambda q, k, v: op.flash_attention(q, k, v, causal=causal, dropout_p=0.3, seed=seed)  # noqa: E731
    agree(torch, ours, theirs, inputs, 4)


def test_the_same_bits_again(torch):
    q, k, v = (torch.randn(1, 4, 500, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    found = []
    for _ in range(5):
        out = op.flash_attention(q, k, v, causal=True)
        found.append([out.detach(), *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))])
    assert all(torch.equal(one, other) for again in found[1:] for one, other in zip(found[0], again, strict=True))


@ts.function
def bent(score, b, h, q, k, slopes):
    return 4.0 * ts.tile.tanh(score / 4.0) - slopes[h] * ts.tile.abs(q - k).to(ts.f32)


@ts.function
def same_document(b, h, q, k, documents):
    return (documents[q] == documents[k]) & (k <= q)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("form", ["score", "mask", "listed", "all"])
def test_functions_of_the_user(torch, form, size, kind):
    count = 700
    inputs = [torch.randn(2, heads, count, size, device="cuda").to(getattr(torch, kind)) for heads in (4, 2, 2)]
    slopes = torch.rand(4, device="cuda") * 0.1
    documents = torch.randint(0, 4, (count,), device="cuda").sort().values.int()
    options = {}
    if form in ("score", "all"):
        options["score_mod"] = op.attn.mod(bent, slopes)
    if form != "score":
        options["mask_mod"] = op.attn.mod(same_document, documents)
    if form in ("listed", "all"):
        options["mask_mod"] = op.attn.block_mask(options["mask_mod"], 1, 1, count, count, like=inputs[0])

    def exact(q, k, v):
        keys, values = (one.repeat_interleave(2, 1) for one in (k, v))
        scores = q @ keys.transpose(-1, -2) / math.sqrt(size)
        places = torch.arange(count, device="cuda")
        if "score_mod" in options:
            apart = (places[:, None] - places).abs()
            scores = 4 * torch.tanh(scores / 4) - slopes.double()[:, None, None] * apart
        if "mask_mod" in options:
            seen = (documents[:, None] == documents) & (places <= places[:, None])
            scores = scores.masked_fill(~seen, -math.inf)
        return torch.softmax(scores, -1) @ values

    agree(
        *(torch, lambda q, k, v: op.flash_attention(q, k, v, **options), exact, inputs),
        32 if kind == "float32" else 4,
    )


def test_sinks(torch):
    inputs = [torch.randn(2, 3, 300, 64, device="cuda") for _ in range(3)]
    sinks = torch.tensor([-1.0, 2.0, 9.0], device="cuda")

    def exact(q, k, v, sinks):
        scores = q @ k.transpose(-1, -2) / 8
        whole = torch.cat([scores, sinks[:, None, None].expand(2, 3, 300, 1)], -1)
        return torch.softmax(whole, -1)[..., :-1] @ v

    ours = lambda q, k, v, sinks: op.flash_attention(q, k, v, sinks=sinks)  # noqa: E731
    agree(torch, ours, exact, [*inputs, sinks], 32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_packed_sequences(torch, kind, causal):
    ends = [0, 333, 333, 340, 900, 1500]
    starts = torch.tensor(ends, dtype=torch.int32, device="cuda")
    inputs = [torch.randn(ends[-1], heads, 128, device="cuda").to(getattr(torch, kind)) for heads in (4, 2, 2)]

    def exact(q, k, v):
        parts = []
        for first, last in pairwise(ends):
            one = [x[first:last].transpose(0, 1)[None] for x in (q, k, v)]
            parts.append(attend(torch, *one, {"causal": causal})[0].transpose(0, 1))
        return torch.cat(parts)

    def ours(q, k, v):
        return op.flash_attention_varlen(q, k, v, starts, max_seqlen_q=600, causal=causal)

    agree(torch, ours, exact, inputs, 32 if kind == "float32" else 4)


@pytest.mark.parametrize("heads", [(8, 2, 128, 128), (16, 1, 576, 512), (4, 4, 64, 64)], ids=str)
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3fn"])
def test_pages(torch, kind, page, heads):
    h, g, d, e = heads
    lengths = torch.tensor([700, 3, 1500, 0], dtype=torch.int32, device="cuda")
    most, dtype = 1600 // page, torch.float32 if kind == "float32" else torch.bfloat16
    table = torch.randperm(4 * most, device="cuda").reshape(4, most).int()
    k, v = (torch.randn(4 * most, page, g, size, device="cuda").to(getattr(torch, kind)) for size in (d, e))
    new = [torch.randn(4, 2, g, size, device="cuda").to(dtype) for size in (d, e)]
    op.append_kv(*new, k, v, table, lengths)
    for b, count in enumerate(lengths.tolist()):  # what was never stored may be anything
        at = torch.arange(count, most * page, device="cuda")
        for one in (k, v):
            one.view(torch.uint8)[table[b, at // page].long(), at % page] = 0xFF
    q = torch.randn(4, h, 2, d, device="cuda").to(dtype)
    found, lse = op.paged_attention(q, k, v, table, lengths, return_lse=True, k_scale=0.5)
    for b, count in enumerate(lengths.tolist()):
        places = torch.arange(count, device="cuda")
        wide = [one.double()[table[b, places // page].long(), places % page].transpose(0, 1)[None] for one in (k, v)]
        exact = attend(torch, q[b : b + 1].double(), wide[0] * 0.5, wide[1], {"causal": True})
        allowed = (2e-4 if kind == "float32" else 2e-2) * max(1.0, float(exact.abs().max()))
        assert float((found[b].double() - exact[0]).abs().max()) <= allowed
    assert bool((lse[3] == -math.inf).all())
    assert float(found[3].abs().max()) == 0
    held = k.double()[table[0, 699 // page].long(), 699 % page]
    assert float((held - new[0][0, 1].double()).abs().max()) <= (0.3 if kind == "float8_e4m3fn" else 1e-6)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn"])
def test_prefixes_of_pages(torch, kind, queries):
    lengths = torch.tensor([1300, 1500, 1411, 90, 700], dtype=torch.int32, device="cuda")
    table = torch.randperm(5 * 24, device="cuda").reshape(5, 24).int()
    table[1:3, :19] = table[0, :19]
    k, v = (torch.randn(5 * 24, 64, 2, 128, device="cuda").to(getattr(torch, kind)) for _ in range(2))
    q = torch.randn(5, 8, queries, 128, device="cuda").bfloat16()
    shared = torch.tensor([1250, 1250, 1250, 0, 640], dtype=torch.int32, device="cuda")
    groups = torch.tensor([0, 3, 4, 5], dtype=torch.int32, device="cuda")
    exact, whole = op.paged_attention(q, k, v, table, lengths, return_lse=True)
    given = {"prefix_lengths": shared, "prefix_groups": groups, "return_lse": True}
    found, lse = op.paged_attention(q, k, v, table, lengths, **given)
    assert torch.allclose(found, exact, atol=2e-3, rtol=2e-2)
    assert torch.allclose(lse, whole, atol=1e-3)


@pytest.mark.parametrize("size", [64, 128])
def test_epilogues_and_turned_queries(torch, size):
    q, k, v = (torch.randn(2, heads, 333, size, device="cuda").bfloat16() for heads in (4, 2, 2))
    bias, angle = torch.randn(size, device="cuda"), torch.rand(333, size // 2, device="cuda") * 6
    tables = angle.cos(), angle.sin()
    chain = op.epilogue.chain([op.epilogue.bias(bias), op.epilogue.silu()])
    found = op.flash_attention(q, k, v, rope=tables, epilogue=chain, causal=True)
    turned = op.attn.rope(q, k, cos=tables[0], sin=tables[1])
    exact = attend(torch, *(one.double() for one in (*turned, v)), {"causal": True}) + bias.double()
    assert torch.allclose(found.double(), torch.nn.functional.silu(exact), atol=2e-2, rtol=2e-2)
