"""Expressions: names, constants, operators, attributes, subscripts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from numbers import Number
from types import ModuleType
from typing import Any, cast

from tessera.errors import LanguageError, TesseraError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.annotations import Dim, DTypeVar
from tessera.frontend.builder import Builder, plain
from tessera.frontend.constants import checked, first_line, python, static_call
from tessera.frontend.convert import apply, boolean, check_defined, operand, symbol
from tessera.frontend.evaluate import evaluate, expression, unsupported
from tessera.frontend.exact import same
from tessera.frontend.foreign import instead, missing_name, nearest
from tessera.frontend.guarded import guarded
from tessera.frontend.indexing import normalise, subscript
from tessera.frontend.parts import SliceValue
from tessera.frontend.registry import attribute_of, attributes_of
from tessera.frontend.structure import StructureValue
from tessera.frontend.values import (
    AnyView,
    ContextValue,
    Scalar,
    Shared,
    TensorValue,
    Text,
    Tile,
    Value,
    show,
)
from tessera.numerics.dtypes import DType

_BINARY: dict[type[ast.operator], tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", "add", python.add),
    ast.Sub: ("-", "sub", python.sub),
    ast.Mult: ("*", "mul", python.mul),
    ast.Div: ("/", "div", python.truediv),
    ast.FloorDiv: ("//", "floordiv", python.floordiv),
    ast.Mod: ("%", "mod", python.mod),
    ast.BitAnd: ("&", "and", python.and_),
    ast.BitOr: ("|", "or", python.or_),
    ast.BitXor: ("^", "xor", python.xor),
    ast.LShift: ("<<", "shl", python.lshift),
    ast.RShift: (">>", "shr", python.rshift),
}


def _inverted(value: Any) -> Any:
    """Return `~value`; of a bool its opposite, as of a condition that is known at run time only (and as in NumPy)."""
    return not value if isinstance(value, bool) else ~value


_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("-", python.neg),
    ast.UAdd: ("+", python.pos),
    ast.Not: ("not ", python.not_),
    ast.Invert: ("~", _inverted),
}

_COMPARE: dict[type[ast.cmpop], tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", "lt", python.lt),
    ast.LtE: ("<=", "le", python.le),
    ast.Gt: (">", "gt", python.gt),
    ast.GtE: (">=", "ge", python.ge),
    ast.Eq: ("==", "eq", python.eq),
    ast.NotEq: ("!=", "ne", python.ne),
}


def is_runtime(value: Any) -> bool:
    """Return whether a value is known only when the kernel runs."""
    return isinstance(value, Value | AnyView | TensorValue | Text)


def resolved(b: Builder, value: Any) -> Any:
    """Return `value` with the symbols of dimensions and dtypes replaced by what they stand for."""
    if isinstance(value, DTypeVar):
        return dtype_of_variable(b, value)
    return symbol(b, value) if isinstance(value, Dim) else value


def dtype_of_variable(b: Builder, variable: DTypeVar) -> DType:
    """Return the dtype that a variable stands for at this call.

    Raises:
        LanguageError: `unknown-name` when no argument has it.
    """
    known = dict(b.signature.dtypes)
    if variable.name not in known:
        raise LanguageError(
            f"no argument has the dtype {variable.name}",
            code="unknown-name",
            help=f"dtype variables here: {', '.join(known) or 'none'}",
        )
    return known[variable.name]


@expression(ast.Constant)
def _constant(node: ast.Constant, b: Builder) -> Any:
    if isinstance(node.value, complex | bytes):
        raise LanguageError(
            f"{node.value!r} cannot be used in a kernel",
            code="unsupported-syntax",
            help="use numbers and strings",
        )
    return node.value


@expression(ast.Name)
def _name(node: ast.Name, b: Builder) -> Any:
    name, frame = node.id, b.frame
    if name in frame.env:
        return check_defined(name, frame.env[name])
    if name in frame.locals:
        raise LanguageError(
            f"{name!r} is used before it is assigned",
            code="undefined-name",
            help=_before_it_is_assigned(name, b),
        )
    if frame.caller is None and name in b.dims.names:
        return b.dim(name)
    try:
        found = frame.lookup(name)
    except KeyError:
        raise unknown_name(b, name) from None
    b.reads.name(frame.function, name, found)
    return resolved(b, plain(found))


def _before_it_is_assigned(name: str, b: Builder) -> str:
    """Return a help line about a name of the function's own that has no value yet."""
    other = "a dimension" if b.frame.caller is None and name in b.dims.names else ""
    with suppress(KeyError):
        b.frame.lookup(name)
        other = other or "defined outside of the function"
    if not other:
        return "assign it before this line"
    return f"{name} is {other}, too, but this function assigns it, which makes it its own: rename one of the two"


