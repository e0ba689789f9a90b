"""Every op of TIR-H has a handler, and every elementwise function a formula."""

from __future__ import annotations

import pytest

from tessera.interp import HANDLERS, load_handlers
from tessera.ir.tile import tile_dialect
from tessera.ir.tile.reduce import CombinedOp
from tessera.ir.tile.structure import KernelOp


@pytest.mark.parametrize("op", list(tile_dialect().operations), ids=lambda op: op.name)
def test_every_op_has_a_handler(op) -> None:
    load_handlers()
    assert op in HANDLERS or op in (KernelOp, CombinedOp)  # a combiner's end is read by the op around it
