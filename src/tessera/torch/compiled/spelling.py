"""How programs spell what attention is made of: products of matrices, and what is done to scores.

Nodes are those of a graph of PyTorch's functions and methods, as Dynamo traces it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_surely: Callable[[Any], bool] = import_module("torch.fx.experimental.symbolic_shapes").statically_known_true

HIDDEN = -1e4
"""Scores from which on downwards a key counts as hidden, as it has no weight beside one that is not."""
_autocast: Any = import_module("torch.amp.autocast_mode")
_MODES = (torch._C._set_grad_enabled, _autocast._enter_autocast, _autocast._exit_autocast)
"""What changes how all that comes after it is computed."""
_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_PRODUCTS = ("matmul", "bmm", "__matmul__")
_NUMBERS = (int, float)
_HOMES = (torch, operator, _functional, torch.functional)
"""Where functions are that have the names by which they are known here."""
Step = tuple[str, tuple[Any, ...]]
"""What is done to scores: a method of `Mask`, and its operands."""


class Product(NamedTuple):
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


def name_of(node: Any) -> str:
    """Return what a node calls: the name of a method, or of a function of PyTorch or Python."""
    if not isinstance(node, torch.fx.Node) or node.op not in ("call_function", "call_method"):
        return ""
    if node.op == "call_method":
        return node.target
    name = getattr(node.target, "__name__", "")
    return name if any(getattr(home, name, None) is node.target for home in _HOMES) else ""


def is_tensor(node: Any) -> bool:
    """Return whether a node is one tensor."""
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_mask(node: Any) -> bool:
    return is_tensor(node) and node.meta["example_value"].dtype == torch.bool


def is_alone(node: Any, *readers: Any) -> bool:
    """Return whether a node is a tensor that only some others read, its dtype if not its elements."""
    return is_tensor(node) and {*node.users} <= {*readers}


def is_cast(node: Any) -> bool:
    """Return whether a node casts floats to others of 16 bits or more."""
    dtype = node.meta["example_value"].dtype
    return name_of(node) in _CASTS and dtype.is_floating_point and dtype.itemsize > 1


def are_equal(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether sizes are surely equal, also those that calls decide."""
    return all(_surely(one == other) for one, other in pairs)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two nodes are tensors of one shape."""
    if not is_tensor(one):
        return False
    shapes = one.meta["example_value"].shape, other.meta["example_value"].shape
    return len(shapes[0]) == len(shapes[1]) and are_equal(zip(*shapes, strict=True))


def shape_of(side: tuple[Any, tuple[int, ...] | None]) -> list[Any]:
    """Return the shape of a factor as the product takes it."""
    array, order = side
    shape = array.meta["example_value"].shape
    return [*shape] if order is None else [shape[axis] for axis in order]


def argument(node: Any, place: int, name: str, default: Any = None) -> Any:
    """Return an argument that a call gives by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_softmax(node: Any) -> bool:
    """Return whether a node is a softmax along the last dimension, of floats of any width."""
    if name_of(node) != "softmax" or not is_tensor(argument(node, 0, "input")):
        return False
    rank = node.meta["example_value"].dim()
    return argument(node, 1, "dim") in (-1, rank - 1)


def rate_of(node: Any) -> float | None:
    """Return the rate of a dropout, 0 where it is off, None where that is not known."""
    rate, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", node.kwargs.get("train", True))
    if not isinstance(training, bool) or not isinstance(rate, _NUMBERS):
        return None
    return float(rate) if training else 0.0


def product_of(node: Any) -> Product | None:
    """Return a node as a product of matrices, None where it is none."""
    if not is_tensor(node) or "out" in node.kwargs:
        return None
    name, args = name_of(node), node.args
    if name in _PRODUCTS and len(args) == 2 and all(map(is_tensor, args)):
        ranks = {one.meta["example_value"].dim() for one in args}
        return Product((args[0], None), (args[1], None)) if len(ranks) == 1 else None
    if name == "einsum" and len(args) == 3 and isinstance(args[0], str):
        return _einsum(*args)
    if name == "baddbmm" and len(args) == 3:
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        if beta not in (0, 1) or not isinstance(alpha, _NUMBERS) or alpha <= 0:
            return None
        return Product((args[1], None), (args[2], None), None, float(alpha), args[0] if beta else None)
    return None


