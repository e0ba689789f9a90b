"""Every canonicalisation pass, and all of them in a row, keep what random programs compute, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tessera.interp import interpret
from tessera.ir.passes import Pass, PassRunner, passes_in
from tessera.ir.text import check, parse_module, text_of
from tests.property.programs import Program, programs, same_bits

PASSES = [cls() for cls in passes_in("tessera.canonicalize").values()]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def outputs_of(program: Program) -> list[np.ndarray]:
    outputs = [array.copy() for array in program.outputs]
    interpret(program.module, [*program.inputs, *outputs])
    return outputs


def holds(program: Program, passes: list[Pass]) -> None:
    before = outputs_of(program)
    PassRunner(verify="pass").run(program.module, "canonicalize", passes)
    check(program.module)
    for old, new in zip(before, outputs_of(program), strict=True):
        assert same_bits(old, new), text_of(program.module)


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
@settings(max_examples=25, suppress_health_check=SLOW)
@given(program=programs())
def test_a_pass_keeps_the_result(step: Pass, program: Program) -> None:
    holds(program, [step])


@settings(max_examples=60, suppress_health_check=SLOW)
@given(program=programs())
def test_all_passes_keep_the_result(program: Program) -> None:
    holds(program, [*PASSES, *PASSES])


@settings(max_examples=30, suppress_health_check=SLOW)
@given(program=programs())
def test_text_round_trip_keeps_the_result(program: Program) -> None:
    text = text_of(program.module)
    again = parse_module(text)
    assert text_of(again) == text
    outputs = [array.copy() for array in program.outputs]
    interpret(again, [*program.inputs, *outputs])
    assert all(same_bits(a, b) for a, b in zip(outputs_of(program), outputs, strict=True))


@settings(max_examples=30, suppress_health_check=SLOW)
@given(program=programs())
def test_canonicalizing_twice_changes_nothing_more(program: Program) -> None:
    runner = PassRunner()
    for _ in range(4):
        runner.run(program.module, "canonicalize", PASSES)
    settled = text_of(program.module)
    runner.run(program.module, "canonicalize", PASSES)
    assert text_of(program.module) == settled
