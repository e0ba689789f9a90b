"""Attention that turns its queries and keys, against tables as the paper writes them and PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import by_torch, operands

attention = op.flash_attention


def matrices(cos, sin, size, interleaved):
    """Return what turns a row of `size` elements at each place, `(…, S, D, D)`: blocks of two rows and columns."""
    pairs = cos.shape[-1]
    found = np.zeros((*cos.shape[:-1], size, size))
    found[..., range(2 * pairs, size), range(2 * pairs, size)] = 1
    for j in range(pairs):
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + pairs)
        found[..., a, a] = found[..., b, b] = cos[..., j]
        found[..., b, a] = sin[..., j]
        found[..., a, b] = -sin[..., j]
    return found


def tables(rng, *shape):
    angle = rng.uniform(0, 6, shape)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


FORMS = {
    "halves": ((2, 4, 2, 53, 53, 16, 24), (53, 8), False),
    "interleaved, of each batch": ((2, 4, 4, 40, 40, 16, 16), (2, 40, 8), True),
    "a part of the elements": ((1, 2, 1, 33, 33, 20, 8), (33, 6), False),
    "fewer queries than keys": ((2, 4, 2, 5, 53, 16, 24), (53, 8), True),
    "one query": ((2, 4, 2, 1, 300, 16, 24), (2, 300, 8), False),
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, library, layout):
    shape, places, interleaved = FORMS[name]
    rng = np.random.default_rng(1)
    q, k, v, grad = operands(rng, shape)
    cos, sin = tables(rng, *places)
    turn = matrices(cos, sin, shape[5], interleaved)
    turn = turn if turn.ndim == 3 else turn[:, None]
    of_q = turn[..., shape[4] - shape[3] :, :, :]
    turned = (of_q @ q[..., None])[..., 0], (turn @ k[..., None])[..., 0]
    out, lse, slopes = by_torch(*turned, v, grad, causal=True)
    slopes[0] = (of_q.swapaxes(-1, -2) @ slopes[0][..., None])[..., 0]
    slopes[1] = (turn.swapaxes(-1, -2) @ slopes[1][..., None])[..., 0]
    order = (lambda x: x) if layout == "bhsd" else (lambda x: x.swapaxes(1, 2))
    ours = [lib.of_library(library, np.ascontiguousarray(order(one))) for one in (q, k, v, grad)]
    options = {"rope": tuple(lib.of_library(library, one) for one in (cos, sin)), "rope_interleaved": interleaved}
    options |= {"causal": True, "layout": layout}
    assert np.allclose(attention.reference(*ours[:3], **options), order(out), atol=1e-9)
    found, sums = attention(*ours[:3], **options, return_lse=True)
    lib.close(found, order(out), ts.f32, 8)
    lib.close(sums, lse, ts.f32, 8)
    made = attention.backward(ours[3], *ours[:3], **options)
    for one, exact in zip(made.values(), slopes, strict=True):
        lib.close(one, order(exact), ts.f32, 32)
    if library == "torch":
        wide = [one.requires_grad_() for one in ours[:3]]
        (attention(*wide, **options) * ours[3]).sum().backward()
        for one, exact in zip(wide, slopes, strict=True):
            lib.close(one.grad, order(exact), ts.f32, 32)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_it_is_rope_and_then_attention(dtype):
    rng = np.random.default_rng(2)
    q, k, v, _ = operands(rng, (2, 4, 2, 53, 53, 16, 24), dtype)
    cos, sin = tables(rng, 53, 8)
    before = op.attn.rope(q, k, cos=cos, sin=sin)
    out = np.empty((2, 4, 53, 24), q.dtype)
    assert attention(q, k, v, rope=(cos, sin), dropout_p=0.2, seed=4, out=out) is out
    assert np.array_equal(out, attention(*before, v, dropout_p=0.2, seed=4))


def test_training_in_a_traced_graph():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401 - registers what is traced

    rng = np.random.default_rng(3)
    wide = [torch.from_numpy(one).requires_grad_() for one in operands(rng, (1, 2, 1, 20, 20, 8, 8))[:3]]
    both = tuple(map(torch.from_numpy, tables(rng, 20, 4)))

    def call(q, k, v):
        return attention(q, k, v, rope=both, causal=True).sin().sum()

    exact = torch.autograd.grad(call(*wide), wide)
    found = torch.autograd.grad(torch.compile(call, backend="tessera", fullgraph=True)(*wide), wide)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, exact, strict=True))


def test_in_a_graph_of_tessera():
    rng = np.random.default_rng(4)
    q, k, v, _ = operands(rng, (1, 2, 1, 20, 20, 8, 8))
    cos, sin = tables(rng, 20, 4)
    made = ts.jit(lambda q, k, v: attention(q, k, v, rope=(cos, sin)))(q, k, v)
    lib.close(made, attention.reference(q, k, v, rope=(cos, sin)), ts.f32, 8)


Q, C = np.zeros((1, 2, 3, 8), np.float32), np.zeros((3, 4), np.float32)
WRONG = {
    "bad-argument": lambda: attention(Q, Q, Q, rope=C),
    "bad-argument, one table": lambda: attention(Q, Q, Q, rope=(C,)),
    "bad-argument, more queries": lambda: attention(Q, Q[:, :, :2], Q[:, :, :2], rope=(C[:2], C[:2])),
    "wrong-shape": lambda: attention(Q, Q, Q, rope=(C[:2], C[:2])),
    "wrong-shape, sin": lambda: attention(Q, Q, Q, rope=(C, C[:, :2])),
    "bad-argument, wide": lambda: attention(Q, Q, Q, rope=(np.zeros((3, 5), np.float32),) * 2),
    "wrong-dtype": lambda: attention(Q, Q, Q, rope=(C.astype(np.float16),) * 2),
    "not-an-array": lambda: attention(Q, Q, Q, rope=("cos", "sin")),
    "wrong-rank": lambda: attention(Q[0], Q[0], Q[0], rope=(C, C)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(",")[0]
    assert "test_attention_rope.py" in str(caught.value)


def test_tables_have_no_gradient():
    torch = pytest.importorskip("torch")
    q, table = torch.zeros(1, 2, 3, 8), torch.zeros(3, 4, requires_grad=True)
    with pytest.raises(ts.errors.CallError, match="no-gradient"):
        attention(q, q, q, rope=(table, table.detach()))