def unknown_name(b: Builder, name: str) -> LanguageError:
    """Return the error for a name that nothing defines, with the nearest one that exists."""
    near = nearest(name, [*b.frame.env, *b.dims.names, *b.frame.function.__globals__], 0.6)
    if name in b.dims.names:
        help = f"pass the dimension to the helper as an argument, or define {name} = ts.dims({name!r})"
    elif near:
        help = near
    elif name in b.constants:
        help = f"tuned constants are attributes: ts.tile.context().{name}"
    else:
        help = instead(name, tile.functions()) or (
            f"dimensions here: {', '.join(b.dims.names) or 'none'}; module-level constants are visible too"
        )
    return LanguageError(f"{name!r} is not defined", code="unknown-name", help=help)


@expression(ast.Tuple)
@expression(ast.List)
def _tuple(node: ast.Tuple | ast.List, b: Builder) -> tuple[Any, ...]:
    return checked("the tuple", tuple(evaluate(b, part) for part in node.elts))


@expression(ast.JoinedStr)
def _fstring(node: ast.JoinedStr, b: Builder) -> Any:
    parts: list[Any] = []
    for part in node.values:
        if not isinstance(part, ast.FormattedValue):
            parts.append(evaluate(b, part))
            continue
        if part.format_spec is not None or part.conversion != -1:
            raise LanguageError("a format specification in an f-string", code="bad-format", help="write {x} alone")
        value = evaluate(b, part.value)
        parts.append(value if is_runtime(value) else static_call(b, "str()", str, value))
        checked("the f-string", tuple(parts))
    return Text(tuple(parts)) if any(map(is_runtime, parts)) else checked("the f-string", "".join(parts))


def binary(b: Builder, op: ast.operator, left: Any, right: Any) -> Any:
    """Return `left op right`.

    Raises:
        TypeMismatchError: `shape-mismatch`, `dtype-mismatch` or `not-a-value`.
    """
    if isinstance(op, ast.Pow):
        from tessera.frontend.ops.math import power

        return power(b, left, right)
    if isinstance(op, ast.MatMult):
        return _matmul(b, left, right)
    sign, fn, function = _BINARY[type(op)]
    if not is_runtime(left) and not is_runtime(right):
        return static_call(b, f"{show(left)} {sign} {show(right)}", function, left, right)
    return apply(b, fn, left, right, what=sign)


def _matmul(b: Builder, left: Any, right: Any) -> Any:
    if not is_runtime(left) and not is_runtime(right):
        return static_call(b, f"{show(left)} @ {show(right)}", python.matmul, left, right)
    from tessera.frontend.ops.mma import dot

    return dot(b, left, right)


@expression(ast.BinOp)
def _binop(node: ast.BinOp, b: Builder) -> Any:
    """Evaluate `a + b + c + …` from the left, without a recursion for each term."""
    chain = [node]
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    known = _known_products(chain, b)
    start = next((place for place, value in enumerate(known) if value is not None), len(chain))
    value = evaluate(b, chain[-1].left) if start == len(chain) else known[start]
    for term in reversed(chain[:start]):
        with b.at(term):
            b.spend()
            value = binary(b, term.op, value, evaluate(b, term.right))
    return value


def _known_products(chain: list[ast.BinOp], b: Builder) -> list[Any]:
    """Return for each part of a chain the size of the tensors' dimension that it spells, else None."""
    found: list[Any] = []
    product = _dim_product(chain[-1].left, b)
    for part in reversed(chain):
        right = _dim_product(part.right, b) if isinstance(part.op, ast.Mult) and product is not None else None
        product = None if product is None or right is None else product * right
        found.append(None if product is None else _size_of_product(b, product))
    return found[::-1]


def _size_of_product(b: Builder, product: Dim) -> Any:
    for dim in (dim for tensor in b.signature.tensors for dim in tensor.dims):
        if dim.is_product and dim.scale == product.scale and sorted(dim.names) == sorted(product.names):
            return symbol(b, dim)
    return None


