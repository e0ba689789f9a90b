"""LLVM IR to PTX (LLVM's NVPTX back end), and PTX to cubin (the vendor's nvJitLink; no GPU needed)."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

from llvmlite import binding

from tessera.errors import CompilerFault, TargetError
from tessera.target.nvidia import compute_capability
from tessera.target.records import TargetRecord

# llvmlite and nvJitLink ship no types.
llvm: Any = binding

OLDEST_CUBIN = 75
"""CUDA 13's nvJitLink assembles from sm_75 on; older targets are PTX, which the driver compiles at load."""


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # 32-bit shared-memory pointers: addresses cost half the registers.
    llvm.set_option("tessera", "--nvptx-short-ptr")


@cache
def target_machine(cpu: str, ptx_version: int) -> Any:
    """Return LLVM's machine for a GPU; its names come from target records, as an unknown one aborts the process."""
    _initialise()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=cpu, features=f"+ptx{ptx_version}", opt=3, reloc="pic")


def to_ptx(text: str, target: TargetRecord) -> tuple[str, str]:
    """Optimise an LLVM module and return its final IR and its PTX.

    Raises:
        CompilerFault: LLVM rejects the module.
    """
    machine = target_machine(target.cpu, target.ptx_version)
    try:
        module = llvm.parse_assembly(text)
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompilerFault(f"LLVM rejects the generated module: {error}", code="invalid-llvm") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    optimised = str(module)
    return optimised, _spell_negations(machine.emit_assembly(module), target)


def _spell_negations(ptx: str, target: TargetRecord) -> str:
    """Write `-x` as `~x + 1` in code that also takes signed maxima or minima, for sm_90 to sm_103.

    There ptxas, nvJitLink and drivers up to CUDA 13.3 make one VIMNMX3 of `max(max(a, b), c)` and forget the negation
    of its second operand. Plain LLVM IR would not do: LLVM folds both forms into `neg`.
    """
    if (
        not 90 <= compute_capability(target.name) < 120
        or re.search(r"\b(?:max|min)\.s(?:16|32)\b", ptx) is None
    ):
        return ptx
    return re.sub(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);", r"not.b\1 \t\2, \3; add.s\1 \t\2, \2, 1;", ptx)


def can_assemble(target: TargetRecord) -> bool:
    """Return whether nvJitLink makes a cubin for the target."""
    return compute_capability(target.name) >= OLDEST_CUBIN


def to_cubin(ptx: str, target: TargetRecord) -> tuple[bytes, str]:
    """Assemble PTX and return the cubin and the assembler's report.

    Raises:
        TargetError: `missing-extra` when nvJitLink is not installed.
        CompilerFault: the assembler rejects the PTX.
    """
    nvjitlink = _nvjitlink()
    options = [f"-arch={target.name}", "-O3", "-verbose"]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise CompilerFault(f"nvJitLink does not know {target.name}: {error}", code="invalid-ptx") from error
    except RuntimeError as error:  # the library is not on the machine
        raise TargetError(
            f"nvJitLink cannot be loaded: {error}",
            code="missing-extra",
            help='pip install "tessera[gpu-cuda]"',
        ) from error
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "tessera.ptx")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(nvjitlink, handle, "info")
    except nvjitlink.nvJitLinkError as error:
        log = _log(nvjitlink, handle, "error")
        raise CompilerFault(
            f"the assembler rejects the generated PTX: {log or error}", code="invalid-ptx"
        ) from error
    finally:
        nvjitlink.destroy(handle)


def _nvjitlink() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvjitlink")
    except ImportError as error:
        raise TargetError(
            "assembling for NVIDIA GPUs needs nvJitLink", code="missing-extra",
            help='pip install "tessera[gpu-cuda]"',
        ) from error  # fmt: skip


def _log(nvjitlink: Any, handle: Any, kind: str) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    if size <= 1:
        return ""
    buffer = bytearray(size)
    getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


def resources(report: str) -> dict[str, dict[str, int]]:
    """Return registers, spills and stack of each kernel from the assembler's report.

    `serialized_products` is 1 where the assembler waits for each warpgroup product before it goes on, whatever the
    code says, because it could not keep the registers apart.
    """
    serialized = re.findall(r"wgmma\.mma_async instructions are serialized.*function '([\w$.]+)'", report)
    found: dict[str, dict[str, int]] = {name: {"serialized_products": 1} for name in serialized}
    name = ""
    for line in report.splitlines():
        if (
            entry := re.search(r"(?:entry function|Function properties for) '?([\w$.]+)'?", line)
        ) is not None:
            name = entry.group(1)
        record = found.setdefault(name, {}) if name else {}
        for key, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("stack_bytes", r"(\d+) bytes stack frame"),
            ("spill_store_bytes", r"(\d+) bytes spill stores"),
            ("spill_load_bytes", r"(\d+) bytes spill loads"),
            ("barriers", r"used (\d+) barriers"),
        ):
            if (match := re.search(pattern, line)) is not None:
                record[key] = int(match.group(1))
    return found


_INSTRUCTIONS = {
    "mma": r"\bmma\.sync",
    "wgmma": r"\bwgmma\.mma_async",
    "tcgen05": r"\btcgen05\.mma",
    "ldmatrix": r"\bldmatrix\.",
    "stmatrix": r"\bstmatrix\.",
    "cp.async": r"\bcp\.async\.c[ag]\.",
    "tma": r"\bcp\.async\.bulk\.",
    "barrier": r"\bbar(?:rier)?\.(?:cta\.)?sync",
    "shuffle": r"\bshfl\.",
    "fma": r"\bfma\.rn",
    "atomic": r"\b(?:atom|red)\.",
}


def instruction_counts(ptx: str) -> dict[str, int]:
    """Return how often each kind of matrix, copy and synchronisation instruction stands in the PTX."""
    counts = {name: len(re.findall(pattern, ptx)) for name, pattern in _INSTRUCTIONS.items()}
    for kind in re.findall(r"\bmma\.sync\.aligned\.(\S+)", ptx):
        counts[f"mma.{kind}"] = counts.get(f"mma.{kind}", 0) + 1
    return {name: count for name, count in counts.items() if count}
