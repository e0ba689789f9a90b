"""Every function of floats has a documented error, and keeps it on a sample of what the script measures."""

from __future__ import annotations

import numpy as np
import pytest

from scripts import measure_ulp
from tessera.numerics.functions import FUNCTIONS
from tests.unit.backends.test_vecmath import BOUND_F32

SAMPLE = measure_ulp.BLOCK
LINES = measure_ulp.lines()


def test_every_function_has_a_line_and_every_line_a_function() -> None:
    assert [function.name for function in measure_ulp.measured()] == list(LINES)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("name", LINES)
def test_errors_are_within_what_is_documented(name: str) -> None:
    function = FUNCTIONS[name]
    for (profile, dtype), bound in zip(measure_ulp.COLUMNS, LINES[name], strict=True):
        # What no profile approximates is compiled alike under all of them.
        if profile == "strict" or function.special or function.ulp is not None:
            error = measure_ulp.errors(function, dtype, profile, SAMPLE)
            assert error <= bound + 0.001, (profile, dtype)


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "tanh", "erf", "log", "log2", "log1p", "sin", "cos"])
def test_what_is_known_of_all_arguments_is_within_it_too(name: str) -> None:
    assert BOUND_F32[name] <= LINES[name][0]
