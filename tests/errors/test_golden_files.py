"""The golden folder holds what the cases need and nothing else."""

from __future__ import annotations

from tests.errors.support import FOLDER, cases


def test_every_golden_text_has_its_case():
    for folder in ("cases", "call_cases"):
        texts = {path.stem for path in (FOLDER / "golden" / folder).glob("*")}
        assert texts == {path.stem for path in cases(folder)}
