"""Stages of shared buffers in the fuzzer's own meaning of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.steps import BELOW, first_wrong
from tessera.tools.fuzz.types import Type

ROW = Type("f32", (4,))


def program(stages: int, read: int) -> tree.Program:
    """Return a program that writes 1, 2, 3 to the first stages of a buffer and adds what one stage holds to X."""
    k = tree.Name("k", INDEX)
    filled = tree.Full((4,), tree.Number(1), "f32")
    value = tree.Apply("add", (filled, tree.Cast(k, "f32")))
    span = (tree.Span(tree.Number(0), 4),)
    held = tree.ReadShared("buffer", ROW, tree.Name("n", INDEX))
    body = (
        tree.AllocShared("buffer", (stages, 4), "f32"),
        tree.For("k", tree.Number(0), tree.Number(3), tree.Number(1), (tree.StoreShared("buffer", value, k),)),
        tree.Barrier(),
        tree.Store("X", span, "f32", tree.Apply("add", (tree.Load("X", span, "f32"), held))),
    )
    tensor = tree.Tensor("X", ("N",), "f32", (4,), tree.Contents("small", 1, 9), tree.Layout((0,), (1,), 0))
    scalar = tree.ScalarParam("n", "i64", read, python=True)
    grid = tree.Grid(("i",), (tree.Name("N", INDEX),), (4,), body)
    return tree.Program(1, (tensor, scalar), (), (grid,))


def test_a_stage_that_does_not_exist_reads_as_zeros_and_is_not_written(tmp_path: Path) -> None:
    for stages, read, added in ((3, 2, 3.0), (2, 1, 2.0), (2, 2, 0.0), (2, -1, 0.0)):
        drawn = program(stages, read)
        before = contents(drawn.tensors[0], drawn.seed)
        after, events = meaning(drawn, {"X": before})
        assert np.array_equal(after["X"].data, before + added)
        assert ("stage-outside" in events) == (stages == 2)
        assert check(drawn, Device("cpu"), tmp_path).kind == "same"
        assert first_wrong(drawn, tmp_path) == BELOW


BOX = (tree.Span(tree.Number(1), 2), tree.Span(tree.Name("n", INDEX), 3))
PICKED = (tree.Pick(tree.Apply("sub", (tree.Arange(0, 5), tree.Number(1)))), tree.At(tree.Number(2)))


def parts(read: tuple[tree.Axis, ...], written: tuple[tree.Axis, ...], n: int) -> tree.Program:
    """Return a program that fills a buffer with X, adds 10 to a part of it and stores another part to `out`."""
    whole = tuple(tree.Span(None, 4) for _ in range(2))
    held = tree.ReadPart("buffer", read, "f32")
    body = (
        tree.AllocShared("buffer", (4, 4), "f32"),
        tree.StoreShared("buffer", tree.Load("X", whole, "f32")),
        tree.Barrier(),
        tree.StorePart("buffer", written, "f32", tree.Full(tree.index_shape(written), tree.Number(10), "f32"), "add"),
        tree.Barrier(),
        tree.Store("out", tuple(tree.Span(None, size) for size in held.type.shape), "f32", held),
    )
    tensors = tuple(
        tree.Tensor(name, dims, "f32", sizes, tree.Contents("small", -9, 9), tree.Layout(*_plain(len(sizes)), 0))
        for name, dims, sizes in (("X", ("N", 4), (4, 4)), ("out", held.type.shape, held.type.shape))
    )
    scalar = tree.ScalarParam("n", "i64", n, python=True)
    grid = tree.Grid(("i",), (tree.Name("N", INDEX),), (4,), body)
    return tree.Program(2, (*tensors, scalar), (), (grid,))


def _plain(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(range(rank)), (1,) * rank


@pytest.mark.parametrize("n", [-2, 0, 3])
@pytest.mark.parametrize(("read", "written"), [(BOX, PICKED), (PICKED, BOX)], ids=["box", "picked"])
def test_parts_are_what_numpy_takes(read: Any, written: Any, n: int, tmp_path: Path) -> None:
    drawn = parts(read, written, n)
    x, out = (contents(tensor, drawn.seed) for tensor in drawn.tensors)
    wide = np.pad(x, 8)  # what is outside is zero, and stays so
    added = wide.copy()
    if written is BOX:
        added[9:11, 8 + n : 11 + n] += 10
    else:
        added[7:12, 10] += 10
    inside = np.pad(np.ones((4, 4), bool), 8)
    held = np.where(inside, added, 0)
    wanted = held[9:11, 8 + n : 11 + n] if read is BOX else held[7:12, 10]
    after, _ = meaning(drawn, {"X": x, "out": out})
    np.testing.assert_array_equal(after["out"].data, wanted)
    assert check(drawn, Device("cpu"), tmp_path).kind == "same"
    assert first_wrong(drawn, tmp_path) == BELOW
