"""Structured arguments: their parts become parameters, and calling one inlines its entry function."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.structure import ConstantField, Layout, ScalarField, Structure, TensorField, labels


@ts.function
def add(self, x, rows, cols):
    return x + self.values[cols : cols + x.shape[1]]


@ts.function
def times(self, x, rows, cols):
    return x * self.factor + self.shift


@ts.function
def both(self, x, rows, cols):
    for i in ts.tile.static_range(len(self.parts)):
        x = self.parts[i](x, rows, cols)
    return x + 0.0 * self.cols


FORMALS = ("batch", "rows", "cols")
ADD = Layout.of("add", add, FORMALS, (("values", TensorField(("cols",), ts.f32)),))
TIMES = Layout.of("times", times, FORMALS, (("factor", ScalarField(ts.f32)), ("shift", ConstantField(2.0))))
PAIR = Layout.of("pair", both, FORMALS, (("parts", (ADD, TIMES)),))
TWICE = Layout.of("pair", both, FORMALS, (("parts", (ADD, ADD)),))


class Pair(Structure):
    HELP = "pass a Pair"


@ts.kernel
def change(x: ts.Tensor["M", "N", ts.f32], how: Pair["M", "N"], y: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 16), (N, 32)):
        y[m : m + 16, n : n + 32] = how(x[m : m + 16, n : n + 32].to(ts.f32), m, n)
    return y


rng = np.random.default_rng(3)
X = rng.standard_normal((19, 45), np.float32)
V = rng.standard_normal(45, np.float32)


def test_a_structure_is_taken_apart_and_called():
    got = change(X, Pair(PAIR, (V, 3.0)), np.empty_like(X))
    np.testing.assert_allclose(got, (X.astype(float) + V) * 3 + 2, rtol=1e-5, atol=1e-6)
    assert "cpu" in str(change.explain())


def test_it_may_be_passed_by_name():
    got = change(X, y=np.empty_like(X), how=Pair(TWICE, (V, V)))
    np.testing.assert_allclose(got, X.astype(float) + 2 * V.astype(float), rtol=1e-5, atol=1e-6)


def test_scalars_do_not_compile_again():
    for factor in (1.0, -2.0):
        got = change(X, Pair(PAIR, (V, factor)), np.empty_like(X))
        np.testing.assert_allclose(got, (X.astype(float) + V) * factor + 2, rtol=1e-5, atol=1e-5)
    assert len(change.for_structures(how=Pair(PAIR, (V, 1.0))).variants._entries) == 1


@pytest.mark.parametrize(
    ("structure", "code", "name"),
    [
        (Pair(PAIR, (V[1:], 1.0)), "wrong-shape", "how.add.values"),
        (Pair(PAIR, (V.astype(np.float64), 1.0)), "wrong-dtype", "how.add.values"),
        (Pair(PAIR, (X, 1.0)), "wrong-rank", "how.add.values"),
        (Pair(TWICE, (V, V[1:])), "wrong-shape", "how.add_1.values"),
        (None, "not-a-structure", "how"),
        (V, "not-a-structure", "how"),
    ],
)
def test_what_does_not_fit_is_named(structure, code, name):
    with pytest.raises(ts.CallError) as caught:
        change(X, structure, np.empty_like(X))
    assert caught.value.code == code
    assert repr(name) in caught.value.message


def test_it_compiles_without_a_device():
    made = ts.compile(change, target="sm_90a", how=Pair(PAIR, (V, 1.0)))
    assert [arg.name for arg in made.args] == ["x", "how.add.values", "how.times.factor", "y"]


def test_layouts_are_unique_and_parts_have_names_of_their_own():
    assert Layout.of("add", add, FORMALS, (("values", TensorField(("cols",), ts.f32)),)) is ADD
    assert labels((ADD, TIMES, ADD)) == ["add_0", "times", "add_1"]


def test_a_missing_field_and_a_missing_dimension_are_typed_errors():
    @ts.function
    def wrong(self, x, rows, cols):
        return x + self.value

    with pytest.raises(ts.LanguageError) as caught:
        change(X, Pair(Layout.of("wrong", wrong, FORMALS), ()), np.empty_like(X))
    assert caught.value.code == "unknown-name"
    batched = Layout.of("add", add, FORMALS, (("values", TensorField(("batch", "cols"), ts.f32)),))
    with pytest.raises(ts.CallError) as caught:
        change(X, Pair(batched, (X,)), np.empty_like(X))
    assert caught.value.code == "wrong-rank"


def test_the_disk_cache_tells_layouts_apart():
    from tessera.frontend.reads import Reads

    other = Layout.of("times", times, FORMALS, (("factor", ScalarField(ts.f32)), ("shift", ConstantField(3.0))))
    made = [Reads({"structures": (layout,)}) for layout in (PAIR, TWICE, TIMES, other)]
    assert len({reads.roots for reads in made}) == 4
    assert all(reads.complete for reads in made)


F = ts.dtype_var("F", ts.f32, ts.f64, ts.bf16)


@ts.kernel
def change_open(
    x: ts.Tensor["M", "N", F], more: ts.Tensor["N", F] | None, how: Pair["M", "N"], y: ts.Tensor["M", "N", F]
):
    for m, n in ts.tile.grid((M, 16), (N, 32)):
        tile = how(x[m : m + 16, n : n + 32].to(ts.f32), m, n)
        if more is not None:
            tile = tile + more[n : n + 32].to(ts.f32)
        y[m : m + 16, n : n + 32] = tile
    return y


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("has_more", [False, True])
def test_calls_choose_dtypes_and_missing_tensors_beside_structures(kind, has_more):
    x, more = X.astype(kind), V.astype(kind) if has_more else None
    wanted = (X.astype(float) + V) * 3 + 2 + (V if has_more else 0)
    got = change_open(x, more, Pair(PAIR, (V, 3.0)), np.empty_like(x))
    assert got.dtype == kind
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    got = change_open(x, how=Pair(PAIR, (V, 3.0)), y=np.empty_like(x), more=more)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    made = ts.compile(change_open, "sm_90a", F=ts.bf16, how=Pair(PAIR, (V, 3.0)), more=None)
    assert "sm_90a" in str(made.target)
    assert "cpu" in str(change_open.explain())
