"""The text of a function: read when it is decorated, and checked against the code that Python made of it.

A kernel means what its module said when it was imported. A file may be edited between that and the first call, or
before it is read at all, as by a factory that decorates its kernels late; so the text is compiled again, and taken only
when that gives the function's own code.
"""

from __future__ import annotations
import __future__

import ast
import dis
import linecache
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary
from zipimport import zipimporter

from tessera.data import dataclass
from tessera.digest import sha256
from tessera.errors import Frame, LanguageError, Location
from tessera.frontend.exact import exact, same

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_OUTER = "__tessera_outer__"


@dataclass(frozen=True, slots=True)
class FunctionText:
    """The text of one function.

    Args:
        file: path of its file.
        text: its definition, decorators included; a nested one stands under a made-up header.
        line_offset: added to a line of the text to get the line in the file.
        digest: stands for all of that.
    """

    file: str
    text: str
    line_offset: int
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # The file and line are part of it: messages of device asserts carry them.
        whole = f"{self.file}\0{self.line_offset}\0{self.text}"
        object.__setattr__(self, "digest", sha256(whole.encode(errors="surrogatepass")).hexdigest())


_files: WeakKeyDictionary[FunctionType, Sequence[str]] = WeakKeyDictionary()
_texts: WeakKeyDictionary[FunctionType, FunctionText] = WeakKeyDictionary()


def keep_text(function: FunctionType) -> None:
    """Keep the lines of a function's file as they are now; costs a look at the file's time once it has been read."""
    if function not in _files:
        file = function.__code__.co_filename
        linecache.checkcache(file)
        # The list is shared by all functions of the file; linecache makes a new one when the file has changed.
        _files[function] = linecache.getlines(file, function.__globals__)


def text_of(function: FunctionType) -> FunctionText:
    """Return the text of a function.

    Raises:
        LanguageError: `no-source` or `source-changed`.
    """
    found = _texts.get(function)
    if found is None:
        keep_text(function)
        found = _texts[function] = _find(function, _files[function])
    return found


def _find(function: FunctionType, lines: Sequence[str]) -> FunctionText:
    code = function.__code__
    first = code.co_firstlineno - 1
    if not lines or code.co_name == "<lambda>":
        raise no_source(function)
    for block in _blocks(lines, first):
        context = _context(function, block)
        made, whole = _compiled(context + block, code), "".join(lines)
        if made is None:
            continue
        alone = _agrees(made, context + block, context.count("\n"), function)
        if alone or _agrees(_compiled(whole, code), whole, first, function):
            header = "if 1:\n" if block[0].isspace() else ""
            return FunctionText(code.co_filename, header + block, first - header.count("\n"))
        break
    raise LanguageError(
        f"the source of {function.__name__} is not what Python has loaded",
        code="source-changed",
        location=_first_line(function),
        help="the file has changed since it was imported: start the program again",
    )


def _blocks(lines: Sequence[str], first: int) -> Iterator[str]:
    """Yield what may be the definition that starts at line `first` (from 0), the shortest text first.

    It ends at a line of its own indentation. `inspect.getsource` finds the end by tokenising, which costs a kernel
    loaded from the disk cache more than all else.
    """
    if first >= len(lines):
        return
    indent = len(lines[first]) - len(lines[first].lstrip())
    for end in range(first + 1, len(lines) + 1):
        if end < len(lines):
            bare = lines[end].lstrip()
            if not bare or bare.startswith("#") or len(lines[end]) - len(bare) > indent:
                continue
        yield "".join(lines[first:end])


def _context(function: FunctionType, block: str) -> str:
    """Return what to write above a definition so that Python makes the same code of it as in its file, mostly.

    That is its closure, its class, and which names are imported: Python calls functions of modules in another way.
    """
    code = function.__code__
    found = {name: function.__globals__.get(name) for name in code.co_names if name.isidentifier()}
    names = [name for name, value in found.items() if isinstance(value, ModuleType)]
    imports = f"import {', '.join(names)}\n" if names else ""
    indent = block[: len(block) - len(block.lstrip())]
    owner = code.co_qualname.split(".")[-2:-1]
    inside = f"class {owner[0]}:\n" if owner and owner != ["<locals>"] else ""
    if code.co_freevars and indent:
        outer = f"{imports}def {_OUTER}({', '.join(code.co_freevars)}):\n"
        return f"{outer}{indent[0]}{inside}" if inside and len(indent) > 1 else outer
    return imports + (inside or "if 1:\n" if indent else "")


