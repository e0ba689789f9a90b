"""Golden error texts: `pytest tests/errors --update-golden` writes them, every other run compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden error texts")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Return a function that compares an error's text with `golden/<name>.txt`."""

    def compare(name: str, error: object) -> None:
        path, text = GOLDEN / f"{name}.txt", f"{error}\n"
        if request.config.getoption("update_golden", default=False):
            path.write_text(text)
        assert path.exists(), (
            f"no golden text for {name}: run pytest tests/errors --update-golden and read it"
        )
        assert text == path.read_text()

    return compare
