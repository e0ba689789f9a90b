"""Rewrites `break`, `continue`, `return` and the `else` of loops in a function's syntax tree to branches and flags.

    for i in range(n):              for i in range(n):      # ends once `stop` is true
        if a:                           if a:
            break                           stop = True
        f()                             else:
        if b:                               f()
            if c:                           if b:
                continue                        if c:
            g()                                     skip = True
        h()                                     else:
                                                    g()
                                            if not skip:
                                                h()

What follows a branch that always jumps goes into the other branch. A flag is tested only where a branch may jump and
may not. Flags are names like others, so a jump whose condition is a constant costs nothing, and loops carry the flags
that differ at run time. Every made node has the place of the user's statement that it stands for. A function without
jumps keeps its tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TypeVar, cast

RESULT = "$result"
"""The name that holds what a function returns."""
DONE = "$done"
"""The flag of a function that has returned."""

_N = TypeVar("_N", bound=ast.AST)
_Loop = ast.For | ast.While
_JUMPS: dict[type[ast.AST], str] = {ast.Break: "break", ast.Continue: "continue", ast.Return: "return"}


class Give(ast.Assign):
    """Binds `RESULT`, as `return` does; `implicit` at the end of a function that does not return there."""

    implicit: bool = False


class Reset(ast.Assign):
    """Clears the flag of what a loop's iteration skips."""


class Jump(ast.Assign):
    """Sets the flags of a jump, whose keyword is `kind`."""

    kind: str


class Split(ast.If):
    """An `if` with the statements after it in the branch that goes on."""


class Guard(ast.If):
    """The statements after a branch that may have jumped: they are its `orelse`, its test is the flag."""


class LeftFor(ast.For):
    """A `for` loop that a jump may leave."""

    stop: str
    """The flag that ends it."""
    breaks: tuple[ast.stmt, ...]
    """Its own `break` statements."""
    returns: tuple[ast.stmt, ...]
    """The `return` statements in it."""
    is_last: bool
    """Whether nothing of the function follows it."""


class LeftWhile(ast.While):
    """A `while` loop that a jump may leave."""

    stop: str
    """The flag that ends it."""
    returns: tuple[ast.stmt, ...]
    """The `return` statements in it."""


def is_flag(name: str) -> bool:
    """Return whether a name is a flag of jumps."""
    return name.startswith("$") and name != RESULT


def stop_of(node: ast.stmt) -> str | None:
    """Return the flag that ends a loop, None where no jump leaves it."""
    return node.stop if isinstance(node, LeftFor | LeftWhile) else None


def rewrite(function: ast.FunctionDef) -> None:
    """Replace the jumps of a function, and what loops have after `else`."""
    body = function.body
    if not any(_is_rewritten(node) for statement in body for node in _statements(statement)):
        return
    if any(isinstance(node, ast.Return) and node.value is not None for s in body for node in _statements(s)):
        body = [*body, *([] if _ends(body) else [_located(Give([_name(RESULT)], ast.Constant(None)), body[-1])])]
        if isinstance(body[-1], Give):
            body[-1].implicit = True
    made = _Rewriter().block(body, None, last=True)
    function.body = [_flag(ast.Assign, DONE, False, body[0]), *made]


def _is_rewritten(node: ast.stmt) -> bool:
    return isinstance(node, tuple(_JUMPS)) or (isinstance(node, ast.For | ast.While) and bool(node.orelse))


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and the statements in its branches and loops."""
    yield node
    if isinstance(node, ast.If | ast.For | ast.While):
        for part in (*node.body, *node.orelse):
            yield from _statements(part)


def _leaving(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the jumps that leave the statements; loops keep their own `break` and `continue`."""
    for statement in statements:
        if isinstance(statement, tuple(_JUMPS)):
            yield statement
        elif isinstance(statement, ast.If):
            yield from _leaving((*statement.body, *statement.orelse))
        elif isinstance(statement, ast.For | ast.While):
            yield from (jump for jump in _leaving(statement.body) if isinstance(jump, ast.Return))
            yield from _leaving(statement.orelse)


