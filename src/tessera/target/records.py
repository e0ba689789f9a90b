"""Capability records: what each target has. Frozen data; lowering and schedules ask these and nothing else."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from tessera.data import dataclass
from tessera.target.machines import MIDDLING, Machine

_MATRIX_UNITS_OF_CPUS = {"f16": ("amx-fp16",), "bf16": ("amx-bf16",), "int8": ("amx-int8", "i8mm")}
"""Features of CPUs that multiply matrices of a dtype: AMX's tiles, and Arm's BFMMLA and SMMLA."""


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What one target can do.

    Args:
        name: its name, such as `sm_90a` or `x86-64-v4`.
        backend: name of the platform that compiles for it.
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
        machine: how fast it is (GPUs).
    """

    name: str
    backend: str
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
    machine: Machine = MIDDLING

    def has(self, feature: str) -> bool:
        """Return whether the target has an optional ability."""
        return feature in self.features

    def crowding_pitch(self, rows: int) -> int:
        """Return the power of two, in bytes, at multiples of which rows crowd into few sets of the second-level cache.

        With such a pitch each set in use would have to hold as many rows as it has ways.

        Args:
            rows: how many rows are in use at a time.
        """
        return 1 << (max(self.l2_bytes // max(rows, 1), 1).bit_length() - 1)

    @property
    def simt(self) -> bool:
        """Whether programs are threads in lockstep, and tiles fragments that they hold."""
        return self.warp_size > 1

    def _multiplies(self, kind: str) -> bool:
        """Return whether a unit multiplies matrices of a kind of elements."""
        return not self.features.isdisjoint((f"mma_{kind}", *_MATRIX_UNITS_OF_CPUS.get(kind, ())))

    def capabilities(self) -> dict[str, Any]:
        """Return the record under the keys of the portability guide."""
        kinds = ("f16", "bf16", "tf32", "int8", "fp8_e4m3", "fp8_e5m2", "f64")
        names = {"f16": "fp16", "f64": "fp64"}
        return {
            "backend": self.backend,
            "target": self.name,
            "tensorcore": {names.get(kind, kind): self._multiplies(kind) for kind in kinds},
            "warp_size": self.warp_size,
            "cp_async": "cp_async" in self.features,
            "shared_bytes_per_block": self.shared_bytes,
            "max_threads_per_block": self.max_threads,
            "features": sorted(self.features),
        }
