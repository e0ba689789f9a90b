"""Effects: every op declares one, and exchange follows the lattice."""

from __future__ import annotations

import pytest
from xdsl.dialects.scf import ForOp
from xdsl.traits import IsTerminator, is_side_effect_free

from tessera.ir.effects import Effect, HasEffect, commutes, effect_of, reads_only
from tessera.ir.target import target_dialect
from tessera.ir.tile import tile_dialect
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.shared import SharedStoreOp
from tessera.ir.tile.structure import GridOp
from tests.unit.ir import samples


@pytest.mark.parametrize("op", [*tile_dialect().operations, *target_dialect().operations], ids=lambda op: op.name)
def test_every_op_declares_its_effect(op) -> None:
    joined_over_regions = bool(op.get_irdl_definition().regions)
    assert joined_over_regions or op.has_trait(IsTerminator) or op.has_trait(HasEffect)


def first(cls):
    return next(op for op in samples.tile_module().walk() if isinstance(op, cls))


def test_effects_join_over_regions() -> None:
    assert effect_of(first(GridOp)) == Effect.IO  # it holds a print
    assert effect_of(first(ForOp)) == Effect.PURE


def test_xdsl_sees_the_same() -> None:
    assert is_side_effect_free(first(ElementwiseOp))
    assert is_side_effect_free(first(PhiloxOp))
    assert not is_side_effect_free(first(StoreOp))
    assert not is_side_effect_free(first(AtomicOp))


def test_only_reads_and_pure_ops_commute_with_memory() -> None:
    load, store, add = first(LoadOp), first(StoreOp), first(ElementwiseOp)
    assert reads_only(load)
    assert commutes(load, load)
    assert not commutes(load, store)
    assert not commutes(store, store)
    assert commutes(add, store)


def test_mma_on_shared_buffers_reads_what_others_write() -> None:
    on_buffers, on_tiles = (op for op in samples.tile_module().walk() if isinstance(op, MmaOp))
    assert effect_of(on_buffers) == Effect.STATE
    assert reads_only(on_buffers)
    assert not commutes(on_buffers, first(SharedStoreOp))
    assert effect_of(on_tiles) == Effect.PURE
