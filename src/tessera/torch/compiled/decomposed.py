"""How ops are taken apart before they become Graph IR: by PyTorch's own parts, or by others."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from tessera.torch.compiled import apart, norms, nothing, single, smoothing

torch: Any = import_module("torch")
_decomp: Any = import_module("torch._decomp")
_aten: Any = torch.ops.aten
_WHOLE = (
    _aten._softmax,
    _aten.native_layer_norm,
    _aten.gelu,
    _aten.silu,
    _aten.leaky_relu,
    _aten.embedding_dense_backward,
    _aten.unfold_backward,
    _aten.im2col,
    _aten.col2im,
    _aten.log_sigmoid_forward,
    _aten.logaddexp,
    _aten.logaddexp2,
    _aten.baddbmm,  # its parts multiply 16-bit floats in f32
    _aten.special_log_ndtr,  # its parts lose bits
    _aten._scaled_dot_product_flash_attention_for_cpu,  # PyTorch's parts give other sums of exponentials
    _aten.select_scatter,  # its parts have another dtype where what is set has
    _aten.linspace,  # its parts round integers otherwise
    _aten.logspace,
)
"""Ops that are not taken apart."""
_APART = (
    _aten.gelu_backward,
    _aten.silu_backward,
    _aten.native_layer_norm_backward,
    _aten._softmax_backward_data,
    _aten._log_softmax_backward_data,
    _aten.native_batch_norm,
    _aten._native_batch_norm_legit,
    _aten._native_batch_norm_legit_functional,
    _aten._native_batch_norm_legit_no_training,
    _aten.native_batch_norm_backward,
    _aten.native_group_norm,
    _aten.native_group_norm_backward,
    _aten.sigmoid_backward,
    _aten.tanh_backward,
    _aten.threshold_backward,
    _aten.leaky_relu_backward,
    _aten.elu_backward,
    _aten.hardtanh_backward,
    _aten._log_softmax,
    _aten._safe_softmax,
    _aten.native_dropout_backward,
    _aten.addmv,
    _aten.dist,
    _aten.ldexp,
    _aten.narrow_copy,
    _aten.unbind_copy,
    _aten._batch_norm_with_update_functional,
    _aten.batch_norm_backward,
)
"""Ops beside PyTorch's own list that are taken apart."""


@cache
def decompositions() -> dict[Any, Any]:
    """Return how ops are taken apart before they become Graph IR; nobody may change the table."""
    table: dict[Any, Any] = {**_decomp._core_aten_decompositions_post_autograd(), **_decomp.get_decompositions(_APART)}
    for op in _WHOLE:
        for overload in op.overloads():
            if "Tensor_" not in overload and "_Tensor" not in overload:  # a range between tensors
                table.pop(getattr(op, overload), None)
    table.pop(_aten.detach.default)  # by which PyTorch tells results of a scan apart: `attach` removes it
    table |= apart.table() | smoothing.table()
    table |= norms.table(table)
    return table | single.table(table) | nothing.table(table)


def attach(traced: Any) -> None:
    """Remove `detach` from a traced graph, which has no gradients.

    Args:
        traced: the graph; it is changed.
    """
    found = traced.graph.find_nodes(op="call_function", target=_aten.detach.default)
    for node in found:
        node.replace_all_uses_with(node.args[0])
        traced.graph.erase_node(node)
    if found:
        traced.recompile()
