"""Reads PTX text: what LLVM and our inline assembly write of it."""

from __future__ import annotations

import re
from collections.abc import Callable

from tessera.tools.emulate.errors import Malformed, Unknown
from tessera.tools.emulate.text import (
    Address,
    Entry,
    Instruction,
    Inverted,
    Module,
    Number,
    Operand,
    Pair,
    Param,
    Register,
    Storage,
    Symbol,
    Vector,
)

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b)"
    r"|(?P<number>0[xX][0-9a-fA-F]+U?|\d+\.\d+|\d+U?)"
    r"|(?P<text>\"[^\"]*\")"
    r"|(?P<name>[.%$_a-zA-Z][\w$.]*(?:::[\w.]+)*)"
    r"|(?P<sign>[][{}()<>,;:@!+=|-])",
    re.DOTALL,
)
_BITS = {
    **{"pred": 1, "b128": 128, "f16": 16, "f32": 32, "f64": 64},
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
}
_SPACES = (".global", ".shared", ".local", ".const")
_LINKS = (".visible", ".extern", ".weak", ".common")


def parse(text: str) -> Module:
    """Return what a text of PTX says.

    Raises:
        Malformed: it is no PTX; names the line.
        Unknown: a directive that is not known.
    """
    return _Parser(text).module()


