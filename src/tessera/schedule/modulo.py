"""Finds the order in which a loop's ops overlap best: a modulo schedule of two stages.

Each op gets a stage, 0 or 1. The loop then runs stage 0 of one iteration beside stage 1 of the iteration before, so
that the products of one overlap the vector work of the other. All stages of the products are tried; other ops run as
early as their operands allow. The ops of both stages are put in one order by a list scheduler, which starts products as
soon as it can and waits for them as late as it can, and the one with the shortest iteration wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import product

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp
from tessera.ir.tile.shared import SharedLoadOp
from tessera.ir.tile.types import TileType
from tessera.schedule.costs import Engine, registers_of
from tessera.schedule.dependences import Edge, Graph, Node, guards, is_remade, links_of, operands_within, rings_read

MOST_PRODUCTS = 4


@dataclass
class Schedule:
    """One way to run a loop.

    Args:
        graph: the loop's dependences.
        stage: the stage of each op.
        order: the nodes of both stages as one iteration runs them.
        cycles: the length of an iteration for one warpgroup that has the multiprocessor to itself.
    """

    graph: Graph
    stage: dict[Operation, int]
    order: list[Node] = field(default_factory=list[Node])
    cycles: float = 0

    def crossing(self, edge: Edge) -> int:
        """Return how many iterations of the new loop lie between the two ends of a dependence."""
        return self.stage[edge.after.op] + edge.distance - self.stage[edge.before.op]

    def pending(self, wait: Node) -> int:
        """Return how many products start between a product and its wait."""
        between = self.order[self.order.index(self.graph.start[wait.op]) + 1 : self.order.index(wait)]
        starts = [node.op for node in between if node is self.graph.start[node.op] and node.op in self.graph.products]
        return sum(1 + len(links_of(op)) for op in starts)

    def registers(self) -> float:
        """Return the most registers of a thread that tiles occupy at once."""
        place = {node: at for at, node in enumerate(self.order)}
        end = len(self.order)
        live = [0.0] * (end + 1)
        for value, users in self._uses().items():
            size = 0 if _is_uniform(value) else registers_of(value.type, self.graph.warps)
            assert isinstance(value.owner, Operation)
            made = place[self.graph.start[value.owner]]
            now = [place[node] for node, crossing in users if crossing == 0]
            later = [place[node] for node, crossing in users if crossing > 0]
            spans = [(made, end if later else max(now, default=made)), (0, max(later, default=0))]
            for at in {at for first, last in spans for at in range(first, last)}:
                live[at] += size
        return max(live) + self._constant_registers()

    def _constant_registers(self) -> float:
        """Return the registers of the loop-invariant tiles that the loop reads."""
        block = self.graph.loop.body.block
        values = {v for op in self.graph.start for v in operands_within(op) if isinstance(v.type, TileType)}
        outside = [v for v in values if isinstance(v.owner, Operation) and not block.is_ancestor(v.owner)]
        return sum(registers_of(v.type, self.graph.warps) for v in outside if not _is_uniform(v))

    def _uses(self) -> dict[SSAValue, list[tuple[Node, int]]]:
        """Return the nodes that read each tile, and in which iteration; a product reads its left operand to its end."""
        found: dict[SSAValue, list[tuple[Node, int]]] = {}
        for edge in self.graph.edges:
            if edge.value is not None and isinstance(edge.value.type, TileType):
                found.setdefault(edge.value, []).append((edge.after, self.crossing(edge)))
        for edge in _held(self.graph):
            assert edge.value is not None
            found[edge.value].append((self.graph.end[edge.after.op], self.crossing(edge)))
        return found


def in_order(graph: Graph) -> Schedule:
    """Return the loop as it is: each product is waited for where it stands."""
    stage = dict.fromkeys(graph.start, 0)
    issue = graph.rates.issue
    cycles = sum(node.cycles + (issue if node.engine == Engine.TENSOR else 0) for node in graph.nodes)
    return Schedule(graph, stage, graph.nodes, cycles)


def overlapped(graph: Graph) -> list[Schedule]:
    """Return the schedules that overlap iterations, the one with the shortest iteration first."""
    if len(graph.products) > MOST_PRODUCTS:
        return []
    found = [schedule for stage in _stages(graph) if (schedule := _ordered(graph, stage)) is not None]
    return sorted(found, key=lambda schedule: (schedule.cycles, schedule.registers()))


def within(graph: Graph) -> Schedule | None:
    """Return the schedule that overlaps ops of the same iteration alone: tiles wait in registers for no other one."""
    return _ordered(graph, dict.fromkeys(graph.start, 0)) if len(graph.products) > 1 else None


def _stages(graph: Graph) -> Iterator[dict[Operation, int]]:
    """Yield the stages of all ops, for every way to give products theirs that dependences allow."""
    for chosen in product((0, 1), repeat=len(graph.products)):
        if len(set(chosen)) < 2:
            continue
        stage = dict.fromkeys(graph.start, 0)
        stage.update(zip(graph.products, chosen, strict=True))
        _delay(graph, stage)
        _guard(graph, stage)
        if all(stage[p] == s for p, s in zip(graph.products, chosen, strict=True)) and all(
            stage[e.after.op] + e.distance >= stage[e.before.op] for e in graph.edges
        ):
            yield stage


def _delay(graph: Graph, stage: dict[Operation, int]) -> None:
    """Put every op in a stage in which its operands are available."""
    for _ in graph.start:
        late = [e for e in graph.edges if stage[e.after.op] + e.distance < stage[e.before.op]]
        for edge in late:
            stage[edge.after.op] = min(stage[edge.before.op] - edge.distance, 1)
        if not late:
            return


def _guard(graph: Graph, stage: dict[Operation, int]) -> None:
    """Wait for a ring in the stage of its first reader, release it in that of its last."""
    for ring, barriers in guards(list(graph.start)).items():
        at = [stage[op] for op in graph.start if ring in rings_read(op)]
        for op in barriers:
            if at:
                stage[op] = min(at) if isinstance(op, BarrierWaitOp) else max(at)


def _is_uniform(value: SSAValue) -> bool:
    """Return whether a tile is computed from positions and scalars alone, by each thread where it needs it."""
    owner = value.owner
    if not isinstance(value.type, TileType):
        return True
    if not isinstance(owner, Operation) or not (is_remade(owner) or isinstance(owner, ElementwiseOp | CastOp)):
        return False
    return all(_is_uniform(operand) for operand in owner.operands)


def _held(graph: Graph) -> list[Edge]:
    """Return the dependences of products on tiles that they read from registers until they end."""
    lefts = {
        op: [source for one in (*links_of(op), op) for source in graph.sources(one.operands[0])]
        for op in graph.products
    }
    return [
        edge
        for edge in graph.edges
        if edge.value is not None
        and isinstance(edge.value.type, TileType)
        and any(edge.value is v for v, _ in lefts.get(edge.after.op, ()))
    ]


def _ordered(graph: Graph, stage: dict[Operation, int]) -> Schedule | None:
    """Return the ops of both stages in the list scheduler's order; None where they wait for each other in a cycle."""
    schedule = Schedule(graph, stage)
    before: dict[Node, set[Node]] = {node: set() for node in graph.nodes}
    for edge in graph.edges:
        if schedule.crossing(edge) == 0:
            before[edge.after].add(edge.before)
    for edge in _held(graph):
        # A register that a product reads is overwritten only once the product has ended.
        if schedule.crossing(edge) == 1 and edge.before.op is not edge.after.op:
            before[edge.before].add(graph.end[edge.after.op])
    return schedule if _ListScheduler(schedule, before).run() else None


