"""The state of one SIMT lowering: where ops go, what each TIR-H value has become, and layout conversion."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault, ResourceError
from tessera.ir.layouts import (
    REGISTER,
    LinearLayout,
    axis_names,
    conversion_kind,
    exchange_layout,
    ldmatrix,
    register_map,
    shared_addresses,
    wavefronts,
)
from tessera.ir.locations import location_of
from tessera.ir.notes import add_note
from tessera.ir.target.arithmetic import ElementwiseOp, IotaOp, RelayoutOp, SplatOp
from tessera.ir.target.memory import AllocOp, BarrierOp, BufferLoadOp, BufferStoreOp, ViewOp
from tessera.ir.target.structure import GridWaitOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.tile.types import TileType
from tessera.ir.types import element_type
from tessera.ir.walking import ops_in
from tessera.lower.bounds import Bounds
from tessera.lower.launch import Parameters
from tessera.lower.scalars import Scalars
from tessera.lower.simt.placement import Placements
from tessera.lower.simt.rules import LAZY, LOWERINGS
from tessera.numerics import dtypes
from tessera.target.records import TargetRecord

BUFFER_START = 1024
"""Bytes: shared buffers start at multiples of this at most."""
MOST_ELEMENTS = 1024
"""Elements of a tile one thread may hold: four times its registers, beyond which code only spills."""


TileLoop = Callable[[Callable[[Sequence[SSAValue]], list[SSAValue]], Sequence[SSAValue]], None]
"""Runs a function, from state to state, for every tile of a persistent program."""


@dataclass(frozen=True, slots=True)
class Share:
    """The results of a `share`: indices, and for `owner` a truth value."""

    first: SSAValue
    last: SSAValue
    owner: SSAValue
    others: SSAValue


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of its tile's steps a program does, where programs share each tile.

    Args:
        number: of the part, counted from 0, a 32-bit unsigned integer.
        count: how many parts there are, the same.
        most: how many there are at most; 1 where the grid says how many.
        sharing: then how many programs of the launch share tiles at most.
        takes_part: whether the part has steps, or is the only one; None before the first loop, which decides that.
    """

    number: SSAValue
    count: SSAValue
    most: int
    sharing: int = 0
    takes_part: SSAValue | None = None


