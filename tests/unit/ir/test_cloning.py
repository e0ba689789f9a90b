"""Clones are as xDSL makes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tessera.errors import Frame, Location
from tessera.ir.cloning import clone
from tessera.ir.locations import to_loc
from tests.unit.ir import samples


def _facts(module: ModuleOp) -> list[object]:
    """Return what `is_structurally_equivalent` leaves out: names, places, and the order of uses."""
    ops = list(module.walk())
    number = {op: at for at, op in enumerate(ops)}

    def of(op: Operation) -> object:
        arguments = [argument for region in op.regions for block in region.blocks for argument in block.args]
        values = [*op.results, *arguments]
        uses = [[(number[use.operation], use.index) for use in value.uses] for value in values]
        return op.location, [value.name_hint for value in values], uses, [argument.location for argument in arguments]

    return [of(op) for op in ops]


@pytest.mark.parametrize("sample", [samples.tile_module, samples.target_module], ids=["tile", "target"])
def test_a_clone_is_as_xdsl_makes_it(sample: Callable[[], ModuleOp]) -> None:
    module = sample()
    for at, op in enumerate(module.walk()):
        op.location = to_loc(Location(Frame("k.py", at + 1, 1)))
        for result in op.results:
            result.name_hint = f"value{chr(ord('a') + at % 26)}"
    copy = clone(module)
    assert copy is not module
    assert copy.is_structurally_equivalent(module)
    assert _facts(copy) == _facts(module.clone())
    copy.verify()
