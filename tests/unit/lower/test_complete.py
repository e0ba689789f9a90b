"""Every op of TIR-H has a lowering rule for GPUs and one for CPUs; the names of missing ones are in the failure."""

from __future__ import annotations

import pytest

import tessera.lower.simt as simt
import tessera.lower.vector as vector
from tessera.ir.tile import structure, tile_dialect
from tessera.ir.tile.elementwise import RoundTf32Op
from tessera.ir.tile.exchange import SortOp
from tessera.ir.tile.reduce import CombinedOp
from tessera.ir.tile.roles import RoleEndOp
from tessera.ir.tile.shape import SubtileOp
from tessera.lower.simt.rules import LAZY, LOWERINGS
from tessera.lower.vector.rules import RULES

STRUCTURE = {structure.KernelOp, structure.GridOp, structure.AssumeOp, structure.ReturnOp, RoleEndOp, CombinedOp}
"""Read by `lower/launch.py`, which both models share, or by the rule of the op around them."""


@pytest.fixture(autouse=True)
def _rules() -> None:
    simt._load_rules()
    vector._load_rules()


def test_gpus() -> None:
    assert [op.name for op in tile_dialect().operations if op not in {*LOWERINGS, *LAZY, *STRUCTURE}] == []


def test_cpus() -> None:
    # Warp roles, products under way, clusters, split and shared sums, parts of tiles, rounded operands, tensors as one
    # row and chunks that begin where accesses are aligned are written by the schedule of GPUs only.
    families = (".flat", ".roles", ".split", ".stream", ".cluster", ".warpgroup")
    of_gpus = {op for op in tile_dialect().operations if op.__module__.endswith(families)} | {
        SubtileOp,
        RoundTf32Op,
        structure.MisalignmentOp,
        structure.StrideOp,
    }
    # A dimension's size is a parameter of the entry point; the schedule of CPUs writes sorting as exchanges.
    known = {*RULES, *STRUCTURE, *of_gpus, structure.DimOp, SortOp}
    assert [op.name for op in tile_dialect().operations if op not in known] == []
