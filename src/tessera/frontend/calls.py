"""Calls: tile functions, inlined helpers, and what of Python can be called on compile-time values."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

from xdsl.ir import Block, Operation

from tessera.errors import LanguageError
from tessera.frontend import tile
from tessera.frontend.builder import STEPS_OF_CALL, Builder, Frame
from tessera.frontend.carry import Retry
from tessera.frontend.constants import static_call
from tessera.frontend.convert import materialise, static_bool
from tessera.frontend.evaluate import evaluate, execute, expression
from tessera.frontend.expressions import is_runtime
from tessera.frontend.flow import RESULT
from tessera.frontend.foreign import KEYWORDS
from tessera.frontend.function import DeviceFunction, signature_of
from tessera.frontend.registry import builtin_of, handler_of, method_of
from tessera.frontend.sequences import sequence_call
from tessera.frontend.structure import StructureValue
from tessera.frontend.values import AnyView, BoundMethod, Scalar, leaves, show
from tessera.ir.types import index
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

STATIC_BUILTINS: tuple[Callable[..., Any], ...] = (
    abs,
    bool,
    divmod,
    float,
    int,
    len,
    max,
    min,
    pow,
    round,
    str,
    sum,
    tuple,
)
STATIC_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    dtypes.accum,
    dtypes.loss_scale,
    dtypes.saturate,
    dtypes.stochastic_round,
    dtypes.as_policy,
    dtypes.promote,
    dtypes.accumulator_of,
)

_INSTEAD: dict[Any, str] = {
    range: "use ts.tile.range(...) for a loop at run time, ts.tile.static_range(...) to unroll",
    enumerate: "it takes tuples; in a loop over ts.tile.range compute the number",
    zip: "it takes tuples; use ts.tile.range and index both",
    reversed: "it takes tuples; flip a tile with x[::-1]",
    open: "kernels have no files",
    isinstance: "types are known when the kernel is compiled; compare x.dtype",
    list: "use a tuple",
    max: "use ts.tile.max(x) to reduce a tile; max(a, b) takes two values or more",
    min: "use ts.tile.min(x) to reduce a tile; min(a, b) takes two values or more",
    abs: "it takes one value",
    round: "use ts.tile.round",
    sum: "use ts.tile.sum",
    any: "combine conditions with `or`; ts.tile.any(x) reduces a tile",
    all: "combine conditions with `and`; ts.tile.all(x) reduces a tile",
    getattr: "write x.name",
    sorted: "use ts.tile.sort on a tile",
    slice: "write bounds between brackets: x[i : i + 64]",
    pow: "use ts.tile.pow",
    float: "use ts.tile.cast(x, ts.f32)",
    int: "use ts.tile.cast(x, ts.i32)",
    bool: "use ts.tile.cast(x, ts.bool_), or compare",
    len: "use x.shape[0]",
}

_HAS_INSTEAD = frozenset(known.__name__ for known in _INSTEAD)


MAX_RECURSION = 32
"""How deep calls of one helper may stand inside one another."""


@expression(ast.Call)
def _call(node: ast.Call, b: Builder) -> Any:
    callee = evaluate(b, node.func)
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
        raise LanguageError("unpacking with * or ** in a call", code="unsupported-syntax", help="name each argument")
    args = [evaluate(b, arg) for arg in node.args]
    kwargs = {str(keyword.arg): evaluate(b, keyword.value) for keyword in node.keywords}
    return call(b, callee, args, kwargs)


def call(b: Builder, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return `callee(*args, **kwargs)`.

    Raises:
        LanguageError: `bad-call` when arguments do not fit, `cannot-call` when kernels cannot call it.
    """
    found = handler_of(callee)
    if found is not None:
        handler, signature = found
        return handler(b, *bind(f"{_home(callee)}.{callee.__name__}", signature, args, kwargs).values())
    if isinstance(callee, DeviceFunction):
        return inline(b, callee.function, args, kwargs)
    if isinstance(callee, StructureValue):
        return inline(b, callee.layout.entry.function, [callee, *args], kwargs)
    if isinstance(callee, BoundMethod):
        handler = method_of(callee.name)
        signature = inspect.signature(handler)
        rest = signature.replace(parameters=list(signature.parameters.values())[2:])
        return handler(b, callee.owner, *bind(callee.name, rest, args, kwargs).values())
    if callee is builtins.print:
        return call(b, tile.device_print, args, kwargs)
    sequence = sequence_call(callee, args, kwargs)
    if sequence is not None:
        return sequence[0]
    if any(_runs(b, arg) for arg in leaves(tuple(args))):
        meant = builtin_of(callee, args, kwargs)
        if meant is not None:
            return meant(b, *args)
    if _is_static_function(callee):
        return _static(b, callee, args, kwargs)
    raise _cannot_call(callee)


def _home(callee: Any) -> str:
    """Return where a kernel finds a function of the language."""
    if getattr(tile, callee.__name__, None) is callee:
        return "ts.tile"
    package, _, module = callee.__module__.rpartition(".")
    return f"ts.tile.{module}" if package == tile.__name__ else "ts"


def _runs(b: Builder, value: Any) -> bool:
    """Return whether a value is known only when the kernel runs, or has a dtype; sizes of dimensions are numbers."""
    if isinstance(value, Scalar) and value.type == index:
        return not b.symbols.is_static(value.ssa)
    return is_runtime(value)


