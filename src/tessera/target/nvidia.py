"""The NVIDIA GPUs that code is generated for.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" (shared memory, registers, threads); PTX ISA, target
notes of each instruction (features).
"""

from __future__ import annotations

import re
from functools import cache

from tessera.target.machines import MIDDLING, Machine
from tessera.target.records import TargetRecord

_SINCE: tuple[tuple[int, tuple[str, ...]], ...] = (
    (70, ("mma_f16", "shuffle_sync", "f16_arith")),
    (75, ("ldmatrix", "mma_f16_m16n8k8", "mma_int8", "tanh_approx")),
    (80, ("cp_async", "mma_m16n8k16", "mma_bf16", "mma_tf32", "mma_f64", "bf16_arith", "max_nan", "redux")),
    (89, ("mma_fp8_e4m3", "mma_fp8_e5m2", "cvt_fp8")),
    (90, ("tma", "mbarrier_tx", "clusters", "stmatrix", "atomic_bf16x2", "grid_dependency", "mma_f64_m16n8")),
)

_SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
_ARCH_SPECIFIC = {
    "sm_90a": ("wgmma", "setmaxnreg"),
    "sm_100a": ("tcgen05", "setmaxnreg"),
    "sm_120a": ("mma_block_scale",),
}
_MACHINES = {
    80: MIDDLING,
    86: Machine(84, 0.8e12, 0.7e12, 40e9),
    89: Machine(128, 1.2e12, 0.9e12, 45e9),
    90: Machine(132, 5.45e12, 3.7e12, 162e9),
    100: Machine(148, 12.0e12, 7.0e12, 80e9),
    120: Machine(170, 1.4e12, 1.7e12, 60e9),
}
"""By compute capability: the largest of its kind. Another one is taken for the next lower known."""

NVIDIA_TARGETS = (
    "sm_70",
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_89",
    "sm_90",
    "sm_90a",
    "sm_100",
    "sm_100a",
    "sm_120",
    "sm_120a",
)


def compute_capability(name: str) -> int:
    """Return the number in a target's name: 90 for `sm_90a`."""
    return int(re.sub(r"\D", "", name))


@cache
def nvidia_target(name: str) -> TargetRecord:
    """Return the record of one of `NVIDIA_TARGETS`."""
    sm = compute_capability(name)
    features = {f for since, names in _SINCE if sm >= since for f in names} | set(_ARCH_SPECIFIC.get(name, ()))
    return TargetRecord(
        name=name,
        backend="ptx",
        features=frozenset(features),
        warp_size=32,
        shared_bytes=_SHARED[sm] * 1024,
        max_threads=1024,
        registers=65536,
        triple="nvptx64-nvidia-cuda",
        cpu=name,
        ptx_version=_ptx_version(sm),
        machine=_MACHINES[max((known for known in _MACHINES if known <= sm), default=80)],
    )


def _ptx_version(sm: int) -> int:
    """Return a PTX ISA version that knows the target and what is used for it; 8.1 (CUDA 12.1) has long parameters."""
    if sm >= 120:
        return 87
    if sm >= 100:
        return 86
    return 84 if sm >= 89 else 81
