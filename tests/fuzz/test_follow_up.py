"""Failing programs shrink, the step that is wrong is named, and two runs of one program are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

from tessera.driver import pipeline
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.lower import simt
from tessera.tools.fuzz import threads, tree
from tessera.tools.fuzz.campaign import Summary
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.metamorphic import varied
from tessera.tools.fuzz.report import as_json, measured
from tessera.tools.fuzz.run import Device, Outcome
from tessera.tools.fuzz.shrink import report, save, shrink
from tessera.tools.fuzz.shrink_edits import check_types, edits, size
from tessera.tools.fuzz.source import source
from tessera.tools.fuzz.steps import BELOW, first_wrong
from tessera.tools.fuzz.threads import raced, wrong_level
from tessera.tools.fuzz.types import TreeError

LONGER = Options(small=0.0)


def reverses(program: tree.Program) -> Outcome:
    """A fault that shows wherever a scan runs backwards, and another one where nothing does."""
    nodes = (node for grid in program.grids for node in tree.walk(grid))
    found = any(isinstance(node, tree.Scan) and node.reverse for node in nodes)
    return Outcome(program.seed, "mismatch" if found else "error", "", "wrong")


def first_seed_with_a_reversed_scan() -> int:
    return next(seed for seed in range(200) if reverses(generate(seed, LONGER)).kind == "mismatch")


def test_a_failing_program_shrinks_to_what_fails(tmp_path: Path) -> None:
    program = generate(first_seed_with_a_reversed_scan(), LONGER)
    shrunk = shrink(program, reverses, seconds=60)
    assert reverses(shrunk.program).kind == "mismatch"
    assert size(shrunk.program) < size(program) / 4
    assert len(shrunk.program.grids) == 1
    assert sum(isinstance(node, tree.Stmt) for node in tree.walk(shrunk.program)) <= 2
    text = report(shrunk, BELOW)
    assert f"# seed {program.seed}: mismatch" in text
    assert "reverse=True" in text
    path = save(text, shrunk.program, tmp_path)
    assert path.read_text() == text
    assert path.with_suffix(".json").exists()


def test_a_program_that_does_not_fail_stays_as_it_is() -> None:
    program = generate(0)
    shrunk = shrink(program, lambda each: Outcome(each.seed, "same"), seconds=5)
    assert (shrunk.program, shrunk.tried, shrunk.complete) == (program, 1, False)


@pytest.mark.parametrize("seed", range(3))
def test_edits_give_programs_of_the_language_or_say_that_they_do_not(seed: int) -> None:
    made = 0
    for edit in edits(generate(seed)):
        try:
            smaller = edit()
            check_types(smaller)
        except (TreeError, ValueError, IndexError):
            continue
        compile(source(smaller), "program", "exec")
        made += 1
    assert made > 20


@dataclass(frozen=True)
class _Swaps(Pass):
    """A pass that takes sums for differences."""

    name = "swaps"

    def apply(self, module: ModuleOp) -> None:
        for op in module.walk():
            if isinstance(op, ElementwiseOp) and op.fn.data == "add" and "tile" in str(op.result.type):
                op.properties["fn"] = StringAttr("sub")


def sums() -> tree.Program:
    """`X[i:i + 8] = X[i:i + 8] + X[i:i + 8]`."""
    place = (tree.Span(tree.Name("i", tree.Type("i64")), 8),)
    load = tree.Load("X", place, "i32")
    store = tree.Store("X", place, "i32", tree.Apply("add", (load, load)))
    grid = tree.Grid(("i",), (tree.Name("M", tree.Type("i64")),), (8,), (store,))
    tensor = tree.Tensor("X", ("M",), "i32", (21,), tree.Contents("small", 1, 9), tree.Layout((0,), (1,)))
    return tree.Program(7, (tensor,), (), (grid,))


def test_the_step_that_changes_a_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_wrong(sums(), tmp_path) == BELOW
    monkeypatch.setattr(pipeline, "CANONICALIZE", (*pipeline.CANONICALIZE[:2], _Swaps()))
    assert first_wrong(sums(), tmp_path) == "canonicalize: swaps: X differs"


def test_a_fault_of_a_schedule_is_of_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pipeline.schedule_passes

    def passes(target: Any, knobs: Any) -> tuple[Pass, ...]:
        return (*whole(target, knobs), _Swaps()) if target.name == "sm_80" else whole(target, knobs)

    monkeypatch.setattr(pipeline, "schedule_passes", passes)
    assert first_wrong(sums(), tmp_path) == "schedule for sm_80: swaps: X differs"


def shifts() -> tree.Program:
    """`X[i, 1:65] = X[i, 0:64]`, twice."""
    row = tree.At(tree.Name("i", tree.Type("i64")))
    load = tree.Load("X", (row, tree.Span(tree.Number(0), 64)), "i32")
    store = tree.Store("X", (row, tree.Span(tree.Number(1), 64)), "i32", load)
    grid = tree.Grid(("i",), (tree.Name("M", tree.Type("i64")),), (1,), (store, store))
    tensor = tree.Tensor("X", ("M", 65), "i32", (3, 65), tree.Contents("wide"), tree.Layout((0, 1), (1, 1)))
    return tree.Program(7, (tensor,), (), (grid,))


def test_missing_barriers_are_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raced(shifts(), tmp_path).kind == "same"
    monkeypatch.setattr(simt, "order_accesses", lambda *_: None)
    found = raced(shifts(), tmp_path)
    assert (found.kind, found.code) == ("mismatch", "race")


@pytest.mark.parametrize("name", ["again", "threads", "cached", "saved"])
def test_two_runs_of_a_program_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.tools.fuzz import metamorphic

    monkeypatch.setattr(metamorphic, "CHECKS", {name: metamorphic.CHECKS[name]})
    assert varied(sums(), Device("cpu"), tmp_path) is None


def test_runs_that_differ_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.tools.fuzz import metamorphic

    again = metamorphic.CHECKS["again"]

    def differ(*given: Any) -> Any:
        first, second = again(*given)
        second["X"][3] += 1
        return first, second

    monkeypatch.setattr(metamorphic, "CHECKS", {"differ": differ})
    found = varied(sums(), Device("cpu"), tmp_path)
    assert found is not None
    assert (found.kind, found.code) == ("mismatch", "differ")
    assert "element 3" in found.detail


def test_a_report_holds_what_was_found() -> None:
    summary = Summary()
    summary.add(Outcome(3, "mismatch", "", "X differs", reached=("add i32 top",)))
    with measured(False) as reach:
        pass
    found = json.loads(as_json(summary, 3, Device("cpu"), reach))
    assert found["failures"] == [{"seed": 3, "kind": "mismatch", "code": "", "detail": "X differs"}]
    assert found["reached"] == {"add i32 top": 1}


def test_below_the_passes_threads_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_level(sums(), tmp_path) == "what comes below the lowering"
    said = {"sm_80": Outcome(7, "same"), "sm_90a": Outcome(7, "skipped")}
    monkeypatch.setattr(threads, "computed", lambda _program, _folder, targets: said[targets[0]])
    assert wrong_level(sums(), tmp_path) == BELOW
    said["sm_90a"] = Outcome(7, "mismatch", detail="X differs")
    assert wrong_level(sums(), tmp_path) == "the lowering: X differs"
