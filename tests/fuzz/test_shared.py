"""Stages of shared buffers in the fuzzer's own meaning of programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
