"""What comes back to the tensors of a kernel: where it is kept, and how accesses read and add to it.

- Of a tensor that is stored to, each element once, and not read, the cotangent is read as it is.
- Of one that is read once, by programs that share no element, the gradient is stored.
- Of one that is read several times, or stored to as well, there is a sum in memory, to which a program adds in its own
  order. A store takes what has come back to its elements, and leaves zero.
- Of one that several programs read an element of, a few parts of the grid have a sum each, in which programs run one
  after the other; these are added up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tessera.autodiff.tiles import launches
from tessera.autodiff.tiles.accesses import Access, Load, Store, is_added
from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.arguments import Arguments
from tessera.autodiff.tiles.emitter import Emitter, wide
from tessera.autodiff.tiles.errors import Asked
from tessera.autodiff.tiles.exchange import Exchange, exchange_of
from tessera.autodiff.tiles.exchanged import Moved
from tessera.autodiff.tiles.footprints import Footprint, footprint, separated
from tessera.data import dataclass
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.elementwise import SplatOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, element_of, shape_of
from tessera.ir.types import index
from tessera.ir.walking import ops_in


@dataclass(frozen=True)
class Target:
    """Where what comes back to a tensor goes in one grid.

    Args:
        tensor: the memory.
        split: axes of the grid for which it has a dimension each, in front: one place for each part of the axis.
        is_once: whether an element is stored once, and not added to.
        exchange: how it has a grid of its own.
    """

    tensor: SSAValue
    split: tuple[int, ...] = ()
    is_once: bool = False
    exchange: Exchange | None = None


class Tensor:
    """What is known of one tensor of a kernel.

    Args:
        memory: the tensor.
        grids: the grids of the kernel.
        activity: what moves with what.
    """

    def __init__(self, memory: BlockArgument, grids: Sequence[GridOp], activity: Activity) -> None:
        self.memory = memory
        accesses = [
            [op for op in ops_in(grid) if isinstance(op, Access) and op.tensor is memory]  # pyright: ignore
            for grid in grids
        ]
        self.loads = [
            [footprint(op, g) for op in ops if _is_read(op, activity)] for g, ops in zip(grids, accesses, strict=True)
        ]
        self.stores = [
            [footprint(op, g) for op in ops if isinstance(op, Store)] for g, ops in zip(grids, accesses, strict=True)
        ]
        self.updates = [[op for op in ops if isinstance(op, AtomicOp)] for ops in accesses]
        self.read = [bool([op for op in ops if isinstance(op, Load)]) for ops in accesses]

    @property
    def is_written(self) -> bool:
        """Whether the kernel stores to it."""
        return any(self.stores) or any(self.updates)


def _is_read(op: Operation, activity: Activity) -> bool:
    return isinstance(op, Load) and op.result in activity


class Memory:
    """Decides where what comes back to tensors is kept, and writes what accesses do with it.

    Args:
        kernel: the kernel.
        activity: what moves with what.
        inputs: the tensors whose gradients are asked for.
        outputs: the tensors whose cotangents are given.
        arguments: adds parameters to the adjoint.
        emit: writes ops.
        asked: what is differentiated, for messages.
    """

    def __init__(
        self,
        kernel: KernelOp,
        activity: Activity,
        inputs: Sequence[BlockArgument],
        outputs: Sequence[BlockArgument],
        arguments: Arguments,
        emit: Emitter,
        asked: Asked,
    ) -> None:
        self.moved: list[Moved] = []
        """What is left to be moved behind the grid whose adjoint is written."""
        self.grids = [op for op in kernel.body.block.ops if isinstance(op, GridOp)]
        self._kernel, self._arguments, self._emit, self._asked = kernel, arguments, emit, asked
        self._activity = activity
        self._cotangents = {tensor: arguments.beside(tensor.index, "cotangent") for tensor in outputs}
        self._gradients = {tensor: arguments.beside(tensor.index, "gradient") for tensor in inputs}
        tensors = [arg for arg in kernel.body.block.args if isinstance(arg.type, TensorType)]
        self._tensors = {arg: Tensor(arg, self.grids, activity) for arg in tensors if arg in activity}
        self._sums: dict[SSAValue, SSAValue] = {}
        self._begun: set[SSAValue] = set()
        self._done: set[SSAValue] = set()
        self._unset: set[SSAValue] = set()
        self._targets: dict[SSAValue, Target] = {}
        self._axes: dict[int, SSAValue] = {}
        for tensor in self._tensors.values():
            self._check(tensor)

    # What is refused

    def _check(self, tensor: Tensor) -> None:
        """Check that what comes back to a tensor can be told.

        Raises:
            LanguageError: `no-adjoint`.
        """
        for number, grid in enumerate(self.grids):
            stores, updates = tensor.stores[number], tensor.updates[number]
            for op in updates:
                if not is_added(op):
                    raise self._asked.refused(op, f"atomic_{op.fn.data}")
                if tensor.loads[number] or stores:
                    raise self._asked.refused(op, "an atomic_add to what is read or stored to in the same grid")
            for store in stores:
                if not store.is_distinct:
                    raise self._asked.refused(store.op, "a store at indices that may name an element twice")
            both = [*stores, *tensor.loads[number]]
            if stores and len(separated(both, grid)) < len(grid.block_sizes):
                alone = len(separated(stores, grid)) < len(grid.block_sizes)
                what = "a store that other programs may make to the same elements"
                raise self._asked.refused(stores[0].op, what if alone else "a store to what other programs may read")

    def check_reads(self, adjoint: KernelOp) -> None:
        """Check that what an adjoint reads is what the kernel read: memory that it stores to has changed since.

        Args:
            adjoint: the adjoint, whose first parameters are those of the kernel.

        Raises:
            LanguageError: `no-adjoint`.
        """
        for tensor in self._kernel.body.block.args:
            if not isinstance(tensor.type, TensorType):
                continue
            last = max([n for n, grid in enumerate(self.grids) if _writes(grid, tensor)], default=-1)
            if last < 0:
                continue
            own = adjoint.body.block.args[tensor.index]
            needed = {use.operation.location for use in own.uses if isinstance(use.operation, Load)}
            for grid in self.grids[: last + 1]:
                for op in ops_in(grid):
                    if isinstance(op, Load) and op.tensor is tensor and op.location in needed:
                        name = self._kernel.infos[tensor.index].name
                        raise self._asked.refused(op, f"a read of {name}, which the kernel overwrites,")

    # Where it is kept

    def _is_direct(self, tensor: Tensor) -> bool:
        """Return whether a tensor's cotangent can be read as it is."""
        if tensor.memory in self._gradients or any(tensor.loads):
            return False
        stores = [store for each in tensor.stores for store in each]
        if any(tensor.updates):
            return not stores
        apart = all(a.is_apart_from(b) for at, a in enumerate(stores) for b in stores[:at])
        return sum(map(bool, tensor.stores)) == 1 and apart and all(store.happens_once for store in stores)

    def _sum(self, tensor: BlockArgument) -> SSAValue:
        """Return the memory in which what comes back to a tensor is added up."""
        if tensor not in self._sums:
            element = element_of(tensor.type)
            gradient = self._gradients.get(tensor)
            if gradient is None or element != wide(element):
                name = f"{self._kernel.infos[tensor.index].name}.sum"
                gradient = self._arguments.scratch(name, wide(element), (), tensor.index)
            self._sums[tensor] = gradient
        return self._sums[tensor]

    def _begin(self, tensor: BlockArgument) -> SSAValue:
        """Return a tensor's sum, set to its cotangent before it is first added to."""
        total = self._sum(tensor)
        if tensor not in self._begun:
            self._begun.add(tensor)
            if tensor in self._cotangents:
                launches.copy(self._emit, self._cotangents[tensor], total)
            else:
                launches.set_zero(self._emit, total)
        return total

    def prepare(self, number: int) -> dict[int, tuple[SSAValue, int]]:
        """Emit what stands before a grid's adjoint.

        Args:
            number: the number of the grid.

        Returns:
            The axes that are split into parts, each with a tensor and the dimension of it that is their number.
        """
        parts: dict[int, tuple[SSAValue, int]] = {}
        self._targets = {}
        shared = self._shared(number)
        exchanges = {memory: self._exchange(self._tensors[memory], number, split) for memory, split in shared.items()}
        if None in exchanges.values():  # programs that run one after the other keep nothing of each other
            exchanges = {memory: one if one is not None and one.alone else None for memory, one in exchanges.items()}
        for memory, tensor in self._tensors.items():
            if not tensor.loads[number] and not tensor.stores[number] and not tensor.updates[number]:
                continue
            exchange, split = exchanges.get(memory), shared.get(memory, ())
            if self._is_direct(tensor):
                self._targets[memory] = Target(self._cotangents[memory])
            elif exchange is not None:
                self._set_once(memory, exchange.covers, exchange)
            elif self._is_once(tensor, split):
                (load,) = tensor.loads[number]
                self._set_once(memory, _covers(self._kernel, self.grids[number], load), None)
            elif split:
                name = f"{self._kernel.infos[memory.index].name}.sums{number}"
                sizes = [["chunks", number, axis] for axis in split]
                sums = self._arguments.scratch(name, wide(element_of(memory.type)), sizes, memory.index)
                launches.set_zero(self._emit, sums)
                self._targets[memory] = Target(sums, split)
                parts |= {axis: (sums, place) for place, axis in enumerate(split)}
            else:
                self._targets[memory] = Target(self._begin(memory))
        return parts

    def _shared(self, number: int) -> dict[BlockArgument, tuple[int, ...]]:
        """Return the tensors of which several programs of a grid read an element, with the axes along which they do."""
        grid, found = self.grids[number], dict[BlockArgument, tuple[int, ...]]()
        for memory, tensor in self._tensors.items():
            both = [*tensor.loads[number], *tensor.stores[number]]
            apart = separated(both, grid) if both else {*range(len(grid.block_sizes))}
            split = tuple(axis for axis in range(len(grid.block_sizes)) if axis not in apart)
            if split and not self._is_direct(tensor):
                found[memory] = split
        return found

    def _set_once(self, memory: BlockArgument, covers: bool, exchange: Exchange | None) -> None:
        """Let a gradient be stored where it comes back; what that may leave out is zero."""
        self._done.add(memory)
        self._targets[memory] = Target(self._gradients[memory], is_once=True, exchange=exchange)
        if covers:
            self._unset.add(memory)
        else:
            launches.set_zero(self._emit, self._gradients[memory])

    def _is_once(self, tensor: Tensor, split: Sequence[int]) -> bool:
        """Return whether the gradient of a tensor is what comes back to one access, which no element sees twice."""
        loads = [load for each in tensor.loads for load in each]
        alone = len(loads) == 1 and not tensor.is_written and not split
        return alone and tensor.memory in self._gradients and loads[0].happens_once

    def _exchange(self, tensor: Tensor, number: int, split: Sequence[int]) -> Exchange | None:
        """Return how the gradient of a tensor, which one access of several programs reads, has a grid of its own."""
        loads, grid = [load for each in tensor.loads for load in each], self.grids[number]
        if len(loads) != 1 or tensor.is_written or tensor.memory not in self._gradients:
            return None
        apart = {*range(len(grid.block_sizes))} - {*split}
        return exchange_of(loads[0], grid, apart, self._activity, self._kernel)

    def close(self, number: int) -> None:
        """Emit what stands behind a grid's adjoint: sums of parts go to the tensor's."""
        for memory, target in self._targets.items():
            if target.is_once and memory in self._unset:  # nothing has come back to it
                launches.set_zero(self._emit, target.tensor)
            if not target.split:
                continue
            assert isinstance(memory, BlockArgument), "tensors are arguments of the kernel"
            tensor = self._tensors[memory]
            before = [*tensor.loads[:number], *tensor.stores[:number], *tensor.updates[:number]]
            is_last = memory in self._gradients and not any(before)
            if memory in self._cotangents and memory not in self._begun:
                self._begin(memory)
            is_set = memory in self._begun
            if is_last and not is_set:
                self._done.add(memory)
                launches.add_up(self._emit, target.tensor, len(target.split), self._gradients[memory], False)
            else:
                launches.add_up(self._emit, target.tensor, len(target.split), self._sum(memory), is_set)
                self._begun.add(memory)

    def finish(self) -> None:
        """Emit what stands at the end: gradients that are not what was added to."""
        for tensor, gradient in self._gradients.items():
            if tensor in self._done:
                continue
            if tensor not in self._begun:
                launches.set_zero(self._emit, gradient)
            elif self._sums[tensor] is not gradient:
                launches.copy(self._emit, self._sums[tensor], gradient)

    def kept_by(self, grid: GridOp) -> list[StoreOp]:
        """Return the stores of a grid whose tensors hold, at the end, what they have stored."""
        stores = [op for op in grid.body.block.ops if isinstance(op, StoreOp) and op.mask is None]
        known = [(op, self._tensors.get(op.tensor)) for op in stores]  # pyright: ignore[reportArgumentType]
        return [op for op, tensor in known if tensor is not None and self._is_direct(tensor)]

    # What accesses do

    def concerns(self, op: Operation) -> bool:
        """Return whether the adjoint of an access does anything."""
        if not isinstance(op, Access):
            return False
        return op.tensor in self._targets

    def stored(self, op: StoreOp | ScatterOp | AtomicOp, of: Mapping[SSAValue, SSAValue]) -> SSAValue:
        """Emit and return what comes back to the value of a store, or of an atomic addition."""
        emit, target = self._emit, self._targets[op.tensor]
        mask = None if op.mask is None else of[op.mask]
        zeroed = not isinstance(op, AtomicOp) and target.tensor is self._sums.get(op.tensor)
        if isinstance(op, StoreOp):
            offsets = [of[offset] for offset in op.offsets]
            part = emit.value(LoadOp(target.tensor, offsets, op.size_list, op.dropped, mask))
            if zeroed:
                emit.add(StoreOp(emit.zero(part.type), target.tensor, offsets, op.size_list, op.dropped, mask))
        else:
            places = [of[place] for place in op.indices]
            part = emit.value(GatherOp(target.tensor, places, mask))
            if zeroed:
                emit.add(ScatterOp(emit.zero(part.type), target.tensor, places, mask))
        return emit.widened(part)

    def loaded(self, op: Load, of: Mapping[SSAValue, SSAValue], cotangent: SSAValue) -> None:
        """Emit how what comes back to a loaded value gets to its tensor."""
        emit, target = self._emit, self._targets[op.tensor]
        self._unset.discard(op.tensor)
        mask = None if op.mask is None else of[op.mask]
        if isinstance(op, LoadOp):
            offsets = [self._axes[axis] for axis in target.split] + [of[offset] for offset in op.offsets]
            ahead = len(target.split)
            sizes = [*[1] * ahead, *op.size_list]
            drop = [*range(ahead), *(ahead + axis for axis in op.dropped)]
            if target.is_once:
                self._store_once(op, target, cotangent, of)
                return
            held = emit.value(LoadOp(target.tensor, offsets, sizes, drop, mask))
            emit.add(StoreOp(emit.binary("add", held, cotangent), target.tensor, offsets, sizes, drop, mask))
            return
        grid = op.parent_op()
        while not isinstance(grid, GridOp):
            assert grid is not None, "accesses are in grids"
            grid = grid.parent_op()
        known = footprint(op, grid)
        unsafe = sorted(key.axis for key in known.tile_keys - known.safe)
        if target.is_once:
            places = [of[place] for place in op.indices]
            emit.add(ScatterOp(emit.cast(cotangent, element_of(op.tensor.type)), target.tensor, places, mask))
        else:
            self._add_at(target, [of[place] for place in op.indices], cotangent, mask, unsafe)

    def _store_once(self, op: LoadOp, target: Target, cotangent: SSAValue, of: Mapping[SSAValue, SSAValue]) -> None:
        """Store what comes back to a slice; zero to what is masked off, which nothing else may set."""
        emit, exchange = self._emit, target.exchange
        if op.mask is not None:
            cotangent = emit.applier(cotangent.type)("select", of[op.mask], cotangent, 0.0)
        if exchange is None:
            cotangent = emit.cast(cotangent, element_of(op.tensor.type))
        store = StoreOp(cotangent, target.tensor, [of[offset] for offset in op.offsets], op.size_list, op.dropped)
        emit.add(store)
        if exchange is not None:
            self.moved.append(Moved(exchange, store, of[exchange.loop.body.block.args[0]]))

    def _add_at(
        self,
        target: Target,
        places: Sequence[SSAValue],
        cotangent: SSAValue,
        mask: SSAValue | None,
        unsafe: Sequence[int],
    ) -> None:
        """Add to elements at index tiles; one after the other along dimensions that may name an element twice."""
        emit, shape = self._emit, shape_of(cotangent.type)
        if not unsafe:
            ahead = [self._axes[axis] for axis in target.split]
            ahead = [emit.value(SplatOp(one, shape)) if shape else one for one in ahead]
            held = emit.value(GatherOp(target.tensor, [*ahead, *places], mask))
            emit.add(ScatterOp(emit.binary("add", held, cotangent), target.tensor, [*ahead, *places], mask))
            return
        axis, rest = unsafe[0], unsafe[1:]
        body = Block(arg_types=[index])
        with emit.into(body):
            sizes = [1 if at == axis else size for at, size in enumerate(shape)]
            starts = [body.args[0] if at == axis else emit.index(0) for at in range(len(shape))]

            def part(tile: SSAValue) -> SSAValue:
                return emit.value(PartOp(tile, starts, sizes))

            own = None if mask is None else part(mask)
            self._add_at(target, [part(place) for place in places], part(cotangent), own, rest)
            emit.add(YieldOp())
        emit.add(ForOp(emit.index(0), emit.index(shape[axis]), emit.index(1), [], Region(body)))

    def at_parts(self, places: Mapping[int, SSAValue]) -> None:
        """Note in which part of each split axis a program is."""
        self._axes = dict(places)