def _breaks(loop: _Loop) -> tuple[ast.stmt, ...]:
    return tuple(jump for jump in _leaving(loop.body) if isinstance(jump, ast.Break))


def is_endless(node: _Loop) -> bool:
    """Return whether only jumps leave a loop: `while True`."""
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _ends(statements: Sequence[ast.stmt]) -> bool:
    """Return whether the end of the statements is never reached."""
    for statement in statements:
        if isinstance(statement, tuple(_JUMPS)):
            return True
        if isinstance(statement, ast.If) and _ends(statement.body) and _ends(statement.orelse):
            return True
        if isinstance(statement, ast.While) and is_endless(statement) and not _breaks(statement):
            return True
    return False


def _located(made: _N, at: ast.AST) -> _N:
    """Give a made node, and what it is made of, the place of a node of the user."""
    for node in ast.walk(made):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return made


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _flag(kind: type[ast.Assign], name: str, value: bool, at: ast.AST) -> ast.Assign:
    return _located(kind([_name(name)], ast.Constant(value)), at)


def _otherwise(loop: _Loop, made: _Loop) -> list[ast.stmt]:
    """Return what runs after a loop that no `break` has left, given the loop before and after it is rewritten."""
    stop = stop_of(made)
    if stop is None or not loop.orelse or not _breaks(loop):
        return loop.orelse
    return [_located(ast.If(ast.Name(stop, ast.Load()), [], loop.orelse), loop.orelse[0])]


class _Place:
    """A loop around the statements that are rewritten.

    Args:
        stop: the flag that ends it.
        skip: the flag of what is left of an iteration.
    """

    def __init__(self, stop: str, skip: str) -> None:
        self.stop, self.skip = stop, skip
        self.is_tested = False


def _returns_the_same(loop: ast.For, rest: Sequence[ast.stmt]) -> bool:
    """Return whether a loop over a grid returns what its kernel returns right behind it, or says `return` alone.

    Then the programs that return early just end: what stands behind the loop returns for all of them.
    """
    match loop.iter, rest:
        case ast.Call(func=ast.Attribute(attr="grid") | ast.Name(id="grid")), [ast.Return(value=ast.expr() as value)]:
            pass
        case _:
            return False
    given = [jump.value for jump in _leaving(loop.body) if isinstance(jump, ast.Return)]
    same = ast.dump(value)
    return bool(given) and not loop.orelse and all(part is None or ast.dump(part) == same for part in given)


def _with_bare_returns(loop: ast.For) -> ast.For:
    """Return a loop whose `return` statements have no values."""
    return cast(ast.For, _BareReturns().visit(deepcopy(loop)))


