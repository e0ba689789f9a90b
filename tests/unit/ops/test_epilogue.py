"""Epilogue steps in a user's own kernel, against NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops.support import error, random

E = op.epilogue


@ts.kernel
def change(x: ts.Tensor["M", "N", ts.f32], chain: E.Epilogue["M", "N"], y: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 16), (N, 32)):
        y[m : m + 16, n : n + 32] = chain(x[m : m + 16, n : n + 32], m, n)
    return y


M, N = 37, 45
X = random(M, N)
ROW, COL = random(M), random(N, dtype=ts.bf16)
FULL = random(M, N, dtype=ts.f16, seed=1)

CHAINS = {
    "bias gelu": [E.bias(COL), E.gelu()],
    "row bias, gelu tanh": [E.bias(ROW, axis="row"), E.gelu("tanh")],
    "silu residual": [E.silu(), E.residual(FULL)],
    "scaled residual, relu": [E.residual(FULL, 0.5), E.relu()],
    "scales": [E.scale(2.5), E.scale(COL), E.scale(ROW, axis="row"), E.dequant(ROW[:1])],
    "dropout": [E.dropout(0.3, seed=-7)],
    "cast": [E.cast(ts.bf16), E.scale(3.0), E.cast(ts.fp8_e4m3, saturate=True)],
    "nothing": [],
}


@pytest.mark.parametrize("name", CHAINS)
def test_steps_are_applied_in_order(name):
    chain = E.chain(CHAINS[name])
    got = change(X, chain, np.full_like(X, np.nan))
    assert error(got, chain.reference(X.astype(np.float64))) < 2e-6


def test_references_are_what_the_literature_says():
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(E.gelu().reference(x)[5], 1.9544997361036416)  # 2·Φ(2)
    np.testing.assert_allclose(E.gelu("tanh").reference(x)[5], 1.954597694087775)
    np.testing.assert_allclose(E.silu().reference(x), x / (1 + np.exp(-x)))
    assert E.cast(ts.fp8_e4m3, saturate=True).reference(np.array([1e9]))[0] == 448.0


def test_order_matters():
    first = change(X, E.chain([E.relu(), E.scale(-1.0)]), np.empty_like(X))
    second = change(X, E.chain([E.scale(-1.0), E.relu()]), np.empty_like(X))
    np.testing.assert_array_equal(first, -np.maximum(X, 0))
    np.testing.assert_array_equal(second, np.maximum(-X, 0))


def test_dropout_has_one_mask_for_all_tile_shapes():
    a, b = random(70, 33), random(33, 90)
    chain = E.chain([E.dropout(0.4, seed=11)])
    masks = [op.linalg.gemm(a, b, epilogue=chain, block=block) == 0 for block in ((16, 32, 32), (64, 128, 16))]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert 0.3 < masks[0].mean() < 0.5


def test_narrow_operands_are_computed_in_f32():
    @ts.kernel
    def narrow(x: ts.Tensor["M", "N", ts.bf16], chain: E.Epilogue["M", "N"], y: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 16), (N, 32)):
            y[m : m + 16, n : n + 32] = chain(x[m : m + 16, n : n + 32], m, n)
        return y

    x = X.astype(ml_dtypes.bfloat16)
    chain = E.chain([E.scale(1.0009765625)])  # 1 + 2^-10: lost by bf16
    np.testing.assert_array_equal(narrow(x, chain, np.empty_like(X)), x.astype(np.float32) * np.float32(1.0009765625))


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (lambda: E.bias(random(2, 3, 4)), "wrong-rank"),
        (lambda: E.bias(COL, axis="depth"), "bad-argument"),
        (lambda: E.residual(COL), "wrong-rank"),
        (lambda: E.scale(COL, axis="tensor"), "wrong-rank"),
        (lambda: E.dropout(1.0, 0), "bad-argument"),
        (lambda: E.gelu("quick"), "bad-argument"),
        (lambda: E.bias([1.0]), "not-an-array"),
        (lambda: E.chain([E.relu]), "not-a-step"),
    ],
)
def test_a_step_that_cannot_be_is_a_typed_error(step, code):
    with pytest.raises(ts.CallError) as caught:
        step()
    assert caught.value.code == code


def test_a_vector_of_the_wrong_size_is_named():
    with pytest.raises(ts.CallError) as caught:
        change(X, E.chain([E.relu(), E.bias(random(44))]), np.empty_like(X))
    assert caught.value.code == "wrong-shape"
    assert "'chain.bias.values'" in caught.value.message


def test_counts():
    chain = E.chain([E.bias(COL), E.relu(), E.residual(FULL)])
    assert chain.flops(100) == 300
    assert chain.bytes() == COL.nbytes + FULL.nbytes
    assert repr(chain) == "chain([bias, relu, residual])"


@pytest.mark.parametrize("combine", ["sum", "max", "min", "absmax"])
@pytest.mark.parametrize("axis", ["row", "col"])
def test_rows_and_columns_are_combined_beside_the_result(axis, combine):
    a, b = random(150, 70), random(70, 300)
    out = np.full(150 if axis == "row" else 300, np.nan, np.float32)
    got = op.linalg.gemm(a, b, epilogue=E.chain([E.scale(-2.0), E.reduction(out, axis, combine), E.relu()]))
    exact = -2 * (a.astype(np.float64) @ b)
    function = {"sum": np.sum, "max": np.max, "min": np.min, "absmax": lambda x, along: np.abs(x).max(along)}[combine]
    assert error(out, function(exact, 1 if axis == "row" else 0)) < 3e-6
    assert error(got, np.maximum(exact, 0)) < 3e-6


@pytest.mark.parametrize(("axis", "m", "n"), [("row", 5, 0), ("col", 0, 5)])
@pytest.mark.parametrize(("combine", "neutral"), [("sum", 0.0), ("max", -np.inf), ("min", np.inf), ("absmax", 0.0)])
def test_rows_and_columns_of_no_elements(axis, m, n, combine, neutral):
    out = np.full(5, np.nan, np.float32)
    op.linalg.gemm(random(m, 3), random(3, n), epilogue=E.chain([E.reduction(out, axis, combine)]))
    np.testing.assert_array_equal(out, neutral)


def test_combined_rows_and_columns_in_a_batch_and_in_a_users_kernel():
    a, b = random(3, 5, 7), random(3, 7, 40)
    rows, cols = np.empty((3, 5), np.float32), np.empty((3, 40), np.float32)
    got = op.linalg.gemm_batched(a, b, epilogue=E.chain([E.row_sum(rows), E.col_sum(cols)]))
    exact = a.astype(np.float64) @ b
    assert max(error(got, exact), error(rows, exact.sum(2)), error(cols, exact.sum(1))) < 3e-6
    rows, cols = np.empty(M, np.float32), np.empty(N, np.float32)
    for call in (
        lambda chain: change(X, chain, np.empty_like(X)),
        lambda chain: change(x=X, y=np.empty_like(X), chain=chain),
    ):
        rows[:], cols[:] = np.nan, np.nan
        call(E.chain([E.row_max(rows), E.col_max(cols)]))
        np.testing.assert_array_equal(rows, X.max(1))
        np.testing.assert_array_equal(cols, X.max(0))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: change(X, E.chain([E.row_sum(np.empty(N, np.float32))]), np.empty_like(X)), "wrong-shape"),
        (lambda: E.row_sum(np.empty(M)), "wrong-dtype"),
        (lambda: E.col_sum(np.empty((1, 1, N), np.float32)), "wrong-rank"),
        (lambda: E.reduction(np.empty(M, np.float32), "row", "mean"), "bad-argument"),
        (
            lambda: op.linalg.gemm(X, X.T, triangular_only="lower", epilogue=E.chain([E.row_sum(ROW)])),
            "bad-argument",
        ),
    ],
)
def test_a_reduction_that_cannot_be_is_a_typed_error(call, code):
    with pytest.raises(ts.CallError) as caught:
        call()
    assert caught.value.code == code


@ts.function
def clamp(self, x, rows, cols, batch):
    shifted = x + self.shift[rows : rows + x.shape[0]][:, None] if self.shifts else x
    return ts.tile.minimum(ts.tile.maximum(shifted, self.low), self.high)


def test_steps_of_ones_own():
    own = E.step(
        clamp,
        low=-0.5,
        high=2.0,
        shift=(ROW, "rows"),
        shifts=True,
        reference=lambda x: np.clip(x + ROW[:, None], -0.5, 2.0),
    )
    chain = E.chain([E.scale(2.0), own])
    got = change(X, chain, np.empty_like(X))
    assert error(got, chain.reference(X.astype(np.float64))) < 2e-6
    for make, code in (
        (lambda: E.step(lambda x: x), "bad-argument"),
        (lambda: E.step(clamp, shift=(ROW, "depth")), "bad-argument"),
        (lambda: E.step(clamp, shift=(ROW, "rows cols")), "wrong-rank"),
        (lambda: E.step(clamp, low=0.0).reference(X), "bad-argument"),
    ):
        with pytest.raises(ts.CallError) as caught:
            make()
        assert caught.value.code == code
