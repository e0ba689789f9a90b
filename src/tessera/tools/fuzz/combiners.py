"""Combiners of reductions and scans that programs use: how they are written, and what they mean in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tessera.tools.fuzz.meaning_values import NUMPY, Array, Val

Elements = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Combiner:
    """A combiner of integers and truth values, which is exact in every order.

    Args:
        kinds: what each tile holds: `bool`, `int`, or `same` for the dtype of the last one.
        params: names of its parameters.
        body: its lines.
        combine: what it means.
        commutative: whether reductions may use it.
    """

    kinds: tuple[str, ...]
    params: str
    body: tuple[str, ...]
    combine: Callable[[Elements, Elements], tuple[Any, ...]]
    commutative: bool = True


def _larger(left: Elements, right: Elements) -> tuple[Any, ...]:
    (a, i), (b, j) = left, right
    first = (a > b) | ((a == b) & (i < j))
    return np.where(first, a, b), np.where(first, i, j)


COMBINERS: Final = {
    "larger": Combiner(
        ("int", "int"),
        "a, i, b, j",
        (
            "first = (a > b) | ((a == b) & (i < j))",
            "return ts.tile.where(first, a, b), ts.tile.where(first, i, j)",
        ),
        _larger,
    ),
    "larger_by_branch": Combiner(
        ("int", "int"),
        "a, i, b, j",
        (
            "value, place = b, j",
            "if a > b:",
            "    value, place = a, i",
            "elif a == b:",
            "    place = ts.tile.minimum(i, j)",
            "return value, place",
        ),
        _larger,
    ),
    "total": Combiner(
        ("bool", "int", "int"),
        "f, a, b, g, c, d",
        ("return f ^ g, a + c, b | d",),
        lambda left, right: (left[0] ^ right[0], left[1] + right[1], left[2] | right[2]),
    ),
    "both": Combiner(
        ("int",),
        "a, b",
        ("return (a ^ b) + 2 * (a & b)",),
        lambda left, right: (left[0] + right[0],),
    ),
    "wider": Combiner(
        ("int",),
        "a, b",
        ("return (a.to(ts.i64) + b.to(ts.i64)).to(a.dtype)",),
        lambda left, right: (left[0] + right[0],),
    ),
    "affine": Combiner(
        ("same", "int"),
        "a, b, c, d",
        ("return a * c, b * c + d",),
        lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1]),
        commutative=False,
    ),
    "segmented": Combiner(
        ("bool", "int"),
        "f, x, g, y",
        ("return f | g, ts.tile.where(g, y, x + y)",),
        lambda left, right: (left[0] | right[0], np.where(right[0], right[1], left[1] + right[1])),
        commutative=False,
    ),
}


def meaning_of(name: str, values: list[Val], axis: int | None, running: bool, reverse: bool) -> list[Val]:
    """Return what a reduction or scan by a combiner gives for each tile: one element after the other."""
    if axis is None:
        values, axis = [value.moved(lambda data: data.reshape(-1)) for value in values], 0
    if reverse:
        values = [value.moved(lambda data: np.flip(data, axis)) for value in values]
    dtypes = [NUMPY[value.dtype] for value in values]
    whole = tuple(np.moveaxis(value.data.astype(dtype), axis, 0) for value, dtype in zip(values, dtypes, strict=True))
    masks = [value.known for value in values if value.known is not None]
    known = np.moveaxis(np.logical_and.reduce(masks), axis, 0) if masks else None
    total, steps = tuple(value[0] for value in whole), [tuple(value[0] for value in whole)]
    with np.errstate(all="ignore"):
        for place in range(1, len(whole[0])):
            combined = COMBINERS[name].combine(total, tuple(value[place] for value in whole))
            total = tuple(np.asarray(v).astype(dtype) for v, dtype in zip(combined, dtypes, strict=True))
            steps.append(total)
    if not running:
        found = None if known is None else known.all(0)
        return [Val(v.dtype, np.asarray(data), None, found) for v, data in zip(values, total, strict=True)]
    if known is not None:
        known = np.moveaxis(np.logical_and.accumulate(known, 0), 0, axis)
    results = [
        Val(value.dtype, np.moveaxis(np.stack([step[part] for step in steps]), 0, axis), None, known)
        for part, value in enumerate(values)
    ]
    return [value.moved(lambda data: np.flip(data, axis)) for value in results] if reverse else results
