"""The pass runner: locations, records, dumps, faults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from tessera.errors import CompilerFault, Frame, LanguageError, Location
from tessera.ir.locations import location_of, to_loc
from tessera.ir.passes import Pass, PassRunner, PatternPass, passes_in
from tessera.ir.text import parse_module, text_of
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp

TEXT = """
tessera_tile.kernel @k profile "fast" (%x: f32 as "x") {
  %y = tessera_tile.elementwise "neg"(%x) : (f32) -> f32
  tessera_tile.print "{}", %y : f32
  tessera_tile.return
}
"""


class _NegToConstant(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data == "neg":
            rewriter.replace(op, ConstantOp(3.0, op.result.type))


@dataclass(frozen=True)
class NegPass(PatternPass):
    name = "neg"
    limit: int = 4

    def patterns(self) -> list[RewritePattern]:
        return [_NegToConstant()]


@dataclass(frozen=True)
class NothingPass(Pass):
    name = "nothing"

    def apply(self, module: ModuleOp) -> None:
        pass


@dataclass(frozen=True)
class BrokenPass(Pass):
    name = "broken"
    how: str = "raise"

    def apply(self, module: ModuleOp) -> None:
        if self.how == "user":
            raise LanguageError("not the compiler's fault")
        if self.how == "raise":
            raise IndexError("out of ideas")
        op = next(op for op in module.walk() if isinstance(op, ConstantOp))
        op.properties.clear()


def test_new_ops_have_the_location_of_what_they_replace() -> None:
    module = parse_module(TEXT)
    place = Location(Frame("k.py", 9, 4), (Frame("main.py", 1, 1),))
    next(op for op in module.walk() if isinstance(op, ElementwiseOp)).location = to_loc(place)
    PassRunner().run(module, "test", [NegPass()])
    assert location_of(next(op for op in module.walk() if isinstance(op, ConstantOp))) == place


def test_records_and_dumps(tmp_path: Path) -> None:
    runner = PassRunner(tmp_path, verify="pass")
    module = parse_module(TEXT)
    runner.run(module, "first", [NothingPass(), NegPass(), NothingPass()])
    lowered = runner.transform(module, "lower", "copy", lambda m: m.clone())
    assert lowered is not module
    assert [(r.stage, r.name, r.ops) for r in runner.records] == [
        ("first", "nothing", 5),
        ("first", "neg{limit=4}", 5),
        ("first", "nothing", 5),
        ("lower", "copy", 5),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00-first-nothing.mlir", "01-first-neg.mlir"]
    text = (tmp_path / "01-first-neg.mlir").read_text()
    assert text.startswith("// first: neg{limit=4}, ")
    assert text_of(parse_module(text)) == text_of(module)


@pytest.mark.parametrize(("how", "message"), [("raise", "failed with IndexError: out of ideas"), ("bad", "invalid IR")])
def test_a_failing_pass_is_a_fault_with_a_reproducer(tmp_path: Path, how: str, message: str) -> None:
    module = parse_module(TEXT)
    with pytest.raises(CompilerFault) as caught:
        PassRunner(tmp_path).run(module, "test", [NegPass(), BrokenPass(how)])
    assert "pass broken of stage test" in str(caught.value)
    assert message in str(caught.value)
    reproducer = tmp_path / "failed-test-broken.mlir"
    assert str(reproducer) in str(caught.value)
    again = parse_module(reproducer.read_text())
    assert any(isinstance(op, ConstantOp) for op in again.walk()), "what the failing pass was given"


def test_a_failing_lowering_is_a_fault(tmp_path: Path) -> None:
    def lower(module: ModuleOp) -> ModuleOp:
        raise KeyError("warp")

    with pytest.raises(CompilerFault, match="pass simt of stage lower failed with KeyError"):
        PassRunner(tmp_path).transform(parse_module(TEXT), "lower", "simt", lower)


def test_errors_of_the_user_pass_through() -> None:
    with pytest.raises(LanguageError):
        PassRunner().run(parse_module(TEXT), "test", [BrokenPass("user")])


def test_passes_are_found_by_scanning() -> None:
    found = passes_in("tessera.canonicalize")
    assert "canonicalize-fold-constants" in found
    assert all(name == f"canonicalize-{cls.name}" for name, cls in found.items())
    assert not any("pattern" in name for name in found), "abstract passes are none"


def test_the_environment_asks_for_verification_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PassRunner().verify == "stage"
    monkeypatch.setenv("TESSERA_VERIFY", "pass")
    assert PassRunner().verify == "pass"
