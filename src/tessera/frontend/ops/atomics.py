"""Compiles atomics and fences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import Attribute, SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import index_tiles, mask_of_shape, predicate_for, shared_indices
from tessera.frontend.builder import Builder
from tessera.frontend.convert import broadcast_to, operand, to_ssa
from tessera.frontend.registry import compiles
from tessera.frontend.values import Shared, SharedPart, Value, View, show, wrap
from tessera.ir.atomics import MEMORY_ORDERS, SCOPES, orders_of
from tessera.ir.tile.atomics import AtomicOp, FenceOp, SharedAtomicOp
from tessera.ir.tile.memory import shape_at
from tessera.ir.tile.types import SharedType, shape_of
from tessera.ir.types import element_type

_WHY = {"load": "a load releases nothing", "store": "a store acquires nothing", "fence": "a fence orders something"}


Place = View | Shared | SharedPart


def _operand(b: Builder, shape: tuple[int, ...], element: Attribute, value: Any, what: str) -> SSAValue:
    """Return a value as the atomic wants it: of the memory's dtype and the shape of what is accessed."""
    ssa = to_ssa(b, operand(b, value, what), element)
    if not shape and isinstance(value, Value) and value.shape:
        raise TypeMismatchError(
            f"{what}: {show(value)} for one element",
            code="shape-mismatch",
            help="index with slices or an index tile",
        )
    return broadcast_to(b, ssa, shape, what)


def _check(place: Any, fn: str) -> Place:
    if isinstance(place, View) and not place.new_axes:
        return place
    if not isinstance(place, Shared | SharedPart) or (isinstance(place, SharedPart) and place.new_axes):
        raise TypeMismatchError(
            f"atomic_{fn}: {show(place)} is not a slice of a tensor",
            code="not-a-slice",
            help=f"write ts.tile.atomic_{fn}(A[i]{'' if fn == 'load' else ', value'})",
        )
    buffer = place if isinstance(place, Shared) else place.buffer
    assert isinstance(buffer.type, SharedType)
    if buffer.type.swizzle.data != "none":
        raise TypeMismatchError(
            f"atomic_{fn}: {show(place)}: the buffer is swizzled",
            code="bad-argument",
            help='allocate it with swizzle="none", the default',
        )
    return place


def _check_order(what: str, fn: str, order: Any, scope: Any) -> None:
    """Check that an order and a scope exist, and that an access can have the order.

    Raises:
        TypeMismatchError: `bad-argument`, naming those that there are.
    """
    for name, given, known in (("order", order, MEMORY_ORDERS), ("scope", scope, SCOPES)):
        if given not in known:
            raise TypeMismatchError(
                f"{what}: no memory {name} is called {show(given)}",
                code="bad-argument",
                help=f"one of {', '.join(orders_of(fn) if name == 'order' else known)}",
            )
    if order not in orders_of(fn):
        raise TypeMismatchError(
            f"{what}: {_WHY[fn]}, so that its order is not {order!r}",
            code="bad-argument",
            help=f"one of {', '.join(orders_of(fn))}",
        )


def _check_dtype(b: Builder, place: Place, fn: str) -> None:
    dtype = place.tensor.dtype if isinstance(place, View) else _buffer(place).dtype
    if fn in ("and", "or", "xor") and not dtype.is_int:
        raise TypeMismatchError(f"atomic_{fn} is not defined for {dtype}", code="dtype-mismatch", help="use integers")
    if fn in ("add", "max", "min") and dtype.kind == "bool":
        raise TypeMismatchError(f"atomic_{fn} is not defined for {dtype}", code="dtype-mismatch", help="use a number")
    if fn == "add" and dtype.is_float and b.spec.profile != "fast":
        raise LanguageError(
            f"atomic_add on {dtype} in the {b.spec.profile} profile",
            code="nondeterministic-atomic",
            help="its order changes from run to run: reduce partial sums in a second grid, or use fast",
        )


def atomic(b: Builder, fn: str, target: Any, value: Any, compare: Any, order: Any, scope: Any) -> Any:
    """Emit an atomic on every element of a view and return the old values; None for a store.

    Args:
        b: the builder.
        fn: what it does.
        target: the view.
        value: what it stores or updates by; None for a load.
        compare: the expected value of `compare_exchange`, else None.
        order: the memory order.
        scope: the scope.
    """
    what = f"atomic_{fn}"
    b.require_program(what)
    place = _check(target, fn)
    _check_order(what, fn, order, scope)
    _check_dtype(b, place, fn)
    if isinstance(place, View):
        indices, element = index_tiles(b, place), place.tensor.type.element
        mask = predicate_for(b, place, required=True)
    else:
        indices, element = shared_indices(b, place), element_type(_buffer(place).dtype)
        mask = mask_of_shape(b, shape_of(indices[0].type), "what is accessed")
    shape = shape_at(indices)
    given = None if fn == "load" else _operand(b, shape, element, value, what)
    expected = _operand(b, shape, element, compare, f"{what}: compare") if fn == "compare_exchange" else None
    if isinstance(place, View):
        op = b.emit(AtomicOp(fn, given, place.tensor.ssa, indices, mask, expected, order, scope))
        if op.writes:
            b.mark_written(place.tensor, by_atomic=True)
    else:
        op = b.emit(SharedAtomicOp(fn, given, _buffer(place).ssa, indices, mask, expected, order, scope))
    return None if op.result is None else wrap(op.result)


def _buffer(place: Shared | SharedPart) -> Shared:
    return place if isinstance(place, Shared) else place.buffer


def _simple(fn: str) -> Callable[..., Any]:
    def compile_atomic(b: Builder, target: Any, value: Any, order: Any, scope: Any) -> Any:
        return atomic(b, fn, target, value, None, order, scope)

    return compile_atomic


for _function in (
    tile.atomic_add,
    tile.atomic_max,
    tile.atomic_min,
    tile.atomic_and,
    tile.atomic_or,
    tile.atomic_xor,
    tile.atomic_exchange,
    tile.atomic_store,
):
    compiles(_function)(_simple(_function.__name__.removeprefix("atomic_")))


@compiles(tile.atomic_compare_exchange)
def _compare_exchange(b: Builder, target: Any, compare: Any, value: Any, order: Any, scope: Any) -> Any:
    return atomic(b, "compare_exchange", target, value, compare, order, scope)


@compiles(tile.atomic_load)
def _load(b: Builder, target: Any, order: Any, scope: Any) -> Any:
    return atomic(b, "load", target, None, None, order, scope)


@compiles(tile.fence)
def _fence(b: Builder, order: Any, scope: Any) -> None:
    b.require_program("a fence")
    _check_order("fence", "fence", order, scope)
    b.emit(FenceOp(order, scope))
