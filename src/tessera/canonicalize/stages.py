"""The order of the canonical passes, and those that clean up after scheduling."""

from __future__ import annotations

from tessera.canonicalize.common_subexpressions import CommonSubexpressionsPass
from tessera.canonicalize.dead_code import DeadCodePass
from tessera.canonicalize.fold_constants import FoldConstantsPass
from tessera.canonicalize.fuse_shapes import FuseShapesPass
from tessera.canonicalize.gather_taken import GatherTakenPass
from tessera.canonicalize.gather_to_slice import GatherToSlicePass
from tessera.canonicalize.loop_invariants import LoopInvariantsPass
from tessera.canonicalize.merge_casts import MergeCastsPass
from tessera.canonicalize.merge_loads import MergeLoadsPass
from tessera.canonicalize.narrow_parts import NarrowPartsPass
from tessera.canonicalize.remove_noops import RemoveNoopsPass
from tessera.canonicalize.simplify_control_flow import SimplifyControlFlowPass
from tessera.canonicalize.split_batches import SplitBatchesPass
from tessera.ir.passes import Pass

# Constants first: they decide branches and shapes. Gathers become slices before casts and shapes are merged, as the
# pattern wants the index arithmetic as written; batches of products are split before parts of tiles are narrowed, as
# members of batches are parts; parts of tiles, and elements taken of them, move to what these are loaded or
# made of before that is merged. Dead code last, once, for what all the others left behind.
CANONICALIZE: tuple[Pass, ...] = (
    FoldConstantsPass(),
    SimplifyControlFlowPass(),
    MergeLoadsPass(),
    GatherToSlicePass(),
    SplitBatchesPass(),
    NarrowPartsPass(),
    GatherTakenPass(),
    FuseShapesPass(),
    MergeCastsPass(),
    RemoveNoopsPass(),
    LoopInvariantsPass(),
    DeadCodePass(),
)

# What scheduling writes is index arithmetic on constants, repeated per stage.
CLEAN_UP: tuple[Pass, ...] = (FoldConstantsPass(), CommonSubexpressionsPass(), DeadCodePass())