class _ListScheduler:
    """Orders nodes by simulating a warpgroup that runs them one after the other alongside the tensor core."""

    def __init__(self, schedule: Schedule, before: dict[Node, set[Node]]):
        self.schedule = schedule
        self.before = before
        self.after: dict[Node, list[Node]] = {node: [] for node in before}
        for node, nodes in before.items():
            for other in nodes:
                self.after[other].append(node)
        self.urgency: dict[Node, float] = {}
        self.left = list(before)
        self.ends: dict[Operation, float] = {}
        self.now = self.tensor_free = 0.0

    def run(self) -> bool:
        """Fill the schedule's order; return whether there is one."""
        if not self._measure():
            return False
        while self.left:
            ready = [n for n in self.left if not any(b in self.left for b in self.before[n])]
            node = min(ready, key=self._preference)
            self.left.remove(node)
            self.schedule.order.append(node)
            self._advance(node)
        self.schedule.cycles = max(self.now, self.tensor_free)
        return True

    def _measure(self) -> bool:
        """Find each node's longest way to the end; return False where there is a cycle."""
        waiting = {node: len(nodes) for node, nodes in self.after.items()}
        done = [node for node, count in waiting.items() if not count]
        while done:
            node = done.pop()
            self.urgency[node] = node.cycles + max((self.urgency[a] for a in self.after[node]), default=0)
            for other in self.before[node]:
                waiting[other] -= 1
                if not waiting[other]:
                    done.append(other)
        return len(self.urgency) == len(self.before)

    def _preference(self, node: Node) -> tuple[int, float, int]:
        """Return what is done first: releases, products (the longest way first), vector work in order, waits.

        What is read from shared memory takes registers, so that it is read where nothing else is missing.
        """
        if isinstance(node.op, BarrierArriveOp):
            return 0, 0, node.position
        if node.engine == Engine.TENSOR or (isinstance(node.op, BarrierWaitOp) and self._is_wanted(node)):
            return 1, -self.urgency[node], node.position
        if isinstance(node.op, BarrierWaitOp) or (isinstance(node.op, SharedLoadOp) and not self._is_wanted(node)):
            return 4, 0, node.position
        if node.op in self.ends:
            return 3, self.ends[node.op], node.position
        return 2, 0, node.position

    def _is_wanted(self, node: Node) -> bool:
        """Return whether only others like a wait, or a load from shared memory, hold back an op that follows it."""
        return any(
            all(isinstance(b.op, type(node.op)) for b in self.before[reader] if b in self.left)
            for reader in self.after[node]
            if not isinstance(reader.op, BarrierWaitOp | BarrierArriveOp)
        )

    def _advance(self, node: Node) -> None:
        if node.engine == Engine.TENSOR:
            self.now += self.schedule.graph.rates.issue
            self.tensor_free = self.ends[node.op] = max(self.now, self.tensor_free) + node.cycles
            if node is self.schedule.graph.end[node.op]:
                self.now = self.tensor_free
        elif node.op in self.ends:
            self.now = max(self.now, self.ends[node.op])
        else:
            self.now += self.schedule.graph.rates.barrier if node.engine == Engine.BARRIER else node.cycles
