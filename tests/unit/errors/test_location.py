"""Where an error comes from: the location it was given, or the user's line that called Tessera."""

from __future__ import annotations

import copy

import pytest

import tessera as ts
from tessera.errors import Frame, Location, caller_location


def test_a_given_location_comes_first():
    here = Location(Frame("gemm.py", 12, 3, 8, "gemm"))
    error = ts.LanguageError("no", location=here)
    assert error.where is here
    assert error.at(Location(Frame("other.py", 1))).where is here


def test_the_users_line_is_found_from_the_traceback():
    with pytest.raises(ts.LanguageError) as caught:
        ts.dims("a b 3c")
    where = caught.value.where
    assert where is not None
    assert where.frame.file == __file__
    assert where.frame.source()[where.frame.column - 1 : where.frame.end_column - 1] == 'ts.dims("a b 3c")'
    with pytest.raises(ts.TargetError) as missing:
        ts.runtime.select_backend("none")
    assert 'ts.runtime.select_backend("none")' in str(missing.value)


def test_an_error_never_raised_has_no_line():
    assert ts.LanguageError("no").where is None


def test_caller_location_gives_the_exact_columns():
    where = caller_location()
    assert where.frame.source()[where.frame.column - 1 : where.frame.end_column - 1] == "caller_location()"
    assert where.frame.function == "test_caller_location_gives_the_exact_columns"


def test_a_call_over_several_lines_is_underlined_to_the_end_of_its_first():
    with pytest.raises(ts.LanguageError) as caught:
        ts.dims(
            "3c",
        )
    where = caught.value.where
    assert where is not None
    assert where.frame.source().endswith("ts.dims(")
    assert where.frame.end_column == len(where.frame.source()) + 1


def test_a_copied_error_keeps_its_line():
    with pytest.raises(ts.LanguageError) as caught:
        ts.dims("a b 3c")
    text = str(caught.value)
    copied = copy.copy(caught.value)  # as pickle does
    assert copied.__traceback__ is None
    assert str(copied) == text
    assert __file__.rsplit("/", 1)[-1] in text
