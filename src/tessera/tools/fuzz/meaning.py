"""What a program computes: every program of every grid in order, on NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

import numpy as np

from tessera.tools.fuzz import meaning_elementwise as elementwise
from tessera.tools.fuzz import meaning_memory as memory
from tessera.tools.fuzz import meaning_parts as parts
from tessera.tools.fuzz import meaning_reductions as reductions
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.combiners import meaning_of
from tessera.tools.fuzz.functions import operand_dtype
from tessera.tools.fuzz.meaning_casts import bitcast, cast
from tessera.tools.fuzz.meaning_values import (
    FORMATS,
    NUMPY,
    Array,
    Undetermined,
    Val,
    constant,
    either,
    nearest,
    possible_steps,
    rounded,
    stored,
)
from tessera.tools.fuzz.types import Shape, accumulator, common, is_float


@dataclass
class Machine:
    """The state of a running program.

    Args:
        program: what runs.
        tensors: what the tensors hold.
        env: local names.
        predicate: the condition of the enclosing `if`s on tiles.
        shared: the shared buffers of the program of the grid that runs.
        sums: what atomics added to the tensors during the grid that runs.
        point: the number of the program of that grid.
        loops: how many loops at run time are around.
        totals: for names that they add to, the sum of all magnitudes, and what all numbers are multiples of.
        events: what happened that some backends report: `index-outside`, `stage-outside`, `race`.
        steps: statements that may still run.
    """

    program: tree.Program
    tensors: dict[str, Val]
    env: dict[str, Val] = field(default_factory=dict[str, Val])
    predicate: Val | None = None
    shared: dict[str, Val] = field(default_factory=dict[str, Val])
    sums: dict[str, memory.FloatSums] = field(default_factory=dict[str, memory.FloatSums])
    point: int = 0
    loops: int = 0
    totals: dict[str, tuple[Array, Array]] = field(default_factory=dict[str, "tuple[Array, Array]"])
    events: set[str] = field(default_factory=set[str])
    steps: int = 20000

    def value(self, expr: tree.Expr) -> Val:
        """Evaluate an expression."""
        return _EXPRESSIONS[type(expr)](self, expr)

    def scalar(self, expr: tree.Expr, what: str) -> int:
        """Evaluate an integer that decides what runs or what is accessed.

        Raises:
            Undetermined: it is not known.
        """
        return int(self.value(expr).only(what))

    def run(self, block: tree.Block) -> None:
        """Run statements in order."""
        for statement in block:
            self.steps -= 1
            if self.steps < 0:
                raise Undetermined("too many steps")
            _STATEMENTS[type(statement)](self, statement)


class _Left(Exception):
    """A jump on its way to what it leaves.

    Args:
        value: what a helper returns.
    """

    def __init__(self, value: Val | None = None) -> None:
        super().__init__()
        self.value = value


class _Broken(_Left):
    """`break`."""


class _Continued(_Left):
    """`continue`."""


class _Returned(_Left):
    """`return`."""


def meaning(program: tree.Program, arrays: Mapping[str, Array]) -> tuple[dict[str, Val], set[str]]:
    """Return what the tensors hold after the program ran, and the events of the run.

    Args:
        program: the program.
        arrays: what its tensor parameters hold before; not changed.

    Raises:
        Undetermined: nothing is promised of this program's results.
    """
    tensors = {t.name: stored(t.dtype, np.array(arrays[t.name])) for t in program.tensors}
    machine = Machine(program, tensors)
    outer = {name: Val("i64", np.asarray(size, np.int64)) for name, size in program.dims.items()}
    for param in program.params:
        if isinstance(param, tree.ScalarParam):
            outer[param.name] = constant(param.value, param.dtype)
    with np.errstate(all="ignore"):
        for grid in program.grids:
            _launch(machine, grid, outer)
    return machine.tensors, machine.events


def _launch(machine: Machine, grid: tree.Grid, outer: dict[str, Val]) -> None:
    machine.env = dict(outer)
    extents = [machine.scalar(extent, "a grid's extent") for extent in grid.extents]
    counts = [max(-(-extent // block), 0) for extent, block in zip(extents, grid.blocks, strict=True)]
    machine.sums = {}
    for machine.point, point in enumerate(product(*map(range, counts))):
        machine.env = dict(outer)
        machine.shared = {}
        for name, number, block in zip(grid.vars, point, grid.blocks, strict=True):
            machine.env[name] = Val("i64", np.asarray(number * block, np.int64))
            if isinstance(grid, tree.Linear):
                machine.env[name] = Val("i64", np.arange(block))
        with suppress(_Continued, _Returned):
            machine.run(grid.body)


# Expressions


def _number(machine: Machine, expr: tree.Number) -> Val:
    return constant(expr.value, expr.type.dtype)


def _name(machine: Machine, expr: tree.Name) -> Val:
    return machine.env[expr.name]


def _as(machine: Machine, expr: tree.Expr, dtype: str) -> Val:
    """Evaluate an operand in the dtype of its operation; numbers of the source take it exactly."""
    if isinstance(expr, tree.Number):
        return constant(expr.value, dtype)
    return cast(machine.value(expr), dtype)


def _apply(machine: Machine, expr: tree.Apply) -> Val:
    dtype = operand_dtype(expr.fn, [arg.type for arg in expr.args])
    args = [_as(machine, arg, dtype) for arg in expr.args]
    return _spread(elementwise.apply(expr.fn, args, dtype, machine.program.profile), expr.type.shape)


def _spread(value: Val, shape: Shape) -> Val:
    """Repeat data, errors and masks to a shape."""
    if value.data.shape == shape and value.err is None and value.known is None:
        return value

    def to(part: Any) -> Any:
        return part if part is None or part.shape == shape else np.broadcast_to(part, shape)

    return Val(value.dtype, to(value.data), to(value.err), to(value.known), terms=to(value.terms))


def _known(machine: Machine, expr: tree.Known) -> Val:
    compare = {"lt": operator.lt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne, "gt": operator.gt}
    return constant(compare[expr.fn](expr.left.value, expr.right.value), "bool")


def _power(machine: Machine, expr: tree.Power) -> Val:
    return elementwise.power(_as(machine, expr.base, expr.type.dtype), expr.exponent, expr.type.dtype)


def _where(machine: Machine, expr: tree.Where) -> Val:
    dtype = common((expr.a.type, expr.b.type))
    parts = [_as(machine, part, dtype) for part in (expr.a, expr.b)]
    return _spread(elementwise.where(machine.value(expr.condition), *parts), expr.type.shape)


def _cast(machine: Machine, expr: tree.Cast) -> Val:
    return cast(machine.value(expr.x), expr.dtype, expr.saturate)


def _shape(machine: Machine, expr: Any) -> Val:
    return machine.value(expr.x).moved(lambda data: data.reshape(expr.type.shape))


def _transpose(machine: Machine, expr: tree.Transpose) -> Val:
    return machine.value(expr.x).moved(lambda data: data.transpose(expr.perm))


def _broadcast(machine: Machine, expr: tree.BroadcastTo) -> Val:
    return _spread(machine.value(expr.x), expr.shape)


def _stack(machine: Machine, expr: tree.Stack) -> Val:
    dtype = expr.type.dtype
    tiles = [_spread(_as(machine, part, dtype), part.type.shape) for part in expr.parts]
    put = np.concatenate if expr.merged else np.stack

    def together(each: list[Array]) -> Array:
        return put(each, axis=expr.axis)

    err = together([tile.errors() for tile in tiles]) if any(tile.err is not None for tile in tiles) else None
    known = together([tile.mask() for tile in tiles]) if any(tile.known is not None for tile in tiles) else None
    return Val(dtype, together([tile.data for tile in tiles]), err, known)


def _part(machine: Machine, expr: tree.Part) -> Val:
    starts = [machine.scalar(start, "a part") for start in expr.starts]
    return parts.part(machine.value(expr.x), starts, expr.sizes, expr.steps)


def _piece(machine: Machine, expr: tree.Piece) -> Val:
    def cut(data: Array) -> Array:
        piece = np.split(data, expr.count, axis=expr.axis)[expr.number]
        return piece.squeeze(expr.axis) if expr.alone else piece

    return machine.value(expr.x).moved(cut)


def _flip(machine: Machine, expr: tree.Flip) -> Val:
    return machine.value(expr.x).moved(lambda data: np.flip(data, expr.axes))


def _roll(machine: Machine, expr: tree.Roll) -> Val:
    shift = machine.scalar(expr.shift, "how far a tile is rolled")
    return machine.value(expr.x).moved(lambda data: np.roll(data, shift, expr.axis))


def _take(machine: Machine, expr: tree.Take) -> Val:
    fill = constant(0 if expr.fill is None else expr.fill.value, expr.type.dtype)
    return parts.take(machine.value(expr.x), machine.value(expr.index), expr.axis, fill.data, expr.along)


def _arange(machine: Machine, expr: tree.Arange) -> Val:
    return cast(Val("i64", np.arange(expr.start, expr.stop)), expr.dtype)


def _full(machine: Machine, expr: tree.Full | tree.FullLike) -> Val:
    return _spread(_as(machine, expr.value, expr.type.dtype), expr.type.shape)


def _reduce(machine: Machine, expr: tree.Reduce) -> Val:
    axes, shape = expr.axes, expr.x.type.shape
    rest = tuple(i for i in range(len(shape)) if i not in axes)
    flat = (*(shape[i] for i in rest), -1)
    value = machine.value(expr.x).moved(lambda data: data.transpose((*rest, *axes)).reshape(flat))
    found = reductions.reduce(expr.op, value, len(rest), accumulator(expr.x.type.dtype))
    return found.moved(lambda data: data.reshape(expr.type.shape))


def _scan(machine: Machine, expr: tree.Scan) -> Val:
    wide = accumulator(expr.x.type.dtype)
    return reductions.scan(expr.op, machine.value(expr.x), expr.axis, expr.reverse, wide)


def _exchange(machine: Machine, expr: tree.Exchange) -> Val:
    own = np.arange(expr.x.type.shape[expr.axis])
    partner = own ^ expr.bits
    return machine.value(expr.x).moved(
        lambda data: np.take(data, np.where(partner < own.size, partner, own), expr.axis)
    )


def _sort(machine: Machine, expr: tree.Sort) -> Val:
    found = reductions.sort(machine.value(expr.x), expr.axis, expr.descending, expr.places)
    count = expr.type.shape[expr.axis]
    return found.moved(lambda data: np.take(data, np.arange(count), expr.axis)) if expr.k else found


def _combined(machine: Machine, expr: tree.Combined) -> Val:
    values = [machine.value(x) for x in expr.xs]
    axis = None if expr.axis is None else expr.axis % len(expr.xs[0].type.shape)
    return meaning_of(expr.combiner, values, axis, expr.running, expr.reverse)[expr.part]


def _mma(machine: Machine, expr: tree.Mma) -> Val:
    policies = {part.type.policy for part in (expr.a, expr.b)}
    if any(isinstance(part, tree.Name) and part.type.dtype == "f32" for part in (expr.a, expr.b)):
        # A name keeps the policy of what it is bound to, which its type here does not say.
        policies |= {tensor.policy for tensor in machine.program.tensors}
    compute = "tf32" if expr.compute == "tf32" or "tf32" in policies else ""
    acc = None if expr.acc is None else machine.value(expr.acc)
    return reductions.batch(machine.value(expr.a), machine.value(expr.b), acc, expr.type, compute)


def _causal_mask(machine: Machine, expr: tree.CausalMask) -> Val:
    scores = machine.value(expr.scores)
    first, last = machine.scalar(expr.q0, "a mask"), machine.scalar(expr.k0, "a mask")
    rows, columns = scores.shape
    visible = last + np.arange(columns)[None, :] <= first + np.arange(rows)[:, None]
    hidden = constant(expr.value.value, scores.dtype)
    return elementwise.where(Val("bool", visible), scores, _spread(hidden, scores.shape))


def _philox(machine: Machine, expr: tree.Philox) -> Val:
    offsets = machine.value(expr.offsets)
    seed = machine.scalar(expr.seed, "a seed")
    return Val("u32", reductions.philox(seed, offsets.data, expr.word), None, offsets.known)


def _rand(machine: Machine, expr: tree.Rand | tree.Dropout) -> Val:
    offsets = machine.value(expr.offsets)
    words = reductions.philox(machine.scalar(expr.seed, "a seed"), offsets.data, 0)
    return Val("f32", (words >> np.uint32(8)).astype(np.float64) * 2.0**-24, None, offsets.known)


def _randn(machine: Machine, expr: tree.Randn) -> Val:
    """The method of Box and Muller, whose functions may be off by a few ULP."""
    offsets, seed = machine.value(expr.offsets), machine.scalar(expr.seed, "a seed")
    first, second = (reductions.philox(seed, offsets.data, word) for word in range(2))
    above_zero = nearest(nearest(first.astype(np.float64), "f32") * 2.0**-32 + 2.0**-33, "f32")
    radius = np.sqrt(-2 * np.log(above_zero))
    result = radius * np.cos(2 * np.pi * 2.0**-24 * (second >> np.uint32(8)))
    return rounded("f32", result, 3e-6 * radius + 1e-7, offsets.known)


def _randint(machine: Machine, expr: tree.Randint) -> Val:
    offsets = machine.value(expr.offsets)
    words = reductions.philox(machine.scalar(expr.seed, "a seed"), offsets.data, 0).astype(np.uint64)
    drawn = ((words * np.uint64(expr.high - expr.low)) >> np.uint64(32)).astype(np.int64) + expr.low
    return Val(expr.dtype, drawn.astype(NUMPY[expr.dtype]), None, offsets.known)


def _dropout(machine: Machine, expr: tree.Dropout) -> Val:
    drawn = _rand(machine, expr)
    keep = elementwise.compare("ge", drawn, constant(expr.p, "f32"))
    dtype = expr.type.dtype
    wide = "f64" if dtype == "f64" else "f32"
    value = cast(machine.value(expr.x), wide)
    scaled = elementwise.apply("mul", [value, constant(1.0 / (1.0 - expr.p), wide)], wide, machine.program.profile)
    kept = elementwise.where(keep, scaled, constant(0.0, wide))
    return cast(_spread(kept, expr.type.shape), dtype)


def _call(machine: Machine, expr: tree.Call) -> Val:
    helper = next(helper for helper in machine.program.helpers if helper.name == expr.function)
    given = [machine.value(arg) for arg in expr.args]
    caller = machine.env
    machine.env = {param.name: value for param, value in zip(helper.params, given, strict=True)}
    try:
        machine.run(helper.body)
        result = machine.value(helper.result)
    except _Returned as returned:
        result = returned.value
    machine.env = caller
    assert result is not None
    return cast(result, helper.result.type.dtype)  # a number that is returned takes the type of what is elsewhere


def _load(machine: Machine, expr: tree.Load) -> Val:
    place = memory.place_of(machine, expr.tensor, expr.axes)
    fill = constant(0, expr.dtype) if expr.fill is None else _as(machine, expr.fill, expr.dtype)
    return place.load(machine.tensors[expr.tensor], fill, memory.mask_of(machine, place.shape))


def _atomic(machine: Machine, expr: tree.Atomic) -> Val:
    place = memory.place_of(machine, expr.tensor, expr.axes, simple=False)
    value = None if expr.value is None else _spread(_as(machine, expr.value, expr.dtype), place.shape)
    compare = None if expr.compare is None else _spread(_as(machine, expr.compare, expr.dtype), place.shape)
    mask = memory.mask_of(machine, place.shape)
    tensor = machine.tensors[expr.tensor]
    ordered = expr.fn != "add" or not is_float(expr.dtype) or not tensor.data.size
    if not ordered and expr.tensor not in machine.sums:
        machine.sums[expr.tensor] = memory.FloatSums(tensor)
    if value is None:
        return place.load(tensor, constant(0, expr.dtype), mask)
    old, new = place.update(tensor, expr.fn, value, compare, mask, machine.program.profile)
    if not ordered:
        new = place.note(machine.sums[expr.tensor], new, value, mask, machine.point)
    machine.tensors[expr.tensor] = new
    return old


def _stage(machine: Machine, buffer: Val, stage: tree.Expr) -> int | None:
    """Return the number of a stage; None where there is none, which reads as zeros and is not written."""
    at = machine.scalar(stage, "a stage")
    if 0 <= at < buffer.shape[0]:
        return at
    machine.events.add("stage-outside")
    return None


def _read_shared(machine: Machine, expr: tree.ReadShared) -> Val:
    value = machine.shared[expr.buffer]
    if expr.stage is not None:
        stage = _stage(machine, value, expr.stage)
        if stage is None:
            return _spread(constant(0, value.dtype), expr.own.shape)
        value = value.moved(lambda data: data[stage])
    return value.moved(lambda data: data.swapaxes(-1, -2)) if expr.transposed else value


def _read_part(machine: Machine, expr: tree.ReadPart) -> Val:
    held = machine.shared[expr.buffer]
    place = _part_of(machine, held, expr.axes)
    mask = None if tree.is_stage(expr.axes) else memory.mask_of(machine, place.shape)
    return place.load(held, constant(0, expr.dtype), mask)


def _part_of(machine: Machine, held: Val, axes: tuple[tree.Axis, ...]) -> memory.Place:
    if isinstance(axes[0], tree.At) and tree.is_stage(axes):
        _stage(machine, held, axes[0].index)
    return memory.place_in(machine, held.shape, axes)


_EXPRESSIONS: Final[dict[type[tree.Expr], Callable[[Machine, Any], Val]]] = {
    tree.Number: _number,
    tree.Constexpr: _number,
    tree.Name: _name,
    tree.Apply: _apply,
    tree.Assembly: lambda machine, expr: machine.value(expr.of),
    tree.Known: _known,
    tree.Power: _power,
    tree.Where: _where,
    tree.Cast: _cast,
    tree.Bitcast: lambda machine, expr: bitcast(machine.value(expr.x), expr.dtype),
    tree.Reshape: _shape,
    tree.Expand: _shape,
    tree.Transpose: _transpose,
    tree.BroadcastTo: _broadcast,
    tree.Stack: _stack,
    tree.Part: _part,
    tree.Piece: _piece,
    tree.Flip: _flip,
    tree.Roll: _roll,
    tree.Take: _take,
    tree.Arange: _arange,
    tree.Full: _full,
    tree.FullLike: _full,
    tree.Reduce: _reduce,
    tree.Scan: _scan,
    tree.Exchange: _exchange,
    tree.Sort: _sort,
    tree.Combined: _combined,
    tree.Mma: _mma,
    tree.CausalMask: _causal_mask,
    tree.Philox: _philox,
    tree.Rand: _rand,
    tree.Randn: _randn,
    tree.Randint: _randint,
    tree.Dropout: _dropout,
    tree.Call: _call,
    tree.Load: _load,
    tree.Atomic: _atomic,
    tree.ReadShared: _read_shared,
    tree.ReadPart: _read_part,
}


# Statements


def _assign(machine: Machine, node: tree.Assign) -> None:
    values = [machine.value(value) for value in node.values]
    addend = _addend(node)
    if addend is not None:
        values = [_in_any_order(machine, node.names[0], addend, values[0])]
    else:
        for name in node.names:
            machine.totals.pop(name, None)
    machine.env.update(zip(node.names, values, strict=True))


def _addend(node: tree.Assign) -> tree.Expr | None:
    """Return what a statement adds to the name that it assigns, None where it does something else."""
    if len(node.names) != 1:
        return None
    (name,), (value,) = node.names, node.values
    if not isinstance(value, tree.Apply) or value.fn not in ("add", "sub"):
        return None
    left, right = value.args
    if isinstance(left, tree.Name) and left.name == name:
        return right
    return left if value.fn == "add" and isinstance(right, tree.Name) and right.name == name else None


def _in_any_order(machine: Machine, name: str, addend: tree.Expr, result: Val) -> Val:
    """Return what a name holds after an addition that a loop may do in any order: those that only add up are split."""
    if not machine.loops or machine.program.profile == "strict" or not is_float(result.dtype):
        return result
    form, before = FORMATS[result.dtype], machine.env[name]
    added = result  # where asking again would change something
    if not any(isinstance(part, tree.Call | tree.Atomic) for part in tree.walk(addend)):
        added = _as(machine, addend, result.dtype)
    size, step = machine.totals.get(name, (np.abs(before.data), possible_steps(before)))
    size, step = size + np.abs(added.data), np.minimum(step, possible_steps(added))
    machine.totals[name] = size, step
    loses = ~(size < step * 2.0 ** (form.mantissa + 1)) & np.isfinite(result.data)
    if not loses.any():
        return result
    known = either(result.known, ~loses | (size <= form.largest))
    return replace(result, err=result.errors() + np.where(loses, 4 * form.unit * size, 0.0), known=known)


def _augment(machine: Machine, node: tree.Augment) -> None:
    name, result = node.name.name, machine.value(tree.Apply(node.fn, (node.name, node.value)))
    machine.env[name] = _in_any_order(machine, name, node.value, result) if node.fn in ("add", "sub") else result


def _store(machine: Machine, node: tree.Store) -> None:
    place = memory.place_of(machine, node.tensor, node.axes)
    machine.tensors[node.tensor] = _stored(machine, place, machine.tensors[node.tensor], node, node.saturate)


def _stored(
    machine: Machine, place: memory.Place, held: Val, node: tree.Store | tree.StorePart, saturate: bool = False
) -> Val:
    """Return a tensor or buffer after a store to a place of it."""
    mask = memory.mask_of(machine, place.shape)
    if node.fn:
        old = place.load(held, constant(0, node.dtype), mask)
        machine.env["#old"] = old
        value = machine.value(tree.Apply(node.fn, (tree.Name("#old", tree.Type(node.dtype, old.shape)), node.value)))
        del machine.env["#old"]
    else:
        value = machine.value(node.value) if not isinstance(node.value, tree.Number) else None
    if value is None:
        value = _as(machine, node.value, node.dtype)
    value = _spread(cast(_trim(value, len(place.shape)), node.dtype, saturate), place.shape)
    return place.store(held, value, mask)


def _trim(value: Val, rank: int) -> Val:
    """Drop leading dimensions of size 1 that the place does not have."""
    while len(value.shape) > rank and value.shape[0] == 1:
        value = value.moved(lambda data: data[0])
    return value


def _evaluate(machine: Machine, node: tree.Evaluate) -> None:
    machine.value(node.value)


def _for(machine: Machine, node: tree.For) -> None:
    bounds = [machine.scalar(bound, "a loop's bound") for bound in (node.lower, node.upper, node.step)]
    machine.loops += not node.static
    try:
        for number in range(*bounds) if bounds[2] > 0 else ():
            machine.env[node.var] = Val("i64", np.asarray(number, np.int64))
            if not _iterate(machine, node.body):
                return
    finally:
        machine.loops -= not node.static
        if not machine.loops:
            machine.totals = {}
    machine.run(node.orelse)


def _iterate(machine: Machine, body: tree.Block, keep: bool = False) -> bool:
    """Run a loop's body, whose own names end with it unless they are kept; return whether the loop goes on."""
    outer = list(machine.env)
    try:
        machine.run(body)
    except _Continued:
        return True
    except _Broken:
        return False
    finally:
        if not keep:
            machine.env = {name: machine.env[name] for name in outer}
    return True


