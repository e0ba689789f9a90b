"""Attention that a program writes by hand is PyTorch's function for it, whose scores stay out of memory.

    scores = q @ k.transpose(-2, -1) / 8
    scores = scores.masked_fill(mask == 0, -inf)    →    F.scaled_dot_product_attention(q, k, v, mask != 0, scale=1 / 8)
    found = scores.softmax(-1) @ v

A query that sees no key has zeros, where the softmax of nothing but -inf is NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from tessera.data import dataclass

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_surely: Callable[[Any], bool] = import_module("torch.fx.experimental.symbolic_shapes").statically_known_true

HIDDEN = -1e4
"""Scores from which on downwards a key counts as hidden: what is added to them makes no difference."""
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


class _Product(NamedTuple):
    """A product of matrices `(…, M, K)` and `(…, K, N)`, times a number, plus another array.

    Args:
        left: the first, with the order of dimensions in which it is one.
        right: the second, likewise.
        order: of the product's dimensions in the node's result.
        scale: the number.
        added: the array, if there is one.
    """

    left: tuple[Any, tuple[int, ...] | None]
    right: tuple[Any, tuple[int, ...] | None]
    order: tuple[int, ...] | None = None
    scale: float = 1.0
    added: Any = None


@dataclass(frozen=True)
class _Attention:
    """What is known of attention.

    Args:
        scores: the product of queries and keys.
        steps: what is done to scores, in order: names of methods here, and operands.
        values: the product of weights and values.
        rate: of dropout.
        chain: the nodes between the products.
    """

    scores: _Product
    steps: list[tuple[str, tuple[Any, ...]]]
    values: _Product
    rate: float
    chain: list[Any]


def _attention(node: Any) -> _Attention | None:
    """Return the attention whose result a node is, None for any other node."""
    values = _product(node)
    if values is None or values.added is not None or values.scale != 1 or values.left[1] is not None:
        return None
    chain: list[Any] = []
    rate, weights = 0.0, values.left[0]
    while _is_alone(weights, node, *chain) and (kind := _name(weights)) in (*_CASTS, "dropout"):
        if kind == "dropout":
            own = _dropout(weights)
            if rate or own is None:
                return None
            rate = own
        chain.append(weights)
        weights = weights.args[0]
    if not _is_alone(weights, node, *chain) or not _is_softmax(weights):
        return None
    chain.append(weights)
    scores, steps = weights.args[0], list[tuple[str, tuple[Any, ...]]]()
    while _is_alone(scores, *chain):
        chain.append(scores)
        product = _product(scores)
        if product is not None:
            found = _Attention(product, steps[::-1], values, rate, chain)
            fits = product.order is None and _fits(node, scores, found) and not _changed_between(node, found)
            return found if fits else None
        step = _step(scores)
        if step is None:
            return None
        source, *operands = step[1]
        if not _is_same(source, scores) or source in operands:
            return None
        steps.append((step[0], tuple(operands)))
        scores = source
    return None


def _fits(node: Any, scores: Any, found: _Attention) -> bool:
    """Return whether PyTorch's function takes what attention is computed of."""
    sides = (*found.scores[:2], found.values.right)
    if not all(_is_tensor(side[0]) for side in sides):
        return False
    query, key, value = (_shape(side) for side in sides)
    kind, dtypes = scores.meta["example_value"], {side[0].meta["example_value"].dtype for side in sides}
    faster = kind.dtype in FASTER.get(kind.device.type, ()) and node.meta["example_value"].dtype == kind.dtype
    if not faster or not len(query) == len(key) == len(value) in (3, 4) or len(dtypes) != 1:
        return False
    pairs = (*zip(query[:-2], key[:-2], strict=True), *zip(query[:-2], value[:-2], strict=True))
    return all(_surely(one == other) for one, other in pairs)


def _changed_between(node: Any, found: _Attention) -> bool:
    """Return whether anything is changed between the products: they are computed where the last one is."""
    between = node.prev
    while between is not found.chain[-1]:
        if between not in found.chain and _changes(between):
            return True
        between = between.prev
    return False


def _rewrite(graph: Any, node: Any, found: _Attention) -> None:
    """Put PyTorch's function in the place of a node and those before it."""
    with graph.inserting_before(node):
        query, key, value = (_turned(graph, side) for side in (*found.scores[:2], found.values.right))
        key = graph.call_method("transpose", (key, -2, -1))
        like = found.chain[-1].meta["example_value"]
        mask = _Mask(graph, found.scores.scale, found.scores.added, like)
        for name, operands in found.steps:
            getattr(mask, name)(*operands)
        options = {"attn_mask": mask.found(), "dropout_p": found.rate, "scale": mask.scale}
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


