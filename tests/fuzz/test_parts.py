"""Parts of tiles in the fuzzer's own meaning of programs, against NumPy itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.types import elements

N = 6
X = tree.Load("X", (tree.Span(tree.Number(0), N), tree.Span(None, N)), "i32")
ROW = tree.Load("X", (tree.At(tree.Number(1)), tree.Span(None, N)), "i32")
NUMBER = tree.Name("n", INDEX)


def numbers(*values: int) -> tuple[tree.Expr, ...]:
    return tuple(map(tree.Number, values))


def program(body: Sequence[tree.Stmt], shape: tuple[int, ...], n: int = 1) -> tree.Program:
    """Return a program that runs `body` once on X (6, 6) and an `out` of a shape, of i32, and an integer `n`."""
    layouts = {rank: tree.Layout(tuple(range(rank)), (1,) * rank, 0) for rank in (1, 2)}
    tensors = tuple(
        tree.Tensor(name, dims, "i32", sizes, tree.Contents("small", -9, 9), layouts[len(sizes)])
        for name, dims, sizes in (("X", ("N", N), (N, N)), ("out", shape, shape))
    )
    scalar = tree.ScalarParam("n", "i64", n, python=True)
    return tree.Program(3, (*tensors, scalar), (), (tree.Grid(("i",), (tree.Name("N", INDEX),), (N,), tuple(body)),))


def stored(value: tree.Expr) -> tree.Store:
    return tree.Store("out", tuple(tree.Span(None, size) for size in value.type.shape), "i32", value)


def expected_by(of: tree.Program) -> Any:
    values = {tensor.name: contents(tensor, of.seed) for tensor in of.tensors}
    return values["X"].astype(np.int64), meaning(of, values)[0]["out"].data


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (tree.Part(X, numbers(1, 4), (2, 3), (2, -2)), lambda x: x[1:4:2, 4::-2]),
        (tree.Part(X, (tree.Number(0), NUMBER), (3, 0), (1, 1)), lambda x: x[0:3, 1]),
        (tree.Part(X, (NUMBER, tree.Number(0)), (8, 6), (1, 1)), lambda x: np.pad(x, ((0, 3), (0, 0)))[1:9]),
        (tree.Part(X, (NUMBER, tree.Number(0)), (4, 6), (-1, 1)), lambda x: np.pad(x, ((2, 0), (0, 0)))[3::-1]),
        (tree.Piece(X, 3, 1, 2), lambda x: x[:, 4:]),
        (tree.Piece(X, 6, 0, 5, True), lambda x: x[5]),
        (tree.Flip(X, None), lambda x: x[::-1, ::-1]),
        (tree.Flip(X, (-1,), 1), lambda x: x[:, ::-1]),
        (tree.Roll(X, tree.Number(-7), None), lambda x: np.concatenate([x.ravel()[7:], x.ravel()[:7]]).reshape(6, 6)),
        (tree.Roll(X, NUMBER, 0), lambda x: x[[5, 0, 1, 2, 3, 4]]),
        (tree.Take(X, ROW, None), lambda x: np.where((x[1] >= 0) & (x[1] < 36), x.ravel()[x[1] % 36], 0)),
        (
            tree.Take(X, ROW, 0, tree.Number(7)),
            lambda x: np.stack([x[k] if 0 <= k < 6 else np.full(6, 7) for k in x[1]]),
        ),
        (
            tree.Take(X, X, 1, None, True),
            lambda x: np.array([[row[k] if 0 <= k < 6 else 0 for k in row] for row in x]),
        ),
    ],
)
def test_parts_are_what_numpy_takes(value: tree.Expr, wanted: Any, tmp_path: Path) -> None:
    drawn = program([stored(value)], value.type.shape)
    x, out = expected_by(drawn)
    assert elements(out.shape) == value.type.size
    np.testing.assert_array_equal(out, wanted(x))
    assert check(drawn, Device("cpu"), tmp_path).kind == "same"
