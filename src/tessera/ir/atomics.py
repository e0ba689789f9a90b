"""Names of atomic accesses, of the orders they can have and of scopes, shared by the language, TIR-H and TIR-T."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdsl.utils.exceptions import VerifyException

if TYPE_CHECKING:
    from xdsl.dialects.builtin import StringAttr

UPDATES = ("add", "max", "min", "and", "or", "xor", "exchange", "compare_exchange")
FUNCTIONS = (*UPDATES, "load", "store")
MEMORY_ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
SCOPES = ("group", "cluster", "device", "mesh")

_ACQUIRES = ("acquire", "acq_rel", "seq_cst")
_RELEASES = ("release", "acq_rel", "seq_cst")


def orders_of(fn: str) -> tuple[str, ...]:
    """Return the memory orders that an atomic access, or a `fence`, can have."""
    if fn == "load":
        return ("relaxed", "acquire", "seq_cst")
    if fn == "store":
        return ("relaxed", "release", "seq_cst")
    return MEMORY_ORDERS[1:] if fn == "fence" else MEMORY_ORDERS


def acquires(fn: str, order: str) -> bool:
    """Return whether accesses after an atomic (or `fence`) stay after it."""
    return fn != "store" and order in _ACQUIRES


def releases(fn: str, order: str) -> bool:
    """Return whether accesses before an atomic (or `fence`) stay before it.

    A sequentially consistent load has its place among what the program did before, too.
    """
    return order == "seq_cst" or (fn != "load" and order in _RELEASES)


def verify_order(fn: str, order: str, scope: str) -> None:
    """Check the names of an order and a scope, and that an atomic access or `fence` can have the order.

    Raises:
        VerifyException: a name is unknown, or the order is not one of its own.
    """
    for what, name, known in (("order", order, MEMORY_ORDERS), ("scope", scope, SCOPES)):
        if name not in known:
            raise VerifyException(f"no atomic {what} is called {name}; one of {', '.join(known)}")
    if order not in orders_of(fn):
        raise VerifyException(f"{fn} has no order {order}; one of {', '.join(orders_of(fn))}")


def verify_atomic(fn: str, order: str, scope: str, value: bool, compare: bool, result: bool) -> None:
    """Check the names of an atomic access, and that it has the operands and the result that its function needs.

    Raises:
        VerifyException: a name is unknown, or a value is missing or too much.
    """
    if fn not in FUNCTIONS:
        raise VerifyException(f"no atomic function is called {fn}; one of {', '.join(FUNCTIONS)}")
    verify_order(fn, order, scope)
    if compare != (fn == "compare_exchange"):
        raise VerifyException("compare_exchange, and only it, takes a compare value")
    if value != (fn != "load") or result != (fn != "store"):
        raise VerifyException("an atomic takes a value unless it is a load, and gives one unless it is a store")


class AtomicAccess:
    """What ops of both dialects that access memory atomically have in common."""

    if TYPE_CHECKING:  # at run time xDSL takes every annotation for a field of the op
        value: Any
        compare: Any
        fn: StringAttr
        order: StringAttr
        scope: StringAttr
        result: Any

    @property
    def writes(self) -> bool:
        """Whether it changes memory."""
        return self.fn.data != "load"

    def verify_access(self) -> None:
        """Check the names, and that the operands and the result are there that the function needs."""
        given = (self.value is not None, self.compare is not None, self.result is not None)
        verify_atomic(self.fn.data, self.order.data, self.scope.data, *given)
