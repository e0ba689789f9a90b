"""`matmul`, `linear` and `gemm_grouped` on the CPU, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops.support import BOUND, error, random

E, L = op.epilogue, op.linalg

SHAPES = [
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((1, 5, 7), (4, 7, 3)),
    ((2, 1, 5, 7), (3, 7, 3)),
    ((2, 3, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((0, 5, 7), (7, 3)),
    ((2, 1, 5, 7), (2, 3, 7, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_numpys_broadcasting(shapes):
    a, b = random(*shapes[0]), random(*shapes[1], seed=1)
    got, exact = L.matmul(a, b), np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.shape == exact.shape
    assert got.size == 0 or error(got, exact) < BOUND["f32"]
    flops = 2 * np.prod(exact.shape) * shapes[0][-1]
    assert L.matmul.flops(*shapes) == flops


def test_batches_that_strides_do_not_join():
    base = random(4, 3, 5, 7)
    cases = [
        (base.swapaxes(0, 1), random(3, 4, 7, 2)),
        (base[:, ::2], random(4, 1, 7, 2)),
        (random(2, 5, 7).transpose(0, 2, 1), random(5, 3)),
        (np.broadcast_to(random(5, 7), (3, 5, 7)), np.broadcast_to(random(7, 4), (3, 7, 4))),
    ]
    for a, b in cases:
        assert error(L.matmul(a, b), np.matmul(a.astype(np.float64), b)) < BOUND["f32"]


def test_results_of_any_strides():
    a, b = random(2, 5, 7), random(2, 7, 3)
    exact = np.matmul(a.astype(np.float64), b)
    wide = np.zeros((4, 10, 6), np.float32)
    for out in (np.zeros((2, 3, 5), np.float32).transpose(0, 2, 1), wide[::2, ::2, ::2], wide[1:3, 1:6, 3:]):
        assert L.matmul(a, b, out=out) is out
        assert error(out, exact) < BOUND["f32"]


STRIDED = [
    ((2, 4, 3), (3, 5)),
    ((3, 2, 4, 3), (3, 5)),
    ((3, 2, 4, 3), (3, 1, 3, 5)),
    ((2, 4, 3), (3,)),
    ((3,), (2, 3, 5)),
]


@pytest.mark.parametrize("shapes", STRIDED, ids=str)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_of_any_strides_are_written(shapes, library):
    torch = pytest.importorskip("torch") if library == "torch" else None
    a, b = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    exact = np.matmul(a.astype(np.float64), b)
    rank = exact.ndim
    for order in [tuple(range(rank)), tuple(range(rank))[::-1]]:
        for axis in range(rank):
            shape = [exact.shape[at] for at in order]
            shape[order.index(axis)] += 3
            wide = np.full(shape, 7, np.float32)
            out = wide.transpose(np.argsort(order))[tuple(slice(size) for size in exact.shape)]
            if torch is None:
                assert L.matmul(a, b, out=out) is out
            else:
                L.matmul(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))
            assert error(out, exact) < BOUND["f32"], (order, axis)
            assert (wide == 7).sum() >= wide.size - exact.size


def test_results_lie_beside_their_operands_batch_by_batch():
    a = random(2, 3, 4, 4).swapaxes(0, 1)
    memory = random(4, 2, 4, 4)
    with pytest.raises(ts.CallError) as caught:
        L.matmul(a, memory[:3], out=memory[1:])
    assert caught.value.code == "overlapping-arguments"


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 3), (3,), (2, 2, 0)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_layers_of_rows_of_any_rank_and_size(shape, library):
    torch = pytest.importorskip("torch") if library == "torch" else None
    x, w, bias = random(*shape), random(5, shape[-1]), random(5)
    given = (x, w, bias) if torch is None else tuple(map(torch.from_numpy, (x, w, bias)))
    got = np.asarray(L.linear(*given))
    exact = x.astype(np.float64) @ w.T + bias
    assert got.shape == exact.shape
    assert got.size == 0 or error(got, exact) < BOUND["f32"]


def test_linear():
    x, w, bias = random(2, 3, 40), random(20, 40), random(20)
    exact = x.astype(np.float64) @ w.T + bias
    assert error(L.linear(x, w, bias), exact) < BOUND["f32"]
    chain = E.chain([E.gelu("tanh"), E.residual(random(6, 20))])
    got = L.linear(x, w, bias, epilogue=chain)
    assert error(got, chain.reference(exact.reshape(6, 20)).reshape(2, 3, 20)) < BOUND["f32"]
    assert error(got, L.linear.reference(x, w, bias, chain)) < BOUND["f32"]
    out = np.zeros((3, 2, 20), np.float32).transpose(1, 0, 2)
    assert L.linear(x, w, bias, out=out) is out
    assert error(out, exact) < BOUND["f32"]
    assert error(L.linear(x[0], w), x[0].astype(np.float64) @ w.T) < BOUND["f32"]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: L.matmul(random(2, 5, 7), random(3, 7, 3)), "wrong-shape"),
        (lambda: L.matmul(random(2, 5, 7), random(2, 6, 3)), "wrong-shape"),
        (lambda: L.matmul(np.array(1.0, np.float32), random(3)), "wrong-rank"),
        (lambda: L.matmul(random(2, 5, 7), random(7, 3), out=random(5, 3)), "wrong-shape"),
        (lambda: L.matmul(random(2, 5, 7), random(7, 3).astype(np.float16)), "unsupported-dtypes"),
        (lambda: L.linear(random(3, 4), random(5, 4), random(4)), "wrong-shape"),
        (lambda: L.linear(random(2, 3, 4), random(5, 4), out=random(3, 2, 5)), "wrong-shape"),
        (lambda: L.linear(random(2, 3, 4), random(5, 4), out=random(6, 5)), "wrong-shape"),
        (lambda: L.linear(random(4), random(5, 4), out=random(1, 5)), "wrong-shape"),
        (lambda: L.linear(random(2, 3, 4), random(4)), "wrong-rank"),
        (lambda: L.linear(np.array(1.0, np.float32), random(5, 4)), "wrong-rank"),
        (lambda: L.linear(None, random(5, 4)), "not-an-array"),
        (lambda: L.matmul(random(0, 4, 5), random(6, 3)), "wrong-shape"),
        (lambda: L.matmul(random(3), random(4, 0)), "wrong-shape"),
        (lambda: L.gemm_grouped(random(8, 4), random(2, 4, 3), np.zeros(2, np.int32)), "wrong-shape"),
        (lambda: L.gemm_grouped(random(8, 4), random(2, 4, 3), np.zeros(3, np.int64)), "wrong-dtype"),
        (lambda: L.gemm_grouped(random(8, 4), random(4, 3), np.zeros(3, np.int32)), "wrong-rank"),
        (lambda: L.gemm_grouped(random(8, 4), random(2, 4, 3)), "argument-count"),
        (lambda: L.gemm_grouped([random(8, 4)], []), "argument-count"),
    ],
)
def test_bad_input_is_a_typed_error(call, code):
    with pytest.raises(ts.CallError) as caught:
        call()
    assert caught.value.code == code


OFFSETS = [
    [0, 10, 10, 100, 150, 200],
    [0, 0, 0, 0, 0, 200],
    [0, 200, 200, 200, 200, 200],
    [5, 5, 6, 70, 90, 199],
]


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_groups_of_rows(offsets):
    starts = np.array(offsets, np.int32)
    a, b, bias = random(200, 70), random(5, 50, 70), random(50)
    out = np.full((200, 50), 7.0, np.float32)
    chain = E.chain([E.bias(bias)])
    assert L.gemm_grouped(a, b, starts, out=out, trans_b=True, epilogue=chain) is out
    exact = np.full((200, 50), 7.0)
    for group in range(5):
        place = slice(offsets[group], offsets[group + 1])
        exact[place] = a[place].astype(np.float64) @ b[group].T + bias
    assert error(out, exact) < BOUND["f32"]


def test_lists_of_products():
    a, b = [random(3, 4), random(9, 5)], [random(4, 6), random(5, 2)]
    for got, x, y in zip(L.gemm_grouped(a, b), a, b, strict=True):
        assert error(got, x.astype(np.float64) @ y) < BOUND["f32"]
    got = L.gemm_grouped(random(6, 4), random(1, 4, 3), np.array([0, 6], np.int32))
    assert error(got, L.gemm_grouped.reference(random(6, 4), random(1, 4, 3), [0, 6])) < BOUND["f32"]


def test_counts_of_bytes():
    assert L.matmul.bytes((2, 5, 7), (7, 3), ts.bf16) == 2 * (70 + 21 + 30)
    assert L.linear.bytes(4, 5, 6, ts.f32) == 4 * (20 + 30 + 6 + 24)
    assert L.gemm_grouped.bytes(10, 2, 3, 4, ts.fp8_e4m3) == 40 + 24 + 12 + 60
    assert L.gemm_grouped.flops(10, 3, 4) == 240
    assert L.linear.flops(4, 5, 6) == 11 * 24
