"""Runs a graph in Graph IR on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from importlib import import_module
from operator import or_  # pyright: ignore[reportUnknownVariableType]
from typing import Any

from tessera.graph.edges import Edges, Given, Number
from tessera.graph.explained import GraphExplanation
from tessera.graph.program import Program
from tessera.ops import arrays
from tessera.target.dims import Dim
from tessera.torch.compiled.aten_calls import as_given, as_held
from tessera.torch.compiled.computed import Computed, values_of
from tessera.torch.compiled.convert import Converted
from tessera.torch.compiled.layouts import Lies, Order, in_order, with_gaps

torch: Any = import_module("torch")
_checks: Any = import_module("torch._C._dynamo.guards")
_MOST_KINDS = 1024
"""Kinds of calls that a graph tells apart."""
_MOST_RECENT = 4
"""Kinds that a call is compared with by PyTorch's check, before all its sizes and strides are looked at."""
_start: Callable[[Any], int] = torch.Tensor.data_ptr
_any_bits: Callable[[Sequence[int]], int] = partial(reduce, or_)
Ran = tuple["Compiled", dict[str, int], Any] | str
"""A graph that ran, with its sizes and one of its tensors; or why one runs as PyTorch traced it."""

watching: list[list[Ran]] = []
"""Lists to which graphs are added that run; see `torch.compiled.explained`."""


class Kind:
    """How the tensors of calls lie: what tells calls apart, beside sizes that are numbers, and alignment.

    Args:
        tensors: the tensors of a call.
    """

    __slots__ = ("check", "sizes")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.sizes: dict[Any, dict[str, int]] = {}
        """Sizes of symbols, by the sizes that are numbers."""
        self.check: Callable[..., bool] = _never
        """Returns whether tensors are surely of this kind."""
        self.learn(tensors)

    def learn(self, tensors: Sequence[Any]) -> None:
        """Check calls against other tensors of this kind, by PyTorch's own check, which costs least."""
        made = getattr(_checks, "TensorGuards", None)
        if made is not None:
            self.check = made(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def _never(*_tensors: Any) -> bool:
    return False


class Compiled:
    """A traced graph, compiled.

    Args:
        converted: the graph in Graph IR.
    """

    def __init__(self, converted: Converted) -> None:
        calls: dict[str, Any] = dict(converted.calls)
        facts = converted.contiguous, converted.hints, converted.loose
        self._edges = _edges(converted)
        self._program = Program(converted.module, calls, *facts, edges=self._edges)
        self._converted = converted
        self.kernels = len(self._program.kernels)
        self._held = {one.untyped_storage().data_ptr() for one in converted.constants}
        self._kinds: dict[Any, Kind] = {}
        self._recent: dict[tuple[int, ...], list[Kind]] = {}
        """Kinds of calls that came last, by the sizes that are numbers."""
        # It takes a list, and empties it, so that arguments die when they are not needed any more.
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run it."""
        if torch._C._is_any_autocast_enabled():  # around backward, for example; the graph has its casts
            with torch._C._DisableAutocast():
                return self(args)
        graph = self._converted
        tensors = [args[at] for at in graph.arguments]
        tensors += graph.constants
        numbers = tuple([int(args[at]) for _, at in graph.symbols])
        args.clear()
        kind = self._kind_of(tensors, numbers)
        sizes = kind.sizes.get(numbers)
        if sizes is None:
            sizes = self._sizes(tensors, numbers, kind)
        for ran in watching:
            ran.append((self, sizes, tensors[0]))
        starts = [*map(_start, tensors)]
        # All arrays but parts of others are aligned. A size may be a number that no tensor has.
        unaligned = tuple([start & 15 for start in starts]) if _any_bits(starts) & 15 else ()
        key = kind, numbers, unaligned
        if not torch.is_grad_enabled():
            found = self._program.run(tensors, sizes, key, starts)
        else:
            torch._C._set_grad_enabled(False)  # a third of the time of `no_grad`
            try:
                found = self._program.run(tensors, sizes, key, starts)
            finally:
                torch._C._set_grad_enabled(True)
        return [_apart(one, self._held) for one in found] if self._held else found

    def _kind_of(self, tensors: Sequence[Any], numbers: tuple[int, ...]) -> Kind:
        recent = self._recent.get(numbers, ())
        for kind in recent:
            if kind.check(*tensors):
                return kind
        lies = tuple((one.shape, one.stride(), one.dtype, one.device, one.is_conj(), one.is_neg()) for one in tensors)
        kind = self._kinds.get(lies)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[lies] = Kind(tensors)
        else:
            kind.learn(tensors)
        if len(self._recent) >= _MOST_KINDS:
            self._recent.clear()
        self._recent[numbers] = [kind, *(one for one in recent if one is not kind)][:_MOST_RECENT]
        return kind

    def _sizes(self, tensors: Sequence[Any], numbers: tuple[int, ...], kind: Kind) -> dict[str, int]:
        """Return the sizes of symbols, which are kept."""
        graph = self._converted
        found = {name: number for (name, _), number in zip(graph.symbols, numbers, strict=True)}
        if any(name not in found and name not in graph.named for name in graph.hints):
            found |= self._program.sizes(self._edges.taken(tensors))
        found |= values_of(graph.named, found)
        if len(kind.sizes) >= _MOST_KINDS:
            kind.sizes.clear()
        kind.sizes[numbers] = found
        return found

    def explain(self, sizes: dict[str, int], like: Any) -> GraphExplanation:
        """Return what it runs at some sizes, on the device of a tensor."""
        return self._program.explain(sizes, arrays.view(as_held(like), "a tensor").device, self._converted.left)


def _apart(result: Any, held: set[int]) -> Any:
    """Return a result that shares no memory with what the graph holds: a caller may change it."""
    shares = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in held
    return result.clone() if shares else result


def _edges(graph: Converted) -> Edges:
    """Return what is done to a graph's tensors before and after it runs."""
    orders, count = dict(graph.turned), len(graph.contiguous)
    ready = [partial(_argument, orders.get(number), graph.contiguous[number]) for number in range(count)]
    gives = [
        Given(value[0], partial(_giver, *value[1:])) if is_tensor else Number(partial(_number, value))
        for is_tensor, value in graph.results
    ]
    written = tuple(tuple((graph.arguments.index(at), number) for at, number in together) for together in graph.written)
    return Edges(tuple(ready), tuple(gives), written, torch._foreach_copy_)


def _argument(order: Order | None, contiguous: bool, tensor: Any) -> Any:
    """Return an argument as the graph takes it."""
    tensor = as_held(tensor)
    tensor = tensor if order is None else tensor.permute(order)
    return tensor.contiguous() if contiguous else tensor


def _giver(
    lies: Lies, as_complex: bool, strides: Sequence[Any] | None, sizes: Mapping[str, int]
) -> Callable[[Any], Any]:
    """Return what makes of a result what the program wants."""
    known = None if strides is None else [_number(stride, sizes) for stride in strides]
    return partial(_result, lies, as_complex, known)


def _result(lies: Lies, as_complex: bool, strides: Sequence[int] | None, tensor: Any) -> Any:
    """Return a result as the program wants it."""
    found = as_given(in_order(tensor, lies), as_complex)
    return found if strides is None else with_gaps(found, strides)


def _number(value: Any, sizes: Mapping[str, int]) -> Any:
    return value.value(sizes) if isinstance(value, Dim | Computed) else value
