"""Hadamard transforms against the matrix, built by Sylvester's rule; gradients; what GPUs would compute."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.transforms import kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated


def matrix(size):
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found


ROWS = [((3, 5, 64), dtype, library) for dtype in lib.FLOATS for library in lib.LIBRARIES]
ROWS += [(shape, ts.f32, "numpy") for shape in ((7, 1), (1, 2048), (0, 8), (16,))]


@pytest.mark.parametrize(("shape", "dtype", "library"), ROWS, ids=str)
def test_rows(shape, dtype, library):
    rng = np.random.default_rng(0)
    x = lib.normal(rng, *shape, dtype=dtype)
    signs = np.sign(lib.normal(rng, shape[-1], dtype=dtype))
    for given, scale in ((None, None), (signs, 0.25)):
        whole = x.astype(np.float64) * (1.0 if given is None else given.astype(np.float64))
        exact = whole @ matrix(shape[-1]) * (scale or shape[-1] ** -0.5)
        assert np.allclose(op.hadamard.reference(x, signs=given, scale=scale), exact, atol=1e-12)
        ours = lib.of_library(library, x)
        found = op.hadamard(ours, signs=lib.of_library(library, given), scale=scale)
        lib.close(found, exact, dtype, 16)
        goal = lib.of_library(library, np.full_like(x, 7))
        assert op.hadamard(ours, signs=lib.of_library(library, given), scale=scale, out=goal) is goal
        lib.close(goal, exact, dtype, 16)


def test_the_longest_rows():
    x = lib.normal(np.random.default_rng(1), 3, 16384)
    columns = np.array([0, 1, 2, 77, 8191, 8192, 16383])
    odd = np.array([[(row & column).bit_count() % 2 for column in columns.tolist()] for row in range(16384)])
    lib.close(op.hadamard(x)[:, columns], x.astype(np.float64) @ (1.0 - 2.0 * odd) / 128, ts.f32, 16)


def test_twice_is_what_was_and_signs_come_back():
    rng = np.random.default_rng(2)
    x, signs = lib.normal(rng, 9, 256, dtype=ts.f64), np.sign(lib.normal(rng, 256, dtype=ts.f64))
    lib.close(op.hadamard(op.hadamard(x)), x, ts.f64, 16)
    lib.close(op.hadamard.backward(op.hadamard(x, signs=signs), signs=signs)["x"], x, ts.f64, 16)


def test_gradients():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, grad, signs = (lib.normal(rng, *shape, dtype=ts.f64) for shape in ((4, 5, 8), (4, 5, 8), (8,)))
    exact = grad @ matrix(8) * 0.5 * signs
    lib.close(op.hadamard.backward(grad, signs=signs, scale=0.5)["x"], exact, ts.f64, 4)
    tensor = torch.from_numpy(x).requires_grad_()
    op.hadamard(tensor, signs=torch.from_numpy(signs), scale=0.5).backward(torch.from_numpy(grad))
    lib.close(tensor.grad, exact, ts.f64, 4)
    tensor.grad = None
    op.hadamard(tensor, scale=1.0).sum().backward()  # the gradient of a sum has strides of 0
    lib.close(tensor.grad, np.ones((4, 5, 8)) @ matrix(8), ts.f64, 4)
    with pytest.raises(ts.errors.CallError, match="no-gradient"):
        op.hadamard(tensor, signs=torch.ones(8, dtype=torch.float64, requires_grad=True))


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    torch.library.opcheck(torch.ops.tessera.hadamard.default, (torch.randn(5, 32, requires_grad=True), None, 0.25))


def test_strides_and_a_result_in_place():
    rng = np.random.default_rng(4)
    x = lib.normal(rng, 16, 6)
    exact = x.T.astype(np.float64) @ matrix(16) / 4
    lib.close(op.hadamard(x.T), exact, ts.f32, 4)
    columns = np.zeros((16, 6), np.float32)
    op.hadamard(x.T, out=columns.T)
    lib.close(columns.T, exact, ts.f32, 4)
    rows = np.ascontiguousarray(x.T)
    op.hadamard(rows, out=rows)
    lib.close(rows, exact, ts.f32, 4)


@pytest.mark.parametrize(("target", "size"), [("sm_80", 64), ("sm_90a", 512)])
def test_what_gpus_would_compute(target, size):
    rng = np.random.default_rng(5)
    x, signs = lib.normal(rng, 5, size, dtype=ts.f16), np.sign(lib.normal(rng, size))
    found = np.full_like(x, np.nan)
    given = {"T": ts.f16, "S": ts.f32, "after": False, "acc": ts.f32, "R": 4}
    emulated(kernels.transform, target, [x, signs, found], {"M": 5, "N": size}, (size**-0.5,), **given)
    lib.close(found, x.astype(np.float64) * signs @ matrix(size) * size**-0.5, ts.f16, 4)


X = np.zeros((3, 8), np.float32)
WRONG = {
    "not-an-array": lambda: op.hadamard(3),
    "wrong-rank": lambda: op.hadamard(np.zeros((), np.float32)),
    "wrong-shape": lambda: op.hadamard(X[:, :6]),
    "wrong-shape, too long": lambda: op.hadamard(np.zeros((1, 32768), np.float32)),
    "wrong-shape of signs": lambda: op.hadamard(X, signs=X),
    "wrong-dtype": lambda: op.hadamard(X.astype(np.int32)),
    "wrong-dtype of signs": lambda: op.hadamard(X, signs=np.ones(8, np.int32)),
    "wrong-dtype of out": lambda: op.hadamard(X, out=X.astype(np.float16)),
    "bad-argument": lambda: op.hadamard(X, scale="large"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_hadamard.py" in str(caught.value)


@pytest.mark.parametrize("target", ["sm_90a", "sm_75", "cpu"])
def test_kernels_compile_without_a_device(target):
    made = op.hadamard.compile(16384, ts.bf16, signs=ts.f32, target=target)
    assert target == "cpu" or lib.spills(made) == 0


def test_costs():
    assert op.hadamard.flops((3, 8)) == 72
    assert op.hadamard.bytes((3, 8), ts.bf16) == 96
