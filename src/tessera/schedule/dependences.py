"""The dependences of a loop's ops: what must follow what, in the same iteration or in a later one.

A product is two nodes, its start and its wait, together with those with whose sums it goes on; other ops are one. Ops
that are recomputed wherever they are used (index arithmetic, views, splats) are not nodes: their operands count as
their users'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue, Use

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, commutes, effect_of, reads_only
from tessera.ir.tile.elementwise import ArangeOp, ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import allocation_of
from tessera.ir.tile.types import SharedType, TileType
from tessera.ir.walking import ops_in
from tessera.numerics.assembly import is_assembly, texts_of
from tessera.schedule.costs import Engine, cycles_of, engine_of
from tessera.target.machines import Rates

FARTHEST = 2
"""Iterations back beyond which a dependence constrains no schedule of two stages."""


@dataclass(eq=False)
class Node:
    """An op, or one half of a product.

    Args:
        op: the op.
        position: its place in the loop.
        engine: what executes it.
        cycles: how long that engine is busy for one warpgroup.
    """

    op: Operation
    position: int
    engine: Engine
    cycles: float


@dataclass(frozen=True)
class Edge:
    """`after` of an iteration needs `before` of the one `distance` earlier; through `value`, or only in this order."""

    before: Node
    after: Node
    distance: int
    value: SSAValue | None = None


@dataclass
class Graph:
    """The dependences of a loop.

    Args:
        loop: the loop.
        warps: warps that run it.
        rates: what their multiprocessor does in a cycle.
        start: the node of each op, for a product its start.
        end: the node that has an op's results, for a product its wait.
        edges: the dependences.
        unused: ops that a machine with inline assembly of its own does not run: they take no time and no registers.
    """

    loop: scf.ForOp
    warps: int
    rates: Rates
    start: dict[Operation, Node] = field(default_factory=dict[Operation, Node])
    end: dict[Operation, Node] = field(default_factory=dict[Operation, Node])
    edges: list[Edge] = field(default_factory=list[Edge])
    unused: set[Operation] = field(default_factory=set[Operation])

    @classmethod
    def of(cls, loop: scf.ForOp, warps: int, rates: Rates, machine: str = "") -> Graph:
        """Find the dependences of a loop.

        Args:
            loop: the loop.
            warps: warps that run it.
            rates: what their multiprocessor does in a cycle.
            machine: whose inline assembly runs in place of what it means.
        """
        graph = cls(loop, warps, rates, unused=meanings_in(loop.body.block, machine))
        for position, op in enumerate(loop.body.block.ops):
            if op is loop.body.block.last_op or is_remade(op) or is_link(op):
                continue
            cycles = 0.0 if op in graph.unused else sum(cycles_of(one, warps, rates) for one in (*links_of(op), op))
            graph.start[op] = graph.end[op] = Node(op, position, engine_of(op), cycles)
            if is_asynchronous(op):
                graph.end[op] = Node(op, position, Engine.BARRIER, 0)
                graph.edges.append(Edge(graph.start[op], graph.end[op], 0))
        graph._values()
        graph._effects()
        return graph

    @property
    def nodes(self) -> list[Node]:
        """All nodes, in program order."""
        return [node for op in self.start for node in dict.fromkeys((self.start[op], self.end[op]))]

    @property
    def products(self) -> list[Operation]:
        """The products that can run while other ops do."""
        return [op for op in self.start if is_asynchronous(op)]

    def sources(self, value: SSAValue, distance: int = 0) -> Iterator[tuple[SSAValue, int]]:
        """Yield the results of nodes that a value is made of, and how many iterations back they were computed."""
        block = self.loop.body.block
        owner = value.owner
        if isinstance(owner, Block):
            if value in block.args[1:] and distance < FARTHEST:
                assert block.last_op is not None
                yielded = block.last_op.operands[block.args.index(value) - 1]
                yield from self.sources(yielded, distance + 1)
        elif owner.parent is block:
            if is_remade(owner):
                for operand in owner.operands:
                    yield from self.sources(operand, distance)
            else:
                yield value, distance

    def _values(self) -> None:
        for op, node in self.start.items():
            links = links_of(op)
            for operand in [operand for one in (*links, op) for operand in operands_within(one)]:
                for value, distance in self.sources(operand):
                    assert isinstance(value.owner, Operation)
                    if value.owner in links:
                        continue
                    runs = not self.unused & {op, value.owner}
                    self.edges.append(Edge(self.end[value.owner], node, distance, value if runs else None))

    def _effects(self) -> None:
        """Order ops that do not commute; barriers of a ring order only the ops that read it."""
        effectful = [op for op in self.start if effect_of(op) > Effect.RANDOM]
        for number, first in enumerate(effectful):
            for second in effectful[number + 1 :]:
                guarded = _ordered_by_ring(first, second)
                if guarded or (guarded is None and not commutes(first, second)):
                    self.edges.append(Edge(self.end[first], self.start[second], 0))
                if guarded is None and not commutes(first, second):
                    self.edges.append(Edge(self.end[second], self.start[first], 1))


def meanings_in(block: Block, machine: str) -> set[Operation]:
    """Return the ops of a block that compute only what inline assembly for a machine means."""
    found: set[Operation] = set()
    for op in reversed(list(block.ops)):
        uses = [use for result in op.results for use in result.uses]
        if (
            uses
            and effect_of(op) == Effect.PURE
            and all(use.operation in found or _means(use, machine) for use in uses)
        ):
            found.add(op)
    return found


def _means(use: Use, machine: str) -> bool:
    """Return whether a value is used for what assembly means, which the machine has a text for."""
    op = use.operation
    if not isinstance(op, ElementwiseOp) or not is_assembly(op.fn.data) or machine not in texts_of(op.fn.data):
        return False
    return use.index == len(op.args) - 1


def is_remade(op: Operation) -> bool:
    """Return whether an op is cheap enough to be recomputed by each stage that needs it."""
    if op.regions or effect_of(op) > Effect.PURE:
        return False
    lazy = isinstance(op, SplatOp | ArangeOp | BroadcastOp | ReshapeOp)
    return lazy or not any(isinstance(result.type, TileType) for result in op.results)


def is_asynchronous(op: Operation) -> bool:
    """Return whether an op is a product whose instruction runs while other ops do."""
    return isinstance(op, MmaOp) and decisions.WARPGROUP.on(op) and isinstance(op.b.type, SharedType)


def links_of(op: Operation) -> list[MmaOp]:
    """Return the products with whose sums a product goes on, the first one first: nothing else reads what they give.

    Instructions of one warpgroup that add to the same registers follow each other without a wait, so that all of them
    are one product of more terms.
    """
    before = op.operands[2].owner if isinstance(op, MmaOp) and is_asynchronous(op) else None
    if not isinstance(before, MmaOp) or before.parent is not op.parent or not is_link(before):
        return []
    return [*links_of(before), before]


def is_link(op: Operation) -> bool:
    """Return whether nothing but another product of the same block, which goes on with them, reads a product's sums."""
    if not isinstance(op, MmaOp) or not is_asynchronous(op) or op.result.uses.get_length() != 1:
        return False
    (use,) = op.result.uses
    return use.index == 2 and use.operation.parent is op.parent and is_asynchronous(use.operation)


