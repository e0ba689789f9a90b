"""Parameters of one kind that optimizers change by one launch: each program takes some elements of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import tessera as ts
from tessera.data import dataclass
from tessera.frontend.structure import ConstantField, Layout, ScalarField, Structure, TensorField
from tessera.numerics.dtypes import DType, f64
from tessera.ops import arrays, rows
from tessera.ops.annotations import Constant
from tessera.ops.optim import lists
from tessera.ops.optim.kernels import adamw_of, lion_of, sgd_of

PARAMETERS = 8
"""That a launch changes: the code of each is its own."""
MULTIPLE = 16
"""They have a multiple of so many elements, and lie at multiples of so many bytes: there is one code for all."""

W = ts.dtype_var("W", ts.f32, ts.f64)
C = ts.dims("C")

Group = tuple[Any, ...]
"""A parameter, its gradient and its states."""


class Together(Structure):
    """Parameters with gradients and states, and the numbers of a step."""

    __slots__ = ()
    HELP = "pass what `together` makes"


@ts.function
def adamw_part(place: Any, n: Any, step: Any, scale: Any, table: Any, acc: Any, BN: Any):
    """Take a step of AdamW for `BN` elements of a parameter, from `n` on."""
    by = step.divisor, step.keep, step.of_mean, step.of_square, step.size, step.root, step.eps
    means = place.mean[n : n + BN], place.square[n : n + BN]
    p, first, second = adamw_of(place.param[n : n + BN], place.grad[n : n + BN], means, scale, table, by, acc)
    place.param[n : n + BN] = p
    place.mean[n : n + BN] = first
    place.square[n : n + BN] = second


@ts.function
def lion_part(place: Any, n: Any, step: Any, scale: Any, table: Any, acc: Any, BN: Any):
    """Take a step of Lion for `BN` elements of a parameter, from `n` on."""
    by = step.divisor, step.keep, step.of_step, step.of_mean, step.rate
    mean = place.mean[n : n + BN]
    p, first = lion_of(place.param[n : n + BN], place.grad[n : n + BN], mean, scale, table, by, acc)
    place.param[n : n + BN] = p
    place.mean[n : n + BN] = first


@ts.function
def sgd_part(place: Any, n: Any, step: Any, scale: Any, table: Any, acc: Any, BN: Any):
    """Take a step of gradient descent for `BN` elements of a parameter, from `n` on."""
    by = step.divisor, step.decay, step.momentum, step.fresh, step.rate, step.kept
    before = place.buffer[n : n + BN] if step.keeps else None
    old, grad = place.param[n : n + BN], place.grad[n : n + BN]
    p, b = sgd_of(old, grad, before, scale, table, by, step.nesterov, step.is_first, acc)
    if step.keeps:
        place.buffer[n : n + BN] = b
    place.param[n : n + BN] = p


@ts.function
def whole(step: Any):
    """Stand for a call of all parameters, which no kernel makes."""


@ts.function
def blocks_of(step: Any, BN: Any) -> Any:
    """Return in how many parts programs take all parameters."""
    blocks = 0
    for place in step.places:
        blocks = blocks + ts.cdiv(place.param.shape[0], BN)
    return blocks


@ts.function
def change_part(step: Any, m: Any, scale: Any, table: Any, acc: Any, BN: Any):
    """Take a step for a part of the parameter that it belongs to."""
    first = m * 0
    for place in step.places:
        own = ts.cdiv(place.param.shape[0], BN)
        if (m >= first) & (m < first + own):
            place((m - first) * BN, step, scale, table, acc, BN)
        first = first + own


@ts.kernel
def change(
    step: Together[()],
    scale: ts.Tensor[1, W] | None,
    table: ts.Tensor[C, ts.f64] | None,
    acc: Constant,
    BN: Constant = 1024,
):
    """Take a step for all parameters; a table holds its numbers where there is one."""
    for m in ts.tile.grid((blocks_of(step, BN), 1)):
        change_part(step, m, scale, table, acc, BN)


@dataclass(frozen=True)
class Rule:
    """What an optimizer does.

    Args:
        name: its name.
        part: changes some elements of a parameter.
        tensors: names of a parameter, its gradient and its states.
        numbers: names of the numbers of a step.
        constants: what is compiled in, by name.
    """

    name: str
    part: Any
    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    constants: tuple[tuple[str, bool], ...] = ()


@cache
def _layout(rule: Rule, dtypes: tuple[DType, ...], count: int) -> Layout:
    """Return the layout of so many parameters of a launch, whose tensors have these dtypes."""
    fields = tuple((name, TensorField(("n",), dtype)) for name, dtype in zip(rule.tensors, dtypes, strict=True))
    place = Layout.of(rule.name, rule.part, (), fields)
    known = tuple((name, ConstantField(value)) for name, value in rule.constants)
    numbers = tuple((name, ScalarField(f64)) for name in rule.numbers)
    return Layout.of(rule.name, whole, (), (("places", (place,) * count), *numbers, *known))


ADAMW = Rule(
    "adamw",
    adamw_part,
    ("param", "grad", "mean", "square"),
    ("divisor", "keep", "of_mean", "of_square", "size", "root", "eps"),
)
LION = Rule("lion", lion_part, ("param", "grad", "mean"), ("divisor", "keep", "of_step", "of_mean", "rate"))


def sgd(keeps: bool, nesterov: bool, is_first: bool) -> Rule:
    """Return the rule of gradient descent.

    Args:
        keeps: whether there are buffers.
        nesterov: whether steps look ahead.
        is_first: whether buffers hold nothing yet.
    """
    tensors = ("param", "grad", "buffer") if keeps else ("param", "grad")
    numbers = ("divisor", "decay", "momentum", "fresh", "rate", "kept")
    return Rule("sgd", sgd_part, tensors, numbers, (("keeps", keeps), ("nesterov", nesterov), ("is_first", is_first)))


def changed(rule: Rule, groups: Sequence[Group], numbers: Sequence[float], scale: Any, table: Any) -> list[Group]:
    """Change parameters of a GPU by as few launches as there are, and return the others in rows of their memory.

    A launch costs a CPU less than the time in which its code is compiled.

    Args:
        rule: what the optimizer does.
        groups: parameters with gradients and states.
        numbers: the numbers of the step.
        scale: what gradients are divided by in memory, or None.
        table: the numbers in memory, or None.

    Raises:
        CallError: `not-contiguous`, before anything has changed.
    """
    if len(groups) < PARAMETERS or not rows.is_simt(groups[0][0]):
        return lists.in_memory(groups)
    launches, rest = _launches(groups)
    left = lists.in_memory(rest)
    for tensors in launches:
        dtypes = tuple(map(arrays.dtype_of, tensors[: len(rule.tensors)]))
        layout = _layout(rule, dtypes, PARAMETERS)
        change(Together(layout, (*tensors, *numbers)), scale, table, acc=rows.accumulator(dtypes[0]))
    return left


def _launches(groups: Sequence[Group]) -> tuple[list[list[Any]], list[Group]]:
    """Return the tensors of each launch, in one dimension, and the groups that none changes."""
    rest, alike = list[Group](), dict[Any, list[Group]]()
    for group in groups:
        kind = _kind(group)
        (rest if kind is None else alike.setdefault(kind, [])).append(group)
    launches = list[list[Any]]()
    for found in alike.values():
        for start in range(0, len(found), PARAMETERS):
            some = found[start : start + PARAMETERS]
            tensors = [one for group in some for one in group]
            if len(some) == PARAMETERS and _are_apart(tensors):
                launches.append([_flat(one) for one in tensors])
            else:
                rest += some
    return launches, rest


def _kind(group: Group) -> Any:
    """Return what parameters of one launch have in common, None for one that has its own."""
    if not lists.are_tensors(group) or not all([one.is_contiguous() for one in group]):
        return None
    count = group[0].numel()
    if not count or count % MULTIPLE or any([one.data_ptr() % MULTIPLE for one in group]):
        return None
    return (*[one.dtype for one in group], group[0].device)


def _flat(tensor: Any) -> Any:
    plain = tensor.detach() if tensor.requires_grad else tensor
    return plain if plain.dim() == 1 else plain.view(-1)


def _are_apart(tensors: Sequence[Any]) -> bool:
    """Return whether no two arrays share memory: programs of a launch take no turns."""
    spans = sorted([(start := one.data_ptr(), start + one.nbytes) for one in tensors])
    return all([end <= start for (_, end), (start, _) in pairwise(spans)])