def bind(name: str, signature: inspect.Signature, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by parameter name, defaults filled in.

    Raises:
        LanguageError: `bad-call`.
        TypeMismatchError: `bad-argument` for a truth value that is not known at compile time.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = f"{name}{_plain(signature)}"
        unknown = kwargs.keys() - signature.parameters.keys() if name.startswith("ts.") else ()
        advice = [text for keyword, text in KEYWORDS.items() if keyword in unknown]
        raise LanguageError(f"{name}: {error}", code="bad-call", help="; ".join([takes, *advice])) from None
    bound.apply_defaults()
    for parameter in signature.parameters.values():
        if parameter.annotation in ("bool", bool):
            bound.arguments[parameter.name] = static_bool(bound.arguments[parameter.name], f"{name}: {parameter.name}")
    return bound.arguments


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without annotations."""
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


def _is_static_function(callee: Any) -> bool:
    if isinstance(callee, BuiltinFunctionType) and callee.__module__ == "math":
        return True
    return any(callee is known for known in (*STATIC_BUILTINS, *STATIC_FUNCTIONS))


def _static(b: Builder, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a Python function on compile-time values; dimensions it needs are fixed to their sizes."""
    fixed = [_static_argument(b, callee, arg) for arg in args]
    named = {name: _static_argument(b, callee, arg) for name, arg in kwargs.items()}
    return static_call(b, f"{callee.__name__}()", callee, *fixed, **named)


def _static_argument(b: Builder, callee: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_static_argument(b, callee, part) for part in value)  # pyright: ignore[reportUnknownVariableType]
    if not is_runtime(value):
        return value
    known = b.static(value) if isinstance(value, Scalar) else None
    if known is None or (callee in (pow, sum) and cast(Scalar, value).type != index):  # theirs would lose its dtype
        raise _needs_constant(callee, value)
    return known


def _needs_constant(callee: Any, value: Any) -> LanguageError:
    name = callee.__name__
    in_math = getattr(callee, "__module__", None) == "math"
    if in_math and hasattr(tile, name):
        help = f"use ts.tile.{name}"
    elif in_math and name in ("fabs", "pow"):
        help = f"use ts.tile.{name.removeprefix('f')}"
    else:
        help = _INSTEAD.get(callee, "it works on values known at compile time")
    shown = f"math.{name}" if in_math else name
    return LanguageError(f"{shown} takes compile-time numbers, got {show(value)}", code="needs-constant", help=help)


def _cannot_call(callee: Any) -> LanguageError:
    name = getattr(callee, "__name__", None) or show(callee)
    if isinstance(callee, ModuleType):
        name = name.replace("tessera.frontend.", "ts.")
        help = f"call one of its functions: {', '.join(getattr(callee, '__all__', ()))}"
    elif isinstance(callee, DType):
        help = f"convert with ts.tile.cast(x, {callee!r})"
    elif isinstance(callee, FunctionType):
        help = "decorate it with @ts.function to inline it"
    elif hasattr(callee, "signature") and hasattr(callee, "explain"):
        help = "a kernel launches its own grid; share code through a @ts.function"
    elif is_runtime(callee) or not callable(callee):
        help = "only functions can be called"
    elif hasattr(tile, name) and name not in _HAS_INSTEAD:
        help = f"use ts.tile.{name}"
    else:
        help = _known_instead(callee) or "kernels call ts.tile functions, @ts.function helpers and math on constants"
    return LanguageError(f"{name} cannot be called in a kernel", code="cannot-call", help=help)


def _known_instead(callee: Any) -> str | None:
    return next((help for known, help in _INSTEAD.items() if known is callee), None)


def inline(b: Builder, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compile a helper's body at the call.

    Raises:
        LanguageError: `recursion`, `bad-call`.
    """
    if b.frame.depth_of(function) == MAX_RECURSION:
        raise LanguageError(
            f"{function.__name__} calls itself more than {MAX_RECURSION} levels deep",
            code="recursion",
            help="helpers are inlined: a constant has to end the recursion; at run time write it as a loop",
        )
    b.spend(STEPS_OF_CALL)
    bound = bind(function.__name__, signature_of(function), args, kwargs)
    caller = b.frame
    site, node = b.location(), b.node
    frame = Frame(function, {}, site, caller, [b.predicate])
    # A name that the helper binds again is a value; others may stand for a place, which an atomic updates.
    given = {name: materialise(b, value) if name in frame.locals else value for name, value in bound.items()}
    loops, uncommitted, last = b.loops.count, b.uncommitted, b.block.last_op
    unread = [(view.moment, view.moment.last) for view in _views(given.values()) if view.moment.value is None]
    while True:
        b.frame, frame.env = frame, dict(given)
        try:
            execute(b, frame.source.node.body)
            return frame.env.get(RESULT)
        except Retry as retry:
            if retry.of is not frame:
                raise
            _drop_after(b.block, last)
            b.loops.count, b.uncommitted = loops, uncommitted
            for moment, before in unread:
                moment.value, moment.last = None, before
        finally:
            b.frame, b.node = caller, node


def _views(values: Iterable[Any]) -> Iterator[AnyView]:
    """Return the slices among what a helper is given, which may be read in its body first."""
    for value in values:
        if isinstance(value, tuple):
            yield from _views(cast(tuple[Any, ...], value))
        elif isinstance(value, AnyView):
            yield value


def _drop_after(block: Block, last: Operation | None) -> None:
    """Take back what was emitted into a block after an op."""
    while block.last_op is not last and block.last_op is not None:
        block.erase_op(block.last_op, safe_erase=False)
