"""What a CPU must have to run compiled code, recorded in each artefact and checked before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tessera.runtime.host import architecture, matrix_unit_granted
from tessera.target.records import TargetRecord

_LEVEL_1 = ("sse", "sse2")
_LEVEL_2 = (*_LEVEL_1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_LEVEL_3 = (*_LEVEL_2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_LEVEL_4 = (*_LEVEL_3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_SAPPHIRE_RAPIDS = (
    *_LEVEL_4,
    "adx",
    "aes",
    "amx-bf16",
    "amx-int8",
    "amx-tile",
    "avx512bf16",
    "avx512bitalg",
    "avx512fp16",
    "avx512ifma",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512vnni",
    "avx512vpopcntdq",
    "avxvnni",
    "crc32",
    "gfni",
    "pclmul",
    "prfchw",
    "sha",
    "vaes",
    "vpclmulqdq",
)
_IMPLIED = {
    "x86-64": _LEVEL_1,
    "x86-64-v3": _LEVEL_3,
    "x86-64-v4": _LEVEL_4,
    "sapphirerapids": _SAPPHIRE_RAPIDS,
    "graniterapids": (*_SAPPHIRE_RAPIDS, "amx-fp16"),
    "generic": ("fp-armv8", "neon"),
}
"""What LLVM may use for a CPU's name, by the x86-64 psABI and LLVM's own tables, without what is for systems only."""
_FOR_SYSTEMS = frozenset(
    {
        "64bit",
        "cldemote",
        "clflushopt",
        "clwb",
        "clzero",
        "enqcmd",
        "fsgsbase",
        "fxsr",
        "hreset",
        "invpcid",
        "kl",
        "lwp",
        "mmx",
        "movdir64b",
        "movdiri",
        "mwaitx",
        "pconfig",
        "pku",
        "prefetchi",
        "ptwrite",
        "raoint",
        "rdpid",
        "rdpru",
        "rdrnd",
        "rdseed",
        "rtm",
        "serialize",
        "sgx",
        "shstk",
        "tsxldtrk",
        "uintr",
        "usermsr",
        "waitpkg",
        "wbnoinvd",
        "widekl",
        "xsave",
        "xsavec",
        "xsaveopt",
        "xsaves",
    }
)
"""Features whose instructions are emitted only on request: other code needs none of them."""


def required_features(target: TargetRecord) -> list[str]:
    """Return what a CPU must have to run code for a target: its architecture, then LLVM's names of features."""
    told = target.llvm_features.split(",")
    used, left_out = ({name[1:] for name in told if name.startswith(sign)} for sign in "+-")
    needed = {*_IMPLIED.get(target.cpu, ()), *used} - left_out - _FOR_SYSTEMS
    return [target.triple.split("-")[0].replace("arm64", "aarch64"), *sorted(needed)]


@cache
def _present() -> frozenset[str]:
    """Return what this CPU has, with the system's leave, under the names of `required_features`."""
    arch = architecture()
    found: Any = llvm.get_host_cpu_features()
    names = {name for name, has in found.items() if has}
    if not matrix_unit_granted():
        names = {name for name in names if not name.startswith("amx-")}
    return frozenset({arch, *names, *(_LEVEL_1 if arch == "x86_64" else _IMPLIED["generic"])})


def missing_features(required: Sequence[str]) -> list[str]:
    """Return what this CPU lacks of what code requires."""
    return [name for name in required if name not in _present()]
