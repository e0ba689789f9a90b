"""More activations of neural networks (`relu`, `silu`, `gelu`, `sigmoid` and `softplus` are above).

They are computed in f32 at least and rounded once. Infinities give what the formula gives: `mish(-inf)` is NaN.
"""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["elu", "geglu", "hardsigmoid", "hardswish", "leaky_relu", "mish", "selu", "swiglu"]


@tile_function
def mish(x: TileLike) -> Tile:
    """Return `x tanh(log(1 + exp(x)))`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.

    Source:
        Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """
    ...


@tile_function
def elu(x: TileLike, alpha: TileLike = 1.0) -> Tile:
    """Return `x` above 0, else `alpha (exp(x) - 1)`.

    Args:
        x: tile or scalar.
        alpha: how far below 0 it goes: a number, or a tile that broadcasts.

    Returns:
        Float tile of the same shape.

    Source:
        Clevert, Unterthiner and Hochreiter, "Fast and accurate deep network learning by ELUs", 2015.
    """
    ...


@tile_function
def selu(x: TileLike) -> Tile:
    """Return `1.0507… x` above 0, else `1.7580… (exp(x) - 1)`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.

    Source:
        Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017.
    """
    ...


@tile_function
def leaky_relu(x: TileLike, slope: TileLike = 0.01) -> Tile:
    """Return `x` above 0, else `slope x`.

    Args:
        x: tile or scalar.
        slope: a number, or a tile that broadcasts.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def hardsigmoid(x: TileLike) -> Tile:
    """Return `clamp(x + 3, 0, 6) / 6`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def hardswish(x: TileLike) -> Tile:
    """Return `x clamp(x + 3, 0, 6) / 6`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.

    Source:
        Howard et al., "Searching for MobileNetV3", 2019.
    """
    ...


@tile_function
def swiglu(gate: TileLike, x: TileLike) -> Tile:
    """Return `silu(gate) * x`.

    Args:
        gate: tile or scalar.
        x: tile that broadcasts with it.

    Returns:
        Float tile of the broadcast shape.

    Source:
        Shazeer, "GLU variants improve transformer", 2020.
    """
    ...


@tile_function
def geglu(gate: TileLike, x: TileLike, approximate: bool = False) -> Tile:
    """Return `gelu(gate) * x`.

    Args:
        gate: tile or scalar.
        x: tile that broadcasts with it.
        approximate: as for `gelu`.

    Returns:
        Float tile of the broadcast shape.

    Source:
        Shazeer, "GLU variants improve transformer", 2020.
    """
    ...
