"""Device print and assert."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built, ops, printed, run

LABEL = "sum"


def prints(x: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 4)):
        s = ts.tile.sum(x[m : m + 4])
        print(f"{LABEL} at {m}:", s, 4)


def test_print():
    text = printed(prints, np.ones(6, np.float32))
    assert "sum at 0: 4 4" in text
    assert "sum at 4: 2 4" in text
    assert ops(built(prints), "print")[0].format.data == "sum at {}: {} 4"


def asserts(x: ts.Tensor["n", ts.f32]):
    assert 2 > 1
    for m in ts.tile.grid((n, 4)):
        v = x[m : m + 4]
        assert v >= 0, "negative"
        if v > 1:
            assert v < 5, "too large"


def test_assert_is_compiled_in_debug_builds_only():
    assert not ops(built(asserts), "assert")
    run(asserts, np.array([0.5, 2], np.float32), debug=True)
    for bad, message in ((-1, "negative"), (7, "too large")):
        with pytest.raises(ts.DeviceError) as caught:
            run(asserts, np.array([0.5, bad], np.float32), debug=True)
        assert message in caught.value.message
        assert caught.value.location is not None
        assert caught.value.location.frame.function == "asserts"


def of_a_number(x: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 4)):
        assert x[m : m + 4]


def with_a_value_as_message(x: ts.Tensor["n", ts.f32], s: ts.i32):
    for m in ts.tile.grid((n, 4)):
        assert x[m : m + 4] > 0, s


def of_no_program(x: ts.Tensor["n", ts.f32], s: ts.i32):
    assert s > 0
    for m in ts.tile.grid((n, 4)):
        x[m : m + 4] = 0.0


def by_name(x: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 4)):
        ts.tile.device_assert(x[m : m + 4], "empty")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kernel", [of_a_number, with_a_value_as_message, of_no_program, by_name])
def test_an_assert_is_refused_in_all_builds_or_in_none(kernel, debug):
    with pytest.raises(ts.TesseraError) as caught:
        built(kernel, debug=debug)
    assert caught.value.code in ("dtype-mismatch", "bad-format", "outside-grid")
