"""Attention over packed sequences: each as if it were alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.errors import CallError
from tests.unit.ops import library as lib

varlen, attention = op.flash_attention_varlen, op.flash_attention
H, G, D, E = 4, 2, 16, 24
SELF = [0, 70, 70, 71, 200, 333]
CROSS = [0, 100, 130, 130, 401, 440]


def operands(seed=0, dtype=ts.f32, keys=SELF):
    rng = np.random.default_rng(seed)
    shapes = (SELF[-1], H, D), (keys[-1], G, D), (keys[-1], G, E), (SELF[-1], H, E)
    return [lib.normal(rng, *shape, dtype=dtype) for shape in shapes]


def each(call, q, k, v, *others, keys=SELF):
    """Return what a call gives for each sequence, one behind the other."""
    ends = zip(SELF, SELF[1:], keys, keys[1:], strict=False)
    return [
        call(*(x[None, s].swapaxes(1, 2) for x, s in zip((q, k, v, *others), spans(*one), strict=False)))
        for one in ends
    ]


def spans(a, b, c, d):
    return slice(a, b), slice(c, d), slice(c, d), slice(a, b)


@ts.function
def nearer(score, b, h, q, k):
    return score - 0.02 * ts.tile.abs(q - k).to(score.dtype)


@ts.function
def even(b, h, q, k):
    return (q + k) % 2 == 0


FORMS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (9, 4)},
    "cap": {"softcap": 0.7, "causal": True},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 1.0], np.float32)},
    "sinks": {"sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32), "causal": True},
    "functions": {"score_mod": nearer, "mask_mod": even},
}


@pytest.mark.parametrize("keys", [SELF, CROSS], ids=["self", "cross"])
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, library, keys):
    q, k, v, grad = operands(0, keys=keys)
    options = dict(FORMS[name])
    one_by_one = each(lambda *x: attention(*x, **options, return_lse=True), q, k, v, keys=keys)
    starts, others = (lib.of_library(library, np.array(one, np.int32)) for one in (SELF, keys))
    given = {x: lib.of_library(library, y) if isinstance(y, np.ndarray) else y for x, y in options.items()}
    ours = [lib.of_library(library, one) for one in (q, k, v)]
    most = {"max_seqlen_q": 133, "max_seqlen_k": 271}
    found, lse = varlen(*ours, starts, others, **most, **given, return_lse=True)
    lib.close(found, np.concatenate([out[0].swapaxes(0, 1) for out, _ in one_by_one]).astype(np.float64), ts.f32, 2)
    lib.close(lse, np.concatenate([lse[0] for _, lse in one_by_one], 1).astype(np.float64), ts.f32, 2)
    made = varlen.backward(lib.of_library(library, grad), *ours, starts, others, **given)
    wanted = each(lambda q, k, v, g: attention.backward(g, q, k, v, **options), q, k, v, grad, keys=keys)
    for name, one in made.items():
        if name == "sinks":
            exact = sum(slopes[name].astype(np.float64) for slopes in wanted)
        else:
            exact = np.concatenate([slopes[name][0].swapaxes(0, 1) for slopes in wanted]).astype(np.float64)
        lib.close(one, exact, ts.f32, 8)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    q, k, v, _ = operands(1, dtype)
    starts = np.array(SELF, np.int32)
    exact = varlen.reference(q, k, v, starts, causal=True)
    lib.close(varlen(q, k, v, starts, max_seqlen_q=133, causal=True), exact, dtype, 8)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")

    q, k, v, grad = operands(2)
    starts = torch.tensor(SELF, dtype=torch.int32)
    exact = causal_gradients(torch, q, k, v, grad)
    wide = [torch.from_numpy(one).requires_grad_() for one in (q, k, v)]

    def call(q, k, v):
        return varlen(q, k, v, starts, max_seqlen_q=133, causal=True)

    for form in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(form(*wide), wide, torch.from_numpy(grad))
        for one, wanted in zip(found, exact, strict=True):
            lib.close(one, wanted, ts.f32, 8)


def causal_gradients(torch, q, k, v, grad):
    """Return the gradients of the queries, keys and values of all sequences in float64."""
    wide = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (q, k, v)]
    found = []
    for part in itertools.starmap(slice, itertools.pairwise(SELF)):
        heads = [one[part].transpose(0, 1) for one in wide]
        keys, values = (one.repeat_interleave(H // G, 0) for one in heads[1:])
        later = torch.ones(heads[0].shape[1], keys.shape[1]).triu(1).bool()
        scores = (heads[0] @ keys.mT * D**-0.5).masked_fill(later, -torch.inf)
        found.append((scores.softmax(-1) @ values).transpose(0, 1))
    made = torch.autograd.grad(torch.cat(found), wide, torch.from_numpy(grad.astype(np.float64)))
    return [one.numpy() for one in made]


def test_no_sequences():
    q = np.zeros((0, 2, 8), np.float32)
    assert varlen(q, q, q, np.zeros(1, np.int32)).shape == (0, 2, 8)
    assert varlen(q, q, q, np.zeros(4, np.int32)).shape == (0, 2, 8)
    assert varlen.flops([10, 20], 2, 8) == attention.flops((1, 2, 10, 8), *[(1, 2, 10, 8)] * 2) * 5


WRONG = {
    "wrong-rank": lambda q, k, v, s: varlen(q[None], k, v, s),
    "wrong-shape": lambda q, k, v, s: varlen(q, k, v, s[None]),
    "wrong-shape of keys": lambda q, k, v, s: varlen(q, k, v, s, s[:-1]),
    "wrong-dtype": lambda q, k, v, s: varlen(q, k, v, s.astype(np.int64)),
    "bad-argument, too short": lambda q, k, v, s: varlen(q, k, v, s, max_seqlen_q=100),
    "bad-argument, decreasing": lambda q, k, v, s: varlen(q, k, v, s[::-1].copy()),
    "bad-argument, not all": lambda q, k, v, s: varlen(q, k, v, s[:-1]),
    "bad-argument, negative": lambda q, k, v, s: varlen(q, k, v, s, max_seqlen_q=-1),
    "bad-argument, a list of blocks": lambda q, k, v, s: varlen(
        q, k, v, s, mask_mod=op.attn.block_mask(even, 1, 1, 9, 9, like=q)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    q, k, v, _ = operands()
    with pytest.raises(CallError) as error:
        WRONG[name](q, k, v, np.array(SELF, np.int32))
    assert error.value.code == name.split(",")[0].split(" ")[0]
