"""What docstrings say that functions raise is what the package can raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


NO_MISTAKE = {"CompilerFault", "VerifyError"}
"""Errors that no line of the user's made, and those of IR texts, which show the op."""


def unhelpful(path: Path) -> Iterator[int]:
    """Return the lines of a file that make errors which do not say what to do."""
    for node in ast.walk(ast.parse(texts()[path])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            kind = getattr(tessera.errors, node.func.id, None)
            of_users = (
                isinstance(kind, type) and issubclass(kind, tessera.TesseraError) and kind.__name__ not in NO_MISTAKE
            )
            if of_users and not {keyword.arg for keyword in node.keywords} & {"help", None}:
                yield node.lineno


@pytest.mark.parametrize("part", sorted({path.relative_to(_ROOT).parts[0] for path in texts()}))
def test_errors_say_what_to_do(part):
    mine = [path for path in texts() if path.relative_to(_ROOT).parts[0] == part]
    assert not {str(path): lines for path in mine if (lines := list(unhelpful(path)))}
