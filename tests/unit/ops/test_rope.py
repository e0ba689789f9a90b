"""The rotary embedding against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

rope = op.attn.rope


def exact(x, positions=None, base=10000.0, interleaved=False, rotary_dim=None):
    """Turn each pair of `(B, H, S, D)` by a matrix, as the paper writes it."""
    x = x.astype(np.float64)
    size = rotary_dim or x.shape[3]
    at = np.broadcast_to(np.arange(x.shape[2]) if positions is None else positions, (x.shape[0], x.shape[2]))
    found = x.copy()
    for j in range(size // 2):
        angle = (at * base ** (-2 * j / size))[:, None, :]
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + size // 2)
        found[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        found[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return found


HOW = {
    "plain": {},
    "interleaved": {"interleaved": True},
    "partial": {"rotary_dim": 6},
    "interleaved, partial": {"interleaved": True, "rotary_dim": 4, "base": 500.0},
}
each_way = pytest.mark.parametrize("how", HOW)


@each_way
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_queries_and_keys_by_any_positions(how, library):
    rng = np.random.default_rng(1)
    q, k = lib.normal(rng, 2, 6, 19, 10), lib.normal(rng, 2, 2, 19, 10)
    q2, k2 = lib.of_library(library, q), lib.of_library(library, k)
    some = (rng.integers(0, 100, (2, 19)).astype(np.int32), rng.integers(0, 100, 19), None)
    for positions in some if (how, library) == ("plain", "numpy") else some[:1]:
        places = lib.of_library(library, positions)
        got_q, got_k = rope(q2, k2, positions=places, **HOW[how])
        lib.close(got_q, exact(q, positions, **HOW[how]), ts.f32, 50)
        lib.close(got_k, exact(k, positions, **HOW[how]), ts.f32, 50)
        if how == "plain":
            assert np.array_equal(rope(q2, positions=places), got_q)
        assert np.allclose(rope.reference(q2, positions=places, **HOW[how]), exact(q, positions, **HOW[how]))


@pytest.mark.parametrize("how", ["plain", "interleaved, partial"])
def test_layout_and_tables(how):
    rng = np.random.default_rng(2)
    q, k = lib.normal(rng, 3, 4, 33, 10), lib.normal(rng, 3, 4, 33, 10)
    turned = [one.swapaxes(1, 2) for one in (q, k)]
    for got, x in zip(rope(*turned, layout="bshd", **HOW[how]), (q, k), strict=True):
        lib.close(got.swapaxes(1, 2), exact(x, **HOW[how]), ts.f32, 20)
    given = dict(HOW[how])
    size, base = given.get("rotary_dim", 10), given.pop("base", 10000.0)
    angle = np.arange(33)[:, None] * base ** (-2 * np.arange(size // 2) / size)
    cos, sin = (np.ascontiguousarray(one, np.float32) for one in (np.cos(angle), np.sin(angle)))
    lib.close(rope(q, cos=cos, sin=sin, **given), exact(q, base=base, **given), ts.f32, 2)
    batch = [np.stack([one, one[::-1], one]) for one in (cos, sin)]
    want = exact(q, np.stack([np.arange(33), np.arange(33)[::-1], np.arange(33)]), base=base, **given)
    lib.close(rope(q, cos=batch[0], sin=batch[1], **given), want, ts.f32, 2)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    rng = np.random.default_rng(3)
    q, k = lib.normal(rng, 1, 2, 200, 64, dtype=dtype), lib.normal(rng, 1, 1, 200, 64, dtype=dtype)
    got = rope(q, k)
    for one, x in zip(got, (q, k), strict=True):
        lib.close(one, exact(x), dtype, 2 if dtype.bits == 16 else 200)
    back = rope.backward(*got)
    lib.close(back["q"], q.astype(np.float64), dtype, 3)
    lib.close(back["k"], k.astype(np.float64), dtype, 3)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0), (1, 1, 1, 2), (5, 3, 1, 8)])
def test_sizes(shape):
    x = lib.normal(np.random.default_rng(4), *shape)
    for one in rope(x, x[:, :1]):
        assert one.dtype == x.dtype
    lib.close(rope(x, positions=np.full(shape[2], 7)), exact(x, 7), ts.f32, 20)
    if shape[1] == 0:
        keys = lib.normal(np.random.default_rng(4), 2, 5, 3, 4)
        lib.close(rope(x, keys)[1], exact(keys), ts.f32, 20)


@each_way
def test_gradients_are_finite_differences(how):
    rng = np.random.default_rng(5)
    at = {"q": rng.standard_normal((1, 2, 2, 8)), "k": rng.standard_normal((1, 1, 2, 8))}
    grads = [rng.standard_normal(one.shape) for one in at.values()]

    def value(given):
        return float(sum((one * grad).sum() for one, grad in zip(rope(**given, **HOW[how]), grads, strict=True)))

    found = rope.backward(*grads, **HOW[how])
    for one, slope in lib.differences(value, at).items():
        assert np.allclose(found[one], slope, atol=1e-8), one


@pytest.mark.parametrize("how", ["plain", "partial"])
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_in_place_and_in_given_arrays(how, library):
    rng = np.random.default_rng(6)
    q, k = lib.normal(rng, 2, 3, 9, 10), lib.normal(rng, 2, 2, 9, 10)
    want = exact(q, **HOW[how]), exact(k, **HOW[how])
    big = lib.of_library(library, np.zeros((4, 3, 18, 20), np.float32))
    out = big[:2, :, ::2, :10], big[2:, :2, :9, ::2]
    q2, k2 = lib.of_library(library, q.copy()), lib.of_library(library, k.copy())
    got = rope(q2, k2, out=out, **HOW[how])
    assert all(one is two for one, two in zip(got, out, strict=True))
    got = (*got, *rope(q2, k2, inplace=True, **HOW[how]))
    assert got[2] is q2
    for one, x in zip(got, (*want, *want), strict=True):
        lib.close(one, x, ts.f32, 20)


def test_inputs_of_any_strides():
    base = np.random.default_rng(7).standard_normal((4, 6, 8, 10)).astype(np.float32)
    for x in (base.T, base[::2, 1:, ::3, :4], base[..., ::-1], base[:, ::-1], np.broadcast_to(base[0], (4, 6, 8, 10))):
        lib.close(rope(x), exact(x), ts.f32, 20)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    q, k = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 8, requires_grad=True)
    grads = torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8)
    torch.autograd.backward(rope(q, k), grads)
    for one, grad in zip((q, k), grads, strict=True):
        back = exact(grad.numpy(), -np.arange(5))
        assert np.allclose(one.grad.numpy(), back, atol=1e-5)
    q.grad = k.grad = None
    rope(q, k)[1].sum().backward()  # nothing depends on the queries
    assert not q.grad.any()
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        rope(q, k, inplace=True)


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    q, k = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 8, requires_grad=True)
    given = (q, k, torch.arange(5)[None], None, None, 1e4, 3, False, True)
    torch.library.opcheck(torch.ops.tessera.rope.default, given)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    @torch.compile(backend="aot_eager", fullgraph=True)
    def both(q, k):
        q, k = rope(q, k, layout="bshd", positions=torch.arange(5))
        return q.sum() + (k * k).sum()

    q, k = torch.randn(2, 5, 4, 8, requires_grad=True), torch.randn(2, 5, 1, 8, requires_grad=True)
    both(q, k).backward()
    assert torch.allclose(k.grad, 2 * k, atol=1e-4)


X, I = np.zeros((2, 3, 4, 6), np.float32), np.zeros(4, np.int64)  # noqa: E741
TABLE = np.zeros((4, 3), np.float32)
WRONG = {
    "not-an-array": lambda: rope(3),
    "not-an-array for keys": lambda: rope(X, 3),
    "wrong-rank": lambda: rope(X[0]),
    "wrong-shape of keys": lambda: rope(X, X[:1]),
    "wrong-shape of positions": lambda: rope(X, positions=I[:3]),
    "wrong-shape of tables": lambda: rope(X, cos=TABLE[:, :2], sin=TABLE[:, :2]),
    "wrong-shape of out": lambda: rope(X, out=X[:1]),
    "wrong-dtype": lambda: rope(X.astype(np.int32)),
    "wrong-dtype of keys": lambda: rope(X, X.astype(np.float64)),
    "wrong-dtype of positions": lambda: rope(X, positions=TABLE[:, 0]),
    "wrong-dtype of tables": lambda: rope(X, cos=TABLE.astype(np.float16), sin=TABLE),
    "bad-argument rotary_dim": lambda: rope(X, rotary_dim=3),
    "bad-argument rotary_dim too large": lambda: rope(X, rotary_dim=8),
    "bad-argument base": lambda: rope(X, base=-1.0),
    "bad-argument layout": lambda: rope(X, layout="sbhd"),
    "bad-argument one table": lambda: rope(X, cos=TABLE),
    "bad-argument tables and positions": lambda: rope(X, cos=TABLE, sin=TABLE, positions=I),
    "bad-argument out": lambda: rope(X, X, out=X),
    "bad-argument inplace and out": lambda: rope(X, out=X, inplace=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_rope.py" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("sm_80", {}),
        ("sm_90a", {"interleaved": True}),
        ("sm_80", {"tables": True}),
        ("sm_90a", {"rotary_dim": 64}),
    ],
    ids=str,
)
def test_kernels_compile_without_a_device(target, given):
    assert lib.spills(rope.compile(128, ts.bf16, target=target, **given)) == 0


def test_costs():
    assert rope.bytes((1, 2, 3, 4), ts.bf16) == 96
    assert rope.flops((1, 2, 3, 4)) == 72