def _while(machine: Machine, node: tree.While) -> None:
    while bool(machine.value(node.condition).only("a loop's condition")):
        machine.steps -= 1
        if not _iterate(machine, node.body, node.endless):
            break
    else:
        machine.run(node.orelse)


def _break(machine: Machine, node: tree.Break) -> None:
    raise _Broken


def _continue(machine: Machine, node: tree.Continue) -> None:
    raise _Continued


def _return(machine: Machine, node: tree.Return) -> None:
    raise _Returned(None if node.value is None else machine.value(node.value))


def _if(machine: Machine, node: tree.If) -> None:
    condition = machine.value(node.condition)
    if not node.predicates:
        machine.run(node.then if bool(condition.only("a branch")) else node.orelse)
        return
    outer, before = dict(machine.env), machine.predicate
    envs: list[dict[str, Val]] = []
    for block, own in (
        (node.then, condition),
        (node.orelse, elementwise.apply("not", [condition], "bool", "strict")),
    ):
        machine.env = dict(outer)
        machine.predicate = own if before is None else elementwise.apply("and", [before, own], "bool", "strict")
        machine.run(block)
        envs.append(machine.env)
    machine.predicate = before
    machine.env = outer
    for name, was in outer.items():
        left, right = envs[0][name], envs[1][name]
        if left is not was or right is not was:
            outer[name] = _spread(elementwise.where(condition, left, right), was.shape)


