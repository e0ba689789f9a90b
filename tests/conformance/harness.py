"""Runs one kernel on every backend and compares with a reference that knows nothing of Tessera.

A `Case` is a kernel, its arguments, and a NumPy reference. The backends:

* `interp`: canonical TIR-H on the interpreter, with all its checks (bounds, races, reads of what nobody wrote);
* `scheduled-sm_80`, `scheduled-sm_90a`: the same after the schedule of that target, where it changes anything;
* `threads-sm_80`: what the lowering for that target makes all threads compute (`tools.fuzz.in_step`), where that
  machine knows all ops of it;
* `cpu`: compiled for this machine; `cpu-x86-64` and others for a named one, skipped where this machine does not run it;
* `ptx-sm_80`, `ptx-sm_90a`: the PTX for that target on an emulated GPU (`tools.emulate`);
* `cuda`: compiled for the GPU (skipped, visibly, where there is none).

Every array lies between guard bytes, and so do the gaps of strided ones; results start out poisoned. A kernel that
writes outside its slices, leaves an element out, or changes an input, is caught.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.backends.cpu import load_object, missing_features
from tessera.driver.binding import canonical_strides, tensor_facts
from tessera.driver.pipeline import CANONICALIZE, compile_tiles, lower, schedule_passes
from tessera.frontend.annotations import DTypeVar
from tessera.frontend.build import BuiltKernel, build_kernel
from tessera.frontend.signature import ConstexprParam, ScalarParam, Signature, open_params
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.cloning import clone
from tessera.ir.passes import PassRunner
from tessera.ir.record import record_on
from tessera.ir.target.structure import FuncOp
from tessera.ir.walking import ops_in
from tessera.numerics.dtypes import BY_NAME, DType, from_numpy
from tessera.numerics.profiles import profile as numerics_profile
from tessera.numerics.tolerances import EXACT, Tolerance
from tessera.platforms.platform import platform_named
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView
from tessera.schedule.knobs import Knobs
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device
from tessera.tools.fuzz.arrays import Guarded
from tessera.tools.fuzz.in_step import run_launch
from tessera.tools.fuzz.races import Unknown
from tests.conformance.typed_values import of_their_types

BACKENDS = ("interp", "scheduled-sm_80", "scheduled-sm_90a", "threads-sm_80", "cpu", "cuda")

_GUARD, _GUARD_BYTE = 256, 0xA5
_POISON = {  # a NaN that no arithmetic makes; numbers that no test expects; a bool that is none
    "f64": 0x7FF8DEADBEEF5A5A,
    "f32": 0x7FC5A5A5,
    "f16": 0x7E5A,
    "bf16": 0x7FDA,
    "fp8_e5m2": 0x7F,
    "fp8_e4m3": 0xFF,
    "fp6_e2m3": 0x2A,
    "fp6_e3m2": 0x2A,
    "fp4_e2m1": 0x0A,
    "bool": 0x5A,
}
_HAS_PAYLOAD = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class Output:
    """A tensor that the kernel writes; it holds poison before.

    Args:
        shape: its shape.
        dtype: its dtype.
    """

    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Updated:
    """A tensor that the kernel reads and writes."""

    array: np.ndarray


@dataclass(frozen=True)
class Close:
    """An expected result with the magnitude that its tolerance scales with (`numerics.tolerances`)."""

    value: Any
    magnitude: Any


@dataclass(frozen=True)
class Rows:
    """A tolerance for each index of an output's first dimension, with a label for messages."""

    tolerances: tuple[tuple[str, Tolerance], ...]