class _BareReturns(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Leave the value out."""
        return ast.copy_location(ast.Return(None), node)


class _Rewriter:
    """Rewrites the statements of one function."""

    def __init__(self) -> None:
        self._loops = 0

    def block(self, statements: Sequence[ast.stmt], place: _Place | None, last: bool) -> list[ast.stmt]:
        """Return statements without jumps; those after one stay, and are an error when it is compiled.

        Args:
            statements: the statements.
            place: the loop around them.
            last: whether nothing of the function follows them.
        """
        made: list[ast.stmt] = []
        for at, statement in enumerate(statements):
            rest = statements[at + 1 :]
            if isinstance(statement, tuple(_JUMPS)):
                return [*made, *self._jump(statement, place), *rest]
            if isinstance(statement, ast.If) and any(_leaving([statement])):
                return [*made, *self._branch(statement, rest, place, last)]
            if isinstance(statement, ast.If):
                made.append(self._both(statement, place, False))
            elif isinstance(statement, ast.For) and place is None and last and _returns_the_same(statement, rest):
                return [*made, self._loop(_with_bare_returns(statement), True), *self.block(rest, place, last)]
            elif isinstance(statement, ast.For | ast.While):
                loop = self._loop(statement, last and not rest and not statement.orelse)
                made.append(loop)
                rest = [*_otherwise(statement, loop), *rest]
                returns = [jump for jump in _leaving(statement.body) if isinstance(jump, ast.Return)]
                if returns and (rest or place is not None):
                    return [*made, *self._returned(statement, returns[0], rest, place, last)]
                if statement.orelse:
                    return [*made, *self.block(rest, place, last)]
            else:
                made.append(statement)
        return made

    def _jump(self, node: ast.stmt, place: _Place | None) -> list[ast.stmt]:
        if not isinstance(node, ast.Return):
            return [self._set(_JUMPS[type(node)], place, node)]
        give = _located(Give([_name(RESULT)], node.value or ast.Constant(None)), node)
        return [give, self._set("return", place, node)]

    def _set(self, kind: str, place: _Place | None, at: ast.AST) -> Jump:
        flags = [DONE] if kind == "return" else []
        if place is not None:
            flags += [place.skip] if kind == "continue" else [place.skip, place.stop]
        jump = Jump([_name(flag) for flag in dict.fromkeys(flags)], ast.Constant(True))
        jump.kind = kind
        return _located(jump, at)

    def _both(self, node: ast.If, place: _Place | None, last: bool) -> ast.If:
        body, orelse = (self.block(part, place, last) for part in (node.body, node.orelse))
        return ast.copy_location(ast.If(node.test, body, orelse), node)

    def _branch(self, node: ast.If, rest: Sequence[ast.stmt], place: _Place | None, last: bool) -> list[ast.stmt]:
        """Return an `if` with jumps in it, and what follows."""
        ends = _ends(node.body), _ends(node.orelse)
        if any(ends):
            # After two branches that end, nothing is reached.
            body = node.body if ends[0] else [*node.body, *rest]
            orelse = node.orelse if ends[1] else [*node.orelse, *rest]
            both = self._both(ast.copy_location(ast.If(node.test, body, orelse), node), place, last)
            return [ast.copy_location(Split(both.test, both.body, both.orelse), node)]
        made = self._both(node, place, last and not rest)
        return [made, self._guard(node, rest, place, last)] if rest else [made]

    def _guard(self, at: ast.stmt, rest: Sequence[ast.stmt], place: _Place | None, last: bool) -> ast.If:
        if place is not None:
            place.is_tested = True
        flag = ast.Name(DONE if place is None else place.skip, ast.Load())
        return _located(Guard(flag, [], self.block(rest, place, last)), at)

    def _returned(
        self, loop: _Loop, at: ast.stmt, rest: Sequence[ast.stmt], place: _Place | None, last: bool
    ) -> list[ast.stmt]:
        """Return what follows a loop that a `return` may have left."""
        jump = self._set("return", place, at)
        if is_endless(loop) and not _breaks(loop):
            return [jump]
        return [_located(Split(ast.Name(DONE, ast.Load()), [jump], self.block(rest, place, last)), at)]

    def _loop(self, node: _Loop, last: bool) -> _Loop:
        if not any(_is_rewritten(part) for part in _statements(node)):
            return node
        self._loops += 1
        leaving = tuple(_leaving(node.body))
        breaks, returns = _breaks(node), tuple(jump for jump in leaving if isinstance(jump, ast.Return))
        place = _Place(f"$stop{self._loops}" if breaks else DONE, f"$skip{self._loops}")
        body = self.block(node.body, place, last=False)
        if place.is_tested:
            body.insert(0, _flag(Reset, place.skip, False, node.body[0]))
        made: _Loop
        if isinstance(node, ast.For):
            made = (LeftFor if breaks or returns else ast.For)(node.target, node.iter, body, [])
        else:
            made = (LeftWhile if breaks or returns else ast.While)(node.test, body, [])
        if isinstance(made, LeftFor | LeftWhile):
            made.stop, made.returns = place.stop, returns
        if isinstance(made, LeftFor):
            made.breaks, made.is_last = breaks, last
        return ast.copy_location(made, node)
