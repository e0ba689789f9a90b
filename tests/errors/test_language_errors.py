"""One mistake per file of `cases/`, in the language or the frontend; what is printed is in `golden/`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tests.unit.frontend.support import built

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
SIZES = {"M": 64, "N": 64, "K": 64, "n": 64}


def trigger(path: Path) -> None:
    """Import a case, which may raise by itself, and build its kernel."""
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built(module.kernel, {**SIZES, **getattr(module, "EXTRA_SIZES", {})}, **getattr(module, "OPTIONS", {}))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path, golden):
    with pytest.raises(ts.TesseraError) as caught:
        trigger(path)
    error = caught.value
    assert error.help, "every error says what to do"
    assert error.location is not None, "every error says where"
    assert error.location.frame.file.endswith(path.name), "the place is the user's, not ours"
    golden(path.stem, error)


def test_there_are_many_cases_of_many_kinds():
    assert len(CASES) >= 60
