"""The state of one function's lowering: what each TIR-H value has become, and when it must be stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.target.structure import ProgramIdOp, ReturnOp
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.memory import Slice
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.shared import allocation_of
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.lower.bounds import Bounds
from tessera.lower.boxes import kept_near, stays_in_tensor
from tessera.lower.facts import divisor, nonnegative
from tessera.lower.launch import LaunchPlan, Parameters
from tessera.lower.vector.indexed import Gather
from tessera.lower.vector.liveness import TRANSPARENT, Liveness
from tessera.lower.vector.needs import Edge, Need, Needs, joined
from tessera.lower.vector.nest import run_nest
from tessera.lower.vector.nodes import (
    Apply,
    Box,
    Convert,
    Coord,
    Coords,
    Load,
    Node,
    RandomWord,
    Reinterpret,
    Resource,
    Stored,
    costs_more,
    index_of,
    reads,
    walk,
)
from tessera.lower.vector.picked import Take
from tessera.lower.vector.rules import RULES
from tessera.lower.vector.scratch import Scratch
from tessera.lower.vector.site import End, Site, end_of
from tessera.lower.vector.writer import Writer
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from tessera.lower.vector.packing import Packed
    from tessera.lower.vector.strips import Placed
    from tessera.target.products import Form

STORE_COST = 4
"""What storing a chunk and reading it back costs, in the unit of `nodes.Node.cost`."""

UNALIGNED_COST = 8
"""A computed tile that is read broadcast or transposed is stored first when a chunk of it costs this much."""

LONG_CHAIN = 512
"""Most dependent steps in one loop: the time of code generation is quadratic in the size of a block."""


@dataclass(frozen=True)
class Region:
    """The positions of an op with regions that is being lowered."""

    start: int
    end: int


class VectorContext:
    """Lowers one launch.

    Args:
        target: the CPU.
        params: parameters of the function.
        plan: the ops that belong to the launch.
    """

    def __init__(self, target: TargetRecord, params: Parameters, plan: LaunchPlan):
        self.target = target
        self.params = params
        self.plan = plan
        self.lanes = max(target.vector_bytes // 4, 1)
        unit = plan.grid or params.kernel
        self.squares = decisions.SQUARES.on(unit)
        self.writer = Writer(params.func.body.block)
        self.scratch = Scratch(self.writer, self.lanes)
        self.liveness = Liveness(plan)
        self.bounds = Bounds(params.kernel)
        self.position = 0
        self.next_rows: list[Box] = []
        self.packed: dict[tuple[SSAValue, str, Form, int], Packed] = {}
        self.fresh: dict[SSAValue, SSAValue] = {}
        self.placed: dict[SSAValue | Operation, Placed] = {}
        self._regions: list[Region] = []
        self._stored_here: list[tuple[Node, Stored | None, bool]] = []
        self._scalars: dict[SSAValue, SSAValue] = {}
        self._nodes: dict[SSAValue, Node] = {}
        self._values: dict[Node, SSAValue] = {}
        self._divisors: dict[SSAValue, int] = {}
        trims = decisions.TRIM.on(unit)
        self._needs = Needs(params.kernel, unit.body.block, self.divisor) if trims else None
        self._needed: dict[Node, tuple[Need, ...]] = {}
        self._tee_buffers: dict[Node, Stored] = {}
        self._index_nodes: dict[Node, Node] = {}
        self._depths: dict[Node, int] = {}
        self.inside_nodes: dict[tuple[Node, SSAValue, Block], Node] = {}

    @property
    def profile(self) -> str:
        """The numerics profile."""
        return self.params.func.profile.data

    def lower_launch(self) -> None:
        """Write the whole function."""
        self.lower_ops(self.plan.prologue)
        if self.plan.grid is not None:
            self.writer.location = self.plan.grid.location
            self._decompose(self.plan.grid)
        self.lower_ops(self.plan.body)
        self.writer.insert(ReturnOp())
        self.scratch.place()

    def _decompose(self, grid: GridOp) -> None:
        """Turn the program's number into its tile's offset in each dimension; the last one runs fastest."""
        scalars = self.writer.scalars
        number = self.writer.value(ProgramIdOp())
        sizes = list(zip(grid.extents, grid.block_sizes, grid.body.block.args, strict=True))
        for place, (extent, block, argument) in reversed(list(enumerate(sizes))):
            if place == 0:
                index = number
            else:
                count = scalars.ceildiv(self.scalar(extent), block)
                index = scalars.binary("mod", number, count)
                number = scalars.binary("floordiv", number, count)
            self.define_scalar(argument, scalars.mul(index, block))

    def lower_ops(self, ops: Iterable[Operation]) -> None:
        """Lower ops in order."""
        for op in ops:
            self.position = self.liveness.order[op]
            self.writer.location = op.location
            rule = RULES.get(type(op))
            if rule is None:
                raise CompilerFault(
                    f"the vector model has no rule for {op.name}",
                    code="no-lowering",
                    location=location_of(op),
                )
            rule(self, op)
            self._cut_chains(op)

    def _cut_chains(self, op: Operation) -> None:
        """Store a tile that many dependent steps lead to."""
        for node in [self._nodes[result] for result in op.results if result in self._nodes]:
            operands = [each for each, _ in node.operands((Coord(0),) * len(node.shape))]
            depth = 1 + max((self._depths.get(each, 0) for each in operands if each.stored is None), default=0)
            if depth >= LONG_CHAIN and isinstance(node, Apply | Convert | Reinterpret | Gather):
                self.materialise(node)
            self._depths[node] = depth

    @contextmanager
    def region(self, op: Operation) -> Generator[None]:
        """Be inside a region of `op` for a while; what is stored there is not relied on afterwards."""
        region = Region(self.liveness.order[op], self.liveness.end[op])
        self._regions.append(region)
        before, self._stored_here = self._stored_here, []
        yield
        for node, stored, wanted in reversed(self._stored_here):
            node.stored, node.wanted = stored, wanted
        self._stored_here = before
        self._regions.pop()
        self.position = region.end

    @property
    def at_top(self) -> bool:
        """Whether the current op runs once in a program."""
        return not self._regions

    def position_end(self, root: SSAValue) -> int:
        """Return until when a buffer used here must stay: the end of any loop entered since it was made."""
        start = self.scratch.start_of(root)
        return next((region.end for region in self._regions if start <= region.start), self.position)

    # Values

    def scalar(self, value: SSAValue) -> SSAValue:
        """Return what a scalar of TIR-H has become."""
        if value not in self._scalars:
            self._scalars[value] = self.params.scalar(self.params.position(value))
        return self._scalars[value]

    def define_scalar(self, value: SSAValue, lowered: SSAValue) -> None:
        """Say what a scalar has become."""
        self._scalars[value] = lowered

    def node(self, value: SSAValue) -> Node:
        """Return what a tile or shared buffer has become."""
        return self._nodes[value]

    def define(self, value: SSAValue, node: Node) -> None:
        """Say what a tile has become; mark it for storing when computing it at each use costs more."""
        self._nodes[value] = node
        self._values[node] = value
        if isinstance(value.type, TileType):
            needs = self.needs_of(value)
            self._needed[node] = tuple(map(joined, needs, self._needed.get(node, (False,) * len(needs))))
        if isinstance(node, Apply | Convert | Reinterpret | Gather | Take | RandomWord | Load):
            repeats = self.liveness.demand(value) - 1
            node.wanted = repeats > 0 and costs_more(node, STORE_COST // repeats)

    def needs_of(self, value: SSAValue) -> tuple[Need, ...]:
        """Return how much is needed of each axis of a tile of TIR-H."""
        return (True,) * len(shape_of(value.type)) if self._needs is None else self._needs.of(value)

    def needed(self, nodes: Iterable[Node], shape: tuple[int, ...]) -> list[Need]:
        """Return how much is needed of each axis by a loop over `shape` that writes tiles, all for others."""
        whole: list[Need] = [True] * len(shape)
        parts = [self._needed.get(node, whole) if node.shape == shape else whole for node in nodes]
        return [reduce(joined, axis, False) for axis in zip(*parts, strict=True)] if parts else [False] * len(shape)

    def ends(self, needs: Sequence[Need]) -> dict[int, End]:
        """Return where axes end that are needed in part only."""
        return {axis: self._end(need) for axis, need in enumerate(needs) if isinstance(need, Edge) and self._has(need)}

    def _has(self, edge: Edge) -> bool:
        """Return whether it is known already where a box starts."""
        owner = edge.offset.owner
        return isinstance(owner, Block) or self.liveness.order[owner] < self.position

    def _end(self, edge: Edge) -> End:
        arg, scalars = self.params.position(edge.tensor), self.writer.scalars
        start, bound = self.scalar(edge.offset), self.size(arg, edge.dimension)
        return end_of(scalars, kept_near(scalars, edge.offset, start, edge.size, bound), bound, edge.size)

    def index_node(self, node: Node) -> Node:
        """Return an integer tile as indices, one node for each."""
        return self._index_nodes.setdefault(node, index_of(node))

    def size(self, arg: int, axis: int) -> SSAValue:
        """Return the size of a tensor's dimension."""
        known = self.params.known_size(arg, axis)
        return self.params.size(arg, axis) if known is None else self.writer.scalars.constant(known)

    def divisor(self, value: SSAValue) -> int:
        """Return a number that divides an index of TIR-H."""
        return divisor(self._divisors, self.params.kernel, value)

    def box(self, op: Slice) -> Box:
        """Return the box of a bounded slice."""
        params, scalars = self.params, self.writer.scalars
        arg, rank = params.position(op.tensor), len(op.size_list)
        unsafe = tuple(axis for axis in range(rank) if not stays_in_tensor(params.kernel, op, axis, self.divisor))
        pointer, starts = params.pointer(arg), tuple(self.scalar(offset) for offset in op.offsets)
        known = [params.known_stride(arg, axis) for axis in range(rank)]
        strides = [params.stride(arg, i) if s is None else scalars.constant(s) for i, s in enumerate(known)]
        sizes = [params.known_size(arg, axis) for axis in range(rank)]
        bounds = [
            scalars.constant(s or 0) if s is not None or i not in unsafe else params.size(arg, i)
            for i, s in enumerate(sizes)
        ]
        offsets = tuple(
            kept_near(scalars, op.offsets[i], start, op.size_list[i], bounds[i]) if i in unsafe else start
            for i, start in enumerate(starts)
        )
        return Box(
            arg,
            params.memory(arg),
            pointer,
            starts,
            offsets,
            tuple(strides),
            tuple(bounds),
            op.size_list,
            op.kept,
            unsafe,
            tuple(stride == 1 for stride in known),
            tuple(axis for axis, offset in enumerate(op.offsets) if nonnegative(offset)),
        )

    def interior_condition(self, boxes: Sequence[Box]) -> SSAValue | None:
        """Return whether all boxes lie inside their tensors, None when that is known."""
        scalars, zero = self.writer.scalars, self.writer.scalars.constant(0)
        total: SSAValue | None = None
        seen: set[tuple[SSAValue, SSAValue, int]] = set()
        for box in boxes:
            for axis in box.unsafe:
                key = (box.offsets[axis], box.bounds[axis], box.sizes[axis])
                if key in seen:
                    continue
                seen.add(key)
                # One unsigned-style test is not enough: the offset may be negative and the box reach inside.
                above = scalars.binary("ge", box.offsets[axis], zero)
                end = scalars.add(box.offsets[axis], box.sizes[axis])
                both = scalars.binary("and", above, scalars.binary("le", end, box.bounds[axis]))
                total = both if total is None else scalars.binary("and", total, both)
        return total

    # Storing

    def new_buffer(self, shape: Sequence[int], element: Attribute, *, dense: bool = False) -> Stored:
        """Return a new scratch buffer."""
        return self.scratch.new(shape, element, self.position, dense=dense)

    def prepare(self, roots: Sequence[Node]) -> dict[Node, Node]:
        """Store what a nest over `roots` should find stored; return what the nest should store as it goes.

        For each such node of the nest that is the node itself, or a conversion of it that alone is used later.
        """
        while (early := _stored_before(roots)) is not None:
            self._materialise_from_below(early)
        flags: dict[Node, set[bool]] = {}
        for root in roots:
            for node, aligned in walk(root):
                flags.setdefault(node, set()).add(aligned)
        wanted = {n for n, aligned in flags.items() if n.wanted and aligned == {True}}
        needed = [n for n in flags if n in wanted and not self._only_in(n, wanted)]
        return {n: self._converted_operand(n) or n for n in needed}

    def _materialise_from_below(self, node: Node) -> None:
        """Store a node after what its nest should find stored, level by level."""
        work = [node]
        while work:
            early = _stored_before([work[-1]])
            if early is None:
                self.materialise(work.pop())
            else:
                work.append(early)

    def _later_uses(self, node: Node) -> list[Operation] | None:
        """Return the ops after the current one that use a tile, None for tiles that no op makes."""
        value = self._values.get(node)
        if value is None:
            return None
        users = [use.operation for use in value.uses]
        return [op for op in users if self.liveness.order.get(op, -1) > self.position]

    def _only_in(self, node: Node, stored: Collection[Node]) -> bool:
        """Return whether a tile is used only to compute tiles that are stored at the same time."""
        users = [use.operation for use in self._values[node].uses] if node in self._values else []
        return bool(users) and all(
            isinstance(op, TRANSPARENT) and all(self._nodes.get(r) in stored for r in op.results) for op in users
        )

    def _converted_operand(self, node: Node) -> Node | None:
        """Return the conversion to an operand of products that is the only later use of a tile."""
        users = self._later_uses(node) or []
        if len(users) != 1 or not isinstance(users[0], CastOp) or users[0].saturate is not None:
            return None
        result = users[0].result
        if not all(isinstance(use.operation, MmaOp) for use in result.uses):
            return None
        if result not in self._nodes:
            self.define(result, Convert(node.shape, element_of(result.type), node))
        return self._nodes[result]

    def tee_buffer(self, node: Node) -> Stored:
        """Return the buffer that a nest fills with a node as it computes it."""
        if node not in self._tee_buffers:
            self._tee_buffers[node] = self.new_buffer(node.shape, node.element)
        return self._tee_buffers[node]

    def finish_tees(self, nodes: Iterable[Node]) -> None:
        """Read nodes from their buffers from now on."""
        for node in nodes:
            if node in self._tee_buffers:
                self._now_stored(node, self._tee_buffers.pop(node))

    def _now_stored(self, node: Node, where: Stored) -> None:
        self._stored_here.append((node, node.stored, node.wanted))
        node.stored, node.wanted = where, False

    def write(self, node: Node, target: Stored, needs: Sequence[Need] | None = None) -> None:
        """Write the tile `node` to a buffer, as much of it as `needs` says or its uses need."""
        wanted, node.wanted = node.wanted, False
        needs = self.needed([node], node.shape) if needs is None else needs

        def body(site: Site, at: Coords) -> None:
            site.store(target, at, site.evaluate(node, at))

        run_nest(self, node.shape, [node], body, needs=needs)
        node.wanted = wanted

    def write_together(self, shape: tuple[int, ...], group: Sequence[tuple[Node, Stored]]) -> None:
        """Write tiles of one shape to buffers in one nest, a chunk of each before the next chunk of any."""

        def body(site: Site, coords: Coords) -> None:
            values = [site.chunk(node, coords) for node, _ in group]
            for value, (_, target) in zip(values, group, strict=True):
                site.store(target, coords, value)

        nodes = [node for node, _ in group]
        run_nest(self, shape, nodes, body, needs=self.needed(nodes, shape))

    def materialise(self, node: Node) -> Stored:
        """Store a node in a buffer of its own, from which it is read from now on."""
        if node.stored is None and isinstance(node, RandomWord):
            self._materialise_words(node)
        if node.stored is None:
            target = self.new_buffer(node.shape, node.element)
            self.write(node, target)
            self._now_stored(node, target)
        assert node.stored is not None
        return node.stored

    def _materialise_words(self, node: RandomWord) -> None:
        """Store a random word and all others that its run of Philox gives for later."""
        words = [each for each in node.group.words if each.stored is None and (each is node or self._is_live(each))]
        targets = [(each, self.new_buffer(each.shape, each.element)) for each in words]
        self.write_together(node.shape, targets)
        for each, target in targets:
            self._now_stored(each, target)

    def _is_live(self, node: Node) -> bool:
        """Return whether the current op or a later one needs a tile, or what is computed of it."""
        value = self._values.get(node)
        sinks = () if value is None else self.liveness.sinks(value)
        return any(self.liveness.order.get(op, -1) >= self.position for op in sinks)

    def own_buffer(
        self, value: SSAValue, avoid: Collection[SSAValue] = (), waiting: Collection[SSAValue] = ()
    ) -> Stored:
        """Return a buffer with the tile `value` that may be changed: its own if nothing reads that later.

        Args:
            value: a tile.
            avoid: allocations that are taken already.
            waiting: tiles that the current op reads after this one.
        """
        node = self.node(value)
        node = node.stored or node
        if value not in waiting and not self.liveness.live_after(value, self.position):
            taken = {
                *avoid,
                *(root for each in waiting for kind, root in reads(self.node(each)) if kind == "buffer"),
            }
            for part, aligned in walk(node):
                if isinstance(part, Stored) and aligned and part.root not in taken:
                    if self._reusable(part, node, value):
                        if part is not node:
                            self.write(node, part)
                        return Stored(node.shape, node.element, part.buffer, part.root)
        fresh = self.new_buffer(node.shape, node.element)
        self.write(node, fresh)
        return fresh

    def _reusable(self, part: Stored, node: Node, value: SSAValue) -> bool:
        """Return whether `node` may overwrite the buffer of `part`: same type, no other reader lives on."""
        if part.type.space.data != "scratch" or part.buffer is not part.root:
            return False
        if (part.shape, part.element) != (node.shape, node.element):
            return False
        resource = ("buffer", part.root)
        if any(isinstance(n, Stored) and n.root is part.root and not aligned for n, aligned in walk(node)):
            return False
        others = [n for v, n in self._live() if v is not value and resource in reads(n)]
        if any(isinstance(n.stored or n, Stored) for n in others):
            return False
        if others and self.position_end(part.root) > self.position:
            return False  # what is stored in a region does not stand for them in its next iteration, nor after it
        for other in others:
            self.materialise(other)
        return True

    def _live(self) -> list[tuple[SSAValue, Node]]:
        """Return the tiles that are still used after the current op."""
        self._nodes = {
            v: n for v, n in self._nodes.items() if not self.is_tile(v) or self.liveness.used_at(v, self.position)
        }
        return [(v, n) for v, n in self._nodes.items() if self.liveness.live_after(v, self.position)]

    def is_tile(self, value: SSAValue) -> bool:
        """Return whether a value is a tile (not a shared buffer) that is known here."""
        return value in self._nodes and isinstance(value.type, TileType)

    def has_node(self, value: SSAValue) -> bool:
        """Return whether it is known what a tile has become."""
        return value in self._nodes

    def shared_root(self, value: SSAValue) -> SSAValue | None:
        """Return the allocation that a shared buffer is a view of; None when it is made inside a region."""
        node = self._nodes.get(allocation_of(value))
        return node.root if isinstance(node, Stored) else None

    def before_write(self, resource: Resource) -> None:
        """Store every tile still in use that reads memory about to be written; operands are packed from it again."""
        self.packed = {key: each for key, each in self.packed.items() if ("buffer", each.buffer.root) != resource}
        for value, node in self._live():
            if isinstance(value.type, TileType) and resource in reads(node):
                self.rescue(node)

    def before_order(self) -> None:
        """Store every tile still in use that reads a tensor: other programs may write to it from here on."""
        for value, node in self._live():
            if isinstance(value.type, TileType) and any(kind == "tensor" for kind, _ in reads(node)):
                self.rescue(node)

    def rescue(self, node: Node) -> None:
        """Copy what a node reads to a buffer of its own, before it changes."""
        read = node.stored or node
        if not isinstance(read, Stored):
            self.materialise(node)
            return
        target = self.new_buffer(node.shape, node.element)
        self.write(Stored(read.shape, read.element, read.buffer, read.root), target)
        self._now_stored(node, target)

    def store_costly(self, op: Operation) -> None:
        """Store what costs much of the tiles that the regions of `op` read."""
        for value in self.liveness.used_inside(op):
            if value in self._nodes:
                self._store_costly(self._nodes[value])
                if _parts_inside(op, value) and not isinstance(self._nodes[value], Stored):
                    self.materialise(self._nodes[value])

    def _store_costly(self, node: Node) -> None:
        """Store the outermost computed tiles of an expression that cost more than reading them back."""
        work = [node]
        while work:
            part = work.pop()
            if part.stored is not None or not costs_more(part, STORE_COST):
                continue
            if isinstance(part, Apply | Convert | Reinterpret | Gather | Take | RandomWord) or (
                isinstance(part, Load) and part.cost > 1
            ):
                self.materialise(part)
            else:
                work += reversed([each for each, _ in part.operands((Coord(0),) * len(part.shape))])

    def nest(
        self,
        roots: Sequence[Node],
        body: Callable[[Site, Coords], None],
        boxes: Sequence[Box] = (),
        last: bool = False,
    ) -> None:
        """Write the loops over the tile that `roots` are; see `nest.run_nest`."""
        run_nest(self, roots[0].shape, roots, body, boxes, last)


def _parts_inside(op: Operation, value: SSAValue) -> bool:
    """Return whether parts of a tile are read inside the regions of an op: they are read from a buffer."""
    readers = [use.operation for use in value.uses if isinstance(use.operation, PartOp | TakeOp) and use.index == 0]
    return any(op.is_ancestor(reader) for reader in readers)


def _stored_before(roots: Sequence[Node]) -> Node | None:
    """Return a node that must be stored before a nest over `roots`, which reads it elsewhere than where it is."""
    for root in roots:
        for node, aligned in walk(root):
            if not aligned and isinstance(node, Apply | Convert | Reinterpret | Gather | Take | RandomWord):
                if node.wanted or costs_more(node, UNALIGNED_COST - 1):
                    return node
    return None
