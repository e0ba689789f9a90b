"""choose-products: obeys `mma_kind`, which says what instructions compute a kernel's products, or refuses it.

%sums = mma %a, %b, %acc
with `mma_kind=fma` becomes
%sums = mma %a, %b, %acc {tessera_schedule.multiply_adds = 1}

Under `strict` every product of floats becomes that: matrix instructions sum in an order of their own.
"""

from __future__ import annotations

from typing import ClassVar

from tessera.data import dataclass
from tessera.errors import ResourceError
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.notes import notes_of
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.scheduled_pass import GridPass
from tessera.target.fragments import mma_for
from tessera.target.records import TargetRecord


@dataclass(frozen=True)
class ChooseProductsPass(GridPass):
    """Marks the products of a launch, after `warp-specialize` has taken those that it can.

    Args:
        target: the GPU.
        knobs: `mma_kind`.
    """

    name: ClassVar[str] = "choose-products"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Mark or check every product of a launch.

        Raises:
            ResourceError: `no-instruction` where a product has no instruction of the kind.
        """
        for op in [op for op in ops_in(grid) if isinstance(op, MmaOp)]:
            if op.sums_in_order and self.knobs.mma_kind not in (None, "fma"):
                raise _refusal(op, self.knobs.mma_kind, "its sum has an order of its own, and strict gives one")
            if op.sums_in_order or self.knobs.mma_kind == "fma":
                decisions.MULTIPLY_ADDS.write(op)
            elif self.knobs.mma_kind == "mma_sync" and not has_instruction(self.target, op):
                raise _refusal(op, "mma_sync", f"{self.target.name} has no instruction of a warp for it")
            elif self.knobs.mma_kind == "wgmma" and not decisions.WARPGROUP.on(op):
                raise _refusal(op, "wgmma", "; ".join(notes_of(grid, "roles")) or f"{self.target.name} has none")


def has_instruction(target: TargetRecord, op: MmaOp) -> bool:
    """Return whether an instruction of one warp computes a product."""
    a, b, acc = (dtype_of(element_of(value.type)).name for value in (op.a, op.b, op.acc))
    if op.compute.data == "tf32":
        a = b = "tf32"
    (m, k), n = shape_of(op.a.type), shape_of(op.b.type)[1]
    return mma_for(a, b, "i32" if acc == "u32" else acc, target, (m, n, k))[0] is not None


def by_threads(target: TargetRecord, op: MmaOp) -> bool:
    """Return whether threads compute a product by multiply-adds, as no matrix instruction does."""
    if decisions.WARPGROUP.on(op):
        return False
    return decisions.MULTIPLY_ADDS.on(op) or not has_instruction(target, op)


def _refusal(op: MmaOp, kind: str, reason: str) -> ResourceError:
    (m, k), n = shape_of(op.a.type), shape_of(op.b.type)[1]
    return ResourceError(
        f"mma_kind={kind} does not compute this product of {m}x{n}x{k}: {reason}",
        code="no-instruction",
        location=location_of(op),
        help="leave mma_kind out, and the schedule takes the fastest that fits",
    )
