"""From a kernel's source to TIR-H: `build_kernel`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError, TesseraError, TypeMismatchError
from tessera.frontend import branches as branches
from tessera.frontend import calls as calls
from tessera.frontend import loops as loops
from tessera.frontend.builder import Builder
from tessera.frontend.evaluate import execute
from tessera.frontend.flow import RESULT
from tessera.frontend.generated import Generated
from tessera.frontend.ops.assume import apply_assumptions
from tessera.frontend.ops.pipeline import check_arrivals
from tessera.frontend.reads import ABSENT, Reads, attribute_of
from tessera.frontend.registry import load_all
from tessera.frontend.signature import ScalarParam, Signature, TensorParam
from tessera.frontend.source import source_of
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.frontend.static_eval import lookup_in
from tessera.frontend.structure import value_of
from tessera.frontend.tile.structure import grid
from tessera.frontend.values import Scalar, TensorValue
from tessera.ir.locations import to_loc
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.structure import ArgInfo, GridOp, KernelOp, ReturnOp
from tessera.ir.tile.types import DYNAMIC, TensorType
from tessera.ir.types import element_type, index
from tessera.target.dims import Dim


@dataclass(frozen=True, slots=True, eq=False)
class BuiltKernel:
    """A kernel in TIR-H.

    Args:
        module: holds one `tessera_tile.kernel`.
        fixed_dims: sizes that were compiled in, by the dimension's text; other sizes need another build.
        returns: positions among the run-time arguments of the tensors it returns.
        tunables_read: the attributes of `ts.tile.context()` that its source read.
        asked: knobs that its roles ask for, by name.
    """

    module: ModuleOp
    fixed_dims: dict[str, int]
    returns: tuple[int, ...]
    tunables_read: frozenset[str] = frozenset()
    asked: Mapping[str, int] = field(default_factory=dict[str, int])


def build_kernel(signature: Signature, spec: Specialization, reads: Reads | None = None) -> BuiltKernel:
    """Compile a kernel's source to TIR-H.

    A dimension whose size is needed at compile time, such as in a tile's shape, is fixed to its size at the
    call; the kernel is then built again with that number in place of the run-time size.

    Args:
        signature: the kernel's parameters.
        spec: facts about arguments, constants and options.
        reads: told of all that is read of the program around, for a cache.

    Returns:
        The module, the sizes compiled in, and what the kernel returns.

    Raises:
        LanguageError: for source the language does not have.
        TypeMismatchError: for operations whose operands do not fit.
    """
    if isinstance(signature.function, Generated):
        return signature.function.build(signature, spec)
    load_all()
    fixed: dict[str, int] = {}
    reads = reads or Reads({"kernel": signature.function})
    while True:
        builder, kernel = _attempt(signature, spec, fixed, reads)
        new = {name: size for name, size in builder.dims.wanted.items() if name not in fixed}
        if not new:
            break
        fixed = {**fixed, **new}
    if builder.empty_tile is not None:
        _without_programs(builder, kernel)
    returns = tuple(tensor.position for tensor in _returned(builder))
    return BuiltKernel(ModuleOp([kernel]), fixed, returns, frozenset(builder.tunables_read), builder.asked)


def declares_grid(signature: Signature, reads: Reads) -> bool:
    """Return whether the source loops over `ts.tile.grid`."""
    source = source_of(signature.function)
    lookup = lookup_in(signature.function)

    def resolve(node: ast.expr) -> Any:
        found: Any = ABSENT
        if isinstance(node, ast.Name) and node.id not in source.locals:
            with suppress(KeyError):
                found = lookup(node.id)
            reads.name(signature.function, node.id, found)
        elif isinstance(node, ast.Attribute) and (owner := resolve(node.value)) is not ABSENT:
            found = attribute_of(owner, node.attr)
            reads.attribute(owner, node.attr, found)
        return found

    calls = (node.func for node in ast.walk(source.node) if isinstance(node, ast.Call))
    return any(resolve(function) is grid for function in calls)


def _attempt(
    signature: Signature, spec: Specialization, fixed: dict[str, int], reads: Reads
) -> tuple[Builder, KernelOp]:
    """Build the kernel with the given dimensions as constants; the builder says which others are wanted."""
    has_grid = declares_grid(signature, reads)
    body = Block()
    b = Builder(signature, spec, fixed, body, has_grid, reads)
    loc = to_loc(b.frame.source.header())
    types = argument_types(signature, b.dims.static_size)
    kernel = KernelOp(signature.name, argument_infos(signature, spec), types, spec.profile)
    kernel.location = loc
    entry = kernel.body.block
    _bind_parameters(b, entry)
    inner = body if has_grid else Block(arg_types=[index])
    b.block = inner
    b.linear_offset = None if has_grid else inner.args[0]
    try:
        execute(b, b.frame.source.node.body)
    except TesseraError as error:
        if b.empty_tile is not None:
            raise b.empty_tile from error
        raise
    check_arrivals(b)
    if signature.returns and not _returned(b):
        raise LanguageError(
            f"the kernel returns nothing, but its annotation says {', '.join(map(str, signature.returns))}",
            code="return-mismatch",
            location=signature.location_of("return") or b.frame.source.header(),
            help="return the tensors at its end, or leave the annotation after -> out",
        )
    if not has_grid:
        body.add_op(_implicit_grid(b, inner, body))
    for op in (*b.dims.prologue, *b.assumptions, *_detached(body)):
        entry.add_op(op)
    end = ReturnOp([tensor.ssa for tensor in _returned(b)])
    end.location = loc
    entry.add_op(end)
    _mark_memories(kernel, b)
    apply_assumptions(kernel, b.assumptions, [fact.contiguous for fact in spec.args])
    return b, kernel


def _without_programs(b: Builder, kernel: KernelOp) -> None:
    """Empty the grids of a kernel that takes whole rows without elements: it has nothing to store.

    Raises:
        TypeMismatchError: `empty-tile`, when it stores to a tensor that has elements.
    """
    if not b.written or any(
        all(b.dims.static_size(dim) != 0 for dim in tensor.param.dims) for tensor in b.written.values()
    ):
        assert b.empty_tile is not None
        raise b.empty_tile
    for grid_op in [op for op in kernel.body.block.ops if isinstance(op, GridOp)]:
        for op in reversed(list(grid_op.body.block.ops)):
            op.detach()
            op.erase(safe_erase=False)


def _detached(block: Block) -> list[Operation]:
    ops = list(block.ops)
    for op in ops:
        op.detach()
    return ops


def argument_types(signature: Signature, static: Callable[[Dim], int | None]) -> list[Attribute]:
    """Return the types of a kernel's arguments.

    Args:
        signature: its parameters.
        static: gives the size of a dimension that is compiled in.
    """
    types: list[Attribute] = []
    for param in signature.runtime_params:
        element = element_type(param.dtype)
        if isinstance(param, TensorParam):
            sizes = [static(dim) for dim in param.dims]
            types.append(TensorType.of([DYNAMIC if size is None else size for size in sizes], element))
        else:
            types.append(element)
    return types


def argument_infos(signature: Signature, spec: Specialization) -> list[ArgInfo]:
    """Return what is known of each of a kernel's arguments."""
    pairs = zip(signature.runtime_params, spec.args, strict=True)
    return [_tensor_info(p, f) if isinstance(p, TensorParam) else _scalar_info(p, f) for p, f in pairs]


