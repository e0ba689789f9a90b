"""One mistake per file of `cases/`, in the language or the frontend; what is printed is in `golden/cases/`."""

from __future__ import annotations

import pytest

import tessera as ts
from tessera.frontend import builder
from tests.errors.support import cases, imported
from tests.unit.frontend.support import built

CASES = cases("cases")
SIZES = {"M": 64, "N": 64, "K": 64, "n": 64}


def trigger(path):
    """Import a case and build its kernel."""
    module = imported(path)
    built(module.kernel, SIZES, **getattr(module, "OPTIONS", {}))


@pytest.fixture(autouse=True)
def small_budget(monkeypatch):
    """Let what would compile for ever end sooner."""
    monkeypatch.setattr(builder, "MAX_STEPS", 2**14)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_language_error(path, golden):
    with pytest.raises(ts.TesseraError) as caught:
        trigger(path)
    golden(path, caught.value)


def test_there_are_many_cases():
    assert len(CASES) >= 60
