"""LLVM IR as text: a module that collects declarations once, and a function that hands out fresh names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Self

_SYMBOL = re.compile(r"@[\w.$-]+")
_SCALAR = re.compile(
    r"(?:add|sub|mul|sdiv|srem|shl|ashr|lshr|and|or|xor) (?:nuw |nsw |exact )*i(?:1|64) |icmp \w+ i64 |getelementptr |"
    r"select i1 [^,]+, i64 |(?:[sz]ext|trunc) i\d+ |ptrtoint ptr |call i64 @llvm\.s(?:min|max)\.i64\("
)
"""What computes a scalar or an address from others, and nothing else."""
_PURE = re.compile(
    r"(?:add|sub|mul|sdiv|srem|shl|ashr|lshr|and|or|xor|icmp|getelementptr|select|[sz]ext|trunc|ptrtoint|insertelement|"
    r"shufflevector) |call \S+ @llvm\.s(?:min|max)\."
)
"""What computes the same each time."""
LOOP_UNROLL_DISABLE = '!{!"llvm.loop.unroll.disable"}'


class ModuleText:
    """Collects the parts of one LLVM module; `render` joins them.

    Args:
        triple: target triple.
        data_layout: LLVM data layout string; left to the target machine when empty.
        shares: whether functions that many modules have are modules of their own, which it calls.
    """

    def __init__(self, triple: str = "", data_layout: str = "", shares: bool = False):
        self.triple = triple
        self.data_layout = data_layout
        self.shares = shares
        self.apart: dict[str, Self] = {}
        """Modules of functions that it calls, by the functions' names."""
        self._globals: dict[str, str] = {}
        self._declares: dict[str, str] = {}
        self._definitions: dict[str, str] = {}
        self._attributes: dict[str, str] = {}
        self._metadata: dict[str, int] = {}
        self._nodes: list[str] = []

    def declare(self, *lines: str) -> None:
        """Add declarations (or whole helpers and tables), the first of each symbol."""
        for line in lines:
            symbol = _SYMBOL.search(line)
            self._declares.setdefault(symbol.group() if symbol else line, line.strip())

    def define(self, name: str, text: str) -> None:
        """Add a function definition under its symbol; a second one of that name is dropped."""
        self._definitions.setdefault(name, text)

    def has(self, name: str) -> bool:
        """Return whether a function of this name is defined."""
        return name in self._definitions or name in self.apart

    def add_global(self, name: str, text: str) -> str:
        """Add the global `@name = text` and return `@name`."""
        self._globals.setdefault(name, text)
        return f"@{name}"

    def string(self, text: str, address_space: int = 0) -> str:
        """Return a global that holds `text` and a final zero byte."""
        data = text.encode(errors="surrogateescape") + b"\0"
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
        space = f"addrspace({address_space}) " if address_space else ""
        body = f'private unnamed_addr {space}constant [{len(data)} x i8] c"{escaped}"'
        for name, known in self._globals.items():
            if known == body:
                return f"@{name}"
        return self.add_global(f"str.{len(self._globals)}", body)

    def text_of(self, name: str) -> str:
        """Return a function that it defines."""
        return self._definitions[name]

    def attributes(self, text: str) -> str:
        """Return the group (`#0`) of these function attributes."""
        return self._attributes.setdefault(text, f"#{len(self._attributes)}")

    def metadata(self, body: str) -> str:
        """Return the node (`!3`) with this body (`!{...}`), one for equal bodies."""
        if body not in self._metadata:
            self._metadata[body] = self._node(body)
        return f"!{self._metadata[body]}"

    def distinct(self, parts: Sequence[str]) -> str:
        """Return a new node `distinct !{self, parts...}`, as loops want them."""
        number = len(self._nodes)
        self._nodes.append(f"distinct !{{{', '.join([f'!{number}', *parts])}}}")
        return f"!{number}"

    def _node(self, body: str) -> int:
        self._nodes.append(body)
        return len(self._nodes) - 1

    def loop(self, *properties: str) -> str:
        """Return the `!llvm.loop` node of a loop that LLVM must not unroll."""
        return self.distinct([self.metadata(LOOP_UNROLL_DISABLE), *properties])

    def _header(self) -> Iterable[str]:
        if self.data_layout:
            yield f'target datalayout = "{self.data_layout}"'
        if self.triple:
            yield f'target triple = "{self.triple}"'

    def render(self, assembly: Iterable[str] = ()) -> str:
        """Return the module's text.

        Args:
            assembly: lines of code that it holds as they are.
        """
        parts = [
            "\n".join(self._header()),
            "\n".join(f'module asm "{line}"' for line in assembly),
            "\n".join(f"@{name} = {text}" for name, text in self._globals.items()),
            "\n".join(self._declares.values()),
            *(text.strip() for text in self._definitions.values()),
            "\n".join(f"attributes {name} = {{ {text} }}" for text, name in self._attributes.items()),
            "\n".join(f"!{number} = {body}" for number, body in enumerate(self._nodes)),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


class FunctionText:
    """Writes the body of one function.

    Args:
        signature: everything before the opening brace, `define void @f(ptr %p) #0`.
        once: whether integers and addresses that the block has computed, and scalars that a block before computes,
            through which all ways lead, are not computed again. Blocks are then started once, after all branches to
            them but those that go back from inside.
    """

    def __init__(self, signature: str, once: bool = False):
        self.signature = signature
        self.block = "entry"
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._known: dict[str, list[tuple[str, str]]] | None = {} if once else None
        """Values with the blocks that compute them, by what computes them."""
        self._above = frozenset({"entry"})
        """Blocks through which all ways to this one lead, and itself."""
        self._reached: dict[str, frozenset[str]] = {}
        """The same of blocks that have not been started."""

    def fresh(self, hint: str = "v") -> str:
        """Return an unused SSA name such as `%v12`."""
        self._count += 1
        return f"%{hint}{self._count}"

    def assign(self, rhs: str) -> str:
        """Append `%n = rhs` and return `%n`."""
        values = None
        if self._known is not None and _PURE.match(rhs):
            values = self._known.setdefault(rhs, [])
            above = self._above if _SCALAR.match(rhs) else (self.block,)
            for name, block in values:
                if block in above:
                    return name
        name = self.fresh()
        if values is not None:
            values.append((name, self.block))
        self.line(f"{name} = {rhs}")
        return name

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def entry_assign(self, rhs: str) -> str:
        """Put `%n = rhs` at the start of the entry block (for `alloca`) and return `%n`."""
        name = self.fresh("e")
        self._entry.append(f"  {name} = {rhs}")
        return name

    def label(self, hint: str) -> str:
        """Return an unused block name, without the percent sign."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Open a block; the one before must have been ended."""
        self._lines.append(f"{label}:")
        self.block = label
        self._above = self._reached.pop(label, frozenset()) | {label}

    def _reach(self, label: str) -> None:
        if self._known is not None and label not in self._above:
            self._reached[label] = self._reached.get(label, self._above) & self._above

    def branch(self, label: str, suffix: str = "") -> None:
        """End the block with a jump."""
        self._reach(label)
        self.line(f"br label %{label}{suffix}")

    def branch_if(self, condition: str, true: str, false: str, suffix: str = "") -> None:
        """End the block with a conditional jump."""
        self._reach(true)
        self._reach(false)
        self.line(f"br i1 {condition}, label %{true}, label %{false}{suffix}")

    def reserve(self) -> int:
        """Keep a place for a line that is not known yet (a phi of a loop); see `fill`."""
        self._lines.append("")
        return len(self._lines) - 1

    def fill(self, place: int, text: str) -> None:
        """Write the line of a reserved place."""
        self._lines[place] = f"  {text}"

    def phi(self, type_: str, incoming: Sequence[tuple[str, str]]) -> str:
        """Append a phi of `(value, block)` pairs; the caller sees to it that it stands first in its block."""
        return self.assign(phi_text(type_, incoming))

    def render(self) -> str:
        """Return the function's text."""
        return "\n".join([f"{self.signature} {{", "entry:", *self._entry, *self._lines, "}"])


def phi_text(type_: str, incoming: Sequence[tuple[str, str]]) -> str:
    """Return the right-hand side of a phi."""
    return f"phi {type_} " + ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)
