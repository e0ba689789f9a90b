"""Gated linear recurrences against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

scan = op.scan


def exact(gate, x):
    """The recurrence, step by step."""
    gate, x = gate.astype(np.float64), x.astype(np.float64)
    found, state = np.zeros_like(x), np.zeros_like(x[:, 0]) if x.shape[1] else None
    for t in range(x.shape[1]):
        state = gate[:, t] * state + x[:, t]
        found[:, t] = state
    return found


def gates(rng, *shape, dtype=ts.f32):
    """Return gates between -1 and 1, most near 1."""
    return np.tanh(rng.standard_normal(shape) + 2).astype(dtype.numpy())


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 200, 33), (3, 64, 33), (0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_shapes(library, shape):
    rng = np.random.default_rng(1)
    a, x = gates(rng, *shape), lib.normal(rng, *shape)
    a2, x2 = lib.of_library(library, a), lib.of_library(library, x)
    lib.close(scan(a2, x2), exact(a, x), ts.f32, 8)
    assert np.allclose(scan.reference(a2, x2), exact(a, x))
    assert [tuple(one.shape) for one in scan.backward(x2, a2, x2).values()] == [shape, shape]


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes_results_and_gradients(dtype):
    rng = np.random.default_rng(2)
    a, x, grad = gates(rng, 2, 150, 33, dtype=dtype), *(lib.normal(rng, 2, 150, 33, dtype=dtype) for _ in range(2))
    h = scan(a, x)
    lib.close(h, exact(a, x), dtype, 4)
    found = scan.backward(grad, a, x, h)
    wide = a.astype(np.float64)
    shifted = np.concatenate([wide[:, 1:], 0 * wide[:, :1]], 1)
    g = exact(shifted[:, ::-1], grad[:, ::-1])[:, ::-1]
    before = np.concatenate([0 * wide[:, :1], h[:, :-1].astype(np.float64)], 1)
    lib.close(found["x"], g, dtype, 4)
    lib.close(found["gate"], g * before, dtype, 4)


def test_gradients_are_finite_differences():
    rng = np.random.default_rng(3)
    at = {"gate": rng.standard_normal((2, 5, 2)), "x": rng.standard_normal((2, 5, 2))}
    grad = rng.standard_normal((2, 5, 2))
    found = scan.backward(grad, **at)
    for one, slope in lib.differences(lambda given: float((scan(**given) * grad).sum()), at).items():
        assert np.allclose(found[one], slope, atol=1e-7), one


def test_any_strides_and_results_in_given_arrays():
    base = np.random.default_rng(4).uniform(-1, 1, (8, 10, 8)).astype(np.float32)
    for x in (base.T, base[:, ::-2, ::3], np.broadcast_to(base[0], (8, 10, 8))):
        lib.close(scan(x, x), exact(x, x), ts.f32, 8)
    out = np.zeros((8, 20, 8), np.float32)[:, ::2]
    assert scan(base, base, out=out) is out
    lib.close(out, exact(base, base), ts.f32, 8)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    a, x = torch.rand(2, 7, 3, requires_grad=True), torch.randn(2, 7, 3, requires_grad=True)
    scan(a, x).square().sum().backward()
    found, a.grad, x.grad = (a.grad, x.grad), None, None
    states = [x[:, 0]]
    for t in range(1, 7):
        states.append(a[:, t] * states[-1] + x[:, t])
    torch.stack(states, 1).square().sum().backward()
    assert torch.allclose(found[0], a.grad, atol=1e-5)
    assert torch.allclose(found[1], x.grad, atol=1e-5)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        scan(a, x, out=torch.empty(2, 7, 3))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    given = torch.rand(2, 7, 3, requires_grad=True), torch.randn(2, 7, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.tessera.scan.default, given)


X = np.zeros((2, 3, 9), np.float32)
WRONG = {
    "not-an-array": lambda: scan(3, X),
    "wrong-rank": lambda: scan(X[0], X[0]),
    "wrong-shape": lambda: scan(X[:1], X),
    "wrong-shape of out": lambda: scan(X, X, out=X[:1]),
    "wrong-shape of a gradient": lambda: scan.backward(X[:1], X, X),
    "wrong-dtype": lambda: scan(X.astype(np.int32), X.astype(np.int32)),
    "wrong-dtype of gates": lambda: scan(X.astype(np.float64), X),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_scan.py" in str(caught.value)


@pytest.mark.parametrize(("gradient", "target"), [(False, "sm_90a"), (True, "sm_80")])
def test_kernels_compile_without_a_device(target, gradient):
    assert lib.spills(scan.compile(2048, ts.bf16, gradient=gradient, target=target)) == 0


def test_costs():
    assert (scan.bytes((1, 2, 3), ts.bf16), scan.flops((1, 2, 3))) == (36, 12)
