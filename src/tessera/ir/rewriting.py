"""Applies rewrite patterns until none matches, visiting only ops that some pattern names.

The order is that of xDSL's greedy driver: ops in program order, each with the patterns in order, then what a rewrite
touched, last first; and all of it again until nothing changes. That driver offers every op to every pattern, which
costs more than what the patterns do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import UnionType
from typing import TypeVar, get_args

from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriterListener, RewritePattern
from xdsl.rewriter import InsertPoint
from xdsl.utils.worklist import Worklist

from tessera.ir.walking import ops_in, ops_inside

Pattern = TypeVar("Pattern", bound=RewritePattern)
Op = TypeVar("Op", bound=Operation)
Match = Callable[[Pattern, Op, PatternRewriter], None]

_TYPED = set[Callable[..., None]]()


def matches_type(match: Match[Pattern, Op]) -> Match[Pattern, Operation]:
    """Mark a pattern's `match_and_rewrite` as one for the ops that the annotation of `op` names: a class, or several.

    Only `rewrite` asks for it: called directly, the method checks nothing.
    """
    _TYPED.add(match)
    return match  # pyright: ignore[reportReturnType]


def rewrite(module: ModuleOp, patterns: Sequence[RewritePattern]) -> None:
    """Rewrite a module until no pattern matches; a new op has the location of the op that its pattern matched.

    Args:
        module: changed in place.
        patterns: the most likely first. One that is not marked by `matches_type` is offered every op.
    """
    _Driver(patterns).run(module)


def types_matched(pattern: RewritePattern) -> tuple[type[Operation], ...]:
    """Return the classes of the ops that a pattern is for."""
    return _types_matched(type(pattern))


@lru_cache(maxsize=1024)
def _types_matched(cls: type[RewritePattern]) -> tuple[type[Operation], ...]:
    match = cls.match_and_rewrite
    if match not in _TYPED:
        return (Operation,)
    named = inspect.get_annotations(match, eval_str=True)["op"]
    return get_args(named) if isinstance(named, UnionType) else (named,)


@lru_cache(maxsize=16384)
def _is_for(cls: type[RewritePattern], op: type[Operation]) -> bool:
    """Return whether patterns of a class are for ops of another."""
    return issubclass(op, _types_matched(cls))


class _Driver:
    """Keeps the ops that wait for their patterns."""

    def __init__(self, patterns: Sequence[RewritePattern]) -> None:
        self._patterns = patterns
        self._of_type = dict[type[Operation], list[RewritePattern]]()
        self._waiting = Worklist[Operation]()
        self._matched: Operation | None = None

    def run(self, module: ModuleOp) -> None:
        changed = True
        while changed:
            for op in reversed(ops_inside(module.body)):
                self._push(op)
            changed = self._empty()

    def _patterns_of(self, op: Operation) -> list[RewritePattern]:
        found = self._of_type.get(type(op))
        if found is None:
            found = [pattern for pattern in self._patterns if _is_for(type(pattern), type(op))]
            self._of_type[type(op)] = found
        return found

    def _push(self, op: Operation) -> None:
        if self._patterns_of(op):
            self._waiting.push(op)

    def _empty(self) -> bool:
        """Offer each waiting op to its patterns; return whether one matched."""
        changed, rewriter = False, None
        while self._waiting:
            self._matched = op = self._waiting.pop()
            if rewriter is None:
                rewriter = self._rewriter(op)
            rewriter.has_done_action = False
            rewriter.insertion_point = InsertPoint.before(op)
            rewriter.name_hint = None
            for pattern in self._patterns_of(op):
                pattern.match_and_rewrite(op, rewriter)
                if rewriter.has_done_action:
                    changed = True
                    break
        return changed

    def _rewriter(self, op: Operation) -> PatternRewriter:
        rewriter = PatternRewriter(op)
        listener = PatternRewriterListener(
            operation_insertion_handler=[self._inserted],
            operation_removal_handler=[self._removed],
            operation_modification_handler=[self._push],
            operation_replacement_handler=[self._replaced],
        )
        rewriter.extend_from_listener(listener)
        return rewriter

    def _inserted(self, op: Operation) -> None:
        if self._matched is not None:
            for new in ops_in(op):
                if new.location == UNKNOWN_LOC:
                    new.location = self._matched.location
        self._push(op)

    def _removed(self, op: Operation) -> None:
        for operand in op.operands:
            if operand.has_one_use() and isinstance(owner := operand.owner, Operation):
                self._push(owner)
        for gone in ops_in(op):
            self._waiting.remove(gone)

    def _replaced(self, op: Operation, _: Sequence[SSAValue | None]) -> None:
        for result in op.results:
            for use in result.uses:
                self._push(use.operation)
