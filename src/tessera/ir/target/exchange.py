"""What other threads hold."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.types import element_type
from tessera.numerics import dtypes

U32 = element_type(dtypes.u32)


@op_definition
class ExchangeOp(TesseraOp):
    """Gives register `r` what register `r ^ register` of the lane `lane ^ lane-bits` holds.

    Bits of `lanes`, which is the same in all threads, differ as well.
    """

    name = "tessera_target.exchange"
    source = operand_def(FragmentType)
    register = prop_def(IntAttr)
    lane = prop_def(IntAttr)
    lanes = opt_operand_def(U32)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$source `register` custom<Int>($register) `lane` custom<Int>($lane) (`lanes` $lanes^)? attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, register: int, lane: int, lanes: SSAValue | None = None):
        super().__init__(
            operands=[source, lanes],
            properties={"register": IntAttr(register), "lane": IntAttr(lane)},
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check that there are such registers and lanes."""
        _verify(self.source, self.result, {"register": self.register, "lane": self.lane}, self.lanes is not None)


@op_definition
class ExchangeWarpsOp(TesseraOp):
    """Gives register `r` what register `r ^ register` of another warp's thread holds, by way of shared memory.

    Lane and warp of that thread differ from one's own in the bits given, its warp in those of `warps` as well, which is
    the same in all threads. Rows of the buffer hold a round: what all
    threads store before a barrier, some registers of each. The buffer is free before, and free after the next barrier.
    """

    name = "tessera_target.exchange_warps"
    source = operand_def(FragmentType)
    buffer = operand_def(BufferType)
    register = prop_def(IntAttr)
    lane = prop_def(IntAttr)
    warp = prop_def(IntAttr)
    warps = opt_operand_def(U32)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = (
        "$source `by` $buffer `register` custom<Int>($register) `lane` custom<Int>($lane) `warp` custom<Int>($warp) "
        "(`warps` $warps^)? attr-dict `:` type($source) `by` type($buffer) `->` type($result)"
    )

    def __init__(
        self, source: SSAValue, buffer: SSAValue, register: int, lane: int, warp: int, warps: SSAValue | None = None
    ):
        super().__init__(
            operands=[source, buffer, warps],
            properties={"register": IntAttr(register), "lane": IntAttr(lane), "warp": IntAttr(warp)},
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check that there are such threads, and that rows of the buffer hold registers of all of them."""
        bits = {"register": self.register, "lane": self.lane, "warp": self.warp}
        _verify(self.source, self.result, bits, self.warps is not None)
        type_, buffer = self.source.type, self.buffer.type
        assert isinstance(type_, FragmentType)
        assert isinstance(buffer, BufferType)
        registers, threads = type_.linear.registers, type_.linear.lanes * type_.linear.warps
        row = buffer.shape[-1]
        if buffer.element != type_.element or len(buffer.shape) != 2 or row % threads or registers % (row // threads):
            raise VerifyException(f"{buffer} does not hold rounds of {registers} registers of {threads} threads")


@op_definition
class KeepInOrderOp(TesseraOp):
    """Keeps the smaller ones of one's own elements and a partner's in the lower place, the larger in the upper one.

    The first half of the operands are one's own, the second half the partner's; of equal elements of the first tile
    those of the second decide. Register `r` of a thread is the upper place where `r` has a bit of `register`, or the
    thread's number one of `threads`, which is the same in all threads. `descending` turns the places round.
    """

    name = "tessera_target.keep_in_order"
    sources = var_operand_def(FragmentType)
    threads = operand_def(U32)
    register = prop_def(IntAttr)
    descending = opt_prop_def(UnitAttr)
    outputs = var_result_def(FragmentType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$sources `register` custom<Int>($register) `threads` $threads (`descending` $descending^)? attr-dict "
        "`:` type($sources) `->` type($outputs)"
    )

    def __init__(
        self,
        own: Sequence[SSAValue],
        other: Sequence[SSAValue],
        register: int,
        threads: SSAValue,
        descending: bool = False,
    ):
        super().__init__(
            operands=[[*own, *other], threads],
            properties={"register": IntAttr(register), "descending": UnitAttr() if descending else None},
            result_types=[[value.type for value in own]],
        )

    def verify_(self) -> None:
        """Check that there are one or two tiles of each side, and that there is such a register."""
        types, results = [source.type for source in self.sources], [output.type for output in self.outputs]
        if len(results) not in (1, 2) or types != [*results, *results]:
            raise VerifyException(f"{len(types)} fragments are put in order as {len(results)}")
        first = self.outputs[0].type
        assert isinstance(first, FragmentType)
        if any(type_.linear != first.linear for type_ in results):
            raise VerifyException("fragments of several layouts")
        if not 0 <= self.register.data < first.linear.registers:
            raise VerifyException(f"register bits {self.register.data} of {first.linear.registers}")


def _verify(source: SSAValue, result: SSAValue, bits: dict[str, IntAttr], more: bool) -> None:
    type_ = source.type
    assert isinstance(type_, FragmentType)
    if result.type != type_:
        raise VerifyException("an exchange keeps the type")
    for dim, mask in bits.items():
        if not 0 <= mask.data < type_.linear.in_size(dim):
            raise VerifyException(f"{dim} bits {mask.data} of {type_.linear.in_size(dim)}")
    if not more and not any(mask.data for mask in bits.values()):
        raise VerifyException("threads exchange with others")
