"""Ops of higher order, which take ops or graphs: those that run between kernels as PyTorch runs them."""

from __future__ import annotations

import operator
from importlib import import_module
from typing import Any

from tessera.runtime.device import CPU
from tessera.torch.compiled.folding import device_of

torch: Any = import_module("torch")
_guards: Any = import_module("torch._guards")

_SAVES, _USES = "run_and_save_rng_state", "run_with_rng_state"
"""Run a random op of what a checkpoint computes twice: they take it, and the second one the generator's state."""
_EFFECT = "with_effects"
"""Runs an op that may raise: it takes a token, and gives one to the next of them."""
_INSIDE = "invoke_subgraph"
"""Runs a graph that several of them may share, as `torch.compiler.nested_compile_region` has it."""
_COPIES = ("auto_functionalized", "auto_functionalized_v2")
"""Run an op that changes what it takes on copies, and give those."""
_CONTROL = ("cond", "while_loop", "scan", "associative_scan", "map_impl", "flex_attention", "flex_attention_backward")
_BETWEEN = frozenset((_SAVES, _USES, _EFFECT, *_COPIES, *_CONTROL))
"""They change no tensors, and have no order but that of what they take and give."""


def _name(node: Any) -> str:
    target = node.target
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else ""


def _fake(node: Any) -> Any:
    return node.meta["val"]


def _sizes(operand: Any) -> str:
    """Return the sizes and strides of an operand, or the number that it is."""
    fake = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else operand
    return f"{fake.shape} {fake.stride()}" if isinstance(fake, torch.Tensor) else f"{fake}"


def is_refused(node: Any) -> bool:
    """Return whether a node of a traced graph is such an op, and may not run between kernels."""
    return bool(_name(node)) and _name(node) not in _BETWEEN


def complete(traced: Any) -> None:
    """Add what PyTorch leaves out around ops of higher order, on CPUs: tokens and states are there.

    Args:
        traced: the graph; it is changed.
    """
    if device_of(traced).type == CPU.kind:
        _describe(traced)
        _make_tokens(traced)


def inline(traced: Any) -> None:
    """Put graphs that a graph calls in the place of the calls.

    Args:
        traced: the graph; it is changed.
    """
    calls = [node for node in traced.graph.nodes if _name(node) == _INSIDE]
    for call in calls:
        inner = getattr(traced, call.args[0].target)
        inline(inner)
        places = inner.graph.find_nodes(op="placeholder")
        operands = call.args[2:]
        if [*map(_sizes, places)] == [*map(_sizes, operands)]:
            _put_inside(traced, call, inner, dict(zip(places, operands, strict=True)))
    if calls:
        traced.graph.eliminate_dead_code()
        traced.recompile()


def _put_inside(traced: Any, call: Any, inner: Any, made: dict[Any, Any]) -> None:
    """Put the ops of a graph before a call of it, and use their results in its place.

    Args:
        traced: the graph around.
        call: the call.
        inner: the graph that it calls.
        made: what the arguments of that are.
    """
    for held in inner.graph.find_nodes(op="get_attr"):
        name = f"{call.name}_{held.target}"
        setattr(traced, name, getattr(inner, held.target))
        with traced.graph.inserting_before(call):
            made[held] = traced.graph.get_attr(name)
        made[held].meta = dict(held.meta)
    with traced.graph.inserting_before(call):
        for node in inner.graph.nodes:
            if node.op not in ("placeholder", "get_attr", "output"):
                made[node] = traced.graph.node_copy(node, made.__getitem__)
    results = torch.fx.map_arg(inner.graph.output_node().args[0], made.__getitem__)
    for user in list(call.users):
        user.replace_all_uses_with(results[user.args[1]])


def _make_tokens(traced: Any) -> None:
    """Let the first effects take tokens that the graph makes: those that it is given are None when it runs."""
    for node in traced.graph.find_nodes(op="placeholder"):
        effects = [user for user in node.users if _name(user) == _EFFECT and user.args[0] is node]
        if effects:
            with traced.graph.inserting_before(effects[0]):
                token = traced.graph.call_function(torch.ops.aten.empty.memory_format, ([0],))
            token.meta["val"] = node.meta.pop("val")
            node.replace_all_uses_with(token)
            traced.recompile()


def _describe(traced: Any) -> None:
    """Say of random ops that a checkpoint computes twice what they give."""
    for node in traced.graph.nodes:
        name = _name(node)
        if name in (_SAVES, _USES) and "val" not in node.meta:
            op, *args = node.args if name == _SAVES else node.args[1:]
            given, kwargs = torch.fx.map_arg((args, node.kwargs), _fake)
            state = torch.get_rng_state()
            mode = _guards.detect_fake_mode([one for one in given if isinstance(one, torch.Tensor)])
            if mode is None:
                return
            with mode:
                found = op(*given, **kwargs)
                state = torch.empty(state.shape, dtype=state.dtype)
            node.meta["val"] = (state, found) if name == _SAVES else found
            if name == _USES:
                node.args[0].meta.setdefault("val", state)
        elif node.target is operator.getitem and "val" not in node.meta:
            node.meta["val"] = _fake(node.args[0])[node.args[1]]
