"""Reverse and forward mode: sweeps over the ops between what is given and what is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from tessera.autodiff.calls import Stated, pull_through, push_through
from tessera.autodiff.rules import added, is_smooth, pull_back, push_forward
from tessera.ir.graph.callees import Values
from tessera.ir.graph.views import OwnOp, StopOp
from tessera.ir.graph.writer import GraphWriter


def _influenced(w: GraphWriter, given: Sequence[SSAValue]) -> dict[SSAValue, None]:
    """Return the values that smoothly depend on some, in order, themselves among them."""
    found = dict.fromkeys(value for value in given if is_smooth(value))
    for op in w.graph.body.block.ops:
        if any(operand in found for operand in _read(op)):
            found.update(dict.fromkeys(result for result in op.results if is_smooth(result)))
    return found


def _read(op: Operation) -> Sequence[SSAValue]:
    """Return the operands that derivatives go through."""
    return () if isinstance(op, StopOp) else op.inputs if isinstance(op, OwnOp) else op.operands


def gradients(
    w: GraphWriter, results: Sequence[SSAValue], cotangents: Sequence[SSAValue], given: Sequence[SSAValue]
) -> list[SSAValue]:
    """Append the gradients of results, weighted by cotangents, by given values.

    Args:
        w: the graph.
        results: what is differentiated.
        cotangents: a weight for each, of its shape and dtype.
        given: what it is differentiated by.

    Returns:
        For each given value an array of its shape and dtype.

    Raises:
        LanguageError: `no-adjoint`.
    """
    influenced = _influenced(w, given)
    back: dict[SSAValue, list[SSAValue]] = {}
    for result, cotangent in zip(results, cotangents, strict=True):
        back.setdefault(result, []).append(cotangent)
    ends = {*given}
    for op in reversed(list(w.graph.body.block.ops)):
        reached = [result in back and result in influenced and result not in ends for result in op.results]
        if not any(reached):
            continue
        totals = [added(w, back.pop(one)) if is_in else None for one, is_in in zip(op.results, reached, strict=True)]
        needed = [operand in influenced for operand in op.operands]
        for operand, part, is_needed in zip(op.operands, _pulled(op, w, totals, needed), needed, strict=True):
            if part is not None and is_needed:
                back.setdefault(operand, []).append(part)
    return [added(w, back.get(value, ())) or w.zeros_like(value) for value in given]


def _pulled(op: Operation, w: GraphWriter, cotangents: Values, needed: Sequence[bool]) -> Values:
    if isinstance(op, Stated):
        return pull_through(op, w, cotangents, needed)
    (cotangent,) = cotangents
    assert cotangent is not None, "something came back"
    return pull_back(op, w, cotangent)


def tangents_of(
    w: GraphWriter, results: Sequence[SSAValue], given: Sequence[SSAValue], tangents: Sequence[SSAValue]
) -> list[SSAValue]:
    """Append the derivatives of results along tangents of given values.

    Args:
        w: the graph.
        results: what is differentiated.
        given: what it depends on.
        tangents: a direction for each, of its shape and dtype.

    Returns:
        For each result an array of its shape and dtype.

    Raises:
        LanguageError: `no-adjoint`.
    """
    known = dict(zip(given, tangents, strict=True))
    needed = _needed(results)
    for op in list(w.graph.body.block.ops):
        if op not in needed or op.results[0] in known or not any(operand in known for operand in op.operands):
            continue
        for result, found in zip(op.results, _pushed(op, w, [known.get(one) for one in op.operands]), strict=True):
            if found is not None:
                known[result] = found
    return [known.get(value) or w.zeros_like(value) for value in results]


def _pushed(op: Operation, w: GraphWriter, tangents: Values) -> Values:
    if isinstance(op, Stated):
        return push_through(op, w, tangents, list(map(is_smooth, op.results)))
    return [push_forward(op, w, tangents)]


def _needed(results: Sequence[SSAValue]) -> set[Operation]:
    """Return the ops that results depend on."""
    found, work = set[Operation](), [value.owner for value in results]
    while work:
        owner = work.pop()
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            work += [operand.owner for operand in _read(owner)]
    return found
