"""What a graph is and runs as, for `explain()`: its kernels and calls with bytes, predicted times and reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from os import PathLike
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.driver.explain import Explanation
from tessera.driver.variants import destination_of
from tessera.graph.drawing import Drawing, Node, page
from tessera.graph.kept import graph_of
from tessera.graph.plan import is_in_place
from tessera.graph.products import NOT_RUN
from tessera.ir.graph.points import MapOp
from tessera.ir.graph.structure import CallOp, GraphOp, GroupOp, ProductOp, ReturnOp, YieldOp
from tessera.ir.graph.sums import ContractOp, PartsOp, ReduceOp
from tessera.ir.graph.takes import StoredOp, TakeOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import ConcatOp
from tessera.ir.passes import clone
from tessera.numerics.functions import FUNCTIONS
from tessera.runtime.device import Device
from tessera.schedule.fuse.apart import Apart
from tessera.schedule.fuse.epilogues import dissolved, put_maps, read_after
from tessera.schedule.fuse.groups import cut
from tessera.schedule.fuse.places import LOOSE, PLACED
from tessera.target.predicted import seconds
from tessera.target.records import TargetRecord

_NUMBER = re.compile(r" \d+$")
"""What tells calls of one name apart."""
_OF_KIND = {
    "product": "a product is the library's, which reads and writes arrays",
    "reduction": "columns and whole arrays are reduced by the library",
    "call": "it has code of its own",
    "aten": "it runs as ATen",
    "copy": "arrays are joined that kernels do not write",
}
"""Why what reads an op of a kind is another kernel."""


@dataclass(frozen=True, slots=True)
class Part:
    """What runs as one.

    Args:
        name: the kernel's name, or what is called.
        kind: `kernel`, `product`, `reduction`, `call` of the library or of a kernel, `aten`, `copy`, or `view`.
        ops: the ops in it, in order.
        read: bytes that it reads.
        written: bytes that it writes.
        seconds: how long the machine takes at the least; no time is predicted for calls beside that of their bytes.
        apart: why it is not one with what it reads.
        kernel: what the last launch of a kernel ran, None before it.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    read: int
    written: int
    seconds: float
    apart: tuple[str, ...] = ()
    kernel: Explanation | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """Its line in a table."""
        named = Counter(self.ops)
        ops = ", ".join(name if count == 1 else f"{count} {name}" for name, count in named.items())
        inside = "" if self.ops == (self.name,) else ops
        return self.name, self.kind, *map(shown_bytes, (self.read, self.written)), shown_time(self.seconds), inside

    @property
    def lines(self) -> tuple[str, ...]:
        """Its text in a drawing."""
        name, kind, read, made, time, ops = self.row
        first = name if kind in ("map", "view", "kernel") else f"{name} ({kind})"
        return (first, *([ops] if ops else []), *([f"{read} read, {made} written, {time}"] if self.is_work else []))

    @property
    def is_work(self) -> bool:
        """Whether it moves anything."""
        return self.kind != "view"


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """What the last call of a traced function ran.

    Args:
        name: the graph's name.
        device: where it ran.
        target: what it was compiled for.
        sizes: those of the call.
        origin: where the plan of its groups came from: `compiled` or `disk cache`.
        parts: what runs, in order.
        before: the graph as it was traced.
        after: the graph as it runs.
    """

    name: str
    device: str
    target: str
    sizes: dict[str, int]
    origin: str
    parts: tuple[Part, ...]
    before: Drawing
    after: Drawing

    @property
    def kernels(self) -> tuple[Part, ...]:
        """The groups."""
        return tuple(part for part in self.parts if part.kind == "kernel")

    @property
    def left(self) -> dict[str, tuple[int, int]]:
        """For each op that runs as ATen how often it does, and the bytes that it reads and writes."""
        found: dict[str, tuple[int, int]] = {}
        for part in self.parts:
            if part.kind == "aten":
                count, moved = found.get(part.name, (0, 0))
                found[part.name] = count + 1, moved + part.read + part.written
        return found

    @property
    def read(self) -> int:
        """Bytes that all parts read."""
        return sum(part.read for part in self.parts)

    @property
    def written(self) -> int:
        """Bytes that all parts write."""
        return sum(part.written for part in self.parts)

    @property
    def seconds(self) -> float:
        """How long all of it takes at the least."""
        return sum(part.seconds for part in self.parts)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        lines = [f"graph {self.name}" + (f" at {sizes}" if sizes else "")]
        lines.append(f"  ran on: target {self.target}, device {self.device}; plan from: {self.origin}")
        lines += [f"  {row}" for row in table([part.row for part in self.parts if part.is_work])]
        for part in self.parts:
            lines += [f"  {part.name} is apart from {why}" for why in part.apart]
        lines += [f"  runs as ATen: {op}, {n}×, {shown_bytes(moved)}" for op, (n, moved) in self.left.items()]
        kinds = Counter(part.kind for part in self.parts)
        counted = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
        total = f"{shown_bytes(self.read)} read, {shown_bytes(self.written)} written, {shown_time(self.seconds)}"
        return "\n".join([*lines, f"  in all: {counted}; {total}"])

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """Return a page that draws the graph as it was traced and as it runs, which needs nothing else.

        Args:
            path: where to write it, too.
        """
        return written(page(self.name, str(self), [("Traced", self.before), ("Run", self.after)]), path)


