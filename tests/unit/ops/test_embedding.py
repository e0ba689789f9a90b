"""Embedding and its gradient against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

embedding = op.embedding


def sums(grad, index, rows, padding=None):
    """Add up gradients by rows."""
    found = np.zeros((rows, grad.shape[-1]))
    for row, one in zip(index.reshape(-1), grad.reshape(index.size, grad.shape[-1]).astype(np.float64), strict=True):
        if 0 <= row < rows and row != padding:
            found[row] += one
    return found


SHAPES = [((5,), 9, 33), ((2, 3), 300, 33), ((), 4, 33), ((0,), 4, 33), ((4,), 3, 0), ((300,), 1, 300)]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(("shape", "rows", "width"), SHAPES, ids=str)
def test_shapes(library, shape, rows, width):
    rng = np.random.default_rng(1)
    index, table, grad = rng.integers(0, rows, shape), lib.normal(rng, rows, width), lib.normal(rng, *shape, width)
    index2, table2, grad2 = (lib.of_library(library, one) for one in (np.asarray(index), table, grad))
    got = embedding(index2, table2)
    assert np.array_equal(got, table[index])
    assert np.array_equal(embedding.reference(index2, table2), table[index])
    lib.close(embedding.backward(grad2, index2, table2)["weight"], sums(grad, np.asarray(index), rows), ts.f32)


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
def test_dtypes(dtype):
    rng = np.random.default_rng(2)
    index = rng.integers(0, 50, 200).astype(np.int32)
    table, grad = lib.normal(rng, 50, 130, dtype=dtype), lib.normal(rng, 200, 130, dtype=dtype)
    assert np.array_equal(embedding(index, table).astype(np.float64), table[index].astype(np.float64))
    lib.close(embedding.backward(grad, index, table)["weight"], sums(grad, index, 50), dtype)


@pytest.mark.parametrize("rows", [3, 255, 256, 70_000])
def test_gradients_of_many_tokens_are_the_same_in_every_run(rows):
    rng = np.random.default_rng(3)
    index = np.minimum(rng.integers(0, rows, 3000), rng.integers(0, rows, 3000))
    index[:700] = rows - 1
    grad, table = lib.normal(rng, 3000, 3), np.zeros((rows, 3), np.float32)
    found = embedding.backward(grad, index, table, padding_idx=-2)["weight"]
    lib.close(found, sums(grad, index, rows, rows - 2), ts.f32, 8)
    assert np.array_equal(found, embedding.backward(grad, index, table, padding_idx=-2)["weight"])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_rows_that_there_are_not(kind):
    table = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    index = np.array([0, -1, 4, 3, np.iinfo(kind).max, np.iinfo(kind).min, 2**31 - 1], kind)
    want = np.zeros((7, 3), np.float32)
    want[0], want[3] = table[0], table[3]
    assert np.array_equal(embedding(index, table), want)
    assert np.array_equal(embedding.reference(index, table), want)
    grad = np.ones((7, 3), np.float32)
    assert np.array_equal(embedding.backward(grad, index, table)["weight"], sums(grad, index, 4))


def test_a_gradient_is_a_finite_difference():
    rng = np.random.default_rng(4)
    index, table, grad = np.array([[2, 0], [2, 1]]), rng.standard_normal((4, 3)), rng.standard_normal((2, 2, 3))
    slopes = lib.differences(lambda at: float((embedding(index, at["weight"]) * grad).sum()), {"weight": table})
    assert np.allclose(embedding.backward(grad, index, table)["weight"], slopes["weight"], atol=1e-8)


def test_any_strides_and_results_in_given_arrays():
    rng = np.random.default_rng(5)
    base, numbers = rng.standard_normal((20, 30)).astype(np.float32), rng.integers(0, 10, (6, 8))
    for table, index in ((base.T, numbers.T), (base[::-2, ::3], numbers[::2, ::-1]), (base[:10, 1:8], numbers)):
        assert np.array_equal(embedding(index, table), table[index])
    big, want = np.zeros((12, 16, 60), np.float32), base[numbers]
    for out in (big[:6, :8, :30], big[::2, ::2, ::2], big.reshape(-1)[:1440].reshape(6, 8, 30)):
        assert embedding(numbers, base, out=out) is out
        assert np.array_equal(out, want)


def test_training_with_pytorch():
    torch = pytest.importorskip("torch")
    table, index = torch.randn(9, 33, requires_grad=True), torch.tensor([[1, 8, 1], [0, 3, 3]])
    grad = torch.randn(2, 3, 33)
    embedding(index, table, padding_idx=3).backward(grad)
    found, table.grad = table.grad, None
    torch.nn.functional.embedding(index, table, padding_idx=3).backward(grad)
    assert torch.allclose(found, table.grad)
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        embedding(index, table, out=torch.empty(2, 3, 33))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    given = torch.tensor([1, 5, 1]), torch.randn(6, 34, requires_grad=True), 2
    torch.library.opcheck(torch.ops.tessera.embedding.default, given)


X, I = np.zeros((3, 10), np.float32), np.zeros(4, np.int64)  # noqa: E741
WRONG = {
    "not-an-array": lambda: embedding(3, X),
    "not-an-array for a table": lambda: embedding(I, None),
    "wrong-rank": lambda: embedding(I, X[0]),
    "wrong-dtype": lambda: embedding(X, X),
    "wrong-dtype of the table": lambda: embedding(I, X.astype(np.int32)),
    "wrong-shape of out": lambda: embedding(I, X, out=X),
    "wrong-shape of a gradient": lambda: embedding.backward(X, I, X),
    "wrong-dtype of a gradient": lambda: embedding.backward(np.zeros((4, 10)), I, X),
    "bad-argument": lambda: embedding(I, X, padding_idx=3),
    "bad-argument padding_idx": lambda: embedding(I, X, padding_idx="x"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_embedding.py" in str(caught.value)


@pytest.mark.parametrize(("gradient", "target"), [(False, "sm_90a"), (True, "sm_80")])
def test_kernels_compile_without_a_device(target, gradient):
    assert lib.spills(embedding.compile(4096, ts.bf16, gradient=gradient, target=target)) == 0


def test_costs():
    assert (embedding.bytes((4, 8), ts.bf16), embedding.flops((4, 8))) == (128, 32)
