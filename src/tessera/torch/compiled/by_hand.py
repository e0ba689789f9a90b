"""Attention that a program writes by hand is PyTorch's function for it, whose scores stay out of memory.

    scores = q @ k.transpose(-2, -1) / 8
    scores = scores.masked_fill(mask == 0, -inf)    →    F.scaled_dot_product_attention(q, k, v, mask != 0, scale=1 / 8)
    found = scores.softmax(-1) @ v

A query that sees no key has zeros, where the softmax of nothing but -inf is NaN.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tessera.data import dataclass
from tessera.torch.compiled.hidden import Mask
from tessera.torch.compiled.spelling import (
    HIDDEN,
    Product,
    Step,
    are_equal,
    argument,
    is_alone,
    is_cast,
    is_changed_between,
    is_same,
    is_softmax,
    is_tensor,
    name_of,
    product_of,
    rate_of,
    shape_of,
    step_of,
)

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_autocast: Any = import_module("torch.amp.autocast_mode")
FASTER: dict[str, tuple[Any, ...]] = {"cuda": (torch.bfloat16, torch.float16)}
"""Dtypes in which attention is faster than its parts, by devices: on CPUs parts are up to 2.6 times as fast."""


def name_attention(traced: Any) -> None:
    """Rewrite attention in a graph of PyTorch's functions, as it is before it is differentiated."""
    changed = False
    for node in list(traced.graph.nodes):
        found = _attention(node)
        if found is not None:
            _rewrite(traced.graph, node, found)
            changed = True
    if changed:
        traced.recompile()


@dataclass(frozen=True)
class _Attention:
    """What is known of attention.

    Args:
        scores: the product of queries and keys.
        steps: what is done to scores, in order: names of methods of `Mask`, and operands.
        values: the product of weights and values.
        rate: of dropout.
        chain: the nodes between the products.
    """

    scores: Product
    steps: list[Step]
    values: Product
    rate: float
    chain: list[Any]


def _attention(node: Any) -> _Attention | None:
    """Return the attention whose result a node is, None for any other node."""
    values = product_of(node)
    if values is None or values.added is not None or values.scale != 1 or values.left[1] is not None:
        return None
    chain: list[Any] = []
    rate = _weights(values.left[0], node, chain)
    found = None if rate is None else _scores(argument(chain[-1], 0, "input"), chain)
    if rate is None or found is None or found[0].order is not None:
        return None
    product, steps = found
    attention = _Attention(product, steps, values, rate, chain)
    fits = _fits(node, chain[-1], attention) and _keeps_biases(node, chain[-1], attention)
    if not fits or not _is_one_fill(steps):
        return None
    # All is computed where the last product is.
    return None if is_changed_between(chain[-1], node, lambda one: one not in chain) else attention


def _weights(weights: Any, reader: Any, chain: list[Any]) -> float | None:
    """Return the rate of dropout of what a softmax gives, None where weights are anything else.

    Args:
        weights: what may be the weights.
        reader: the product with values.
        chain: gets the nodes on the way, the softmax last.
    """
    rate = 0.0
    while is_alone(weights, reader, *chain) and (is_cast(weights) or name_of(weights) == "dropout"):
        if not is_cast(weights):
            own = rate_of(weights)
            if rate or own is None:
                return None
            rate = own
        chain.append(weights)
        weights = argument(weights, 0, "input")
    if not is_alone(weights, reader, *chain) or not is_softmax(weights):
        return None
    chain.append(weights)
    return rate


def _scores(scores: Any, chain: list[Any]) -> tuple[Product, list[Step]] | None:
    """Return the product that scores are made of, with what is done to it in order; None where they are anything else.

    Args:
        scores: what may be scores.
        chain: the nodes behind it, which gets those before, the product last.
    """
    steps = list[Step]()
    while is_alone(scores, *chain):
        chain.append(scores)
        product = product_of(scores)
        if product is not None:
            return product, steps[::-1]
        step = step_of(scores)
        if step is None:
            return None
        source, *operands = step[1]
        if not is_same(source, scores) or source in operands:
            return None
        steps.append((step[0], tuple(operands)))
        scores = source
    return None


def _fits(node: Any, scores: Any, found: _Attention) -> bool:
    """Return whether PyTorch's function takes what attention is computed of."""
    sides = (*found.scores[:2], found.values.right)
    if not all(is_tensor(side[0]) for side in sides) or found.values.right[0] in found.chain:
        return False
    query, key, value = (shape_of(side) for side in sides)
    kind, dtypes = scores.meta["example_value"], {side[0].meta["example_value"].dtype for side in sides}
    faster = kind.dtype in FASTER.get(kind.device.type, ()) and node.meta["example_value"].dtype == kind.dtype
    if not faster or not len(query) == len(key) == len(value) in (3, 4) or len(dtypes) != 1:
        return False
    pairs = (*zip(query[:-2], key[:-2], strict=True), *zip(query[:-2], value[:-2], strict=True))
    inner = (query[-1], key[-2]), (key[-1], value[-2])  # sums of products repeat dimensions of size 1
    return are_equal((*pairs, *inner))


def _is_one_fill(steps: list[Step]) -> bool:
    """Return whether one low number hides scores, if any does, and none is added to it."""
    fills = set[float]()
    for name, operands in steps:
        if name == "scaled":
            fills = {fill * operands[0] for fill in fills}
        elif name in ("hidden", "shown") and operands[1] != -torch.inf:
            fills.add(operands[1])
        elif name in ("added", "taken") and fills:
            return False
    return len(fills) <= 1 and all(fill <= HIDDEN for fill in fills)


def _keeps_biases(node: Any, scores: Any, found: _Attention) -> bool:
    """Return whether what is added to scores stays as it is: `torch.autocast` casts it for PyTorch's function."""
    kind = scores.meta["example_value"]
    added = [operands[0] for name, operands in found.steps if name in ("added", "taken")]
    added += [] if found.scores.added is None else [found.scores.added]
    if all(one.meta["example_value"].dtype == kind.dtype for one in added):
        return True
    earlier = node.graph.find_nodes(op="call_function", target=_autocast._enter_autocast)
    return not earlier and not torch.is_autocast_enabled(kind.device.type)


def _rewrite(graph: Any, node: Any, found: _Attention) -> None:
    """Put PyTorch's function in the place of a node and those before it."""
    with graph.inserting_before(node):
        query, key, value = (_turned(graph, side) for side in (*found.scores[:2], found.values.right))
        key = graph.call_method("transpose", (key, -2, -1))
        mask = Mask(graph, found.scores.scale, found.chain[-1].meta["example_value"])
        if found.scores.added is not None:
            mask.added(found.scores.added)
        for name, operands in found.steps:
            getattr(mask, name)(*operands)
        query, given = mask.applied(query)
        options = {"attn_mask": given, "dropout_p": found.rate, "scale": mask.scale}
        new = graph.call_function(_functional.scaled_dot_product_attention, (query, key, value), options)
        if found.values.order is not None:
            new = graph.call_method("permute", (new, found.values.order))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    for one in (node, *found.chain):
        graph.erase_node(one)


def _turned(graph: Any, side: tuple[Any, tuple[int, ...] | None]) -> Any:
    array, order = side
    return array if order is None else graph.call_method("permute", (array, order))
