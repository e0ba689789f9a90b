"""From a Python function to its syntax tree, with the user's file, line and column for every node."""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from tessera.errors import Frame, LanguageError, Location
from tessera.frontend.liveness import Liveness, Names, assigned


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource:
    """The syntax tree of one function.

    Args:
        function: the function itself.
        node: its definition.
        file: path of its file.
        line_offset: added to a node's line to get the line in the file.
        lines: source lines that the tree was parsed from.
        liveness: which names live on after each statement.
        locals: the names that the function binds somewhere.
    """

    function: Any
    node: ast.FunctionDef
    file: str
    line_offset: int
    lines: tuple[str, ...]
    liveness: Liveness
    locals: Names

    def locate(self, node: Any) -> Location:
        """Return where `node` stands in the user's file."""
        text = self.lines[int(node.lineno) - 1]
        start = _characters(text, node.col_offset)
        # A node over several lines is underlined to the end of its first.
        end = _characters(text, node.end_col_offset) if node.end_lineno == node.lineno else len(text.rstrip())
        line = node.lineno + self.line_offset
        return Location(Frame(self.file, line, start + 1, end + 1, self.function.__name__))

    def header(self) -> Location:
        """Return the location of the `def` line's name."""
        text = self.lines[self.node.lineno - 1]
        start = text.find(self.node.name, self.node.col_offset)
        line = self.node.lineno + self.line_offset
        name = self.function.__name__
        return Location(Frame(self.file, line, start + 1, start + 1 + len(self.node.name), name))


def _characters(text: str, offset: int) -> int:
    """Convert the tree's UTF-8 byte offset to characters."""
    return len(text.encode()[:offset].decode(errors="ignore"))


_cache: WeakKeyDictionary[FunctionType, FunctionSource] = WeakKeyDictionary()


def source_of(function: FunctionType) -> FunctionSource:
    """Return the syntax tree of `function`.

    Raises:
        LanguageError: `no-source` when Python cannot find the text, such as for a function made by `exec`.
    """
    found = _cache.get(function)
    if found is None:
        found = _cache[function] = _parse(function)
    return found


def _parse(function: FunctionType) -> FunctionSource:
    try:
        lines, first = inspect.findsource(function)
    except (OSError, TypeError):
        raise _no_source(function) from None
    found = _block(lines, first)
    if found is None:
        raise _no_source(function)
    tree, text, offset = found
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            file = inspect.getsourcefile(function) or function.__code__.co_filename
            return FunctionSource(
                function, node, file, offset, tuple(text.splitlines()), Liveness(node), assigned(node.body)
            )
    raise _no_source(function)


def _block(lines: list[str], first: int) -> tuple[ast.Module, str, int] | None:
    """Return the definition that starts at line `first` (from 0): its tree, text and the line before the text.

    The end is the first line at the definition's own indentation up to which the text parses. `inspect.getsource`
    finds it by tokenising, which costs a kernel loaded from the disk cache more than all else.
    """
    indent = len(lines[first]) - len(lines[first].lstrip())
    # A nested function keeps its indentation under a made-up header, so columns stay the user's.
    header, offset = ("if 1:\n", first - 1) if indent else ("", first)
    for end in range(first + 1, len(lines) + 1):
        if end < len(lines):
            bare = lines[end].lstrip()
            if not bare or bare.startswith("#") or len(lines[end]) - len(bare) > indent:
                continue
        text = header + "".join(lines[first:end])
        with suppress(SyntaxError):
            return ast.parse(text), text, offset
    return None


def _no_source(function: FunctionType) -> LanguageError:
    code = function.__code__
    where = Location(Frame(code.co_filename, code.co_firstlineno, function=function.__name__))
    if function.__name__ == "<lambda>":
        return LanguageError("a lambda cannot be a kernel", code="no-source", location=where, help="use def")
    return LanguageError(
        f"the source of {function.__name__} cannot be found", code="no-source", location=where,
        help="define the function with def in a file; code made by exec() has no source to compile",
    )  # fmt: skip
