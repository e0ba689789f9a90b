"""TIR-T of the vector model to object code, for this machine or another."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera.backends.cpu import atomics, codegen, memory, misc, products
from tessera.backends.cpu.emitter import AssertTable, CpuEmitter
from tessera.backends.cpu.features import required_features
from tessera.backends.cpu.host import resolve
from tessera.backends.cpu.shared import can_share, linked, texts_of
from tessera.backends.llvm.assembly import refusing_assembly
from tessera.backends.llvm.code import CompiledCode
from tessera.backends.llvm.refusals import refusal
from tessera.backends.llvm.text import ModuleText
from tessera.errors import CompilerFault
from tessera.ir.target.memory import AllocOp
from tessera.ir.target.structure import FuncOp
from tessera.target.records import TargetRecord

_HANDLERS = (atomics, memory, misc, products)
"""The files that register how ops are emitted."""

SCRATCH_PADDING = 64
_COUNTED = re.compile(r"^\s+(vfn?madd\w+|vdpbf16ps|fmla|fmul|vmulps|vpmulld|vpdp\w+|tdp\w+)\b", re.MULTILINE)
_FMA = re.compile(r"call \S.* @llvm\.fma\.")
_SPILL = re.compile(r"-byte (?:Folded )?Spill")


def emit_llvm(module: ModuleOp, target: TargetRecord) -> tuple[str, dict[str, Any]]:
    """Return the LLVM IR text of a TIR-T module and what is known of it.

    Args:
        module: functions of the vector model.
        target: the CPU.
    """
    text, facts = _emitted(module, resolve(target), shares=False)
    return text.render(), facts


def _emitted(module: ModuleOp, target: TargetRecord, shares: bool) -> tuple[ModuleText, dict[str, Any]]:
    text, asserts = ModuleText(triple=target.triple, shares=shares), AssertTable()
    kernels: dict[str, dict[str, int]] = {}
    for func in module.ops:
        if isinstance(func, FuncOp):
            CpuEmitter(text, func, target, asserts).emit()
            kernels[func.sym_name.data] = {"scratch_bytes": scratch_bytes(func)}
    facts = {
        "target": target.name,
        "cpu": target.cpu,
        "features": sorted(target.features),
        "vector_bytes": target.vector_bytes,
        "requires": required_features(target),
        "kernels": kernels,
        "asserts": asserts.records,
    }
    return text, facts


def scratch_bytes(func: FuncOp) -> int:
    """Return the scratch memory that a worker needs for a function."""
    ends = [
        op.offset.data + op.result.type.size_bytes  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        for op in func.body.block.ops
        if isinstance(op, AllocOp)
    ]
    # Whole vectors are read and written at a buffer's end, up to one vector of 64-bit elements too far.
    return max(ends) + 2 * SCRATCH_PADDING if ends else 0


def compile_cpu(module: ModuleOp, target: TargetRecord, dump: Collection[str] = ("ll", "asm")) -> CompiledCode:
    """Compile TIR-T functions to an object file.

    Args:
        module: functions of the vector model.
        target: the CPU, `host_target()`, or the record of another one (compiled for in a worker process).
        dump: stages wanted as text, of `ll` and `asm`. With the latter, which takes as long as the object code,
            instructions and spills are counted in it; otherwise fused multiply-adds in the IR.

    Raises:
        CompilerFault: `llvm-failed` when LLVM rejects the code, with its message.
        LanguageError: `bad-assembly` when it rejects inline assembly.
    """
    target = resolve(target)
    with refusing_assembly(module) as has_assembly:
        if has_assembly:  # one that is wrong ends the process
            return _compiled_apart(module, target, dump)
    if target.name != "cpu":
        return _compiled_apart(module, target, dump)
    try:
        return _compiled_here(module, target, dump)
    except RuntimeError as error:
        raise CompilerFault(f"LLVM rejects the code: {error}", code="llvm-failed") from error


def _compiled_apart(module: ModuleOp, target: TargetRecord, dump: Collection[str]) -> CompiledCode:
    ir, facts = emit_llvm(module, target)
    return _compiled([ir], facts, dump, *_compile_apart(_request(ir, target, dump)))


def _compiled_here(module: ModuleOp, target: TargetRecord, dump: Collection[str]) -> CompiledCode:
    if can_share(target) and {"ll", "asm"}.isdisjoint(dump):
        text, facts = _emitted(module, target, shares=True)
        whole = linked(text, lambda ir: codegen.compile_ir(**_request(ir, target, ()))[0])
        if whole is not None:
            return _compiled([*texts_of(text)], facts, (), *codegen.compile_ir(**_request(whole, target, ())))
    ir, facts = emit_llvm(module, target)
    return _compiled([ir], facts, dump, *codegen.compile_ir(**_request(ir, target, dump)))


def write_cpu(module: ModuleOp, target: TargetRecord) -> CompiledCode:
    """Return the LLVM IR of TIR-T functions, without object code."""
    ir, facts = emit_llvm(module, target)
    return CompiledCode(b"", "", {"ll": ir}, facts)


def resume_cpu(ir: str, target: TargetRecord, dump: Collection[str]) -> CompiledCode:
    """Compile LLVM IR, which may have been edited, to an object file.

    Args:
        ir: LLVM IR as `compile_cpu` dumps it.
        target: the CPU.
        dump: as for `compile_cpu`.

    Raises:
        VerifyError: LLVM rejects the text; has the line where LLVM tells it.
    """
    try:
        return _compiled([ir], {}, dump, *_compile_apart(_request(ir, resolve(target), dump)))
    except CompilerFault as error:
        raise refusal(error.message, ir) from error


def _request(ir: str, target: TargetRecord, dump: Collection[str]) -> dict[str, Any]:
    return {
        "ir": ir,
        "triple": target.triple,
        "cpu": target.cpu,
        "features": target.llvm_features,
        "avx512": target.has("avx512f") or "+avx512f" in target.llvm_features,
        "native": target.name == "cpu",
        "assembly": "asm" in dump,
    }


def _compiled(
    irs: Sequence[str], facts: dict[str, Any], dump: Collection[str], code: bytes, assembly: str
) -> CompiledCode:
    """Return code with what is known of it; the first text is the module's, others are those of what it calls."""
    texts: dict[str, str | bytes] = {"ll": irs[0], "asm": assembly}
    facts = {**facts, "instructions": {"fma": sum(len(_FMA.findall(ir)) for ir in irs)}}
    if assembly:
        facts["instructions"] = dict(Counter(_COUNTED.findall(assembly)))
        facts["spills"] = len(_SPILL.findall(assembly))
    return CompiledCode(code, "object", {name: text for name, text in texts.items() if name in dump}, facts)


def _compile_apart(request: dict[str, Any]) -> tuple[bytes, str]:
    """Compile in a process of its own, so that a fault of a back end ends only that."""
    import subprocess  # here, as code for this machine needs none

    command = [sys.executable, str(Path(codegen.__file__))]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if found := re.search(r"^.*\berror: .*$", said, re.MULTILINE):
            said = found.group()
        last = said[said.rfind("\nRuntimeError: ") + 1 :] if "\nRuntimeError: " in said else said.rpartition("\n")[2]
        raise CompilerFault(f"LLVM failed for {request['cpu']}: {last or 'no message'}", code="llvm-failed")
    size = int.from_bytes(done.stdout[:8], "little")
    return done.stdout[8 : 8 + size], done.stdout[8 + size :].decode()
