"""What docstrings say that functions raise is what the package can raise."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import tessera

_ROOT = Path(tessera.__file__).parent
_RAISES = re.compile(r"\b\w+Error:(.*?)(?=\n\s*\n|\"\"\"|\n\s+\w+:)", re.DOTALL)
_CODE = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`")


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(_ROOT.rglob("*.py"))}


@cache
def raised() -> frozenset[str]:
    return frozenset(code for text in texts().values() for code in re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', text))


def documented(path: Path) -> set[str]:
    return {code for clause in _RAISES.findall(texts()[path]) for code in _CODE.findall(clause)}


@pytest.mark.parametrize("part", sorted({path.relative_to(_ROOT).parts[0] for path in texts()}))
def test_documented_codes_are_raised(part):
    missing = {
        str(path.relative_to(_ROOT)): codes
        for path in texts()
        if path.relative_to(_ROOT).parts[0] == part and (codes := documented(path) - raised())
    }
    assert not missing


def test_there_are_documented_codes():
    assert {"bad-axis", "never-arrived", "unknown-target"} <= set().union(*map(documented, texts()))
