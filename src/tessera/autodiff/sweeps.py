"""Reverse and forward mode: sweeps over the ops between what is given and what is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from tessera.autodiff.rules import added, is_smooth, pull_back, push_forward
from tessera.ir.graph.writer import GraphWriter


def _influenced(w: GraphWriter, given: Sequence[SSAValue]) -> dict[SSAValue, None]:
    """Return the values that smoothly depend on some, in order, themselves among them."""
    found = dict.fromkeys(value for value in given if is_smooth(value))
    for op in w.graph.body.block.ops:
        if any(operand in found for operand in op.operands):
            found.update(dict.fromkeys(result for result in op.results if is_smooth(result)))
    return found


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
        for result in op.results:
            if result not in back or result not in influenced or result in ends:
                continue
            total = added(w, back.pop(result))
            assert total is not None, "something came back"
            for operand, part in zip(op.operands, pull_back(op, w, total), strict=True):
                if part is not None and operand in influenced:
                    back.setdefault(operand, []).append(part)
    return [added(w, back.get(value, ())) or w.zeros_like(value) for value in given]


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
        found = push_forward(op, w, [known.get(operand) for operand in op.operands])
        if found is not None:
            known[op.results[0]] = found
    return [known.get(value) or w.zeros_like(value) for value in results]


def _needed(results: Sequence[SSAValue]) -> set[Operation]:
    """Return the ops that results depend on."""
    found, work = set[Operation](), [value.owner for value in results]
    while work:
        owner = work.pop()
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            work += [operand.owner for operand in owner.operands]
    return found
