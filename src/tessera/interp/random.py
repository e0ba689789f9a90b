"""Philox4x32-10, the counter-based random number generator.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array
from tessera.ir.tile.random import PhiloxOp

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox4x32(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, ...]:
    """Return four arrays of 32 random bits.

    Args:
        counter: four uint32 arrays of one shape.
        key: two 32-bit words.
    """
    x0, x1, x2, x3 = (np.asarray(word).astype(np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        first, second = _M0 * x0, _M1 * x2
        x0, x2 = (second >> _HALF) ^ x1 ^ np.uint64(k0), (first >> _HALF) ^ x3 ^ np.uint64(k1)
        x1, x3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return tuple(x.astype(np.uint32) for x in (x0, x1, x2, x3))


@handles(PhiloxOp)
def _philox(op: PhiloxOp, machine: Machine) -> Any:
    seed = int(machine.get(op.seed)) & 0xFFFFFFFFFFFFFFFF
    counter: Array = machine.get(op.counter).astype(np.uint64)
    zero = np.zeros_like(counter)
    return philox4x32((counter & _LOW, counter >> _HALF, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))
