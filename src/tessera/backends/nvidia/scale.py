"""Products with factors that are mostly one: a warp asks its lanes, and branches around them.

Source: PTX ISA 9.2, "vote.sync".
"""

from __future__ import annotations

from tessera.backends.llvm import elementwise
from tessera.backends.llvm.types import of_dtype
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.fragments import combine
from tessera.ir.target.arithmetic import ScaleOp
from tessera.ir.target.types import FragmentType
from tessera.numerics.dtypes import boolean


@NVIDIA.register(ScaleOp)
def emit_scale(emitter: NvidiaEmitter, op: ScaleOp) -> None:
    """Multiply where a lane of the warp has a factor that is not one; registers share their rows' factors."""
    type_ = op.result.type
    assert isinstance(type_, FragmentType)
    fn, unit = emitter.fn, of_dtype(type_.dtype)
    factors, source = emitter.units(op.factors), emitter.units(op.source)
    one = emitter.ops.real(unit, 1.0)
    others = [emitter.ops.compare("une", unit, factor, one) for factor in dict.fromkeys(factors)]
    some = emitter.any_lane(combine(emitter, "any", boolean, others))
    then, join, before = fn.label("scale"), fn.label("scaled"), fn.block
    fn.branch_if(some, then, join)
    fn.start(then)
    pairs = zip(factors, source, strict=True)
    scaled = [elementwise.apply(emitter, "mul", type_.dtype, 1, list(pair)) for pair in pairs]
    end = fn.block
    fn.branch(join)
    fn.start(join)
    units = [fn.phi(str(unit), [(one, end), (other, before)]) for one, other in zip(scaled, source, strict=True)]
    emitter.bind(op.result, units)
