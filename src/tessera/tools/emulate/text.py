"""What the PTX of a module says: entries with their parameters, registers and instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.tools.emulate.errors import Unknown


@dataclass(frozen=True, slots=True)
class Register:
    """A register: its place in the file, and its bits (1 for a predicate)."""

    index: int
    bits: int


@dataclass(frozen=True, slots=True)
class Number:
    """A constant: an integer, or the bits of a float of 32 or 64."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name: of an array, a parameter, a label, a function or a special register."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """A place in memory, with the coordinates of a tensor copy."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Inverted:
    """A predicate with `!` before it."""

    of: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """Two results: `value|predicate`."""

    first: Operand
    second: Operand


Operand = Register | Number | Symbol | Vector | Address | Inverted | Pair


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Args:
        name: the mnemonic up to the first dot.
        parts: what follows it, between dots.
        guard: the predicate it is executed under.
        operands: the operands.
        line: the line of the text.
    """

    name: str
    parts: tuple[str, ...]
    guard: Register | Inverted | None
    operands: tuple[Operand, ...]
    line: int

    def has(self, part: str) -> bool:
        """Return whether a part stands in the mnemonic."""
        return part in self.parts

    @property
    def mnemonic(self) -> str:
        """The whole mnemonic."""
        return ".".join((self.name, *self.parts))

    def unknown(self) -> Unknown:
        """Return the error that the emulator does not know it."""
        return Unknown(self.mnemonic)


@dataclass(slots=True)
class Param:
    """A parameter of an entry: its bytes."""

    name: str
    size: int


@dataclass(slots=True)
class Storage:
    """An array in a state space. A size of 0 is decided at the launch."""

    space: str
    size: int
    align: int
    data: bytes = b""


@dataclass(slots=True)
class Entry:
    """A kernel, or a function.

    Args:
        name: its symbol.
        params: in order.
        results: what a function gives.
        registers: bits of each register.
        code: the instructions; a label is a place in it.
        labels: where each label stands.
        arrays: those declared inside.
        directives: numbers of `.maxntid` and its like.
    """

    name: str
    params: list[Param] = field(default_factory=list[Param])
    results: list[Param] = field(default_factory=list[Param])
    registers: list[int] = field(default_factory=list[int])
    code: list[Instruction] = field(default_factory=list[Instruction])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    arrays: dict[str, Storage] = field(default_factory=dict[str, Storage])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(slots=True)
class Module:
    """A text: its target, entries, functions and arrays."""

    target: str = ""
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    functions: dict[str, Entry] = field(default_factory=dict[str, Entry])
    arrays: dict[str, Storage] = field(default_factory=dict[str, Storage])
