"""What a loop hands from one iteration to the next, and how its type is settled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, cast

from xdsl.ir import Attribute, Block, SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder, Frame, LoopPlace
from tessera.frontend.convert import broadcast_to, cast_to, constant, default_element, operand
from tessera.frontend.exact import same
from tessera.frontend.flow import RESULT, stop_of
from tessera.frontend.liveness import NONE, names_bound
from tessera.frontend.values import (
    Scalar,
    Shared,
    Tile,
    Undefined,
    Value,
    is_number,
    leaves,
    rebuild,
    show,
    store_help,
)
from tessera.ir.tile.types import TileType, describe, element_of, shape_of
from tessera.ir.types import dtype_of, index

GONE = Undefined("", "")
"""Stands for a name that is not bound."""


@dataclass(slots=True)
class Carried:
    """The values that a loop hands from one iteration to the next.

    Args:
        names: their names, sorted.
        initial: what each name is before the loop.
        types: the IR type of each leaf; None for what is no run-time value and must not change.
    """

    names: tuple[str, ...]
    initial: dict[str, Any]
    types: list[Attribute | None] = field(default_factory=list[Attribute | None])
    guessed: set[int] = field(default_factory=set[int])
    """Positions of numbers whose type is the one they had when the loop was compiled before."""
    bound: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Positions by the values that stand for what is carried."""

    def __post_init__(self) -> None:
        self.types = [_carried_type(leaf) for leaf in self.leaves()]

    def guess(self, types: Sequence[Attribute | None]) -> None:
        """Start with the types that numbers turned out to have when the loops around were compiled before."""
        if len(types) == len(self.types):
            leaves_ = self.leaves()
            self.guessed = {at for at, t in enumerate(types) if is_number(leaves_[at]) and t != self.types[at]}
            for at in self.guessed:
                self.types[at] = types[at]

    def start_with(self, b: Builder, templates: dict[str, Any]) -> None:
        """Carry more names, which start with values that nobody reads.

        Args:
            b: the builder.
            templates: what each name is after an iteration.
        """
        for name, value in templates.items():
            parts = [like(leaf, blank(b, leaf.type)) if isinstance(leaf, Value) else leaf for leaf in leaves(value)]
            self.initial[name] = rebuild(value, iter(parts))
        self.names = tuple(sorted(self.initial))
        self.guessed = set()
        self.__post_init__()

    def leaves(self) -> list[Any]:
        """The leaves of all initial values, in order."""
        return [leaf for name in self.names for leaf in leaves(self.initial[name])]

    @property
    def runtime_types(self) -> list[Attribute]:
        """The types of the values that the IR carries."""
        return [type_ for type_ in self.types if type_ is not None]

    def bind(self, env: dict[str, Any], values: Sequence[SSAValue]) -> None:
        """Set the names to carried IR values."""
        given = iter(values)
        self.bound |= zip(values, [at for at, type_ in enumerate(self.types) if type_ is not None], strict=True)
        for name, template in self._typed():
            parts = iter([leaf if type_ is None else like(leaf, next(given)) for leaf, type_ in template])
            env[name] = rebuild(self.initial[name], parts)

    def _typed(self) -> list[tuple[str, list[tuple[Any, Attribute | None]]]]:
        types = iter(self.types)
        return [(name, [(leaf, next(types)) for leaf in leaves(self.initial[name])]) for name in self.names]

    def retype(self, value: Any, type_: Attribute) -> Any:
        """Let a number have another type from before the loop on, given what stands for it in the loop.

        Returns:
            What the value is before the loop, for the loops around.

        Raises:
            Retry: when it is a number there.
        """
        position = self.bound.get(value.ssa) if isinstance(value, Scalar) else None
        if position is None:
            return value
        start = self.leaves()[position]
        if is_number(start) and self.types[position] != type_:
            self.guessed.discard(position)
            self.types[position] = type_
            raise Retry(self)
        return start

    def start(self, b: Builder) -> list[SSAValue]:
        """Return the initial values in the IR."""
        pairs = zip(self.leaves(), self.types, strict=True)
        return [leaf.ssa if isinstance(leaf, Value) else constant(b, leaf, t) for leaf, t in pairs if t is not None]


