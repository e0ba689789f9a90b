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
from tessera.torch.compiled.hidden import Mask

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_autocast: Any = import_module("torch.amp.autocast_mode")
_surely: Callable[[Any], bool] = import_module("torch.fx.experimental.symbolic_shapes").statically_known_true

HIDDEN = -1e4
"""Scores from which on downwards a key counts as hidden, as it has no weight beside one that is not."""
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
        steps: what is done to scores, in order: names of methods of `Mask`, and operands.
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
    while _is_alone(weights, node, *chain) and (_is_cast(weights) or _name(weights) == "dropout"):
        if not _is_cast(weights):
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
            return found if fits and _is_one_fill(found.steps) and _keeps_biases(node, scores, found) else None
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
    if not all(_is_tensor(side[0]) for side in sides) or found.values.right[0] in found.chain:
        return False
    query, key, value = (_shape(side) for side in sides)
    kind, dtypes = scores.meta["example_value"], {side[0].meta["example_value"].dtype for side in sides}
    faster = kind.dtype in FASTER.get(kind.device.type, ()) and node.meta["example_value"].dtype == kind.dtype
    if not faster or not len(query) == len(key) == len(value) in (3, 4) or len(dtypes) != 1:
        return False
    pairs = (*zip(query[:-2], key[:-2], strict=True), *zip(query[:-2], value[:-2], strict=True))
    inner = (query[-1], key[-2]), (key[-1], value[-2])  # sums of products repeat dimensions of size 1
    return all(_surely(one == other) for one, other in (*pairs, *inner))


def _is_one_fill(steps: list[tuple[str, tuple[Any, ...]]]) -> bool:
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


def _changed_between(node: Any, found: _Attention) -> bool:
    """Return whether anything is changed between the products: they are computed where the last one is.

    What is no tensor may change how all else is computed, as `torch.no_grad` does.
    """
    between = node.prev
    while between is not found.chain[-1]:
        if between not in found.chain and (_changes(between) or between.target in _MODES):
            return True
        between = between.prev
    return False


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


# What nodes are


_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_PRODUCTS = ("matmul", "bmm", "__matmul__")
_MODES = (torch._C._set_grad_enabled, _autocast._enter_autocast, _autocast._exit_autocast)
"""What changes how all that comes after it is computed."""
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


def _is_cast(node: Any) -> bool:
    """Return whether a node casts floats to others of 16 bits or more."""
    dtype = node.meta["example_value"].dtype
    return _name(node) in _CASTS and dtype.is_floating_point and dtype.itemsize > 1


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
    rate, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", node.kwargs.get("train", True))
    if not isinstance(training, bool) or not isinstance(rate, _NUMBERS):
        return None
    return float(rate) if training else 0.0


def _product(node: Any) -> _Product | None:
    """Return a node as a product of matrices, None where it is none."""
    if not _is_tensor(node) or "out" in node.kwargs:
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
    """Return what a node does to scores: a method of `Mask`, the scores and its operands; None for anything else."""
    name, args = _name(node), node.args
    if name in _CASTS:
        return ("kept", args[:1]) if _is_cast(node) else None
    if name not in _STEPS or node.kwargs or len(args) != (3 if name in _OF_THREE else 2):
        return None
    found = _STEPS[name](*args)
    return None if found is None or (_changes(node) and found[1][0] is not args[0]) else found


def _changes(node: Any) -> bool:
    """Return whether a node changes what it reads."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.startswith("__"))
    return in_place or "out" in node.kwargs or _is_told_to_change(node)


def _is_told_to_change(node: Any) -> bool:
    """Return whether a function has an option `inplace` that is on, as `relu` has."""
    code = getattr(node.target, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get("inplace", False) is not False


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
