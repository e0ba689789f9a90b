"""Names of atomic updates, shared by TIR-H and TIR-T."""

from __future__ import annotations

from xdsl.utils.exceptions import VerifyException

FUNCTIONS = ("add", "max", "min", "and", "or", "xor", "exchange", "compare_exchange")
MEMORY_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("group", "cluster", "device", "mesh")


def verify_atomic(fn: str, order: str, scope: str, compares: bool) -> None:
    """Check the names of an atomic, and that a value to compare with is there if it is needed.

    Raises:
        VerifyException: a name is unknown, or the value is missing or too much.
    """
    for what, name, known in (("function", fn, FUNCTIONS), ("order", order, MEMORY_ORDERS), ("scope", scope, SCOPES)):
        if name not in known:
            raise VerifyException(f"no atomic {what} is called {name}; one of {', '.join(known)}")
    if compares != (fn == "compare_exchange"):
        raise VerifyException("compare_exchange, and only it, takes a compare value")
