"""benchmarks/first_kernel.py: a fresh process says what its parts took, of running and of compiling alone."""

from __future__ import annotations

from pathlib import Path

import first_kernel
import pytest


@pytest.mark.parametrize("target", ["", "sm_90a"])
def test_a_fresh_process_tells_its_times(target: str, tmp_path: Path) -> None:
    found = first_kernel.in_fresh_process(target, str(tmp_path))
    assert list(found) == ["Python, NumPy", "Tessera", "first", "second"]
    assert 0 < found["second"] < found["first"]
