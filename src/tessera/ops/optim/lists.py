"""Trees of arrays that optimizers change: what is asked of them, and each array as rows of one memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from numbers import Real
from typing import Any, cast

import numpy as np

from tessera.errors import LanguageError, caller_location
from tessera.numerics.dtypes import f64
from tessera.ops import arrays, rows
from tessera.ops.optim import again
from tessera.ops.refusals import refused
from tessera.ops.steps import check_not_traced, written
from tessera.ops.traced import Traced, traced_among

Tree = Sequence[Any] | dict[Any, Any]
"""Arrays in lists, tuples and dictionaries."""
_TREES = (list, tuple, dict)
_SEEDS = 2**64


def leaves(**trees: Any) -> dict[str, list[Any]]:
    """Return the arrays of trees, those of one place of the first tree at one place of each list.

    Args:
        **trees: lists, tuples and dictionaries of arrays, or of such.

    Raises:
        CallError: `bad-argument` for what is no tree, or is nested otherwise than the first.
    """
    if all([_is_flat(tree) for tree in trees.values()]) and len({len(tree) for tree in trees.values()}) == 1:
        return {name: [*tree] for name, tree in trees.items()}
    found: dict[str, list[Any]] = {}
    first: dict[Any, Any] = {}
    for name, tree in trees.items():
        if not isinstance(tree, list | tuple | dict):
            raise refused(f"{name} is {tree!r:.60}", "bad-argument", "it takes a list, or a dictionary, of arrays")
        own = _own(tree)
        first = first or own
        if own.keys() != first.keys():
            what = f"{len(own)} arrays" if len(own) != len(first) else "nested otherwise"
            raise refused(f"{name} are {what}, {next(iter(trees))} {len(first)}", "bad-argument", _ONE_EACH)
        found[name] = [own[path] for path in first]
    return found


def _own(tree: Any) -> dict[Any, Any]:
    """Return the arrays of a tree by where they are."""
    if _is_flat(tree):
        return {(at,): one for at, one in enumerate(tree)}
    return dict(_walk(tree, ()))


def _is_flat(tree: Any) -> bool:
    """Return whether a tree is a list, or a tuple, of arrays."""
    if not isinstance(tree, list | tuple):
        return False
    kinds = {*map(type, cast("Sequence[Any]", tree))}
    return not any([issubclass(kind, _TREES) for kind in kinds])


_ONE_EACH = "give one for each parameter"


def _walk(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield the arrays of a tree, each with where it is."""
    if not isinstance(tree, list | tuple | dict):
        yield path, tree
        return
    given = cast(Any, tree)
    for key, part in given.items() if isinstance(tree, dict) else enumerate(given):
        yield from _walk(part, (*path, key))


def check_lists(lists: dict[str, list[Any]], states: Sequence[str], state_dtypes: Sequence[str]) -> None:
    """Check lists of arrays: of one shape by places, and of dtypes that kernels take.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    kinds = {name: state_dtypes if name in states else rows.FLOATS for name in lists}
    allowed = [frozenset(map(_torch_dtype, some)) for some in kinds.values()]
    for group in zip(*lists.values(), strict=True):
        if are_tensors(group):
            size = group[0].shape
            if all([one.shape == size and one.dtype in some for one, some in zip(group, allowed, strict=True)]):
                continue
        shape = arrays.shape_of(group[0], "params")
        for (name, taken), one in zip(kinds.items(), group, strict=True):
            rows.same_shape(one, name, shape)
            dtype = rows.float_dtype(one, name)
            if dtype.name not in taken:
                raise refused(f"{name} have the dtype {dtype}", "wrong-dtype", f"they take {', '.join(taken)}")


def are_tensors(group: Sequence[Any]) -> bool:
    """Return whether arrays are PyTorch's own tensors, whose fields say at once what is asked of the others."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    own = (torch.Tensor, torch.nn.Parameter)
    return all([type(one) in own for one in group])


def _torch_dtype(name: str) -> Any:
    """Return PyTorch's dtype of a name, None where PyTorch is not loaded."""
    return arrays.torch_dtypes()[name] if "torch" in sys.modules else None


def asked(
    kind: tuple[Any, ...], given: dict[str, list[Any]], grad_scale: Any, stochastic_rounding: bool
) -> again.Asked | None:
    """Return a step that may be like an earlier one, None for one that needs more than its arrays and numbers.

    Args:
        kind: the optimizer and its options.
        given: its arrays.
        grad_scale: what gradients are divided by.
        stochastic_rounding: whether it rounds at random.
    """
    if stochastic_rounding or not (grad_scale is None or isinstance(grad_scale, Real)):
        return None
    return again.asked(kind, given)


Launch = Callable[[dict[str, list[Any]], Any], None]
"""Changes the arrays of lists, but for `grads`, by numbers of a table, or by known ones where there is none."""


