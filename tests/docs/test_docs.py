"""The documentation is true: its programs run and print what it says, and generated pages are up to date."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tessera.frontend import tile
from tessera.numerics import dtypes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "\x1e"


def program_of(text: str) -> tuple[str, list[str | None]]:
    """Return a page's Python blocks at the lines they have in the page, and what each says it prints."""
    lines, said = [""] * text.count("\n"), list[str | None]()
    after_python = -1
    for found in BLOCK.finditer(text):
        first = text.count("\n", 0, found.start(2))
        if found[1] == "python":
            body = found[2].splitlines()
            lines[first : first + len(body)] = body
            lines[first + len(body)] = f"print({END!r})"
            said.append(None)
            after_python = found.end()
        elif found[1] == "text" and after_python >= 0 and not text[after_python : found.start()].strip():
            said[-1] = found[2]
    return "\n".join(lines) + "\n", said


def runnable(page: Path) -> bool:
    return "```python" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.stem)
def test_programs_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    program, said = program_of(page.read_text(encoding="utf-8"))
    file = tmp_path / f"{page.stem.replace('-', '_')}.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    checker = doctest.OutputChecker()
    for number, (wanted, got) in enumerate(zip(said, done.stdout.split(f"{END}\n"), strict=False)):
        if wanted is not None:
            assert checker.check_output(wanted, got, doctest.ELLIPSIS), f"block {number} printed:\n{got}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_references_are_up_to_date() -> None:
    made = script("generate_reference")
    for name, text in made.pages().items():
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page == text, f"{name}: run python scripts/generate_reference.py"


def test_language_reference_has_every_tile_function() -> None:
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    assert [name for name in tile.functions() if f"### `ts.tile.{name}(" not in text] == []


def test_pipeline_page_is_up_to_date() -> None:
    made = script("generate_pipeline_page")
    assert made.PAGE.read_text(encoding="utf-8") == made.render(), "run python scripts/generate_pipeline_page.py"


def test_numerics_page_has_every_type() -> None:
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert [dtype.name for dtype in dtypes.ALL if f"`{dtype.name}`" not in text] == []
