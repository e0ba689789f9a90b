"""Measures the lines that a worker process of a campaign reaches, with the package `coverage`."""

from __future__ import annotations

import importlib
import os
from typing import Any

MEASURE = "TESSERA_FUZZ_COVERAGE"
"""Names the settings of `coverage` for worker processes."""


def start_measuring() -> Any:
    """Start to measure in a worker process, if the campaign wants it; returns what to stop."""
    config = os.environ.get(MEASURE)
    if config is None:
        return None
    measuring: Any = importlib.import_module("coverage").Coverage(config_file=config)
    measuring.start()
    return measuring


def stop_measuring(measuring: Any) -> None:
    """Write what a worker process reached."""
    if measuring is not None:
        measuring.stop()
        measuring.save()