def _scalar_info(param: ScalarParam, facts: ArgFacts) -> ArgInfo:
    return ArgInfo(param.name, align=facts.align)


def _tensor_info(param: TensorParam, facts: ArgFacts) -> ArgInfo:
    rank = len(param.dims)
    return ArgInfo(
        param.name,
        tuple(str(dim) for dim in param.dims),
        facts.align,
        tuple(facts.strides) or (DYNAMIC,) * rank,
        tuple(facts.stride_div) or (1,) * rank,
        tuple(facts.dim_div) or (1,) * rank,
        order=facts.order,
    )


def _bind_parameters(b: Builder, entry: Block) -> None:
    env = b.frame.env
    for position, (param, arg) in enumerate(zip(b.signature.runtime_params, entry.args, strict=True)):
        location = b.signature.location_of(param.name)
        arg.location = to_loc(location)
        if isinstance(param, TensorParam):
            env[param.name] = b.dims.tensors[param.name] = TensorValue(arg, param, position)
        else:
            env[param.name] = Scalar(arg)
    for param, layout in b.signature.structures:
        env[param.name] = value_of(param, layout, env)
    constants = dict(b.constexpr_params())
    env.update(constants)
    b.constants.update(constants)


def _returned(b: Builder) -> tuple[TensorValue, ...]:
    value: Any = b.frame.env.get(RESULT)
    if value is None:
        return ()
    return cast(tuple[TensorValue, ...], value if isinstance(value, tuple) else (value,))


def _implicit_grid(b: Builder, inner: Block, outer: Block) -> GridOp:
    """Wrap the body of a kernel without a grid: one program, or one per block of `linear_id`."""
    offset = inner.args[0]
    if not b.uses_linear_id:
        op = GridOp([], [])
    else:
        with b.into(outer):
            extent = _element_count(b)
        op = GridOp([extent], [b.spec.linear_block])
        offset.replace_all_uses_with(op.body.block.args[0])
    op.location = to_loc(b.frame.source.header())
    for child in _detached(inner):
        op.body.block.add_op(child)
    return op


def _element_count(b: Builder) -> SSAValue:
    tensor = next(iter((*_returned(b), *b.stored.values(), *b.written.values())), None)
    if tensor is None:
        raise LanguageError(
            "linear_id in a kernel that neither returns nor stores to a tensor",
            code="no-output",
            location=b.frame.source.header(),
            help="return the tensor whose elements are counted",
        )
    count: SSAValue | None = None
    for axis in range(tensor.rank):
        size = b.dims.axis(tensor, axis, b.loc())
        factor = size if isinstance(size, SSAValue) else b.emit(ConstantOp(size, index)).result
        count = factor if count is None else b.emit(ElementwiseOp("mul", [count, factor])).result
    if count is None:
        raise TypeMismatchError(
            f"{tensor.param} has no dimension to number",
            code="rank-mismatch",
            help="declare a grid: for i in ts.tile.grid((1, 1))",
        )
    return count


def _mark_memories(kernel: KernelOp, b: Builder) -> None:
    """Note which arguments the kernel stores to and which are one memory; of several that are one view, use one."""
    args = kernel.body.block.args
    written = [position in b.written for position in range(len(args))]
    facts = b.spec.seen_aliases(written).args
    infos = [
        replace(info, written=stored, alias=fact.alias)
        for info, stored, fact in zip(kernel.infos, written, facts, strict=True)
    ]
    kernel.properties["arg_info"] = type(kernel.arg_info)([info.to_attr() for info in infos])
    for first in range(len(args)):
        alike = [place for place, fact in enumerate(facts) if first in (place, fact.view)]
        # One that the caller lets the kernel store to: the others may be read-only views.
        used = args[next((place for place in alike if written[place]), first)]
        for place in alike:
            if args[place] is not used and args[place].type == used.type:
                args[place].replace_uses_with_if(used, lambda use: not isinstance(use.operation, ReturnOp))
