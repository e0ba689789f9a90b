"""Dropout with Philox, a counter-based generator: an element's fate depends on the seed and its number alone.

The same seed gives the same mask on every backend, whatever the grid, and a backward pass can make it again.
"""

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@ts.kernel
def dropout(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], p: ts.f32, seed: ts.i64) -> ts.Tensor["n", ts.f32]:
    """Zero each element with probability p and scale the others by 1 / (1 - p)."""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = ts.tile.dropout(x[i], p, seed, i)
    return y


def philox(seed: int, counters: np.ndarray) -> np.ndarray:
    """Return the first word of Philox4x32-10 for each counter (Salmon et al., SC 2011)."""
    low = np.uint64(0xFFFFFFFF)
    c = [counters & low, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high = np.uint64(32)
        c = [
            (second >> high) ^ c[1] ^ np.uint64(key[0]),
            second & low,
            (first >> high) ^ c[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def reference(x: np.ndarray, p: float, seed: int) -> np.ndarray:
    """Return the result in float64; the uniform number is the upper 24 bits of the Philox word."""
    uniform = (philox(seed, np.arange(x.size, dtype=np.uint64)) >> np.uint64(8)) * 2.0**-24
    return np.where(uniform >= np.float32(p), x / (1 - np.float32(p).astype(np.float64)), 0.0)


def case(place: Place, n: int = 100_003, p: float = 0.1, seed: int = 2**40 + 7) -> Case:
    """Return a call and its expected result."""
    x, y = place.normal(n, dtype=ts.f32), place.empty(n, dtype=ts.f32)
    return Case(f"dropout {n}", place, lambda: dropout(x, y, p, seed), reference(host(x), p, seed), TOLERANCE["f32"])


def statistics(place: Place) -> int:
    """Check the share of kept elements; that a seed repeats its mask and another one does not."""
    n, p = 1_000_000, 0.3
    ones = place.array(np.ones(n, np.float32), ts.f32)
    masks = [host(dropout(ones, place.empty(n, dtype=ts.f32), p, seed)) > 0 for seed in (1, 1, 2)]
    share, deviation = masks[0].mean(), np.sqrt(p * (1 - p) / n)
    same, other = np.array_equal(masks[0], masks[1]), np.array_equal(masks[0], masks[2])
    print(
        f"kept {share:.4f} (expected {1 - p:.4f} ± {deviation:.4f}); "
        f"same seed, same mask: {same}; other seed, other mask: {not other}"
    )
    return 0 if abs(share - (1 - p)) < 5 * deviation and same and not other else 1


if __name__ == "__main__":
    raise SystemExit(main(case) or statistics(Place()))
