"""Lists of arrays that optimizers change: what is asked of them, and each as rows of one memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from numbers import Real
from typing import Any, cast

from tessera.ops import arrays, rows
from tessera.ops.refusals import refused

_SEEDS = 2**64


def check_lists(lists: dict[str, Any], states: Sequence[str], state_dtypes: Sequence[str]) -> None:
    """Check lists of arrays: as many of each, of one shape by places, and of dtypes that kernels take.

    Raises:
        CallError: `bad-argument`, `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    first, count = lists["params"], 0
    for name, some in lists.items():
        if not isinstance(some, list | tuple):
            raise refused(f"{name} is {some!r:.60}", "bad-argument", "it takes a list of arrays")
        found = len(cast("Sequence[Any]", some))
        count = found if name == "params" else count
        if found != count:
            raise refused(f"{name} are {found} arrays, params {count}", "bad-argument", "give one for each parameter")
    for at in range(count):
        shape = arrays.shape_of(first[at], "params")
        for name, some in lists.items():
            rows.same_shape(some[at], name, shape)
            dtype = rows.float_dtype(some[at], name)
            if name in states and dtype.name not in state_dtypes:
                raise refused(f"{name} have the dtype {dtype}", "wrong-dtype", f"they take {', '.join(state_dtypes)}")


def in_memory(lists: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return for each place the arrays of all lists as rows over the same memory; those without elements are left out.

    Raises:
        CallError: `not-contiguous` where strides give no rows.
    """
    found = list[tuple[Any, ...]]()
    for group in zip(*lists.values(), strict=True):
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


def scale_of(grad_scale: Any) -> tuple[Any, float]:
    """Return what gradients are divided by as an array of one element, or None and a number.

    Raises:
        CallError: `bad-argument`, `wrong-shape` or `wrong-dtype`.
    """
    if grad_scale is None:
        return None, 1.0
    if isinstance(grad_scale, Real):
        if not grad_scale:
            raise refused("grad_scale is 0", "bad-argument", "gradients are divided by it")
        return None, float(grad_scale)
    if prod(arrays.shape_of(grad_scale, "grad_scale")) != 1:
        raise refused("grad_scale is not one element", "wrong-shape", "it is a number or an array of one element")
    if arrays.dtype_of(grad_scale, "grad_scale").name not in ("f32", "f64"):
        raise refused("grad_scale is neither f32 nor f64", "wrong-dtype", "convert it")
    return rows.vector(grad_scale.detach() if arrays.is_torch(grad_scale) else grad_scale), 1.0


def check_numbers(**limits: tuple[float, float, float]) -> None:
    """Check numbers, each with the least one allowed and the one that all are below.

    Raises:
        CallError: `bad-argument`.
    """
    for name, (value, least, below) in limits.items():
        if not least <= value < below:
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
    found = tuple(one is not None and arrays.dtype_of(one).name == "bf16" for one in given)
    return found if stochastic_rounding and any(found) else ()
