"""Calls of ops that PyTorch differentiates: a call of a known kind is one node of its graph, whose launches are known.

A call's second run of its kind is done on stand-ins. From then on a call makes its results and what its gradient
needs, starts the launches, and is a node of PyTorch's graph. Gradients are recorded in the same way, by how those of
the results lie. What has not been recorded is computed by the nodes of the graph of the op as written; see `tapes`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from tessera.numerics.profiles import current_profile
from tessera.ops.recorded import Give, Repeat, Results, giver, ranges, repeat_of
from tessera.ops.rules import RULES
from tessera.ops.tapes import Keep, Walk, noted
from tessera.ops.watching import is_captured, is_watched, watched
from tessera.runtime.recording import recording

_MOST_KINDS = 64
"""Kinds of gradients of a call's kind that are remembered; with one more, all are forgotten."""


class Views(NamedTuple):
    """Gradients that are views of those of the results.

    Args:
        give: makes them of what was kept and of these.
    """

    give: Give


class Followed:
    """Calls of one kind.

    Args:
        node: makes nodes of PyTorch's graph.
        forward: starts their launches again.
        tensors: stand-ins for those that they are given.
        results: those that they give.
        keep: what PyTorch keeps for them.
        walk: the graph of the op as written.
    """

    def __init__(
        self, node: Any, forward: Repeat, tensors: Sequence[Any], results: Sequence[Any], keep: Keep, walk: Walk
    ) -> None:
        self.forward, self.saved, self.results = forward, keep.saved, len(results)
        self.fixed = [at for at, one in enumerate(results) if not one.requires_grad and one.is_floating_point()]
        self._node, self._walk, self._sources = node, walk, keep.sources
        self._device = tensors[0].device
        self._inputs = [(tuple(one.shape), one.dtype, one.requires_grad) for one in tensors]
        self._kept = [(tensors[at].shape, tensors[at].stride()) for at in keep.saved if at < len(tensors)]
        order = list(dict.fromkeys((*walk.order, *range(len(tensors)))))
        self._order = None if order == sorted(order) else order
        """The order in which tensors get gradients: where one is given twice, these are added up in it."""
        self._known: dict[Any, Repeat | Views | Literal["once", "never"]] = {}

    def called(self, given: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """Return what a call gives.

        Args:
            given: the tensors that it was given.
            tensors: these, its results, then what else may be kept.
        """
        found = self._node(self, tensors, *(given if self._order is None else [given[at] for at in self._order]))
        return self.forward.give([*given, *(found if isinstance(found, tuple) else (found,))])

    def gradients(self, saved: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the tensors that a call was given, in the order of its node's arguments.

        Args:
            saved: what PyTorch kept.
            grads: gradients of the results, None where nothing depends on one.
        """
        torch: Any = sys.modules["torch"]
        tensors, pointers = list[Any](saved), list[int]()
        key = self._kind(torch, tensors, pointers, grads)
        found = self._known.get(key)
        if isinstance(found, Repeat) and found.take():
            made = found.give(found(tensors, pointers))
        elif isinstance(found, Views):
            made = found.give(tensors)
        elif found == "once" and not is_captured(torch, tensors[0]):
            self._known[key] = "never"
            made, self._known[key] = self._recorded(tensors, pointers, len(saved), grads)
        else:
            made = self._written(saved, grads)
            if found is None and key is not None:
                if len(self._known) >= _MOST_KINDS:
                    self._known.clear()
                self._known[key] = "once"
        return made if self._order is None else [made[at] for at in self._order]

    def _kind(self, torch: Any, tensors: list[Any], pointers: list[int], grads: Sequence[Any]) -> Any:
        """Return what tells gradients that are computed in different ways, None for those of no kind.

        Args:
            torch: PyTorch.
            tensors: what it kept; it takes the gradients that there are.
            pointers: takes their addresses.
            grads: gradients of the results.
        """
        if is_watched(torch):
            return None
        tensor, parameter, follows = torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled()
        parts: list[Any] = [current_profile(), RULES.get()]
        try:
            for one, form in zip(tensors, self._kept, strict=False):
                if one.stride() != form[1] or one.shape != form[0]:  # `tensor.data = …`
                    return None
            for one in grads:
                if one is None:
                    parts.append(None)
                    continue
                if type(one) is not tensor and type(one) is not parameter:
                    return None
                tensors.append(one)
                parts += one.stride(), one.is_neg()
            for one in tensors:
                pointer = one.data_ptr()
                if not pointer or (follows and one.requires_grad):
                    return None
                pointers.append(pointer)
                parts.append(pointer & 15)
        except (RuntimeError, NotImplementedError):  # a tensor without memory
            return None
        if len(set(pointers)) < len(pointers):
            parts.append(tuple(map(pointers.index, pointers)))
        return tuple(parts)

    def _written(self, saved: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return gradients as the op as written computes them."""
        return self._walk([source.among(saved, self._device) for source in self._sources], grads)

    def _recorded(
        self, tensors: Sequence[Any], pointers: Sequence[int], count: int, grads: Sequence[Any]
    ) -> tuple[Sequence[Any], Repeat | Views | Literal["never"]]:
        """Return gradients, and what computes others of their kind."""
        with recording(ranges(tensors, pointers)) as recorder, watched(tensors[0], recorder):
            made = self._written(tensors[:count], grads)
            results = Results(tensors, recorder, [at >= count for at in range(len(tensors))])
            give = giver(tuple(made), results)
        fits = all(
            one is None or (tuple(one.shape), one.dtype) == (shape, dtype)
            for one, (shape, dtype, _needs) in zip(made, self._inputs, strict=True)
        )
        if give is None or not fits or recorder.refused or recorder.changes:
            return made, "never"
        if not recorder.launches:
            return made, "never" if results.leaves else Views(give)
        return made, repeat_of(recorder, results, tensors[0], give, None) or "never"


def followed(
    run: Callable[[Sequence[Any]], Any], name: str, tensors: Sequence[Any], pointers: Sequence[int]
) -> tuple[Any, Followed | Repeat] | None:
    """Run a call whose gradients may be wanted on stand-ins; return what it gives, and what serves others of its kind.

    None where the call has to run as it is written.

    Args:
        run: runs it on other tensors, and says what it ran.
        name: the op's.
        tensors: those that it is given.
        pointers: their addresses.
    """
    stand_ins = [one.detach().requires_grad_(one.requires_grad) for one in tensors]
    with noted() as values, recording(ranges(stand_ins, pointers)) as recorder, watched(tensors[0], recorder):
        result, explained = run(stand_ins)
        results = Results(stand_ins, recorder)
        give = giver(result, results)
        if give is None or recorder.refused or recorder.changes or not recorder.launches:
            return None
        leaves = results.leaves
        keep, walk = Keep(values, stand_ins, leaves, recorder), Walk(leaves, stand_ins)
    if recorder.refused or not keep.is_whole or not walk.is_whole:
        return None
    for one, of in zip(keep.made, keep.owners, strict=True):
        results.own(one, of)
    forward = repeat_of(recorder, results, tensors[0], give, explained)
    if forward is None:
        return None
    whole = [*tensors, *(one.detach() for one in (*leaves, *keep.made))]
    if not any(one.requires_grad for one in leaves):
        return give(whole), forward
    kind = Followed(_node_of(f"tessera_{name}"), forward, stand_ins, leaves, keep, walk)
    for one in stand_ins:
        one.data = one.new_empty(0)  # the graph holds them
    return kind.called(tensors, whole), kind


def lost(result: Any, tensors: Sequence[Any]) -> list[int]:
    """Return which tensors of a call need gradients that its results do not give, though they could.

    Args:
        result: what it gave.
        tensors: those that it was given.
    """
    torch: Any = sys.modules["torch"]
    leaves = [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    found = {id(one) for one in leaves}
    if not any(one.is_floating_point() for one in leaves):
        return []
    ends = {one.grad_fn for one in tensors if one.grad_fn is not None}
    seen: set[Any] = set()
    todo = [(one.grad_fn, one.output_nr) for one in leaves if one.grad_fn is not None]
    while todo:
        node, number = todo.pop()
        found |= {id(one) for one in tensors if one.grad_fn is node and one.output_nr == number}
        if node not in seen and node not in ends:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            todo += [edge for edge in node.next_functions if edge[0] is not None]
    return [at for at, one in enumerate(tensors) if one.requires_grad and id(one) not in found]


@cache
def _node_of(name: str) -> Any:
    """Return what makes nodes of PyTorch's graph for calls of an op: `(kind, tensors, *arguments)`.

    Args:
        name: its name there.
    """
    torch: Any = sys.modules["torch"]
    base: Any = torch.autograd.Function

    def forward(ctx: Any, kind: Followed, tensors: Sequence[Any], *arguments: Any) -> Any:
        ctx.kind = kind
        ctx.set_materialize_grads(False)
        if kind.saved:
            ctx.save_for_backward(*[tensors[at] for at in kind.saved])
        first = len(arguments)
        if kind.fixed:
            ctx.mark_non_differentiable(*[tensors[first + at] for at in kind.fixed])
        return tensors[first] if kind.results == 1 else tuple(tensors[first : first + kind.results])

    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.kind.gradients(ctx.saved_tensors, grads)

    made: Any = type(name, (base,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    made._backward_cls.apply = backward  # without PyTorch's own function between
    quick = getattr(torch._C._FunctionBase, "__dict__", {}).get("apply")
    return made.apply if quick is None else quick.__get__(None, made)
