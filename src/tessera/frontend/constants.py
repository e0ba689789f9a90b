"""Python's own arithmetic on compile-time values, within limits: a slip must neither hang nor exhaust the compiler."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence, Sized
from typing import Any, cast

from tessera.errors import LanguageError, TesseraError
from tessera.frontend.builder import Builder

python: Any = operator  # its stubs leave operands untyped

LARGEST = 1 << 14
"""Bits of an integer, or parts of a text or tuple, that compile-time arithmetic may give."""
LONGEST = 1 << 20
"""Elements of a sequence that compile-time arithmetic may read."""


def static_call(b: Builder, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)` for compile-time values.

    Raises:
        LanguageError: `constant-expression` when Python itself refuses it, or it would be huge.
    """
    b.reads.operands(*args, *kwargs.values(), shown=function is str)
    try:
        if _size(function, *args, **kwargs) > LARGEST:
            raise LanguageError(
                f"{what} is too large to compute", code="constant-expression", help="use smaller numbers"
            )
        _check_read(what, function, args)
        result = function(*args, **kwargs)
        return checked(what, result) if isinstance(result, tuple | str) else result
    except TesseraError:
        raise
    except Exception as error:  # objects that are defined outside a kernel raise what they like
        raise LanguageError(
            f"{what}: {first_line(error)}",
            code="constant-expression",
            help=_help(args),
        ) from None


NONE_HELP = "helpers without return give None, and so is what may be missing: ask `if bias is not None` first"


def _help(args: Sequence[Any]) -> str:
    if any(arg is None for arg in args):
        return NONE_HELP
    if len({isinstance(arg, tuple) for arg in args}) > 1:
        return "this expression is computed at compile time; a tuple is no number: give its parts names, i, j = …"
    return "this expression is computed at compile time"


def checked(what: str, value: Any) -> Any:
    """Return a text or tuple whose size is within the limit.

    Raises:
        LanguageError: `constant-expression`.
    """
    if _parts(value, {}) > LARGEST:
        raise LanguageError(
            f"{what} is too large to compute",
            code="constant-expression",
            help=f"texts and tuples have at most {LARGEST} parts",
        )
    return value


def _parts(value: Any, known: dict[int, int]) -> int:
    """Return how many leaves nested tuples have, each tuple looked at once."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, tuple):
        return 1
    if id(cast(object, value)) not in known:
        parts = cast(tuple[Any, ...], value)
        known[id(parts)] = sum(_parts(part, known) if isinstance(part, tuple) else 1 for part in parts)
    return known[id(cast(object, value))]


def first_line(error: BaseException) -> str:
    """Return what an exception says, its class where that is nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _bits(value: Any) -> int:
    return abs(value).bit_length() if isinstance(value, int) else 0


def _is_sequence(value: Any) -> bool:
    return isinstance(value, str | tuple | list | bytes)


def _of_product(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if _is_sequence(sequence) and isinstance(count, int):
            return len(sequence) * count
    return _bits(left) + _bits(right)


def _of_sum(left: Any, right: Any) -> int:
    return len(left) + len(right) if _is_sequence(left) and _is_sequence(right) else 0


def _of_shift(left: Any, right: Any) -> int:
    return _bits(left) + right if isinstance(right, int) else 0


def _of_power(left: Any, right: Any, modulus: Any = None) -> int:
    if not isinstance(left, int) or not isinstance(right, int):
        return 0
    return _bits(right) if modulus is not None else _bits(left) * right


def _of_factorial(n: Any) -> int:
    return n * _bits(n) if isinstance(n, int) else 0


def _of_choice(n: Any, k: Any = None) -> int:
    k = n if k is None else k
    return min(abs(k), abs(n)) * _bits(n) if isinstance(n, int) and isinstance(k, int) else 0


def _of_round(value: Any, digits: Any = None) -> int:
    return abs(digits) * 4 if isinstance(value, int) and isinstance(digits, int) else 0


def _of_format(left: Any, right: Any) -> int:
    """A text before `%` is a format, which can ask for any width."""
    return LARGEST + 1 if isinstance(left, str | bytes) else 0


_SIZES: dict[Callable[..., Any], Callable[..., int]] = {
    python.mul: _of_product,
    python.add: _of_sum,
    python.lshift: _of_shift,
    python.mod: _of_format,
    pow: _of_power,
    python.pow: _of_power,
    round: _of_round,
    math.factorial: _of_factorial,
    math.comb: _of_choice,
    math.perm: _of_choice,
}


def _size(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return about how many bits or parts a result has; 0 where it cannot be large."""
    measure = next((size for known, size in _SIZES.items() if known is function), None)
    return 0 if measure is None else measure(*args, **kwargs)


def _check_read(what: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse to read long sequences, and those without an end."""
    if function is len or function is bool:
        return
    for arg in args:
        if _is_number(arg) or not hasattr(arg, "__iter__"):
            continue
        if not isinstance(arg, Sized) or len(arg) > LONGEST:
            raise LanguageError(
                f"{what} reads a long sequence",
                code="constant-expression",
                help=f"at most {LONGEST} elements; compute it outside of the kernel",
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
