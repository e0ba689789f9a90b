"""Identity of a kernel's source: its text, the helpers it calls and the global constants it reads.

Needs no compiler, so that a kernel found in the cache starts without one.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from tessera.errors import LanguageError
from tessera.frontend.annotations import Dim, TensorAnnotation
from tessera.frontend.source import source_of
from tessera.frontend.static_eval import lookup_in
from tessera.frontend.structure import ConstantField, Layout, StructureAnnotation
from tessera.numerics.dtypes import DType, Policy, Rule

_PLAIN = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    DType,
    Policy,
    Rule,
    Dim,
    TensorAnnotation,
    StructureAnnotation,
)

_CONTAINERS = (list, tuple, set, frozenset, dict)


class _Unknown(Exception):
    """The kernel reads a value whose effect on the code cannot be told from outside."""


def source_fingerprint(function: FunctionType, dims: Collection[str] = ()) -> str | None:
    """Return a hash of all that a kernel's meaning depends on, None when that cannot be told.

    Args:
        function: the kernel's function.
        dims: names of its dimensions, which hide globals of the same name.

    Raises:
        LanguageError: `no-source`.
    """
    digest = hashlib.sha256()
    try:
        for part in _parts(function, set(), dims):
            digest.update(part.encode() + b"\0")
    except _Unknown:
        return None
    return digest.hexdigest()


def value_fingerprint(name: str, value: object) -> str | None:
    """Return a text that stands for a compile-time argument, None when there is none."""
    try:
        return "\0".join(_value_parts(name, value, set()))
    except _Unknown:
        return None


def layout_fingerprint(name: str, layout: Layout) -> str | None:
    """Return a text that stands for what is passed for a structured parameter, None when there is none."""
    try:
        return "\0".join(_layout_parts(name, layout))
    except _Unknown:
        return None


def _layout_parts(name: str, layout: Layout) -> Iterator[str]:
    yield f"{name}:{layout.label}{layout.formals}"
    yield from _value_parts("entry", layout.entry, set())
    for field, kind in layout.fields:
        if isinstance(kind, Layout):
            yield from _layout_parts(field, kind)
        elif isinstance(kind, tuple):
            yield f"{field}[{len(kind)}]"
            for part in kind:
                yield from _layout_parts(field, part)
        elif isinstance(kind, ConstantField):
            yield from _value_parts(field, kind.value, set())
        else:
            yield f"{field}={kind!r}"


def _parts(function: FunctionType, seen: set[FunctionType], dims: Collection[str] = ()) -> Iterator[str]:
    """Yield the source of `function` and of what it refers to, with each value by name."""
    if function in seen:
        return
    seen.add(function)
    source = source_of(function)
    yield f"{function.__module__}.{function.__qualname__}"
    # The file and line are part of it: messages of device asserts carry them.
    yield f"{source.file}:{source.line_offset}"
    yield "".join(source.lines)
    yield repr((function.__defaults__, function.__kwdefaults__))
    # An annotation may come from names of the enclosing function, which the look-up below does not see.
    yield repr([value for value in function.__annotations__.values() if isinstance(value, _PLAIN)])
    lookup = lookup_in(function)
    hidden = _local_names(source.node)
    for chain in sorted(_name_chains(source.node)):
        if chain[0] in hidden:
            continue
        value = _resolve(chain, lookup)
        if chain[0] not in dims or isinstance(value, Dim):
            yield from _value_parts(".".join(chain), value, seen)


def _local_names(node: ast.AST) -> set[str]:
    """Return parameters and assigned names, which hide globals of the same name."""
    return {
        item.arg if isinstance(item, ast.arg) else item.id
        for item in ast.walk(node)
        if isinstance(item, ast.arg) or (isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store))
    }


def _name_chains(node: ast.AST) -> set[tuple[str, ...]]:
    """Return every dotted name in a syntax tree: `a.b.c` as `("a", "b", "c")`."""
    chains: set[tuple[str, ...]] = set()

    def visit(item: ast.AST) -> None:
        names: list[str] = []
        base = item
        while isinstance(base, ast.Attribute):
            names.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name):
            chains.add((base.id, *reversed(names)))
            return
        for child in ast.iter_child_nodes(item):
            visit(child)

    visit(node)
    return chains


def _resolve(chain: tuple[str, ...], lookup: Callable[[str], Any]) -> Any:
    """Return what a dotted name stands for, as far as plain attributes lead; None for a local name."""
    try:
        value = lookup(chain[0])
    except KeyError:
        return None
    for name in chain[1:]:
        if isinstance(value, _PLAIN) or not hasattr(value, name):
            break
        value = getattr(value, name)
    return value


def _value_parts(name: str, value: Any, seen: set[FunctionType]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield f"{name}={value!r}"
        return
    if isinstance(value, _CONTAINERS):
        yield f"{name}={_container(value)}"
        return
    if isinstance(value, MethodType) and _is_ours(value.__func__.__module__):  # `ts.kernel.autotune`
        value = value.__func__
    function = value if isinstance(value, FunctionType) else _wrapped(value)
    if function is None:
        if not isinstance(value, ModuleType | BuiltinFunctionType | type) and not _is_ours(
            type(value).__module__
        ):
            raise _Unknown
        kind = getattr(value, "__qualname__", type(value).__qualname__)
        yield f"{name}:{getattr(value, '__module__', '')}.{kind}"
        return
    if _is_ours(function.__module__):  # the compiler's hash covers it
        yield f"{name}:{function.__module__}.{function.__qualname__}"
        return
    yield name
    try:
        yield from _parts(function, seen)
    except LanguageError as error:  # a function without source cannot be compiled either
        raise _Unknown from error


def _wrapped(value: Any) -> FunctionType | None:
    """Return the function behind a decorated helper."""
    found = getattr(value, "__wrapped__", None)
    return found if isinstance(found, FunctionType) else None


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "tessera"


def _container(value: Any) -> str:
    """Return the text of a container of plain values."""
    kind = cast("type[Any]", type(value))
    items: list[Any] = list(value.items() if kind is dict else value)
    texts = [_container(item) if isinstance(item, _CONTAINERS) else _plain(item) for item in items]
    if kind in (set, frozenset):
        texts.sort()
    return f"{kind.__name__}({', '.join(texts)})"


def _plain(item: Any) -> str:
    if not isinstance(item, _PLAIN):
        raise _Unknown
    return repr(item)
