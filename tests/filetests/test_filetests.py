"""Runs every `<stage>/<pass>.mlir`: `RUN:` names the passes, `CHECK:` lines say what they give.

A RUN line may end in `--to LEVEL --target NAME`. Folder `lower` has what becomes TIR-T (of threads, `simt`, and of
vectors), `generate` what becomes code: LLVM IR of CPUs, and PTX.

The file of a pass lies where the pass does: `schedule/gpu/<pass>.mlir` for one of `tessera.schedule.gpu`. A file holds
several cases, separated by `// -----`; each has its own RUN line or takes the file's first. A case with an `ERROR:`
line must be refused with that text and a place.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tessera.errors import VerifyError
from tessera.tools.opt import opt_text, registered_passes
from tests.filetests.filecheck import check, checks_of

HERE = Path(__file__).parent
_RUN = re.compile(r"^// RUN:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_ERROR = re.compile(r"^// ERROR:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def cases() -> list[tuple[str, str, str]]:
    found = []
    for path in sorted(HERE.rglob("*.mlir")):
        parts = re.split(r"^// -----.*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        default = _RUN.search(parts[0])
        for number, part in enumerate(parts, 1):
            run = _RUN.search(part) or default
            assert run is not None, f"{path} has no RUN line"
            found.append((f"{path.relative_to(HERE)}:{number}", run.group(1), part))
    return found


def made_of(source: str, run: str, file: str = "<input>") -> str:
    """Return what the RUN line of a case makes of it."""
    passes, _, rest = run.partition("--to ")
    level, _, target = rest.partition(" --target ")
    return opt_text(source, passes.split(), file=file, to=level or None, target=target or None)


@pytest.mark.parametrize(("run", "source"), [case[1:] for case in cases()], ids=[case[0] for case in cases()])
def test_file(run: str, source: str) -> None:
    expected = _ERROR.search(source)
    if expected is not None:
        with pytest.raises(VerifyError) as caught:
            made_of(source, run, "case.mlir")
        assert expected.group(1) in str(caught.value)
        assert caught.value.location is not None
        return
    assert checks_of(source), "a case without CHECK lines tests nothing"
    output = made_of(source, run)
    problem = check(source, output)
    assert problem is None, problem
    if "--to ll" not in run and "--to ptx" not in run:
        assert opt_text(output, []) == output, "the result does not parse back"


@pytest.mark.parametrize("name", sorted(registered_passes()))
def test_every_pass_has_a_file(name: str) -> None:
    folder = HERE.joinpath(*registered_passes()[name].__module__.split(".")[1:-1])
    file = folder / f"{name.partition('-')[2]}.mlir"
    assert file.exists(), f"add {file.relative_to(HERE.parent.parent)}"


@pytest.mark.parametrize(
    ("directives", "problem"),
    [
        ("// CHECK: b\n// CHECK: d", None),
        ("// CHECK: b\n// CHECK-NEXT: d", "CHECK-NEXT: d"),
        ("// CHECK: a\n// CHECK-NOT: b\n// CHECK: c", "CHECK-NOT: b"),
        ("// CHECK: d\n// CHECK: a", "CHECK: a"),
        ("// CHECK: [[X:[a-c]]] x\n// CHECK: [[X]] y", None),
        ("// CHECK: [[X:[a-c]]] x\n// CHECK: d [[X]]", "CHECK: d [[X]]"),
        ("// CHECK-NOT: e", None),
    ],
)
def test_filecheck_itself(directives: str, problem: str | None) -> None:
    found = check(directives, "a\nb x\nc\nd\nb y")
    assert found is None if problem is None else found is not None and found.startswith(problem)
