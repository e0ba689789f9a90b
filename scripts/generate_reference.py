"""Writes docs/language.md from the docstrings of the language, so that page and code cannot differ.

python scripts/generate_reference.py          # writes the page
python scripts/generate_reference.py --check  # fails when the page is not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import tessera as ts
from tessera import runtime
from tessera.frontend.tile.values import Shared, Tile

PAGE = Path(__file__).resolve().parent.parent / "docs" / "language.md"

# By module name: `tile.reduce` is the function.
FAMILIES = [
    import_module(f"tessera.frontend.tile.{name}")
    for name in "structure create memory math reduce shape mma shared random debug".split()
]

INTRO = Path(__file__).with_name("language-intro.md")

SECTIONS = ("Args:", "Returns:", "Raises:", "Numerics:", "Source:")


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = render()
    if parser.parse_args().check:
        same = PAGE.read_text(encoding="utf-8") == text
        print("up to date" if same else f"{PAGE} is out of date: run {sys.argv[0]}")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """Return the page."""
    parts = [INTRO.read_text(encoding="utf-8"), "## Kernels\n", *_entries(_kernel_items())]
    for family in FAMILIES:
        parts.append(f"## {_first_line(family).rstrip('.')}\n")
        parts += _rest(family)
        parts += _entries((f"ts.tile.{name}", getattr(family, name)) for name in family.__all__)
    parts.append("## Values\n")
    parts += _members("tile", Tile)
    parts += _members("shared", Shared)
    parts.append("## Arrays and devices\n")
    names = ("asarray", "empty", "full", "zeros", "ones")
    parts += _entries((f"ts.{name}", getattr(ts, name)) for name in names)
    names = ("capabilities", "devices", "select_backend", "from_dlpack", "to_numpy")
    parts += _entries((f"ts.runtime.{name}", getattr(runtime, name)) for name in names)
    return "\n".join(parts).rstrip() + "\n"


def _kernel_items() -> list[tuple[str, Any]]:
    return [
        ("ts.kernel", ts.kernel.__call__),
        ("ts.kernel.autotune", ts.kernel.autotune),
        ("ts.function", ts.function),
        ("ts.Tensor[...]", ts.Tensor),
        ("ts.dims", ts.dims),
        ("ts.compile", ts.compile),
        ("ts.load", ts.load),
        ("kernel.explain", type(_sample).explain),
        ("ts.numerics.profile", ts.numerics.profile),
    ]


@ts.kernel
def _sample() -> None:
    pass


def _entries(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, item in items:
        yield f"### `{name}{_signature(item)}`\n"
        yield _body(item)


def _members(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _body(kind)
    for member, value in vars(kind).items():
        if isinstance(value, property) or (inspect.isfunction(value) and not member.startswith("_")):
            call = _signature(value) if inspect.isfunction(value) else ""
            yield f"- `.{member}{call}`: {_first_line(value)}"
    yield ""


def _signature(item: Any) -> str:
    """Return the parameters by name and default; what they mean stands below."""
    if inspect.isclass(item):
        return ""
    shown: list[str] = []
    for param in inspect.signature(item).parameters.values():
        if param.name == "self":
            continue
        stars = {param.VAR_POSITIONAL: "*", param.VAR_KEYWORD: "**"}.get(param.kind, "")
        default = "" if param.default is param.empty else f"={param.default!r}"
        shown.append(f"{stars}{param.name}{default}")
    return f"({', '.join(shown)})"


def _first_line(item: Any) -> str:
    return (inspect.getdoc(item) or "").splitlines()[0]


def _rest(item: Any) -> list[str]:
    rest = "\n".join((inspect.getdoc(item) or "").splitlines()[1:]).strip()
    return [rest + "\n"] if rest else []


def _body(item: Callable[..., Any] | type) -> str:
    """Return a docstring as Markdown: prose, code as it stands, then one list for each section."""
    lines: list[str] = []
    section = ""
    for line in (inspect.getdoc(item) or "").splitlines():
        if line.strip() in SECTIONS:
            section = line.strip()
            lines += ["", f"**{section[:-1]}**", ""] if section in ("Args:", "Raises:") else [""]
            continue
        if not section:
            lines.append(line)
        elif line.strip():
            lines.append(_item(line, section, lines))
    return "\n".join(lines).strip().replace("\n\n\n", "\n\n") + "\n"


def _item(line: str, section: str, lines: list[str]) -> str:
    if line.startswith("        ") or (section not in ("Args:", "Raises:") and lines[-1]):
        return f"  {line.strip()}" if section in ("Args:", "Raises:") else line.strip()
    if section in ("Args:", "Raises:"):
        name, _, text = line.strip().partition(": ")
        return f"- `{name}`: {text}"
    return f"**{section[:-1]}** {line.strip()}"


if __name__ == "__main__":
    raise SystemExit(main())
