"""The state of one compilation: where ops go, what names mean, what is known at compile time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import field
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError, Location, TesseraError, TypeMismatchError
from tessera.frontend.liveness import Liveness
from tessera.frontend.reads import Reads
from tessera.frontend.signature import ConstexprParam, Signature, TensorParam
from tessera.frontend.source import FunctionSource, source_of
from tessera.frontend.specialize import Specialization
from tessera.frontend.static_eval import lookup_in
from tessera.frontend.symbolic import Symbols
from tessera.frontend.values import Moment, RoleSpec, Scalar, TensorValue, Tile
from tessera.ir.effects import acts
from tessera.ir.locations import to_loc
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.structure import AssumeOp, DimOp
from tessera.ir.tile.types import SharedType, TileType, describe
from tessera.ir.types import index
from tessera.target.dims import Dim, Quotient, solved

if TYPE_CHECKING:
    from tessera.frontend.carry import Carried

OpT = TypeVar("OpT", bound=Operation)

MAX_ELEMENTS = 2**28
"""Elements of the largest tile: long rows go in chunks, a slip ends, and offsets of bytes in a tile take 31 bits."""

MAX_STEPS = 2**19
"""Expressions and statements that one compilation may go through: a few seconds, and what they emit is compiled."""

STEPS_OF_OP = 4
STEPS_OF_CALL = 32


@dataclass(slots=True, eq=False)
class Frame:
    """One function being compiled: the kernel, or a helper inlined into it.

    Args:
        function: the function.
        env: what its local names are.
        call_site: where it was called, None for the kernel.
        caller: the frame that called it.
    """

    function: Any
    env: dict[str, Any]
    call_site: Location | None = None
    caller: Frame | None = None
    predicates: list[Tile | None] = field(default_factory=lambda: [None])
    """The condition on a tile around the function, then around each loop that is open in it."""
    given: dict[int, set[Attribute]] = field(default_factory=dict[int, "set[Attribute]"])
    """The types that numbers among what a helper returns have by themselves, by their places in it."""
    returned: dict[int, Attribute] = field(default_factory=dict[int, Attribute])
    """The types that such numbers take, as an earlier attempt has shown."""
    source: FunctionSource = field(init=False)
    lookup: Callable[[str], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.source = source_of(self.function)
        self.lookup = lookup_in(self.function)

    @property
    def liveness(self) -> Liveness:
        """Which names live on after each statement."""
        return self.source.liveness

    @property
    def locals(self) -> frozenset[str]:
        """The names that the function binds somewhere."""
        return self.source.locals

    def locate(self, node: ast.AST) -> Location:
        """Return where `node` stands, with the calls that led here."""
        location = self.source.locate(node)
        return location if self.call_site is None else location.inside(self.call_site)

    def depth_of(self, function: FunctionType) -> int:
        """Return how many calls of `function` are being compiled: in this frame and its callers."""
        depth, frame = 0, self
        while frame is not None:
            depth += frame.function is function
            frame = frame.caller
        return depth


@dataclass(slots=True, eq=False)
class LoopPlace:
    """Where among nested run-time loops the compiler is.

    Args:
        path: for each loop around, its node and how many loops came before it in the one around that.
        count: loops met so far directly inside.
    """

    path: tuple[tuple[ast.AST, int], ...] = ()
    count: int = 0


class Dims:
    """The sizes of dimensions: run-time values, and the numbers they are fixed to.

    Args:
        signature: the kernel's parameters.
        spec: what is known of the arguments.
        fixed: dimensions that are compile-time constants in this attempt.
    """

    def __init__(self, signature: Signature, spec: Specialization, fixed: dict[str, int]) -> None:
        self.fixed = fixed
        self.wanted: dict[str, int] = {}
        self.prologue: list[Operation] = []
        self.tensors: dict[str, TensorValue] = {}
        self._values: dict[str, SSAValue] = {}
        self._text: dict[SSAValue, str] = {}
        facts = zip(signature.runtime_params, spec.args, strict=True)
        self._sizes = [
            (dim, size)
            for param, fact in facts
            if isinstance(param, TensorParam)
            for dim, size in zip(param.dims, fact.sizes or (None,) * len(param.dims), strict=True)
        ]
        self._at_call = solved((dim, size) for dim, size in self._sizes if size is not None)
        self._static = solved((Dim.parse(text), size) for text, size in fixed.items())
        self.names = signature.dim_names

    def size_at_call(self, text: str) -> int | None:
        """Return the size that dimension `text` has at this call, None when unknown."""
        for dim, size in self._sizes:
            if str(dim) == text and size is not None:
                return size
        return Dim.parse(text).value(self._at_call)

    def static_size(self, dim: Dim) -> int | None:
        """Return the size of `dim` in this attempt when it is a compile-time constant."""
        if dim.is_static:
            return dim.scale
        return self.fixed[str(dim)] if str(dim) in self.fixed else dim.value(self._static)

    def fix(self, text: str) -> int:
        """Return the size of a dimension as a compile-time constant, and record that it was relied on.

        Raises:
            LanguageError: `dim-not-static` when the size is not known.
        """
        if text in self.fixed:
            return self.fixed[text]
        size = self.size_at_call(text)
        if size is None:
            raise LanguageError(
                f"dimension {text} is needed at compile time and its size is not known",
                code="dim-not-static",
                help=f'give it to ts.compile: dims={{"{text}": 128}}; or use a constexpr block size',
            )
        self.wanted[text] = size
        return size

    def of_op(self, op: DimOp) -> int:
        """Return the static size behind a `dim` op."""
        return self.fix(self._text[op.result])

    def value(self, name: str, loc: LocationAttr) -> int | SSAValue:
        """Return the size called `name`: a constant where it is fixed, else computed at the kernel's start.

        Raises:
            LanguageError: `dim-not-known` when it only occurs multiplied with other unknown ones.
        """
        return self.dim(Dim((name,)), loc)

    def axis(self, tensor: TensorValue, axis: int, loc: LocationAttr) -> int | SSAValue:
        """Return the size of one dimension of a tensor."""
        return self.dim(tensor.param.dims[axis], loc)

    def dim(self, dim: Dim, loc: LocationAttr) -> int | SSAValue:
        """Return the size of a dimension."""
        static = self.static_size(dim)
        if static is not None:
            return static
        text = str(dim)
        if text not in self._values:
            self._values[text] = self._read(dim, loc)
        return self._values[text]

    def _emit(self, op: OpT, loc: LocationAttr) -> OpT:
        op.location = loc
        self.prologue.append(op)
        return op

    def _read(self, dim: Dim, loc: LocationAttr) -> SSAValue:
        """Emit the dimension's value: read from a tensor, solved for, or computed from its names."""
        axes = [(tensor, axis) for tensor in self.tensors.values() for axis in range(tensor.rank)]
        same = next(((tensor, axis) for tensor, axis in axes if tensor.param.dims[axis] == dim), None)
        if same is not None:
            return self._of_axis(*same, loc)
        if not dim.is_name:
            return self._computed(dim, loc)
        for tensor, axis in axes:
            linear = tensor.param.dims[axis].around(dim.names[0])
            if linear is not None and all(self._readable(name) for part in linear for name in part.names):
                value = self._of_axis(tensor, axis, loc)
                for fn, part in zip(("sub", "floordiv"), linear[::-1], strict=True):
                    if part != Dim((), int(fn == "floordiv")):
                        value = self._emit(ElementwiseOp(fn, [value, self._computed(part, loc)]), loc).result
                return value
        raise self._unknown(dim)

    def _of_axis(self, tensor: TensorValue, axis: int, loc: LocationAttr) -> SSAValue:
        value = self._emit(DimOp(tensor.ssa, axis), loc).result
        self._text[value] = str(tensor.param.dims[axis])
        return value

    def _computed(self, dim: Dim, loc: LocationAttr) -> SSAValue:
        """Emit the value of a dimension from those of its names."""
        total: SSAValue | None = None
        for term in dim.terms:
            parts = [self._factor(factor, loc) for factor in term.factors]
            if term.scale != 1 or not parts:
                parts.append(self._emit(ConstantOp(term.scale, index), loc).result)
            product = parts[0]
            for part in parts[1:]:
                product = self._emit(ElementwiseOp("mul", [product, part]), loc).result
            total = product if total is None else self._emit(ElementwiseOp("add", [total, product]), loc).result
        assert total is not None, "a dimension has a term"
        return total

    def _factor(self, factor: str | Quotient, loc: LocationAttr) -> SSAValue:
        if isinstance(factor, Quotient):
            parts = [self._computed(part, loc) for part in (factor.dividend, factor.divisor)]
            return self._emit(ElementwiseOp("floordiv", parts), loc).result
        value = self.value(factor, loc)
        return value if isinstance(value, SSAValue) else self._emit(ConstantOp(value, index), loc).result

    def _readable(self, name: str) -> bool:
        return name in self._static or any(Dim((name,)) in t.param.dims for t in self.tensors.values())

    def _parts(self, dim: Dim) -> str:
        """Return the dimensions that a name is a part of."""
        return ", ".join(dict.fromkeys(str(other) for other, _ in self._sizes if dim.names[0] in other.names))

    def _unknown(self, dim: Dim) -> LanguageError:
        return LanguageError(
            f"the size of {dim} is known only as part of {self._parts(dim)}",
            code="dim-not-known",
            help=f'use the whole of it, or let another argument have the dimension "{dim}"',
        )