def _alloc(machine: Machine, node: tree.AllocShared) -> None:
    data = np.zeros(node.shape) if is_float(node.dtype) else constant(0, node.dtype).data + np.zeros(node.shape, bool)
    if not is_float(node.dtype):
        data = data.astype(constant(0, node.dtype).data.dtype)
    machine.shared[node.name] = Val(node.dtype, data, None, np.zeros(node.shape, np.bool_))


def _write_shared(machine: Machine, buffer: str, stage: tree.Expr | None, value: Val) -> None:
    old = machine.shared[buffer]
    if stage is None:
        machine.shared[buffer] = value
        return
    at = _stage(machine, old, stage)
    if at is None:
        return

    def put(whole: Array, part: Array) -> Array:
        changed = whole.copy()
        changed[at] = part
        return changed

    err = None if old.err is None and value.err is None else put(old.errors(), value.errors())
    machine.shared[buffer] = Val(old.dtype, put(old.data, value.data), err, put(old.mask(), value.mask()))


def _store_shared(machine: Machine, node: tree.StoreShared) -> None:
    old = machine.shared[node.buffer]
    shape = old.shape if node.stage is None else old.shape[1:]
    value = _spread(_as(machine, node.value, old.dtype), shape)
    if machine.predicate is not None:
        now = old
        if node.stage is not None:
            at = _stage(machine, old, node.stage)
            if at is None:
                return
            now = old.moved(lambda data: data[at])
        value = _spread(elementwise.where(machine.predicate, value, now), shape)
    _write_shared(machine, node.buffer, node.stage, value)