def _carried_type(leaf: Any) -> Attribute | None:
    if isinstance(leaf, Tile | Scalar):
        return leaf.type
    return default_element(leaf) if is_number(leaf) else None


def alike(one: Attribute, other: Attribute) -> bool:
    """Return whether two types are one to the user: `index` counts as i64."""
    return shape_of(one) == shape_of(other) and dtype_of(element_of(one)) == dtype_of(element_of(other))


def as_type(b: Builder, value: Any, type_: Attribute) -> SSAValue:
    """Return a number, or a value of a type that is alike, as a value of a type."""
    if not isinstance(value, Value):
        return constant(b, value, type_)
    value = operand(b, value) if isinstance(value, Shared) else value
    return value.ssa if value.type == type_ else cast_to(b, value.ssa, element_of(type_))


def blank(b: Builder, type_: Attribute) -> SSAValue:
    """Return a value of a type for where nothing reads it."""
    value = constant(b, 0, element_of(type_))
    return broadcast_to(b, value, shape_of(type_)) if isinstance(type_, TileType) else value


def like(leaf: Any, ssa: SSAValue) -> Value:
    """Return an IR value as the kind of value that `leaf` is."""
    if isinstance(leaf, Value):
        return type(leaf)(ssa, leaf.policy)
    return Scalar(ssa)


class Retry(Exception):
    """The body of a loop or helper has to be compiled again with what its first attempt taught.

    Args:
        of: what the loop carries, or the helper that is compiled again; None for the innermost loop.
    """

    def __init__(self, of: Carried | Frame | None = None) -> None:
        super().__init__()
        self.of = of


def drop(blocks: Sequence[Block]) -> None:
    """Leave no use of a value in blocks that are compiled again."""
    for block in blocks:
        block.erase(safe_erase=False)


def finish(b: Builder, carried: Carried, env: dict[str, Any], body: Sequence[ast.stmt]) -> list[SSAValue]:
    """Return the values at the end of a loop's body, of the carried types.

    Raises:
        Retry: when a Python number before the loop should have had another type.
        TypeMismatchError: `loop-type-changed`.
        LanguageError: `cannot-carry`.
    """
    results: list[SSAValue] = []
    position = 0
    for name in carried.names:
        before, after = carried.initial[name], env[name]
        old, new = list(leaves(before)), list(leaves(after))
        if isinstance(after, Undefined) or len(old) != len(new):
            raise _changed(b, body, name, before, after)
        for was, now in zip(old, new, strict=True):
            expected = carried.types[position]
            if expected is None:
                if not same(was, now):
                    raise _cannot_carry(b, body, name, was)
            elif isinstance(now, Tile | Scalar) and alike(now.type, expected):
                results.append(as_type(b, now, expected))
            elif is_number(now) and position in carried.guessed:
                carried.guessed.discard(position)
                carried.types[position] = _carried_type(was)
                raise Retry
            elif is_number(now) and not isinstance(was, Tile):
                results.append(_number(b, carried, position, was, cast(float, now), expected))
            elif is_number(was) and isinstance(now, Scalar):
                carried.guessed.discard(position)
                carried.types[position] = now.type
                raise Retry
            else:
                raise _changed(b, body, name, was, now)
            position += 1
    return results


def _number(
    b: Builder, carried: Carried, position: int, was: Any, now: bool | int | float, expected: Attribute
) -> SSAValue:
    if is_number(was) and isinstance(now, float) and expected == index:
        carried.types[position] = default_element(now)
        raise Retry
    return constant(b, now, expected)


def show_type(value: Any) -> str:
    """Return a carried value as diagnostics show it."""
    if isinstance(value, Tile):
        return describe(value.type)
    return show(value)


