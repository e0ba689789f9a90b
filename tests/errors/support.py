"""Imports the files of one mistake each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def cases(folder: str) -> list[Path]:
    """Return the case files of a folder, sorted by name."""
    return sorted((FOLDER / folder).glob("*.py"))


def imported(path: Path) -> Any:
    """Import a case under a name of its own; the import may be the mistake."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
