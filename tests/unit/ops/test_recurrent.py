"""State space models and linear attention against the recurrence in float64, and what GPUs would compute, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.recurrent import chunk_kernels as kernels
from tessera.ops.recurrent.chunk_steps import Chunks
from tessera.target.registry import target_named
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated


def operands(rng, shape=(2, 150, 4, 2, 24, 20), dtype=ts.f32, strength=1.0):
    """Return what `ssd` takes of sizes (B, L, H, G, N, P), and a gradient of its result."""
    b, length, h, g, n, p = shape
    x, grad = (lib.normal(rng, b, length, h, p, dtype=dtype) for _ in range(2))
    keys, queries = (lib.normal(rng, b, length, g, n, dtype=dtype, scale=n**-0.5) for _ in range(2))
    dt = np.exp(lib.normal(rng, b, length, h, shift=-1.0))
    a = -strength * np.exp(lib.normal(rng, h))
    return {
        "x": x,
        "dt": dt,
        "a": a,
        "b": keys,
        "c": queries,
        "d": lib.normal(rng, h),
        "initial_state": lib.normal(rng, b, h, p, n),
    }, grad


def by_torch(x, dt, a, b, c, d, initial_state, grad, grad_state):
    """Return result, last state and gradients of the recurrence in float64."""
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, dt, a, b, c, d, initial_state)]
    x, dt, a, b, c, d, state = given
    keys, queries = (one.repeat_interleave(x.shape[2] // b.shape[2], 2) for one in (b, c))
    found = []
    for t in range(x.shape[1]):
        added = dt[:, t, :, None, None] * x[:, t, :, :, None] * keys[:, t, :, None, :]
        state = torch.exp(dt[:, t] * a)[..., None, None] * state + added
        found.append((state * queries[:, t, :, None, :]).sum(-1) + d[:, None] * x[:, t])
    out = torch.stack(found, 1)
    ends = (out * torch.from_numpy(grad.astype(np.float64))).sum() + (state * torch.from_numpy(grad_state)).sum()
    ends.backward()
    return out.detach().numpy(), state.detach().numpy(), [one.grad.numpy() for one in given]


SHAPES = [(2, 150, 4, 2, 24, 20), (1, 65, 1, 1, 130, 70)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(shape):
    given, grad = operands(np.random.default_rng(0), shape)
    of_state = np.random.default_rng(1).standard_normal(given["initial_state"].shape)
    out, last, slopes = by_torch(**given, grad=grad, grad_state=of_state)
    found, state = op.ssd(**given, return_state=True)
    lib.close(found, out, ts.f32, 16)
    lib.close(state, last, ts.f32, 16)
    exact = op.ssd.reference(**given, return_state=True)
    assert all(np.allclose(one, want) for one, want in zip(exact, (out, last), strict=True))
    made = op.ssd.backward(grad, **given, grad_state=of_state.astype(np.float32))
    assert list(made) == list(given)
    for (name, one), want in zip(made.items(), slopes, strict=True):
        lib.close(one, want, ts.f32, 512 if name in ("dt", "a") else 32)


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16], ids=str)
def test_narrow_dtypes(dtype):
    given, grad = operands(np.random.default_rng(2), dtype=dtype)
    narrow = {name: one if name == "initial_state" else one.astype(dtype.numpy()) for name, one in given.items()}
    out, last, slopes = by_torch(**narrow, grad=grad, grad_state=np.zeros(given["initial_state"].shape))
    found, state = op.ssd(**narrow, return_state=True)
    lib.close(found, out, dtype, 8)
    lib.close(state, last, dtype, 8)
    for (name, one), want in zip(op.ssd.backward(grad, **narrow).items(), slopes, strict=True):
        assert one.dtype == narrow[name].dtype
        lib.close(one, want, dtype, 16)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    given, grad = operands(np.random.default_rng(7))
    ours = {name: torch.from_numpy(one).requires_grad_(name != "c") for name, one in given.items()}
    found, last = op.ssd(**ours, return_state=True)
    out, _, slopes = by_torch(**given, grad=grad, grad_state=np.ones(last.shape))
    lib.close(found, out, ts.f32, 16)
    ((found * torch.from_numpy(grad)).sum() + last.sum()).backward()
    assert ours.pop("c").grad is None
    for one, want in zip(ours.values(), slopes[:4] + slopes[5:], strict=True):
        lib.close(one.grad, want, ts.f32, 64)


@pytest.mark.parametrize("strength", [0.0, 1e4])
def test_strong_and_weak_decays(strength):
    given, grad = operands(np.random.default_rng(3), (1, 700, 4, 2, 24, 20), strength=strength)
    found, state = op.ssd(**given, return_state=True)
    out, last = op.ssd.reference(**given, return_state=True)
    lib.close(found, out, ts.f32, 64)
    lib.close(state, last, ts.f32, 64)
    assert all(np.isfinite(one).all() for one in op.ssd.backward(grad, **given).values())


def test_two_halves_are_the_whole():
    given, _ = operands(np.random.default_rng(4), (2, 200, 4, 2, 24, 20))
    out, last = op.ssd(**given, return_state=True)
    state, found = given.pop("initial_state"), []
    for part in (slice(0, 77), slice(77, 77), slice(77, 200)):
        cut = {name: one[:, part] if one.ndim > 1 else one for name, one in given.items()}
        piece, state = op.ssd(**cut, initial_state=state, return_state=True)
        found.append(piece)
    lib.close(np.concatenate(found, 1), out, ts.f32, 16)
    lib.close(state, last, ts.f32, 16)


@pytest.mark.parametrize("shape", [(0, 5, 4, 2, 24, 20), (2, 0, 4, 2, 24, 20), (2, 5, 0, 2, 24, 20)], ids=str)
def test_empty_arrays(shape):
    given, grad = operands(np.random.default_rng(5), shape)
    found, state = op.ssd(**given, return_state=True)
    assert found.shape == grad.shape
    assert np.array_equal(state, given["initial_state"])
    ahead = np.ones(state.shape, np.float32)
    made = op.ssd.backward(grad, **given, grad_state=ahead)
    assert np.array_equal(made["initial_state"], ahead)
    assert not any(made[name].any() for name in "xabcd")


def test_linear_attention():
    rng = np.random.default_rng(6)
    given, grad = operands(rng)
    q, k, v, state = given["c"], given["b"], given["x"], given["initial_state"].swapaxes(2, 3).copy()
    g = -np.exp(lib.normal(rng, *v.shape[:3], shift=-2.0))
    ahead = lib.normal(rng, *state.shape, dtype=ts.f64)
    torch = pytest.importorskip("torch")
    wide = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (q, k, v, g, state)]
    queries, keys = (one.repeat_interleave(2, 2) for one in wide[:2])
    last, found = wide[4], []
    for t in range(v.shape[1]):
        last = torch.exp(wide[3][:, t])[..., None, None] * last + keys[:, t, :, :, None] * wide[2][:, t, :, None, :]
        found.append(torch.einsum("bhn,bhnp->bhp", queries[:, t], last) * 24**-0.5)
    exact = torch.stack(found, 1)
    ((exact * torch.from_numpy(grad)).sum() + (last * torch.from_numpy(ahead)).sum()).backward()
    ours = [torch.from_numpy(one).requires_grad_() for one in (q, k, v, g, state)]
    out, end = op.linear_attention(*ours[:4], initial_state=ours[4], return_state=True)
    lib.close(out, exact.detach().numpy(), ts.f32, 16)
    lib.close(end, last.detach().numpy(), ts.f32, 16)
    assert np.allclose(op.linear_attention.reference(q, k, v, g, initial_state=state), exact.detach().numpy())
    ((out * torch.from_numpy(grad)).sum() + (end * torch.from_numpy(ahead.astype(np.float32))).sum()).backward()
    made = op.linear_attention.backward(grad, q, k, v, g, initial_state=state, grad_state=ahead.astype(np.float32))
    for one, other, want in zip(ours, made.values(), wide, strict=True):
        lib.close(one.grad, want.grad.numpy(), ts.f32, 128)
        assert np.array_equal(one.grad.numpy(), other)


def test_gradients_of_the_last_state_alone():
    torch = pytest.importorskip("torch")
    given, grad = operands(np.random.default_rng(7), (2, 70, 4, 2, 24, 20))
    ours = {name: torch.from_numpy(one).requires_grad_(name != "c") for name, one in given.items()}
    op.ssd(**ours, return_state=True)[1].sum().backward()
    _, _, slopes = by_torch(**given, grad=0 * grad, grad_state=np.ones(given["initial_state"].shape))
    for (name, one), want in zip(ours.items(), slopes, strict=True):
        if name == "c":
            assert one.grad is None
        else:
            lib.close(one.grad, want, ts.f32, 128)


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    given, _ = operands(np.random.default_rng(8))
    x, dt, a, b, c, d, state = (torch.from_numpy(one).requires_grad_() for one in given.values())
    torch.library.opcheck(torch.ops.tessera.decayed_recurrence.default, (c, b, x, dt, a, d, state, 1.0))


@pytest.mark.parametrize("target", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
def test_what_gpus_would_compute(target):
    shape = (1, 150, 2, 1, 32, 32)
    given, grad = operands(np.random.default_rng(9), shape, ts.f16)
    of_state = np.zeros(given["initial_state"].shape)
    out, last, slopes = by_torch(**given, grad=grad, grad_state=of_state)
    x, dt, a, b, c, d, state = given.values()
    sizes = dict(zip("BLHGNP", shape, strict=True))
    options = {"T": ts.f16, "Q": 64}
    blocks = {"BN": 32, "BP": 32}
    before, after = (np.full((1, 3, 2, 32, 32), np.nan, np.float16) for _ in range(2))
    end, start = (np.full(last.shape, np.nan, np.float32) for _ in range(2))
    arrays = [b, x, dt, a, state, before, end]
    emulated(kernels.states, target, arrays, sizes, (1.0,), turned=True, reverse=False, **options, **blocks)
    lib.close(end, last, ts.f16, 4)
    found = np.full(out.shape, np.nan, np.float16)
    emulated(kernels.outputs, target, [c, b, x, dt, a, d, before, found], sizes, (1.0,), **options, BP=32)
    lib.close(found, out, ts.f16, 4)
    arrays = [c, grad, dt, a, after, start]
    emulated(
        kernels.states, target, arrays, sizes, (1.0,), initial=None, turned=True, reverse=True, **options, **blocks
    )
    lib.close(start, slopes[6], ts.f16, 8)
    made = [np.full(one.shape, np.nan, one.dtype) for one in (x, dt, b, c)]
    parts = [np.full((1, 3, 2), np.nan, np.float32) for _ in range(2)]
    common = [grad, c, b, x, dt, a]
    emulated(
        kernels.value_gradients, target, [*common, d, before, after, *made[:2], *parts], sizes, (1.0,), **options, BP=32
    )
    arrays = [*common, before, after, made[3], made[2]]
    emulated(kernels.key_gradients, target, arrays, sizes, (1.0,), **options, BN=32, BP=32)
    for one, want in zip((*made[:2], parts[0].sum((0, 1)), *made[2:]), slopes, strict=False):
        lib.close(one, want, ts.f16, 16)
    lib.close(parts[1].sum((0, 1)), slopes[5], ts.f16, 8)


X = np.zeros((1, 3, 2, 8), np.float32)
DT, A = np.ones((1, 3, 2), np.float32), -np.ones(2, np.float32)
WRONG = {
    "not-an-array": lambda: op.ssd(3, DT, A, X, X),
    "wrong-rank": lambda: op.ssd(X[0], DT, A, X, X),
    "wrong-rank of steps": lambda: op.ssd(X, DT[0], A, X, X),
    "wrong-shape of steps": lambda: op.ssd(X, DT[:, :2], A, X, X),
    "wrong-shape of rates": lambda: op.ssd(X, DT, A[:1], X, X),
    "wrong-shape of b": lambda: op.ssd(X, DT, A, X[:, :2], X),
    "wrong-shape of heads": lambda: op.ssd(X, DT, A, *[np.repeat(X, 2, 2)[:, :, :3]] * 2),
    "wrong-shape of d": lambda: op.ssd(X, DT, A, X, X, d=DT),
    "wrong-shape of the state": lambda: op.ssd(X, DT, A, X, X, initial_state=X),
    "wrong-shape, empty heads": lambda: op.ssd(X, DT, A, X[..., :0], X[..., :0]),
    "wrong-shape of grad": lambda: op.ssd.backward(X[..., :4], X, DT, A, X, X),
    "wrong-dtype": lambda: op.ssd(X.astype(np.float64), DT, A, X, X),
    "wrong-dtype of b": lambda: op.ssd(X, DT, A, X.astype(np.float16), X),
    "wrong-dtype of steps": lambda: op.ssd(X, DT.astype(np.int32), A, X, X),
    "wrong-dtype of the state": lambda: op.ssd(X, DT, A, X, X, initial_state=np.zeros((1, 2, 8, 8))),
    "wrong-shape of decays": lambda: op.linear_attention(X, X, X, DT[:, :2]),
    "bad-argument": lambda: op.linear_attention(X, X, X, DT, scale="small"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_recurrent.py" in str(caught.value)


COMPILED = {
    "states sm_90a": lambda: op.ssd.compile(64, 128, part="states", target="sm_90a"),
    "outputs sm_90a": lambda: op.ssd.compile(64, 128, target="sm_90a"),
    "outputs sm_80": lambda: op.linear_attention.compile(64, target="sm_80"),
    "states sm_86": lambda: op.linear_attention.compile(128, part="states", target="sm_86"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_without_a_device(name):
    assert lib.spills(COMPILED[name]()) <= 16


@pytest.mark.parametrize("head", [(16, 16), (128, 64), (256, 64), (128, 256)], ids=str)
@pytest.mark.parametrize("target", ["sm_75", "sm_86", "sm_90a"])
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)
def test_chunks_fit_shared_memory(target, head, dtype):
    record = target_named(target)
    chunks, key = Chunks(record, dtype, *head), head[0]
    part = chunks.blocks()["BP"]
    wide = chunks.gradient_part()
    for steps, each, kept in (
        (chunks.forward(), 2 * key + part, key * part),
        (chunks.gradients(), 2 * key + 4 * wide, 2 * key * wide),
    ):
        assert (steps * each + kept) * dtype.bytes <= record.shared_bytes or steps == 16


def test_costs():
    assert op.ssd.flops((1, 3, 2, 8), (1, 3, 1, 5)) == 4 * 48 * 5
    assert op.ssd.bytes((1, 3, 2, 8), (1, 3, 1, 5), ts.bf16) == (2 * 48 + 2 * 15) * 2 + 4 * 6
    assert op.linear_attention.flops((1, 3, 2, 8), (1, 3, 2, 4)) == 4 * 24 * 8
    assert op.linear_attention.bytes((1, 3, 2, 8), (1, 3, 2, 4), ts.bf16) == 2 * (48 + 24) * 2 + 4 * 6
