"""The NVIDIA backend: TIR-T to LLVM IR to PTX to cubin, on any machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera.backends.llvm.assembly import refusing_assembly
from tessera.backends.llvm.code import CompiledCode
from tessera.backends.llvm.emitter import load_handlers
from tessera.backends.llvm.refusals import refusal
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import memory_element
from tessera.backends.nvidia.assemble import (
    can_assemble,
    instruction_counts,
    resources,
    resume_ptx,
    to_cubin,
    to_ptx,
    with_fewer_residents,
)
from tessera.backends.nvidia.emitter import SHARED_SYMBOL, NvidiaEmitter
from tessera.backends.nvidia.hopper import GROUP_WARPS
from tessera.backends.nvidia.in_flight import check_products, used_in_flight
from tessera.backends.nvidia.ptxas import assemble as assemble_whole
from tessera.backends.simt.placement import place_shared
from tessera.errors import CompilerFault, ResourceError
from tessera.ir.locations import location_of
from tessera.ir.target.product import ProductOp
from tessera.ir.target.roles import RolesOp
from tessera.ir.target.structure import FuncOp, GridWaitOp, ProgramCountOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import element_of
from tessera.ir.target.warpgroup import TensorCoreStartOp
from tessera.ir.walking import ops_in
from tessera.numerics.dtypes import BY_NAME
from tessera.runtime import toolkit
from tessera.target.artifact import Parameter
from tessera.target.records import TargetRecord

_PRODUCTS = (ProductOp, TensorCoreOp, TensorCoreStartOp)


def compile_nvidia(module: ModuleOp, target: TargetRecord, *, assemble: bool = True) -> CompiledCode:
    """Compile TIR-T functions for an NVIDIA GPU.

    Args:
        module: functions with fragments.
        target: the GPU.
        assemble: whether to make a cubin (targets older than nvJitLink's oldest give PTX).

    Raises:
        ResourceError: `shared-memory` when a program needs more than the target has; lists the buffers.
        CompilerFault: LLVM rejects the code.
        LanguageError: `bad-assembly` when the assembler rejects inline assembly.
        TargetError: `missing-extra` when the assembler is not installed.
    """
    load_handlers("tessera.backends.simt", __name__)
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    shared = {func.sym_name.data: place_buffers(func, target) for func in functions}
    source = _written(functions, target)
    optimised, ptx = to_ptx(source, target)
    if used_in_flight(ptx):
        source = _written(functions, target, copies_sums=True)
        optimised, ptx = to_ptx(source, target)
        check_products(ptx)
    texts = {"llvm": source, "ll": optimised, "ptx": ptx}
    known = _known(functions, shared)
    if not assemble:
        return CompiledCode(ptx.encode(), "ptx", {**texts}, _reflection(known, {}, ptx))
    with refusing_assembly(module):
        return _assembled(ptx, target, texts, known)


def _written(functions: list[FuncOp], target: TargetRecord, *, copies_sums: bool = False) -> str:
    """Return the LLVM IR of functions; `copies_sums` copies what warpgroup products give behind the wait for it."""
    text = ModuleText("nvptx64-nvidia-cuda")
    text.declare(f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align 1024")
    for func in functions:
        _emit_function(text, func, target, copies_sums)
    return text.render()


def resume_nvidia(level: str, text: str, target: TargetRecord) -> CompiledCode:
    """Compile a dump, which may have been edited.

    Args:
        level: `ll` (LLVM IR after LLVM's passes) or `ptx`.
        text: the dump.
        target: the GPU.

    Raises:
        VerifyError: LLVM or the assembler rejects it; has the line.
        CompilerFault: the assembler rejects PTX that LLVM made.
        TargetError: `missing-extra` when the assembler is not installed.
    """
    if level == "ll":
        ptx = resume_ptx(text, target)
        return _assembled(ptx, target, {"ll": text, "ptx": ptx}, {})
    try:
        return _assembled(text, target, {"ptx": text}, {})
    except CompilerFault as error:
        raise refusal(error.message, text) from error


def _assembled(ptx: str, target: TargetRecord, texts: dict[str, str], known: dict[str, dict[str, Any]]) -> CompiledCode:
    """Make a cubin where there is an assembler for the target."""
    if not can_assemble(target):
        return CompiledCode(ptx.encode(), "ptx", {**texts}, _reflection(known, {}, ptx))
    code, used = _cubin(ptx, target)
    while any(one.get("spill_store_bytes") for one in used.values()) and (freed := with_fewer_residents(ptx)) != ptx:
        texts, ptx = {**texts, "ptx": freed}, freed
        code, used = _cubin(ptx, target)
    return CompiledCode(code, "cubin", {**texts, "cubin": code}, _reflection(known, used, ptx))


def _cubin(ptx: str, target: TargetRecord) -> tuple[bytes, dict[str, dict[str, int]]]:
    """Assemble PTX and return the cubin, and what each kernel takes."""
    tool = toolkit.ptxas() if "setmaxnreg" in ptx else None
    code, report = to_cubin(ptx, target) if tool is None else assemble_whole(tool, ptx, target)
    return code, resources(report)


def _reflection(known: dict[str, dict[str, Any]], used: dict[str, dict[str, int]], ptx: str) -> dict[str, Any]:
    """Return the facts of each kernel, from its TIR-T (none for a dump) and the assembler, and the instructions."""
    kernels = {name: {**known.get(name, {}), **used.get(name, {})} for name in known or used}
    return {"kernels": kernels, "instructions": instruction_counts(ptx)}


def _known(functions: list[FuncOp], shared: dict[str, int]) -> dict[str, dict[str, Any]]:
    return {
        func.sym_name.data: {
            "threads": threads_of(func),
            "persistent": _is_persistent(func),
            "cluster": func.cluster.data,
            "overlaps": any(isinstance(op, GridWaitOp) for op in ops_in(func)),
            "shared_bytes": shared[func.sym_name.data],
        }
        for func in functions
    }


def _is_persistent(func: FuncOp) -> bool:
    """Return whether programs take further tiles: others count programs only to know with how many they share one."""
    counts = any(isinstance(op, ProgramCountOp) for op in ops_in(func))
    return counts and not any(param.parts for param in func.parameters)


def place_buffers(func: FuncOp, target: TargetRecord) -> int:
    """Place the shared buffers and return the bytes a program needs.

    Raises:
        ResourceError: `shared-memory` when the target has less; lists the buffers.
    """
    needed, buffers = place_shared(func)
    if needed > target.shared_bytes:
        counts = Counter(op.result.type for op in buffers)
        sizes = ", ".join(
            f"{f'{count} times ' if count > 1 else ''}{'x'.join(map(str, t.shape))} {t.dtype}: {t.size_bytes}"
            for t, count in counts.items()
        )
        raise ResourceError(
            f"{func.sym_name.data} needs {needed} bytes of shared memory, {target.name} has {target.shared_bytes}",
            code="shared-memory",
            location=location_of(buffers[0]),
            help=f"use smaller tiles or fewer stages; buffers in bytes: {sizes}",
        )
    return needed


def threads_of(func: FuncOp) -> int:
    """Return the threads of a program: the warps that hold fragments, for each group of them, and a producer's."""
    roles = any(isinstance(op, RolesOp) for op in ops_in(func))
    return (_consumer_warps(func) + (GROUP_WARPS if roles else 0)) * 32


def _consumer_warps(func: FuncOp) -> int:
    """Return the warps that hold fragments: as many for each group of consumers."""
    groups = (op.groups.data for op in ops_in(func) if isinstance(op, RolesOp))
    return func.num_warps.data * max(groups, default=1)


def _parameter(record: Parameter, number: int) -> str:
    if record.kind == "tensor_map":
        return f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %p{number}'
    if record.kind in ("pointer", "workspace"):
        return f"ptr addrspace(1) align {max(record.align, 1)} %p{number}"
    if record.kind in ("size", "stride"):
        return f"i64 %p{number}"
    return f"{memory_element(BY_NAME[record.dtype])} %p{number}"


def _emit_function(module: ModuleText, func: FuncOp, target: TargetRecord, copies_sums: bool) -> None:
    threads = threads_of(func)
    ranks = func.cluster.data
    cluster = f' "nvvm.cluster_dim"="{ranks},1,1"' if ranks > 1 else ""
    resident = 1 if func.resident is None else func.resident.data
    group = module.attributes(f'nounwind "nvvm.maxntid"="{threads}" "nvvm.minctasm"="{resident}"{cluster}')
    params = ", ".join(_parameter(record, number) for number, record in enumerate(func.parameters))
    fn = FunctionText(f"define ptx_kernel void @{func.sym_name.data}({params}) {group}")
    exactly = func.divides_exactly is not None
    emitter = NvidiaEmitter(module, fn, func.profile.data, func.num_warps.data, target, exactly)
    emitter.consumer_warps = _consumer_warps(func)
    emitter.copies_sums = copies_sums
    emitter.has_products = any(isinstance(op, _PRODUCTS) for op in ops_in(func))
    emitter.both_halves = {"bf16", "f16"} <= {
        str(element_of(value.type)) for op in ops_in(func) for value in op.results
    }
    for number, (record, arg) in enumerate(zip(func.parameters, func.body.block.args, strict=True)):
        value = f"%p{number}"
        if record.kind == "scalar" and record.dtype == "bool":
            value = fn.entry_assign(f"icmp ne i8 {value}, 0")
        emitter.bind(arg, [value])
    emitter.emit_block(func.body.block)
    module.define(func.sym_name.data, fn.render())
