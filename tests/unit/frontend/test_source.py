"""Finding a function's text: the same lines as `inspect` finds, for every way to lay a definition out."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.source import source_of


def one_line(x):
    return x


def closing_bracket_at_the_margin(
    x: int,
    y: str = """a string
with a line at the margin
""",
) -> int:
    # a comment
    # at the margin
    table = [
        1,
        2,
    ]

    return x + table[0]


def made() -> Callable[..., Any]:
    def nested(x):
        """Has lines

        of text at the margin."""
        if x:
            return 1

        return 2

    return nested


class Holder:
    """Holds a method."""

    def method(self):
        return self

    after = 1


def passed_on(function: Any) -> Any:
    return function


@passed_on
@passed_on
def decorated(x):
    return x


last = None


def at_the_end(x):
    y = x
    return y


FUNCTIONS = [one_line, closing_bracket_at_the_margin, made(), Holder.method, decorated, at_the_end, made]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_text_is_what_inspect_finds(function: Any) -> None:
    source = source_of(function)
    lines, first = inspect.getsourcelines(function)
    text = [line.rstrip("\n") for line in lines if line.strip()]
    found = [line for line in source.lines if line.strip() and line != "if 1:"]
    while found and found[-1].lstrip().startswith("#"):
        found.pop()
    assert found == text
    assert source.node.name == function.__name__
    line = source.header().frame.line
    assert f"def {function.__name__}(" in linecache.getline(__file__, line)
    assert first <= line < first + len(lines)


__x = 1.0
_B__x = 2.0
_Inner__x = 3.0


class B:
    __held = 4.0

    def plain(self, __a, *, __k=1, __both__=2):
        __local = __a + __k + __both__ + __x
        return __local, self.__held, self.__both__, self.a__

    def __private(self):
        return __x

    def outer(self):
        def nested():
            return __x, self.__held

        class Inner:
            def method(self):
                return __x

        return nested, Inner.method

    class __Hidden:
        def method(self):
            return __x

    def kernel(x: ts.Tensor["n", ts.f32]):
        x[0:4] = __x + B.__held

    hidden = __Hidden.method


class _:
    def method(self):
        return __x


def at_the_module():
    return __x


METHODS = [B.plain, vars(B)["_B__private"], *B().outer(), B.hidden, _.method, at_the_module]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_private_names_are_those_of_python(method):
    nodes = list(ast.walk(source_of(method).node))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and node.id.isidentifier()}
    read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    code = method.__code__
    assert read == {*code.co_names, *code.co_varnames, *code.co_freevars} - ({"self"} - read)


def test_a_kernel_in_a_class_reads_private_names():
    x = np.zeros(4, np.float32)
    ts.kernel(B.kernel)(x)
    assert x.tolist() == [6.0] * 4