def _einsum(formula: str, left: Any, right: Any) -> Product | None:
    """Return a sum of products as one of matrices, None where it is none."""
    given, arrow, result = formula.replace(" ", "").partition("->")
    one, comma, other = given.partition(",")
    letters = (one, other, result)
    if not arrow or not comma or any(len({*each}) != len(each) or not each.isalpha() for each in letters):
        return None
    if len(one) != len(other) or not (is_tensor(left) and is_tensor(right)):
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
    return Product(sides[0], sides[1], None if back == plain else back)


def step_of(node: Any) -> Step | None:
    """Return what a node does to scores: a method of `Mask`, the scores and its operands; None for anything else."""
    name, args = name_of(node), node.args
    if name in _CASTS:
        return ("kept", args[:1]) if is_cast(node) else None
    if name not in _STEPS or node.kwargs or len(args) != (3 if name in _OF_THREE else 2):
        return None
    found = _STEPS[name](*args)
    return None if found is None or (changes(node) and found[1][0] is not args[0]) else found


def changes(node: Any) -> bool:
    """Return whether a node changes what it reads."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = name.strip("_") in IN_PLACE or (name.endswith("_") and not name.startswith("__"))
    return in_place or "out" in node.kwargs or _is_told_to_change(node) or _may_change(node.target)


def is_changed_between(first: Any, last: Any, matters: Callable[[Any], bool]) -> bool:
    """Return whether anything that matters is changed between two nodes: what is read then is read later.

    What is no tensor may change how all else is computed, as `torch.no_grad` does.

    Args:
        first: the first of them, which comes before the other.
        last: the other one.
        matters: whether it matters what a node changes.
    """
    between = last.prev
    while between is not first:
        if between.target in _MODES or (changes(between) and matters(between)):
            return True
        between = between.prev
    return False


def _may_change(target: Any) -> bool:
    """Return whether an op of PyTorch's registry is declared to change arguments, in any of its forms."""
    forms = [getattr(target, name) for name in target.overloads()] if hasattr(target, "overloads") else [target]
    return any(form._schema.is_mutable for form in forms if hasattr(form, "_schema"))


def _is_told_to_change(node: Any) -> bool:
    """Return whether a function has an option `inplace` that is on, as `relu` has."""
    code = getattr(node.target, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get("inplace", False) is not False


def _scaled(scores: Any, factor: Any) -> Step | None:
    if isinstance(scores, _NUMBERS):
        scores, factor = factor, scores
    return ("scaled", (scores, float(factor))) if isinstance(factor, _NUMBERS) and factor > 0 else None


def _divided(scores: Any, by: Any) -> Step | None:
    return ("scaled", (scores, 1 / by)) if isinstance(by, _NUMBERS) and by > 0 else None


def _added(scores: Any, bias: Any) -> Step | None:
    """Return the sum of scores and a bias, of which either may come first: the scores are read by nobody else."""
    if not _leads_to_product(scores):
        scores, bias = bias, scores
    return ("added", (scores, bias)) if is_tensor(scores) and is_tensor(bias) else None


def _leads_to_product(node: Any) -> bool:
    """Return whether a node may be scores: a product, or what is made of one by a few steps."""
    while is_tensor(node):
        if product_of(node) is not None:
            return True
        if name_of(node) not in (*_CASTS, *_STEPS) or not node.args:
            return False
        node = node.args[1] if isinstance(node.args[0], _NUMBERS) else node.args[0]
    return False


def _taken(scores: Any, bias: Any) -> Step | None:
    return ("taken", (scores, bias)) if is_tensor(scores) and is_tensor(bias) else None


def _hidden(scores: Any, where: Any, score: Any) -> Step | None:
    low = isinstance(score, _NUMBERS) and score <= HIDDEN
    return ("hidden", (scores, where, float(score))) if low and _is_mask(where) else None


def _chosen(where: Any, one: Any, other: Any) -> Step | None:
    if not _is_mask(where):
        return None
    if isinstance(other, _NUMBERS):
        return ("shown", (one, where, float(other))) if other <= HIDDEN else None
    return ("hidden", (other, where, float(one))) if isinstance(one, _NUMBERS) and one <= HIDDEN else None


_STEPS: dict[str, Callable[..., Step | None]] = {
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
IN_PLACE = (
    *("setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod"),
    *("imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor"),
)
