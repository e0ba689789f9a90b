"""LLVM IR to PTX. Run as a script it is a worker: `ptx.py` reads a request on standard input.

A fault of an LLVM back end aborts the process, so PTX of a text that was edited is made in a worker.
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
"""Addresses and products in one block of a module that is fully optimised."""
_BLOCK = re.compile(r"^\S+:", re.MULTILINE)


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # 32-bit shared-memory pointers: addresses cost half the registers.
    llvm.set_option("tessera", "--nvptx-short-ptr")
    # Register numbers depend on the order of uses, which text that is read again would not have.
    llvm.set_option("tessera", "--preserve-ll-uselistorder")


@cache
def target_machine(cpu: str, ptx_version: int, opt: int = 3) -> Any:
    """Return LLVM's machine for a GPU; its names come from target records, as an unknown one aborts the process."""
    _initialise()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=cpu, features=f"+ptx{ptx_version}", opt=opt, reloc="pic")


def written(module: Any, text: str, cpu: str, ptx_version: int) -> str:
    """Return the PTX of an optimised module, whose text is given.

    In blocks with very many addresses LLVM looks at all pairs of them to make one from another, for minutes. The PTX of
    such modules is made without its optimisations; those of the vendor's assembler follow.
    """
    addresses = (block.count(" = getelementptr ") + block.count(" = mul ") for block in _BLOCK.split(text))
    opt = 0 if max(addresses) > MOST_ADDRESSES else 3
    return target_machine(cpu, ptx_version, opt).emit_assembly(module)


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
    text, cpu, version = request["text"], request["cpu"], request["ptx_version"]
    sys.stdout.buffer.write(written(_edited(text, target_machine(cpu, version)), text, cpu, version).encode())


if __name__ == "__main__":
    _worker()
