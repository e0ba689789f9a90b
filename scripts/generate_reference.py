"""Writes docs/language.md, docs/linalg.md and docs/library.md from docstrings, so that pages and code cannot differ.

python scripts/generate_reference.py          # writes the pages
python scripts/generate_reference.py --check  # fails when a page is not what would be written
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
from tessera import ops, runtime
from tessera.frontend.tile.stub import NAMESPACES
from tessera.frontend.tile.values import Shared, Tile

DOCS = Path(__file__).resolve().parent.parent / "docs"

_NAMES = (
    "structure create memory atomics math activations bits reductions order shape parts products shared pipeline "
    "mbarrier group random debug assembly derivatives"
)
FAMILIES = [import_module(f"tessera.frontend.tile.{name}") for name in _NAMES.split()]

INTRO = Path(__file__).with_name("language-intro.md")
LINALG_INTRO = Path(__file__).with_name("linalg-intro.md")
LIBRARY_INTRO = Path(__file__).with_name("library-intro.md")

SECTIONS = ("Args:", "Returns:", "Raises:", "Numerics:", "Source:")


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    only_check = parser.parse_args().check
    stale = [name for name, text in pages().items() if (DOCS / name).read_text(encoding="utf-8") != text]
    for name in stale:
        if not only_check:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
        else:
            print(f"{DOCS / name} is out of date: run {sys.argv[0]}")
    return 1 if stale and only_check else 0


def pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    return {"language.md": render(), "linalg.md": render_linalg(), "library.md": render_library()}


def render() -> str:
    """Return the language's page."""
    parts = [INTRO.read_text(encoding="utf-8"), "## Kernels\n", *_entries(_kernel_items())]
    for family in FAMILIES:
        parts.append(f"## {_first_line(family).rstrip('.')}\n")
        parts += _rest(family)
        prefix = f"ts.tile.{family.__name__.rpartition('.')[2]}" if _is_namespace(family) else "ts.tile"
        parts += _entries((f"{prefix}.{name}", getattr(family, name)) for name in family.__all__)
    parts.append("## Values\n")
    parts += _members("tile", Tile)
    parts += _members("shared", Shared)
    parts.append("## Arrays and devices\n")
    names = ("asarray", "empty", "full", "zeros", "ones")
    parts += _entries((f"ts.{name}", getattr(ts, name)) for name in names)
    names = ("capabilities", "devices", "select_backend", "from_dlpack", "to_numpy")
    parts += _entries((f"ts.runtime.{name}", getattr(runtime, name)) for name in names)
    return "\n".join(parts).rstrip() + "\n"


def _is_namespace(family: Any) -> bool:
    return family.__name__.rpartition(".")[2] in NAMESPACES


def render_linalg() -> str:
    """Return the page of matrix products and epilogues."""
    linalg, epilogue = ops.linalg, ops.epilogue
    parts = [LINALG_INTRO.read_text(encoding="utf-8").rstrip() + "\n", "## Products\n"]
    calls = ("gemm", "gemm_batched", "matmul", "linear", "gemm_grouped")
    parts.append("`gemm_batched` takes what `gemm` takes, with a batch before the matrices of one operand or both.\n")
    parts += _entries((f"op.linalg.{n}", getattr(linalg, n).__call__) for n in calls if n != "gemm_batched")
    parts += _entries((f"op.linalg.gemm.{n}", getattr(linalg.gemm, n)) for n in ("plan", "compile", "space", "explain"))
    parts += _entries([("op.specialize", linalg.specialize)])
    parts.append("## Epilogues\n")
    parts += _entries([("op.epilogue.chain", epilogue.chain), ("op.epilogue.Epilogue[...]", epilogue.Epilogue)])
    steps = [name for name in epilogue.__all__ if name not in ("Epilogue", "Step", "chain")]
    parts += _entries((f"op.epilogue.{name}", getattr(epilogue, name)) for name in steps)
    return "\n".join(parts).rstrip() + "\n"


def render_library() -> str:
    """Return the page of the other library ops: calls, by families."""
    parts = [LIBRARY_INTRO.read_text(encoding="utf-8").rstrip() + "\n"]
    for name in ops.MODULES:
        if name not in ("epilogue", "linalg"):
            module = import_module(f"tessera.ops.{name}")
            title, _, rest = _first_line(module).rstrip(".").partition(": ")
            parts.append(f"## {title}\n")
            parts += [rest[0].upper() + rest[1:] + ".\n"] if rest else []
            prefix = f"op.{name}" if name in ops.FAMILIES else "op"
            members = ((one, getattr(module, one)) for one in module.__all__)
            calls = (
                (one, op if inspect.isfunction(op) else op.__call__) for one, op in members if not inspect.isclass(op)
            )
            parts += _entries((f"{prefix}.{one}", call) for one, call in calls)
    return "\n".join(parts).rstrip() + "\n"


def _kernel_items() -> list[tuple[str, Any]]:
    return [
        ("ts.kernel", ts.kernel.__call__),
        ("ts.kernel.autotune", ts.kernel.autotune),
        ("ts.function", ts.function),
        ("ts.Tensor[...]", ts.Tensor),
        ("ts.dims", ts.dims),
        ("ts.cdiv", ts.cdiv),
        ("ts.compile", ts.compile),
        ("ts.load", ts.load),
        ("ts.pullback", ts.pullback),
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
        if line.startswith("Source: "):
            lines += ["", f"**Source** {line.removeprefix('Source: ')}"]
        elif not section:
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
