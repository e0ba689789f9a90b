"""Integers that follow from places: 32 bits where they have room, and comparisons that are decided."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.ir.graph.points import MapOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ArrayType, array_type
from tessera.ir.graph.writer import GraphWriter
from tessera.numerics import dtypes
from tessera.schedule.fuse.groups import cut
from tessera.target.dims import Dim

SIZE = 56


def functions_of(write: Any, size: Dim) -> tuple[list[str], list[str]]:
    """Return the functions of a graph after it is cut, and the dtypes of the places that it takes elements at."""
    w = GraphWriter("integers", [ArrayType.of([size], dtypes.f32)], {})
    (x,) = w.arguments
    module = w.finish([w.take(x, [write(w, w.iota([size], 0, dtypes.i64))], [size])])
    cut(w.graph)
    module.verify()
    ops = list(w.graph.walk())
    takes = [op for op in ops if isinstance(op, TakeOp)]
    places = [array_type(index).dtype.name for op in takes for index in op.indices]
    return [op.fn.data for op in ops if isinstance(op, MapOp)], places


def from_start(w: GraphWriter, at: Any) -> Any:
    """Return places, of which those below 0 count from the end, as PyTorch writes it."""
    return w.apply("select", w.apply("lt", at, 0), w.apply("add", at, SIZE), at)


@pytest.mark.parametrize(
    ("write", "functions", "dtype"),
    [
        (lambda w, at: from_start(w, w.apply("minimum", w.apply("add", at, 1), 55)), ["add", "minimum"], "i32"),
        (lambda w, at: w.apply("minimum", at, 60), [], "i32"),
        (lambda w, at: w.apply("mod", at, 56), [], "i32"),
        (lambda w, at: w.apply("mod", w.apply("add", at, 3), 56), ["add", "mod"], "i32"),
        (lambda w, at: from_start(w, w.apply("sub", at, 1)), ["sub", "lt", "add", "select"], "i32"),
        (lambda w, at: w.apply("floordiv", w.apply("mul", at, 2**31), 2**31), ["mul", "floordiv"], "i32"),
        (lambda w, at: w.apply("sub", w.apply("mul", at, 2**40), 1), ["mul", "sub"], "i64"),
    ],
)
def test_integers_of_known_sizes(write: Any, functions: list[str], dtype: str) -> None:
    assert functions_of(write, Dim((), SIZE)) == (functions, [dtype])


def test_integers_of_unknown_sizes_are_no_less_than_0_and_may_be_large() -> None:
    assert functions_of(from_start, Dim(("n",))) == ([], ["i64"])
    assert functions_of(lambda w, at: w.apply("mod", at, 7), Dim(("n",))) == (["mod"], ["i32"])


@pytest.mark.parametrize(("dtype", "decided"), [(dtypes.f32, True), (dtypes.bf16, False), (dtypes.f16, False)])
def test_floats_of_few_bits_may_be_rounded_beyond_a_bound(dtype: dtypes.DType, decided: bool) -> None:
    def write(w: GraphWriter, at: Any) -> Any:
        rounded = w.cast(w.cast(w.apply("mul", at, 9), dtype), dtypes.i64)
        return w.apply("select", w.apply("lt", rounded, 9 * SIZE), at, 0)

    assert ("lt" not in functions_of(write, Dim((), SIZE))[0]) == decided
