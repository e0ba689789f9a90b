"""Functions that kernels share: each is compiled once for all kernels that call it, and kept beyond the process.

A product's kernels in registers are the same for every product of a kind, and LLVM takes longer for them than for all
else of a kernel. So they are modules of their own, whose code a kernel holds as it is, among its own functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache

from tessera.backends.llvm.text import ModuleText
from tessera.digest import sha256
from tessera.runtime.elf import Image, image_of
from tessera.runtime.host import architecture, kept
from tessera.target.records import TargetRecord

Compile = Callable[[str], bytes]
"""Gives the object code of a module's text."""

_LEAST_ALIGNED = 64
"""Bytes: a function begins with a cache line, so that it does not matter where in a kernel it comes to lie."""
_WORD = 8
_NOPS = b"\x90" * (_WORD - 1)
_MOST = 4096
"""Modules that a process remembers."""


def can_share(target: TargetRecord) -> bool:
    """Return whether functions of kernels for a target may be compiled apart: of this machine, an x86."""
    return target.name == "cpu" and sys.platform.startswith("linux") and architecture() == "x86_64"


def shared_function(
    module: ModuleText, target: TargetRecord, name: str, what: Hashable, write: Callable[[ModuleText], str]
) -> None:
    """Define a function in a module, or let the module call one that is compiled apart.

    Args:
        module: where it is called.
        target: the CPU.
        name: its symbol.
        what: what decides it, beside the target.
        write: returns its text, and declares in a module what it needs.
    """
    if module.has(name):
        return
    if not module.shares:
        module.define(name, write(module))
        return
    apart = _module_of(target, name, _What(what, write))
    module.apart[name] = apart
    module.declare(_declaration(apart.text_of(name)))


class _What:
    """What decides a function, with what writes it, which is the same for equal ones."""

    def __init__(self, key: Hashable, write: Callable[[ModuleText], str]) -> None:
        self._key, self.write = key, write

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _What) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(_MOST)
def _module_of(target: TargetRecord, name: str, what: _What) -> ModuleText:
    module = ModuleText(triple=target.triple, shares=True)
    module.define(name, what.write(module).replace("define internal", "define", 1))
    return module


def _declaration(text: str) -> str:
    """Return what declares a function in another module that holds its code."""
    signature = text[: text.index("{")].rstrip().removeprefix("define ")
    return f"declare dso_local {signature[: signature.rindex(')') + 1]}"


def texts_of(module: ModuleText) -> Iterator[str]:
    """Yield the text of a module and of all that it calls, each function once."""
    found = {"": module}
    queue = [module]
    while queue:
        for name, apart in queue.pop().apart.items():
            if name not in found:
                found[name] = apart
                queue.append(apart)
    for one in found.values():
        yield one.render()


def linked(module: ModuleText, compile_: Compile) -> str | None:
    """Return the text of a module that holds the code of the functions that are compiled apart.

    Args:
        module: the module.
        compile_: gives their code where nobody has it yet.

    Returns:
        The text; None where one of them needs something outside of it.
    """
    lines: list[str] = []
    for name, apart in module.apart.items():
        code = _code_of(name, apart, compile_)
        if code is None:
            return None
        lines += _assembly(name, code)
    return module.render(lines)


_codes: dict[str, bytes] = {}
"""Object code by its key."""


def _code_of(name: str, apart: ModuleText, compile_: Compile) -> Image | None:
    """Return the code of a function, of which nothing lies elsewhere."""
    key = sha256("\0".join([name, *texts_of(apart)]).encode()).hexdigest()
    code = _codes.get(key)
    if code is None:

        def made() -> bytes:
            text = linked(apart, compile_)
            return b"" if text is None else compile_(text)

        if len(_codes) >= _MOST:
            _codes.clear()
        code = _codes[key] = kept(f"function {key}", made)
    return image_of(code, name)


def _assembly(name: str, code: Image) -> list[str]:
    """Return what puts a function's code among a kernel's own."""
    align = max(code.align, _LEAST_ALIGNED)
    data = code.data + _NOPS[: -len(code.data) % _WORD]
    words = [f"0x{int.from_bytes(data[at : at + _WORD], 'little'):x}" for at in range(0, len(data), _WORD)]
    start = f".L{name}"
    return [
        ".text",
        f".p2align {align.bit_length() - 1}, 0x90",
        f"{start}:",
        *(f".quad {','.join(words[at : at + 64])}" for at in range(0, len(words), 64)),
        f".type {name},@function",
        f".set {name}, {start}+{code.entry}",
        f".size {name}, {len(data) - code.entry}",
    ]
