"""Compiles activations: their formulas are in `frontend/library/activations.py`."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.calls import inline
from tessera.frontend.convert import apply
from tessera.frontend.function import DeviceFunction
from tessera.frontend.library import activations
from tessera.frontend.ops.math import float_value, gelu, rounded, silu, widened
from tessera.frontend.registry import compiles


def _inlined(b: Builder, function: DeviceFunction[..., Any], x: Any, *more: Any) -> Any:
    """Inline a formula, computed in f32 at least and rounded once."""
    value = float_value(b, x, function.function.__name__)
    return rounded(b, inline(b, function.function, [widened(b, value), *more], {}), value)


@compiles(tile.mish)
def _mish(b: Builder, x: Any) -> Any:
    return _inlined(b, activations.mish, x)


@compiles(tile.elu)
def _elu(b: Builder, x: Any, alpha: Any) -> Any:
    return _inlined(b, activations.elu, x, alpha)


@compiles(tile.selu)
def _selu(b: Builder, x: Any) -> Any:
    return _inlined(b, activations.selu, x)


@compiles(tile.leaky_relu)
def _leaky_relu(b: Builder, x: Any, slope: Any) -> Any:
    return _inlined(b, activations.leaky_relu, x, slope)


@compiles(tile.hardsigmoid)
def _hardsigmoid(b: Builder, x: Any) -> Any:
    return _inlined(b, activations.hardsigmoid, x)


@compiles(tile.hardswish)
def _hardswish(b: Builder, x: Any) -> Any:
    return _inlined(b, activations.hardswish, x)


@compiles(tile.swiglu)
def _swiglu(b: Builder, gate: Any, x: Any) -> Any:
    return apply(b, "mul", silu(b, gate), x, what="swiglu")


@compiles(tile.geglu)
def _geglu(b: Builder, gate: Any, x: Any, approximate: Any) -> Any:
    return apply(b, "mul", gelu(b, gate, approximate), x, what="geglu")
