"""Sums that run from the end: `x.flip(1).cumsum(1).flip(1)`, which all gradients of running sums are, moves nothing.

Nor do two reversals, as the gradient of such a sum has them on each side.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_aten = torch.ops.aten


def cumsum_from_the_end(x: Any, axis: int, *, dtype: Any = None) -> Any:
    """Return sums along a dimension that run from the end: what such a node does where no kernel does it."""
    return x.flip(axis).cumsum(axis, dtype=dtype).flip(axis)


def reverse_sums(traced: Any) -> None:
    """Let running sums between two reversals of their dimension run from the end.

    Args:
        traced: a graph of ATen ops; it is changed.
    """
    changed = _drop_pairs(traced.graph)
    for node in list(traced.graph.nodes):
        if node.target is not _aten.cumsum.default or not node.meta["val"].is_floating_point():
            continue
        before, dims = node.args[0], [node.args[1] % max(node.meta["val"].ndim, 1)]
        if _reversed(before) != dims or not node.users or any(_reversed(user) != dims for user in node.users):
            continue
        if sum(map(_is_result, node.users)) > 1:  # each of them has memory of its own
            continue
        node.args = (before.args[0], *node.args[1:])
        node.target = cumsum_from_the_end
        for user in list(node.users):
            user.replace_all_uses_with(node)
            traced.graph.erase_node(user)
        changed = True
    if changed:
        traced.graph.eliminate_dead_code()
        traced.recompile()


def _drop_pairs(graph: Any) -> bool:
    """Let what is reversed twice be what it was; return if anything is."""
    found = False
    for node in list(graph.nodes):
        dims = _reversed(node)
        if dims is not None and _reversed(node.args[0]) == dims:
            before = node.args[0].args[0]
            if _is_own(before) or not _is_result(node):
                node.replace_all_uses_with(before)
                found = True
    return found


def _is_own(node: Any) -> bool:
    """Return whether a node gives memory of its own that is no result of the graph yet: another result may be it."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or _is_result(node):
        return False
    return all(one.alias_info is None for one in schema.returns)


def _is_result(node: Any) -> bool:
    """Return whether a node is a result of the graph."""
    return any(user.op == "output" for user in node.users)


def _reversed(node: Any) -> list[int] | None:
    """Return the dimensions that a node reverses, None where it does anything else."""
    if not isinstance(node, torch.fx.Node) or node.target is not _aten.flip.default:
        return None
    return [dim % max(node.meta["val"].ndim, 1) for dim in node.args[1]]
