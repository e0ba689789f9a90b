"""Random programs give the same on a CPU as on the interpreter, for every vector width."""

from __future__ import annotations

import ctypes
import functools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tessera.backends.cpu import compile_cpu, host_target, load_object
from tessera.interp import interpret
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import text_of
from tessera.lower.vector import lower_to_vector
from tessera.target.artifact import Launch, Parameter, program_count
from tessera.target.records import TargetRecord
from tests.property.programs import Program, programs
from tests.unit.lower.support import scheduled

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def narrowed(vector_bytes: int) -> TargetRecord:
    """Return this machine with shorter vectors: other chunks, other rests of rows."""
    return replace(host_target(), vector_bytes=vector_bytes)


def _value(parameter: Parameter, array: np.ndarray) -> object:
    """Return what the entry reads for a parameter."""
    match parameter.kind:
        case "pointer":
            return array.ctypes.data
        case "size":
            return array.shape[parameter.axis]
        case "stride":
            return array.strides[parameter.axis] // array.itemsize
        case "scalar":
            return array


def run(program: Program, target: TargetRecord) -> list[np.ndarray]:
    """Compile the program and run it on scratch memory full of NaNs."""
    lowered = lower_to_vector(scheduled(program.module, target), target)
    lowered.verify()
    code = compile_cpu(lowered, target, ())
    loaded = load_object(code.code)
    arrays = [*program.inputs, *(array.copy() for array in program.outputs)]
    for func in lowered.ops:
        assert isinstance(func, FuncOp)
        values = [np.asarray(_value(parameter, arrays[parameter.arg])) for parameter in func.parameters]
        scratch = np.full(code.reflection["kernels"][func.sym_name.data]["scratch_bytes"] + 64, 0xFF, np.uint8)
        error = np.zeros(1, np.int64)
        aligned = -(-scratch.ctypes.data // 64) * 64
        params = np.array([*(v.ctypes.data for v in values), aligned, error.ctypes.data], np.uint64)
        grid = tuple((extent, block) for extent, block in json.loads(func.grid.data))
        count = program_count(Launch(func.sym_name.data, (), grid), [np.shape(a) for a in arrays], {})
        _Entry(loaded.address(func.sym_name.data))(params.ctypes.data, 0, count)
        assert error[0] == 0
    return arrays[len(program.inputs) :]


@pytest.mark.parametrize("vector_bytes", [16, 64])
@settings(max_examples=40, suppress_health_check=SLOW, deadline=None)
@given(program=programs())
def test_compiled_programs_equal_the_interpreter(vector_bytes: int, program: Program) -> None:
    outputs = [array.copy() for array in program.outputs]
    interpret(program.module, [*program.inputs, *outputs])
    for expected, got in zip(outputs, run(program, narrowed(vector_bytes)), strict=True):
        wide = expected.astype(np.float64), got.astype(np.float64)
        # Sums in another order, `exp` to 1 ULP, then a few roundings to bf16.
        np.testing.assert_allclose(wide[1], wide[0], rtol=2**-6, atol=1e-30, err_msg=text_of(program.module))
