"""The graph by which PyTorch differentiates a call of an op, run for the tensors of other calls of its kind.

A call is run once on stand-ins. What its steps keep for their gradients is noted by number, so that the nodes of its
graph, called one after the other, give the gradient of any call of the kind: they are handed what that one kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import compress
from typing import Any, NamedTuple

from tessera.ops import arrays
from tessera.ops.forms import Form, creator, form_of, part_of
from tessera.ops.steps import as_tuple
from tessera.runtime.recording import Made, Recorder

_recorded: ContextVar[list[Any] | None] = ContextVar("tessera_kept", default=None)
_handed: ContextVar[Sequence[Any]] = ContextVar("tessera_handed", default=())


_RESHAPES = ("View", "ReshapeAlias", "UnsafeView", "Squeeze")
"""Nodes of PyTorch's that give an array other sizes."""


class Slot(NamedTuple):
    """Stands for a tensor among what a step keeps.

    Args:
        number: which of those that the steps of a call keep.
    """

    number: int


@contextmanager
def noted() -> Generator[list[Any]]:
    """Note the tensors that steps keep inside, which PyTorch does not keep then."""
    tensors: list[Any] = []
    token = _recorded.set(tensors)
    try:
        yield tensors
    finally:
        _recorded.reset(token)


def slots(values: Sequence[Any]) -> list[Any] | None:
    """Return what a step keeps with numbers instead of tensors, None where nothing notes them."""
    tensors = _recorded.get()
    if tensors is None:
        return None
    found: list[Any] = []
    for one in values:
        if arrays.is_torch(one):
            found.append(Slot(len(tensors)))
            tensors.append(one)
        else:
            found.append(one)
    return found


