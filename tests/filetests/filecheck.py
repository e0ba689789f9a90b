"""The part of LLVM's FileCheck that the filetests use.

`CHECK: text` finds a line after the previous match, `CHECK-NEXT: text` the very next one, and
`CHECK-NOT: text` none between its neighbours. In a text `{{…}}` is a regular expression, `[[X:…]]` captures
what it matches, and `[[X]]` stands for that. Runs of white space are equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^\s*//\s*CHECK(-NEXT|-NOT)?:\s*(.*?)\s*$")
_PIECE = re.compile(r"\{\{(.*?)\}\}|\[\[(\w+)(?::((?:\[[^\]]*\]|[^\[\]])*))?\]\]")


@dataclass(frozen=True)
class Check:
    kind: str
    text: str


def checks_of(source: str) -> list[Check]:
    """Return the directives of a file, in order."""
    found = (_DIRECTIVE.match(line) for line in source.split("\n"))
    return [Check(match.group(1) or "", match.group(2)) for match in found if match]


def _pattern(text: str, captured: dict[str, str]) -> re.Pattern[str]:
    parts, at, names = [], 0, set[str]()
    for piece in _PIECE.finditer(text):
        parts.append(re.escape(text[at : piece.start()]))
        expression, name, definition = piece.groups()
        if expression is not None:
            parts.append(f"(?:{expression})")
        elif definition is not None:
            parts.append(f"(?P<{name}>{definition})")
            names.add(name)
        elif name in names:
            parts.append(f"(?P={name})")
        else:  # %1 is not %12
            parts.append(re.escape(captured[name]) + (r"(?!\w)" if captured[name].startswith("%") else ""))
        at = piece.end()
    parts.append(re.escape(text[at:]))
    return re.compile("".join(parts).replace("\\ ", r"\s+"))


def check(source: str, output: str) -> str | None:
    """Return what is wrong with `output` by the directives in `source`, or None."""
    lines, captured, at = output.split("\n"), dict[str, str](), 0
    forbidden: list[str] = []
    for directive in [*checks_of(source), Check("-END", "")]:
        if directive.kind == "-NOT":
            forbidden.append(directive.text)
            continue
        if directive.kind == "-END":
            found = len(lines)
        else:
            pattern = _pattern(directive.text, captured)
            last = min(at + 1, len(lines)) if directive.kind == "-NEXT" else len(lines)
            found = next((i for i in range(at, last) if pattern.search(lines[i])), -1)
            if found < 0:
                return f"CHECK{directive.kind}: {directive.text}\n  does not match after line {at} of\n{output}"
            match = pattern.search(lines[found])
            assert match is not None
            captured.update(match.groupdict())
        for text in forbidden:
            if any(_pattern(text, captured).search(line) for line in lines[at:found]):
                return f"CHECK-NOT: {text}\n  matches between lines {at} and {found} of\n{output}"
        forbidden, at = [], found + 1
    return None
