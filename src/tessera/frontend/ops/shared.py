"""Compiles the explicit memory level."""

from __future__ import annotations

from typing import Any

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import view_shape
from tessera.frontend.builder import Builder
from tessera.frontend.convert import static_int, static_shape, to_policy
from tessera.frontend.registry import compiles
from tessera.frontend.values import At, Shared, Span, View, show
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, CommitGroupOp, CpAsyncOp, WaitGroupOp
from tessera.ir.tile.types import describe
from tessera.ir.types import element_type
from tessera.numerics.dtypes import Policy

MOST_PENDING = 65535
"""Groups of copies that may stay in flight: more than a program starts."""


@compiles(tile.alloc_shared)
def _alloc_shared(b: Builder, shape: Any, dtype: Any, swizzle: Any) -> Shared:
    b.require_program("alloc_shared")
    if b.in_loop:
        raise LanguageError(
            "alloc_shared inside a loop or branch",
            code="alloc-in-loop",
            help="allocate once before it; buffers live as long as the program",
        )
    sizes = static_shape(b, shape, "alloc_shared")
    policy = to_policy(dtype, "alloc_shared")
    if swizzle not in ("none", "xor"):
        raise TypeMismatchError(
            f"alloc_shared: no swizzle is called {show(swizzle)}",
            code="bad-argument",
            help='one of "none", "xor"',
        )
    with b.into(b.alloc_block or b.block):
        buffer = b.emit(AllocSharedOp(sizes, element_type(policy.dtype), swizzle)).result
    return Shared(buffer, None if policy == Policy(policy.dtype.storage) else policy)


@compiles(tile.cp_async)
def copy(b: Builder, buffer: Any, source: Any) -> None:
    """Start an asynchronous copy."""
    b.require_program("cp_async")
    if not isinstance(buffer, Shared):
        raise TypeMismatchError(
            f"cp_async: the destination is {show(buffer)}",
            code="not-shared",
            help="copy to a buffer of ts.tile.alloc_shared",
        )
    if not isinstance(source, View) or not source.is_box or source.new_axes:
        raise TypeMismatchError(
            f"cp_async: the source is {_describe_source(source)}",
            code="not-a-slice",
            help="copy from slices, A[m:m+64, k:k+32]; load anything else and store it to the buffer",
        )
    if b.predicate is not None:
        raise LanguageError(
            "cp_async inside an `if` on a tile",
            code="predicated",
            help="copies are bounded already; take it out",
        )
    shape = view_shape(source)
    if shape != buffer.shape:
        raise TypeMismatchError(
            f"cp_async: buffer {describe(buffer.type)}, slice of shape {shape}: {buffer.shape} != {shape}",
            code="shape-mismatch",
            help="slice as much as the buffer holds",
        )
    if source.tensor.dtype != buffer.dtype:
        raise TypeMismatchError(
            f"cp_async: buffer {describe(buffer.type)}, tensor {source.tensor.param}: "
            f"{buffer.dtype} != {source.tensor.dtype}",
            code="dtype-mismatch",
            help="copies convert nothing: allocate the buffer with the tensor's dtype",
        )
    offsets = [axis.offset for axis in source.axes if isinstance(axis, At | Span)]
    sizes = [axis.size if isinstance(axis, Span) else 1 for axis in source.axes]
    drop = [i for i, axis in enumerate(source.axes) if isinstance(axis, At)]
    b.emit(CpAsyncOp(buffer.ssa, source.tensor.ssa, offsets, sizes, drop))
    b.uncommitted = True


def _describe_source(source: Any) -> str:
    if isinstance(source, View):
        return f"{show(source)} with an index tile, a step or None"
    return show(source)


def _copy_of_rank(rank: int, name: str) -> Any:
    def compile_copy(b: Builder, buffer: Any, source: Any) -> None:
        if isinstance(buffer, Shared) and len(buffer.shape) != rank:
            raise TypeMismatchError(
                f"{name}: {describe(buffer.type)} is not {rank}-dimensional",
                code="rank-mismatch",
                help="cp_async copies any number of dimensions",
            )
        copy(b, buffer, source)

    return compile_copy


compiles(tile.async_copy_2d)(_copy_of_rank(2, "async_copy_2d"))
compiles(tile.async_copy_3d)(_copy_of_rank(3, "async_copy_3d"))


@compiles(tile.commit_group)
def _commit_group(b: Builder) -> None:
    b.require_program("commit_group")
    end_group(b)


def end_group(b: Builder) -> None:
    """End a group of copies."""
    b.emit(CommitGroupOp())
    b.uncommitted = False


@compiles(tile.wait_group)
def _wait_group(b: Builder, pending: Any) -> None:
    b.require_program("wait_group")
    count = static_int(b, pending, "wait_group: the number")
    check_pending(count, "wait_group")
    b.emit(WaitGroupOp(count))


def check_pending(count: int, what: str) -> None:
    """Check a number of groups that may stay in flight.

    Raises:
        LanguageError: `bad-argument` when there is no such number.
    """
    if not 0 <= count <= MOST_PENDING:
        raise LanguageError(
            f"{what}({count})",
            code="bad-argument",
            help=f"give the number of groups that may stay in flight, 0 to {MOST_PENDING}",
        )


@compiles(tile.barrier)
def _barrier(b: Builder) -> None:
    b.require_program("barrier")
    if b.predicate is not None:
        raise LanguageError(
            "barrier inside an `if` on a tile",
            code="predicated",
            help="all threads of the program meet at a barrier; take it out",
        )
    if b.uncommitted:
        b.emit(CommitGroupOp())
        b.emit(WaitGroupOp(0))
        b.uncommitted = False
    b.emit(BarrierOp())
