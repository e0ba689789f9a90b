"""The gated delta rule and its gradients against the recurrence in float64, and what GPUs would compute, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.recurrent import chunk_kernels
from tessera.ops.recurrent import delta_kernels as kernels
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


def by_torch(q, k, v, g, beta, state, grad=None, grad_state=None):
    """Return result and last state in float64, by matrices that act on states, and gradients."""
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (q, k, v, g, beta, state)]
    q, k, v, g, beta, state = given
    q, k = (one.repeat_interleave(v.shape[2] // q.shape[2], 2) for one in (q, k))
    found = []
    for t in range(v.shape[1]):
        key = k[:, t, :, :, None]
        strength = beta[:, t, :, None, None]
        turn = torch.eye(key.shape[2], dtype=torch.float64) - strength * key @ key.transpose(2, 3)
        state = torch.exp(g[:, t])[..., None, None] * turn @ state + strength * key @ v[:, t, :, None, :]
        found.append(q.shape[3] ** -0.5 * (q[:, t, :, None, :] @ state)[:, :, 0])
    out = torch.stack(found, 1)
    slopes = [np.ones(out.shape) if grad is None else grad, np.zeros(state.shape) if grad_state is None else grad_state]
    sums = [
        (one * torch.from_numpy(slope.astype(np.float64))).sum()
        for one, slope in zip((out, state), slopes, strict=True)
    ]
    made = torch.autograd.grad(sum(sums), given)
    return out.detach().numpy(), state.detach().numpy(), [one.numpy() for one in made]


@pytest.mark.parametrize("shape", [(2, 150, 4, 2, 24, 20), (1, 65, 1, 1, 130, 70)], ids=str)
def test_results_and_gradients(shape):
    rng = np.random.default_rng(0)
    given = operands(rng, shape)
    given[4][:, :3] = 0.0
    grad, ahead = lib.normal(rng, *given[2].shape), lib.normal(rng, *given[5].shape)
    out, last, slopes = by_torch(*given, grad, ahead)
    options = {"initial_state": given[5]}
    found, end = rule(*given[:5], **options, return_state=True)
    lib.close(found, out, ts.f32, 16)
    lib.close(end, last, ts.f32, 16)
    exact = rule.reference(*given[:5], **options, return_state=True)
    assert all(np.allclose(one, want) for one, want in zip(exact, (out, last), strict=True))
    made = rule.backward(grad, *given[:5], **options, grad_state=ahead)
    assert list(made) == ["q", "k", "v", "g", "beta", "initial_state"]
    for one, want in zip(made.values(), slopes, strict=True):
        lib.close(one, want, ts.f32, 64)


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    ours = [torch.from_numpy(one).requires_grad_() for one in operands(np.random.default_rng(7))]
    torch.library.opcheck(torch.ops.tessera.gated_delta_rule.default, (*ours, 24**-0.5))


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16], ids=str)
def test_narrow_dtypes(dtype):
    rng = np.random.default_rng(1)
    given = [one.astype(dtype.numpy()) for one in operands(rng)[:5]]
    state, grad = lib.normal(rng, 2, 4, 24, 20), lib.normal(rng, *given[2].shape, dtype=dtype)
    out, last, slopes = by_torch(*given, state, grad)
    found, end = rule(*given, initial_state=state, return_state=True)
    lib.close(found, out, dtype, 8)
    lib.close(end, last, dtype, 8)
    made = rule.backward(grad, *given, initial_state=state)
    for one, array, want in zip(made.values(), (*given, state), slopes, strict=True):
        assert one.dtype == array.dtype
        lib.close(one, want, dtype, 16)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    given = operands(np.random.default_rng(6))
    ours = [torch.from_numpy(one).requires_grad_() for one in given]
    out, _, slopes = by_torch(*given)
    found = rule(*ours[:5], initial_state=ours[5])
    lib.close(found, out, ts.f32, 16)
    found.sum().backward()
    for one, want in zip(ours, slopes, strict=True):
        lib.close(one.grad, want, ts.f32, 64)


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
    made = rule.backward(given[2], *given, initial_state=state, grad_state=state)
    assert np.array_equal(made.pop("initial_state"), state)
    assert not any(one.any() for one in made.values())


@pytest.mark.parametrize("target", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
def test_what_gpus_would_compute(target):
    shape = (1, 100, 2, 1, 32, 32)
    rng = np.random.default_rng(5)
    q, k, v, g, beta, state = operands(rng, shape, ts.f16)
    grad = lib.normal(rng, *v.shape, dtype=ts.f16)
    out, last, slopes = by_torch(q, k, v, g, beta, state, grad)
    sizes, scale = dict(zip("BLHGNP", shape, strict=True)), (32**-0.5,)
    keys, values, written, found, of_written, solved = (np.full(v.shape, np.nan, np.float16) for _ in range(6))
    before, after = (np.full((1, 4, 2, 32, 32), np.nan, np.float16) for _ in range(2))
    end, start = (np.full(last.shape, np.nan, np.float32) for _ in range(2))
    options = {"T": ts.f16, "Q": 32}
    emulated(kernels.factors, target, [k, v, g, beta, keys, values], sizes, (), is_narrow=True, **options)
    arrays = [k, g, keys, values, state, before, written, end]
    emulated(kernels.states, target, arrays, sizes, (), **options, BP=32)
    lib.close(end, last, ts.f16, 8)
    arrays = [q, k, written, g, before, found]
    emulated(chunk_kernels.outputs, target, arrays, sizes, scale, factor=None, skip=None, **options, BP=32)
    lib.close(found, out, ts.f16, 8)
    arrays = [grad, q, k, g, keys, after, of_written, start]
    emulated(kernels.state_gradients, target, arrays, sizes, scale, last=None, **options, BP=32)
    made = [np.full(one.shape, np.nan, one.dtype) for one in (q, k, v, g, beta)]
    arrays = [grad, q, k, v, g, beta, written, of_written, before, after, solved, *made[2:]]
    emulated(kernels.value_gradients, target, arrays, sizes, scale, is_narrow=True, **options, BP=32)
    arrays = [grad, q, k, g, beta, written, solved, before, after, *made[:2]]
    emulated(kernels.key_gradients, target, arrays, sizes, scale, **options, BN=32, BP=32)
    for one, want in zip((*made, start), slopes, strict=True):
        lib.close(one, want, ts.f16, 16)


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
    narrow = chunks.gradient_steps()
    assert narrow <= steps
    read = (3 * narrow * head[0] + 2 * head[0] * chunks.gradient_part()) * dtype.bytes
    assert narrow == 16 or read < record.shared_bytes


def test_costs():
    assert rule.flops((1, 3, 2, 4), (1, 3, 2, 8)) == 6 * 48 * 4
    assert rule.bytes((1, 3, 2, 4), (1, 3, 2, 8), ts.bf16) == 2 * (24 + 48) * 2 + 8 * 6
