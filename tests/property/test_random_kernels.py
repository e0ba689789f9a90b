"""Random kernels, written as source: every stage and every backend gives what the interpreter gives."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tessera as ts
from tessera.driver.binding import canonical_strides, tensor_facts
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.frontend.build import build_kernel
from tessera.frontend.signature import Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.interp import interpret
from tessera.ir.passes import PassRunner
from tessera.numerics.profiles import profile
from tessera.numerics.tolerances import unit_roundoff
from tessera.runtime.readers import view_of
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.property.sources import RandomKernel, Variable, dtype_of, kernels

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for the modules: tracebacks and the compiler read the source from there."""
    with tempfile.TemporaryDirectory(prefix="tessera-random-") as path:
        yield Path(path)


def function_of(random: RandomKernel, folder: Path) -> Callable[..., Any]:
    """Write the kernel's module and import it."""
    name = f"random_{hashlib.sha256(random.source.encode()).hexdigest()[:16]}"
    path = folder / f"{name}.py"
    path.write_text(random.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def copies(arguments: Sequence[Any]) -> list[Any]:
    """Return fresh arguments of the same layout."""
    return [a.copy(order="K") if isinstance(a, np.ndarray) else a for a in arguments]


def built(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return the TIR-H that a call with these arguments compiles from."""
    signature = Signature.of(function)
    facts: list[ArgFacts] = []
    for param, arg in zip(signature.runtime_params, arguments, strict=True):
        if isinstance(param, TensorParam):
            pointer, view, _ = view_of(arg)
            facts.append(tensor_facts(param.name, pointer, view, canonical_strides(view)))
        else:
            facts.append(ArgFacts("scalar", param.dtype))
    constants = tuple((p.name, p.default) for p in signature.params if p not in signature.runtime_params)
    return build_kernel(signature, Specialization(tuple(facts), constants, profile="strict")).module


def same(random: RandomKernel, level: str, got: Sequence[Any], expected: Sequence[Any]) -> None:
    """Check the results of two runs against each other."""
    count = len(random.results)
    for variable, ours, theirs in zip(random.results, got[-count:], expected[-count:], strict=True):
        wrong = _different(variable, ours, theirs)
        if wrong.any():
            values = f"{ours[wrong][0]} is not {theirs[wrong][0]}"
            pytest.fail(f"{level}: {variable} differs at {np.argwhere(wrong)[0]}: {values}\n{random}")


def _different(variable: Variable, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    dtype = dtype_of(variable)
    if not dtype.is_float:
        return ours != theirs
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    if not variable.approximate:
        return ~equal
    finite = np.abs(b[np.isfinite(b)])
    size = max(1.0, float(finite.max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        # 16-bit values on the way may have rounded to a neighbour.
        return ~(equal | (np.abs(a - b) <= 8 * max(unit_roundoff(dtype), 2.0**-8) * size))


@settings(max_examples=25, suppress_health_check=SLOW)
@given(random=kernels())
def test_stages_and_the_cpu_equal_the_interpreter(folder: Path, random: RandomKernel) -> None:
    function = function_of(random, folder)
    expected = copies(random.arguments)
    module = built(function, expected)
    interpret(module, expected)
    PassRunner(verify="pass").run(module, "canonicalize", CANONICALIZE)
    stages = [("canonical", module)]
    for name in ("sm_75", "sm_90a"):
        scheduled = module.clone()
        steps = schedule_passes(target_named(name), Knobs.from_config({}))
        PassRunner(verify="pass").run(scheduled, "schedule", steps)
        stages.append((f"scheduled for {name}", scheduled))
    for level, stage in stages:
        got = copies(random.arguments)
        interpret(stage, got, order_seed=0)
        same(random, level, got, expected)
    got = copies(random.arguments)
    with profile("strict"):
        ts.kernel(function)(*got)
    same(random, "cpu", got, expected)


@pytest.mark.device
@settings(max_examples=25, suppress_health_check=SLOW)
@given(random=kernels())
def test_the_gpu_equals_the_interpreter(folder: Path, random: RandomKernel) -> None:
    function = function_of(random, folder)
    expected = copies(random.arguments)
    interpret(built(function, expected), expected)
    got = [ts.asarray(a, device="cuda") if isinstance(a, np.ndarray) else a for a in random.arguments]
    with profile("strict"):
        ts.kernel(function)(*got)
    back = [a.numpy() if hasattr(a, "numpy") else a for a in got]
    same(random, "cuda", back, expected)
