"""Prints and asserts in programs that are drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tessera.errors import DeviceError
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import INDEX, Options
from tessera.tools.fuzz.run import Device, check, load_kernel

SEEDS = range(60)


def without(node: tree.Node) -> tree.Node:
    """Return a tree without prints and asserts."""
    kept: dict[str, object] = {}
    for name, value in vars(node).items():
        if isinstance(value, tuple):
            parts = [item for item in value if not isinstance(item, tree.Print | tree.Check)]
            kept[name] = tuple(without(item) if isinstance(item, tree.Node) else item for item in parts)
        elif isinstance(value, tree.Node):
            kept[name] = without(value)
    return replace(node, **kept)


def test_they_stand_in_programs_that_are_drawn_as_they_are_without() -> None:
    found = set[type[tree.Node]]()
    for seed in SEEDS:
        with_debug = generate(seed, Options(debug=1.0))
        plain = generate(seed, Options(debug=0.0))
        assert replace(without(with_debug), asserts=False) == without(plain)  # pyright: ignore[reportCallIssue]
        assert not plain.asserts
        found |= {type(node) for grid in with_debug.grids for node in tree.walk(grid)}
    assert {tree.Print, tree.Check} <= found


def test_asserts_are_compiled_in_and_one_that_fails_has_no_meaning(tmp_path: Path) -> None:
    never = tree.Check(tree.Apply("lt", (tree.Name("i", INDEX), tree.Number(0))), "below zero")
    x = tree.Tensor("X", ("M",), "f32", (8,), tree.Contents("small", 0, 1), tree.Layout((0,), (1,)))
    one = tree.Store("X", (tree.Span(tree.Name("i", INDEX), 4),), "f32", tree.Full((4,), tree.Number(1.0), "f32"))
    grid = tree.Grid(("i",), (tree.Name("M", INDEX),), (4,), (one, never))
    program = tree.Program(0, (x,), (), (grid,), asserts=True)
    assert check(program, Device("cpu", ""), tmp_path).detail == "an assert fails"
    kernel, array = load_kernel(program, tmp_path), np.zeros(8, np.float32)
    with conditions(program), pytest.raises(DeviceError, match="below zero"):
        kernel(array)
    load_kernel(program, tmp_path)(array)
    assert array.tolist() == [1.0] * 8
