"""Writes LLVM functions as text, with nested conditions and loops in place of labels."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager


class Function:
    """One LLVM function, written line by line. Values are names such as `%7`; pointers are opaque.

    Args:
        name: symbol.
        result: LLVM type of the result.
        params: LLVM type and name of each parameter.
        exported: whether it is seen outside the module; others are inlined.
    """

    def __init__(self, name: str, result: str, params: Sequence[tuple[str, str]], exported: bool = False) -> None:
        linkage, attribute = ("", "nounwind") if exported else ("internal ", "alwaysinline nounwind")
        listed = ", ".join(f"{kind} %{param}" for kind, param in params)
        self._head = f'define {linkage}{result} @{name}({listed}) {attribute} "no-builtins" {{'
        self._result = result
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """Return a name that no value and no label has."""
        self._count += 1
        return f"{stem}.{self._count}"

    def value(self, text: str) -> str:
        """Write an instruction with a result, and return the result."""
        name = f"%{self.fresh()}"
        self._lines.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self._lines.append(f"  {text}")

    def variable(self, kind: str, value: str) -> str:
        """Return the address of a new variable that holds `value`."""
        name = f"%{self.fresh('var')}"
        self._slots.append(f"  {name} = alloca {kind}, align 8")
        self.line(f"store {kind} {value}, ptr {name}")
        return name

    def array(self, kind: str, count: int, align: int = 16) -> str:
        """Return the address of uninitialised memory of fixed size."""
        name = f"%{self.fresh('array')}"
        self._slots.append(f"  {name} = alloca [{count} x {kind}], align {align}")
        return name

    def at(self, pointer: str, offset: int | str) -> str:
        """Return an address `offset` bytes further."""
        return pointer if offset == 0 else self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, pointer: str, offset: int | str = 0, kind: str = "i64") -> str:
        """Load a value."""
        return self.value(f"load {kind}, ptr {self.at(pointer, offset)}")

    def store(self, value: str | int, pointer: str, offset: int | str = 0, kind: str = "i64") -> None:
        """Store a value."""
        self.line(f"store {kind} {value}, ptr {self.at(pointer, offset)}")

    def op(self, name: str, left: str | int, right: str | int, kind: str = "i64") -> str:
        """Compute with two values: `add`, `and`, `icmp eq` and so on."""
        return self.value(f"{name} {kind} {left}, {right}")

    def call(self, result: str, function: str, *args: tuple[str, str | int]) -> str:
        """Call a function by name or address; the arguments are LLVM types and values."""
        return self.value(f"call {result} {function}({_listed(args)})")

    def do(self, function: str, *args: tuple[str, str | int]) -> None:
        """Call a function without a result."""
        self.line(f"call void {function}({_listed(args)})")

    def give(self, value: str | int) -> None:
        """Return from the function."""
        self.line(f"ret {self._result} {value}")
        self.label(self.fresh("after"))

    def label(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")

    def jump(self, label: str) -> None:
        """Go to a block."""
        self.line(f"br label %{label}")

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Run what is written inside if a condition holds."""
        inside, after = self.fresh("then"), self.fresh("end")
        self.line(f"br i1 {condition}, label %{inside}, label %{after}")
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

    def unless_give(self, condition: str, value: str | int) -> None:
        """Return `value` where a condition does not hold."""
        onward, leave = self.fresh("ok"), self.fresh("leave")
        self.line(f"br i1 {condition}, label %{onward}, label %{leave}")
        self.label(leave)
        self.line(f"ret {self._result} {value}")
        self.label(onward)

    @contextmanager
    def count_up(self, count: str) -> Generator[str]:
        """Run what is written inside for 0, 1 … count - 1; gives the number."""
        number = self.variable("i64", "0")
        head, body, after = self.fresh("loop"), self.fresh("body"), self.fresh("done")
        self.jump(head)
        self.label(head)
        current = self.load(number)
        more = self.op("icmp ult", current, count)
        self.line(f"br i1 {more}, label %{body}, label %{after}")
        self.label(body)
        yield current
        self.store(self.op("add", current, 1), number)
        self.jump(head)
        self.label(after)

    def render(self) -> str:
        """Return the function's text."""
        entry = [*self._slots, "  br label %begin", "begin:"]
        return "\n".join([self._head, "entry:", *entry, *self._lines, "  unreachable", "}"])


def _listed(args: Sequence[tuple[str, str | int]]) -> str:
    return ", ".join(f"{kind} {value}" for kind, value in args)
