"""Writes the tables that the compiled entry reads; see `layout.py` for what stands where.

A *guard* says for which arguments a record holds. It is made from arguments that have gone through the checks of the
Python path, and lets through only arguments that the Python path would run in the same way.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tessera.data import dataclass
from tessera.entry import host, layout
from tessera.entry.layout import ARG, AXIS, LAUNCH, MAP, RECORD, TABLE, WORD
from tessera.target.artifact import Launch, Parameter
from tessera.target.divisors import masks
from tessera.target.extents import Extent

_BLOCK_LIMIT = 16 * 1024
"""Bytes: the block lies on the caller's stack."""


class NotDirect(Exception):
    """A call that the entry has no record for. It is no error: the Python path serves such calls."""


@dataclass(frozen=True, slots=True)
class AxisGuard:
    """One dimension: sizes and strides of the same class.

    Args:
        size: the only size, -1 where any of its class will do.
        size_div: known divisor of the size.
        stride: 0, 1, or -1 for any other.
        stride_div: known divisor of the stride.
    """

    size: int
    size_div: int
    stride: int
    stride_div: int


@dataclass(frozen=True, slots=True)
class ArrayGuard:
    """An array argument.

    Args:
        kind: `layout.NUMPY`, `DLPACK` or `DEVICE`.
        types: the addresses of one or two accepted types.
        dtype: what stands for the element type in such an object.
        place: its position in the call.
        element_bytes: bytes of an element.
        align: known alignment of the address.
        axes: guard of each dimension.
        written: whether the kernel stores to it.
        shift: log2 of the unit that the object's strides count in.
        device: DLPack device, as 8 bytes.
        read: address of the exchange function.
        inner: where a tensor object points at its implementation, a device array at its `DLTensor`.
        mark: where that holds bits that say what a tensor is.
        mark_mask: the bits that must be 0.
        keep: objects whose addresses stand in the other fields.
    """

    kind: int
    types: tuple[int, ...]
    dtype: int
    place: int = 0
    element_bytes: int = 1
    align: int = 1
    axes: tuple[AxisGuard, ...] = ()
    written: bool = False
    shift: int = 0
    device: int = 0
    read: int = 0
    inner: int = 0
    mark: int = 0
    mark_mask: int = 0
    keep: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalarGuard:
    """A number: `layout.FLOAT64` to `BOOLEAN`, for integers with their range."""

    place: int
    kind: int
    low: int = 0
    high: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether grids may use it."""
        return self.kind in (layout.INTEGER, layout.BOOLEAN)


@dataclass(frozen=True, slots=True)
class Filled:
    """A scalar that the call leaves to its default.

    Args:
        bits: what the parameter's memory holds.
        is_integer: whether grids may use it.
    """

    bits: int
    is_integer: bool


@dataclass(frozen=True, slots=True)
class ConstantGuard:
    """A compile-time argument: the same object, or (`equal`) an int or string of the same value."""

    place: int
    value: object
    equal: bool


@dataclass(frozen=True, slots=True)
class MemoryGuards:
    """Which arrays are one memory, by their positions among the run-time arguments.

    Args:
        same: pairs that start at one address.
        views: pairs that have the same sizes and strides besides.
        apart: pairs that must not start at one address: the code takes them for two memories, and stores to one.
    """

    same: tuple[tuple[int, int], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()


_ALL_APART = MemoryGuards()
Argument = ArrayGuard | ScalarGuard | Filled
Axis = tuple[int, int]
"""Position of an argument among the run-time arguments, and a dimension of it."""


class Block:
    """Offsets in the memory of one call.

    Args:
        arguments: the run-time arguments, in order.
        launches: what is launched.
        extra: words of each launch's parameters beyond those of the artefact.
    """

    def __init__(self, arguments: Sequence[Argument], launches: Sequence[Launch], extra: int) -> None:
        self._next = 0
        self._arguments = arguments
        self.sizes = [self._take(2 * len(one.axes)) if isinstance(one, ArrayGuard) else -1 for one in arguments]
        whole = [not isinstance(one, ArrayGuard) and one.is_integer for one in arguments]
        early = [self._take(1) if is_whole else -1 for is_whole in whole]
        self.cost_bytes = self._next
        self.values = [self._take(1) if at < 0 else at for at in early]
        self.error = self._take(1)
        self.counts = self._take(len(launches))
        self.pointers = [self._take(len(launch.params) + extra) for launch in launches]
        self.workspace = self._take(any(launch.slot_bytes for launch in launches))
        self.maps: dict[Parameter, int] = {}
        self._next = -(-self._next // 64) * 64
        for launch in launches:
            for param in launch.params:
                if param.kind == "tensor_map" and param not in self.maps:
                    self.maps[param] = self._take(layout.MAP_DATA // WORD)
        self.bytes = self._next
        if self.bytes > _BLOCK_LIMIT:
            raise NotDirect("the parameters are too many")

    def _take(self, words: int) -> int:
        start = self._next
        self._next += WORD * words
        return start

    def size(self, arg: int, axis: int) -> int:
        """Return where the size of a dimension is."""
        return self.sizes[arg] + WORD * axis

    def stride(self, arg: int, axis: int) -> int:
        """Return where the stride of a dimension is."""
        guard = self._arguments[arg]
        assert isinstance(guard, ArrayGuard), "only arrays have strides"
        return self.size(arg, axis + len(guard.axes))

    def param(self, param: Parameter) -> int:
        """Return where the value of a machine-level parameter is."""
        if param.kind == "tensor_map":
            return self.maps[param]
        if param.kind == "workspace":
            return self.workspace
        if param.kind in ("pointer", "scalar"):
            return self.values[param.arg]
        return (self.size if param.kind == "size" else self.stride)(param.arg, param.axis)

    def scalar(self, arg: int) -> int:
        """Return where an integer is that a grid depends on."""
        guard = self._arguments[arg]
        if isinstance(guard, ArrayGuard) or not guard.is_integer:
            raise NotDirect("a grid depends on a scalar that is not an integer")
        return self.values[arg]


def grid_steps(
    grid: Sequence[tuple[Extent, int]], block: Block, conditions: Sequence[Extent] = ()
) -> list[tuple[int, int]]:
    """Return the program that computes how many programs a grid has, and refuses calls in which a condition is 0."""
    steps: list[tuple[str, int]] = []

    def write(expr: Any) -> int:
        """Write an expression; returns how many numbers it needs on the stack."""
        match expr:
            case ["const", value]:
                steps.append(("const", int(value)))
            case ["size", arg, axis]:
                steps.append(("load", block.size(arg, axis)))
            case ["stride", arg, axis]:
                steps.append(("load", block.stride(arg, axis)))
            case ["scalar", arg]:
                steps.append(("load", block.scalar(arg)))
            case ["unsigned", _, ["const", 64]]:
                raise NotDirect("a grid depends on an unsigned number of 64 bits")
            case [fn, left, right]:
                depth = max(write(left), 1 + write(right))
                steps.append((fn, 0))
                return depth
            case _:
                raise AssertionError(f"{expr!r} is not a grid expression")
        return 1

    depth = 1
    for condition in conditions:
        depth = max(depth, write(condition))
        steps.append(("require", 0))
    grid = grid or [(("const", 1), 1)]
    for place, (extent, size) in enumerate(grid):
        depth = max(depth, write(extent) + (place > 0))
        steps.append(("blocks", size))
        if place:
            steps.append(("mul", 0))
    if depth > layout.GRID_DEPTH:
        raise NotDirect("a grid expression is too deep")
    return [(layout.GRID_CODES.index(name), operand) for name, operand in steps]


@dataclass(frozen=True, slots=True)
class MapPlan:
    """What a tensor map holds that no call changes.

    Args:
        constants: the driver's numbers, in an order that the platform knows.
        bytes: of an element.
        box: elements of a copy, by dimension.
        order: the array's dimensions in the map's order.
    """

    constants: tuple[int, ...]
    bytes: int
    box: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What a record starts.

    Args:
        launches: entry points with their grids.
        functions: the address of each.
        words: further words of the record, by their names in `layout.RECORD`.
        most: most programs of each launch.
        extra: offsets appended to each launch's parameters: `layout.SCRATCH`, or -2 for the error word.
        make_pool: makes the worker pool, for the first launch that wants one.
        maps: the tensor maps among the parameters.
        start: address of the platform's function that starts it; 0 where the entry does.
        own: words of that function's own.
        failed: raises the error of a launch that failed, given its number.
        keep: objects that must live as long as the record.
        conditions: what is not 0 in the calls that the record serves.
    """

    launches: Sequence[Launch]
    functions: Sequence[int]
    words: Mapping[str, int]
    most: Sequence[int]
    failed: Callable[..., object]
    extra: tuple[int, ...] = ()
    make_pool: Callable[[], object] | None = None
    maps: Mapping[Parameter, MapPlan] = field(default_factory=dict[Parameter, MapPlan])
    start: int = 0
    own: Sequence[int] = ()
    keep: tuple[object, ...] = ()
    conditions: Sequence[Extent] = ()


