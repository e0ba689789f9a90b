"""One mistake per file of `call_cases/`, in a call, a compilation or the environment."""

from __future__ import annotations

import pytest

import tessera as ts
from tests.errors.support import cases, imported


def trigger(path):
    """Import a case and make its call."""
    imported(path).call()


@pytest.mark.parametrize("path", cases("call_cases"), ids=lambda path: path.stem)
def test_call_error(path, golden):
    with pytest.raises(ts.TesseraError) as caught:
        trigger(path)
    golden(path, caught.value)