def _writes(grid: GridOp, tensor: SSAValue) -> bool:
    return any(isinstance(op, StoreOp | ScatterOp | AtomicOp) and op.tensor is tensor for op in ops_in(grid))


def _covers(kernel: KernelOp, grid: GridOp, load: Footprint) -> bool:
    """Return whether a slice, over all programs, is known to be all of its tensor."""
    op = load.op
    if not isinstance(op, LoadOp) or op.parent_op() is not grid or grid.guard is not None:
        return False
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    return all(_covers_along(kernel, grid, load, axis, size) for axis, size in enumerate(op.tensor.type.shape))


def _covers_along(kernel: KernelOp, grid: GridOp, load: Footprint, axis: int, size: int) -> bool:
    form, op = load.forms[axis], load.op
    assert isinstance(op, LoadOp), "a slice"
    width = op.size_list[axis]
    if form.constant or form.uniform or form.wild or form.odd:
        return False
    if not form.programs:
        return 0 <= size <= width
    ((along, factor),) = form.programs.items() if len(form.programs) == 1 else ((-1, 0),)
    if along < 0 or factor != grid.block_sizes[along] or factor > width:
        return False
    extent = grid.extents[along]
    if isinstance(extent.owner, DimOp):
        name = kernel.info_of(extent.owner.tensor).dims[extent.owner.axis.data]
        return name == kernel.info_of(op.tensor).dims[axis]
    return size >= 0 and constant_value(extent) == size
