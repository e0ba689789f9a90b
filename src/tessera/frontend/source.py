"""From a Python function to its syntax tree, with the user's file, line and column for every node."""

from __future__ import annotations

import ast
from itertools import pairwise
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tessera.data import dataclass
from tessera.errors import Frame, LanguageError, Location
from tessera.frontend.text import FunctionText, no_source, text_of

if TYPE_CHECKING:
    from tessera.frontend.liveness import Liveness, Names


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource:
    """The syntax tree of one function.

    Args:
        name: the function's name.
        node: its definition, without jumps (`flow`).
        file: path of its file.
        line_offset: added to a node's line to get the line in the file.
        lines: source lines that the tree was parsed from.
        liveness: which names live on after each statement.
        locals: the names that the function binds somewhere.
        returned: the names that its last line returns.
    """

    name: str
    node: ast.FunctionDef
    file: str
    line_offset: int
    lines: tuple[str, ...]
    liveness: Liveness
    locals: Names
    returned: tuple[str, ...]

    def locate(self, node: Any) -> Location:
        """Return where `node` stands in the user's file."""
        text = self.lines[int(node.lineno) - 1]
        start = _characters(text, node.col_offset)
        # A node over several lines is underlined to the end of its first.
        end = _characters(text, node.end_col_offset) if node.end_lineno == node.lineno else len(text.rstrip())
        line = node.lineno + self.line_offset
        return Location(Frame(self.file, line, start + 1, end + 1, self.name))

    def header(self) -> Location:
        """Return the location of the `def` line's name."""
        text = self.lines[self.node.lineno - 1]
        start = text.find(self.node.name, self.node.col_offset)
        line = self.node.lineno + self.line_offset
        return Location(Frame(self.file, line, start + 1, start + 1 + len(self.node.name), self.name))


def _characters(text: str, offset: int) -> int:
    """Convert the tree's UTF-8 byte offset to characters."""
    return len(text.encode()[:offset].decode(errors="ignore"))


_cache: WeakKeyDictionary[FunctionType, FunctionSource] = WeakKeyDictionary()
"""What it holds does not name the functions, which would then live for ever."""


def source_of(function: FunctionType) -> FunctionSource:
    """Return the syntax tree of `function`.

    Raises:
        LanguageError: `no-source` when Python cannot find the text, such as for a function made by `exec`;
            `source-changed` when the text is not what the function was made from; `nesting-depth` when Python's
            parser, or the walk over its tree, needs more stack than there is.
    """
    found = _cache.get(function)
    if found is None:
        try:
            found = _parse(function, text_of(function))
        except (RecursionError, MemoryError):
            found = _parsed_alone(function)
        _cache[function] = found
    return found


def _parsed_alone(function: FunctionType) -> FunctionSource:
    """Parse a function on a stack of its own, as helpers that call each other may leave little of this one.

    Raises:
        LanguageError: `nesting-depth` when that does not hold the tree either.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: _parse(function, text_of(function)))
    if isinstance(done.exception(), RecursionError | MemoryError):
        code = function.__code__
        raise LanguageError(
            f"{function.__name__} is nested too deeply to read",
            code="nesting-depth",
            location=Location(Frame(code.co_filename, code.co_firstlineno, function=function.__name__)),
            help="give parts of the expression names, or put them into helpers",
        )
    return done.result()


def _parse(function: FunctionType, text: FunctionText) -> FunctionSource:
    # A process that finds its kernels in the cache reads no tree.
    from tessera.frontend.flow import rewrite
    from tessera.frontend.liveness import NONE, Liveness, names_bound
    from tessera.frontend.regions import flatten

    for node in ast.walk(ast.parse(text.text)):
        if isinstance(node, ast.FunctionDef) and node.name == function.__code__.co_name:
            _mangle(node, function.__code__.co_qualname)
            lines = tuple(text.text.splitlines())
            names, returned = NONE.union(*map(names_bound, node.body)), _returned(node.body[-1])
            flatten(node)
            rewrite(node)
            name, live = function.__name__, Liveness(node)
            return FunctionSource(name, node, text.file, text.line_offset, lines, live, names, returned)
    raise no_source(function)


def _returned(last: ast.stmt) -> tuple[str, ...]:
    """Return the names that a line returns."""
    if not isinstance(last, ast.Return):
        return ()
    parts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    return tuple(part.id for part in parts if isinstance(part, ast.Name))


_NAMED: dict[type[ast.AST], str] = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}
"""Where names stand that Python renames; names of arguments in a call are left as they are."""


def _mangle(tree: ast.FunctionDef, path: str) -> None:
    """Rename private names, as Python does in a class: `__x` inside `class B` is `_B__x`.

    Args:
        tree: a function's definition.
        path: where it stands, as `co_qualname` says.
    """
    parts = path.split(".")
    classes = [part for part, inner in pairwise(parts) if "<locals>" not in (part, inner)]
    owner = classes[-1].lstrip("_") if classes else ""
    if not owner:
        return
    for node in ast.walk(tree):
        field = _NAMED.get(type(node))
        name = getattr(node, field) if field else ""
        if field and name.startswith("__") and not name.endswith("__"):
            setattr(node, field, f"_{owner}{name}")
