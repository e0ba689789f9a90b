"""Kernels that race on shared memory are refused when compiled, with the lines of both accesses."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tests.unit.verify import faulty


def line_of(function: Any, mark: str) -> int:
    """Return the line of a kernel, or of the function that it calls, that a comment marks."""
    for source in (function, faulty.fill.function if hasattr(faulty.fill, "function") else faulty.fill):
        lines, start = inspect.getsourcelines(source)
        for number, line in enumerate(lines, start):
            if line.rstrip().endswith(f"# {mark}"):
                return number
    raise AssertionError(f"{function.__name__} marks no {mark}")


@pytest.mark.parametrize("function", faulty.FAULTY, ids=lambda function: function.__name__)
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_both_lines_are_named(function: Callable[..., None], target: str) -> None:
    with pytest.raises(ts.LanguageError) as caught:
        ts.compile(ts.kernel(function), target=target)
    error = caught.value
    assert error.code == "race"
    assert error.location is not None
    assert error.location.frame.line == line_of(function, "second")
    ((_, first),) = error.related
    assert first.frame.line == line_of(function, "first")
    for place in (error.location, first):
        assert linecache.getline(place.frame.file, place.frame.line).strip() in str(error)


def test_there_are_forty() -> None:
    assert len(faulty.FAULTY) >= 40
