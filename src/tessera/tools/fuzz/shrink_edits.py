"""The smaller programs next to a program: what is left out, unwrapped, replaced by a part of it, or resized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar, cast

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.types import TreeError, Type, int_range, is_float

_N = TypeVar("_N", bound=tree.Node)

Edit = Callable[[], tree.Program]
"""Makes a smaller program; raises TreeError where that is none of the language."""

_BLOCKS = ("body", "then", "orelse")
_ORDERING = (tree.Commit, tree.Wait, tree.Barrier)


def size(program: tree.Program) -> int:
    """Return how large a program is: nodes first, then elements."""
    shapes = sum(sum(tensor.shape) for tensor in program.tensors)
    return 1000 * sum(1 for _ in tree.walk(program)) + shapes


def edits(program: tree.Program) -> Iterator[Edit]:
    """Yield the edits of a program, those that leave out most first."""
    yield from _without_grids(program)
    yield from _without_statements(program)
    yield from _unwrapped(program)
    yield from _settings(program)
    yield from _smaller_expressions(program)
    yield from _resized(program)
    yield from _retyped(program)
    yield from _tidied(program)


def cleaned(program: tree.Program) -> tree.Program:
    """Return the program without parameters and helpers that nothing names."""
    used = {node.function for node in tree.walk(program) if isinstance(node, tree.Call)}
    helpers = tuple(helper for helper in program.helpers if helper.name in used)
    program = replace(program, helpers=helpers)
    named = _names(program)
    dims = {node.name for node in tree.walk(program) if isinstance(node, tree.Name)}
    params: list[tree.Param] = []
    for param in program.params:
        others = (t for t in program.tensors if t is not param and t.name in named)
        known = {dim for tensor in others for dim in _dims_of(tensor)}
        alone = isinstance(param, tree.Tensor) and any(d in dims and d not in known for d in _dims_of(param))
        if param.name in named or alone:
            params.append(param)
    return replace(program, params=tuple(params))


def _dims_of(tensor: tree.Tensor) -> set[str]:
    """Return the names of dimensions whose sizes a tensor may decide."""
    return {dim.name if isinstance(dim, tree.Spelled) else dim for dim in tensor.dims if not isinstance(dim, int)}


def _names(program: tree.Program) -> set[str]:
    found: set[str] = set()
    for node in tree.walk(program):
        for part in ("name", "tensor"):
            value = None if isinstance(node, tree.Param) else getattr(node, part, None)
            if isinstance(value, str):
                found.add(value)
    return found


# Blocks


def _without_grids(program: tree.Program) -> Iterator[Edit]:
    for number in range(len(program.grids)):
        if len(program.grids) > 1:
            rest = program.grids[:number] + program.grids[number + 1 :]
            yield lambda rest=rest: cleaned(replace(program, grids=rest))


def _blocks(program: tree.Program) -> Iterator[tuple[tree.Node, str]]:
    for node in tree.walk(program):
        for name in _BLOCKS:
            if isinstance(getattr(node, name, None), tuple) and getattr(node, name):
                yield node, name


def _without_statements(program: tree.Program) -> Iterator[Edit]:
    copies = any(isinstance(node, tree.CopyAsync) for node in tree.walk(program))
    blocks = list(_blocks(program))
    longest = max((len(getattr(node, name)) for node, name in blocks), default=0)
    while longest:
        for node, name in blocks:
            block = cast(tree.Block, getattr(node, name))
            for first in range(0, len(block), longest):
                part = block[first : first + longest]
                # Without what orders them, copies have no meaning.
                if copies and any(isinstance(statement, _ORDERING) for statement in part):
                    continue
                left = block[:first] + block[first + longest :]
                yield lambda node=node, name=name, left=left: cleaned(
                    exchanged(program, node, _with(node, **{name: left}))
                )
        longest //= 2


def _with(node: _N, **changes: Any) -> _N:
    return cast(_N, replace(cast(Any, node), **changes))


def _unwrapped(program: tree.Program) -> Iterator[Edit]:
    for node, name in _blocks(program):
        for at, statement in enumerate(cast(tree.Block, getattr(node, name))):
            for inner in _inside(statement):

                def edit(node: tree.Node = node, name: str = name, at: int = at, inner: Any = inner) -> Any:
                    block = getattr(node, name)
                    changed = _with(node, **{name: block[:at] + inner + block[at + 1 :]})
                    return cleaned(exchanged(program, node, changed))

                yield edit
            if isinstance(statement, tree.For):
                for shorter in _shorter(statement):
                    yield lambda old=statement, new=shorter: exchanged(program, old, new)


def _inside(statement: tree.Stmt) -> Iterator[tree.Block]:
    """Yield what may stand in the place of a loop or branch."""
    if isinstance(statement, tree.For):
        yield tuple(
            _named(part, statement.var, statement.lower if statement.lower.type.weak else None)
            for part in _staying(statement.body)
        )
    elif isinstance(statement, tree.While):
        yield _staying(statement.body)
    elif isinstance(statement, tree.If):
        yield statement.then
    if isinstance(statement, tree.For | tree.While | tree.If) and statement.orelse:
        yield statement.orelse


def _staying(body: tree.Block) -> tree.Block:
    """Return a loop's body without the jumps that leave it or an iteration."""
    kept: list[tree.Stmt] = []
    for statement in body:
        if isinstance(statement, tree.If):
            statement = replace(statement, then=_staying(statement.then), orelse=_staying(statement.orelse))
        if not isinstance(statement, tree.Break | tree.Continue):
            kept.append(statement)
    return tuple(kept)


