"""Every op is built, verified, printed and parsed back; a new op without a sample fails here."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from tessera.ir.collect import new_context
from tessera.ir.target import target_dialect
from tessera.ir.tile import tile_dialect
from tests.unit.ir import samples

MODULES = [samples.tile_module, samples.target_module]


def text_of(module: ModuleOp, generic: bool, locations: bool) -> str:
    out = io.StringIO()
    Printer(out, print_generic_format=generic, print_debuginfo=locations).print_op(module)
    return out.getvalue()


@pytest.mark.parametrize(
    ("dialect", "sample"),
    [(tile_dialect(), samples.tile_module), (target_dialect(), samples.target_module)],
    ids=["tile", "target"],
)
def test_every_op_has_a_sample(dialect, sample: Callable[[], ModuleOp]) -> None:
    missing = {op.name for op in dialect.operations} - {op.name for op in sample().walk()}
    assert not missing, f"add these to tests/unit/ir/samples.py: {sorted(missing)}"


@pytest.mark.parametrize("build", MODULES, ids=["tile", "target"])
@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("locations", [False, True], ids=["plain", "located"])
def test_text_parses_back(build: Callable[[], ModuleOp], generic: bool, locations: bool) -> None:
    module = build()
    module.verify()
    text = text_of(module, generic, locations)
    again = Parser(new_context(), text).parse_module()
    again.verify()
    assert again.is_structurally_equivalent(module)
    assert text_of(again, generic, locations) == text


def test_the_text_of_a_kernel_is_readable() -> None:
    text = text_of(samples.tile_module(), generic=False, locations=False)
    assert "tessera_tile.load %0[%7, %9] [1, 32] drop [0] : !tessera_tile.tensor<?x?xbf16>" in text
    assert '%1: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1]' in text
    assert "#builtin.int" not in text
