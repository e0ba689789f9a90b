"""Computes once what follows from numbers alone.

That is where rounding decides what it is (tables of sines), no row has it, or it is on another device than the rest.
Places are often cut off to whole numbers after a logarithm, or multiplied by thousands before a cosine: a last bit that
is not PyTorch's would be another model.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tessera.runtime.device import CPU
from tessera.torch.compiled.registry import row_of

torch: Any = import_module("torch")
no_modes: Any = import_module("torch.utils._python_dispatch")._disable_current_modes
"""Lets tensors be computed while PyTorch traces."""

MOST = 1 << 20
"""Elements of what is computed before a graph runs."""

_ROUNDED = frozenset(
    f"aten.{name}"
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sqrt", "rsqrt", "reciprocal", "div"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "sigmoid", "erf", "polar"),
    )
)
"""Functions whose last bit is not the same in all libraries, or that come before such."""


def fold(traced: Any) -> None:
    """Replace what a graph computes of numbers alone by tensors that it holds.

    Args:
        traced: the graph; it is changed.
    """
    known: dict[Any, bool] = {}
    values: dict[Any, Any] = {}
    device = device_of(traced)
    for node in traced.graph.nodes:
        if node.op == "get_attr" and isinstance(held := getattr(traced, node.target), torch.Tensor) and not held.ndim:
            known[node], values[node] = held.device != device, held
        elif node.op == "call_function" and _is_known(node, known):
            rounds = str(node.target).rpartition(".")[0] in _ROUNDED or row_of(node.target) is None
            apart = node.meta["val"].device != device
            known[node] = rounds or apart or any(known[one] for one in node.all_input_nodes)
    for node in [one for one, rounds in known.items() if rounds and one.op == "call_function"]:
        if all(user in known for user in node.users):
            continue
        value = _value(node, values)
        values[_held(traced, node, value)] = value
    if any(known.values()):
        traced.graph.eliminate_dead_code()
        traced.recompile()


def device_of(traced: Any) -> Any:
    """Return where a graph's tensors are: single numbers of the CPU may be beside those of a GPU."""
    fakes = [(node.op, node.meta.get("val")) for node in traced.graph.nodes]
    given = [(op == "placeholder", fake.device) for op, fake in fakes if isinstance(fake, torch.Tensor)]
    devices = [device for is_given, device in given if is_given] or [device for _, device in given]
    return next((one for one in devices if one.type != CPU.kind), torch.device(CPU.kind))


def _is_known(node: Any, known: dict[Any, bool]) -> bool:
    """Return whether a node follows from numbers alone, and is no random or too large tensor."""
    fake, target = node.meta.get("val"), node.target
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(fake, torch.Tensor):
        return False
    if target.namespace not in ("aten", "prims"):
        return False  # a program's own op may count, or talk to others
    if not all(isinstance(size, int) for size in fake.shape) or fake.numel() > MOST:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return False
    return not str(target).startswith("aten.empty") and all(one in known for one in node.all_input_nodes)


def _value(node: Any, values: dict[Any, Any]) -> Any:
    """Return what a node computes."""
    if node not in values:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), partial(_value, values=values))
        with no_modes(), torch.no_grad():
            values[node] = node.target(*args, **kwargs).clone()
    return values[node]


def _held(traced: Any, node: Any, value: Any) -> Any:
    """Let a graph hold a node's value, and return what stands for it there."""
    name = f"_tessera_{node.name}"
    traced.register_buffer(name, value)
    with traced.graph.inserting_before(node):
        held = traced.graph.get_attr(name)
    held.meta = dict(node.meta)
    node.replace_all_uses_with(held)
    return held
