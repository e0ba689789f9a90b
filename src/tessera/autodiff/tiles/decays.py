"""Carried sums that decay by an exponential, `c' = exp(z) · c + f`, as those of an online softmax do.

What comes back to `z` is `⟨c̄', exp(z) · c⟩`, for which the sums at each iteration would have to be kept. With
`D' = ⟨c̄', c'⟩` along the dimensions that `z` lacks, it is `D = D' − ⟨c̄', f⟩`, and that is `⟨c̄, c⟩` an iteration
earlier. So the adjoint carries `D`, from the final sum on, and no sum is kept. What comes back to the sum itself is
multiplied by `exp(z)` at each iteration: the adjoint carries the product of these alone.

Source: Dao et al., "FlashAttention" (NeurIPS 2022), where `D` is the row sum of `dO ∘ O`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from xdsl.dialects.scf import ForOp
from xdsl.ir import SSAValue

from tessera.autodiff.tiles.emitter import Emitter
from tessera.data import dataclass
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import shape_of


@dataclass(frozen=True, eq=False)
class Decay:
    """One carried sum.

    Args:
        carried: its number among what the loop carries.
        power: the exponential, by `exp` or `exp2`.
        spread: the ops that repeat it along the dimensions that it lacks, in order.
        product: what is left of the sum before: the exponential times it.
        total: the op that gives the sum after: `add`, or a product of matrices with an accumulator.
    """

    carried: int
    power: ElementwiseOp
    spread: tuple[SplatOp | BroadcastOp | ReshapeOp, ...]
    product: ElementwiseOp
    total: ElementwiseOp | MmaOp

    @property
    def exponent(self) -> SSAValue:
        """What the exponential is of."""
        return self.power.args[0]

    @property
    def factor(self) -> float:
        """The derivative of the exponential, over itself."""
        return math.log(2.0) if self.power.fn.data == "exp2" else 1.0

    def along(self, emit: Emitter, value: SSAValue, steps: int | None = None) -> SSAValue:
        """Return the sum along the dimensions that the exponential lacks, in its shape.

        Args:
            emit: writes ops.
            value: what is added up, in the shape that the first `steps` ops give.
            steps: how many of the ops that repeat the exponential have led there; None for all.
        """
        for op in reversed(self.spread[:steps]):
            source, result = shape_of(op.operands[0].type), shape_of(op.results[0].type)
            if isinstance(op, SplatOp):
                value = emit.summed(value, range(len(result)))
            elif isinstance(op, ReshapeOp):
                value = emit.reshaped(value, source)
            else:
                grown = [axis for axis, (a, b) in enumerate(zip(source, result, strict=True)) if a != b]
                value = emit.reshaped(emit.summed(value, grown), source)
        return value

    def spread_out(self, emit: Emitter, value: SSAValue) -> SSAValue:
        """Return a value of the shape of the exponential, repeated as that is."""
        for op in self.spread:
            shape = shape_of(op.results[0].type)
            if isinstance(op, SplatOp):
                value = emit.value(SplatOp(value, shape))
            elif isinstance(op, ReshapeOp):
                value = emit.reshaped(value, shape)
            else:
                value = emit.value(BroadcastOp(value, shape))
        return value

    def at_end(self, emit: Emitter, cotangent: SSAValue, final: SSAValue) -> SSAValue:
        """Return `D` behind the last iteration."""
        return self.along(emit, emit.binary("mul", cotangent, emit.widened(final)))

    def before(
        self,
        emit: Emitter,
        d: SSAValue,
        cotangent: SSAValue,
        left: SSAValue | None,
        values: Mapping[SSAValue, SSAValue],
    ) -> SSAValue:
        """Emit and return `D` before an iteration.

        Args:
            emit: writes ops.
            d: `D` behind it.
            cotangent: what comes back to the sum behind it.
            left: what comes back to the left operand of a product of matrices, where that is known.
            values: the iteration's values.
        """
        if not isinstance(self.total, MmaOp):
            new = emit.widened(values[next(arg for arg in self.total.args if arg is not self.product.result)])
            return emit.binary("sub", d, self.along(emit, emit.binary("mul", cotangent, new)))
        a, b = (values[value] for value in (self.total.a, self.total.b))
        rows = self._rows
        if left is None or rows is None:
            new = emit.value(MmaOp(a, b, emit.zero(cotangent.type), self.total.compute.data))
            return emit.binary("sub", d, self.along(emit, emit.binary("mul", cotangent, new)))
        # ⟨c̄', a @ b⟩ along a row is ⟨c̄' @ bᵀ, a⟩, and that product is there.
        shape = shape_of(a.type)
        sums = emit.reshaped(
            emit.summed(emit.binary("mul", left, emit.widened(a)), [len(shape) - 1]), shape_of(rows.operands[0].type)
        )
        return emit.binary("sub", d, self.along(emit, sums, len(self.spread) - 1))

    @property
    def _rows(self) -> BroadcastOp | None:
        """The op that repeats the exponential along the rows of a product of matrices, where that is all it does."""
        last = self.spread[-1] if self.spread else None
        if not isinstance(last, BroadcastOp):
            return None
        source, result = shape_of(last.source.type), shape_of(last.result.type)
        return last if source == (*result[:-1], 1) == (*shape_of(self.total.operands[0].type)[:-1], 1) else None


def decays_of(loop: ForOp, carried: Sequence[int]) -> list[Decay]:
    """Return the sums of a loop that decay by exponentials, and that nothing else in it reads."""
    end = loop.body.block.last_op
    assert end is not None, "a loop's body ends with its yield"
    found: list[Decay] = []
    for number in carried:
        argument, result = loop.body.block.args[number + 1], end.operands[number]
        if len(list(argument.uses)) == 1 and len(list(result.uses)) == 1:
            decay = _decay(number, argument, result)
            if decay is not None:
                found.append(decay)
    return found


def _decay(number: int, argument: SSAValue, result: SSAValue) -> Decay | None:
    product = next(iter(argument.uses)).operation
    if not isinstance(product, ElementwiseOp) or product.fn.data != "mul" or len(list(product.result.uses)) != 1:
        return None
    total = result.owner
    if isinstance(total, MmaOp):
        if total.acc is not product.result or total.a is product.result or total.b is product.result:
            return None
    elif not isinstance(total, ElementwiseOp) or total.fn.data != "add" or product.result not in total.args:
        return None
    value = next((arg for arg in product.args if arg is not argument), None)
    spread: list[SplatOp | BroadcastOp | ReshapeOp] = []
    while value is not None and isinstance(value.owner, SplatOp | BroadcastOp | ReshapeOp):
        spread.insert(0, value.owner)
        value = value.owner.operands[0]
    power = None if value is None else value.owner
    if not isinstance(power, ElementwiseOp) or power.fn.data not in ("exp", "exp2"):
        return None
    return Decay(number, power, tuple(spread), product, total)
