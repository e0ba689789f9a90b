"""Capability records: what each target has. Frozen data; lowering and schedules ask these and nothing else.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" (shared memory, registers, threads); PTX ISA, target
notes of each instruction (features).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from tessera.errors import TargetError

Backend = Literal["cpu", "ptx", "rocm", "level_zero"]


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What one target can do.

    Args:
        name: its name, such as `sm_90a` or `x86-64-v4`.
        backend: the backend that compiles for it.
        features: names of optional abilities (`cp_async`, `ldmatrix`, `mma_bf16`, `avx512f` …).
        warp_size: lanes of a warp, 1 on a CPU.
        shared_bytes: shared memory one program may use, in bytes.
        max_threads: threads one program may have.
        registers: 32-bit registers of one multiprocessor.
        vector_bytes: bytes of one vector register (CPU).
        l1_bytes: first-level data cache of one core (CPU).
        l2_bytes: second-level cache of one core (CPU).
        cores: CPUs that programs run on (CPU).
        triple: LLVM target triple.
        cpu: LLVM CPU name.
        llvm_features: LLVM feature string.
        ptx_version: PTX ISA version asked for, such as `86` for 8.6 (NVIDIA).
    """

    name: str
    backend: Backend
    features: frozenset[str] = field(default=frozenset())
    warp_size: int = 1
    shared_bytes: int = 0
    max_threads: int = 1
    registers: int = 0
    vector_bytes: int = 0
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    cores: int = 8
    triple: str = ""
    cpu: str = ""
    llvm_features: str = ""
    ptx_version: int = 0

    def has(self, feature: str) -> bool:
        """Return whether the target has an optional ability."""
        return feature in self.features

    def crowding_pitch(self, rows: int) -> int:
        """Return the power of two at multiples of which rows crowd into a few sets of the second cache, in bytes.

        With such a distance each set in use would have to hold as many rows as it has ways.

        Args:
            rows: how many rows are in use at a time.
        """
        return 1 << (max(self.l2_bytes // max(rows, 1), 1).bit_length() - 1)

    @property
    def sm(self) -> int:
        """Compute capability as a number (`90` for sm_90a), 0 elsewhere."""
        match = re.match(r"sm_(\d+)", self.name)
        return int(match.group(1)) if match else 0

    def capabilities(self) -> dict[str, Any]:
        """Return the record under the keys of the portability guide."""
        kinds = ("f16", "bf16", "tf32", "int8", "fp8_e4m3", "fp8_e5m2", "f64")
        names = {"f16": "fp16", "f64": "fp64"}
        return {
            "backend": self.backend,
            "target": self.name,
            "tensorcore": {names.get(kind, kind): f"mma_{kind}" in self.features for kind in kinds},
            "warp_size": self.warp_size,
            "cp_async": "cp_async" in self.features,
            "shared_bytes_per_block": self.shared_bytes,
            "max_threads_per_block": self.max_threads,
            "features": sorted(self.features),
        }


_SINCE: tuple[tuple[int, tuple[str, ...]], ...] = (
    (70, ("mma_f16", "shuffle_sync", "f16_arith")),
    (75, ("ldmatrix", "mma_f16_m16n8k8", "mma_int8", "tanh_approx")),
    (80, ("cp_async", "mma_m16n8k16", "mma_bf16", "mma_tf32", "mma_f64", "bf16_arith", "max_nan", "redux")),
    (89, ("mma_fp8_e4m3", "mma_fp8_e5m2", "cvt_fp8")),
    (90, ("tma", "mbarrier_tx", "clusters", "stmatrix", "atomic_bf16x2", "grid_dependency")),
)

_SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
_ARCH_SPECIFIC = {
    "sm_90a": ("wgmma", "setmaxnreg"),
    "sm_100a": ("tcgen05", "setmaxnreg"),
    "sm_120a": ("mma_block_scale",),
}
NVIDIA_TARGETS = (
    "sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120", "sm_120a",
)  # fmt: skip


def _nvidia(name: str) -> TargetRecord:
    sm = int(re.sub(r"\D", "", name))
    features = {f for since, names in _SINCE if sm >= since for f in names} | set(
        _ARCH_SPECIFIC.get(name, ())
    )
    return TargetRecord(
        name=name, backend="ptx", features=frozenset(features), warp_size=32, shared_bytes=_SHARED[sm] * 1024,
        max_threads=1024, registers=65536, triple="nvptx64-nvidia-cuda", cpu=name,
        ptx_version=_ptx_version(sm),
    )  # fmt: skip


def _ptx_version(sm: int) -> int:
    """Return a PTX ISA version that knows the target and the instructions used for it (8.0 is CUDA 12.0's)."""
    if sm >= 120:
        return 87
    if sm >= 100:
        return 86
    return 84 if sm >= 89 else 80


def _sapphire_rapids(name: str, *more: str) -> TargetRecord:
    """Return a server CPU with a matrix unit (AMX), under its LLVM name."""
    features = {
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bf16",
        "avx512vnni",
        "amx-tile",
        "amx-bf16",
        "amx-int8",
        *more,
    }
    return TargetRecord(
        name, "cpu", frozenset(features), vector_bytes=64, l1_bytes=48 << 10, l2_bytes=2 << 20,
        triple="x86_64-unknown-linux-gnu", cpu=name, llvm_features="-prefer-256-bit",
    )  # fmt: skip


_CPUS: dict[str, TargetRecord] = {
    record.name: record
    for record in (
        TargetRecord(
            "x86-64", "cpu", frozenset({"sse2"}), vector_bytes=16, triple="x86_64-unknown-linux-gnu", cpu="x86-64"
        ),
        TargetRecord(
            "x86-64-v3", "cpu", frozenset({"avx2", "fma", "f16c"}), vector_bytes=32, triple="x86_64-unknown-linux-gnu",
            cpu="x86-64-v3",
        ),
        TargetRecord(
            "x86-64-v4", "cpu", frozenset({"avx2", "fma", "f16c", "avx512f"}), vector_bytes=64,
            triple="x86_64-unknown-linux-gnu", cpu="x86-64-v4", llvm_features="-prefer-256-bit",
        ),
        _sapphire_rapids("sapphirerapids"),
        _sapphire_rapids("graniterapids", "amx-fp16"),
        TargetRecord(
            "aarch64", "cpu", frozenset({"neon", "fma", "f16c"}), vector_bytes=16, triple="aarch64-unknown-linux-gnu",
            cpu="generic",
        ),
    )
}  # fmt: skip
CPU_TARGETS = tuple(_CPUS)


def known_targets() -> tuple[str, ...]:
    """Return the names `target_named` accepts; `cpu` means this host."""
    return ("cpu", *CPU_TARGETS, *NVIDIA_TARGETS)


@cache
def target_named(name: str) -> TargetRecord:
    """Return the record called `name` (not `cpu`: the CPU backend makes the host's own).

    Raises:
        TargetError: `unknown-target`, with the names there are.
    """
    if name in NVIDIA_TARGETS:
        return _nvidia(name)
    if name in _CPUS:
        return _CPUS[name]
    raise TargetError(
        f"no target is called {name!r}", code="unknown-target", help=f"one of {', '.join(known_targets())}"
    )
