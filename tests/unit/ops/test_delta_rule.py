"""The gated delta rule against the recurrence in float64, and what GPUs would compute, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.recurrent import chunk_kernels, delta_kernels
from tessera.ops.recurrent.delta_steps import DeltaChunks
from tessera.target.registry import target_named
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

rule = op.gated_delta_rule


def operands(rng, shape=(2, 150, 4, 2, 24, 20), dtype=ts.f32, shift=-2.0):
    """Return queries, keys, values, decays, strengths and a state of sizes (B, L, H, G, D, E)."""
    b, length, h, g, d, e = shape
    q, k = (rng.standard_normal((b, length, g, d)) for _ in range(2))
    k /= np.linalg.norm(k, axis=3, keepdims=True)
    decays = -np.exp(lib.normal(rng, b, length, h, shift=shift))
    strengths = rng.random((b, length, h)).astype(np.float32)
    made = (q.astype(dtype.numpy()), k.astype(dtype.numpy()), lib.normal(rng, b, length, h, e, dtype=dtype))
    return *made, decays, strengths, lib.normal(rng, b, h, d, e)


def by_torch(q, k, v, g, beta, state):
    """Return result and last state in float64, by matrices that act on states."""
    torch = pytest.importorskip("torch")
    q, k, v, g, beta, state = (torch.from_numpy(one.astype(np.float64)) for one in (q, k, v, g, beta, state))
    q, k = (one.repeat_interleave(v.shape[2] // q.shape[2], 2) for one in (q, k))
    found = []
    for t in range(v.shape[1]):
        key = k[:, t, :, :, None]
        strength = beta[:, t, :, None, None]
        turn = torch.eye(key.shape[2], dtype=torch.float64) - strength * key @ key.transpose(2, 3)
        state = torch.exp(g[:, t])[..., None, None] * turn @ state + strength * key @ v[:, t, :, None, :]
        found.append(q.shape[3] ** -0.5 * (q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(found, 1).numpy(), state.numpy()


@pytest.mark.parametrize("shape", [(2, 150, 4, 2, 24, 20), (1, 1, 3, 3, 5, 3), (1, 129, 1, 1, 130, 70)], ids=str)
def test_results(shape):
    *given, state = operands(np.random.default_rng(0), shape)
    out, last = by_torch(*given, state)
    found, end = rule(*given, initial_state=state, return_state=True)
    lib.close(found, out, ts.f32, 16)
    lib.close(end, last, ts.f32, 16)
    exact = rule.reference(*given, initial_state=state, return_state=True)
    assert all(np.allclose(one, want) for one, want in zip(exact, (out, last), strict=True))


@pytest.mark.parametrize(("library", "dtype"), [("numpy", ts.bf16), ("torch", ts.f16)], ids=str)
def test_narrow_dtypes(library, dtype):
    *given, state = operands(np.random.default_rng(1), dtype=dtype)
    given[3:] = [one.astype(dtype.numpy()) for one in given[3:]]
    out, last = by_torch(*given, state)
    ours = [lib.of_library(library, one) for one in (*given, state)]
    found, end = rule(*ours[:5], initial_state=ours[5], return_state=True)
    lib.close(found, out, dtype, 8)
    lib.close(end, last, dtype, 8)


@pytest.mark.parametrize("shift", [-20.0, 4.0])
def test_equal_keys_and_strong_and_weak_decays(shift):
    """Powers of the matrix of a chunk of equal keys have elements beyond 1e17, its inverse has none above 1."""
    q, k, v, g, beta, state = operands(np.random.default_rng(2), (2, 300, 4, 2, 24, 20), shift=shift)
    k[:, 20:250], beta[:, 20:250] = k[:, 20:21], 1.0
    found = rule(q, k, v, g, beta, initial_state=state)
    lib.close(found, by_torch(q, k, v, g, beta, state)[0], ts.f32, 64)


def test_two_halves_are_the_whole():
    *given, state = operands(np.random.default_rng(3))
    out, last = rule(*given, initial_state=state, return_state=True)
    found = []
    for part in (slice(0, 77), slice(77, 77), slice(77, 150)):
        piece, state = rule(*(one[:, part] for one in given), initial_state=state, return_state=True)
        found.append(piece)
    lib.close(np.concatenate(found, 1), out, ts.f32, 16)
    lib.close(state, last, ts.f32, 16)


@pytest.mark.parametrize("shape", [(0, 5, 4, 2, 24, 20), (2, 0, 4, 2, 24, 20), (2, 5, 0, 2, 24, 20)], ids=str)
def test_empty_arrays(shape):
    *given, state = operands(np.random.default_rng(4), shape)
    found, end = rule(*given, initial_state=state, return_state=True)
    assert found.shape == given[2].shape
    assert np.array_equal(end, state)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_gpus_would_compute(target):
    shape = (1, 150, 2, 1, 32, 32)
    q, k, v, g, beta, state = operands(np.random.default_rng(5), shape, ts.f16)
    out, last = by_torch(q, k, v, g, beta, state)
    sizes = dict(zip("BLHGNP", shape, strict=True))
    keys, values, written, found = (np.full(v.shape, np.nan, np.float16) for _ in range(4))
    before, end = np.full((1, 3, 2, 32, 32), np.nan, np.float16), np.full(last.shape, np.nan, np.float32)
    options = {"T": ts.f16, "Q": 64}
    arrays = [k, v, g, beta, keys, values]
    emulated(delta_kernels.factors, target, arrays, sizes, (), is_narrow=True, **options)
    arrays = [k, g, keys, values, state, before, written, end]
    emulated(delta_kernels.states, target, arrays, sizes, (), **options, BP=32)
    lib.close(end, last, ts.f16, 8)
    arrays = [q, k, written, g, before, found]
    emulated(chunk_kernels.outputs, target, arrays, sizes, (32**-0.5,), factor=None, skip=None, **options, BP=32)
    lib.close(found, out, ts.f16, 8)


X, G = np.zeros((1, 3, 2, 8), np.float32), np.zeros((1, 3, 2), np.float32)
WRONG = {
    "not-an-array": lambda: rule(3, X, X, G, G),
    "wrong-rank": lambda: rule(X[0], X, X, G, G),
    "wrong-rank of decays": lambda: rule(X, X, X, G[0], G),
    "wrong-shape of strengths": lambda: rule(X, X, X, G, G[:, :2]),
    "wrong-shape of keys": lambda: rule(X, X[:, :2], X, G, G),
    "wrong-shape of the state": lambda: rule(X, X, X, G, G, initial_state=X),
    "wrong-dtype": lambda: rule(X.astype(np.float64), X, X, G, G),
    "wrong-dtype of strengths": lambda: rule(X, X, X, G, G.astype(np.int32)),
    "bad-argument": lambda: rule(X, X, X, G, G, scale="small"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_delta_rule.py" in str(caught.value)


def test_gradients_that_are_not_there():
    torch = pytest.importorskip("torch")
    x, g = torch.zeros(1, 3, 2, 8, requires_grad=True), torch.zeros(1, 3, 2)
    with pytest.raises(ts.errors.CallError, match="no-gradient"):
        rule(x, x, x, g, g)
    with torch.no_grad():
        assert not rule(x, x, x, g, g).any()


@pytest.mark.parametrize(("part", "target"), [("factors", "sm_90a"), ("states", "sm_90a"), ("outputs", "sm_80")])
def test_kernels_compile_without_a_device(part, target):
    assert lib.spills(rule.compile(128, part=part, target=target)) < 128


@pytest.mark.parametrize("head", [(128, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("target", ["sm_75", "sm_86", "sm_90a"])
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)
def test_chunks_fit_shared_memory(target, head, dtype):
    record = target_named(target)
    chunks = DeltaChunks(record, dtype, *head)
    steps, part = chunks.steps(), chunks.part()
    held = (steps * (2 * head[0] + part) + head[0] * part) * dtype.bytes
    assert steps == 16 or max(held, 16 * steps * steps + steps * sum(head) * dtype.bytes) < record.shared_bytes


def test_costs():
    assert rule.flops((1, 3, 2, 4), (1, 3, 2, 8)) == 6 * 48 * 4
    assert rule.bytes((1, 3, 2, 4), (1, 3, 2, 8), ts.bf16) == 2 * (24 + 48) * 2 + 8 * 6
