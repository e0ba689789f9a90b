"""Counter-based random numbers."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.tile.types import TileType, with_element
from tessera.ir.types import dtype_of, element_type
from tessera.numerics import dtypes


@op_definition
class PhiloxOp(TesseraOp):
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

    `counter` is a tile of 64-bit counters (its words are c0 and c1; c2 = c3 = 0) and `seed` a 64-bit key.
    Gives four tiles of 32 random bits.
    """

    name = "tessera_tile.philox"
    seed = operand_def()
    counter = operand_def(TileType)
    r0 = result_def(TileType)
    r1 = result_def(TileType)
    r2 = result_def(TileType)
    r3 = result_def(TileType)
    traits = traits_def(*effect(Effect.RANDOM))
    assembly_format = (
        "$seed `,` $counter attr-dict `:` type($seed) `,` type($counter) "
        "`->` type($r0) `,` type($r1) `,` type($r2) `,` type($r3)"
    )

    def __init__(self, seed: SSAValue, counter: SSAValue):
        word = with_element(counter.type, element_type(dtypes.u32))
        super().__init__(operands=[seed, counter], result_types=[word] * 4)

    def verify_(self) -> None:
        """Check that seed and counter are 64-bit integers."""
        if dtype_of(self.seed.type).bits != 64 or self.counter.type.dtype.bits != 64:  # pyright: ignore
            raise VerifyException("philox takes a 64-bit seed and 64-bit counters")
