"""A user's own functions in `ops.flash_attention`, sinks and lists of blocks, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.errors import CallError, LanguageError
from tests.unit.ops import library as lib

attention = op.flash_attention
B, H, G, M, N, D, E = 2, 4, 2, 150, 300, 16, 24


@ts.function
def bent(score, b, h, q, k):
    return 3.0 * ts.tile.tanh(score / 3.0) - 0.01 * ts.tile.abs(q - k).to(score.dtype) * (h + 1).to(score.dtype)


@ts.function
def by_table(score, b, h, q, k, table, factors):
    return score * factors[b, h] + table[ts.tile.minimum(ts.tile.abs(q - k), 31)]


@ts.function
def square(score, b, h, q, k):
    return ts.tile.where(score > 0.0, score * score, 0.1 * score)


@ts.function
def odd_ones(b, h, q, k):
    return (q + k + h) % 3 != 0


@ts.function
def documents(b, h, q, k, of_queries, of_keys):
    return (of_queries[b, q] == of_keys[b, k]) & (k <= q + 150)


@ts.function
def nothing(b, h, q, k):
    return (q < 40) & (k < q)


TABLE = np.linspace(-1, 1, 32).astype(np.float32)
FACTORS = np.linspace(0.5, 1.5, B * H).reshape(B, H).astype(np.float32)
OF_QUERIES = np.sort(np.random.default_rng(1).integers(0, 4, (B, M)), 1).astype(np.int32)
OF_KEYS = np.sort(np.random.default_rng(2).integers(0, 4, (B, N)), 1).astype(np.int32)

SCORES = {
    "none": (None, (), None),
    "bent": (bent, (), lambda s, b, h, q, k: 3 * np.tanh(s / 3) - 0.01 * abs(q - k) * (h + 1)),
    "table": (
        *(by_table, (TABLE, FACTORS)),
        lambda s, b, h, q, k: s * FACTORS[b, h] + TABLE[np.minimum(abs(q - k), 31)],
    ),
    "square": (square, (), lambda s, b, h, q, k: np.where(s > 0, s * s, 0.1 * s)),
}
MASKS = {
    "none": (None, (), None),
    "odd": (odd_ones, (), lambda b, h, q, k: (q + k + h) % 3 != 0),
    "documents": (
        *(documents, (OF_QUERIES, OF_KEYS)),
        lambda b, h, q, k: (OF_QUERIES[b, q] == OF_KEYS[b, k]) & (k <= q + 150),
    ),
    "nothing": (nothing, (), lambda b, h, q, k: (q < 40) & (k < q)),
}


def operands(seed=0, dtype=ts.f32):
    rng = np.random.default_rng(seed)
    return [lib.normal(rng, B, *sizes, dtype=dtype) for sizes in ((H, M, D), (G, N, D), (G, N, E), (H, M, E))]


def exact_gradients(q, k, v, grad, score=None, mask=None, sinks=None):
    """Return the gradients of queries, keys, values and sinks, written out."""
    q, k, v, grad = (one.astype(np.float64) for one in (q, k, v, grad))
    keys, values = (np.repeat(one, H // G, 1) for one in (k, v))
    places = np.ogrid[:B, :H, :M, :N]
    before = q @ keys.swapaxes(2, 3) * D**-0.5
    turn = 1.0
    scores = before
    if score is not None:
        scores = score(before, *places)
        turn = (score(before + 1e-6, *places) - score(before - 1e-6, *places)) / 2e-6
    if mask is not None:
        scores = np.where(mask(*places), scores, -np.inf)
    top = np.maximum(scores.max(3, keepdims=True), -1e30 if sinks is None else sinks[:, None, None])
    powers = np.exp(scores - top)
    sink = 0.0 if sinks is None else np.exp(sinks[:, None, None] - top)
    sums = powers.sum(3, keepdims=True) + sink
    weights = powers / np.where(sums == 0, 1, sums)
    delta = (grad * (weights @ values)).sum(3, keepdims=True)
    slopes = weights * (grad @ values.swapaxes(2, 3) - delta) * turn * D**-0.5
    shared = lambda one: one.reshape(B, G, H // G, *one.shape[2:]).sum(2)  # noqa: E731
    made = [slopes @ keys, shared(slopes.swapaxes(2, 3) @ q), shared(weights.swapaxes(2, 3) @ grad)]
    return made if sinks is None else [*made, -(sink / sums * delta).sum((0, 2, 3))]


def mods_of(library, function, tensors):
    """Return a function with its tensors in a library."""
    return op.attn.mod(function, *(lib.of_library(library, one) for one in tensors)) if tensors else function


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_functions(score, mask, library, listed):
    if listed and mask == "none":
        pytest.skip("nothing to list")
    function, tensors, meaning = SCORES[score]
    keeps, others, seen = MASKS[mask]
    q, k, v, grad = operands()
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    options = {"score_mod": mods_of(library, function, tensors), "mask_mod": mods_of(library, keeps, others)}
    if listed:
        options["mask_mod"] = op.attn.block_mask(options["mask_mod"], B, H, M, N, like=ours[0])
    exact, sums = attention.reference(q, k, v, score_mod=meaning, mask_mod=seen, return_lse=True)
    found, lse = attention(*ours, **options, return_lse=True)
    large = 16 if score == "square" else 1  # scores of 50 have steps as many times as large as those of 3
    lib.close(found, exact, ts.f32, 8 * large)
    lib.close(lse, sums, ts.f32, 8)
    made = attention.backward(lib.of_library(library, grad), *ours, **options)
    for one, wanted in zip(made.values(), exact_gradients(q, k, v, grad, meaning, seen), strict=True):
        lib.close(one, wanted, ts.f32, 64 * large)


@pytest.mark.parametrize("mask", ["none", "nothing"])
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_sinks(library, mask):
    q, k, v, grad = operands(3)
    sinks = np.array([-2.0, 0.5, 8.0, -60.0], np.float32)
    keeps, _, seen = MASKS[mask]
    exact, sums = attention.reference(q, k, v, sinks=sinks, mask_mod=seen, return_lse=True)
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    options = {"sinks": lib.of_library(library, sinks), "mask_mod": keeps}
    found, lse = attention(*ours, **options, return_lse=True)
    lib.close(found, exact, ts.f32, 8)
    lib.close(lse, sums, ts.f32, 8)
    made = attention.backward(lib.of_library(library, grad), *ours, **options)
    for one, wanted in zip(made.values(), exact_gradients(q, k, v, grad, None, seen, sinks.astype(float)), strict=True):
        lib.close(one, wanted, ts.f32, 64)


@pytest.mark.parametrize("sizes", [(128, 128), (129, 127), (1, 700), (512, 1), (300, 1000)], ids=str)
def test_lists_of_blocks(sizes):
    queries, keys = sizes
    places = np.ogrid[:2, :2, :queries, :keys]
    seen = np.broadcast_to((places[3] * 3 <= places[2] * 7 + 40 * places[0]) | (places[3] < 64), (2, 2, *sizes))
    mask = op.attn.block_mask(slanted, 2, 2, queries, keys, like=np.zeros(1, np.float32))
    rows, columns = -(-queries // 128), -(-keys // 128)
    some, whole = np.zeros((2, 2, 2, rows, columns), bool)
    for i, j in np.ndindex(rows, columns):
        block = seen[:, :, i * 128 : i * 128 + 128, j * 128 : j * 128 + 128]
        some[:, :, i, j] = block.any((2, 3))
        whole[:, :, i, j] = block.all((2, 3)) & (j * 128 + 128 <= keys)
    assert np.array_equal(mask.counts, some.sum(3))
    assert np.array_equal(mask.partials, (some & ~whole).sum(3))
    assert mask.density() == some.mean()
    for place in np.ndindex(2, 2, rows):
        listed = mask.blocks[place][: mask.counts[place]]
        first = np.flatnonzero(some[place] & ~whole[place])
        assert np.array_equal(listed, [*first, *np.flatnonzero(whole[place])])


@ts.function
def slanted(b, h, q, k):
    return (k * 3 <= q * 7 + 40 * b) | (k < 64)


def test_one_list_for_all_heads_and_rows():
    q, k, v, grad = operands(4)
    mask = op.attn.block_mask(slanted, 1, 1, M, N, like=q)
    with pytest.raises(CallError, match="wrong-shape"):
        attention(q[:, :, 1:], k, v, mask_mod=mask)
    meaning = lambda b, h, q, k: ((k * 3 <= q * 7) | (k < 64)) & (b < 1)  # noqa: E731
    one = [x[:1] for x in (q, k, v)]
    lib.close(attention(*one, mask_mod=mask), attention.reference(*one, mask_mod=meaning), ts.f32, 8)
    made = attention.backward(grad[:1], *one, mask_mod=mask)
    dense = attention.backward(grad[:1], *one, mask_mod=slanted)
    for name, found in made.items():
        lib.close(found, dense[name].astype(np.float64), ts.f32, 8)


@pytest.mark.parametrize("options", [{"window": (60, 20)}, {"causal": True}], ids=str)
def test_lists_beside_windows(options):
    q, k, v, grad = operands(7)
    far = options.get("window", (10**6, 0))
    keeps = MASKS["odd"][2]
    apart = np.arange(N) - (np.arange(M)[:, None] + N - M)
    seen = lambda b, h, q, k: keeps(b, h, q, k) & (apart >= -far[0]) & (apart <= far[1])  # noqa: E731
    mask = op.attn.block_mask(odd_ones, 1, H, M, N, like=q)
    lib.close(attention(q, k, v, mask_mod=mask, **options), attention.reference(q, k, v, mask_mod=seen), ts.f32, 8)
    made = attention.backward(grad, q, k, v, mask_mod=mask, **options)
    for one, wanted in zip(made.values(), exact_gradients(q, k, v, grad, None, seen), strict=True):
        lib.close(one, wanted, ts.f32, 64)


def test_sinks_without_keys():
    torch = pytest.importorskip("torch")
    sinks = torch.tensor([1.0, -2.0], requires_grad=True)
    q, none = torch.randn(1, 2, 3, 8), torch.zeros(1, 2, 0, 8)
    out, lse = attention(q, none, none, sinks=sinks, return_lse=True)
    lse.sum().backward()
    assert float(out.detach().abs().max()) == 0
    assert torch.allclose(lse[0], sinks[:, None].expand(2, 3))
    assert torch.allclose(sinks.grad, torch.full((2,), 3.0))


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    q, k, v, _ = operands(5, dtype)
    meaning = SCORES["bent"][2]
    lib.close(attention(q, k, v, score_mod=bent, causal=True), exact_causal(q, k, v, meaning), dtype, 8)


def exact_causal(q, k, v, meaning):
    return attention.reference(q, k, v, score_mod=meaning, causal=True)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401 - registers what is traced

    q, k, v, grad = operands(6)
    sinks = np.linspace(-1, 1, H).astype(np.float32)
    wide = [torch.from_numpy(one).requires_grad_() for one in (q, k, v, sinks)]
    table, factors = torch.from_numpy(TABLE), torch.from_numpy(FACTORS)
    score = op.attn.mod(by_table, table, factors)
    mask = op.attn.block_mask(odd_ones, 1, H, M, N, like=wide[0])

    def call(q, k, v, sinks):
        return attention(q, k, v, sinks=sinks, score_mod=score, mask_mod=mask)

    exact = exact_gradients(q, k, v, grad, SCORES["table"][2], MASKS["odd"][2], sinks.astype(float))
    for form in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(form(*wide), wide, torch.from_numpy(grad))
        for one, wanted in zip(found, exact, strict=True):
            lib.close(one, wanted, ts.f32, 64)


def test_wrong_functions():
    q, k, v, grad = operands()
    cases = {
        "bad-argument": lambda: attention(q, k, v, score_mod=lambda s, b, h, q, k: s),
        "bad-argument of a mask": lambda: attention(q, k, v, mask_mod=3),
        "bad-argument, five tensors": lambda: op.attn.mod(bent, *[TABLE] * 5),
        "not-an-array": lambda: op.attn.mod(bent, "table"),
        "bad-argument of a size": lambda: op.attn.block_mask(odd_ones, 1, 1, 0, 4, like=q),
        "wrong-shape of sinks": lambda: attention(q, k, v, sinks=np.zeros(H + 1, np.float32)),
        "wrong-dtype of sinks": lambda: attention(q, k, v, sinks=np.zeros(H)),
    }
    for name, call in cases.items():
        with pytest.raises(CallError) as error:
            call()
        assert error.value.code == name.split(",")[0].split(" ")[0], name
    with pytest.raises(LanguageError, match="bad-call"):
        attention(q, k, v, score_mod=odd_ones)
    with pytest.raises(LanguageError, match="no-derivative"):
        attention.backward(grad, q, k, v, score_mod=gamma)


@ts.function
def gamma(score, b, h, q, k):
    return ts.tile.lgamma(score)
