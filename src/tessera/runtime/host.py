"""What this machine's CPU can do, as far as the system tells it without LLVM."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache

from tessera.errors import TargetError

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_LINUX_NAMES = {
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
}
"""Features of x86-64 that Linux and LLVM call by different names; others differ in dots, dashes and underscores."""
_COLLECTIONS = {
    "avx10.1": (
        *("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx512ifma"),
        *("avx512vnni", "avx512bf16", "avx512bitalg", "avx512vpopcntdq", "avx512fp16"),
    )
}
"""Features that stand for others and add no instruction, which Linux does not list (Intel, "AVX10 Architecture
Specification", 3.1.1: Intel AVX10.1 is the AVX-512 of Xeon 6)."""


Keep = Callable[[str, Callable[[], bytes]], bytes]
"""Returns what is known by a name and made by a function, perhaps from a cache."""

_keep: list[Keep] = []


def keep_by(keep: Keep) -> None:
    """Say how facts about this machine are kept between processes."""
    _keep[:] = [keep]


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return facts about this machine, kept between processes if there is a way."""
    return _keep[0](name, make) if _keep else make()


def architecture() -> str:
    """Return the host's architecture as LLVM calls it.

    Raises:
        TargetError: `unsupported-host` for anything but x86-64 and AArch64.
    """
    machine = platform.machine().lower()
    name = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}.get(machine)
    if name is None:
        raise TargetError(
            f"the CPU backend does not know the architecture {machine!r}",
            code="unsupported-host",
            help="x86-64 and AArch64 are supported",
        )
    return name


@cache
def matrix_unit_granted() -> bool:
    """Ask Linux to save tile registers for this process, without which their use is a fault; return its answer."""
    if not sys.platform.startswith("linux") or architecture() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


@cache
def _listed() -> frozenset[str]:
    """Return the features that Linux lists for the first x86-64 CPU, without underscores."""
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        for line in file.read(8192).split(b"\n"):
            if line.startswith(b"flags"):
                return frozenset(line.decode().replace("_", "").split())
    return frozenset()


def surely_has(required: Iterable[str]) -> bool:
    """Return whether Linux lists all that code requires; LLVM knows the rest (`backends/cpu/features.py`).

    Args:
        required: an architecture, then LLVM's names of features.
    """
    arch, *names = required
    if arch != "x86_64" or architecture() != arch:
        return False
    if any(name.startswith("amx-") for name in names) and not matrix_unit_granted():
        return False
    parts = (part for name in names for part in _COLLECTIONS.get(name, (name,)))
    plain = (_LINUX_NAMES.get(name, name) for name in parts)
    return all(name.replace(".", "").replace("-", "").replace("_", "") in _listed() for name in plain)
