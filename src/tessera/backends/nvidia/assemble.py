"""LLVM IR to PTX (LLVM's NVPTX back end), and PTX to cubin (the vendor's nvJitLink; no GPU needed)."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tessera.backends.llvm.refusals import refusal
from tessera.backends.nvidia import ptx
from tessera.backends.nvidia.assembler_faults import respelled
from tessera.backends.nvidia.in_flight import check_products
from tessera.backends.nvidia.mnemonics import word
from tessera.backends.nvidia.ptx import llvm, parsed, target_machine
from tessera.backends.nvidia.ptxas import rejected, several_at_once
from tessera.errors import CompilerFault, TargetError
from tessera.target.nvidia import compute_capability
from tessera.target.records import TargetRecord

OLDEST_CUBIN = 75
"""CUDA 13's nvJitLink assembles from sm_75 on; older targets are PTX, which the driver compiles at load."""


def to_ptx(text: str, target: TargetRecord) -> tuple[str, str]:
    """Optimise an LLVM module and return its final IR and its PTX.

    Raises:
        CompilerFault: LLVM rejects the module.
    """
    machine = target_machine(target.cpu, target.ptx_version)
    try:
        module = parsed(text, machine)
    except RuntimeError as error:
        raise CompilerFault(f"LLVM rejects the generated module: {error}", code="invalid-llvm") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    optimised = str(module)
    apart = ptx.has_very_many_addresses(optimised)
    return optimised, respelled(_emitted_apart(optimised, target) if apart else machine.emit_assembly(module), target)


def resume_ptx(optimised: str, target: TargetRecord) -> str:
    """Return the PTX of IR that `to_ptx` gave, edited or not; it is not optimised again.

    Raises:
        VerifyError: LLVM rejects it; has the line where LLVM tells it.
        CompilerFault: accumulators of products are used while these still run.
    """
    check_products(made := _emitted_apart(optimised, target))
    return respelled(made, target)


def _emitted_apart(optimised: str, target: TargetRecord) -> str:
    """Return what LLVM makes of optimised IR in a process of its own."""
    request = {"text": optimised, "cpu": target.cpu, "ptx_version": target.ptx_version}
    command = [sys.executable, str(Path(ptx.__file__))]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=False)
    if done.returncode:
        raise refusal(done.stderr.decode(errors="replace"), optimised)
    return done.stdout.decode()


def can_assemble(target: TargetRecord) -> bool:
    """Return whether nvJitLink makes a cubin for the target."""
    return compute_capability(target.name) >= OLDEST_CUBIN


def to_cubin(ptx: str, target: TargetRecord) -> tuple[bytes, str]:
    """Assemble PTX and return the cubin and the assembler's report.

    Raises:
        TargetError: `missing-extra` when nvJitLink is not installed.
        ResourceError: `too-many-arguments`.
        CompilerFault: the assembler rejects the PTX.
    """
    nvjitlink = _nvjitlink()
    options = [f"-arch={target.name}", "-O3", "-verbose", *several_at_once(ptx)]
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
        raise rejected(_log(nvjitlink, handle, "error") or str(error)) from error
    finally:
        nvjitlink.destroy(handle)


def _nvjitlink() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvjitlink")
    except ImportError as error:
        raise TargetError(
            "assembling for NVIDIA GPUs needs nvJitLink",
            code="missing-extra",
            help='pip install "tessera[gpu-cuda]"',
        ) from error


def _log(nvjitlink: Any, handle: Any, kind: str) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    if size <= 1:
        return ""
    buffer = bytearray(size)
    getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


def with_fewer_residents(ptx: str) -> str:
    """Return PTX two thirds of whose kernels' programs have to run at once, so that each may take more registers."""

    def fewer(found: re.Match[str]) -> str:
        return f"{found[1]} {max(2 * int(found[2]) // 3, 1)}"

    return re.sub(r"(?m)^(\.minnctapersm) (\d+)$", fewer, ptx)


_RESOURCES = {
    "stack_bytes": r"(\d+) (?:bytes stack frame|stack\b)",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
    "registers": r"[Uu]sed (\d+) registers",
    "barriers": r"used (\d+) barriers",
}
"""How reports name what a kernel takes, in the order of records: dumps are the same whatever assembler there is."""


def resources(report: str) -> dict[str, dict[str, int]]:
    """Return registers, spills and stack of each kernel from the assembler's report.

    `serialized_products` is 1 where the assembler waits for each warpgroup product before it goes on, whatever the
    code says, because it could not keep the registers apart. Some builds of nvJitLink name the stack and no spills:
    where there is no stack nothing is spilled, as spills lie there.
    """
    serialized = re.findall(r"wgmma\.mma_async instructions are serialized.*function '([\w$.]+)'", report)
    found: dict[str, dict[str, int]] = {name: {"serialized_products": 1} for name in serialized}
    name = ""
    for line in report.splitlines():
        if (entry := re.search(r"(?:entry function|Function properties for) '?([\w$.]+)'?", line)) is not None:
            name = entry.group(1)
        record = found.setdefault(name, {}) if name else {}
        for key, pattern in _RESOURCES.items():
            if (match := re.search(pattern, line)) is not None:
                record[key] = int(match.group(1))
    for record in found.values():
        if record.get("stack_bytes") == 0:
            record.update({"spill_store_bytes": 0, "spill_load_bytes": 0} | record)
    keys = ("serialized_products", *_RESOURCES)
    return {name: {key: record[key] for key in keys if key in record} for name, record in found.items()}


_INSTRUCTIONS = {
    "mma": word("mma") + r"\.sync",
    "wgmma": word("wgmma") + r"\.mma_async",
    "tcgen05": word("tcgen05") + r"\.mma",
    "ldmatrix": word("ldmatrix") + r"\.",
    "stmatrix": word("stmatrix") + r"\.",
    "cp.async": word("cp") + r"\.async\.c[ag]\.",
    "tma": word("cp") + r"\.async\.bulk\.",
    "barrier": word("bar", "barrier") + r"\.(?:cta\.)?sync",
    "shuffle": word("shfl") + r"\.",
    "fma": word("fma") + r"\.rn",
    "atomic": word("atom", "red") + r"\.",
}
"""What instructions of a kind are like."""


def instruction_counts(ptx: str) -> dict[str, int]:
    """Return how often each kind of matrix, copy and synchronisation instruction stands in the PTX."""
    counts = {name: len(re.findall(pattern, ptx)) for name, pattern in _INSTRUCTIONS.items()}
    for kind in re.findall(word("mma") + r"\.sync\.aligned\.(\S+)", ptx) if counts["mma"] else ():
        counts[f"mma.{kind}"] = counts.get(f"mma.{kind}", 0) + 1
    return {name: count for name, count in counts.items() if count}