def _dim_product(node: ast.expr, b: Builder) -> Dim | None:
    """Return the dimension that a product such as `B * H` spells: known even where B alone is not."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            parts = _dim_product(left, b), _dim_product(right, b)
            return None if parts[0] is None or parts[1] is None else parts[0] * parts[1]
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return Dim((), value)
        case ast.Name(id=name) if name in b.dims.names and name not in {*b.frame.env, *b.frame.locals}:
            return Dim((name,)) if b.frame.caller is None else None
        case _:
            return None


@expression(ast.UnaryOp)
def _unary(node: ast.UnaryOp, b: Builder) -> Any:
    value = evaluate(b, node.operand)
    if not is_runtime(value):
        sign, function = _UNARY[type(node.op)]
        return static_call(b, f"{sign}{show(value)}", function, value)
    match node.op:
        case ast.USub():
            return apply(b, "neg", value, what="-")
        case ast.Invert():
            return apply(b, "not", value, what="~")
        case ast.Not():
            return _not(b, value)
        case _:
            return operand(b, value)


def _not(b: Builder, value: Any) -> Any:
    truth = truth_of(b, value, "not")
    if isinstance(truth, Tile):
        raise TypeMismatchError(
            "`not` does not work on tiles",
            code="unsupported-operator",
            help="use ~condition, element by element",
        )
    return apply(b, "not", truth)


def truth_of(b: Builder, value: Any, what: str) -> bool | Scalar | Tile:
    """Return a condition: a compile-time bool, a run-time bool scalar, or a bool tile.

    Raises:
        TypeMismatchError: `dtype-mismatch` for a tile that is not bool, `not-a-value` for tensors.
    """
    if not is_runtime(value):
        return static_call(b, what, bool, value)
    ready = operand(b, value, what)
    if isinstance(ready, Scalar):
        return ready if ready.dtype.kind == "bool" else apply(b, "ne", ready, 0)  # pyright: ignore[reportReturnType]
    boolean(b, ready, what)
    return ready


@expression(ast.BoolOp)
def _boolop(node: ast.BoolOp, b: Builder) -> Any:
    return _joined(b, node, condition=False)


def truth(b: Builder, node: ast.expr, what: str) -> bool | Scalar | Tile:
    """Return the truth of an expression, which is all that a condition needs of `and`, `or` and `not`.

    Raises:
        TypeMismatchError: as `truth_of`.
    """
    if isinstance(node, ast.BoolOp):
        with b.at(node):
            value = _joined(b, node, condition=True)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        with b.at(node):
            value = _not(b, truth(b, node.operand, "`not`"))
    else:
        value = evaluate(b, node)
    with b.at(node):
        return truth_of(b, value, what)


def _joined(b: Builder, node: ast.BoolOp, condition: bool) -> Any:
    """Return what `and` or `or` gives: the part that decides, or its truth where a condition asks."""
    is_and = isinstance(node.op, ast.And)
    name = "and" if is_and else "or"
    result, last = _part(b, node.values[0], condition=condition), node.values[0]
    for part in node.values[1:]:
        if not is_runtime(result):
            if static_call(b, f"`{name}`", bool, result) != is_and:
                return result
            result, last = _part(b, part, condition=condition), part
            continue
        decides = _truth_of_part(b, result, name, last)
        value = guarded(b, part, decides, is_and, f"`{name}`", partial(_part, condition=condition))
        result, last = _either(b, name, decides, result, value), part
    if is_runtime(result):
        _truth_of_part(b, result, name, last)
    return result


def _part(b: Builder, node: ast.expr, *, condition: bool) -> Any:
    return truth(b, node, "the condition") if condition else evaluate(b, node)


def _truth_of_part(b: Builder, value: Any, name: str, node: ast.expr) -> Scalar:
    with b.at(node):
        found = truth_of(b, value, f"`{name}`")
        if isinstance(found, Tile):
            raise TypeMismatchError(
                f"`{name}` does not work on tiles",
                code="unsupported-operator",
                help=f"use {'&' if name == 'and' else '|'} with parentheses, element by element",
            )
    assert isinstance(found, Scalar)
    return found


def _either(b: Builder, name: str, decides: Scalar, left: Any, right: Any) -> Any:
    """Return `left and right` or `left or right`, given the truth of the left one."""
    is_and = name == "and"
    if decides is left and isinstance(right, bool):
        return left if right == is_and else right
    if decides is left and isinstance(right, Scalar) and right.dtype.kind == "bool":
        return apply(b, name, left, right)
    return apply(b, "select", decides, *((right, left) if is_and else (left, right)), what=name)


@expression(ast.Compare)
def _compare(node: ast.Compare, b: Builder) -> Any:
    left = _as_list(node.left, evaluate(b, node.left))
    result: Any = None
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        if isinstance(result, Scalar | Tile):
            right = guarded(b, right_node, result, True, "a chain of comparisons")
        else:
            right = evaluate(b, right_node)
        right = _as_list(right_node, right)
        part = _compare_two(b, op, left, right)
        if not is_runtime(part) and not static_call(b, "a comparison", bool, part):
            return False
        if result is None or not is_runtime(result):
            result = part
        elif is_runtime(part):
            result = apply(b, "and", result, part)
        left = right
    return result


def _as_list(node: ast.expr, value: Any) -> Any:
    """Return a list that stands in a comparison, and those in it, as lists, which equal no tuples."""
    if not isinstance(node, ast.List | ast.Tuple):
        return value
    parts = [_as_list(part, one) for part, one in zip(node.elts, value, strict=True)]
    return parts if isinstance(node, ast.List) else tuple(parts)


def _is(left: Any, right: Any) -> bool:
    """Return `left is right`; of numbers and texts, which objects are one is Python's own affair, so values count."""
    by_value = type(left) in (int, float, str)
    return same(left, right) if by_value else left is right