class _Scope:
    """Names between braces."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.registers: dict[str, Register] = {}
        self.labels: set[str] = set()


class _Parser:
    """Reads tokens one by one.

    Args:
        text: the PTX.
    """

    def __init__(self, text: str) -> None:
        self._kinds: list[str] = []
        self._tokens: list[str] = []
        self._lines: list[int] = []
        self._at = 0
        self._entry = Entry("")
        self._scopes: list[_Scope] = []
        self._scope_count = 0
        self._uses: list[tuple[int, tuple[int, ...]]] = []
        self._split(text)

    def _split(self, text: str) -> None:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Malformed(f"line {line}: {text[at : at + 20]!r}")
            kind, token = found.lastgroup or "", found.group()
            if kind != "space":
                self._kinds.append(kind)
                self._tokens.append(token)
                self._lines.append(line)
            line += token.count("\n")
            at = found.end()
        self._kinds.append("end")
        self._tokens.append("")
        self._lines.append(line)

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> str:
        token = self._tokens[self._at]
        if self._kinds[self._at] == "end":
            raise self._wrong("the end")
        self._at += 1
        return token

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(f"{self._peek()!r}, not {token!r}")

    def _wrong(self, what: str) -> Malformed:
        return Malformed(f"line {self._lines[min(self._at, len(self._lines) - 1)]}: {what}")

    def _integer(self) -> int:
        sign = -1 if self._take("-") else 1
        token = self._next()
        try:
            return sign * int(token.rstrip("U"), 0)
        except ValueError:
            raise self._wrong(f"{token!r} is no integer") from None

    def module(self) -> Module:
        """Read a whole text."""
        module = Module()
        while self._kinds[self._at] != "end":
            token = self._next()
            if token in (".version", ".address_size"):
                self._next()
            elif token == ".target":
                module.target = self._next()
                while self._take(","):
                    self._next()
            elif token in _LINKS:
                continue
            elif token == ".entry":
                self._read_entry(module)
            elif token == ".func":
                self._read_function(module)
            elif token in _SPACES:
                name, array = self._array(token)
                module.arrays[name] = array
            else:
                raise Unknown(token)
        return module

    def _read_function(self, module: Module) -> None:
        """Read a function; what is only declared is defined elsewhere, and left out."""
        results = self._params()
        self._start(self._next())
        self._entry.results = results
        self._entry.params = self._params()
        self._read_directives()
        if not self._take(";"):
            self._read_body()
            module.functions[self._entry.name] = self._entry

    def _array(self, space: str) -> tuple[str, Storage]:
        align, size = 1, 0
        while self._peek().startswith("."):
            token = self._next()
            if token == ".align":
                align = self._integer()
            elif token[1:] in _BITS:
                size = _BITS[token[1:]] // 8
            else:
                raise Unknown(f"{space} {token}")
        name, unit, data = self._next(), size, b""
        while self._take("["):
            size = 0 if self._peek() == "]" else size * self._integer()
            self._expect("]")
        if self._take("="):
            data = self._values(unit)
        self._expect(";")
        return name, Storage(space[1:], size, align, data)

    def _values(self, unit: int) -> bytes:
        values: list[int] = []
        if not self._take("{"):
            values.append(self._integer())
        else:
            while not self._take("}"):
                values.append(self._integer())
                self._take(",")
        return b"".join((value % (1 << 8 * unit)).to_bytes(unit, "little") for value in values)

    def _read_entry(self, module: Module) -> None:
        self._start(self._next())
        self._entry.params = self._params()
        self._read_directives()
        self._read_body()
        module.entries[self._entry.name] = self._entry

    def _start(self, name: str) -> None:
        self._entry = Entry(name)
        self._uses = []

    def _params(self) -> list[Param]:
        found: list[Param] = []
        if self._take("("):
            while not self._take(")"):
                found.append(self._param())
                self._take(",")
        return found

    def _read_directives(self) -> None:
        while self._peek().startswith("."):
            name = self._next()[1:]
            numbers: list[int] = []
            while self._kinds[self._at] == "number":
                numbers.append(self._integer())
                self._take(",")
            self._entry.directives[name] = tuple(numbers)

    def _read_body(self) -> None:
        self._expect("{")
        self._open()
        while self._scopes:
            self._statement()
        self._entry.labels["$end"] = len(self._entry.code)
        self._resolve_labels()

    def _param(self) -> Param:
        self._expect(".param")
        size = 0
        while self._peek().startswith("."):
            token = self._next()
            if token == ".align":
                self._integer()
            elif token[1:] in _BITS:
                size = _BITS[token[1:]] // 8
            elif token not in (".ptr", *_SPACES):
                raise Unknown(f".param {token}")
        name = self._next()
        if self._take("["):
            size *= self._integer()
            self._expect("]")
        return Param(name, size)

    def _open(self) -> None:
        self._scopes.append(_Scope(self._scope_count))
        self._scope_count += 1

    def _statement(self) -> None:
        token = self._peek()
        declares: dict[str, Callable[[], None]] = {
            ".reg": self._declare,
            ".pragma": self._skip,
            ".param": self._skip,
        }
        if token == "{":
            self._next()
            self._open()
        elif token == "}":
            self._next()
            self._scopes.pop()
        elif token in declares:
            self._next()
            declares[token]()
        elif token in _SPACES:
            name, array = self._array(self._next())
            self._entry.arrays[name] = array
        elif token.startswith("."):
            raise Unknown(token)
        elif self._peek(1) == ":":
            self._label(self._next())
            self._next()
        elif not self._take(";"):
            self._instruction()

    def _skip(self) -> None:
        while self._next() != ";":
            pass

    def _label(self, name: str) -> None:
        scope = self._scopes[-1]
        scope.labels.add(name)
        self._entry.labels[f"{name}@{scope.number}"] = len(self._entry.code)

    def _declare(self) -> None:
        bits = _BITS.get(self._next()[1:])
        if bits is None:
            raise Unknown(f".reg {self._peek(-1)}")
        while True:
            name = self._next()
            if self._take("<"):
                for number in range(self._integer()):
                    self._new_register(f"{name}{number}", bits)
                self._expect(">")
            else:
                self._new_register(name, bits)
            if not self._take(","):
                break
        self._expect(";")

    def _new_register(self, name: str, bits: int) -> None:
        registers = self._entry.registers
        self._scopes[-1].registers[name] = Register(len(registers), bits)
        registers.append(bits)

    def _instruction(self) -> None:
        line = self._lines[self._at]
        guard: Register | Inverted | None = None
        if self._take("@"):
            inverted = self._take("!")
            register = self._operand()
            if not isinstance(register, Register):
                raise self._wrong("a guard is no register")
            guard = Inverted(register) if inverted else register
        if self._kinds[self._at] != "name":
            raise self._wrong(f"{self._peek()!r} is no instruction")
        name, *parts = self._next().split(".")
        operands: list[Operand] = []
        while not self._take(";"):
            operands.append(self._operand())
            if self._peek() != ";":
                self._expect(",")
        self._uses.append((len(self._entry.code), tuple(scope.number for scope in self._scopes)))
        self._entry.code.append(Instruction(name, tuple(parts), guard, tuple(operands), line))

    def _operand(self) -> Operand:
        first = self._single()
        return Pair(first, self._single()) if self._take("|") else first

    def _single(self) -> Operand:
        if self._take("{"):
            return Vector(self._until("}"))
        if self._take("("):
            return Vector(self._until(")"))
        if self._take("["):
            return self._address()
        if self._take("!"):
            found = self._single()
            if not isinstance(found, Register):
                raise self._wrong("! before what is no predicate")
            return Inverted(found)
        kind = self._kinds[self._at]
        if kind == "float":
            token = self._next()
            return Number(int(token[2:], 16), 32 if token[1] in "fF" else 64)
        if kind == "number" or self._peek() == "-":
            return Number(self._integer())
        if kind != "name":
            raise self._wrong(f"{self._peek()!r} is no operand")
        return self._named(self._next())

    def _until(self, end: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self._take(end):
            found.append(self._operand())
            self._take(",")
        return tuple(found)

    def _named(self, name: str) -> Operand:
        for scope in reversed(self._scopes):
            if name in scope.registers:
                return scope.registers[name]
        return Symbol(name)

    def _address(self) -> Address:
        base, offset = self._single(), 0
        coordinates: tuple[Operand, ...] = ()
        if self._take("+"):
            offset = self._integer()
        if self._take(","):
            self._expect("{")
            coordinates = self._until("}")
        self._expect("]")
        return Address(base, offset, coordinates)

    def _resolve_labels(self) -> None:
        """Put places where branches name labels: the innermost of that name."""
        code = self._entry.code
        for place, scopes in self._uses:
            one = code[place]
            if one.name == "bra":
                (target,) = one.operands
                assert isinstance(target, Symbol)
                code[place] = Instruction(one.name, one.parts, one.guard, (self._place(target, scopes),), one.line)

    def _place(self, target: Symbol, scopes: tuple[int, ...]) -> Number:
        for scope in reversed(scopes):
            found = self._entry.labels.get(f"{target.name}@{scope}")
            if found is not None:
                return Number(found)
        raise Malformed(f"no label {target.name}")
