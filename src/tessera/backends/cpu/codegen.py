"""LLVM IR to object code. Run as a script it is a worker: `codegen.py` reads a request on standard input.

A fault of an LLVM back end aborts the process, so code for another machine than this one is made in a worker.
This file imports nothing of Tessera, so that the worker starts fast.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm

_llvm: Any = llvm  # llvmlite ships no types

_PRODUCT = re.compile(r"^( *)(%\S+) = (mul (?:nuw |nsw )*<(\d+) x (i64|i128)> ([^,]+), (.+))$", re.MULTILINE)
_CONSTANT = re.compile(r"(%\S+) = [sz]ext <\d+ x i\d+> splat \(i\d+ (-?\d+)\)")
_SHIFTED = re.compile(r" = (?:[al]shr|[us]div) (?:exact )?<\d+ x i(?:64|128)> (%[^,\s]+),")


@cache
def _initialize(native_only: bool) -> None:
    if native_only:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # of inline assembly


@cache
def _disable_rescheduling() -> None:
    """Stop LLVM from moving instructions to save copies of operands that are overwritten, for the rest of the process.

    With AVX-512, LLVM makes a blend of a masked load, or of a select of memory, whose other lanes come from a register
    that is needed again. Release 22 leaves the deleted load on record as the last use of the address's index register
    (`X86InstrInfo::convertToThreeAddress`). Only these moves look last uses up: they read freed memory, which aborts
    the process. Without them, code for AVX-512 has about as many instructions.
    """
    _llvm.set_option("tessera", "-twoaddr-reschedule=false")


class _Machines(threading.local):
    """The machines of a thread, by what they are made of: what LLVM derives from features takes a millisecond."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], Any] = {}


_machines = _Machines()


def _machine(triple: str, cpu: str, features: str, native: bool) -> Any:
    _initialize(native)
    key = triple, cpu, features
    if key not in _machines.found:
        target = _llvm.Target.from_triple(triple)
        made = target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")
        _machines.found[key] = made
    return _machines.found[key]


def _hide_products(ir: str) -> str:
    """Add a zero that LLVM cannot see to wide products of vectors that are shifted right or divided.

    Its x86 back end takes 16 bits of a 32-bit product for those of a wider one, whose bits beyond the 32nd are copies
    of the sign, or zeros (LLVM issue 218844, mended after release 22). It does so where both operands fit 16 bits.
    """
    shifted = set(_SHIFTED.findall(ir))
    if not shifted:
        return ir
    large = {name for name, value in _CONSTANT.findall(ir) if not -(1 << 15) <= int(value) < 1 << 16}

    def product(found: re.Match[str]) -> str:
        space, name, text, lanes, element, *operands = found.groups()
        hides = name in shifted and large.isdisjoint(operands)
        return _hidden(space, name, text, lanes, element) if hides else found[0]

    return _PRODUCT.sub(product, ir)


def _hidden(space: str, name: str, product: str, lanes: str, element: str) -> str:
    """Return the lines of a product to which such a zero is added."""
    type_ = f"<{lanes} x {element}>"
    lines = (
        f'{name}.zero = call i32 asm "", "=r,0"(i32 0)',
        f"{name}.wide = zext i32 {name}.zero to {element}",
        f"{name}.lane = insertelement {type_} poison, {element} {name}.wide, i64 0",
        f"{name}.zeros = shufflevector {type_} {name}.lane, {type_} poison, <{lanes} x i32> zeroinitializer",
        f"{name}.product = {product}",
        f"{name} = add {type_} {name}.product, {name}.zeros",
    )
    return "\n".join(space + line for line in lines)


def _optimised(ir: str, machine: Any) -> Any:
    """Parse and run the few passes that our IR, which is in SSA form already, gains from.

    Combining instructions takes time in proportion to their number. Value numbering (NewGVN, the only one that llvmlite
    offers) does not: of some programs it comes to no end in minutes.
    """
    module = _llvm.parse_assembly(_hide_products(ir) if machine.triple.startswith("x86_64") else ir)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = _llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    inline = _llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.run(module, _llvm.create_pass_builder(machine, options))
    passes = _llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, _llvm.create_pass_builder(machine, options))
    return module


def compile_ir(
    ir: str, triple: str, cpu: str, features: str, avx512: bool, native: bool, assembly: bool
) -> tuple[bytes, str]:
    """Return the object code of a module, and its assembly text if asked for.

    Args:
        ir: LLVM IR text.
        triple: target triple.
        cpu: LLVM CPU name.
        features: LLVM feature string.
        avx512: whether the CPU has AVX-512.
        native: whether the code is for this machine.
        assembly: whether to make the text too.

    Raises:
        RuntimeError: the IR does not parse or verify.
    """
    machine = _machine(triple, cpu, features, native)
    if avx512:
        _disable_rescheduling()
    module = _optimised(ir, machine)
    if not assembly:
        return machine.emit_object(module), ""
    copy = _llvm.parse_bitcode(module.as_bitcode())  # emitting changes a module: one for each kind
    return machine.emit_object(module), machine.emit_assembly(copy)


def _worker() -> None:
    request = json.load(sys.stdin)
    code, text = compile_ir(**request)
    sys.stdout.buffer.write(len(code).to_bytes(8, "little") + code + text.encode())


if __name__ == "__main__":
    _worker()