def _named(node: _N, name: str, value: tree.Expr | None) -> _N:
    """Return a node in which a name is a value; unchanged when there is none."""
    if value is None:
        return node
    if isinstance(node, tree.Name) and node.name == name:
        return cast(_N, value)
    return tree.rebuild(node, tuple(_named(part, name, value) for part in tree.children(node)))


def _shorter(loop: tree.For) -> Iterator[tree.For]:
    upper = loop.upper
    if isinstance(upper, tree.Number) and not isinstance(upper, tree.Constexpr):
        for count in (1, int(upper.value) // 2):
            if 0 < count < upper.value:
                yield replace(loop, upper=tree.Number(count))
    if isinstance(upper, tree.Name):
        yield replace(loop, lower=tree.Number(0), upper=tree.Number(1), step=tree.Number(1))
        yield replace(loop, lower=tree.Number(0), upper=tree.Number(2), step=tree.Number(1))


# What decides how it is compiled and what it runs on


def _settings(program: tree.Program) -> Iterator[Edit]:
    if program.knobs:
        yield lambda: replace(program, knobs=())
    for number in range(len(program.knobs)):
        knobs = program.knobs[:number] + program.knobs[number + 1 :]
        yield lambda knobs=knobs: replace(program, knobs=knobs)
    if program.profile != "fast":
        yield lambda: replace(program, profile="fast")
    if program.asserts:
        yield lambda: replace(program, asserts=False)
    if program.assumes:
        yield lambda: replace(program, assumes=())
    for tensor in program.tensors:
        rank = len(tensor.shape)
        plain = tree.Layout(tuple(range(rank)), (1,) * rank)
        if tensor.layout != plain:
            yield partial(exchanged, program, tensor, replace(tensor, layout=plain))
        small = tree.Contents("small", 0 if tensor.dtype[0] in "ub" else -2, 1 if tensor.dtype == "bool" else 2)
        if tensor.contents.kind in ("wide", "special", "quarters"):
            yield partial(exchanged, program, tensor, replace(tensor, contents=small))


# Expressions


def _smaller_expressions(program: tree.Program) -> Iterator[Edit]:
    """Replace expressions by parts of the same type, or by a constant; never where they say what is accessed."""
    for owner in (*program.helpers, *program.grids):
        for expr in _values(owner):
            for smaller in _replacements(expr):
                yield lambda old=expr, new=smaller: cleaned(exchanged(program, old, new))


def _values(node: tree.Node) -> Iterator[tree.Expr]:
    """Yield expressions that give values, parents first."""
    for part in tree.children(node):
        if isinstance(part, tree.At | tree.Span | tree.Pick | tree.NewAxis):
            continue
        if isinstance(part, tree.Expr):
            if isinstance(node, tree.For | tree.Grid | tree.While) or _addresses(node, part):
                continue
            yield part
        yield from _values(part)


def _addresses(node: tree.Node, part: tree.Expr) -> bool:
    return getattr(node, "stage", None) is part or (isinstance(node, tree.CausalMask) and part is not node.scores)


def _replacements(expr: tree.Expr) -> Iterator[tree.Expr]:
    if isinstance(expr, tree.Name | tree.Number) or tree.has_effects(expr):
        return
    wanted = expr.type
    for part in tree.walk(expr):
        if part is not expr and isinstance(part, tree.Expr) and part.type == wanted:
            yield part
    for part in tree.children(expr):
        if isinstance(part, tree.Expr) and not part.type.weak and not isinstance(expr, tree.Cast | tree.Call):
            if part.type.shape == wanted.shape and not wanted.policy:
                yield tree.Cast(part, wanted.dtype)
    if wanted.shape and not wanted.policy and not isinstance(expr, tree.Full):
        yield tree.Full(wanted.shape, constant(wanted), wanted.dtype)
    elif not wanted.shape and wanted.dtype != "bool" and isinstance(expr, tree.Apply | tree.Reduce | tree.Load):
        yield tree.Cast(tree.Reduce("max", tree.Full((1,), constant(wanted), wanted.dtype), None), wanted.dtype)


def constant(type_: Type) -> tree.Number:
    """Return a number that every dtype holds."""
    if type_.dtype == "bool":
        return tree.Number(True)
    return tree.Number(1.0) if is_float(type_.dtype) else tree.Number(1)


# Sizes and dtypes, everywhere at once


def _resized(program: tree.Program) -> Iterator[Edit]:
    found: set[int] = {size for tensor in program.tensors for size in tensor.shape}
    for node in tree.walk(program):
        if isinstance(node, tree.Expr) and not isinstance(node, tree.Number):
            found.update(node.type.shape)
        if isinstance(node, tree.Grid):
            found.update(node.blocks)
    for old in sorted(found, reverse=True):
        for new in dict.fromkeys((1, 2, 3, 4, 8, old // 2, old - 1)):
            if 0 < new < old:
                yield lambda old=old, new=new: _resize(program, old, new)


def _resize(node: _N, old: int, new: int) -> _N:
    """Return a node in which every size is another; numbers that are sizes of spans and grids go with them."""

    def of(value: int) -> int:
        return new if value == old else value

    def shaped(value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(of(item) if isinstance(item, int) else item for item in value)

    node = tree.rebuild(node, tuple(_resize(part, old, new) for part in tree.children(node)))
    changes: dict[str, Any] = {}
    for name in ("shape", "blocks", "dims"):
        value = getattr(node, name, None)
        if isinstance(value, tuple) and any(part.name == name for part in fields(node)):
            changes[name] = shaped(cast(tuple[Any, ...], value))
    if isinstance(node, tree.Span):
        changes["size"] = of(node.size)
    elif isinstance(node, tree.Arange) and node.stop - node.start == old:
        changes["stop"] = node.start + new
    elif isinstance(node, tree.Grid):
        changes["extents"] = tuple(
            tree.Number(of(int(extent.value))) if type(extent) is tree.Number else extent for extent in node.extents
        )
    own = getattr(node, "own", None)
    if isinstance(own, Type):
        changes["own"] = replace(own, shape=shaped(own.shape))
    return _with(node, **changes) if changes else node


def _retyped(program: tree.Program) -> Iterator[Edit]:
    found = {tensor.dtype for tensor in program.tensors}
    for old in sorted(found - {"f32", "i32", "bool"}):
        yield partial(_retype, program, old, "f32" if is_float(old) else "i32")


def _retype(node: _N, old: str, new: str) -> _N:
    if isinstance(node, tree.Tensor) and node.dtype == old and not is_float(old):
        low, high = (max(bound, -4) if bound < 0 else min(bound, 4) for bound in int_range(old))
        node = cast(_N, replace(node, contents=replace(node.contents, kind="small", low=low, high=high)))
    node = tree.rebuild(node, tuple(_retype(part, old, new) for part in tree.children(node)))
    changes: dict[str, Any] = {}
    for name in ("dtype", "accumulator"):
        if getattr(node, name, None) == old and any(part.name == name for part in fields(node)):
            changes[name] = new
    own = getattr(node, "own", None)
    if isinstance(own, Type) and own.dtype == old:
        changes["own"] = replace(own, dtype=new)
    policy = getattr(node, "policy", "")
    if isinstance(policy, str) and policy.startswith(old):
        changes["policy"] = ""
    return _with(node, **changes) if changes else node


def _tidied(program: tree.Program) -> Iterator[Edit]:
    yield lambda: cleaned(program)
    for node in tree.walk(program):
        if isinstance(node, tree.Span) and node.step != 1:
            yield lambda old=node: exchanged(program, old, replace(old, step=1))
        if isinstance(node, tree.Tensor) and _dims_of(node):
            dims = {node.name for node in tree.walk(program) if isinstance(node, tree.Name)}
            if not dims & _dims_of(node):
                yield lambda old=node: exchanged(program, old, replace(old, dims=tuple(old.shape)))


def exchanged(node: _N, old: tree.Node, new: tree.Node) -> _N:
    """Return a node with one part, found by identity, replaced by another; all types are checked again."""
    if node is old:
        return cast(_N, new)
    if not any(part is old for part in tree.walk(node)):
        return node
    return tree.rebuild(node, tuple(exchanged(part, old, new) for part in tree.children(node)))


def _check_jumps(block: tree.Block, kinds: tuple[type[tree.Stmt], ...]) -> None:
    """Check that jumps stand last in their blocks, and where the language has them.

    Args:
        block: statements.
        kinds: jumps that may stand there.

    Raises:
        TreeError: there is another.
    """
    loops = (tree.Break, tree.Continue, *(kind for kind in kinds if kind is tree.Return))
    for number, statement in enumerate(block):
        if isinstance(statement, tree.Jump) and (number + 1 < len(block) or not isinstance(statement, kinds)):
            raise TreeError("a jump that the language does not have")
        if isinstance(statement, tree.For | tree.While):
            _check_jumps(statement.body, loops)
            _check_jumps(statement.orelse, kinds)
        elif isinstance(statement, tree.If):
            for part in (statement.then, statement.orelse):
                _check_jumps(part, () if statement.predicates else kinds)


def check_types(program: tree.Program) -> None:
    """Work out the type of every expression, and check where jumps stand.

    Raises:
        TreeError: one has none, or a jump stands where the language has none.
    """
    for number, grid in enumerate(program.grids):
        last = number + 1 == len(program.grids)
        _check_jumps(grid.body, (tree.Continue, *([tree.Return] if last else [])))
    for helper in program.helpers:
        _check_jumps(helper.body, (tree.Return,))
    for node in tree.walk(program):
        if isinstance(node, tree.Expr):
            _ = node.type
        if isinstance(node, tree.Reduce | tree.Scan | tree.Exchange | tree.Sort) and not node.x.type.shape:
            raise TreeError("a reduction of a scalar")
        if isinstance(node, tree.Combined) and not node.xs[0].type.shape:
            raise TreeError("a combination of a scalar")
