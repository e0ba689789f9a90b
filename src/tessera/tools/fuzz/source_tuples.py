"""Writes assignments to elements of tuples, which Python has not: the whole tuple is made anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_tuples import Part, kinds_of, part_of

_FUNCTIONS = {
    "q": (
        "def with_element(values, place, new):",
        "    made = ()",
        "    for k, old in enumerate(values):",
        "        if k == place:",
        "            made = made + (new,)",
        "        else:",
        "            made = made + (old,)",
        "    return made",
    ),
    "z": (
        "def chosen(keep, values, others):",
        "    made = ()",
        "    for kept, old, new in zip(keep, values, others):",
        "        made = made + ((old if kept else new),)",
        "    return made",
    ),
}


def functions(program: tree.Program) -> Iterator[str]:
    """Yield the lines of the functions that a program's tuples need."""
    kinds = kinds_of(program)
    for kind, lines in _FUNCTIONS.items():
        if kind in kinds:
            yield from ("", "@ts.function", *lines, "")


def assigned(pairs: Iterable[tuple[str, str]]) -> str:
    """Return an assignment of texts to names, elements of tuples among them."""
    values: dict[str, str] = {}
    parts: dict[str, dict[int, str]] = {}
    known: dict[str, Part] = {}
    for name, value in pairs:
        part = part_of(name)
        if part is None:
            values[name] = value
        else:
            values.setdefault(part.tuple, "")
            known[part.tuple] = part
            parts.setdefault(part.tuple, {})[part.place] = value
    values |= {name: _made_anew(part, parts[name]) for name, part in known.items()}
    return f"{', '.join(values)} = {', '.join(values.values())}"


def _made_anew(part: Part, given: Mapping[int, str]) -> str:
    """Return a tuple with some elements replaced."""
    name, count = part.tuple, part.count
    elements = [given.get(place, f"{name}[{place}]") for place in range(count)]
    if len(given) < count and part.kind == "q":
        made = name
        for place, value in given.items():
            made = f"with_element({made}, {place}, {value})"
        return made
    if len(given) < count and part.kind == "z":
        keep = [str(place not in given) for place in range(count)]
        return f"chosen({_display(keep)}, {name}, {_display(elements)})"
    if part.kind == "r":
        return f"tuple(reversed({_display(elements[::-1])}))"
    return _display(elements)


def _display(elements: list[str]) -> str:
    return f"({', '.join(elements)}{',' if len(elements) == 1 else ''})"
