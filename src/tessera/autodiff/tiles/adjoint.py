"""From a kernel in TIR-H to its adjoint: `adjoint_of`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Block, Region, SSAValue

from tessera.autodiff.tiles.accesses import is_float
from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.arguments import Added, Arguments, Axis
from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.errors import Asked
from tessera.autodiff.tiles.exchanged import Exchanger, Moved
from tessera.autodiff.tiles.history import History
from tessera.autodiff.tiles.kept import Keeper
from tessera.autodiff.tiles.memory import Memory
from tessera.autodiff.tiles.read_back import read_back
from tessera.autodiff.tiles.separate import separate
from tessera.autodiff.tiles.sweep import Sweep
from tessera.canonicalize.dead_code import remove_dead
from tessera.canonicalize.stages import CANONICALIZE
from tessera.data import dataclass
from tessera.ir.cloning import clone
from tessera.ir.effects import Effect, acts, effect_of
from tessera.ir.tile.extents import host_extent
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.structure import AssumeOp, DimOp, GridOp, KernelOp, ReturnOp
from tessera.ir.tile.types import SharedType, element_of
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in


@dataclass(frozen=True, slots=True, eq=False)
class Adjoint:
    """The adjoint of a kernel.

    Args:
        module: holds its kernel, whose parameters are those of the kernel that is differentiated and then `added`.
        added: cotangents, gradients and scratch memory, in order.
        axes: the axes of grids whose number of parts the host chooses.
    """

    module: ModuleOp
    added: tuple[Added, ...]
    axes: tuple[Axis, ...]


def has_gradient(tensor: SSAValue) -> bool:
    """Return whether a tensor has gradients: its floats have 16 bits at least."""
    return is_float(tensor) and dtype_of(element_of(tensor.type)).bits >= 16


def inputs_of(module: ModuleOp) -> tuple[int, ...]:
    """Return the places of the tensors of floats that a kernel reads."""
    kernel = _kernel_of(module)
    read = {op.tensor for op in ops_in(kernel) if isinstance(op, LoadOp | GatherOp)}
    return tuple(arg.index for arg in kernel.body.block.args if arg in read and has_gradient(arg))


def outputs_of(module: ModuleOp) -> tuple[int, ...]:
    """Return the places of the tensors of floats that a kernel stores to."""
    kernel = _kernel_of(module)
    infos = zip(kernel.infos, kernel.body.block.args, strict=True)
    return tuple(arg.index for info, arg in infos if info.written and has_gradient(arg))


def _kernel_of(module: ModuleOp) -> KernelOp:
    return next(op for op in module.ops if isinstance(op, KernelOp))


def adjoint_of(module: ModuleOp, inputs: Sequence[int], outputs: Sequence[int]) -> Adjoint:
    """Return the adjoint of a kernel: it computes gradients of what is read from cotangents of what is written.

    It is called with the arrays as the kernel has left them. What it computes has the same bits in every run.

    Args:
        module: holds the kernel, as the front end built it; it is left as it is.
        inputs: places of the tensors of floats whose gradients are wanted.
        outputs: places of the tensors of floats whose cotangents are given.

    Raises:
        LanguageError: `no-adjoint`.
    """
    module = clone(module)
    for one in CANONICALIZE:
        one.apply(module)
    kernel = _kernel_of(module)
    return _Writer(kernel, inputs, outputs).write()


class _Writer:
    """Writes an adjoint.

    Args:
        kernel: the kernel, in canonical form.
        inputs: places of the tensors whose gradients are wanted.
        outputs: places of the tensors whose cotangents are given.
    """

    def __init__(self, kernel: KernelOp, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        args, infos = kernel.body.block.args, kernel.infos
        self._kernel = kernel
        self._asked = Asked(
            kernel.sym_name.data, tuple(infos[at].name for at in outputs), tuple(infos[at].name for at in inputs)
        )
        self._check_ops()
        given, wanted = [args[at] for at in outputs], [args[at] for at in inputs]
        self._activity = Activity(kernel, wanted, given)
        self._adjoint = KernelOp(
            f"{kernel.sym_name.data}_adjoint", infos, kernel.body.block.arg_types, kernel.profile.data
        )
        self._adjoint.location = kernel.location
        self._emit = Emitter(self._adjoint.body.block)
        self._arguments = Arguments(self._adjoint)
        self._memory = Memory(kernel, self._activity, wanted, given, self._arguments, self._emit, self._asked)
        self._axes: list[Axis] = []
        self._places: list[SSAValue] = []
        self._values: dict[SSAValue, SSAValue] = dict(zip(args, self._adjoint.body.block.args, strict=False))

    def _check_ops(self) -> None:
        """Refuse kernels that stage by hand.

        Raises:
            LanguageError: `no-adjoint`.
        """
        for op in ops_in(self._kernel):
            values = [*op.operands, *op.results]
            if any(isinstance(value.type, SharedType) for value in values):
                raise self._asked.refused(op, "an explicit shared buffer")

    def write(self) -> Adjoint:
        """Return the adjoint.

        Raises:
            LanguageError: `no-adjoint`.
        """
        grids = self._memory.grids
        for op in self._kernel.body.block.ops:
            if isinstance(op, GridOp | ReturnOp):
                continue
            if effect_of(op) > Effect.RANDOM and not isinstance(op, AssumeOp):
                raise self._asked.refused(op, f"{op.name.rpartition('.')[2]} before a grid")
            self._emit.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
            copy = op.clone(self._values)
            self._emit.add(copy)
        for number in reversed(range(len(grids))):
            self._grid(number, grids[number])
        self._memory.finish()
        self._emit.add(ReturnOp())
        self._arguments.finish()
        remove_dead(self._adjoint.body.block)
        self._memory.check_reads(self._adjoint)
        module = ModuleOp([self._adjoint])
        return Adjoint(module, tuple(self._arguments.added), tuple(self._axes))

    def _grid(self, number: int, grid: GridOp) -> None:
        """Write the adjoint of a grid: programs that share what they add to run one after the other, in a few parts."""
        emit = self._emit
        emit.location = grid.location  # pyright: ignore[reportAttributeAccessIssue]
        parts = self._memory.prepare(number)
        extents = [self._values[extent] for extent in grid.extents]
        counts = {axis: emit.value(DimOp(tensor, place)) for axis, (tensor, place) in sorted(parts.items())}
        for axis in counts:
            programs = ["ceildiv", host_extent(grid.extents[axis]), ["const", grid.block_sizes[axis]]]
            self._axes.append(Axis(number, axis, programs))
        blocks = [1 if axis in counts else block for axis, block in enumerate(grid.block_sizes)]
        bounds = [counts.get(axis, extent) for axis, extent in enumerate(extents)]
        guard = None if grid.guard is None else self._values[grid.guard]
        new = GridOp(bounds, blocks, guard)
        places: list[SSAValue] = list(new.body.block.args)
        self._memory.at_parts({axis: places[axis] for axis in counts})
        with emit.into(new.body.block):
            history = History(emit, self._arguments, number, grid, places, counts)
            self._parts(grid, [*counts], places, extents, counts, history)
        emit.add(new)
        keeper = Keeper(emit, self._arguments, grid, self._places)
        if self._memory.moved:
            self._exchange(keeper)
        remove_dead(new.body.block)
        if not counts:
            separate(emit, keeper, new)
        if not new.body.block.first_op:
            new.detach()
            new.erase()
        self._memory.close(number)

    def _exchange(self, keeper: Keeper) -> None:
        """Write the grids of loads that have one of their own; slices that move alike share one."""
        exchanger = Exchanger(self._emit, self._arguments, self._values, keeper)
        together: dict[tuple[object, ...], list[Moved]] = {}
        for moved in self._memory.moved:
            together.setdefault((*moved.exchange.shared, moved.around), []).append(moved)
        for alike in together.values():
            exchanger.write(alike)
        self._memory.moved.clear()

    def _parts(
        self,
        grid: GridOp,
        axes: list[int],
        places: list[SSAValue],
        extents: Sequence[SSAValue],
        counts: dict[int, SSAValue],
        history: History,
    ) -> None:
        """Write loops over the programs of a part along each split axis, and in them a program's adjoint."""
        emit = self._emit
        if not axes:
            self._program(grid, places, history)
            return
        axis, rest = axes[0], axes[1:]
        block = emit.index(grid.block_sizes[axis])
        programs = emit.ceildiv(extents[axis], block)
        length = emit.binary("mul", emit.ceildiv(programs, counts[axis]), block)
        first = emit.binary("mul", places[axis], length)
        after = emit.binary("minimum", extents[axis], emit.binary("add", first, length))
        body = Block(arg_types=[index])
        with emit.into(body):
            inner = [body.args[0] if at == axis else place for at, place in enumerate(places)]
            self._parts(grid, rest, inner, extents, counts, history)
            emit.add(YieldOp())
        emit.add(ForOp(first, after, block, [], Region(body)))

    def _program(self, grid: GridOp, places: Sequence[SSAValue], history: History) -> None:
        self._places = list(places)
        values = {**self._values, **dict(zip(grid.body.block.args, places, strict=True))}
        sweep = Sweep(self._emit, self._activity, self._memory, self._asked, history.keep, values)
        ops = list(grid.body.block.ops)
        sweep.forward(ops)
        sweep.backward(ops)
        if sum(map(acts, ops_in(grid))) == 1:
            read_back(self._emit, self._memory.kept_by(grid), sweep.values)
