"""Writes some functions of a program as inline assembly that computes the same, and puts fences in here and there.

What is drawn from a seed otherwise stays the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.assembly import KINDS, text_for

_N = TypeVar("_N", bound=tree.Node)


def assembled(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program with assembly in place of half of the functions that have one."""
    grids = (replace(grid, body=tuple(_changed(stmt, rng) for stmt in grid.body)) for grid in program.grids)
    return replace(program, grids=tuple(_fenced(grid, rng) for grid in grids))


def _changed(node: _N, rng: random.Random) -> _N:
    node = tree.rebuild(node, tuple(_changed(part, rng) for part in tree.children(node)))
    if isinstance(node, tree.Apply) and _has_text(node) and rng.random() < 0.5:
        return tree.Assembly(node)  # pyright: ignore[reportReturnType]
    return node


def _has_text(node: tree.Apply) -> bool:
    """Return whether a function of tiles has a text, and operands that keep their dtype in it."""
    dtype = node.type.dtype
    plain = all(arg.type.dtype == dtype and not arg.type.weak for arg in node.args)
    return (
        plain
        and node.type.shape != ()
        and len(node.args) == 2
        and dtype in KINDS
        and text_for(node.fn, dtype) is not None
    )


def _fenced(grid: tree.Grid, rng: random.Random) -> tree.Grid:
    if isinstance(grid, tree.Linear) or rng.random() < 0.5:
        return grid
    return replace(grid, body=_among(grid.body, rng))


def _among(block: tree.Block, rng: random.Random) -> tree.Block:
    """Return a block under no predicate with fences put in."""
    result: list[tree.Stmt] = []
    for stmt in block:
        if isinstance(stmt, tree.For):
            stmt = replace(stmt, body=_among(stmt.body, rng))
        if not isinstance(stmt, tree.Jump) and rng.random() < 0.3:
            result.append(tree.Fenced(rng.randint(0, 9)))
        result.append(stmt)
    return tuple(result)