def _compiled(text: str, code: CodeType, asserts: bool = True) -> CodeType | None:
    """Return the code of a text, with or without its assertions; None when it does not parse."""
    flags = code.co_flags & _FUTURE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given at the import
        try:
            source: Any = text if asserts else _without_asserts(text, flags)
            return compile(source, code.co_filename, "exec", flags, dont_inherit=True)
        except SyntaxError:
            return None


def _without_asserts(text: str, flags: int) -> ast.Module:
    tree = cast("ast.Module", compile(text, "", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True))
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                parts = cast("list[Any]", value)
                bare = [ast.copy_location(ast.Pass(), one) if isinstance(one, ast.Assert) else one for one in parts]
                setattr(node, name, bare)
    return tree


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside of one, the outer ones first."""
    inner = [value for value in code.co_consts if isinstance(value, CodeType)]
    yield from inner
    for one in inner:
        yield from _codes_in(one)


def _agrees(made: CodeType | None, text: str, above: int, function: FunctionType) -> bool:
    """Return whether the definition below so many lines of a text, and of its code, is a function's."""
    code = function.__code__
    if any(_alike(one, code) for one in _definitions(made, above, code)):
        return True
    if not _is_rewritten(function):
        return False
    bare = _compiled(text, code, asserts=False)
    return any(_contains(code, one) for one in _definitions(bare, above, code))


def _definitions(made: CodeType | None, above: int, code: CodeType) -> list[CodeType]:
    """Return the definitions below so many lines of a compiled text that have a code's name."""
    inner = () if made is None else _codes_in(made)
    return [one for one in inner if (one.co_name, one.co_firstlineno) == (code.co_name, above + 1)]


def _is_rewritten(function: FunctionType) -> bool:
    """Return whether a tool may have compiled a function's file that adds to it; pytest rewrites asserts."""
    loader = function.__globals__.get("__loader__")
    # Python's own compile files as they are; without any, code is compiled by hand, or in a notebook.
    return not (loader is None or isinstance(loader, type) or type(loader) in (SourceFileLoader, zipimporter))


def _alike(made: Any, loaded: Any) -> bool:
    """Return whether two constants of code are the same, code objects without regard to lines."""
    if not isinstance(made, CodeType) or not isinstance(loaded, CodeType):
        if isinstance(made, frozenset) and isinstance(loaded, frozenset):  # their order may differ
            return made == loaded
        return same(made, loaded)
    return (
        made.co_code == loaded.co_code
        and made.co_names == loaded.co_names
        and made.co_varnames == loaded.co_varnames
        and made.co_freevars == loaded.co_freevars
        and made.co_cellvars == loaded.co_cellvars
        and len(made.co_consts) == len(loaded.co_consts)
        and all(map(_alike, made.co_consts, loaded.co_consts))
    )


def _contains(loaded: CodeType, made: CodeType) -> bool:
    """Return whether code that a tool may have added to does all that the text says, in its order."""
    count = made.co_argcount + made.co_kwonlyargcount
    left = _steps(loaded)
    return (
        loaded.co_varnames[:count] == made.co_varnames[:count]
        and set(made.co_varnames) <= set(loaded.co_varnames)
        and all(step in left for step in _steps(made))  # each is looked for behind the one before
    )


def _steps(code: CodeType) -> Iterator[Hashable]:
    """Yield what a code computes: operators, names outside of it, and numbers."""
    for one in dis.get_instructions(code):
        if one.opname.startswith(("BINARY_", "UNARY_", "COMPARE_", "STORE_SUB", "STORE_SLICE")):
            yield one.opname, one.argrepr
        elif one.opname.startswith("LOAD_") and isinstance(one.argval, int | float):
            yield exact(one.argval)
        elif one.opname.startswith(("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF")):
            yield one.argval


def _first_line(function: FunctionType) -> Location:
    code = function.__code__
    return Location(Frame(code.co_filename, code.co_firstlineno, function=function.__name__))


def no_source(function: FunctionType) -> LanguageError:
    """Return the error for a function whose text Python cannot find."""
    where = _first_line(function)
    if function.__name__ == "<lambda>":
        return LanguageError("a lambda cannot be a kernel", code="no-source", location=where, help="use def")
    return LanguageError(
        f"the source of {function.__name__} cannot be found",
        code="no-source",
        location=where,
        help="define the function with def in a file; code made by exec() has no source to compile",
    )
