"""The code of the compiled entry: it depends on nothing outside itself, on every CPU we know."""

import struct
import subprocess
import sys

import pytest

from tessera.entry import layout
from tessera.entry.code import compile_entry, compile_ir, compile_pool, entry_ir, pool_ir, walk_ir
from tessera.entry.code.writer import Function
from tessera.runtime.platforms import platforms


def symbols(code: bytes) -> dict[str, bool]:
    """Return the named symbols of an ELF object, and whether it defines each."""
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + number * size) for number in range(count)]
    found = {}
    for section in sections:
        if section[1] == 2:
            texts = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, info, _, index = struct.unpack_from("<IBBH", code, at)
                text = code[texts + name : code.index(b"\0", texts + name)].decode()
                if text and info >> 4 == 1:
                    found[text] = index != 0
    return found


STARTS = {one.name: one.start_ir for one in platforms() if one.has_streams}
STARTED = {layout.STARTER: True, layout.WALKER: True}
WALKED = {layout.WALKER: True}
OWN_PARTS = {"entry": (entry_ir, {layout.ENTRY: True}), "walk": (walk_ir, WALKED)}
PARTS = {**OWN_PARTS, **{name: (ir, STARTED) for name, ir in STARTS.items()}}


def test_the_objects_need_no_other():
    assert symbols(compile_entry()) == {layout.ENTRY: True}
    assert symbols(compile_ir(walk_ir())) == WALKED
    assert STARTS
    for ir in STARTS.values():
        assert symbols(compile_ir(ir())) == STARTED


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"])
def test_it_compiles_for_every_architecture(triple, part, tmp_path):
    ir, wanted = PARTS[part]
    program = f"""
import llvmlite.binding as llvm, sys
llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple({triple!r}).create_target_machine(opt=2, reloc="pic", codemodel="small")
module = llvm.parse_assembly(sys.stdin.read()); module.triple = {triple!r}
module.data_layout = str(machine.target_data); module.verify()
sys.stdout.buffer.write(machine.emit_object(module))
"""
    done = subprocess.run([sys.executable, "-c", program], input=ir().encode(), capture_output=True, check=True)
    assert symbols(done.stdout) == wanted


def test_every_step_and_every_kind_of_argument_has_a_case():
    text = entry_ir()
    for name in ("numpy", "dlpack", "device", "float64", "float32", "float16", "bfloat16", "integer"):
        assert f"@read_{name}(" in text
    assert text.count("switch i64") == 2


def test_conditions_and_loops_nest():
    import llvmlite.binding as llvm

    f = Function("total", "i64", [("i64", "count")], exported=True)
    total = f.variable("i64", "0")
    with f.count_up("%count") as number, f.when(f.op("icmp ne", number, 3)):
        with f.count_up(number):
            f.store(f.op("add", f.load(total), 1), total)
        with f.when(f.op("icmp eq", number, 9)):
            f.give(-1)
    f.give(f.load(total))
    llvm.parse_assembly(f.render()).verify()


def test_the_pool_needs_no_other_object():
    assert symbols(compile_pool()) == {layout.POOL_RUN: True, layout.POOL_STOP: True}


@pytest.mark.parametrize("architecture", ["aarch64", "x86_64"])
def test_the_pool_compiles_for_every_architecture(architecture):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{architecture}-unknown-linux-gnu")
    module = llvm.parse_assembly(pool_ir(architecture))
    module.verify()
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    assert symbols(machine.emit_object(module)) == {layout.POOL_RUN: True, layout.POOL_STOP: True}
