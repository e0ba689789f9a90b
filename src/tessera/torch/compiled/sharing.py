"""Cuts a traced graph of a training step in two, after ops that compute the same have become one.

PyTorch's partition does both. But the function that shares ops imports all of Inductor, which takes as long as several
kernels take to compile.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from importlib import import_module
from typing import Any, cast

from tessera.frontend.exact import exact

torch: Any = import_module("torch")
_aot: Any = import_module("functorch.compile")
_config: Any = import_module("torch._functorch.config")

_OWN = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""What ops are that give another result, or sizes of their own, each time."""


def partition(joint: Any, inputs: Any, **facts: Any) -> tuple[Any, Any]:
    """Return the forward and the backward graph of a traced training step.

    Args:
        joint: both as one graph; it is changed.
        inputs: as PyTorch's `min_cut_rematerialization_partition` takes them.
        **facts: as for that.
    """
    if _config.cse:
        share(joint.graph)
    with _config.patch(cse=False):
        forward, backward = _aot.min_cut_rematerialization_partition(joint, inputs, **facts)
    _save_before_changes(forward, facts["num_fwd_outputs"])
    return forward, backward


def _save_before_changes(forward: Any, visible: int) -> None:
    """Let copies be saved for backward of what the forward graph changes: backward computes with what was there before.

    Args:
        forward: the graph; it is changed.
        visible: how many of its results the program sees; all others are saved.
    """
    changes = [node for node in forward.graph.nodes if node.target is torch.ops.aten.copy_.default]
    changed = set(storages(node.args[0] for node in changes))
    output = forward.graph.output_node()
    results = list(output.args[0])
    for place, node in enumerate(results[visible:], visible):
        if isinstance(node, torch.fx.Node) and not changed.isdisjoint(storages([node])):
            with forward.graph.inserting_before(changes[0]):
                results[place] = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
            results[place].meta = dict(node.meta)
    output.args = (tuple(results),)
    forward.recompile()


def share(graph: Any) -> None:
    """Let ops that compute the same be one, but for those whose memory results share: a caller may change one of them.

    Args:
        graph: a functional graph of ATen ops; it is changed.
    """
    given = set(storages(graph.output_node().all_input_nodes))
    seen: dict[Hashable, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if not _is_pure(node.target):
            seen.clear()  # it may write to what others read
        elif given.isdisjoint(storages([node])) and not _is_new(node.target):
            first = seen.setdefault(_key((node.target, node.args, dict(node.kwargs))), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    """Return whether a call surely writes nothing: that of an op that says so, or of a function that computes sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    return getattr(target, "__module__", "") in ("_operator", "math", "torch", "torch.fx.experimental.sym_node")


def _is_new(target: Any) -> bool:
    """Return whether each call of an op gives something else."""
    return any(tag in _OWN for tag in getattr(target, "tags", ())) or str(target).startswith("aten.empty.")


def storages(nodes: Any) -> Iterator[int]:
    """Yield what stands for the memory of each tensor."""
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()._cdata


def _key(value: Any) -> Hashable:
    """Return a key that is equal for the same arguments only."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, cast("list[Any]", value)))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in cast("dict[str, Any]", value).items())
    return value if isinstance(value, torch.device) else exact(value)
