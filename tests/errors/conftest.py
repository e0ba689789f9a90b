"""Golden error texts: `pytest tests/errors --update-golden` writes them, every other run compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tessera as ts

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden error texts")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, ts.TesseraError], None]:
    """Return a function that checks an error and compares its text with the golden one of its case."""

    def compare(case: Path, error: ts.TesseraError) -> None:
        assert error.help, "every error says what to do"
        assert error.where is not None, "every error says where"
        assert error.where.frame.file == str(case), "the place is the user's, not ours"
        path, text = GOLDEN / case.parent.name / f"{case.stem}.txt", f"{error}\n"
        if request.config.getoption("update_golden", default=False):
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        assert path.exists(), "no golden text: run pytest tests/errors --update-golden and read it"
        assert text == path.read_text()

    return compare