def _store_part(machine: Machine, node: tree.StorePart) -> None:
    old = machine.shared[node.buffer].moved(np.array)  # which is changed in place
    place = _part_of(machine, old, node.axes)
    machine.shared[node.buffer] = _stored(machine, place, old, node)


def _update_shared(machine: Machine, node: tree.UpdateShared) -> None:
    old = machine.shared[node.buffer].moved(np.array)  # which is changed in place
    places = memory.places(machine, old.shape, node.indices)
    value = _spread(_as(machine, node.value, old.dtype), places.shape)
    mask = memory.mask_of(machine, places.shape)
    machine.shared[node.buffer] = places.update(old, node.fn, value, None, mask, machine.program.profile)[1]


def _copy(machine: Machine, node: tree.CopyAsync) -> None:
    place = memory.place_of(machine, node.tensor, node.axes)
    value = place.load(machine.tensors[node.tensor], constant(0, node.dtype), None)
    _write_shared(machine, node.buffer, node.stage, value)


def _check(machine: Machine, node: tree.Check) -> None:
    if not machine.value(node.condition).data.all():
        raise Undetermined("an assert fails")


def _nothing(machine: Machine, node: tree.Stmt) -> None:
    pass


_STATEMENTS: Final[dict[type[tree.Stmt], Callable[[Machine, Any], None]]] = {
    tree.Assign: _assign,
    tree.Augment: _augment,
    tree.Store: _store,
    tree.Evaluate: _evaluate,
    tree.For: _for,
    tree.While: _while,
    tree.Break: _break,
    tree.Continue: _continue,
    tree.Return: _return,
    tree.If: _if,
    tree.AllocShared: _alloc,
    tree.StoreShared: _store_shared,
    tree.StorePart: _store_part,
    tree.UpdateShared: _update_shared,
    tree.CopyAsync: _copy,
    tree.Commit: _nothing,
    tree.Wait: _nothing,
    tree.Barrier: _nothing,
    tree.Fence: _nothing,
    tree.Print: _nothing,
    tree.Fenced: _nothing,
    tree.Check: _check,
}
