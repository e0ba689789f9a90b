"""Rules of access to global memory.

Arguments of one memory (`memory_of`) are accessed in program order, whatever their shapes are: a tile that may read
what is about to be written is stored before, unless it reads each chunk where that very chunk is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import VerifyError
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.memory import GatherOp as TargetGatherOp
from tessera.ir.target.memory import LoadOp as TargetLoadOp
from tessera.ir.target.memory import ScatterOp as TargetScatterOp
from tessera.ir.target.memory import StoreOp as TargetStoreOp
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.types import TensorType, TileType
from tessera.ir.types import dtype_of, i1, index
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.indexed import Elements, Gather
from tessera.lower.vector.inside import U64, below
from tessera.lower.vector.next_rows import ask_for, next_row, take_rows
from tessera.lower.vector.nodes import Apply, Box, Coords, Load, Node, Resource, reads, walk
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site
from tessera.lower.vector.strips import Placed

STREAM_UNIT = 1 << 20
"""Bytes in which a decision says how large a tensor is that is stored past the caches."""
TOUCHED = 3
"""How many times as large all tensors of the kernel are together."""


def node_of(context: VectorContext, value: SSAValue | None) -> Node | None:
    """Return what a tile has become, None for none."""
    return None if value is None else context.node(value)


def scalar_of(context: VectorContext, value: SSAValue | None) -> SSAValue | None:
    """Return what a scalar has become, None for none."""
    return None if value is None else context.scalar(value)


@lowers(LoadOp)
def lower_load(context: VectorContext, op: LoadOp) -> None:
    """Note a box to be loaded where it is used; a single element is loaded at once."""
    box, fill = context.box(op), scalar_of(context, op.fill)
    type_ = op.result.type
    if isinstance(type_, TileType):
        node = Load(type_.shape, type_.element, box, node_of(context, op.mask), fill)
        context.define(op.result, node)
        if decisions.PREFETCH_BOX.on(op):
            context.next_rows.append(next_row(context, op, box))
        return
    mask = scalar_of(context, op.mask)
    load = TargetLoadOp(box.pointer, box.offsets, box.strides, box.bounds, type_, [], box.unsafe, 1, mask, fill)
    context.define_scalar(op.result, context.writer.value(load))


@lowers(StoreOp)
def lower_store(context: VectorContext, op: StoreOp) -> None:
    """Write a tile chunk by chunk, computing it on the way."""
    box = context.box(op)
    resource = ("tensor", box.memory)
    if not isinstance(op.value.type, TileType):
        context.before_write(resource)
        mask = scalar_of(context, op.mask)
        value = context.scalar(op.value)
        context.writer.insert(
            TargetStoreOp(value, box.pointer, box.offsets, box.strides, box.bounds, [], box.unsafe, 1, mask)
        )
        return
    value, mask = context.node(op.value), node_of(context, op.mask)
    roots = [value] if mask is None else [value, mask]
    for root in roots:
        if not _reads_same_place(root, box):
            context.materialise(root)
    context.before_write(resource)
    stream = _streams(context, op, box)
    rows = take_rows(context, value.shape)

    def body(site: Site, at: Coords) -> None:
        for row in rows:
            ask_for(site, row, at)
        _store_chunk(site, value, box, at, mask, stream)

    def write() -> list[SSAValue]:
        context.nest(roots, body, [box], last=True)
        return []

    placed = context.placed.get(op)
    if placed is None:
        write()
    else:
        context.writer.branch(placed.inside, list, write)


def place_sums(context: VectorContext, loop: scf.ForOp, sums: BlockArgument, bounds: Sequence[SSAValue]) -> None:
    """Note where a loop adds up sums that lie where they are stored, if that was decided on.

    Args:
        context: the lowering.
        loop: the loop.
        sums: the tile in its body.
        bounds: where its counter starts and ends, and its step; without iterations nothing is added up.
    """
    store = next((use.operation for use in loop.results[sums.index - 1].uses), None)
    if not isinstance(store, StoreOp) or not decisions.SUMS_IN_PLACE.on(store):
        return
    box, scalars = context.box(store), context.writer.scalars
    stream, row = _streams(context, store, box), box.kept[0]
    if stream is not None and constant_value(stream) == 1:
        return
    inside = scalars.binary("lt", bounds[0], bounds[1])
    if stream is not None:
        inside = scalars.binary("and", inside, scalars.binary("xor", stream, scalars.constant(True, i1)))
    context.before_write(("tensor", box.memory))
    placed = Placed(box.pointer, (start_of(context, box), box.strides[row]), inside)
    context.placed[sums] = context.placed[store] = placed


def start_of(context: VectorContext, box: Box) -> SSAValue:
    """Return where a box begins in its tensor, in elements."""
    scalars, offset = context.writer.scalars, context.writer.scalars.constant(0)
    for start, stride in zip(box.offsets, box.strides, strict=True):
        offset = scalars.add(offset, scalars.binary("mul", start, stride))
    return offset


def _streams(context: VectorContext, op: StoreOp, box: Box) -> SSAValue | None:
    """Return whether a tensor is so large that it is stored past the caches; None where it is known not to be.

    Not where the last cache holds all that the kernel touches: then whoever comes next finds there what is stored.

    Raises:
        VerifyError: the store does not write rows of neighbours.
    """
    scalars, least = context.writer.scalars, decisions.STREAM.of(op)
    if least is None:
        return None
    if op.mask is not None or not box.kept or not box.unit[box.kept[-1]]:
        raise VerifyError(
            f"{decisions.STREAM.key} is on a store that does not write rows of neighbours",
            location=location_of(op),
            help="it belongs on stores without a mask, along a dimension of stride 1",
        )
    stored, everything = _bytes(context, [box.arg]), _bytes(context, _memories(context))
    wanted: SSAValue | None = None
    for total, limit in ((stored, least * STREAM_UNIT), (everything, TOUCHED * least * STREAM_UNIT)):
        if not isinstance(total, int):
            large = scalars.binary("ge", total, scalars.constant(limit))
            wanted = large if wanted is None else scalars.binary("and", wanted, large)
        elif total < limit:
            return None
    return scalars.constant(True, i1) if wanted is None else wanted


def _memories(context: VectorContext) -> list[int]:
    """Return the tensor arguments that are memory of their own."""
    tensors = [value.index for value in context.params.kernel.body.block.args if isinstance(value.type, TensorType)]
    return [arg for arg in tensors if context.params.memory(arg) == arg]


def _bytes(context: VectorContext, tensors: Sequence[int]) -> SSAValue | int:
    """Return the bytes of some tensor arguments together."""
    params, scalars = context.params, context.writer.scalars
    fixed, others = 0, list[SSAValue]()
    for arg in tensors:
        type_ = params.kernel.body.block.args[arg].type
        assert isinstance(type_, TensorType)
        known = [params.known_size(arg, axis) for axis in range(len(type_.shape))]
        one = prod(size for size in known if size is not None) * dtype_of(type_.element).bytes
        unknown = [params.size(arg, axis) for axis, size in enumerate(known) if size is None]
        if unknown:
            others.append(reduce(scalars.mul, unknown, scalars.constant(one)))
        else:
            fixed += one
    return reduce(scalars.add, others, scalars.constant(fixed)) if others else fixed


def _reads_same_place(node: Node, box: Box) -> bool:
    """Return whether `node` reads the tensor of `box` at most where the same chunk is stored."""
    for part, aligned in walk(node):
        if ("tensor", box.memory) in part.resources:
            if not aligned or not isinstance(part, Load) or not part.box.same_place(box):
                return False
    return True


def _store_chunk(site: Site, value: Node, box: Box, coords: Coords, mask: Node | None, stream: SSAValue | None) -> None:
    place = site.place(box, coords)
    chunk = site.chunk(value, coords)
    condition = None if mask is None else site.chunk(mask, coords)
    site.writer.insert(
        TargetStoreOp(
            chunk,
            box.pointer,
            place.offsets,
            list(box.strides),
            place.bounds,
            place.axes,
            place.checked,
            place.vector,
            condition,
            stream if place.lanes else None,
        )
    )


def strides_of(context: VectorContext, arg: int, rank: int) -> list[SSAValue]:
    """Return the stride of each dimension of a tensor."""
    known = [context.params.known_stride(arg, axis) for axis in range(rank)]
    return [
        context.params.stride(arg, axis) if stride is None else context.writer.scalars.constant(stride)
        for axis, stride in enumerate(known)
    ]


def flat_offset(
    context: VectorContext, op: GatherOp | ScatterOp | AtomicOp, strides: Sequence[SSAValue]
) -> tuple[SSAValue, SSAValue | None]:
    """Return the offset of one element, and whether it counts: inside the tensor, and not masked off."""
    scalars, arg = context.writer.scalars, context.params.position(op.tensor)
    places = [scalars.cast(context.scalar(value), index) for value in op.indices]
    mask = scalar_of(context, op.mask)
    for axis in context.bounds.unproven(op):
        at, size = (scalars.cast(value, U64) for value in (places[axis], context.size(arg, axis)))
        inside = scalars.binary("lt", at, size)
        mask = inside if mask is None else scalars.binary("and", mask, inside)
    total = scalars.constant(0)
    for place, stride in zip(places, strides, strict=True):
        total = scalars.add(total, scalars.mul(place, stride))
    return total, mask


def element_mask(context: VectorContext, op: GatherOp | ScatterOp | AtomicOp) -> Node | None:
    """Return which elements count: inside the tensor, and not masked off. None for all of them."""
    arg = context.params.position(op.tensor)
    mask = node_of(context, op.mask)
    for axis in context.bounds.unproven(op):
        inside = below(context, context.node(op.indices[axis]), context.size(arg, axis))
        mask = inside if mask is None else Apply(mask.shape, i1, "and", (mask, inside))
    return mask


def _elements(context: VectorContext, op: GatherOp | ScatterOp, strides: Sequence[SSAValue]) -> Elements:
    arg, unproven = context.params.position(op.tensor), context.bounds.unproven(op)
    bounds = [context.size(arg, axis) if axis in unproven else None for axis in range(len(op.indices))]
    indices = tuple(context.node(value) for value in op.indices)
    given, mask = node_of(context, op.mask), element_mask(context, op)
    return Elements(context.params.pointer(arg), tuple(strides), tuple(bounds), indices, given, mask)


@lowers(GatherOp)
def lower_gather(context: VectorContext, op: GatherOp) -> None:
    """Note single elements to be loaded where they are used."""
    arg = context.params.position(op.tensor)
    strides, fill, type_ = strides_of(context, arg, len(op.indices)), scalar_of(context, op.fill), op.result.type
    if isinstance(type_, TileType):
        memory: Resource = ("tensor", context.params.memory(arg))
        context.define(op.result, Gather(type_.shape, type_.element, memory, _elements(context, op, strides), fill))
        return
    offset, mask = flat_offset(context, op, strides)
    gather = TargetGatherOp(context.params.pointer(arg), offset, mask, fill)
    context.define_scalar(op.result, context.writer.value(gather))


@lowers(ScatterOp)
def lower_scatter(context: VectorContext, op: ScatterOp) -> None:
    """Write single elements, or chunks where they are neighbours."""
    arg = context.params.position(op.tensor)
    strides, memory = strides_of(context, arg, len(op.indices)), ("tensor", context.params.memory(arg))
    if isinstance(op.value.type, TileType):
        store_elements(context, context.node(op.value), _elements(context, op, strides), memory)
        return
    context.before_write(memory)
    offset, mask = flat_offset(context, op, strides)
    context.writer.insert(TargetScatterOp(context.scalar(op.value), context.params.pointer(arg), offset, mask))


def store_elements(context: VectorContext, value: Node, at: Elements, memory: Resource) -> None:
    """Write single elements of a tensor or buffer, or chunks where they are neighbours."""
    by_chunks = at.by_chunks(value.shape)
    mask = at.given if by_chunks else at.mask
    roots = rescued(context, memory, [value, *at.indices, *([] if mask is None else [mask])])
    if by_chunks:
        _store_chunks(context, value, at, memory)
        return

    def body(site: Site, coords: Coords) -> None:
        offsets, condition = site.element_offsets(at.indices, at.strides, at.mask, coords)
        site.writer.insert(TargetScatterOp(site.chunk(value, coords), at.pointer, offsets, condition))

    context.nest(roots, body)


def _store_chunks(context: VectorContext, value: Node, at: Elements, memory: Resource) -> None:
    """Write chunks of neighbours."""

    def body(site: Site, coords: Coords) -> None:
        run = at.run(coords)
        assert run is not None
        place, mask = at.place(site, coords, run), at.given_at(site, coords)
        chunk = site.chunk(value, coords)
        site.writer.insert(
            TargetStoreOp(
                chunk,
                at.pointer,
                place.offsets,
                at.strides,
                place.bounds,
                place.axes,
                place.checked,
                place.vector,
                mask,
            )
        )

    # What stands for the elements evaluates as much of the index tiles as the body does.
    elements = Gather(value.shape, value.element, memory, at)
    context.nest([value, elements, *([] if at.given is None else [at.given])], body)


def rescued(context: VectorContext, resource: Resource, roots: list[Node]) -> list[Node]:
    """Store operands that read memory about to be written at unknown places."""
    for root in roots:
        if resource in reads(root):
            context.rescue(root)
    context.before_write(resource)
    return roots
