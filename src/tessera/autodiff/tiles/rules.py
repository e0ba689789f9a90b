"""What comes back to the operands of ops without memory: elementwise functions, shapes, reductions, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from math import inf, isfinite
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.autodiff.partials import PARTIALS
from tessera.autodiff.tiles.emitter import Emitter, wide
from tessera.autodiff.tiles.errors import Asked
from tessera.autodiff.tiles.scales import number_of
from tessera.data import dataclass
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, RoundTf32Op, SplatOp
from tessera.ir.tile.exchange import ExchangeOp
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.mma import MmaOp, batch_of
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.reduce import ReduceOp, ScanOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp
from tessera.ir.tile.types import TileType, element_of, shape_of, with_element
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes

Cotangents = Sequence[SSAValue | None]
"""What comes back to each operand; None where it has no influence."""

FAR = frozenset("div rsqrt log log2 log10 log1p pow floordiv mod atan2 asin acos tan cbrt hypot".split())
"""Functions of numbers that may give infinities or NaN, such as where a tile lies outside its tensor."""


@dataclass(frozen=True)
class Pull:
    """What rules work with.

    Args:
        emit: writes ops.
        of: gives the value that stands for one of the kernel's, computed again.
        wanted: whether anything that comes back to a value of the kernel is of use.
        asked: what is differentiated, for messages.
    """

    emit: Emitter
    of: Callable[[SSAValue], SSAValue]
    wanted: Callable[[SSAValue], bool]
    asked: Asked


@singledispatch
def pull_back(op: Any, p: Pull, cotangent: SSAValue) -> Cotangents:
    """Emit what comes back to an op's operands from what comes back to its result.

    Args:
        op: the op of the kernel.
        p: what to emit with.
        cotangent: of the result, in `cotangent_type` of its type, as are those that are returned.

    Raises:
        LanguageError: `no-adjoint`.
    """
    raise p.asked.refused(op, op.name.partition(".")[2])


def is_near(emit: Emitter, value: SSAValue) -> bool:
    """Return whether a value is finite wherever the numbers that a kernel loads are, as far as can be told."""
    seen, work = set[tuple[SSAValue, bool]](), [(value, False)]
    while work:
        one, may_be_low = work.pop()
        op = one.owner
        if (one, may_be_low) in seen or one in emit.near or not isinstance(op, Operation):
            continue
        seen.add((one, may_be_low))
        if isinstance(op, ConstantOp):
            if not isfinite(op.python_value) and not (may_be_low and op.python_value == -inf):
                return False
        elif op.regions or (isinstance(op, ElementwiseOp) and op.fn.data in FAR):
            return False
        else:
            work += _sources(op, may_be_low)
    return True


def _sources(op: Operation, may_be_low: bool) -> list[tuple[SSAValue, bool]]:
    """Return what a value follows from, and whether minus infinity may stand there: an exponential makes zero of it."""
    if isinstance(op, LoadOp | GatherOp):
        return [] if op.fill is None else [(op.fill, may_be_low)]
    if not isinstance(op, ElementwiseOp):
        return [(operand, may_be_low and not isinstance(op, MmaOp | ReduceOp | ScanOp)) for operand in op.operands]
    low = {"exp": (True,), "exp2": (True,)}.get(op.fn.data, ())
    if may_be_low:
        more = {"select": (False, True, True), "sub": (True, False)}
        low = low or more.get(op.fn.data) or ((True, True) if op.fn.data in ("add", "maximum", "minimum") else ())
        if op.fn.data == "mul":
            low = tuple((number_of(other) or 0.0) > 0.0 for other in reversed(op.args))
    return [(arg, at < len(low) and low[at]) for at, arg in enumerate(op.args)]


def _is_zero_unless(emit: Emitter, cotangent: SSAValue, condition: SSAValue, holds: bool) -> bool:
    """Return whether a cotangent is known to be zero unless a condition holds, or does not: exp(−∞) is a factor."""
    work, is_zero = [(cotangent, False)], False
    while work:
        value, is_power = work.pop()
        op = value.owner
        if not isinstance(op, ElementwiseOp):
            continue
        fn, args = op.fn.data, list(op.args)
        if fn in ("exp", "exp2") and not is_power:
            work.append((args[0], True))
        elif fn == "mul":
            positive = [arg for arg, other in (args, reversed(args)) if (number_of(other) or 0.0) > 0.0]
            work += [(arg, is_power) for arg in (positive if is_power else args)]
        elif fn == "sub" and is_power:
            work.append((args[0], True))
        elif fn == "select" and is_power and args[0] is condition and number_of(args[1 + holds]) == -inf:
            is_zero = True
    return is_zero and is_near(emit, cotangent)


def scaled(emit: Emitter, cotangent: SSAValue, factor: Any, fn: str = "mul") -> SSAValue:
    """Return a cotangent times (or, with `fn`, over) a derivative.

    Where nothing comes back nothing does, however large the derivative is: tiles have numbers of no meaning where they
    lie outside of their tensors, and sums along a tile must not see them.
    """
    apply = emit.applier(cotangent.type)
    if factor in (1.0, -1.0):
        return cotangent if factor == 1.0 else apply("neg", cotangent)
    product = apply(fn, cotangent, factor)
    if fn == "mul" and (isinstance(factor, float) or is_near(emit, factor)):
        return product
    return apply("select", apply("eq", cotangent, 0.0), 0.0, product)


@pull_back.register
def _(op: ElementwiseOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    fn, emit = op.fn.data, p.emit
    apply = emit.applier(cotangent.type)
    if fn == "select":
        condition = p.of(op.args[0])
        for holds in (True, False):
            if _is_zero_unless(emit, cotangent, condition, holds):
                return [None, cotangent, None] if holds else [None, None, cotangent]
        return [None, apply("select", condition, cotangent, 0.0), apply("select", condition, 0.0, cotangent)]
    if fn not in PARTIALS:
        raise p.asked.refused(op, fn)
    args, result = [emit.widened(p.of(arg)) for arg in op.args], emit.widened(p.of(op.result))
    if fn == "div":
        first = scaled(emit, cotangent, args[1], "div")
        return [first, scaled(emit, apply("neg", first), result) if p.wanted(op.args[1]) else None]
    parts: list[SSAValue | None] = []
    for arg, partial in zip(op.args, PARTIALS[fn], strict=True):
        needed = partial is not None and p.wanted(arg)
        parts.append(scaled(emit, cotangent, partial(apply, args, result)) if needed and partial else None)
    return parts


@pull_back.register
def _(op: CastOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    element = element_of(op.source.type)
    return [p.emit.cast(cotangent, wide(element)) if dtype_of(element).is_float else None]


@pull_back.register
def _(op: RoundTf32Op, p: Pull, cotangent: SSAValue) -> Cotangents:
    return [cotangent]


@pull_back.register
def _(op: SplatOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    return [p.emit.summed(cotangent, range(len(shape_of(cotangent.type))))]


@pull_back.register
def _(op: BroadcastOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    source, result = shape_of(op.source.type), shape_of(op.result.type)
    grown = [axis for axis, (a, b) in enumerate(zip(source, result, strict=True)) if a != b]
    return [p.emit.reshaped(p.emit.summed(cotangent, grown), source)]


@pull_back.register
def _(op: ReshapeOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    return [p.emit.reshaped(cotangent, shape_of(op.source.type))]


@pull_back.register
def _(op: TransposeOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    perm = op.permutation
    return [p.emit.value(TransposeOp(cotangent, sorted(range(len(perm)), key=perm.__getitem__)))]


@pull_back.register
def _(op: ExchangeOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    return [p.emit.value(ExchangeOp(cotangent, op.axis.data, op.bits.data))]


@pull_back.register
def _(op: SubtileOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    starts = [p.emit.index(-place) for place in op.places]
    return [p.emit.value(PartOp(cotangent, starts, shape_of(op.source.type)))]


@pull_back.register
def _(op: PartOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    emit, whole = p.emit, shape_of(op.source.type)
    part = emit.reshaped(cotangent, op.sizes)
    starts = [p.of(start) for start in op.starts]
    for axis, step in enumerate(op.step_list):
        if step not in (1, -1):
            part = _apart(emit, part, axis, starts[axis], step, whole[axis])
    zero = emit.index(0)
    own = [abs(step) == 1 for step in op.step_list]
    if op.wrapped:
        sizes = [whole[axis] if axis in op.wrapped else size for axis, size in enumerate(shape_of(part.type))]
        part = emit.value(PartOp(part, [zero] * len(sizes), sizes))
    places = [
        (start if step == -1 else emit.binary("sub", zero, start)) if one else zero
        for start, step, one in zip(starts, op.step_list, own, strict=True)
    ]
    steps = [step if one else 1 for step, one in zip(op.step_list, own, strict=True)]
    return [emit.value(PartOp(part, places, whole, steps, op.wrapped)), *[None] * len(op.starts)]


def _apart(emit: Emitter, part: SSAValue, axis: int, start: SSAValue, step: int, size: int) -> SSAValue:
    """Return a tile of `size` elements along an axis: every `step`-th from `start` on is the next of a part."""
    shape = [size if at == axis else each for at, each in enumerate(shape_of(part.type))]
    line = emit.binary("sub", emit.value(ArangeOp(size, index)), emit.value(SplatOp(start, [size])))
    by = emit.full(step, line.type)
    among = emit.binary("eq", emit.binary("mod", line, by), emit.zero(line.type))
    place = emit.value(ElementwiseOp("select", [among, emit.binary("floordiv", line, by), emit.full(-1, line.type)]))
    thin = emit.reshaped(place, [size if at == axis else 1 for at in range(len(shape))])
    return emit.value(TakeOp(part, _broadcast(emit, thin, shape), axis))


def _broadcast(emit: Emitter, value: SSAValue, shape: Sequence[int]) -> SSAValue:
    return value if shape_of(value.type) == tuple(shape) else emit.value(BroadcastOp(value, shape))


@pull_back.register
def _(op: TakeOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    # Elements may be taken several times: each place sums what comes back from all that name it.
    emit, axis, source = p.emit, op.axis.data, shape_of(op.source.type)
    taken = shape_of(op.index.type)
    both = [*source[:axis], source[axis], taken[axis], *source[axis + 1 :]]
    thin = [*taken[:axis], 1, *taken[axis:]]
    places = p.of(op.index)
    named = _broadcast(emit, emit.reshaped(places, thin), both)
    line = emit.value(ArangeOp(source[axis], element_of(places.type)))
    own = _broadcast(emit, emit.reshaped(line, [source[axis] if at == axis else 1 for at in range(len(both))]), both)
    part = _broadcast(emit, emit.reshaped(cotangent, thin), both)
    apply = emit.applier(part.type)
    return [emit.summed(apply("select", apply("eq", named, own), part, 0.0), [axis + 1]), None]


@pull_back.register
def _(op: ReduceOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    emit, fn, axis, shape = p.emit, op.fn.data, op.axis.data, shape_of(op.source.type)
    spread = emit.spread(cotangent, axis, shape)
    if fn == "sum":
        return [spread]
    source, apply = emit.widened(p.of(op.source)), emit.applier(spread.type)
    if fn == "prod":
        return [scaled(emit, spread, _product_of_others(emit, source, axis))]
    # Of equal extremes each has an equal share.
    chosen = apply("eq", source, emit.spread(emit.widened(p.of(op.result)), axis, shape))
    count = emit.spread(emit.summed(apply("select", chosen, 1.0, 0.0), [axis]), axis, shape)
    return [apply("select", chosen, apply("div", spread, count), 0.0)]


def _product_of_others(emit: Emitter, source: SSAValue, axis: int) -> SSAValue:
    """Return for each element the product of the others along an axis."""
    shape = shape_of(source.type)
    line = emit.reshaped(
        emit.value(ArangeOp(shape[axis], index)), [n if at == axis else 1 for at, n in enumerate(shape)]
    )
    place = _broadcast(emit, line, shape)
    apply, sides = emit.applier(source.type), list[SSAValue]()
    for reverse, start, end in ((False, -1, 0), (True, 1, shape[axis] - 1)):
        scan = emit.value(ScanOp(source, axis, "prod", reverse))
        starts = [emit.index(start if at == axis else 0) for at in range(len(shape))]
        first = emit.binary("eq", place, emit.full(end, place.type))
        sides.append(apply("select", first, 1.0, emit.value(PartOp(scan, starts, shape))))
    return apply("mul", *sides)


@pull_back.register
def _(op: ScanOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    if op.fn.data != "sum":
        raise p.asked.refused(op, f"a running {op.fn.data}")
    return [p.emit.value(ScanOp(cotangent, op.axis.data, "sum", op.reverse is None))]


@pull_back.register
def _(op: MmaOp, p: Pull, cotangent: SSAValue) -> Cotangents:
    emit, element = p.emit, element_of(op.a.type)
    compute = op.compute.data
    if dtype_of(element).bits < 16:
        element, compute = element_type(dtypes.bf16), "bf16"
    part = emit.cast(cotangent, element)
    left = right = None
    if p.wanted(op.a):
        other = _settled(emit, emit.cast(p.of(op.b), element), part, -2)
        left = _product(emit, part, _turned(emit, other), shape_of(op.a.type), compute)
    if p.wanted(op.b):
        other = _settled(emit, emit.cast(p.of(op.a), element), part, -1)
        right = _product(emit, _turned(emit, other), part, shape_of(op.b.type), compute)
    return [left, right, cotangent]


def _turned(emit: Emitter, value: SSAValue) -> SSAValue:
    rank = len(shape_of(value.type))
    return emit.value(TransposeOp(value, [*range(rank - 2), rank - 1, rank - 2]))


def _settled(emit: Emitter, factor: SSAValue, cotangent: SSAValue, along: int) -> SSAValue:
    """Return an operand of a product with zeros where no number of the cotangent meets it, as `scaled` does.

    Args:
        emit: writes ops.
        factor: the operand: the right one, or the left one.
        cotangent: what it is multiplied by.
        along: the dimension of the cotangent that the operand lacks.
    """
    if is_near(emit, factor):
        return factor
    apply = emit.applier(with_element(cotangent.type, wide(element_of(cotangent.type))))
    size, shape = shape_of(cotangent.type), shape_of(factor.type)
    ones = apply("select", apply("eq", emit.widened(cotangent), 0.0), 0.0, 1.0)
    meets = emit.value(ReduceOp(ones, len(size) + along, "max"))
    if len(size) > len(shape) or (len(shape) == 3 and shape[0] < size[0]):
        meets = emit.value(ReduceOp(meets, 0, "max"))
    own = shape_of(meets.type)
    thin = [own[-1] if at == len(shape) + (-1 if along == -2 else -2) else 1 for at in range(len(shape))]
    if len(own) == 2:
        thin[0] = own[0]
    held = _broadcast(emit, emit.reshaped(meets, thin), shape)
    some = emit.value(ElementwiseOp("ne", [held, emit.zero(held.type)]))
    return emit.value(ElementwiseOp("select", [some, factor, emit.cast(emit.zero(held.type), element_of(factor.type))]))


def _product(emit: Emitter, left: SSAValue, right: SSAValue, shape: tuple[int, ...], compute: str) -> SSAValue:
    """Return a product in the shape of an operand, which may be one for all members of a batch."""
    a, b = list(shape_of(left.type)), list(shape_of(right.type))
    sizes = [*batch_of(tuple(a), tuple(b)), a[-2], b[-1]]
    start = emit.zero(TileType.of(sizes, wide(element_of(left.type))))
    product = emit.value(MmaOp(left, right, start, compute))
    if len(sizes) > 2 and (len(shape) == 2 or shape[0] == 1):
        product = emit.summed(product, [0])
    return emit.reshaped(product, shape)
