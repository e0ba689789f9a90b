"""Sums that run from the end: `x.flip(1).cumsum(1).flip(1)`, which all gradients of running sums are, moves nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_aten = torch.ops.aten

FROM_THE_END = "tessera_from_the_end"
"""What a node's `meta` has where its sum runs from the end."""


def reverse_sums(traced: Any) -> None:
    """Let running sums between two reversals of their dimension run from the end.

    Args:
        traced: a graph of ATen ops; it is changed.
    """
    changed = False
    for node in list(traced.graph.nodes):
        if node.target is not _aten.cumsum.default or not node.meta["val"].is_floating_point():
            continue
        before, dims = node.args[0], [node.args[1] % max(node.meta["val"].ndim, 1)]
        if not _flips(before, dims) or not node.users or not all(_flips(user, dims) for user in node.users):
            continue
        node.args = (before.args[0], *node.args[1:])
        node.meta[FROM_THE_END] = True
        for user in list(node.users):
            user.replace_all_uses_with(node)
            traced.graph.erase_node(user)
        changed = True
    if changed:
        traced.graph.eliminate_dead_code()
        traced.recompile()


def _flips(node: Any, dims: list[int]) -> bool:
    """Return whether a node reverses some dimensions and nothing else."""
    if not isinstance(node, torch.fx.Node) or node.target is not _aten.flip.default:
        return False
    return [dim % node.meta["val"].ndim for dim in node.args[1]] == dims
