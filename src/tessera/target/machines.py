"""Numbers of whole machines: how many units they have and how fast these are. Plans and schedules ask them."""

from __future__ import annotations

from dataclasses import field

from tessera.data import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """What one multiprocessor does in a cycle.

    Args:
        products: multiply-adds of the matrix units on 16-bit elements; twice as many on 8 bits, half as many on tf32.
        results: results of 32-bit arithmetic.
        conversions: conversions between types.
        special: results of the special function units.
        barrier: cycles that an arrival at a barrier, or a wait that is over, takes.
        issue: cycles that a warpgroup spends on starting a product.

    Source: CUDA C++ Programming Guide, "Arithmetic Instructions" (results per cycle of a multiprocessor); matrix units
    from the dense peak of an H200 (989 TFLOP/s in 16-bit types at 1.83 GHz over 132 multiprocessors).
    """

    products: int = 2048
    results: int = 128
    conversions: int = 64
    special: int = 16
    barrier: int = 20
    issue: int = 16


def relative_rate(element_bytes: int) -> float:
    """Return the rate of the matrix units on elements of a size: 1 on 16 bits, twice that on 8, half on tf32."""
    return 2 / min(element_bytes, 4)


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU as large work sees it.

    Args:
        units: multiprocessors.
        flops: dense 16-bit operations per second of one multiprocessor's matrix units, as large products reach it.
        memory: bytes per second of the memory.
        cache: bytes per second of the L2 cache to one multiprocessor.
        launch: seconds of a launch beside its products, as events measure them.
        rates: what one multiprocessor does in a cycle.
    """

    units: int
    flops: float
    memory: float
    cache: float
    launch: float = 5.6e-6
    rates: Rates = field(default_factory=Rates)


MIDDLING = Machine(108, 2.3e12, 1.6e12, 45e9)
"""Assumed of GPUs that are not listed: an A100's size and speed."""
