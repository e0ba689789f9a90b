"""What a campaign reached: operations, dtypes and contexts, and the lines of the compiler, as tables and as JSON."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.tools.fuzz.campaign import Summary
from tessera.tools.fuzz.measure import MEASURE
from tessera.tools.fuzz.run import Device

PARTS = ("canonicalize", "schedule", "lower", "backends")
"""The packages whose lines are counted."""

_ROOT = Path(__file__).parents[2]


@dataclass
class Reach:
    """Lines and branches that programs reached.

    Args:
        files: for each file how many statements and branches it has, and how many of them were reached.
        note: why nothing was counted.
    """

    files: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    note: str = ""

    @property
    def share(self) -> float:
        """Percent of the lines that were reached; 0 when nothing was counted."""
        lines = sum(counts["num_statements"] for counts in self.files.values())
        return 100 * sum(counts["covered_lines"] for counts in self.files.values()) / lines if lines else 0.0

    def table(self) -> str:
        """Return a line for each package and for each file that is not reached in full."""
        if self.note:
            return self.note
        rows = [("package or file", "lines", "reached", "branches", "reached")]
        for part in PARTS:
            inside = {name: counts for name, counts in self.files.items() if name.split("/")[0] == part}
            total = {key: sum(counts[key] for counts in inside.values()) for key in _KEYS}
            rows += [_row(part, total), *(_row(f"  {name}", counts) for name, counts in sorted(inside.items()))]
        rows.append(_row("all", {key: sum(counts[key] for counts in self.files.values()) for key in _KEYS}))
        return "\n".join(f"{a:44}{b:>8}{c:>10}{d:>10}{e:>10}" for a, b, c, d, e in rows)


_KEYS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def _row(name: str, counts: dict[str, int]) -> tuple[str, str, str, str, str]:
    lines, lines_hit, branches, branches_hit = (counts[key] for key in _KEYS)
    return name, str(lines), _share(lines_hit, lines), str(branches), _share(branches_hit, branches)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


@contextmanager
def measured(wanted: bool) -> Generator[Reach]:
    """Measure the lines that the worker processes of a campaign run; what was reached is there at the end.

    Args:
        wanted: whether to measure at all.
    """
    reach = Reach()
    if not wanted:
        yield reach
        return
    if importlib.util.find_spec("coverage") is None:
        reach.note = "lines were not measured: the package `coverage` is not installed"
        yield reach
        return
    with tempfile.TemporaryDirectory(prefix="tessera-coverage-") as folder:
        config = write_config(Path(folder))
        before = os.environ.get(MEASURE)
        os.environ[MEASURE] = str(config)
        try:
            yield reach
        finally:
            if before is None:
                del os.environ[MEASURE]
        collect(reach, config)


def write_config(folder: Path) -> Path:
    """Write settings of `coverage` for worker processes, which leave their data in the folder; return the file."""
    config = folder / "config"
    include = "\n".join(f"    {_ROOT / part}/*" for part in PARTS)
    config.write_text(
        f"[run]\nbranch = True\ndata_file = {folder}/data\nparallel = True\n[report]\ninclude =\n{include}\n",
        encoding="utf-8",
    )
    return config


def collect(reach: Reach, config: Path) -> None:
    """Add up what all worker processes reached.

    Args:
        reach: what gets the files, or the reason why there are none.
        config: what `write_config` wrote.
    """
    whole: Any = importlib.import_module("coverage").Coverage(config_file=str(config))
    data = list(config.parent.glob("data*"))
    if not data:
        reach.note = "lines were not measured: no worker ended by itself"
        return
    whole.combine([str(path) for path in data])
    target = config.parent / "report.json"
    whole.json_report(outfile=str(target))
    for name, record in json.loads(target.read_text(encoding="utf-8"))["files"].items():
        place = Path(name).resolve()
        if place.is_relative_to(_ROOT):
            reach.files[place.relative_to(_ROOT).as_posix()] = {key: record["summary"][key] for key in _KEYS}


def as_json(summary: Summary, first: int, device: Device, reach: Reach) -> str:
    """Return what a campaign found as JSON."""
    found = {
        "device": device.kind,
        "target": device.target,
        "first_seed": first,
        "programs": summary.programs,
        "seconds": round(summary.elapsed, 1),
        "kinds": dict(summary.kinds),
        "refused": dict(summary.codes),
        "not_emulated": dict(summary.skips),
        "unknown_share": summary.unknown / max(summary.programs, 1),
        "failures": [{"seed": o.seed, "kind": o.kind, "code": o.code, "detail": o.detail} for o in summary.failures],
        "reached": dict(sorted(summary.reached.items())),
        "knobs": dict(sorted(summary.knobs.items())),
        "lines": reach.files or reach.note or None,
    }
    return json.dumps(found, indent=1) + "\n"
