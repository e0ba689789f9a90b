"""`tessera doctor`: what works on this machine, and the line that mends what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import click
import numpy as np
from rich.table import Table

import tessera
from tessera.driver.cache import default_path, disk_cache, size_limit
from tessera.driver.compile import compile as compile_kernel
from tessera.driver.kernel import Kernel
from tessera.driver.settings import settings
from tessera.entry import exchange, host
from tessera.errors import DeviceError, TargetError, TesseraError
from tessera.runtime import arrays, backend, toolkit
from tessera.tools import sample
from tessera.tools.console import console

_MARKS = {"ok": "[green]ok[/]", "absent": "[yellow]absent[/]", "broken": "[red]broken[/]"}
_PACKAGES = ("numpy", "ml_dtypes", "xdsl", "llvmlite", "click", "rich")
_GPU_PACKAGES = ("cuda-bindings", "cuda-core", "nvidia-nvjitlink")
_EXTRA = 'pip install "tessera[gpu-cuda]"'


saxpy = cast("Kernel[..., Any]", sample.saxpy)  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Args:
        subject: what was looked at.
        state: `ok`, `absent` (optional and not there) or `broken`.
        detail: what was found.
        mend: the line that mends it.
    """

    subject: str
    state: Literal["ok", "absent", "broken"]
    detail: str
    mend: str = ""


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    found: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return found, missing


def _base_packages() -> Finding:
    found, missing = _packages(_PACKAGES)
    if missing:
        return Finding("packages", "broken", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Finding("packages", "ok", ", ".join(found))


def _environment() -> Finding:
    held = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("TESSERA_"))
    return Finding("environment", "ok", ", ".join(held) or "no TESSERA_ variable is set")


def _cache() -> Finding:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = disk_cache()
    if found is None:
        reason = str(caught[0].message) if caught else f"{default_path()} is turned off (TESSERA_CACHE_SIZE_MB=0)"
        return Finding("kernel cache", "broken", reason, "export TESSERA_CACHE_DIR=~/.cache/tessera-private")
    held = list(found.entries())
    used = sum(entry.size for entry in held) / 2**20
    limit = size_limit() / 2**20
    return Finding("kernel cache", "ok", f"{found.root}: {len(held)} kernels, {used:.1f} of {limit:.0f} MB")


def _run_saxpy(device: str) -> str:
    """Run saxpy on a device, compare it with NumPy, and say what ran and how fast."""
    count = 1 << 20
    x = np.linspace(-1, 1, count, dtype=np.float32)
    y = np.cos(x)
    wanted = (np.float64(2.0) * x + y).astype(np.float32)
    dx, dy = arrays.asarray(x, device=device), arrays.asarray(y.copy(), device=device)
    start = time.perf_counter()
    result = arrays.to_numpy(saxpy(dx, dy, 2.0))
    first = time.perf_counter() - start
    error = float(np.abs(result - wanted).max())
    if not error < 1e-6:
        raise DeviceError(f"saxpy is off by {error:.2g}", code="wrong-result", help="report it with this output")
    ran = saxpy.explain()
    return f"{ran.target}: saxpy is right; first call {first * 1e3:.0f} ms ({ran.origin})"


def _cpu() -> Finding:
    return Finding("CPU", "ok", _run_saxpy("cpu"))


def _entry() -> Finding:
    reason = host.why_not()
    if reason:
        return Finding("compiled entry", "absent", f"{reason}: a call takes 3 µs, not 0.1 µs", "use CPython with a GIL")
    if not settings().entry:
        return Finding("compiled entry", "absent", "it is turned off", "unset TESSERA_ENTRY")
    x = np.zeros(0, np.float32)
    for _ in range(4):
        saxpy(x, x, 1.0)
    kinds = "NumPy arrays"
    if "torch" in sys.modules:
        known = exchange.torch_exchange() is not None
        kinds += " and PyTorch tensors" if known else "; this PyTorch's tensors are read in Python"
    return Finding("compiled entry", "ok", f"it serves repeated calls with {kinds}")


def _ptx() -> Finding:
    artifact = compile_kernel(saxpy, target="sm_90a")
    text = f"sm_90a: {artifact.code_kind} of {len(artifact.code)} bytes, no GPU needed"
    return Finding("GPU code", "ok", text)


def _assembler() -> Finding:
    path = toolkit.ptxas()
    if path is None:
        detail = "no ptxas: on Hopper, warps of all roles get an even share of the registers"
        return Finding("assembler", "absent", detail, 'pip install "tessera[gpu-cuda]"')
    return Finding("assembler", "ok", str(path))


def _cuda() -> Finding:
    from tessera.runtime.cuda import device_count

    count = device_count()
    if count == 0:
        return Finding("GPU", "absent", "the driver lists no device", "check CUDA_VISIBLE_DEVICES")
    found, _ = _packages(_GPU_PACKAGES)
    names = ", ".join(
        f"{info.device} {info.name} ({info.target})" for info in backend.devices() if not info.device.is_host
    )
    return Finding("GPU", "ok", f"{names}; {_run_saxpy('cuda:0')}; {', '.join(found)}")


def _frameworks() -> Finding:
    found = [name for name in ("torch", "jax", "cupy") if importlib.util.find_spec(name) is not None]
    versions, _ = _packages(tuple(found))
    if not versions:
        return Finding("frameworks", "absent", "no PyTorch, JAX or CuPy (NumPy is enough)")
    return Finding("frameworks", "ok", f"{', '.join(versions)}: their arrays pass without a copy")


_MISSING = ("missing-extra", "no-driver", "no-device")


def _checked(subject: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (TargetError, DeviceError) as error:
        if error.code in _MISSING:
            mend = _EXTRA if error.code == "missing-extra" else error.help or ""
            return Finding(subject, "absent", error.message, mend)
        return Finding(subject, "broken", error.message, error.help or "")
    except TesseraError as error:
        return Finding(subject, "broken", f"[{error.code}] {error.message}", error.help or "")
    except ImportError as error:
        return Finding(subject, "broken", str(error), "reinstall: pip install --force-reinstall tessera")


_CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("Python", _python),
    ("packages", _base_packages),
    ("environment", _environment),
    ("kernel cache", _cache),
    ("CPU", _cpu),
    ("compiled entry", _entry),
    ("GPU code", _ptx),
    ("assembler", _assembler),
    ("GPU", _cuda),
    ("frameworks", _frameworks),
)


def findings() -> Iterator[Finding]:
    """Yield the outcome of every check."""
    for subject, check in _CHECKS:
        yield _checked(subject, check)


@click.command()
def doctor() -> None:
    """Say what works on this machine, and the line that mends what does not.

    Compiles and runs a kernel on the CPU, and on the GPU where there is one.
    """
    screen = console()
    screen.print(f"Tessera {tessera.__version__} ({sys.prefix})")
    table = Table(box=None, pad_edge=False, show_header=False)
    mends: list[tuple[str, str]] = []
    for finding in findings():
        table.add_row(finding.subject, _MARKS[finding.state], _escaped(finding.detail))
        if finding.mend and finding.state != "ok":
            mends.append((finding.subject, finding.mend))
    screen.print(table)
    for subject, mend in mends:
        screen.print(f"to mend {subject}: {_escaped(mend)}", soft_wrap=True)


def _escaped(text: str) -> Any:
    from rich.markup import escape

    return escape(text)
