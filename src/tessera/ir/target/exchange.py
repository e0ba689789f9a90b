"""What other threads hold."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int
from tessera.ir.target.types import BufferType, FragmentType


@op_definition
class ExchangeOp(TesseraOp):
    """Gives register `r` what register `r ^ register` of the lane `lane ^ lane-bits` holds."""

    name = "tessera_target.exchange"
    source = operand_def(FragmentType)
    register = prop_def(IntAttr)
    lane = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$source `register` custom<Int>($register) `lane` custom<Int>($lane) attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, register: int, lane: int):
        super().__init__(
            operands=[source],
            properties={"register": IntAttr(register), "lane": IntAttr(lane)},
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check that there are such registers and lanes."""
        _verify(self.source, self.result, {"register": self.register, "lane": self.lane})


@op_definition
class ExchangeWarpsOp(TesseraOp):
    """Gives register `r` what register `r ^ register` of another warp's thread holds, by way of shared memory.

    Lane and warp of that thread differ from one's own in the bits given. Rows of the buffer hold a round: what all
    threads store before a barrier, some registers of each. The buffer is free before, and free after the next barrier.
    """

    name = "tessera_target.exchange_warps"
    source = operand_def(FragmentType)
    buffer = operand_def(BufferType)
    register = prop_def(IntAttr)
    lane = prop_def(IntAttr)
    warp = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = (
        "$source `by` $buffer `register` custom<Int>($register) `lane` custom<Int>($lane) `warp` custom<Int>($warp) "
        "attr-dict `:` type($source) `by` type($buffer) `->` type($result)"
    )

    def __init__(self, source: SSAValue, buffer: SSAValue, register: int, lane: int, warp: int):
        super().__init__(
            operands=[source, buffer],
            properties={"register": IntAttr(register), "lane": IntAttr(lane), "warp": IntAttr(warp)},
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check that there are such threads, and that rows of the buffer hold registers of all of them."""
        _verify(self.source, self.result, {"register": self.register, "lane": self.lane, "warp": self.warp})
        type_, buffer = self.source.type, self.buffer.type
        assert isinstance(type_, FragmentType)
        assert isinstance(buffer, BufferType)
        registers, threads = type_.linear.registers, type_.linear.lanes * type_.linear.warps
        row = buffer.shape[-1]
        if buffer.element != type_.element or len(buffer.shape) != 2 or row % threads or registers % (row // threads):
            raise VerifyException(f"{buffer} does not hold rounds of {registers} registers of {threads} threads")


def _verify(source: SSAValue, result: SSAValue, bits: dict[str, IntAttr]) -> None:
    type_ = source.type
    assert isinstance(type_, FragmentType)
    if result.type != type_:
        raise VerifyException("an exchange keeps the type")
    for dim, mask in bits.items():
        if not 0 <= mask.data < type_.linear.in_size(dim):
            raise VerifyException(f"{dim} bits {mask.data} of {type_.linear.in_size(dim)}")
    if not any(mask.data for mask in bits.values()):
        raise VerifyException("threads exchange with others")
