"""LLVM IR to PTX. Run as a script it is a worker: `ptx.py` reads a request on standard input.

A fault of an LLVM back end aborts the process, so PTX of a text that was edited is made in a worker. So is that of
texts for which LLVM needs other options, which hold for a process.
This file imports nothing of Tessera, so that the worker starts fast.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from typing import Any

import llvmlite.binding as binding

llvm: Any = binding  # llvmlite ships no types

MOST_ADDRESSES = 1500
"""Addresses and products in one block of a module whose PTX is made in this process."""
_BLOCK = re.compile(r"^\S+:", re.MULTILINE)
_FLAGS = re.compile(
    r"( = (?:add|sub|mul|shl|lshr|ashr|udiv|sdiv|or|trunc|zext|uitofp|icmp|getelementptr))"
    r"(?: (?:nuw|nsw|nusw|inbounds|exact|disjoint|nneg|samesign))+"
)


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # 32-bit shared-memory pointers: addresses cost half the registers.
    llvm.set_option("tessera", "--nvptx-short-ptr")
    # Register numbers depend on the order of uses, which text that is read again would not have.
    llvm.set_option("tessera", "--preserve-ll-uselistorder")


@cache
def target_machine(cpu: str, ptx_version: int) -> Any:
    """Return LLVM's machine for a GPU; its names come from target records, as an unknown one aborts the process."""
    _initialise()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=cpu, features=f"+ptx{ptx_version}", opt=3, reloc="pic")


def has_very_many_addresses(text: str) -> bool:
    """Return whether LLVM would compare all pairs of a block's addresses for minutes: a worker makes PTX of those."""
    return any(
        block.count(" = getelementptr ") + block.count(" = mul ") > MOST_ADDRESSES for block in _BLOCK.split(text)
    )


def _never_poison(text: str) -> str:
    """Return a module without what makes a result poison when it overflows.

    LLVM makes one address from another (straight-line strength reduction), and looks through all that both are computed
    from for such results before, which takes the minutes. Where there are none, it need not look.
    """
    llvm.set_option("tessera", "--enable-poison-reuse-guard=false")
    return _FLAGS.sub(r"\1", text)


def parsed(text: str, machine: Any) -> Any:
    """Return a verified module with the machine's data layout.

    Raises:
        RuntimeError: LLVM rejects the text.
    """
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


def _edited(text: str, machine: Any) -> Any:
    """Return the module of a dump, without the orders of uses that it gives where an edit has changed the uses."""
    try:
        return parsed(text, machine)
    except RuntimeError:
        if "uselistorder" not in text:
            raise
    return parsed(re.sub(r"^ *uselistorder.*$", "", text, flags=re.MULTILINE), machine)


def _worker() -> None:
    request = json.load(sys.stdin)
    text = request["text"]
    if has_very_many_addresses(text):
        text = _never_poison(text)
    machine = target_machine(request["cpu"], request["ptx_version"])
    sys.stdout.buffer.write(machine.emit_assembly(_edited(text, machine)).encode())


if __name__ == "__main__":
    _worker()
