"""Runs a program through the public API on one device, and compares what it stored with its meaning."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from tessera.errors import CompilerFault, ResourceError, TesseraError
from tessera.numerics.dtypes import BY_NAME
from tessera.runtime.cpu import fill_scratch
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import Guarded, contents, offsets, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.meaning_values import Array, Undetermined, Val
from tessera.tools.fuzz.source import source
from tessera.tools.fuzz.types import is_float

REPORTED = {"index-outside": "out-of-bounds", "stage-outside": "out-of-bounds", "race": "race"}
"""What the interpreter's checks report of events that compiled code has a rule for."""


_UNWRITTEN = 0x41
"""A byte that makes numbers of every dtype: 65, and about 12 as f32 and bf16."""


@dataclass(frozen=True)
class Device:
    """Where programs run.

    Args:
        kind: `cpu`, `interp`, `cuda`, `ptx` for an emulated GPU, or `compile` for compiling only.
        target: a target's name; empty for the device's own. On `cpu` `levels.use` has to be called before.
    """

    kind: str = "cpu"
    target: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The target that is asked for, none where the device takes its own."""
        return (self.target,) if self.target else ()


@dataclass(frozen=True)
class Outcome:
    """What came of one program.

    Args:
        seed: its seed.
        kind: `same`, `compiled`, `refused` (a resource's limit), `skipped` (nothing is promised of its results),
            `mismatch`, `error`, `crash` or `hang`.
        code: the error's code where there is one.
        detail: what differs, or the error's text.
        seconds: what generating, computing the meaning, and running took.
        unknown: share of the stored elements that nothing is promised of.
        reached: each `operation dtype context` of the program.
        knobs: its schedule knobs, as `name=value`.
    """

    seed: int
    kind: str
    code: str = ""
    detail: str = ""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unknown: float = 0.0
    reached: tuple[str, ...] = field(default=(), repr=False)
    knobs: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it shows a fault."""
        return self.kind in ("mismatch", "error", "crash", "hang")


def check(program: tree.Program, device: Device, folder: Path, generated: float = 0.0) -> Outcome:
    """Run a program and compare its results with its meaning.

    Args:
        program: the program.
        device: where it runs.
        folder: where its source is written.
        generated: seconds that drawing it took, for the outcome.
    """
    from tessera.tools.fuzz.exact import wanted

    started = time.perf_counter()
    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    expected, events = dict[str, Val](), set[str]()
    if device.kind != "compile":
        try:
            expected, events = wanted(program, values, folder)
        except Undetermined as reason:
            return Outcome(program.seed, "skipped", detail=str(reason), seconds=(generated, 0.0, 0.0))
    meant = time.perf_counter()

    def outcome(kind: str, code: str = "", detail: str = "") -> Outcome:
        took = (generated, meant - started, time.perf_counter() - meant)
        return Outcome(program.seed, kind, code, detail, took, _unknown(expected))

    fill_scratch(_UNWRITTEN)  # what is read of it unwritten shows, whatever ran before
    try:
        with conditions(program):
            found = _run(program, device, folder, values)
    except ResourceError as error:
        return outcome("refused", error.code, str(error))
    except CompilerFault as error:
        return outcome("error", error.code, str(error))
    except TesseraError as error:
        if device.kind == "interp" and error.code in {REPORTED[event] for event in events}:
            return outcome("refused", error.code, str(error))
        return outcome("error", error.code, str(error))
    except Exception as error:  # a right program may make the compiler fail in any way: that is the finding
        return outcome("error", type(error).__name__, f"{type(error).__name__}: {error}")
    if found is None:
        return outcome("compiled")
    wrong = "\n".join(differences(program, found, expected))
    return outcome("mismatch", "", wrong) if wrong else outcome("same")


def _unknown(expected: Mapping[str, Val]) -> float:
    total = sum(value.data.size for value in expected.values())
    known = sum(value.data.size if value.known is None else int(value.known.sum()) for value in expected.values())
    return 1 - known / total if total else 0.0


class _AsWritten(SourceFileLoader):
    """Imports a file as it is, not byte code of another one that was as long and written in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_kernel(program: tree.Program, folder: Path) -> Any:
    """Write a program's source to a file and import its kernel."""
    name = f"fuzz_{program.seed & 0xFFFFFFFFFFFF:x}"
    path = folder / f"{name}.py"
    path.write_text(source(program), encoding="utf-8")
    loader = _AsWritten(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module.kernel


def _run(program: tree.Program, device: Device, folder: Path, values: Mapping[str, Array]) -> dict[str, Guarded] | None:
    """Run a program; return its arrays, or None when it was only compiled."""
    kernel = load_kernel(program, folder)
    if device.kind == "compile":
        _compiled(kernel, program, device.target)
        return None
    arrays = {tensor.name: placed(values[tensor.name], tensor.layout) for tensor in program.tensors}
    given = {name: guarded.view for name, guarded in arrays.items()}
    if device.kind == "cuda":
        _on_gpu(kernel, program, arrays)
        return arrays
    kernel(*arguments(program, given))
    return arrays


def arguments(program: tree.Program, arrays: Mapping[str, Any]) -> list[Any]:
    """Return what a program is called with: its arrays and run-time scalars, in order."""
    result: list[Any] = []
    for param in program.params:
        if isinstance(param, tree.Tensor):
            result.append(arrays[param.name])
        elif isinstance(param, tree.ScalarParam):
            result.append(param.value)
    return result


def _compiled(kernel: Any, program: tree.Program, target: str) -> None:
    from tessera.driver.compile import compile

    compile(kernel, target=target or None, dims=program.dims)


def _on_gpu(call: Callable[..., Any], program: tree.Program, arrays: Mapping[str, Guarded]) -> None:
    """Run on copies of the whole blocks in the GPU's memory, and copy these back."""
    import tessera as ts

    blocks: dict[str, Any] = {}
    views: dict[str, Any] = {}
    for tensor in program.tensors:
        guarded = arrays[tensor.name]
        bytes_ = guarded.base.view(np.uint8)
        blocks[tensor.name], views[tensor.name] = _gpu_view(ts, tensor, guarded, bytes_)
    call(*arguments(program, views))
    for name, block in blocks.items():
        arrays[name].base.view(np.uint8)[...] = block()


def _gpu_view(ts: Any, tensor: tree.Tensor, guarded: Guarded, bytes_: Array) -> tuple[Callable[[], Array], Any]:
    """Return how a block is read back, and the array inside it."""
    torch = sys.modules.get("torch")
    if torch is not None and (kind := getattr(torch, _TORCH.get(tensor.dtype, "?"), None)) is not None:
        block = torch.from_numpy(bytes_.copy()).cuda()
        strides, _, _ = offsets(tensor.shape, tensor.layout)
        first = (
            (guarded.view.ctypes.data - guarded.base.ctypes.data) // guarded.base.itemsize if guarded.view.size else 0
        )
        if all(stride >= 0 for stride in strides):  # PyTorch has no others
            flat = block.view(kind)
            return (lambda: block.cpu().numpy()), torch.as_strided(flat, tensor.shape, strides, first)
    whole = ts.asarray(np.ascontiguousarray(guarded.view), device="cuda")

    def back() -> Array:
        guarded.view[...] = whole.numpy()
        return bytes_

    return back, whole


_TORCH = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "bool": "bool",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}


def differences(program: tree.Program, found: Mapping[str, Guarded], expected: Mapping[str, Val]) -> list[str]:
    """Return what is wrong in the arrays of a program after it ran, a line for each array."""
    lines: list[str] = []
    for tensor in program.tensors:
        guarded, want = found[tensor.name], expected[tensor.name]
        over = guarded.overrun()
        if over:
            lines.append(f"{tensor.name}: {over} elements outside of the array were written")
        if not guarded.view.size:
            continue
        wrong = differs(guarded.view, want)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            got, err = guarded.view[at], float(want.errors()[at])
            bound = f" ± {err:.3g}" if err else ""
            place = ", ".join(map(str, at))
            lines.append(
                f"{tensor.name}[{place}] ({tensor.dtype}) is {got!s}, not {want.data[at]!s}{bound}; "
                f"{int(wrong.sum())} of {wrong.size} elements differ"
            )
    return lines


def differs(got: Array, want: Val) -> Array:
    """Return which elements are not what they have to be."""
    with np.errstate(all="ignore"):
        if is_float(want.dtype):
            wide = got.astype(np.float64)
            same = (wide == want.data) | (np.isnan(wide) & np.isnan(want.data))
            if want.err is not None:
                same |= np.abs(wide - want.data) <= want.err * (1 + 2.0**-40)
            if want.signed is not None:
                same &= ~(want.signed & (wide == 0) & (want.data == 0) & (np.signbit(wide) != np.signbit(want.data)))
        else:
            same = got == want.data
    return ~same if want.known is None else ~same & want.known


def numpy_dtype(name: str) -> Any:
    """Return the NumPy type of a dtype's elements."""
    return BY_NAME[name].numpy()
