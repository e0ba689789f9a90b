"""The check at compile time and the interpreter agree on what lacks a barrier, a wait or a commit.

The check looks at more paths than one run of the interpreter takes. Where branches and loops depend on data, the
interpreter has to find the same with other data; where they depend on sizes, the check has to with the sizes at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import DeviceError, LanguageError
from tessera.interp import interpret
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.shrink_edits import exchanged
from tessera.tools.fuzz.steps import built
from tessera.verify import check_shared
from tessera.verify.samples import Samples

DRAWN = Options(shared=1.0, outside=0.0, empty=0.0, debug=0.0, small=0.8, long=0.0, large=0.0)
ORDERING = (tree.Commit, tree.Wait, tree.Barrier)


def ordering(program: tree.Program) -> list[tuple[tree.Node, str, int]]:
    """Return where the barriers, waits and commits of a program are: node, name of its block, place."""
    found: list[tuple[tree.Node, str, int]] = []
    for node in tree.walk(program):
        for name in ("body", "then", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, tuple):
                found += [(node, name, at) for at, part in enumerate(block) if isinstance(part, ORDERING)]
    return found


def faulty(program: tree.Program, random: Random) -> Iterator[tree.Program]:
    """Yield the program, and two others in which one thing that orders accesses is missing or waits for too few."""
    yield program
    places = ordering(program)
    for node, name, at in random.sample(places, min(len(places), 2)):
        block = getattr(node, name)
        lost = (replace(block[at], pending=block[at].pending + 1),) if isinstance(block[at], tree.Wait) else ()
        yield exchanged(program, node, replace(node, **{name: (*block[:at], *lost, *block[at + 1 :])}))


def arguments(program: tree.Program, seed: int) -> list[Any]:
    """Return the arguments of a program; with another seed its scalars change too, and half have small integers."""
    drawn = {tensor.name: contents(tensor, seed) for tensor in program.tensors}
    if (seed - program.seed) % 2:  # what indices into small buffers have to be
        drawn = {name: array % 8 if array.dtype.kind in "iu" else array for name, array in drawn.items()}
    values = {tensor.name: placed(drawn[tensor.name], tensor.layout).view for tensor in program.tensors}
    scalars = {p.name: p.value for p in program.params if isinstance(p, tree.ScalarParam)}
    if seed != program.seed:
        drawn = Random(seed)
        scalars = {name: type(value)(drawn.choice((0, 1, 2, 5, value))) for name, value in scalars.items()}
    given = {**values, **scalars}
    return [given[param.name] for param in program.params if not isinstance(param, tree.Constant)]


def interpreted(program: tree.Program, module: ModuleOp, seed: int) -> str:
    """Return what the interpreter finds wrong with the shared buffers of a program, with data of a seed."""
    try:
        interpret(module, arguments(program, seed))
    except DeviceError as error:
        return error.code if "shared buffer" in error.message else f"other: {error.code}"
    return ""


def compiled(module: ModuleOp) -> str:
    """Return what the check at compile time finds."""
    try:
        check_shared(module)
    except LanguageError as error:
        return error.code
    return ""


def at_hand(dimension: str, dims: dict[str, int]) -> int:
    """Return the size of a dimension, which may be spelled as an expression of names."""
    return eval(dimension, {}, dict(dims))


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_both_find_the_same(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counter[str]()
    for seed in range(start, start + 20):
        drawn = generate(seed, DRAWN)
        if not any(isinstance(node, tree.AllocShared) for node in tree.walk(drawn)):
            continue
        for program in faulty(drawn, Random(seed)):
            values = {tensor.name: contents(tensor, seed) for tensor in program.tensors}
            with conditions(program):
                module = built(program, tmp_path, values)
            expected, got = interpreted(program, module, seed), compiled(module)
            if expected.startswith("other"):
                continue
            if got != expected:
                with monkeypatch.context() as patched:
                    patched.setattr(
                        Samples, "size", lambda self, op, dims=program.dims: at_hand(self.name_of(op), dims)
                    )
                    got = compiled(module)
                if got == expected:
                    found["depends on sizes"] += 1
                    continue
            if got and not expected:
                reached = any(interpreted(program, module, other) == got for other in range(seed + 1, seed + 40))
                found["depends on data" if reached else "in a branch that no data reached"] += 1
                continue
            assert got == expected, seed
            found[got or "none"] += 1
    assert found["race"] >= 1, found
    assert found["none"] >= 10, found
    assert found["in a branch that no data reached"] <= 1, found
