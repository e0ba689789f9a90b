"""Computes how many programs a launch has: runs the small stack programs of `layout.GRID_CODES`."""

from __future__ import annotations

from collections.abc import Callable

from tessera.entry import layout
from tessera.entry.code.writer import Function
from tessera.entry.layout import LAUNCH, STEP

REFUSED = -1
"""What `@programs` gives when the Python path has to say what is wrong: a division by zero, a number too large,
an assumption that does not hold."""


class _Machine:
    """Writes the steps: a stack of numbers, whose height lives in a variable."""

    def __init__(self, f: Function) -> None:
        self.f = f
        self._stack = f.array("i64", layout.GRID_DEPTH)
        self._height = f.variable("i64", "0")

    def push(self, value: str) -> None:
        f = self.f
        height = f.load(self._height)
        f.store(value, self._stack, f.op("shl", height, 3))
        f.store(f.op("add", height, 1), self._height)

    def pop(self) -> str:
        f = self.f
        height = f.op("sub", f.load(self._height), 1)
        f.store(height, self._height)
        return f.load(self._stack, f.op("shl", height, 3))

    def checked(self, name: str, left: str, right: str) -> str:
        """Compute with a test for overflow."""
        f = self.f
        pair = f.value(f"call {{i64, i1}} @llvm.s{name}.with.overflow.i64(i64 {left}, i64 {right})")
        lost = f.value(f"extractvalue {{i64, i1}} {pair}, 1")
        f.unless_give(f.op("xor", lost, "true", "i1"), REFUSED)
        return f.value(f"extractvalue {{i64, i1}} {pair}, 0")

    def floor(self, left: str, right: str) -> tuple[str, str]:
        """Return quotient and remainder, rounded down as Python does; 0 and -1 (which may overflow) are refused."""
        f = self.f
        f.unless_give(f.op("icmp ugt", f.op("add", right, 1), 1), REFUSED)
        quotient, remainder = f.op("sdiv", left, right), f.op("srem", left, right)
        apart = f.op("icmp slt", f.op("xor", remainder, right), 0)
        down = f.op("and", f.op("icmp ne", remainder, 0), apart, "i1")
        one = f.value(f"zext i1 {down} to i64")
        more = f.value(f"select i1 {down}, i64 {right}, i64 0")
        return f.op("sub", quotient, one), f.op("add", remainder, more)


def _two(machine: _Machine) -> tuple[str, str]:
    right = machine.pop()
    return machine.pop(), right


def _arithmetic(name: str) -> Callable[[_Machine, str], None]:
    def emit(machine: _Machine, _operand: str) -> None:
        machine.push(machine.checked(name, *_two(machine)))

    return emit


def _extreme(name: str) -> Callable[[_Machine, str], None]:
    def emit(machine: _Machine, _operand: str) -> None:
        left, right = _two(machine)
        machine.push(machine.f.value(f"call i64 @llvm.{name}.i64(i64 {left}, i64 {right})"))

    return emit


def _floordiv(machine: _Machine, _operand: str) -> None:
    machine.push(machine.floor(*_two(machine))[0])


def _mod(machine: _Machine, _operand: str) -> None:
    machine.push(machine.floor(*_two(machine))[1])


def _ceildiv(machine: _Machine, _operand: str) -> None:
    left, right = _two(machine)
    machine.push(machine.f.op("sub", 0, machine.floor(machine.checked("sub", "0", left), right)[0]))


def _cut(shift: str) -> Callable[[_Machine, str], None]:
    """Keep the lowest bits of a number; `shift` brings them back down."""

    def emit(machine: _Machine, _operand: str) -> None:
        value, bits = _two(machine)
        away = machine.f.op("sub", 64, bits)
        machine.push(machine.f.op(shift, machine.f.op("shl", value, away), away))

    return emit


def _compare(predicate: str) -> Callable[[_Machine, str], None]:
    def emit(machine: _Machine, _operand: str) -> None:
        holds = machine.f.op(f"icmp {predicate}", *_two(machine))
        machine.push(machine.f.value(f"zext i1 {holds} to i64"))

    return emit


def _require(machine: _Machine, _operand: str) -> None:
    machine.f.unless_give(machine.f.op("icmp ne", machine.pop(), 0), REFUSED)


def _blocks(machine: _Machine, operand: str) -> None:
    f = machine.f
    extent = f.value(f"call i64 @llvm.smax.i64(i64 {machine.pop()}, i64 0)")
    machine.push(f.op("udiv", machine.checked("add", extent, f.op("sub", operand, 1)), operand))


def _const(machine: _Machine, operand: str) -> None:
    machine.push(operand)


def _load(machine: _Machine, operand: str) -> None:
    machine.push(machine.f.load("%block", operand))


_STEPS: dict[str, Callable[[_Machine, str], None]] = {
    "const": _const,
    "load": _load,
    "add": _arithmetic("add"),
    "sub": _arithmetic("sub"),
    "mul": _arithmetic("mul"),
    "floordiv": _floordiv,
    "ceildiv": _ceildiv,
    "mod": _mod,
    "minimum": _extreme("smin"),
    "maximum": _extreme("smax"),
    "signed": _cut("ashr"),
    "unsigned": _cut("lshr"),
    "eq": _compare("eq"),
    "lt": _compare("slt"),
    "le": _compare("sle"),
    "blocks": _blocks,
    "require": _require,
}


def programs() -> Function:
    """Return `@programs`, which computes the programs of one launch."""
    f = Function("programs", "i64", [("ptr", "launch"), ("ptr", "block")])
    machine = _Machine(f)
    end = f.load("%launch", LAUNCH["grid_end"])
    place = f.variable("i64", f.load("%launch", LAUNCH["grid"]))
    head, body, done, onward = (f.fresh(name) for name in ("step", "run", "done", "next"))
    f.jump(head)
    f.label(head)
    current = f.load(place)
    f.line(f"br i1 {f.op('icmp ult', current, end)}, label %{body}, label %{done}")
    f.label(body)
    step = f.value(f"inttoptr i64 {current} to ptr")
    code, operand = f.load(step, STEP["code"]), f.load(step, STEP["operand"])
    labels = {name: f.fresh(name) for name in layout.GRID_CODES}
    cases = " ".join(f"i64 {number}, label %{label}" for number, label in enumerate(labels.values()))
    f.line(f"switch i64 {code}, label %{done} [ {cases} ]")
    for name, label in labels.items():
        f.label(label)
        _STEPS[name](machine, operand)
        f.jump(onward)
    f.label(onward)
    f.store(f.op("add", current, layout.STEP_BYTES), place)
    f.jump(head)
    f.label(done)
    f.give(machine.pop())
    return f
