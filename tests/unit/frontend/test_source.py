"""Finding a function's text: the same lines as `inspect` finds, for every way to lay a definition out."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest

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
