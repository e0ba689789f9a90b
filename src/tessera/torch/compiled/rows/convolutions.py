"""Convolutions whose images lie channels last: ATen computes them, biases are added and summed up in kernels."""

from __future__ import annotations

from typing import Any

from tessera.ir.graph.types import ONE
from tessera.numerics.dtypes import computed_in
from tessera.torch.compiled.convert import Converter, Turned
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown


def _last(c: Converter, x: Any) -> tuple[int, ...]:
    """Return the order of an image's dimensions with its channels last."""
    if not c.lies_last(x):
        raise Unknown("images that lie with their channels first")
    return (0, *range(2, len(c.dims(x))), 1)


@row("convolution.default")
def _convolution(c: Converter, x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    image, matrix, number, *rest = c.node.args
    order = _last(c, x)
    found = c.left_as_it_is((Turned(image, order), matrix, None, *rest), {}, c.node.meta["val"], order)
    if number is None:
        return found
    wide = c.w.reshape(bias, [*c.dims(bias), *[ONE] * (len(order) - 2)])
    return c.w.apply("add", found, wide)


@row("convolution_backward.default")
def _convolution_backward(c: Converter, g: Any, x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    gradient, image, matrix, sizes, *rest, (by_image, by_weight, by_bias) = c.node.args
    order = _last(c, x)
    found: list[Any] = [None, None, None]
    if by_image or by_weight:
        args = Turned(gradient, order), Turned(image, order), matrix, sizes, *rest, [by_image, by_weight, False]
        found[:2] = c.left_as_it_is(args, {}, (*c.node.meta["val"][:2], None), order)[:2]
    if by_bias:
        wide = c.w.cast(g, computed_in(c.w_dtype(g)))
        found[2] = c.w.reduce("sum", wide, [axis for axis in range(len(order)) if axis != 1])
    return found