def change(
    name: str,
    given: dict[str, list[Any]],
    numbers: Sequence[Any],
    launch: Launch,
    known: bool = True,
    step: again.Asked | None = None,
) -> None:
    """Change arrays now, or, where they are those of a traced function, each time that it runs.

    Args:
        name: what changes them.
        given: the arrays.
        numbers: what a table holds; traced ones differ from run to run.
        launch: changes them.
        known: whether `launch` needs nothing that differs from run to run but those numbers.
        step: the step, where one like it may be known.

    Raises:
        LanguageError: `not-in-graphs`.
    """
    traced = None if step is not None else traced_among([one for some in given.values() for one in some])
    if traced is None:
        check_not_traced()
        again.run(step, given, numbers, launch)
        written(*(one for name, some in given.items() if name != "grads" for one in some))
        return
    if not known:
        raise LanguageError(
            f"{name} rounds at random, by numbers that are drawn outside of ts.jit in each step",
            code="not-in-graphs",
            location=caller_location(),
            help="leave stochastic_rounding away, or call it outside",
        )
    zero: Any = traced.filled((), f64)
    table = np.stack([zero + number for number in numbers])
    count = len(given["grads"])
    names = [name for name in given if name != "grads"]

    def run(changed: Sequence[Any], read: Sequence[Any]) -> Sequence[Any]:
        lists = {name: [*changed[at * count : (at + 1) * count]] for at, name in enumerate(names)}
        grads = [rows.contiguous(one) for one in read[:-1]]
        launch({name: lists.get(name, grads) for name in given}, read[-1])
        written(*changed)
        return ()

    traced.change(name, run, [one for name in names for one in given[name]], [*given["grads"], table], ())


def in_memory(groups: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return groups of arrays as rows over the same memory; those without elements are left out.

    Raises:
        CallError: `not-contiguous` where strides give no rows.
    """
    found = list[tuple[Any, ...]]()
    for group in groups:
        if are_tensors(group) and all([one.is_contiguous() for one in group]):
            if group[0].numel():
                found.append(tuple([(one.detach() if one.requires_grad else one).view(1, -1) for one in group]))
            continue
        shape = arrays.shape_of(group[0], "params")
        if not prod(shape):
            continue
        plain = [one.detach() if arrays.is_torch(one) else one for one in group]
        are_flat = all(_is_contiguous(one) for one in plain)
        made = [one.reshape(1, -1) if are_flat else rows.out_rows(one, 1) if shape else None for one in plain]
        if any(one is None for one in made):
            raise refused(
                f"arrays of the shape {tuple(shape)} lie in memory with gaps",
                "not-contiguous",
                "their dimensions but the last have to be one by their strides",
            )
        found.append(tuple(made))
    return found


def _is_contiguous(array: Any) -> bool:
    found = arrays.view(array, "params")
    step = 1
    for extent, stride in zip(reversed(found.shape), reversed(found.strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def scale_of(grad_scale: Any) -> tuple[Any, Any]:
    """Return what gradients are divided by as an array of one element, or None and a number, which may be traced.

    Raises:
        CallError: `bad-argument`, `wrong-shape` or `wrong-dtype`.
    """
    if grad_scale is None:
        return None, 1.0
    if isinstance(grad_scale, Real):
        if not grad_scale:
            raise refused("grad_scale is 0", "bad-argument", "gradients are divided by it")
        return None, float(grad_scale)
    if not hasattr(grad_scale, "shape"):
        return None, grad_scale
    if prod(arrays.shape_of(grad_scale, "grad_scale")) != 1:
        raise refused("grad_scale is not one element", "wrong-shape", "it is a number or an array of one element")
    if arrays.dtype_of(grad_scale, "grad_scale").name not in ("f32", "f64"):
        raise refused("grad_scale is neither f32 nor f64", "wrong-dtype", "convert it")
    if isinstance(grad_scale, Traced):
        return None, cast(Any, grad_scale).reshape(())
    return rows.vector(grad_scale.detach() if arrays.is_torch(grad_scale) else grad_scale), 1.0


def check_numbers(**limits: tuple[float, float, float]) -> None:
    """Check numbers, each with the least one allowed and the one that all are below; traced ones have no value yet.

    Raises:
        CallError: `bad-argument`.
    """
    for name, (value, least, below) in limits.items():
        if isinstance(value, Real) and not least <= value < below:
            raise refused(f"{name} is {value}", "bad-argument", f"it is at least {least} and below {below}")


def key_of(seed: int, step: int, place: int) -> int:
    """Return a signed 64-bit key that differs by seed, step and place in a list: SplitMix64 of the three."""
    word = 0
    for part in (seed, step, place):
        word = (word + int(part) + 0x9E3779B97F4A7C15) % _SEEDS
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % _SEEDS
        word = (word ^ word >> 27) * 0x94D049BB133111EB % _SEEDS
        word ^= word >> 31
    return (word + _SEEDS // 2) % _SEEDS - _SEEDS // 2


def shortens(stochastic_rounding: bool, *given: Any) -> tuple[bool, ...]:
    """Return which arrays are rounded at random, those of bf16; an empty tuple where none is."""
    if not stochastic_rounding:
        return ()
    found = tuple(one is not None and arrays.dtype_of(one).name == "bf16" for one in given)
    return found if any(found) else ()
