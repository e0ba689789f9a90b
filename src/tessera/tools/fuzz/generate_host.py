"""Gives programs what the host computes before a launch: extents in narrow integers, and assumptions that hold.

What is drawn from a seed otherwise stays the same.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import Type, bits, int_range, is_int

_NARROW = ("i8", "u8", "i16", "u16", "i32", "u32")
_DIVISORS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)


def assuming(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program that says of its sizes and integer arguments what holds: divisors, bounds, values."""
    found: list[tree.Expr] = []
    for name, value, type_ in _known(program):
        if rng.random() < 0.7:
            found.append(_condition(tree.Name(name, type_), value, rng))
    if len(found) > 1 and rng.random() < 0.5:
        found[:2] = [tree.Apply("and", (found[0], found[1]))]
    return replace(program, assumes=tuple(found))


def _known(program: tree.Program) -> list[tuple[str, int, Type]]:
    sizes = [(name, size, INDEX) for name, size in program.dims.items() if _is_spelled_alone(program, name)]
    scalars = [
        (param.name, int(param.value), Type(param.dtype))
        for param in program.params
        if isinstance(param, tree.ScalarParam) and is_int(param.dtype)
    ]
    return [*sizes, *scalars]


def _is_spelled_alone(program: tree.Program, name: str) -> bool:
    """Return whether a dimension is called so: one that is known only as part of others need not be solved for."""
    return any(name in tensor.dims for tensor in program.tensors)


def _condition(what: tree.Name, value: int, rng: random.Random) -> tree.Expr:
    divisors = [number for number in (*_DIVISORS, abs(value)) if number and value % number == 0]
    kind = rng.choice(("multiple", "multiple", "multiple", "low", "high", "value"))
    if kind == "multiple" and max(divisors) < _most(what.type.dtype):
        # The largest says most.
        divisor = max(divisors) if rng.random() < 0.5 else rng.choice(divisors)
        return tree.Apply("eq", (tree.Apply("mod", (what, tree.Number(divisor))), tree.Number(0)))
    if kind == "low":
        return tree.Apply("ge", (what, tree.Number(value)))
    if kind == "high" and value + 1 < _most(what.type.dtype):
        return tree.Apply("lt", (what, tree.Number(value + 1)))
    return tree.Apply("eq", (what, tree.Number(value)))


def _most(dtype: str) -> int:
    """Return a number that no constant beside such an integer reaches."""
    return 1 << bits(dtype) - 1


def in_narrow_integers(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program one of whose extents is a sum of narrow integers, which may have wrapped around."""
    grids = [(place, grid) for place, grid in enumerate(program.grids) if not isinstance(grid, tree.Linear)]
    places = [
        (place, axis, extent.name)
        for place, grid in grids
        for axis, extent in enumerate(grid.extents)
        if isinstance(extent, tree.Name) and extent.name in program.dims
    ]
    if not places:
        return program
    place, axis, name = rng.choice(places)
    dtype, size = rng.choice(_NARROW), program.dims[name]
    low, high = int_range(dtype)
    if size > high:
        return program
    first, word = rng.randint(low, high), 1 << bits(dtype)
    second = (size - first - low) % word + low
    narrow = Type(dtype)
    total = tree.Apply("add", (tree.Name("narrow", narrow), tree.Number(second)))
    extents = list(program.grids[place].extents)
    extents[axis] = total
    grid = replace(program.grids[place], extents=tuple(extents))
    return replace(
        program,
        params=(tree.ScalarParam("narrow", dtype, first), *program.params),
        grids=(*program.grids[:place], grid, *program.grids[place + 1 :]),
    )
