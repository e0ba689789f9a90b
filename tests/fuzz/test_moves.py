"""What the fuzzer draws to move elements within a tensor."""

from __future__ import annotations

import random

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_moves import move
from tessera.tools.fuzz.generate_scope import Dice, Options, Region, Scope, palette
from tessera.tools.fuzz.types import fits

SHAPE = (7, 4)


def moves(seed: int, predicate: tuple[int, ...] | None) -> list[tree.Store]:
    """Return the stores of a move in a tensor of 7 times 4 elements, of which the program has all."""
    dice = Dice(random.Random(seed), Options(), random.Random(seed))
    tensor = tree.Tensor("X", ("N", "M"), "i32", SHAPE, tree.Contents("small"), tree.Layout((0, 1), (1, 1), 0))
    region = Region(tensor, "own", {0: ("j", 7), 1: ("i", 4)})
    offsets = {"i": (0, 0), "j": (0, 0)}
    scope = Scope(dice, palette(dice, "fast"), {"X": region}, {}, offsets, [], {}, [], [0], set(), predicate=predicate)
    return [stmt for stmt in move(scope, region) if isinstance(stmt, tree.Store)]


def test_what_a_move_stores_takes_the_condition_around_it() -> None:
    free = [tree.index_shape(store.axes) for seed in range(300) for store in moves(seed, None)]
    assert {SHAPE, (4, 4)} <= set(free)
    under = [tree.index_shape(store.axes) for seed in range(300) for store in moves(seed, SHAPE)]
    assert SHAPE in under
    assert all(fits(SHAPE, shape) for shape in under)