def written(text: str, path: str | PathLike[str] | None) -> str:
    """Write a page, if there is a path for it, and return it."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def shown_bytes(count: int) -> str:
    """Return a number of bytes in a unit that suits it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def shown_time(seconds: float) -> str:
    """Return a time in microseconds."""
    return f"{seconds * 1e6:.1f} µs"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines in which columns stand below one another."""
    titled = [("name", "kind", "reads", "writes", "predicted", "ops"), *rows]
    widths = [max(map(len, column)) for column in zip(*titled, strict=True)]
    padded = (zip(row, widths, strict=True) for row in titled)
    return ["  ".join(text.ljust(width) for text, width in row).rstrip() for row in padded]


def explained(
    module: ModuleOp,
    sizes: Mapping[str, int],
    device: Device,
    origin: str,
    launched: Mapping[str, Explanation],
    parted: Mapping[str, str],
    left: Collection[str] = (),
) -> GraphExplanation:
    """Return what a graph is and runs as.

    Args:
        module: holds the graph as it was traced.
        sizes: those of the last call.
        device: where it ran.
        origin: where its plan came from.
        launched: what the kernels' last launches ran, by name.
        parted: for maps of products why they are kernels of their own, by name; empty where they are not.
        left: names of ops that run as ATen.
    """
    copy = clone(module)
    graph = graph_of(copy)
    record = destination_of(device).record()
    teller = _Teller(graph.sym_name.data, sizes, record, launched, left)
    before = teller.drawing(graph.body.block.ops)
    teller.apart = cut(graph)
    teller.part_products(graph, parted)
    parts = {op: teller.part(op) for op in graph.body.block.ops if runs(op)}
    after = _drawn(graph.body.block.ops, {op: part.lines for op, part in parts.items()})
    shown = tuple(parts.values())
    return GraphExplanation(graph.sym_name.data, str(device), record.name, dict(sizes), origin, shown, before, after)


def runs(op: Operation) -> bool:
    """Return whether an op outside of groups does anything."""
    return not isinstance(op, ReturnOp | StoredOp) and not (isinstance(op, ConcatOp) and is_in_place(op))


class _Teller:
    """Describes what runs.

    Args:
        name: the graph's name, by which kernels are called.
        sizes: those of the last call.
        target: the machine.
        launched: what the kernels' last launches ran, by name.
        left: names of ops that run as ATen.
    """

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        target: TargetRecord,
        launched: Mapping[str, Explanation],
        left: Collection[str],
    ) -> None:
        self._name, self._sizes, self._target = name, sizes, target
        self._launched, self._left = launched, left
        self._names: dict[Operation, str] = {}
        self.apart: Sequence[Apart] = ()

    def part_products(self, graph: GraphOp, parted: Mapping[str, str]) -> None:
        """Leave in products what their kernels compute: nothing where maps are kernels of their own."""
        products = [one for one in graph.body.block.ops if isinstance(one, ProductOp)]
        names = {op: self._name_of(op.group) for op in products}
        become: dict[GroupOp, GroupOp] = {}
        for op, name in names.items():
            old, why = op.group, parted.get(name, NOT_RUN)
            if why:
                contract, group = dissolved(op)
                self.apart = [*self.apart, Apart(group, contract, why)]
            else:
                made, rest = put_maps(op)
                group = made.group
                if rest is not None:
                    self._names[rest] = f"{name}_rest"
            self._names[group] = name
            become[old] = group
        self.apart = [
            Apart(become.get(one.reader, one.reader), read_after(one.read, become), one.why) for one in self.apart
        ]

    def drawing(self, ops: Iterable[Operation]) -> Drawing:
        """Return a drawing of ops that are in no groups yet."""
        return _drawn(ops, {op: self._part(op).lines for op in ops if runs(op) and not isinstance(op, LOOSE)})

    def part(self, op: Operation) -> Part:
        """Return what an op of a graph that is cut runs as; kernels are counted as they come."""
        if isinstance(op, ProductOp):
            return self._product(op)
        return self._group(op) if isinstance(op, GroupOp) else self._part(op)

    def _bytes(self, value: SSAValue) -> int:
        type_ = array_type(value)
        return self._elements(value) * type_.dtype.bits // 8

    def _elements(self, value: SSAValue) -> int:
        return prod(dim.value(self._sizes) or 0 for dim in dims_of(value))

    def _part(self, op: Operation) -> Part:
        """Return an op by itself."""
        kind, name = self._kind(op)
        if kind == "view":
            return Part(name, kind, (name,), 0, 0, 0.0)
        read, made = sum(map(self._bytes, op.operands)), sum(map(self._bytes, op.results))
        products, width = 0, array_type(op.results[0]).dtype.bytes if op.results else 4
        if isinstance(op, ContractOp):
            products, width = self._multiplied(op)
        time = seconds(self._target, read + made, self._operations(op), products, width)
        return Part(name, kind, (name,), read, made, time)

    def _kind(self, op: Operation) -> tuple[str, str]:
        name = op.name.partition(".")[2]
        match op:
            case CallOp():
                name = _NUMBER.sub("", op.callee.data)
                return ("aten" if name in self._left else "call"), name.removeprefix("tessera ")
            case ContractOp():
                return "product", "matmul"
            case ReduceOp():
                return "reduction", f"{op.fn.data} along {', '.join(map(str, op.reduced))}"
            case ConcatOp():
                return "copy", name
            case MapOp():
                return "map", op.fn.data
            case _:
                return ("map" if isinstance(op, PLACED) else "view"), name

    def _operations(self, op: Operation) -> int:
        if isinstance(op, MapOp):
            return FUNCTIONS[op.fn.data].cost * self._elements(op.result)
        return self._elements(op.source) if isinstance(op, ReduceOp | PartsOp) else 0

    def _group(self, op: GroupOp) -> Part:
        name = self._name_of(op)
        inside = [one for one in op.body.block.ops if not isinstance(one, YieldOp)]
        read = sum(map(self._read_of, op.body.block.args))
        made = sum(map(self._bytes, op.outputs))
        time = seconds(self._target, read + made, sum(map(self._operations, inside)))
        ops = tuple(self._kind(one)[1] for one in inside if isinstance(one, PLACED))
        return Part(name, "kernel", ops, read, made, time, self._why_apart(op), self._launched.get(name))

    def _product(self, op: ProductOp) -> Part:
        """Return a product and its maps, which are one kernel."""
        contract, maps = next(iter(op.body.block.ops)), self._group(op.group)
        assert isinstance(contract, ContractOp), "a product begins with it"
        read, made = sum(map(self._bytes, op.inputs)), sum(map(self._bytes, op.outputs))
        operations = sum(map(self._operations, op.group.body.block.ops))
        time = seconds(self._target, read + made, operations, *self._multiplied(contract))
        ops = self._kind(contract)[1], *maps.ops
        return Part(maps.name, "kernel", ops, read, made, time, self._why_apart(op.group, op), maps.kernel)

    def _multiplied(self, op: ContractOp) -> tuple[int, int]:
        """Return the multiply-adds of a product, and the bytes of an element."""
        terms = dims_of(op.left)[-1].value(self._sizes) or 0
        return self._elements(op.result) * terms, array_type(op.result).dtype.bytes

    def _name_of(self, op: GroupOp) -> str:
        if op not in self._names:
            holder = op.parent_op()
            block = (holder if isinstance(holder, ProductOp) else op).parent_block()
            groups = [_group_of(one) for one in (block.ops if block else ())]
            named = [one for one in groups if one is not None]
            self._names = {one: f"{self._name}_{number}" for number, one in enumerate(named)}
        return self._names[op]

    def _read_of(self, value: SSAValue) -> int:
        """Return the bytes that a group reads of an operand: no more than the elements that it takes."""
        users = [use.operation for use in value.uses]
        whole = self._bytes(value)
        if not users or not all(isinstance(user, TakeOp) and user.source is value for user in users):
            return whole
        return min(whole, sum(self._bytes(user.results[0]) for user in users))

    def _why_apart(self, op: GroupOp, holder: Operation | None = None) -> tuple[str, ...]:
        """Return why a group, or what holds it, is not one with what it reads."""
        found: dict[str, None] = {}
        noted = {one.read for one in self.apart if one.reader is op}
        for one in self.apart:
            if one.reader is op:
                read = one.read
                name = self._name_of(read) if isinstance(read, GroupOp) else self._kind(read)[1]
                found[f"{name}: {one.why}"] = None
        for value in (holder or op).operands:
            owner, between = _maker(value)
            group = _group_of(owner)
            if group is not None and group not in noted:
                why = f"{between} lies between them" if between else "it reads what all of that kernel has written"
                found[f"{self._name_of(group)}: {why}"] = None
            elif isinstance(owner, CallOp | ContractOp | ReduceOp | ConcatOp) and owner not in noted:
                kind, name = self._kind(owner)
                found[f"{name}: {_OF_KIND[kind]}"] = None
        return tuple(found)


def _group_of(op: Operation | object) -> GroupOp | None:
    """Return a group, or that of a product."""
    if isinstance(op, ProductOp):
        return op.group
    return op if isinstance(op, GroupOp) else None


_MAKERS = (GroupOp, ProductOp, CallOp, ContractOp, ReduceOp, ConcatOp)


def _maker(value: SSAValue) -> tuple[Operation | object, str]:
    """Return what makes a value, and the view through which it is read that moves elements, if any."""
    between = ""
    owner = value.owner
    while isinstance(owner, Operation) and not isinstance(owner, _MAKERS):
        between = "an array that is read at computed places" if isinstance(owner, StoredOp) else f"a {owner.name[14:]}"
        if not owner.operands:
            break
        owner = owner.operands[0].owner
    return owner, between


def _drawn(ops: Iterable[Operation], lines: Mapping[Operation, Sequence[str]]) -> Drawing:
    """Return a drawing of ops with what they read."""
    order = [op for op in ops if op in lines]
    numbers = {op: number for number, op in enumerate(order)}
    nodes: list[Node] = []
    for op in order:
        kind = "op" if _group_of(op) is None else "kernel"
        nodes.append(Node(tuple(lines[op]), kind, tuple(sorted(_sources(op, numbers)))))
    return Drawing(tuple(nodes))


def _sources(op: Operation, numbers: Mapping[Operation, int]) -> set[int]:
    found: set[int] = set()
    work = [value.owner for value in op.operands]
    while work:
        owner = work.pop()
        if isinstance(owner, Operation) and owner in numbers:
            found.add(numbers[owner])
        elif isinstance(owner, Operation):
            work += [value.owner for value in owner.operands]
    return found