class _Mask:
    """Gathers what is done to scores.

    Args:
        graph: where nodes are added.
        scale: what products are multiplied by.
        bias: what is added to them, if anything is.
        like: scores.
    """

    def __init__(self, graph: Any, scale: float, bias: Any, like: Any) -> None:
        self._graph, self.scale, self._bias = graph, scale, bias
        dtype = torch.promote_types(like.dtype, torch.float32)
        self._kind = {"dtype": dtype, "device": like.device}
        self._keeps: Any = None
        """Where scores are not -inf, as long as nothing else is added."""

    def found(self) -> Any:
        """Return the mask as PyTorch's function takes it."""
        return self._keeps if self._bias is None else self._bias

    def scaled(self, factor: float) -> None:
        """Multiply the scores."""
        self.scale *= factor
        if self._bias is not None:
            self._bias = self._graph.call_function(operator.mul, (self._bias, factor))

    def added(self, bias: Any) -> None:
        """Add something to the scores."""
        if self._keeps is not None:
            self._bias = self._graph.call_function(torch.where, (self._keeps, 0.0, self._number(-torch.inf)))
            self._keeps = None
        self._bias = bias if self._bias is None else self._graph.call_function(operator.add, (self._bias, bias))

    def taken(self, bias: Any) -> None:
        """Subtract something from the scores."""
        self.added(self._graph.call_function(operator.neg, (bias,)))

    def hidden(self, where: Any, score: float) -> None:
        """Let scores be one that is very low."""
        if self._bias is None and self._keeps is None and score == -torch.inf:
            self._keeps = self._graph.call_function(torch.logical_not, (where,))
            return
        self.added(self._graph.call_function(torch.where, (where, self._number(score), 0.0)))

    def shown(self, where: Any, score: float) -> None:
        """Let scores be one that is very low everywhere else."""
        if self._bias is None and self._keeps is None and score == -torch.inf:
            self._keeps = where
            return
        self.added(self._graph.call_function(torch.where, (where, 0.0, self._number(score))))

    def _number(self, value: float) -> Any:
        return self._graph.call_function(torch.full, ((), value), self._kind)

    def kept(self) -> None:
        """Leave scores as they are: they are cast."""


# What nodes are


_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_PRODUCTS = ("matmul", "bmm", "__matmul__")
_NUMBERS = (int, float)


def _name(node: Any) -> str:
    """Return what a node calls: the name of a method, or of a function of PyTorch or Python."""
    if not isinstance(node, torch.fx.Node) or node.op not in ("call_function", "call_method"):
        return ""
    if node.op == "call_method":
        return node.target
    name = getattr(node.target, "__name__", "")
    return name if any(getattr(home, name, None) is node.target for home in _HOMES) else ""


_HOMES = (torch, operator, _functional, torch.functional)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_mask(node: Any) -> bool:
    return _is_tensor(node) and node.meta["example_value"].dtype == torch.bool


def _is_alone(node: Any, *readers: Any) -> bool:
    """Return whether a node is a tensor that only some others read, its dtype if not its elements."""
    return _is_tensor(node) and {*node.users} <= {*readers}


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two nodes are tensors of one shape."""
    if not _is_tensor(one):
        return False
    shapes = one.meta["example_value"].shape, other.meta["example_value"].shape
    return len(shapes[0]) == len(shapes[1]) and all(_surely(a == b) for a, b in zip(*shapes, strict=True))


def _shape(side: tuple[Any, tuple[int, ...] | None]) -> list[Any]:
    """Return the shape of a factor as the product takes it."""
    array, order = side
    shape = array.meta["example_value"].shape
    return [*shape] if order is None else [shape[axis] for axis in order]


def _argument(node: Any, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _is_softmax(node: Any) -> bool:
    """Return whether a node is a softmax along the last dimension, of floats of any width."""
    if _name(node) != "softmax" or not node.args or not _is_tensor(node.args[0]):
        return False
    rank = node.meta["example_value"].dim()
    return _argument(node, 1, "dim") in (-1, rank - 1)


def _dropout(node: Any) -> float | None:
    """Return the rate of a dropout, 0 where it is off, None where that is not known."""
    rate, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
    if not isinstance(training, bool) or not isinstance(rate, _NUMBERS):
        return None
    return float(rate) if training else 0.0


def _product(node: Any) -> _Product | None:
    """Return a node as a product of matrices, None where it is none."""
    if not _is_tensor(node):
        return None
    name, args = _name(node), node.args
    if name in _PRODUCTS and len(args) == 2 and all(map(_is_tensor, args)):
        ranks = {one.meta["example_value"].dim() for one in args}
        return _Product((args[0], None), (args[1], None)) if len(ranks) == 1 else None
    if name == "einsum" and len(args) == 3 and isinstance(args[0], str):
        return _einsum(*args)
    if name == "baddbmm" and len(args) == 3:
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        if beta not in (0, 1) or not isinstance(alpha, _NUMBERS) or alpha <= 0:
            return None
        return _Product((args[1], None), (args[2], None), None, float(alpha), args[0] if beta else None)
    return None


def _einsum(formula: str, left: Any, right: Any) -> _Product | None:
    """Return a sum of products as one of matrices, None where it is none."""
    given, arrow, result = formula.replace(" ", "").partition("->")
    one, comma, other = given.partition(",")
    letters = (one, other, result)
    if not arrow or not comma or any(len({*each}) != len(each) or not each.isalpha() for each in letters):
        return None
    if len(one) != len(other) or not (_is_tensor(left) and _is_tensor(right)):
        return None
    batch = [letter for letter in one if letter in other and letter in result]
    inner = [letter for letter in one if letter in other and letter not in result]
    rows = [letter for letter in one if letter not in other]
    columns = [letter for letter in other if letter not in one]
    if not len(inner) == len(rows) == len(columns) == 1 or {*result} != {*batch, *rows, *columns}:
        return None
    orders = [[*batch, *rows, *inner], [*batch, *inner, *columns], [*batch, *rows, *columns]]
    first, second = (tuple(map(own.index, order)) for own, order in zip(letters, orders[:2], strict=False))
    back = tuple(map(orders[2].index, result))
    plain = tuple(range(len(one)))
    sides = [(array, None if order == plain else order) for array, order in ((left, first), (right, second))]
    return _Product(sides[0], sides[1], None if back == plain else back)


def _step(node: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return what a node does to scores: a method of `_Mask`, the scores and its operands; None for anything else."""
    name, args = _name(node), node.args
    if name in _CASTS:
        return "kept", args[:1]
    if name not in _STEPS or node.kwargs or len(args) != (3 if name in _OF_THREE else 2):
        return None
    found = _STEPS[name](*args)
    return None if found is None or (_changes(node) and found[1][0] is not args[0]) else found


