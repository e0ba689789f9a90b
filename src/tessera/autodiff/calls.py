"""Derivatives of ops whose derivatives are stated by what they call: those of several results, and of rules."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.autodiff.rules import no_adjoint
from tessera.ir.graph.callees import Callee, Values
from tessera.ir.graph.structure import CallOp
from tessera.ir.graph.types import dims_of
from tessera.ir.graph.views import OwnOp
from tessera.ir.graph.writer import GraphWriter

Stated = CallOp | OwnOp
"""Ops whose derivatives are stated."""


def pull_through(op: Stated, w: GraphWriter, cotangents: Values, needed: Sequence[bool]) -> Values:
    """Append what comes back to an op's operands from what comes back to its results.

    Args:
        op: the op.
        w: the graph.
        cotangents: what comes back to each result, None where nothing does.
        needed: for each operand whether anything depends on what comes back to it.

    Raises:
        LanguageError: `no-adjoint`.
    """
    pull = _callee(op, w).pull
    if pull is None:
        raise no_adjoint(op, _name(op), _HELP)
    return _shaped(w, op.operands, pull(op, cotangents, needed))


def push_through(op: Stated, w: GraphWriter, tangents: Values, needed: Sequence[bool]) -> Values:
    """Append the derivatives of an op's results along those of its operands.

    Args:
        op: the op.
        w: the graph.
        tangents: the derivative of each operand, None where it is 0.
        needed: for each result whether anything depends on its derivative.

    Raises:
        LanguageError: `no-adjoint`.
    """
    push = _callee(op, w).push
    if push is None:
        raise no_adjoint(op, f"{_name(op)}, forwards,", _HELP)
    return _shaped(w, op.results, push(op, tangents, needed))


_HELP = "state one with ts.custom_vjp, ts.custom_jvp or, for a kernel, @kernel.vjp; or take ts.stop_gradient(x)"


def _callee(op: Stated, w: GraphWriter) -> Callee:
    return w.callees[(op.callee if isinstance(op, CallOp) else op.rule).data]


def _name(op: Stated) -> str:
    return (op.callee if isinstance(op, CallOp) else op.rule).data.partition(" ")[0]


def _shaped(w: GraphWriter, values: Sequence[SSAValue], found: Values) -> Values:
    """Return derivatives with the sizes of values written as those are."""
    pairs = zip(values, found, strict=True)
    return [None if one is None else w.reshape(one, dims_of(value)) for value, one in pairs]
