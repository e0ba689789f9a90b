"""Puts functions where they are called, so that an entry is one list of instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.tools.emulate.errors import Unknown
from tessera.tools.emulate.text import (
    Address,
    Entry,
    Instruction,
    Inverted,
    Number,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)


def inlined(entry: Entry, functions: Mapping[str, Entry], callers: tuple[str, ...] = ()) -> Entry:
    """Return an entry or a function without calls of functions that are known.

    Args:
        entry: the entry.
        functions: by name.
        callers: those that called it.

    Raises:
        Unknown: a function that calls itself.
    """
    if entry.name in callers:
        raise Unknown("recursion")
    if not any(_called(one) in functions for one in entry.code):
        return entry
    code, registers, own = list[Instruction](), list(entry.registers), list[int]()
    places: list[int] = []
    for one in entry.code:
        places.append(len(code))
        name = _called(one)
        if name in functions:
            body = inlined(functions[name], functions, (*callers, entry.name))
            code += _spliced(body, one, len(code), len(registers), len(places))
            registers += body.registers
        else:
            own.append(len(code))
            code.append(one)
    places.append(len(code))
    for at in own:
        if code[at].name == "bra":
            code[at] = _to(code[at], places[_target(code[at])])
    labels = {label: places[at] for label, at in entry.labels.items()}
    return replace(entry, code=code, registers=registers, labels=labels)


def _called(one: Instruction) -> str:
    """Return the function that an instruction calls; empty when it calls none."""
    if one.name != "call":
        return ""
    return next((operand.name for operand in one.operands if isinstance(operand, Symbol)), "")


def _target(one: Instruction) -> int:
    (place,) = one.operands
    assert isinstance(place, Number)
    return place.value


def _to(one: Instruction, place: int) -> Instruction:
    return replace(one, name="bra", parts=(), operands=(Number(place),))


def _names(operand: Operand) -> list[str]:
    items = operand.items if isinstance(operand, Vector) else ()
    return [item.name for item in items if isinstance(item, Symbol)]


def _spliced(body: Entry, call: Instruction, start: int, first: int, site: int) -> list[Instruction]:
    """Return a function's instructions as they stand in its caller.

    Args:
        body: the function.
        call: the call.
        start: where its first instruction stands.
        first: the number of its first register.
        site: which call of the caller it is.
    """
    lists = [operand for operand in call.operands if isinstance(operand, Vector)]
    given = [name for one in lists for name in _names(one)]
    formal = [param.name for param in (*body.results, *body.params)]
    if call.guard is not None or len(given) != len(formal):
        raise call.unknown()
    names = dict(zip(formal, given, strict=True))
    code: list[Instruction] = []
    for one in body.code:
        operands = tuple(_moved(operand, first, names, site) for operand in one.operands)
        guard = None if one.guard is None else _moved(one.guard, first, names, site)
        assert guard is None or isinstance(guard, Register | Inverted)
        moved = replace(one, operands=operands, guard=guard)
        if one.name == "ret":
            moved = _to(moved, start + len(body.code))
        elif one.name == "bra":
            moved = _to(moved, start + _target(one))
        code.append(moved)
    return code


def _moved(operand: Operand, first: int, names: Mapping[str, str], site: int) -> Operand:
    """Return an operand with other registers, and with the caller's names of parameters."""
    match operand:
        case Register(index, bits):
            return Register(index + first, bits)
        case Inverted(Register(index, bits)):
            return Inverted(Register(index + first, bits))
        case Vector(items):
            return Vector(tuple(_moved(item, first, names, site) for item in items))
        case Pair(one, two):
            return Pair(_moved(one, first, names, site), _moved(two, first, names, site))
        case Address(Symbol(name), offset, coordinates) if name in names or name.startswith(("param", "retval")):
            return Address(Symbol(names.get(name, f"{name}#{site}")), offset, coordinates)
        case Address(base, offset, coordinates):
            moved = tuple(_moved(one, first, names, site) for one in coordinates)
            return Address(_moved(base, first, names, site), offset, moved)
        case _:
            return operand