def _changes(node: Any) -> bool:
    """Return whether a node changes what it reads."""
    name = _name(node)
    return name in _IN_PLACE or (name.endswith("_") and not name.startswith("__")) or "out" in node.kwargs


def _scaled(scores: Any, factor: Any) -> tuple[str, tuple[Any, ...]] | None:
    if isinstance(scores, _NUMBERS):
        scores, factor = factor, scores
    return ("scaled", (scores, float(factor))) if isinstance(factor, _NUMBERS) and factor > 0 else None


def _divided(scores: Any, by: Any) -> tuple[str, tuple[Any, ...]] | None:
    return ("scaled", (scores, 1 / by)) if isinstance(by, _NUMBERS) and by > 0 else None


def _added(scores: Any, bias: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the sum of scores and a bias, of which either may come first: the scores are read by nobody else."""
    if not _leads_to_product(scores):
        scores, bias = bias, scores
    return ("added", (scores, bias)) if _is_tensor(scores) and _is_tensor(bias) else None


def _leads_to_product(node: Any) -> bool:
    """Return whether a node may be scores: a product, or what is made of one by a few steps."""
    while _is_tensor(node):
        if _product(node) is not None:
            return True
        if _name(node) not in (*_CASTS, *_STEPS) or not node.args:
            return False
        node = node.args[1] if isinstance(node.args[0], _NUMBERS) else node.args[0]
    return False


def _taken(scores: Any, bias: Any) -> tuple[str, tuple[Any, ...]] | None:
    return ("taken", (scores, bias)) if _is_tensor(scores) and _is_tensor(bias) else None


def _hidden(scores: Any, where: Any, score: Any) -> tuple[str, tuple[Any, ...]] | None:
    low = isinstance(score, _NUMBERS) and score <= HIDDEN
    return ("hidden", (scores, where, float(score))) if low and _is_mask(where) else None


def _chosen(where: Any, one: Any, other: Any) -> tuple[str, tuple[Any, ...]] | None:
    if not _is_mask(where):
        return None
    if isinstance(other, _NUMBERS):
        return ("shown", (one, where, float(other))) if other <= HIDDEN else None
    return ("hidden", (other, where, float(one))) if isinstance(one, _NUMBERS) and one <= HIDDEN else None


_STEPS: dict[str, Callable[..., tuple[str, tuple[Any, ...]] | None]] = {
    "mul": _scaled,
    "imul": _scaled,
    "mul_": _scaled,
    "truediv": _divided,
    "itruediv": _divided,
    "div": _divided,
    "div_": _divided,
    "add": _added,
    "iadd": _added,
    "add_": _added,
    "sub": _taken,
    "isub": _taken,
    "masked_fill": _hidden,
    "masked_fill_": _hidden,
    "where": _chosen,
}
_OF_THREE = ("masked_fill", "masked_fill_", "where")
_IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv")
