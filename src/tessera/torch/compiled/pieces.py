"""Graphs some of whose sizes follow from data, as those of `x[mask]` and `x[:n.item()]` do.

Such a graph is cut where a size becomes known: what tells it runs as PyTorch has it, and each piece between two of
those is a graph of its own, which takes the sizes as numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any, cast

from tessera.torch.compiled.sizes import Unknown

torch: Any = import_module("torch")
_pytree: Any = import_module("torch.utils._pytree")
_aten: Any = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SIZE_CHECKS = (
    _aten._assert_scalar.default,
    _aten.sym_constrain_range.default,
    _aten.sym_constrain_range_for_size.default,
)
_CHECKS = (*_SIZE_CHECKS, _aten._assert_async.msg, _aten._assert_async.default)
_BORN = "unbacked_bindings"
"""What a node's `meta` has where its result tells sizes."""

Compile = Callable[[Any], Callable[[list[Any]], Sequence[Any]]]
"""Gives for a graph what runs it: that takes a list of arguments, and empties it."""


def has_pieces(traced: Any) -> bool:
    """Return whether a graph computes sizes from data, or checks sizes."""
    return any(tells(node) or node.target in _SIZE_CHECKS for node in traced.graph.nodes)


def tells(node: Any) -> bool:
    """Return whether a node computes sizes from data."""
    return node.op == "call_function" and bool(node.meta.get(_BORN))


def in_pieces(traced: Any, compile_: Compile) -> Any:
    """Return a module that runs a graph, the pieces between what tells sizes compiled.

    Args:
        traced: the graph.
        compile_: compiles a piece.

    Raises:
        Unknown: a number that follows from data and is no size, or no value tells it.
    """
    _tell_sizes(traced.graph)
    tellers = {_symbol_of(node): node for node in reversed(traced.graph.nodes) if _is_symbol(node)}
    return _Cut(traced, tellers, compile_).run()


class _Piece(torch.nn.Module):
    """Runs a compiled piece."""

    def __init__(self, compiled: Callable[[list[Any]], Sequence[Any]]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._compiled = compiled

    def forward(self, *given: Any) -> Sequence[Any]:
        """Return the results of the piece."""
        return self._compiled(list(given))


class _Cut:
    """Cuts one graph.

    Args:
        traced: the graph.
        tellers: what gives sizes as numbers, by the symbol.
        compile_: compiles a piece.
    """

    def __init__(self, traced: Any, tellers: Mapping[str, Any], compile_: Compile) -> None:
        self._traced, self._tellers, self._compile = traced, tellers, compile_
        self._whole = torch.fx.Graph()
        self._held = torch.nn.Module()
        self._made: dict[Any, Any] = {}

    def run(self) -> Any:
        """Return the module that runs the graph."""
        nodes = list(self._traced.graph.nodes)
        for node in nodes:
            if node.op in ("placeholder", "get_attr"):
                self._made[node] = self._whole.node_copy(node)
        for node in self._traced.graph.find_nodes(op="get_attr"):
            setattr(self._held, node.target, getattr(self._traced, node.target))
        calls = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
        for tells, found in groupby(calls, _runs_alone):
            part = list(found)
            if tells or all(isinstance(node.meta.get("val"), _SYMBOLIC) for node in part):
                for node in part:
                    self._made[node] = self._whole.node_copy(node, self._made.__getitem__)
            else:
                self._add(part)
        self._whole.node_copy(self._traced.graph.output_node(), self._made.__getitem__)
        return torch.fx.GraphModule(self._held, self._whole)

    def _add(self, part: Sequence[Any]) -> None:
        """Compile a piece, and call it."""
        inside = set(part)
        results = [node for node in part if any(user not in inside for user in node.users)]
        given = dict.fromkeys(one for node in part for one in node.all_input_nodes if one not in inside)
        known = {str(size.node.expr) for node in given for size in _sizes(node) if _is_single(size)}
        told = [name for node in (*given, *part) for name in _symbols(node) if name not in known]
        given |= dict.fromkeys(self._teller(name) for name in dict.fromkeys(told))
        graph, made = torch.fx.Graph(), dict[Any, Any]()
        for node in given:
            made[node] = graph.node_copy(node) if node.op == "get_attr" else _taken(graph, node)
        for node in part:
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in results)).meta.update(self._traced.graph.output_node().meta)
        name = f"piece_{len(self._made)}"
        self._held.add_module(name, _Piece(self._compile(torch.fx.GraphModule(self._traced, graph))))
        taken = tuple(self._made[node] for node in given if node.op != "get_attr")
        called = self._whole.call_module(name, taken)
        for number, node in enumerate(results):
            self._made[node] = self._whole.call_function(operator.getitem, (called, number))

    def _teller(self, name: str) -> Any:
        if self._tellers.get(name) not in self._made:
            raise Unknown(f"the size {name}, which no value tells")
        return self._tellers[name]


def _taken(graph: Any, node: Any) -> Any:
    """Return an argument of a piece."""
    if isinstance(node.meta.get("val"), torch.SymFloat | torch.SymBool):
        raise Unknown("a number that follows from data and is no size")
    found = graph.placeholder(node.name)
    found.meta = {name: value for name, value in node.meta.items() if name != _BORN}
    return found


def _runs_alone(node: Any) -> bool:
    """Return whether a node tells sizes, or checks them, or is one of several results of one that does."""
    if node.target is operator.getitem:
        return _runs_alone(node.args[0])
    return tells(node) or node.target in _CHECKS or isinstance(node.meta.get("val"), torch.SymBool)


def _tell_sizes(graph: Any) -> None:
    """Let a node give each size that a tensor has from data, as a number."""
    for node in filter(tells, list(graph.nodes)):
        fakes = _fakes(node)
        for number, fake in enumerate(fakes):
            for axis, size in enumerate(_shape(fake)):
                if _is_single(size):
                    _tell(graph, node, number if len(fakes) > 1 else None, axis, size)


def _tell(graph: Any, node: Any, number: int | None, axis: int, size: Any) -> None:
    with graph.inserting_after(node):
        source = node if number is None else graph.call_function(operator.getitem, (node, number))
    if number is not None:
        source.meta["val"] = node.meta["val"][number]
        source.meta[_BORN] = node.meta[_BORN]
    with graph.inserting_after(source):
        told = graph.call_function(_aten.sym_size.int, (source, axis))
    told.meta |= {"val": size, _BORN: node.meta[_BORN]}


def _is_single(size: Any) -> bool:
    """Return whether a number is a symbol alone."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_Symbol)


def _is_symbol(node: Any) -> bool:
    return _is_single(node.meta.get("val"))


def _symbol_of(node: Any) -> str:
    return str(node.meta["val"].node.expr)


def _fakes(node: Any) -> list[Any]:
    """Return what a node gives."""
    return _pytree.tree_leaves(node.meta.get("val"))


def _shape(fake: Any) -> Sequence[Any]:
    return fake.shape if isinstance(fake, torch.Tensor) else ()


def _sizes(node: Any) -> Iterator[Any]:
    """Yield what a node gives of numbers, and the sizes of tensors."""
    for fake in _fakes(node):
        yield from _shape(fake) if isinstance(fake, torch.Tensor) else (fake,)


def _symbols(node: Any) -> Iterator[str]:
    """Yield the symbols in what a node gives."""
    strides = [stride for fake in _fakes(node) if isinstance(fake, torch.Tensor) for stride in fake.stride()]
    for size in (*_sizes(node), *strides):
        if isinstance(size, _SYMBOLIC):
            yield from sorted(map(str, cast("Iterable[Any]", size.node.expr.free_symbols)))