def _compare_two(b: Builder, op: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Is | ast.IsNot):
        run_time = is_runtime(left) + is_runtime(right)
        if run_time == 2 or (run_time and isinstance(right if is_runtime(left) else left, Number)):
            what = "of a run-time value and a number" if run_time == 1 else "between run-time values"
            raise LanguageError(f"`is` {what}", code="unsupported-operator", help="compare with ==")
        return _is(left, right) == isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        if _holds_runtime(left) or _holds_runtime(right):
            raise LanguageError(
                "`in` on run-time values",
                code="unsupported-operator",
                help="compare with == and combine with `or`",
            )
        found = static_call(b, "in", python.contains, right, left)
        return found == isinstance(op, ast.In)
    sign, fn, function = _COMPARE[type(op)]
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and _holds_runtime([left, right]):
        if fn not in ("eq", "ne"):
            raise LanguageError(
                f"`{sign}` of sequences with run-time values",
                code="unsupported-operator",
                help="compare their elements one by one",
            )
        equal = _equal_parts(b, cast("Sequence[Any]", left), cast("Sequence[Any]", right))
        return equal if fn == "eq" else not equal if isinstance(equal, bool) else _not(b, equal)
    if not is_runtime(left) and not is_runtime(right):
        return static_call(b, f"{show(left)} {sign} {show(right)}", function, left, right)
    return apply(b, fn, left, right, what=sign)


def _holds_runtime(value: Any) -> bool:
    """Return whether a value, or an element of it, is known only when the kernel runs; lists may hold themselves."""
    work, seen = [value], set[int]()
    while work:
        value = work.pop()
        if is_runtime(value):
            return True
        if isinstance(value, tuple | list) and id(cast(Any, value)) not in seen:
            seen.add(id(cast(Any, value)))
            work += cast("Sequence[Any]", value)
    return False