@dataclass(frozen=True, eq=False)
class Case:
    """One kernel on one set of arguments.

    Args:
        name: unique in its file; seeds the random numbers.
        kernel: the function, not decorated.
        arguments: makes the run-time arguments: arrays, numbers, `Output`, `Updated`, None for missing tensors.
        reference: gives, from the arguments as arrays and numbers (results poisoned), the expected contents of each
            tensor that is written, in order. What it leaves poisoned must stay so.
        tolerance: for all of them, or one for each.
        constexprs: values of constexpr parameters.
        profile: numerics profile.
        backends: where it runs.
        signed_zeros: whether a zero must have the expected sign.
        knobs: of the schedule for GPUs.
    """

    name: str
    kernel: Callable[..., Any]
    arguments: Callable[[np.random.Generator], Sequence[Any]]
    reference: Callable[..., Any]
    tolerance: Tolerance | Rows | Sequence[Tolerance | Rows] = EXACT
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "fast"
    backends: tuple[str, ...] = BACKENDS
    signed_zeros: bool = False
    knobs: Mapping[str, Any] = field(default_factory=dict)


def conformance(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrize a test over the cases and their backends."""
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "case names repeat"
    return pytest.mark.parametrize(
        ("case", "backend"),
        [
            pytest.param(
                case,
                backend,
                id=f"{case.name}-{backend}",
                marks=[pytest.mark.device] if backend == "cuda" else [],
            )
            for case in cases
            for backend in case.backends
        ],
    )


def check(case: Case, backend: str) -> None:
    """Run a case on a backend and compare."""
    prepared = _prepared(case)
    memories = prepared.run(backend)
    problems = prepared.problems(memories) if memories is not None else []
    if problems:
        levels = "; ".join(f"{level}: {state}" for level, state in prepared.levels().items())
        pytest.fail("\n".join([f"{case.name} on {backend}", *problems, f"levels: {levels}"]), pytrace=False)


def run(case: Case, backend: str) -> list[np.ndarray]:
    """Run a case on a backend and return the tensors that it writes."""
    prepared = _prepared(case)
    memories = prepared.run(backend)
    assert memories is not None
    return [memories[position].array for position in prepared.written]


# Memory


class Memory:
    """An array with the shape, strides and alignment of another, between guard bytes and over a guarded gap.

    Args:
        like: the array that is copied.
    """

    def __init__(self, like: np.ndarray) -> None:
        low, high = np.lib.array_utils.byte_bounds(like) if like.size else (like.ctypes.data, like.ctypes.data)
        self.raw = np.full(high - low + 2 * _GUARD + 64, _GUARD_BYTE, np.uint8)
        aligned = _GUARD + -(self.raw.ctypes.data + _GUARD) % 64
        self.offset = aligned + low % 16 + (like.ctypes.data - low)
        self.like = like
        self.view(self.raw)[...] = like

    def view(self, raw: np.ndarray) -> np.ndarray:
        """Return the array over `raw` (this memory, or a copy of it)."""
        return np.ndarray(self.like.shape, self.like.dtype, raw, self.offset, self.like.strides)

    @property
    def array(self) -> np.ndarray:
        """The array."""
        return self.view(self.raw)

    def damaged(self) -> bool:
        """Return whether any byte outside the array's elements was written."""
        rest = self.raw.copy()
        view = np.ndarray((*self.like.shape, self.like.itemsize), np.uint8, rest, self.offset, (*self.like.strides, 1))
        view[...] = _GUARD_BYTE
        return bool((rest != _GUARD_BYTE).any())


def bits_of(array: np.ndarray) -> np.ndarray:
    """Return the elements of an array as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def poison_of(dtype: DType) -> int:
    """Return the bits that unwritten elements of a dtype have."""
    return _POISON.get(dtype.name, int.from_bytes(b"\x5a" * dtype.bytes, "little"))


def poisoned(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return an array of unwritten elements."""
    return np.full(shape, poison_of(dtype), f"u{dtype.bytes}").view(dtype.numpy())


# One case, built once


class _Prepared:
    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(zlib.crc32(case.name.encode()))
        passed = list(case.arguments(rng))
        self.signature = _signature(case.kernel, passed)
        given = [arg for arg in passed if arg is not None]
        self.written = [i for i, arg in enumerate(given) if isinstance(arg, Output | Updated)]
        self.outputs = [i for i, arg in enumerate(given) if isinstance(arg, Output)]
        self.arguments = [_argument(arg) for arg in given]
        with np.errstate(all="ignore"):
            expected = case.reference(*map(_copied, map(_argument, passed)))
        self.expected = list(expected) if isinstance(expected, tuple) else [expected]
        assert len(self.expected) == len(self.written), f"{case.name}: one expected value per written tensor"
        self._built: BuiltKernel | None = None
        self._canonical: ModuleOp | None = None
        self._scheduled: dict[str, Any] = {}
        self._kernel: Any = None

    def memories(self) -> list[Any]:
        """Return fresh copies of the arguments."""
        return [Memory(arg) if isinstance(arg, np.ndarray) else arg for arg in self.arguments]

    # Running

    def run(self, backend: str) -> list[Any] | None:
        """Run on a backend and return the memories afterwards; None when there is nothing new to run."""
        if backend == "cpu":
            return self._call(lambda memory: memory.array, lambda memory, array: None)
        if backend == "cuda":
            return self._call(_to_device, _from_device, self.case.knobs)
        if backend == "interp":
            return self._interpret(self.canonical())
        if backend.startswith("cpu-"):
            return self._named_cpu(target_named(backend.removeprefix("cpu-")))
        if backend.startswith("ptx-"):
            return self._emulated(target_named(backend.removeprefix("ptx-")))
        if backend.startswith("threads-"):
            return self._in_step(target_named(backend.removeprefix("threads-")))
        module = self.scheduled(backend.removeprefix("scheduled-"))
        return None if module is None else self._interpret(module)

    def _call(
        self,
        upload: Callable[[Memory], Any],
        download: Callable[[Memory, Any], None],
        knobs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if self._kernel is None:
            decorate = (
                ts.kernel.autotune(space={name: [value] for name, value in knobs.items()}) if knobs else ts.kernel
            )
            self._kernel = decorate(self.case.kernel)
        memories = self.memories()
        arrays = [upload(m) if isinstance(m, Memory) else m for m in memories]
        constexprs = dict(self.case.constexprs)
        by_position = iter(arrays)
        args = [
            constexprs[p.name]
            if isinstance(p, ConstexprParam) and p.name in constexprs
            else p.default
            if isinstance(p, ConstexprParam)
            else next(by_position)
            for p in self.signature.params
        ]
        with numerics_profile(self.case.profile):
            returned = self._kernel(*args)
        for memory, array in zip(memories, arrays, strict=True):
            if isinstance(memory, Memory):
                download(memory, array)
        if returned is not None:
            several = returned if isinstance(returned, tuple) else (returned,)
            assert all(any(r is a for a in arrays) for r in several), "the kernel returns the caller's own arrays"
        return memories

    def _compiled(self, target: TargetRecord, dump: tuple[str, ...]) -> Artifact:
        module, platform = clone(self.built().module), platform_named(target.backend)
        knobs = Knobs.from_config(self.case.knobs)
        record_on(module, target=target.name, after="frontend", knobs=knobs.given(), facts={})
        with numerics_profile(self.case.profile):
            return compile_tiles(module, target, dump, platform.write if dump else platform.generate)

    def _named_cpu(self, target: TargetRecord) -> list[Any]:
        artifact = self._compiled(target, ())
        if missing := missing_features(artifact.requires):
            pytest.skip(f"this CPU has no {', '.join(missing)}")
        memories = self.memories()
        shapes = [_in_memory(m) if isinstance(m, Memory) else None for m in memories]
        pointers = [m.array.ctypes.data for m in memories if isinstance(m, Memory)]
        scalars = [m for m in memories if not isinstance(m, Memory)]
        CpuLauncher(artifact, load_object).prepare(shapes).launch(pointers, scalars)
        return memories

    def _emulated(self, target: TargetRecord) -> list[Any]:
        memories, device = self.memories(), Device()
        given = [m for m in memories if isinstance(m, Memory)]
        pointers = [device.add(m.raw, np.ones(m.raw.size, bool)) + m.offset for m in given]
        shapes = [_in_memory(m) if isinstance(m, Memory) else None for m in memories]
        scalars = [m for m in memories if not isinstance(m, Memory)]
        Emulation(self._compiled(target, ("ptx",))).run(device, pointers, shapes, scalars, Limits(10**9))
        for number, memory in enumerate(given):
            memory.raw[...] = device.back(number)
        return memories

    def _interpret(self, module: Any) -> list[Any]:
        memories = self.memories()
        arrays = [m.array if isinstance(m, Memory) else m for m in memories]
        names = [p.name for p in self.signature.runtime_params]
        with of_their_types():
            interpret(module, arrays, uninitialized=[names[i] for i in self.outputs], order_seed=1)
        return memories

    def _in_step(self, target: TargetRecord) -> list[Any] | None:
        """Run the lowering for a GPU, all threads in step; None where it has other ops than the machine knows."""
        module = self.after_schedule(target)
        memories = self.memories()
        arrays = {at: _in_elements(memory) for at, memory in enumerate(memories) if isinstance(memory, Memory)}
        scalars = {at: value for at, value in enumerate(memories) if not isinstance(value, Memory)}
        try:
            for func in lower(clone(module), target).ops:
                if isinstance(func, FuncOp):
                    run_launch(func, arrays, scalars)
        except Unknown:
            return None
        return memories

    def built(self) -> BuiltKernel:
        """Return the kernel as the frontend makes it for these arguments."""
        if self._built is None:
            signature = self.signature
            facts: list[ArgFacts] = []
            for param, memory in zip(signature.runtime_params, self.memories(), strict=True):
                if isinstance(param, ScalarParam):
                    facts.append(ArgFacts("scalar", param.dtype))
                else:
                    pointer, view, _ = view_of(memory.array)
                    facts.append(tensor_facts(param.name, pointer, view, canonical_strides(view)))
            constexprs = tuple(
                (p.name, self.case.constexprs.get(p.name, p.default))
                for p in signature.params
                if isinstance(p, ConstexprParam)
            )
            self._built = build_kernel(signature, Specialization(tuple(facts), constexprs, profile=self.case.profile))
        return self._built

    def canonical(self) -> ModuleOp:
        """Return the canonical module."""
        if self._canonical is None:
            self._canonical = clone(self.built().module)
            PassRunner(verify="pass").run(self._canonical, "canonicalize", CANONICALIZE)
        return self._canonical

    def scheduled(self, target: str) -> Any:
        """Return the scheduled module; None where the schedule only annotates."""
        module = self.after_schedule(target_named(target))
        return None if _is_same(_without_schedule(module), self._without_schedule) else module

    def after_schedule(self, target: TargetRecord) -> Any:
        """Return what the schedule of a target makes of the canonical module."""
        if target.name not in self._scheduled:
            module = self._scheduled[target.name] = clone(self.canonical())
            passes = schedule_passes(target, Knobs.from_config(self.case.knobs))
            PassRunner(verify="pass").run(module, "schedule", passes)
        return self._scheduled[target.name]

    @cached_property
    def _without_schedule(self) -> ModuleOp:
        return _without_schedule(self.canonical())

    # Comparing

    def problems(self, memories: Sequence[Any]) -> list[str]:
        """Return what is wrong with the arguments after a run."""
        found: list[str] = []
        names = [p.name for p in self.signature.runtime_params]
        tolerance = self.case.tolerance
        expected = dict(zip(self.written, self.expected, strict=True))
        for position, (name, memory) in enumerate(zip(names, memories, strict=True)):
            if not isinstance(memory, Memory):
                continue
            if memory.damaged():
                found.append(f"{name}: memory outside of the tensor was written")
            if position not in expected:
                if (bits_of(memory.array) != bits_of(memory.like)).any():
                    found.append(f"{name}: an input was changed")
                continue
            one = tolerance if isinstance(tolerance, Tolerance | Rows) else tolerance[self.written.index(position)]
            found += _differences(name, memory.array, expected[position], one, self.case.signed_zeros)
        return found

    def levels(self) -> dict[str, str]:
        """Say for each level of the compiler whether its result is right: the first wrong one is at fault."""
        found: dict[str, str] = {}
        modules = {
            "TIR-H": lambda: self.built().module,
            "canonical": self.canonical,
            "scheduled sm_80": lambda: self.scheduled("sm_80"),
            "scheduled sm_90a": lambda: self.scheduled("sm_90a"),
        }
        for level, module in modules.items():
            try:
                ready = module()
                wrong = ready is not None and self.problems(self._interpret(ready))
            except ts.TesseraError as error:
                found[level] = f"{error.code}: {error.message}"
            else:
                found[level] = "unchanged" if ready is None else "wrong" if wrong else "right"
        return found


@lru_cache(maxsize=2)  # cases run on one backend after the other
def _prepared(case: Case) -> _Prepared:
    return _Prepared(case)


def _signature(function: Callable[..., Any], passed: Sequence[Any]) -> Signature:
    """Return the signature of a function for arguments, which say what its dtype variables are and what is missing."""
    opened = open_params(function)
    variables = {n: t.element.name for n, t in opened.items() if isinstance(t.element, DTypeVar)}
    whole = Signature.of(function, dtypes=dict.fromkeys(variables.values(), BY_NAME["f32"]))
    arguments = dict(zip((p.name for p in whole.runtime_params), passed, strict=True))
    missing = [name for name in opened if arguments[name] is None]
    dtypes = {of: _dtype_of(arguments[name]) for name, of in variables.items() if name not in missing}
    return Signature.of(function, dtypes=dtypes, missing=missing)


def _dtype_of(given: Any) -> DType:
    found = given.dtype if isinstance(given, Output) else from_numpy(_argument(given).dtype)
    assert found is not None
    return found


def _copied(given: Any) -> Any:
    return given.copy() if isinstance(given, np.ndarray) else given


def _argument(given: Any) -> Any:
    if isinstance(given, Output):
        return poisoned(given.shape, given.dtype)
    return given.array if isinstance(given, Updated) else given


def _without_schedule(module: ModuleOp) -> ModuleOp:
    copy = clone(module)
    for op in ops_in(copy):
        for key in [key for key in op.attributes if key.startswith(decisions.PREFIX)]:
            del op.attributes[key]
    return copy


def _is_same(one: ModuleOp, other: ModuleOp) -> bool:
    """Return whether two modules have the same ops; xDSL does not look at the types of results."""
    types, others = ([result.type for op in ops_in(module) for result in op.results] for module in (one, other))
    return types == others and one.is_structurally_equivalent(other)


def _in_elements(memory: Memory) -> Guarded:
    """Return an array and the memory around it, as elements."""
    item = memory.like.itemsize
    whole = memory.raw[memory.offset % item :]
    base = whole[: len(whole) // item * item].view(memory.like.dtype)
    return Guarded(base, memory.array, np.zeros(len(base), np.bool_), base)


def _in_memory(memory: Memory) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an array's shape and strides, in elements."""
    return memory.like.shape, tuple(stride // memory.like.itemsize for stride in memory.like.strides)


def _to_device(memory: Memory) -> Any:
    from tessera.runtime.cuda_array import DeviceArray

    base = ts.asarray(memory.raw, device="cuda")
    _, host, _ = view_of(memory.array)
    view = ArrayView(host.shape, host.strides, host.dtype, base.device, readonly=False)
    return DeviceArray.borrow(base.pointer + memory.offset, view, base)


def _from_device(memory: Memory, array: Any) -> None:
    memory.raw[...] = array._memory.owner.numpy()


def _differences(
    name: str, got: np.ndarray, expected: Any, tolerance: Tolerance | Rows, signed_zeros: bool
) -> list[str]:
    """Return a line for each tensor (each row of one with `Rows`) that is not as expected."""
    close = expected if isinstance(expected, Close) else Close(expected, 0.0)
    want, magnitude = (np.broadcast_to(np.asarray(v), got.shape) for v in (close.value, close.magnitude))
    if isinstance(tolerance, Tolerance):
        return _compare(name, got, want, magnitude, tolerance, signed_zeros)
    return [
        line
        for row, (label, one) in enumerate(tolerance.tolerances)
        for line in _compare(f"{name}[{label}]", got[row], want[row], magnitude[row], one, signed_zeros)
    ]


def _compare(
    name: str,
    got: np.ndarray,
    want: np.ndarray,
    magnitude: np.ndarray,
    tolerance: Tolerance,
    signed_zeros: bool,
) -> list[str]:
    dtype = from_numpy(got.dtype)
    assert dtype is not None
    left = bits_of(got) == poison_of(dtype)
    poison_wanted = bits_of(want) == poison_of(dtype) if want.dtype == got.dtype else np.zeros(got.shape, np.bool_)
    if dtype.name in _HAS_PAYLOAD or dtype.kind == "bool":
        missing = left & ~poison_wanted
    else:
        missing = np.zeros(got.shape, np.bool_)
    if missing.any():
        return [_line(name, "not written", missing, got, want)]
    touched = poison_wanted & ~left
    if touched.any():
        return [_line(name, "written, but should not be", touched, got, want)]
    with np.errstate(all="ignore"):
        wrong = _wrong(got, want, magnitude, tolerance, dtype) & ~poison_wanted
        if signed_zeros:
            wide = got.astype(np.float64)
            wrong |= (want == 0) & (np.signbit(wide) != np.signbit(want.astype(np.float64)))
    return [_line(name, f"wrong (within {tolerance})", wrong, got, want)] if wrong.any() else []


def _wrong(got: np.ndarray, want: np.ndarray, magnitude: Any, tolerance: Tolerance, dtype: DType) -> np.ndarray:
    if not dtype.is_float:
        return bits_of(got) != bits_of(want.astype(got.dtype))
    if want.dtype.kind != "f" or want.dtype.itemsize < 8:  # ml_dtypes' types too
        want = want.astype(np.float64)
    value = got.astype(want.dtype)
    if tolerance.exact:
        rounded = want.astype(got.dtype).astype(want.dtype)
        return ~((value == rounded) | (np.isnan(value) & np.isnan(rounded)))
    scale = np.where(np.isfinite(magnitude), np.abs(magnitude), 0.0)
    bound = tolerance.relative * np.abs(want) + tolerance.scaled * scale + tolerance.absolute
    good = np.abs(value - want) <= bound
    good |= np.isnan(value) & np.isnan(want)
    good |= np.isinf(value) & (value == want)
    # Beyond the largest number, and within the bound of it, infinity is right too.
    largest = float(_finfo(dtype).max)
    good |= np.isinf(value) & (np.signbit(value) == np.signbit(want)) & (np.abs(want) + bound >= largest)
    return ~good


def _finfo(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy())


def _line(name: str, what: str, bad: np.ndarray, got: np.ndarray, want: np.ndarray) -> str:
    places = np.argwhere(bad)[:4]
    shown = ", ".join(f"{tuple(int(i) for i in p)}: got {got[tuple(p)]!r}, want {want[tuple(p)]!r}" for p in places)
    return f"{name}: {what} in {int(bad.sum())} of {bad.size} elements: {shown}"


def dtype(name: str) -> DType:
    """Return a dtype by name."""
    return BY_NAME[name]
