"""The host's own target record, from what LLVM says about the CPU."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tessera.runtime.host import architecture, kept, matrix_unit_granted
from tessera.target.cpus import WITHOUT
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

KNOWN_FEATURES = {
    "x86_64": (
        "sse2",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512vl",
        "avx512bw",
        "avx512dq",
        "avx512bf16",
        "avx512vnni",
        "avxvnni",
        "amx-tile",
        "amx-bf16",
        "amx-fp16",
        "amx-int8",
    ),
    "aarch64": ("neon", "fp-armv8", "fullfp16", "bf16", "dotprod", "i8mm", "sve", "sve2"),
}
"""LLVM's names of the features that a record lists."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def cache_bytes(level: int) -> int:
    """Return the size of a core's data cache as Linux reports it; 0 where it is not known."""
    for index in sorted(_CACHES.glob("index*")):
        try:
            kind, found, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if found == str(level) and kind in ("Data", "Unified") and size.endswith("K"):
            return int(size[:-1]) << 10
    return 0


def _asked() -> bytes:
    """Return what LLVM says of this machine's CPU, as JSON."""
    import llvmlite.binding as llvm  # takes longer than all else that a kernel from the disk cache needs

    host: Any = llvm.get_host_cpu_features()
    names = sorted(name for name, present in host.items() if present)
    facts = names, host.flatten(), llvm.get_process_triple(), llvm.get_host_cpu_name()
    return json.dumps(facts).encode()


@cache
def host_target() -> TargetRecord:
    """Return the record of this machine's CPU, named `cpu`."""
    arch = architecture()
    names, flat, triple, cpu = json.loads(kept("host", _asked))
    features = frozenset(KNOWN_FEATURES[arch]) & {*names}
    if arch == "aarch64":
        features |= {"neon", "fma", "f16c"}
        vector_bytes = 16
    else:
        features |= {"sse2"}
        if "avx512f" in features and not {"avx512vl", "avx512bw", "avx512dq"} <= features:
            features -= {"avx512f"}  # code generation counts on the whole of x86-64-v4
        if "amx-tile" in features and not matrix_unit_granted():
            features = frozenset(name for name in features if not name.startswith("amx-"))
        vector_bytes = 64 if "avx512f" in features else 32 if "avx2" in features else 16
    return TargetRecord(
        name="cpu",
        backend="cpu",
        features=features,
        vector_bytes=vector_bytes,
        l1_bytes=cache_bytes(1) or 32 << 10,
        l2_bytes=cache_bytes(2) or 512 << 10,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        triple=triple,
        cpu=cpu,
        llvm_features=",".join([flat, *(WITHOUT if vector_bytes == 64 else ())]),
    )


def resolve(target: TargetRecord) -> TargetRecord:
    """Return the record to compile for: x86-64-v4 and its kind imply features that must be named to LLVM."""
    if target.name == "x86-64-v4":
        known = target_named("x86-64-v4")
        implied = frozenset({"avx512vl", "avx512bw", "avx512dq"})
        return TargetRecord(
            known.name,
            known.backend,
            known.features | implied,
            vector_bytes=known.vector_bytes,
            triple=known.triple,
            cpu=known.cpu,
            llvm_features=known.llvm_features,
        )
    return target