def _equal_parts(b: Builder, left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Return `left == right` of sequences with elements that are known only when the kernel runs, as Python has it."""
    if isinstance(left, tuple) != isinstance(right, tuple) or len(left) != len(right):
        return False
    result: Any = True
    for one, other in zip(left, right, strict=True):
        pair = [operand(b, each) if isinstance(each, AnyView) else each for each in (one, other)]
        if any(isinstance(each, Tile) for each in pair):
            raise TypeMismatchError(
                "`==` of sequences of tiles", code="unsupported-operator", help="compare the tiles, and use ts.tile.all"
            )
        if isinstance(one, tuple | list) != isinstance(other, tuple | list):
            return False
        part = _compare_two(b, ast.Eq(), *pair)
        if not is_runtime(part) and not static_call(b, "==", bool, part):
            return False
        if is_runtime(part):
            result = part if result is True else apply(b, "and", result, part)
    return result


@expression(ast.IfExp)
def _ifexp(node: ast.IfExp, b: Builder) -> Any:
    condition = truth(b, node.test, "the condition")
    if isinstance(condition, bool):
        return evaluate(b, node.body if condition else node.orelse)
    arms = [guarded(b, arm, condition, when, "`if else`") for arm, when in ((node.body, True), (node.orelse, False))]
    return apply(b, "select", condition, *arms, what="if else")


@expression(ast.Attribute)
def _attribute(node: ast.Attribute, b: Builder) -> Any:
    return get_attribute(b, evaluate(b, node.value), node.attr)


def get_attribute(b: Builder, owner: Any, name: str) -> Any:
    """Return `owner.name`.

    Raises:
        LanguageError: `unknown-name` or `unknown-attribute`.
    """
    if isinstance(owner, AnyView) and name != "shape":
        owner = operand(b, owner)
    handler = attribute_of(owner, name)
    if handler is not None:
        return handler(b, owner)
    if isinstance(owner, ContextValue):
        return _context_attribute(b, name)
    if isinstance(owner, StructureValue):
        return _field(b, owner, name)
    if is_runtime(owner):
        names = ", ".join(attributes_of(owner))
        known = instead(name, tile.functions()) if isinstance(owner, Tile | Scalar | Shared | TensorValue) else None
        raise LanguageError(
            f"{show(owner)} has no attribute {name!r}",
            code="unknown-attribute",
            help=known or (f"it has {names}; functions are in ts.tile" if names else "functions are in ts.tile"),
        )
    try:
        found = getattr(owner, name)
    except AttributeError:
        raise _missing_attribute(owner, name) from None
    except TesseraError:
        raise
    except Exception as error:  # a property may raise what it likes
        raise LanguageError(
            f"{show(owner)}.{name}: {first_line(error)}",
            code="constant-expression",
            help="attributes of Python objects are read at compile time",
        ) from None
    b.reads.attribute(owner, name, found)
    return resolved(b, plain(found))


def _field(b: Builder, owner: StructureValue, name: str) -> Any:
    if name not in owner.fields:
        raise LanguageError(
            f"{show(owner)} has no field {name!r}",
            code="unknown-name",
            help=f"it has {', '.join(owner.fields)}",
        )
    return resolved(b, owner.fields[name])


def _missing_attribute(owner: Any, name: str) -> LanguageError:
    is_module = isinstance(owner, ModuleType)
    if is_module and owner.__name__ in ("tessera", tile.__name__):
        return missing_name("ts" if owner.__name__ == "tessera" else "ts.tile", name, dir(owner))
    help = nearest(name, dir(owner)) or "see the language reference for what there is"
    if is_module and owner.__name__.startswith(tile.__name__):
        help = nearest(name, owner.__all__) or f"it has {', '.join(owner.__all__)}"
    elif isinstance(owner, tuple):
        help = "tuples and lists stay as they are: make a new one, xs + (value,)"
    what = owner.__name__.replace("tessera.frontend.", "ts.") if is_module else show(owner)
    return LanguageError(f"{what} has no {name!r}", code="unknown-name", help=help)


def _context_attribute(b: Builder, name: str) -> Any:
    b.tunables_read.add(name)
    if name in b.constants:
        return plain(b.constants[name])
    if name in b.dims.names:
        return b.dim(name)
    known = ", ".join([*b.constants, *b.dims.names]) or "nothing"
    raise LanguageError(
        f"the context has no {name!r}",
        code="unknown-name",
        help=f"it has {known}; name a tunable in @ts.kernel.autotune(space=...) or as a ts.constexpr",
    )


def index_items(b: Builder, node: ast.expr) -> tuple[Any, ...]:
    """Return the evaluated items between the brackets of a subscript."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    items: list[Any] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            bounds = [None if n is None else evaluate(b, n) for n in (part.lower, part.upper, part.step)]
            items.append(SliceValue(*bounds))
        else:
            items.append(evaluate(b, part))
    return normalise(b, items)


@expression(ast.Subscript)
def _subscript(node: ast.Subscript, b: Builder) -> Any:
    base = evaluate(b, node.value)
    return subscript(b, base, index_items(b, node.slice))


@expression(ast.Slice)
def _slice(node: ast.Slice, b: Builder) -> Any:
    raise unsupported(node)