class SimtContext:
    """Lowers one launch.

    Args:
        target: the target record.
        params: parameters of the function that is filled.
        placements: layout of every placed tile.

    `asynchronous_reads` says whether warpgroup instructions read shared memory that threads have written; `tiles` is
    the loop over tiles that each role of a persistent program runs, `share` what the program does of the tile where
    such loops share out steps; `part` is the program's part of its tile where programs share each, with `part_steps`
    steps at least; `group` is the number of the consumer group whose ops are lowered, `groups` how many there are, and
    `in_turn` says whether each has tiles of its own.
    `kept_bytes` are those of the shared buffers that roles find and make: all of them live as long as the roles do.
    """

    def __init__(self, target: TargetRecord, params: Parameters, placements: Placements):
        self.target = target
        self.params = params
        self.placements = placements
        self.num_warps = placements.num_warps
        self.location: LocationAttr = UNKNOWN_LOC
        self.block: Block = params.func.body.block
        self.values: dict[SSAValue, SSAValue] = {}
        self.divisors: dict[SSAValue, int] = {}
        self.bounds = Bounds(params.kernel)
        self.asynchronous_reads = False
        self.tiles: TileLoop | None = None
        self.group: SSAValue | None = None
        self.groups = 1
        self.in_turn = False
        self.kept_bytes: int | None = None
        self.share: Share | None = None
        self.part: Part | None = None
        self.part_steps = 1
        self.scalars = Scalars(self._insert, lambda: self.location)
        self._made: list[dict[tuple[SSAValue, LinearLayout], SSAValue]] = [{}]

    @property
    def profile(self) -> str:
        """The numerics profile."""
        return self.params.func.profile.data

    # Building

    def _insert(self, op: Operation) -> None:
        self.block.add_op(op)

    def emit(self, op: Operation) -> Operation:
        """Add an op at the insertion point, with the location of the op being lowered."""
        op.location = self.location
        self.block.add_op(op)
        if self.kept_bytes is not None and isinstance(op, AllocOp):
            self.kept_bytes += _shared_bytes(op)
        for result in op.results:
            if isinstance(result.type, FragmentType) and result.type.linear.registers > MOST_ELEMENTS:
                self._refuse(op, result.type)
        return op

    def _refuse(self, op: Operation, type_: FragmentType) -> None:
        sizes = "x".join(map(str, type_.shape))
        raise ResourceError(
            f"a tile of {sizes} {type_.dtype} is {type_.linear.registers} elements a thread in {self.num_warps} warps; "
            f"{MOST_ELEMENTS} are the most that {self.target.name} compiles",
            code="tile-too-large",
            location=location_of(op),
            help="use a smaller tile and loop over it with ts.tile.range, or more warps (num_warps)",
        )

    def wait_for_launch(self) -> None:
        """Add the wait for the launch before, on targets where launches can overlap."""
        if self.target.has("grid_dependency"):
            self.emit(GridWaitOp())

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        return self.emit(op).results[0]

    @contextmanager
    def role(self, block: Block) -> Generator[None]:
        """Insert into a role's block."""
        if self.kept_bytes is None:
            self.kept_bytes = sum(_shared_bytes(op) for op in ops_in(self.params.func) if isinstance(op, AllocOp))
        with self.into(block):
            yield

    def has_room(self, size: int) -> bool:
        """Return whether shared memory has room for a buffer of so many bytes more, which is not known before roles."""
        return self.kept_bytes is None or self.kept_bytes + self.groups * size <= self.target.shared_bytes

    @contextmanager
    def into(self, block: Block) -> Generator[None]:
        """Insert into `block`; values computed lazily do not outlive it."""
        outer, self.block = self.block, block
        self._made.append({})
        try:
            yield
        finally:
            self.block = outer
            self._made.pop()

    def lower_block(self, ops: Sequence[Operation]) -> None:
        """Lower ops in order."""
        for op in ops:
            self.location = op.location
            rule = LOWERINGS.get(type(op))
            if rule is not None:
                rule(self, op)
            elif type(op) not in LAZY:
                raise CompilerFault(f"no SIMT lowering for {op.name}", location=location_of(op))

    def note(self, kind: str, text: str) -> None:
        """Record on the function what `explain()` reports: an emulation, a copy that is not asynchronous."""
        add_note(self.params.func, kind, text)

    # Values

    def scalar(self, value: SSAValue) -> SSAValue:
        """Return what a TIR-H scalar (or buffer) has become."""
        found = self.values.get(value)
        if found is None:
            owner = value.owner
            if isinstance(owner, Operation) and type(owner) in LAZY:
                raise CompilerFault(f"{owner.name} is a tile, not a scalar")
            raise CompilerFault("a value is used before it is lowered")
        return found

    def define(self, value: SSAValue, lowered: SSAValue) -> None:
        """Say what a TIR-H value has become."""
        self.values[value] = lowered

    def layout_of(self, value: SSAValue) -> LinearLayout:
        """Return the layout a tile is in, or would be computed in by default."""
        found = self.values.get(value)
        if found is not None and isinstance(found.type, FragmentType):
            return found.type.linear
        return self.placements.layout_or_default(value)

    def tile(self, value: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return a TIR-H tile as a fragment in `layout`, converting or making it if need be."""
        for made in reversed(self._made):
            if (value, layout) in made:
                return made[value, layout]
        placed = self.values.get(value)
        if placed is not None:
            result = self.convert(placed, layout)
        else:
            owner = value.owner
            rule = LAZY.get(type(owner)) if isinstance(owner, Operation) else None
            if rule is None:
                raise CompilerFault(f"a tile of {value.type} was not lowered")
            result = rule(self, owner, layout)
            result = self._made[-1].get((value, layout), result)  # of an op with several results
        self.remember(value, layout, result)
        return result

    def remember(self, value: SSAValue, layout: LinearLayout, fragment: SSAValue) -> None:
        """Keep what a tile is in a layout, for other uses in this block."""
        self._made[-1][value, layout] = fragment

    # Layouts

    def convert(self, fragment: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return a fragment in another layout: renamed registers where that suffices, else by shared memory."""
        type_ = fragment.type
        assert isinstance(type_, FragmentType)
        if type_.linear == layout:
            return fragment
        if conversion_kind(type_.linear, layout) in ("identity", "registers"):
            return self.value(RelayoutOp(fragment, layout, register_map(type_.linear, layout)))
        return self.through_shared(fragment, layout)

    def relabel(self, fragment: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return a fragment under another layout with the same number of registers; nothing moves."""
        return self.value(RelayoutOp(fragment, layout, range(layout.in_size(REGISTER))))

    def through_shared(self, fragment: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return a fragment in another layout, by way of a transient shared buffer."""
        type_ = fragment.type
        assert isinstance(type_, FragmentType)
        offsets = _offsets_between(type_, layout)
        if offsets is None:
            buffer = self.to_shared(fragment, "xor" if len(type_.shape) >= 2 else "none")
            return self.value(BufferLoadOp(buffer, FragmentType.of(type_.element, layout)))
        buffer = self.to_shared(self.relabel(fragment, offsets[0]))
        return self.relabel(self.value(BufferLoadOp(buffer, FragmentType.of(type_.element, offsets[1]))), layout)

    def to_shared(self, fragment: SSAValue, swizzle: str = "none") -> SSAValue:
        """Store a fragment to a new transient shared buffer and return the buffer, ready to be read.

        Args:
            fragment: the elements.
            swizzle: of the buffer, see `BufferType`; elements that are read one by one have none.
        """
        type_ = fragment.type
        assert isinstance(type_, FragmentType)
        buffer = self.transient(BufferType.of(type_.shape, type_.element, "shared", swizzle))
        self.emit(BufferStoreOp(fragment, buffer))
        self.emit(BarrierOp())
        return buffer

    def transient(self, type_: BufferType) -> SSAValue:
        """Return a shared buffer for short use; a barrier makes sure that no one still reads its bytes.

        Each of several consumer groups gets one of its own.
        """
        if self.group is None:
            buffer = self.value(AllocOp(type_, transient=True))
        else:
            buffers = self.value(AllocOp(type_.times(self.groups), transient=True))
            buffer = self.value(ViewOp(buffers, type_, self.group))
        self.emit(BarrierOp())
        return buffer

    # Fragments without a source

    def splat(self, scalar: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return a fragment whose elements all are `scalar`."""
        return self.value(SplatOp(scalar, layout))

    def fill_outside(self, fragment: SSAValue, shape: Sequence[int], fill: float) -> SSAValue:
        """Return a fragment with the elements beyond the logical `shape` (padding) replaced by `fill`."""
        type_ = fragment.type
        assert isinstance(type_, FragmentType)
        inside = self.inside(shape, type_.linear)
        if inside is None:
            return fragment
        other = self.splat(self.constant(fill, element_of(type_)), type_.linear)
        return self.value(ElementwiseOp("select", [inside, fragment, other]))

    def constant(self, value: float, element: object) -> SSAValue:
        """Return a scalar constant of any element type (narrow floats by way of f32)."""
        from tessera.ir.target.arithmetic import CastOp
        from tessera.ir.types import NarrowFloatType

        if isinstance(element, NarrowFloatType):
            wide = self.scalars.constant(value, element_type(dtypes.f32))
            return self.value(CastOp(wide, element))
        return self.scalars.constant(value, element)  # pyright: ignore[reportArgumentType]

    def inside(self, shape: Sequence[int], layout: LinearLayout) -> SSAValue | None:
        """Return a bool fragment that is true inside the logical `shape`, or None when nothing is padded."""
        i32 = element_type(dtypes.i32)
        result: SSAValue | None = None
        for axis, (logical, size) in enumerate(zip(shape, layout.out_sizes, strict=True)):
            if logical == size:
                continue
            at = self.value(IotaOp(axis, i32, layout))
            limit = self.splat(self.scalars.constant(logical, i32), layout)
            within = self.value(ElementwiseOp("lt", [at, limit]))
            within = self.value(RelayoutOp(within, layout, _first_of_each(layout, axis, logical & -logical)))
            result = within if result is None else self.value(ElementwiseOp("and", [result, within]))
        return result

    # Facts

    def divisor(self, value: SSAValue) -> int:
        """Return a number that is known to divide a TIR-H index."""
        from tessera.lower.facts import divisor

        return divisor(self.divisors, self.params.kernel, value)


def _offsets_between(written: FragmentType, read: LinearLayout) -> tuple[LinearLayout, LinearLayout] | None:
    """Return where in a plain buffer the elements of two layouts lie, None where a swizzled tile serves them as well.

    Fragments of matrices are stored by instructions of their own, which want its rows.
    """
    width, sides = written.dtype.bytes, (written.linear.unique_registers(), read.unique_registers())
    tile = BufferType.of(written.shape, written.element, "shared", "xor").shared_layout()
    if len(written.shape) < 2 or ldmatrix(sides[0], tile, width) is not None:
        return None
    best = exchange_layout(*sides, width)
    turns = [sum(wavefronts(side, shared, width) for side in sides) for shared in (tile, best)]
    if turns[1] >= turns[0]:
        return None
    first, second = (shared_addresses(side, best) for side in (written.linear, read))
    return _one_axis(first), _one_axis(second)


def _one_axis(offsets: LinearLayout) -> LinearLayout:
    """Return a layout of offsets as that of a tile of one dimension."""
    return LinearLayout(offsets.bases, offsets.out_sizes, axis_names(1))


def _shared_bytes(op: AllocOp) -> int:
    """Return the bytes of shared memory that a buffer takes, up to where the next one can start."""
    type_ = op.result.type
    assert isinstance(type_, BufferType)
    return -(-type_.size_bytes // BUFFER_START) * BUFFER_START if type_.space.data == "shared" else 0


def _first_of_each(layout: LinearLayout, axis: int, together: int) -> list[int]:
    """Return for each register the first whose element lies in the same run of neighbours along an axis.

    Args:
        layout: of the tile.
        axis: the dimension.
        together: length of the runs: neighbours that are inside or outside of a tile together need one comparison.
    """
    first = dict[tuple[int, ...], int]()
    found: list[int] = []
    for register in range(layout.registers):
        place = layout.apply(register=register)
        run = tuple(at // together if a == axis else at for a, at in enumerate(place))
        found.append(first.setdefault(run, register))
    return found


def tile_shape(value: SSAValue) -> tuple[int, ...]:
    """Return the logical shape of a TIR-H tile."""
    assert isinstance(value.type, TileType)
    return value.type.shape


def is_tile(value: SSAValue) -> bool:
    """Return whether a TIR-H value is a tile."""
    return isinstance(value.type, TileType)