def filled(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a step kept, with the tensors of the call whose gradient is computed."""
    tensors = _handed.get()
    return tuple(tensors[one.number] if type(one) is Slot else one for one in values)


class Source(NamedTuple):
    """Where a tensor comes from that a step keeps.

    Args:
        of: which of the tensors that PyTorch keeps for the call it lies in, -1 for one without elements.
        after: how many elements after that one's start it starts; -1 for all of it, as it lies.
        form: how it lies.
    """

    of: int
    after: int
    form: Form

    def among(self, saved: Sequence[Any], device: Any) -> Any:
        """Return the tensor."""
        shape, strides, dtype = self.form.shape, self.form.strides, self.form.dtype
        if self.of < 0:
            return creator(device)[0](shape, strides, dtype)
        whole = saved[self.of]
        return whole if self.after < 0 else whole.as_strided(shape, strides, whole.storage_offset() + self.after)


class Keep:
    """What PyTorch keeps for the gradient of a call.

    Args:
        noted: what its steps keep.
        tensors: those that it was given.
        results: those that it gave of its own.
        recorder: what recorded it.
    """

    def __init__(
        self, noted: Sequence[Any], tensors: Sequence[Any], results: Sequence[Any], recorder: Recorder
    ) -> None:
        self.is_whole = True
        """Whether each of these has a place."""
        self.made: list[Any] = []
        """Tensors that the call made beside its results."""
        self.owners: list[Made] = []
        """The memory of these."""
        places: dict[Any, int] = {at: at for at in range(len(tensors))}
        all_ = [*tensors, *results]
        for at, one in enumerate(results, len(tensors)):
            if one.numel():
                places[recorder.place_of(one.data_ptr())[0]] = at
        found: list[tuple[Any, int]] = []
        for one in noted:
            place = recorder.place_of(one.data_ptr())[0] if one.numel() else None
            if isinstance(place, Made) and place not in places:
                places[place] = len(all_)
                all_.append(one)
                self.made.append(one)
                self.owners.append(place)
                self.is_whole &= recorder.made[place.number] == one.numel() * one.itemsize
            self.is_whole &= place in places or not one.numel()
            found.append((one, places.get(place, -1)))
        self.saved = sorted({at for _one, at in found if at >= 0})
        """Which tensors are kept: those given are counted first, then the results, then what was made."""
        self.sources = [self._source(one, at, all_) for one, at in found]

    def _source(self, one: Any, at: int, all_: Sequence[Any]) -> Source:
        form = form_of(one)
        assert form is not None, "steps keep tensors"
        if at < 0:
            return Source(-1, -1, form)
        part, of = part_of(one, all_[at]), self.saved.index(at)
        self.is_whole &= part is not None and part.after % one.itemsize == 0
        if part is None or (part.after == 0 and form_of(all_[at]) == form):
            return Source(of, -1, form)
        return Source(of, part.after // one.itemsize, form)


class Walk:
    """The nodes of a call's graph, in the order in which PyTorch calls them.

    Args:
        results: those that it gave of its own.
        leaves: stand-ins for the tensors that it was given.
    """

    def __init__(self, results: Sequence[Any], leaves: Sequence[Any]) -> None:
        self.is_whole = True
        """Whether all nodes are known, and gradients end at the leaves alone."""
        self.order: list[int] = []
        """The leaves in the order in which they get gradients; each may come more than once."""
        self._roots = [(one.grad_fn, one.output_nr) if one.requires_grad else None for one in results]
        self._count = len(leaves)
        places = {id(one): at for at, one in enumerate(leaves)}
        nodes: dict[Any, list[tuple[Any, int]]] = {}
        todo = [root[0] for root in self._roots if root is not None]
        ends: dict[Any, int] = {}
        while todo:
            node = todo.pop()
            variable = getattr(node, "variable", None)
            if node in nodes or node in ends:
                continue
            if node is None or variable is not None:
                ends[node] = places.get(id(variable), -1)
                self.is_whole &= node is None or id(variable) in places
                continue
            nodes[node] = list(node.next_functions)
            todo += [other for other, _number in node.next_functions if other is not None]
        steps = sorted(nodes, key=lambda node: -node._sequence_nr())
        numbers = {node: at for at, node in enumerate(steps)}
        self._numbers = numbers
        self._steps: list[tuple[Any, int, list[tuple[int, int] | int | None]]] = []
        for node in steps:
            goals: list[tuple[int, int] | int | None] = []
            for other, number in nodes[node]:
                goals.append(None if other is None else ends[other] if other in ends else (numbers[other], number))
            self.order += [goal for goal in goals if isinstance(goal, int)]
            call = _applied(node)
            self.is_whole &= call is not None
            self._steps.append((call, len(node._input_metadata), goals))

    def __call__(self, tensors: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of the leaves, None for those that have none.

        Args:
            tensors: what the call's steps kept.
            grads: the gradients of the results, None where nothing depends on one.
        """
        found: list[Any] = [None] * self._count
        given: list[list[Any]] = [[None] * count for _call, count, _goals in self._steps]
        for root, grad in zip(self._roots, grads, strict=True):
            if root is not None and grad is not None:
                _add(given[self._numbers[root[0]]], root[1], grad)
        token = _handed.set(tensors)
        try:
            for at, (call, _count, goals) in enumerate(self._steps):
                if all(one is None for one in given[at]):
                    continue
                for one, goal in zip(call(*given[at]), goals, strict=True):
                    if one is None or goal is None:
                        continue
                    if isinstance(goal, int):
                        _add(found, goal, one)
                    else:
                        _add(given[goal[0]], goal[1], one)
                given[at] = []
        finally:
            _handed.reset(token)
        return found


def _applied(node: Any) -> Callable[..., Sequence[Any]] | None:
    """Return what calls a node, None where it is not known.

    PyTorch's own nodes are not called: asked for some gradients only, they leave out those of nodes it does not run.
    """
    base: Any = sys.modules["torch"].autograd.function.BackwardCFunction
    if not isinstance(node, base):
        return _view_of(node)
    takes: Sequence[bool] = getattr(node, "takes", ())

    def apply(*grads: Any) -> Sequence[Any]:
        return tuple(compress(as_tuple(node.apply(*grads)), takes))  # PyTorch wants those of tensors alone

    return apply


def _view_of(node: Any) -> Callable[..., Sequence[Any]] | None:
    """Return what computes the gradient of what a view is of, None for a node of another kind."""
    name: str = node.name()

    def reshaped(grad: Any) -> Sequence[Any]:
        return (grad.reshape(tuple(node._saved_self_sym_sizes)),)

    def permuted(grad: Any) -> Sequence[Any]:
        dims = [_signed(dim) % grad.ndim for dim in node._saved_dims]
        return (grad.permute([dims.index(dim) for dim in range(grad.ndim)]),)

    def transposed(grad: Any) -> Sequence[Any]:
        return (grad.transpose(_signed(node._saved_dim0), _signed(node._saved_dim1)),)

    def squeezed(grad: Any) -> Sequence[Any]:
        return (grad.squeeze(_signed(node._saved_dim)),)

    def turned(grad: Any) -> Sequence[Any]:
        return (grad.t(),)

    reshapes = dict.fromkeys(_RESHAPES, reshaped)
    others = {"Permute": permuted, "Transpose": transposed, "Unsqueeze": squeezed, "T": turned}
    return (reshapes | others).get(name.partition("Backward")[0])


def _signed(number: int) -> int:
    """Return a number that PyTorch shows as one without a sign."""
    return number - (1 << 64) if number >> 63 else number


def _add(sums: list[Any], at: int, one: Any) -> None:
    sums[at] = one if sums[at] is None else sums[at] + one