def _check_size(type_: Attribute) -> None:
    if isinstance(type_, TileType | SharedType) and prod(type_.shape) > MAX_ELEMENTS:
        held = "tile" if isinstance(type_, TileType) else "buffer"
        raise TypeMismatchError(
            f"{describe(type_)} has {prod(type_.shape)} elements",
            code="tile-too-large",
            help=f"a {held} holds at most {MAX_ELEMENTS}; loop over smaller blocks with ts.tile.range",
        )


def nested_too_deeply(name: str) -> LanguageError:
    """Return the error for source that Python's stack does not hold while it is compiled."""
    return LanguageError(
        f"{name} is nested too deeply to compile",
        code="nesting-depth",
        help="give parts of the expression names, or call fewer helpers inside one another",
    )


def plain(value: Any) -> Any:
    """Return what a name is bound to: NumPy scalars become Python numbers."""
    return cast(Any, value).item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class OpenRole:
    """A role whose statements are being compiled.

    Args:
        spec: what was asked for.
        block: where its ops go.
        before: the last op before them.
        node: where it begins.
    """

    spec: RoleSpec
    block: Block
    before: Operation | None
    node: ast.AST


class Builder:
    """Emits the IR of one kernel.

    Args:
        signature: the kernel's parameters.
        spec: what it is compiled for.
        fixed: dimensions that are compile-time constants.
        block: where ops go first.
        has_grid: whether the source declares a grid.
        reads: told of all that is read of the program around.
    """

    def __init__(
        self,
        signature: Signature,
        spec: Specialization,
        fixed: dict[str, int],
        block: Block,
        has_grid: bool,
        reads: Reads,
    ) -> None:
        self.signature = signature
        self.spec = spec
        self.block = block
        self.has_grid = has_grid
        self.reads = reads
        self.in_program = not has_grid
        self.dims = Dims(signature, spec, fixed)
        self.symbols = Symbols(self.dims.of_op)
        self.constants = {**dict(spec.config), **dict(spec.constexprs)}
        self.tunables_read: set[str] = set()
        self.frame = Frame(signature.function, {})
        self.node: ast.AST = self.frame.source.node
        self.predicate: Tile | None = None
        self.uncommitted = False
        self.arrived: set[object] = set()
        self.awaited: dict[object, Location] = {}
        self.role: OpenRole | None = None
        self.asked: dict[str, int] = {}
        self.control_depth = 0
        self.free_depth = 0
        self.alloc_block: Block | None = None
        self.linear_offset: SSAValue | None = None
        self.uses_linear_id = False
        self.effects = 0
        self.assumptions: list[AssumeOp] = []
        self.written: dict[int, TensorValue] = {}
        self.empty_tile: TesseraError | None = None
        self.stored: dict[int, TensorValue] = {}
        self._loc: tuple[ast.AST, LocationAttr] | None = None
        self._steps = 0
        self.loops = LoopPlace()
        self.carrying: tuple[Carried, ...] = ()
        self.magnitudes: dict[SSAValue, int] = {}
        self.loop_types: dict[tuple[tuple[ast.AST, int], ...], tuple[Attribute | None, ...]] = {}

    def spend(self, steps: int = 1) -> None:
        """Count an expression, a statement, or an op, which costs as much as several of them.

        Raises:
            LanguageError: `compile-budget` when they are too many.
        """
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise LanguageError(
                f"compiling {self.signature.name} takes more than {MAX_STEPS} steps",
                code="compile-budget",
                help="ts.tile.static_range and helpers repeat their bodies; loop at run time with ts.tile.range",
            )

    def note_empty_tile(self, message: str) -> None:
        """Record that a tile has no elements, as a dimension has none: an error if the kernel has anything to store."""
        self.empty_tile = self.empty_tile or TypeMismatchError(
            message,
            code="empty-tile",
            location=self.location(),
            help="do not call the kernel for it, or take a bounded slice, which reads as fill: x[:, 0:64]",
        )

    def location(self) -> Location:
        """Return the location of the node being compiled."""
        return self.frame.locate(self.node)

    def loc(self) -> LocationAttr:
        """Return the location as an IR attribute."""
        if self._loc is None or self._loc[0] is not self.node:
            self._loc = (self.node, to_loc(self.location()))
        return self._loc[1]

    @contextmanager
    def at(self, node: ast.AST) -> Generator[None]:
        """Give `node`'s location to everything emitted or raised inside."""
        outer, self.node = self.node, node
        try:
            yield
        except TesseraError as error:
            if error.location is None:
                error.location = self.frame.locate(node)
            raise
        except RecursionError:
            # The place where the stack ends says little: name the kernel's own statement.
            if self.frame.caller is not None or not isinstance(node, ast.stmt):
                raise
            raise nested_too_deeply(self.signature.name).at(self.frame.locate(node)) from None
        finally:
            self.node = outer

    @contextmanager
    def into(self, block: Block) -> Generator[Block]:
        """Emit into `block` inside."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer

    @property
    def in_loop(self) -> bool:
        """Whether a run-time loop or branch of any frame is around the statement, other than what jumps leave out."""
        return self.control_depth > self.free_depth

    @contextmanager
    def nested(self) -> Generator[None]:
        """Mark the inside of a run-time loop or branch."""
        self.control_depth += 1
        try:
            yield
        finally:
            self.control_depth -= 1

    @contextmanager
    def looping(self) -> Generator[None]:
        """Mark the body of a loop, which jumps inside may leave."""
        self.frame.predicates.append(self.predicate)
        try:
            yield
        finally:
            self.frame.predicates.pop()

    @contextmanager
    def hoisting(self) -> Generator[None]:
        """Mark a branch around what a jump leaves out: where no other is around it, buffers are allocated before it."""
        free, block = self.free_depth, self.alloc_block
        if not self.in_loop:
            self.free_depth, self.alloc_block = free + 1, block or self.block
        try:
            yield
        finally:
            self.free_depth, self.alloc_block = free, block

    def emit(self, op: OpT) -> OpT:
        """Append an op with the current location."""
        self.spend(STEPS_OF_OP)
        op.location = self.loc()
        for result in op.results:
            _check_size(result.type)
        self.block.add_op(op)
        self.effects += acts(op)
        return op

    def moment(self) -> Moment:
        """Return where the compilation is."""
        return Moment(self.block, self.block.last_op, self.effects, self.predicate)

    def is_now(self, moment: Moment) -> bool:
        """Return whether what is read now is what was there at a moment, and known wherever that is."""
        at = moment.block, moment.effects, moment.predicate
        return at == (self.block, self.effects, self.predicate)

    @contextmanager
    def back_at(self, moment: Moment) -> Generator[None]:
        """Emit what could have been emitted at a moment there."""
        scratch, outer = Block(), self.predicate
        self.predicate = moment.predicate
        try:
            with self.into(scratch):
                yield
        finally:
            self.predicate = outer
        for op in list(scratch.ops):
            op.detach()
            if moment.last is None:
                first = moment.block.first_op
                moment.block.add_op(op) if first is None else moment.block.insert_op_before(op, first)
            else:
                moment.block.insert_op_after(op, moment.last)
            moment.last = op

    def index(self, value: int) -> SSAValue:
        """Return an index constant."""
        return self.emit(ConstantOp(value, index)).result

    def dim(self, name: str) -> int | Scalar:
        """Return the size called `name`."""
        return self.as_size(self.dims.value(name, self.loc()))

    def axis_size(self, tensor: TensorValue, axis: int) -> int | Scalar:
        """Return the size of one dimension of a tensor."""
        return self.as_size(self.dims.axis(tensor, axis, self.loc()))

    def as_size(self, size: int | SSAValue) -> int | Scalar:
        """Return a size as a value of the language."""
        return size if isinstance(size, int) else Scalar(size)

    def static_axis(self, tensor: TensorValue, axis: int) -> int:
        """Return the size of a dimension as a compile-time constant, fixing it if need be."""
        dim = tensor.param.dims[axis]
        known = self.dims.static_size(dim)
        return known if known is not None else self.dims.fix(str(dim))

    def static(self, value: Any) -> int | None:
        """Return a compile-time integer, fixing dimensions it is made of; None when it depends on more."""
        if isinstance(value, Scalar):
            return self.symbols.static_value(value.ssa) if value.dtype.is_int else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def static_difference(self, upper: SSAValue, lower: SSAValue) -> int | None:
        """Return `upper - lower` when it is known at compile time."""
        return self.symbols.difference(upper, lower)

    def mark_written(self, tensor: TensorValue, by_atomic: bool = False) -> None:
        """Record that the kernel stores to `tensor`, plainly or by an atomic."""
        self.written.setdefault(tensor.position, tensor)
        if not by_atomic:
            self.stored.setdefault(tensor.position, tensor)

    def require_program(self, what: str, instead: str = "") -> None:
        """Refuse an effect outside the grid of a kernel that has one.

        Args:
            what: the effect.
            instead: what else may have been meant.

        Raises:
            LanguageError: `outside-grid`.
        """
        if not self.in_program:
            raise LanguageError(
                f"{what} outside the grid",
                code="outside-grid",
                help=f"move it into the body of `for ... in ts.tile.grid(...)`{instead}",
            )

    def constexpr_params(self) -> Iterator[tuple[str, Any]]:
        """Yield the constexpr parameters with their values.

        Raises:
            LanguageError: `missing-constexpr`.
        """
        given = dict(self.spec.constexprs)
        for param in self.signature.params:
            if isinstance(param, ConstexprParam):
                value = given.get(param.name, param.default)
                if param.name not in given and value is ConstexprParam("").default:
                    raise LanguageError(
                        f"constexpr {param.name!r} has no value",
                        code="missing-constexpr",
                        location=self.signature.location_of(param.name),
                        help=f"pass it at the call or to ts.compile: {param.name}=...",
                    )
                yield param.name, plain(value)