def _show_after(value: Any) -> str:
    return "not defined on every path" if isinstance(value, Undefined) else show_type(value)


def _last_assignment(body: Sequence[ast.stmt], name: str) -> ast.AST:
    found: ast.AST = body[0]
    for statement_ in body:
        for node in ast.walk(statement_):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and name in names_bound(node):
                found = node
    return found


def _called(name: str) -> str:
    return "what the function returns" if name == RESULT else repr(name)


def _changed(b: Builder, body: Sequence[ast.stmt], name: str, before: Any, after: Any) -> TypeMismatchError:
    help = "give it one type before and after"
    if isinstance(after, Tile) and (not isinstance(before, Tile) or before.shape != after.shape):
        help = f"start with a tile of that type: ts.tile.zeros({after.shape}, ts.{after.dtype})"
    elif isinstance(after, Value) and isinstance(before, Value) and before.dtype != after.dtype:
        help = f"convert it in the body with .to(ts.{before.dtype}), or start with ts.{after.dtype}"
    error = TypeMismatchError(
        f"{_called(name)} is {show_type(before)} before the loop and {_show_after(after)} after its body",
        code="loop-type-changed",
        help=help,
    )
    error.location = b.frame.locate(_last_assignment(body, name))
    return error


def _cannot_carry(b: Builder, body: Sequence[ast.stmt], name: str, value: Any) -> LanguageError:
    error = LanguageError(
        f"{_called(name)} ({show(value)}) is rebound in a loop",
        code="cannot-carry",
        help=f"what is in a buffer is a tile once it is read: {name} = ts.tile.load({name}) before the loop; a stage "
        "is chosen by its number: allocate (stages, M, N) and index it"
        if isinstance(value, Shared)
        else store_help((value,), "only tiles and numbers can change from one iteration to the next"),
    )
    error.location = b.frame.locate(_last_assignment(body, name))
    return error


class Attempts:
    """The attempts at compiling one loop, each of which may teach the next one types.

    A loop inside is compiled again with each. It starts from the types it had before, or the work would double with
    each level.

    Args:
        b: the builder.
        node: the loop.
        carried: what it carries.
    """

    def __init__(self, b: Builder, node: ast.For | ast.While, carried: Carried) -> None:
        self._b, self._carried = b, carried
        self._outer, self._outside = b.loops, b.carrying
        self._path = (*self._outer.path, (node, self._outer.count))
        self._outer.count += 1
        carried.guess(b.loop_types.get(self._path, ()))

    def __iter__(self) -> Iterator[None]:
        """Yield once per attempt, until the caller leaves the loop; each attempt ends with `leave`.

        Raises:
            LanguageError: `loop-type-changed` when the types do not settle.
        """
        tried = 0
        while tried < 3 * len(self._carried.types) + 3:
            tried += 1
            self._b.loops = LoopPlace(self._path)
            self._b.carrying = (*self._outside, self._carried)
            yield
        raise LanguageError(
            f"the types of {', '.join(map(_called, self._carried.names))} change with each iteration",
            code="loop-type-changed",
            help="start with values of the types that the loop's body gives",
        )

    def leave(self) -> None:
        """End an attempt: remember what it taught."""
        self._b.loops, self._b.carrying = self._outer, self._outside
        self._b.loop_types[self._path] = tuple(self._carried.types)


def carried_by(b: Builder, node: ast.For | ast.While, also: frozenset[str]) -> Carried:
    """Return the names that a loop rebinds and that are read in a later iteration or after it."""
    liveness, env = b.frame.liveness, b.frame.env
    needed = liveness.exposed(node.body) | liveness.after(node) | also
    bound = liveness.assigned(node.body) | (names_bound(node.target) if isinstance(node, ast.For) else NONE)
    bound -= {stop_of(node)}
    names = sorted(name for name in bound & needed if not isinstance(env.get(name, GONE), Undefined))
    return Carried(tuple(names), {name: env[name] for name in names})