def operands_within(op: Operation) -> list[SSAValue]:
    """Return the operands of an op and of the ops inside of it."""
    return [operand for inner in ops_in(op) for operand in inner.operands]


def ring_of(barriers: SSAValue) -> int | None:
    """Return the number of the ring that barriers or a buffer belong to."""
    owner = allocation_of(barriers).owner
    return decisions.RING.of(owner) if isinstance(owner, Operation) else None


def rings_read(op: Operation) -> set[int]:
    """Return the rings whose buffers an op reads."""
    found = {ring_of(o) for o in operands_within(op) if isinstance(o.type, SharedType)}
    return {ring for ring in found if ring is not None}


def _guard_of(op: Operation) -> int | None:
    """Return the ring that an op waits for or releases; None for other ops."""
    return ring_of(op.barriers) if isinstance(op, BarrierWaitOp | BarrierArriveOp) else None


def _ordered_by_ring(first: Operation, second: Operation) -> bool | None:
    """Return whether a ring's barrier makes one op follow another; None where no ring decides that.

    A wait comes before the reads of its ring, these before the release; other rings do not matter, nor do ops that
    only read. Everything else is ordered by its effects.
    """
    guards = [_guard_of(first), _guard_of(second)]
    if None not in guards:
        return guards[0] == guards[1]
    if guards == [None, None]:
        return None
    other, ring = (first, guards[1]) if guards[0] is None else (second, guards[0])
    return ring in rings_read(other) if reads_only(other) else None


def guards(ops: Sequence[Operation]) -> dict[int, list[Operation]]:
    """Return the waits and releases among ops, by ring."""
    found: dict[int, list[Operation]] = {}
    for op in ops:
        ring = _guard_of(op)
        if ring is not None:
            found.setdefault(ring, []).append(op)
    return found