ERROR_WORD = -2
_numbers = itertools.count(1)


class Record:
    """One kind of call and what it launches, in memory that the entry reads.

    Args:
        positional: how many arguments such a call has by position.
        names: the names of the others, in order.
        arguments: guards of the run-time arguments, in the order of the artefact.
        constants: guards of compile-time arguments.
        equal: dimensions that have one size.
        returns: positions of the arguments that the call returns.
        profile: the numerics profile that the caller chose, None for none.
        work: what is launched.
        memory: which arrays are one memory.

    Raises:
        NotDirect: the entry cannot serve such calls.
    """

    def __init__(
        self,
        positional: int,
        names: Sequence[str],
        arguments: Sequence[Argument],
        constants: Sequence[ConstantGuard],
        equal: Sequence[tuple[Axis, Axis]],
        returns: Sequence[int],
        profile: str | None,
        work: Work,
        memory: MemoryGuards = _ALL_APART,
    ) -> None:
        self.number = next(_numbers)
        self._kept: list[object] = [work, *names, *arguments, *constants, profile, work.failed, work.make_pool]
        called = positional, tuple(names), tuple(arguments), tuple((one.place, id(one.value)) for one in constants)
        self.kind = (*called, tuple(equal), id(profile), memory, host.generation())
        self.block = Block(arguments, work.launches, len(work.extra))
        values = {
            "id": self.number,
            "arguments": positional + len(names),
            "positional": positional,
            "names": self._words([id(name) for name in names]),
            "profile": id(profile),
            "generation": host.generation(),
            "return_count": len(returns),
            "returns": self._words(list(returns)),
            **self._guards(arguments, constants),
            **self._comparisons(arguments, equal, memory),
            **self._work(work),
        }
        self.address = self._words([values.get(name, 0) for name in RECORD])

    def _guards(self, arguments: Sequence[Argument], constants: Sequence[ConstantGuard]) -> dict[str, int]:
        rows = [self._constant(one) for one in constants]
        fills: list[int] = []
        for place, one in enumerate(arguments):
            if isinstance(one, Filled):
                fills += self.block.values[place], one.bits
            else:
                rows.append(self._argument(one, place))
        return {
            "arg_count": len(rows),
            "args": self._words([word for row in rows for word in row]),
            "fill_count": len(fills) // 2,
            "fills": self._words(fills),
        }

    def _comparisons(
        self, arguments: Sequence[Argument], equal: Sequence[tuple[Axis, Axis]], memory: MemoryGuards
    ) -> dict[str, int]:
        """Return which words of the block are compared: sizes, strides and addresses."""
        same = [self.block.size(*axis) for pair in equal for axis in pair]
        same += [self.block.values[arg] for pair in memory.same for arg in pair]
        for pair in memory.views:
            first = arguments[pair[0]]
            assert isinstance(first, ArrayGuard), "views are arrays"
            same += [self.block.sizes[arg] + WORD * word for word in range(2 * len(first.axes)) for arg in pair]
        apart = [self.block.values[arg] for pair in memory.apart for arg in pair]
        return {
            "equal_count": len(same) // 2,
            "equals": self._words(same),
            "apart_count": len(apart) // 2,
            "aparts": self._words(apart),
        }

    def _work(self, work: Work) -> dict[str, int]:
        launches = [word for place in range(len(work.launches)) for word in self._launch(place, work)]
        maps = [word for param in self.block.maps for word in self._map(param, work.maps[param])]
        return {
            "block_bytes": self.block.bytes,
            "cost_bytes": self.block.cost_bytes,
            "error": self.block.error,
            "counts": self.block.counts,
            "launch_count": len(work.launches),
            "launches": self._words(launches),
            "costs": self._words([0] * (len(layout.COST) * layout.COST_SLOTS)),
            "make_pool": id(work.make_pool),
            "failed": id(work.failed),
            "map_count": len(self.block.maps),
            "maps": self._words(maps),
            "workspace": self.block.workspace,
            "start": work.start,
            "own": self._words(work.own),
            **work.words,
        }

    def _words(self, values: Sequence[int]) -> int:
        """Return the address of new memory that holds these words."""
        memory = (ctypes.c_int64 * max(len(values), 1))(*values)
        self._kept.append(memory)
        return ctypes.addressof(memory)

    def _aligned(self, size: int) -> int:
        """Return the address of new zeroed memory at a multiple of 64 bytes."""
        memory = (ctypes.c_char * (size + 64))()
        self._kept.append(memory)
        return -(-ctypes.addressof(memory) // 64) * 64

    def _argument(self, one: ArrayGuard | ScalarGuard, place: int) -> list[int]:
        if isinstance(one, ScalarGuard):
            words = {"kind": one.kind, "place": one.place, "low": one.low, "high": one.high}
            return _row(ARG, {**words, "pointer": self.block.values[place]})
        full = one.align >= 16
        # On a GPU, strides that run backwards have a variant of their own, which the Python path finds.
        forwards = one.kind != layout.NUMPY
        axes = [word for axis in one.axes for word in _axis_row(axis, one.element_bytes, forwards)]
        values = {
            "kind": one.kind,
            "place": one.place,
            "type": one.types[0],
            "other_type": one.types[-1],
            "dtype": one.dtype,
            "device": one.device,
            "flags": layout.WRITEABLE if one.written else 0,
            "rank": len(one.axes),
            "shift": one.shift,
            "align_mask": 15 if full else 2 * one.align - 1,
            "align": 0 if full else one.align,
            "written": one.written,
            "read": one.read,
            "inner": one.inner,
            "mark": one.mark,
            "mark_mask": one.mark_mask,
            "pointer": self.block.values[place],
            "sizes": self.block.sizes[place],
            "axes": self._words(axes),
        }
        return _row(ARG, values)

    def _constant(self, one: ConstantGuard) -> list[int]:
        kind = layout.EQUAL if one.equal else layout.SAME
        words = {"kind": kind, "place": one.place, "low": id(one.value), "type": id(type(one.value))}
        return _row(ARG, words)

    def _launch(self, place: int, work: Work) -> list[int]:
        launch = work.launches[place]
        special = {layout.SCRATCH: layout.SCRATCH, ERROR_WORD: self.block.error}
        offsets = [*map(self.block.param, launch.params), *(special[one] for one in work.extra)]
        steps = [
            word for step in grid_steps(launch.grid, self.block, () if place else work.conditions) for word in step
        ]
        grid = self._words(steps)
        values = {
            "function": work.functions[place],
            "param_count": len(offsets),
            "params": self._words(offsets),
            "pointers": self.block.pointers[place],
            "grid": grid,
            "grid_end": grid + WORD * len(steps),
            "threads": launch.threads,
            "shared": launch.shared_bytes,
            "scratch": launch.scratch_bytes,
            "most": work.most[place],
            "overlaps": launch.overlaps,
            "shares": launch.slot_bytes != 0,
            "parts": launch.parts,
        }
        return _row(LAUNCH, values)

    def _map(self, param: Parameter, plan: MapPlan) -> list[int]:
        if len(plan.order) > layout.MAP_AXES:
            raise NotDirect("a tensor map has too many dimensions")
        box = (ctypes.c_uint32 * len(plan.box))(*plan.box)
        ones = (ctypes.c_uint32 * len(plan.box))(*[1] * len(plan.box))
        self._kept += [box, ones]
        cache = self._aligned(layout.MAP_ENTRY * layout.MAP_SLOTS)
        for slot in range(layout.MAP_SLOTS):
            host.put_word(cache + layout.MAP_ENTRY * slot, -1)  # the address of no array
        values = {
            "constants": self._words(plan.constants),
            "bytes": plan.bytes,
            "rank": len(plan.order),
            "pointer": self.block.values[param.arg],
            "box": ctypes.addressof(box),
            "ones": ctypes.addressof(ones),
            "at": self.block.maps[param],
            "cache": cache,
        }
        axes = [
            word
            for axis in plan.order
            for word in (self.block.size(param.arg, axis), self.block.stride(param.arg, axis))
        ]
        return (_row(MAP, values)[:-1] + axes + [0] * layout.MAP_WORDS)[: layout.MAP_WORDS]


def _row(fields: Mapping[str, int], values: Mapping[str, int]) -> list[int]:
    assert values.keys() <= fields.keys(), values.keys() - fields.keys()
    return [int(values.get(name, 0)) for name in fields]


_SIGN = -(1 << 63)


def _axis_row(axis: AxisGuard, element_bytes: int, forwards: bool) -> list[int]:
    size = (0, 0) if axis.size >= 0 else masks(axis.size_div, element_bytes)
    stride = (0, 0) if axis.stride in (0, 1) else masks(axis.stride_div, element_bytes)
    values = {
        "size": axis.size,
        "zero": size[0],
        "some": size[1],
        "stride": axis.stride,
        "stride_zero": stride[0] | (_SIGN if forwards else 0),
        "stride_some": stride[1],
    }
    return _row(AXIS, values)


class Table:
    """The records of a kernel, as the entry reads them. Made anew for every change; the entry keeps the one it reads.

    Args:
        records: the records.
        slow: what serves all other calls: a function of the kernel and the arguments.
    """

    def __init__(self, records: Sequence[Record], slow: object) -> None:
        first = TABLE["records"] // WORD
        self._words = (ctypes.c_int64 * (first + len(records)))()
        self._kept = (records, slow)
        values = {"owner": id(self), "api": host.api(), "slow": id(slow), "count": len(records)}
        for name, value in values.items():
            self._words[TABLE[name] // WORD] = value
        for place, record in enumerate(records):
            self._words[first + place] = record.address
        self.address = ctypes.addressof(self._words)
