"""What a program's arrays hold in the end: its meaning, and under `strict` the bits that all targets have to give.

The meaning bounds what an implementation's floats may be off by. Of a program under `strict`, the interpreter runs what
the front end made of it; where its results keep the bounds, they are what is expected, without any. Signs of zeros
count except in programs with products or sorts, which `strict` does not promise all of; those of NaN never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np

from tessera.errors import TesseraError
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.meaning_values import Array, Val
from tessera.tools.fuzz.run import arguments, differs
from tessera.tools.fuzz.steps import built
from tessera.tools.fuzz.types import is_float


def wanted(program: tree.Program, values: Mapping[str, Array], folder: Path) -> tuple[dict[str, Val], set[str]]:
    """Return what arrays hold after a program ran, and what happened (`meaning.meaning`).

    Args:
        program: the program.
        values: what its arrays hold before.
        folder: where its source is written.

    Raises:
        Undetermined: nothing is promised of it.
    """
    meant, events = meaning(program, values)
    if program.profile != "strict" or not any(is_float(want.dtype) for want in meant.values()):
        return meant, events
    signed = not any(isinstance(node, tree.Mma | tree.Sort) for node in tree.walk(program))
    found = _interpreted(program, values, folder)
    return {name: _sharpened(want, found.get(name), signed) for name, want in meant.items()}, events


def _sharpened(want: Val, found: Array | None, signed: bool) -> Val:
    if found is None or not is_float(want.dtype):
        return want
    keeps = ~differs(found, want)
    data, err = np.where(keeps, found.astype(np.float64), want.data), np.where(keeps, 0, want.errors())
    return replace(want, data=data, err=err, signed=keeps if signed else None)


def _interpreted(program: tree.Program, values: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """Return the arrays after the interpreter ran a program; none where it cannot, which other devices report."""
    from tessera.interp import interpret
    from tessera.ir.passes import PassRunner
    from tessera.schedule.bound_stages import BoundStagesPass

    arrays = {tensor.name: placed(values[tensor.name], tensor.layout).view for tensor in program.tensors}
    args = arguments(program, arrays)
    try:
        with conditions(program):
            module = built(program, folder, values)
            PassRunner().run(module, "schedule", (BoundStagesPass(),))
            interpret(module, args, checks=False, order_seed=program.seed, out=StringIO())
    except TesseraError:
        return {}
    return arrays
