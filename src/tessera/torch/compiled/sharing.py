"""Cuts a traced graph of a training step in two, after ops that compute the same have become one.

PyTorch's partition does both. But the function that shares ops imports all of Inductor, which takes as long as several
kernels take to compile.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from importlib import import_module
from typing import Any, cast

from tessera.frontend.exact import exact

torch: Any = import_module("torch")
_aot: Any = import_module("functorch.compile")
_config: Any = import_module("torch._functorch.config")

_aten: Any = torch.ops.aten
_save: Any = import_module("torch.utils.checkpoint").CheckpointPolicy.MUST_SAVE
_COMPARES = (_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge)
_PICKS = (
    *(_aten.amax, _aten.amin, _aten.max, _aten.min, _aten.aminmax, _aten.median, _aten.nanmedian, _aten.kthvalue),
    *(_aten.sort, _aten.topk, _aten.gather, _aten.index, _aten.index_select, _aten.cummax, _aten.cummin),
    *(_aten.view, _aten.reshape, _aten.unsqueeze, _aten.squeeze, _aten.expand, _aten.permute, _aten.transpose, _aten.t),
    *(_aten.select, _aten.slice, _aten.alias, _aten.detach, _aten.clone, _aten.abs, _aten.neg, _aten.relu),
    *(_aten.scatter_reduce, _aten.linalg_vector_norm),
)
"""Ops whose results are elements of what they take, but for signs."""
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
    _keep_compared(joint.graph)
    with _config.patch(cse=False):
        forward, backward = _aot.min_cut_rematerialization_partition(joint, inputs, **facts)
    _save_before_changes(forward, facts["num_fwd_outputs"])
    return forward, backward


def _keep_compared(graph: Any) -> None:
    """Let arrays be saved for backward that it compares with elements picked from them, as with an extreme.

    Computed again, in another kernel, an array may round otherwise, so that none of its elements equals the extreme.

    Args:
        graph: of a training step; it is changed.
    """
    for node in graph.nodes:
        if getattr(node.target, "overloadpacket", None) in _COMPARES and len(node.all_input_nodes) == 2:
            one, other = map(_picked_from, node.all_input_nodes)
            if one is other and one.op == "call_function":
                one.meta.setdefault("recompute", _save)


def _picked_from(node: Any) -> Any:
    """Return the array whose elements an array has."""
    while node.op == "call_function" and node.all_input_nodes:
        packet = getattr(node.target, "overloadpacket", node.target)
        if packet not in (*_PICKS, operator.getitem):
            break
        node = node.args[3] if packet is _aten.scatter_reduce else node.args[0]
    return node


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
