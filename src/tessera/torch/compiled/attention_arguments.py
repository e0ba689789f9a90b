"""Arguments of attention in the form in which it is fastest: heads that are not repeated, masks by places.

    F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
        →    F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    F.scaled_dot_product_attention(q, k, v, torch.full((t, t), -inf).triu(1))
        →    F.scaled_dot_product_attention(q, k, v, is_causal=True)

A mask that a program makes of sizes alone is computed while compiling, whatever the program's words for it are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from importlib import import_module
from typing import Any, cast

from tessera.data import dataclass
from tessera.torch.compiled.spelling import (
    HIDDEN,
    IN_PLACE,
    are_equal,
    argument,
    changes,
    is_changed_between,
    is_same,
    is_tensor,
    name_of,
)

torch: Any = import_module("torch")
_attention: Any = torch.nn.functional.scaled_dot_product_attention
_unset: Any = import_module("torch._subclasses.fake_tensor").unset_fake_temporarily

RANK = 4
"""Dimensions of arrays with heads."""
MOST_ELEMENTS = 1 << 24
"""Of masks that are computed while compiling."""
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Arguments of attention."""
_LIKE = ("full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros")
"""Functions of an array's shape and dtype."""
_MAKING = ("full", "ones", "zeros", "arange", *_LIKE)
_SHAPING = ("view", "reshape", "expand", "unsqueeze", "squeeze", "getitem", "transpose", "t", "contiguous", "clone")
_CASTING = ("to", "type", "type_as", "bool", "float", "half", "bfloat16", "double", "int", "long")
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_COMBINING = ("logical_not", "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "invert", "and_")
_COMPUTING = ("tril", "triu", "masked_fill", "where", "mul", "add", "sub", "neg", "rsub", "any", "all", "or_")
_FILLING = ("fill", "fill_diagonal", "zero", "copy")
_PLAIN = frozenset((*_MAKING, *_SHAPING, *_CASTING, *_COMPARING, *_COMBINING, *_COMPUTING))
"""Functions of what is known that draw nothing."""


def simplify_attention(traced: Any) -> None:
    """Rewrite the arguments of attention in a graph of PyTorch's functions, as it is before it is differentiated."""
    nodes = list(traced.graph.find_nodes(op="call_function", target=_attention))
    for node in nodes:
        _order_arguments(node)
        _describe(node)
        _name_mask(node)
        _share_heads(traced.graph, node)
    if nodes:
        traced.recompile()


def _order_arguments(node: Any) -> None:
    """Give attention its queries, keys and values by their places, and all else by its names."""
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    node.args = tuple(given.pop(name) for name in _NAMES[:3])
    node.kwargs = given


def _describe(node: Any) -> None:
    """Say what a node gives, and what it is computed of, as tensors without data, where these have been added."""
    added, waiting = set[Any](), [node, *node.all_input_nodes]
    while waiting:
        one = waiting.pop()
        if one not in added and "example_value" not in one.meta:
            added.add(one)
            waiting += one.all_input_nodes
    modes = (getattr(one.meta.get("example_value"), "fake_mode", None) for one in node.graph.nodes)
    with next(filter(None, modes), nullcontext()):
        for one in [one for one in node.graph.nodes if one in added]:
            args, kwargs = (torch.fx.node.map_arg(given, _example) for given in (one.args, one.kwargs))
            one.meta["example_value"] = _called(one, args, kwargs)


def _example(node: Any) -> Any:
    return node.meta["example_value"]


def _called(node: Any, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


# Heads


def _share_heads(graph: Any, node: Any) -> None:
    """Let attention have keys and values without repetitions, where each is repeated for as many queries."""
    if node.kwargs.get("enable_gqa", False):
        return
    query, *pair = node.args
    if not all(is_tensor(one) and one.meta["example_value"].dim() == RANK for one in (query, *pair)):
        return
    key, value = (_unrepeated(node, one) for one in pair)
    if key is None or value is None:
        return
    heads = [one.meta["example_value"].shape[1] for one in (query, pair[0])]
    if are_equal([(heads[0], heads[1]), (key.count, value.count)]):
        with graph.inserting_before(node):
            node.args = (query, key.turned(graph), value.turned(graph))
        node.kwargs = {**node.kwargs, "enable_gqa": True}


@dataclass(frozen=True)
class _Heads:
    """An array whose heads are repeated.

    Args:
        source: the array without repetitions.
        count: how often each head is there.
        turns: the orders of dimensions that it is put in afterwards.
    """

    source: Any
    count: Any
    turns: list[tuple[int, ...]]

    def turned(self, graph: Any) -> Any:
        """Return the array without repetitions, in the same order as the one with them."""
        array = self.source
        for order in self.turns:
            array = graph.call_method("permute", (array, order))
        return array


def _unrepeated(reader: Any, node: Any) -> _Heads | None:
    """Return what the heads of an array, its second dimension, repeat; None where they do not.

    Args:
        reader: the attention that reads the array.
        node: the array.
    """
    axis, turns, chain = 1, list[tuple[int, ...]](), [node]
    while (order := _order(node)) is not None or name_of(node) == "contiguous":
        if order is not None:
            turns.insert(0, order)
            axis = order[axis]
        node = node.args[0]
        chain.append(node)
    found = _repeated(node, axis)
    if found is None:
        return None
    while chain[-1] is not found[0]:
        chain.append(argument(chain[-1], 0, "input"))
    held = _memory(chain)
    other = is_changed_between(found[0], reader, lambda one: bool(held & _changed(one)))
    return None if other else _Heads(*found, turns)


def _order(node: Any) -> tuple[int, ...] | None:
    """Return in which order a node puts the dimensions of what it reads; None where it does something else."""
    name, order = name_of(node), [*range(RANK)]
    if getattr(node, "target", None) is getattr and node.args[1] == "mT":
        name, places = "transpose", (-2, -1)
    elif name in ("transpose", "permute") and not node.kwargs:
        places = node.args[1:] if len(node.args) > 2 else node.args[1]
    else:
        return None
    if not isinstance(places, tuple | list) or not all(isinstance(place, int) for place in cast("list[Any]", places)):
        return None
    if name == "permute":
        return tuple(place % RANK for place in cast("list[int]", places))
    one, other = cast("list[int]", places)
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def _repeated(node: Any, axis: int) -> tuple[Any, Any] | None:
    """Return what a node repeats element by element along a dimension, and how often; None where it does not."""
    name = name_of(node)
    if name == "repeat_interleave":
        source, count, along = (argument(node, *which) for which in enumerate(("input", "repeats", "dim")))
        fits = isinstance(count, int) and isinstance(along, int) and "output_size" not in node.kwargs
        return (source, count) if fits and along % RANK == axis and is_tensor(source) else None
    if name not in ("reshape", "view", "flatten"):
        return None
    wide = argument(node, 0, "input")
    if name_of(wide) not in ("expand", "repeat") or not is_tensor(wide.args[0]):
        return None
    column = wide.args[0]
    source = argument(column, 0, "input") if name_of(column) in ("unsqueeze", "getitem") else None
    if not is_tensor(source) or not _is_column(column, axis + 1):
        return None
    own, grown, shape = (cast("Any", one).meta["example_value"].shape for one in (source, wide, node))
    if len(own) != RANK or len(grown) != RANK + 1 or len(shape) != RANK:
        return None
    count = grown[axis + 1]
    pairs = [*zip(grown, [*own[: axis + 1], count, *own[axis + 1 :]], strict=True)]
    pairs += zip(shape, [*own[:axis], own[axis] * count, *own[axis + 1 :]], strict=True)
    return (source, count) if are_equal(pairs) else None


def _is_column(node: Any, axis: int) -> bool:
    """Return whether a node has a dimension more than what it reads, of one element, and is the same else."""
    if name_of(node) == "unsqueeze":
        return argument(node, 1, "dim") in (axis, axis - RANK - 1)
    places = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    whole = all(place is None or place is ... or place == slice(None) for place in places)
    if not whole or sum(place is None for place in places) != 1:
        return False
    at = next(number for number, place in enumerate(places) if place is None)
    return (at if ... not in places[:at] else RANK + 1 - len(places) + at) == axis


# Masks


def _name_mask(node: Any) -> None:
    """Let attention have no mask where it hides nothing, or one by places where it hides what comes later."""
    mask = node.kwargs.get("attn_mask")
    if node.kwargs.get("is_causal", False) or not is_tensor(mask):
        return
    found = known(mask, node)
    keeps = None if found is None else _kept(found)
    if keeps is None:
        return
    rows, columns = (node.args[place].meta["example_value"].shape[-2] for place in (0, 1))
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return
    later = rows == columns and bool((keeps == torch.ones(rows, columns, dtype=torch.bool).tril()).all())
    if later or bool(keeps.all()):
        query, *pair = node.args
        node.args = (_seeing(query, node), *pair)
        node.kwargs = {**node.kwargs, "attn_mask": None, "is_causal": later}


def _seeing(query: Any, reader: Any) -> Any:
    """Return queries as they are before those that no key is shown to are made 0, where there are none of these."""
    if name_of(query) != "masked_fill":
        return query
    source, blind = argument(query, 0, "input"), argument(query, 1, "mask")
    found = known(blind, reader) if is_same(source, query) else None
    return query if found is None or found.any() else source


def _kept(mask: Any) -> Any:
    """Return which scores a mask keeps as they are; None where it changes some otherwise."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.dtype.is_floating_point:
        return None
    keeps = mask == 0
    return keeps if bool((keeps | (mask <= HIDDEN)).all()) else None


def known(node: Any, reader: Any) -> Any:
    """Return what a node gives another one, on the CPU, if that follows from the program alone; None where it does not.

    What changes it in place before it is read is done to it.
    """
    places: dict[Any, int] = {one: place for place, one in enumerate(node.graph.nodes)}
    before = [one for one in places if places[one] < places[reader] and changes(one)]
    order, waiting = set[Any](), [node]
    while waiting:
        one = waiting.pop()
        if one not in order and not _is_plain(one):
            return None
        waiting += [] if one in order or name_of(one) in _LIKE else one.all_input_nodes
        order.add(one)
        if not waiting:
            held = _memory(order)
            waiting = [one for one in before if one not in order and held & _changed(one)]
    values = dict[Any, Any]()
    with _unset(), torch.no_grad():
        for one in sorted(order, key=places.__getitem__):
            try:
                found = _called(one, *torch.fx.node.map_aggregate((one.args, one.kwargs), _on_cpu(values)))
            except RuntimeError:  # what a GPU computes and no CPU
                return None
            values[one] = None if found is None else found.cpu()
    return values[node]


def _blank(fake: Any) -> Any:
    """Return an array of a shape and a dtype."""
    return torch.empty((), dtype=fake.dtype).expand(tuple(fake.shape))


def _is_plain(node: Any) -> bool:
    """Return whether a node computes something small of what it reads alone, or changes that."""
    name = name_of(node)
    if name == "setitem":
        return True
    plain = name in _PLAIN or (name.endswith("_") and name[:-1] in (*_PLAIN, *_FILLING))
    size = node.meta["example_value"].numel() if plain and is_tensor(node) else None
    return isinstance(size, int) and size <= MOST_ELEMENTS


def _memory(nodes: Iterable[Any]) -> set[int]:
    """Return what tells the memory of tensors: 0 for all whose memory is hidden, as in `torch.vmap`."""

    def memory(one: Any) -> int:
        try:
            return one.meta["example_value"].untyped_storage()._cdata
        except NotImplementedError:
            return 0

    return set(map(memory, filter(is_tensor, nodes)))


def _changed(node: Any) -> set[int]:
    """Return the memory that a node may change: of the first it reads in place, of all where an option says so."""
    in_place = name_of(node).endswith("_") or name_of(node) in IN_PLACE
    return _memory(node.args[:1] if in_place else node.all_input_nodes)


def _on_cpu(values: dict[Any, Any]) -> Callable[[Any], Any]:
    """Return what gives the value of an argument, and CPUs for other devices."""

    def value(one: Any) -> Any:
        if isinstance(one, torch.fx.Node):
            return values[one] if one in values else _blank(one.meta["example_value"])
        return torch.device("cpu") if _is_device(one) else one

    return value


def _is_device(one: Any) -> bool:
    """Return whether an argument is a device, or the name of one."""
    try:
        return isinstance(one, torch.device) or (isinstance(one, str) and torch.device(one) is not None)
    except RuntimeError:
        return False
