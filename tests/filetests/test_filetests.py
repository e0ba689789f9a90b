"""Runs every `<stage>/<pass>.mlir`: `RUN:` names the passes, `CHECK:` lines say what they give.

A file holds several cases, separated by `// -----`; each has its own RUN line or takes the file's first. A
case with an `ERROR:` line must be refused with that text and a place.
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


@pytest.mark.parametrize(("run", "source"), [case[1:] for case in cases()], ids=[case[0] for case in cases()])
def test_file(run: str, source: str) -> None:
    expected = _ERROR.search(source)
    if expected is not None:
        with pytest.raises(VerifyError) as caught:
            opt_text(source, run.split(), file="case.mlir")
        assert expected.group(1) in str(caught.value)
        assert caught.value.location is not None
        return
    assert checks_of(source), "a case without CHECK lines tests nothing"
    output = opt_text(source, run.split())
    problem = check(source, output)
    assert problem is None, problem
    assert opt_text(output, []) == output, "the result does not parse back"


@pytest.mark.parametrize("name", sorted(registered_passes()))
def test_every_pass_has_a_file(name: str) -> None:
    stage, _, rest = name.partition("-")
    assert (HERE / stage / f"{rest}.mlir").exists(), f"add tests/filetests/{stage}/{rest}.mlir"


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
