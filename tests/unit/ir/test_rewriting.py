"""The driver of patterns against xDSL's own: the same ops, in the same order, from the same rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)

from tessera.canonicalize.stages import CANONICALIZE
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import types_matched
from tessera.ir.text import text_of
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.steps import built


class _OfItsTypes(RewritePattern):
    """A pattern as xDSL wants it: it passes over other ops by itself."""

    def __init__(self, pattern: RewritePattern) -> None:
        self.pattern, self.types = pattern, types_matched(pattern)

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if isinstance(op, self.types):
            self.pattern.match_and_rewrite(op, rewriter)


def _by_xdsl(module: ModuleOp, patterns: PatternPass) -> None:
    applier = GreedyRewritePatternApplier([_OfItsTypes(each) for each in patterns.patterns()], dce_enabled=False)
    PatternRewriteWalker(applier).rewrite_module(module)


@pytest.mark.parametrize("seed", range(6))
def test_rewrites_are_those_of_xdsl(seed: int, tmp_path: Path) -> None:
    program = generate(seed, Options(small=0, nests=0))
    module = built(program, tmp_path, {tensor.name: contents(tensor, seed) for tensor in program.tensors})
    matched = 0
    for step in CANONICALIZE:
        before, other = text_of(module), module.clone()
        step.apply(module)
        if isinstance(step, PatternPass):
            _by_xdsl(other, step)
            assert text_of(module) == text_of(other), step.name
            matched += text_of(module) != before
    assert matched
