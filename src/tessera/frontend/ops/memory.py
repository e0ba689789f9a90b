"""Compiles `load`, `store` and atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import index_tiles, load_view, predicate_for, raw_shape, store_to
from tessera.frontend.builder import Builder
from tessera.frontend.convert import broadcast_to, operand, to_ssa
from tessera.frontend.registry import compiles
from tessera.frontend.values import Shared, Value, View, show, wrap
from tessera.ir.atomics import MEMORY_ORDERS, SCOPES
from tessera.ir.tile.memory import AtomicOp


@compiles(tile.load)
def _load(b: Builder, source: Any, fill: Any) -> Any:
    if isinstance(source, View):
        return load_view(b, source, fill)
    if isinstance(source, Shared) and fill is None:
        return operand(b, source)
    what = "a shared buffer with fill" if isinstance(source, Shared) else show(source)
    raise TypeMismatchError(
        f"load: {what} is not a slice of a tensor",
        code="not-a-slice",
        help="write ts.tile.load(A[m:m+64, :], fill=0)",
    )


@compiles(tile.store)
def _store(b: Builder, target: Any, value: Any) -> None:
    store_to(b, target, value)


def _operand(b: Builder, view: View, value: Any, what: str) -> SSAValue:
    """Return a value as the atomic wants it: of the tensor's dtype and the view's shape."""
    ssa = to_ssa(b, operand(b, value, what), view.tensor.type.element)
    shape = raw_shape(view)
    if not shape and isinstance(value, Value) and value.shape:
        raise TypeMismatchError(
            f"{what}: {show(value)} for one element",
            code="shape-mismatch",
            help="index with slices or an index tile",
        )
    return broadcast_to(b, ssa, shape, what)


def _check(view: Any, fn: str, order: Any, scope: Any) -> View:
    what = f"atomic_{fn}"
    if not isinstance(view, View) or view.new_axes:
        raise TypeMismatchError(
            f"{what}: {show(view)} is not a slice of a tensor",
            code="not-a-slice",
            help=f"write ts.tile.{what}(A[i], value)",
        )
    for name, given, known in (("order", order, MEMORY_ORDERS), ("scope", scope, SCOPES)):
        if given not in known:
            raise TypeMismatchError(
                f"{what}: no memory {name} is called {show(given)}",
                code="bad-argument",
                help=f"one of {', '.join(known)}",
            )
    return view


def _check_dtype(b: Builder, view: View, fn: str) -> None:
    dtype = view.tensor.dtype
    if fn in ("and", "or", "xor") and not dtype.is_int:
        raise TypeMismatchError(
            f"atomic_{fn} is not defined for {dtype}", code="dtype-mismatch", help="use an integer tensor"
        )
    if fn == "add" and dtype.is_float and b.spec.profile != "fast":
        raise LanguageError(
            f"atomic_add on {dtype} in the {b.spec.profile} profile",
            code="nondeterministic-atomic",
            help="its order changes from run to run: reduce partial sums in a second grid, or use fast",
        )


def atomic(b: Builder, fn: str, target: Any, value: Any, compare: Any, order: Any, scope: Any) -> Any:
    """Emit an atomic on every element of a view and return the old values."""
    b.require_program(f"atomic_{fn}")
    view = _check(target, fn, order, scope)
    _check_dtype(b, view, fn)
    operands = [_operand(b, view, value, f"atomic_{fn}")]
    expected = None if compare is None else _operand(b, view, compare, f"atomic_{fn}: compare")
    indices, mask = index_tiles(b, view), predicate_for(b, view, required=True)
    op = AtomicOp(fn, operands[0], view.tensor.ssa, indices, mask, expected, order, scope)
    b.mark_written(view.tensor, by_atomic=True)
    return wrap(b.emit(op).result)


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
):
    compiles(_function)(_simple(_function.__name__.removeprefix("atomic_")))


@compiles(tile.atomic_compare_exchange)
def _compare_exchange(b: Builder, target: Any, compare: Any, value: Any, order: Any, scope: Any) -> Any:
    return atomic(b, "compare_exchange", target, value, compare, order, scope)
