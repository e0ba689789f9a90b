"""Control flow: loops, branches on scalars, predication by tiles, helpers, several grids, Philox."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT, Tolerance, of_rounding, of_sum
from tessera.runtime.arrays import to_numpy
from tests.conformance.data import normal
from tests.conformance.harness import BACKENDS, Case, Close, Output, Updated, check, conformance, dtype


def predicated(
    x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.i32], w: ts.Tensor["n", ts.f32]
):
    i = ts.tile.linear_id()
    kind = 0
    best = -1.0
    if i < n:
        v = x[i]
        if v > 1:
            y[i] = v
            kind = 1
        elif v < -1:
            y[i] = -v
            kind = 2
            if i % 2 == 0:
                best = v * 2
                kind += 10
        else:
            w[i] = v
        z[i] = kind
        if (v > 0) & (i > 3):
            w[i] = best


def _predicated(x: Any, y: Any, z: Any, w: Any) -> tuple[Any, ...]:
    i = np.arange(len(x))
    high, low = x > 1, x < -1
    y[high], y[low] = x[high], -x[low]
    middle = ~high & ~low
    w[middle] = x[middle]
    best = np.where(low & (i % 2 == 0), 2 * x, np.float32(-1))
    late = (x > 0) & (i > 3)
    w[late] = best[late]
    return y, np.where(high, 1, np.where(low, np.where(i % 2 == 0, 12, 2), 0)), w


@conformance(
    [
        Case(
            f"predicated-{n}",
            predicated,
            lambda rng, n=n: [
                normal(rng, (n,), ts.f32, 2.0),
                Output((n,), ts.f32),
                Output((n,), ts.i32),
                Output((n,), ts.f32),
            ],
            _predicated,
        )
        for n in (1, 33, 1024, 2500)
    ]
)
def test_branches_on_tiles(case, backend):
    check(case, backend)


def masked(
    x: ts.Tensor["m", "n", ts.f32],
    keep: ts.Tensor["n", ts.bool_],
    y: ts.Tensor["m", "n", ts.f32],
    s: ts.Tensor["m", ts.f32],
):
    for i, j in ts.tile.grid((m, 5), (n, 24)):
        rows = i + ts.tile.arange(5)[:, None]
        columns = j + ts.tile.arange(24)[None, :]
        v = x[i : i + 5, j : j + 24]
        if rows >= columns:
            y[i : i + 5, j : j + 24] = v
        else:
            if keep[j : j + 24]:
                y[i : i + 5, j : j + 24] = -v
    for i in ts.tile.grid((m, 5)):
        total = ts.tile.zeros((5,), ts.f32)
        for j in ts.tile.range(0, n, 24):
            below = j + ts.tile.arange(24)[None, :] <= i + ts.tile.arange(5)[:, None]
            total += ts.tile.row_sum(ts.tile.where(below, x[i : i + 5, j : j + 24], 0.0))
        s[i : i + 5] = total


def _masked(x: Any, keep: Any, y: Any, s: Any) -> tuple[Any, Any]:
    below = np.arange(x.shape[0])[:, None] >= np.arange(x.shape[1])
    y[below] = x[below]
    other = ~below & keep
    y[other] = -x[other]
    wide = np.where(below, x, 0).astype(np.float64)
    return y, Close(wide.sum(1), np.abs(wide).sum(1))


@conformance(
    [
        Case(
            f"masked-{m}x{n}",
            masked,
            lambda rng, m=m, n=n: [
                normal(rng, (m, n), ts.f32),
                normal(rng, (n,), ts.bool_),
                Output((m, n), ts.f32),
                Output((m,), ts.f32),
            ],
            _masked,
            [EXACT, of_sum(ts.f32, n)],
        )
        for m, n in ((17, 50), (5, 24), (40, 7))
    ]
)
def test_branches_on_tiles_of_two_dimensions(case, backend):
    check(case, backend)


def branches(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], mode: int, scale: ts.f32):
    for i in ts.tile.grid((n, 16)):
        v = x[i : i + 16]
        factor = scale
        if mode == 0:
            v = v * 2
        elif mode == 1 and i > 0:
            v = -v
            factor = 3.0
        else:
            if i % 32 == 0:
                v = v + 1
            y[i : i + 16] = 7.0
        if mode < 2 or i == 16:
            y[i : i + 16] = v * factor


def _branches(x: Any, y: Any, mode: int, scale: float) -> Any:
    wide = x.astype(np.float64)
    for i in range(0, len(x), 16):
        part = slice(i, i + 16)
        v, factor = wide[part], np.float64(np.float32(scale))
        if mode == 0:
            v = v * 2
        elif mode == 1 and i > 0:
            v, factor = -v, 3.0
        else:
            v = v + 1 if i % 32 == 0 else v
            y[part] = 7
        if mode < 2 or i == 16:
            y[part] = v * factor
    return y.astype(np.float64)


@conformance(
    [
        Case(
            f"branches-{mode}",
            branches,
            lambda rng, mode=mode: [normal(rng, (70,), ts.f32), Output((70,), ts.f32), mode, 0.3],
            _branches,
            of_rounding(ts.f32, 2),
        )
        for mode in (0, 1, 2)
    ]
)
def test_branches_on_scalars(case, backend):
    check(case, backend)


def loops(
    x: ts.Tensor["m", "n", ts.i32],
    y: ts.Tensor["m", ts.i32],
    z: ts.Tensor[4, ts.i64],
    lo: int,
    hi: int,
    step: int,
):
    for i in ts.tile.grid((m, 4)):
        total, count, last = ts.tile.zeros((4,), ts.i32), 0, x[i : i + 4, 0]
        for j in ts.tile.range(lo, hi, step):
            for k in ts.tile.range(j):
                total += x[i : i + 4, k] * ts.tile.cast(k + 1, ts.i32)
            count += 1
            last = x[i : i + 4, j]
        for s in ts.tile.static_range(3):
            total += last * s
        y[i : i + 4] = total + count
    for _ in ts.tile.grid((1, 1)):
        a, b = 0, 1
        for _ in ts.tile.range(n):
            a, b = b, a + b
        z[0] = a
        value, steps = n + 20, 0
        while value != 1:
            if value % 2 == 0:
                value = value // 2
            else:
                value = 3 * value + 1
            steps += 1
        z[1] = steps
        z[2] = value
        while value > 5:
            value -= 1
        z[3] = value


def _loops(x: Any, y: Any, z: Any, lo: int, hi: int, step: int) -> tuple[Any, Any]:
    m, n = x.shape
    total, count, last = np.zeros(m, np.int64), 0, x[:, 0].astype(np.int64)
    for j in range(lo, hi, step):
        for k in range(j):
            total += x[:, k] * (k + 1)
        count, last = count + 1, x[:, j]
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    value, steps = n + 20, 0
    while value != 1:
        value, steps = value // 2 if value % 2 == 0 else 3 * value + 1, steps + 1
    return (total + last * 3 + count).astype(np.int32), np.array([a, steps, 1, 1])


@conformance(
    [
        Case(
            f"loops-{lo}-{hi}-{step}",
            loops,
            lambda rng, bounds=(lo, hi, step): [
                normal(rng, (7, 9), ts.i32),
                Output((7,), ts.i32),
                Output((4,), ts.i64),
                *bounds,
            ],
            _loops,
        )
        for lo, hi, step in ((0, 9, 1), (1, 9, 3), (5, 5, 1), (7, 2, 1))
    ]
)
def test_loops_carry_tiles_and_scalars(case, backend):
    check(case, backend)


def tile_while(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.i32]):
    """A loop that ends when no element of the tile is left; elements finish at different times."""
    for i in ts.tile.grid((n, 20)):
        v = ts.tile.abs(x[i : i + 20])
        count = ts.tile.zeros((20,), ts.i32)
        rounds = 0
        while ts.tile.any(v > 1.0) and rounds < 50:
            count += (v > 1.0).to(ts.i32)
            v = ts.tile.where(v > 1.0, v * 0.5, v)
            rounds += 1
        y[i : i + 20] = v
        z[i : i + 20] = count


def _tile_while(x: Any, y: Any, z: Any) -> tuple[Any, Any]:
    v, count = np.abs(x), np.zeros(len(x), np.int32)
    while (v > 1).any():
        count += v > 1
        v = np.where(v > 1, v * np.float32(0.5), v)
    return v, count


@conformance(
    [
        Case(
            "tile-while",
            tile_while,
            lambda rng: [normal(rng, (53,), ts.f32, 30.0), Output((53,), ts.f32), Output((53,), ts.i32)],
            _tile_while,
        )
    ]
)
def test_a_loop_until_all_elements_are_done(case, backend):
    check(case, backend)


@ts.function
def swish(x, beta=1.0):
    if beta == 1.0:
        return x * ts.tile.sigmoid(x)
    return x * ts.tile.sigmoid(beta * x)


@ts.function
def store_both(t, u, at, value):
    t[at] = value
    u[at] = -value
    return value + 1, at


def helpers(
    x: ts.Tensor["n", ts.f32],
    y: ts.Tensor["n", ts.f32],
    z: ts.Tensor["n", ts.f32],
    twice: ts.constexpr[bool] = True,
):
    i = ts.tile.linear_id()
    if i < n:
        v = swish(x[i])
        if twice:
            v = swish(v, beta=0.5)
        more, at = store_both(y, z, i, v)
        z[at] = more


def _helpers(x: Any, twice: bool) -> Any:
    wide = x.astype(np.float64)
    v = wide / (1 + np.exp(-wide))
    return v / (1 + np.exp(-0.5 * v)) if twice else v


@conformance(
    [
        Case(
            f"helpers-{twice}",
            helpers,
            lambda rng: [normal(rng, (100,), ts.f32), Output((100,), ts.f32), Output((100,), ts.f32)],
            lambda x, y, z, twice=twice: (_helpers(x, twice), Close(_helpers(x, twice) + 1, 1.0)),
            Tolerance(relative=3e-6, scaled=1e-6),
            dict(twice=twice),
        )
        for twice in (True, False)
    ]
)
def test_helpers_and_constants(case, backend):
    check(case, backend)


def phases(
    x: ts.Tensor["m", "n", ts.f32],
    total: ts.Tensor["m", ts.f32],
    all_: ts.Tensor[1, ts.f32],
    y: ts.Tensor["m", "n", ts.f32],
    power: ts.i32,
):
    half = power * 0.5
    for i in ts.tile.grid((m, 3)):
        total[i : i + 3] = ts.tile.row_sum(ts.tile.abs(x[i : i + 3, :]))
    for _ in ts.tile.grid((1, 1)):
        sum_ = 0.0
        for i in ts.tile.range(0, m, 8):
            sum_ += ts.tile.sum(total[i : i + 8])
        all_[0] = sum_
    for i, j in ts.tile.grid((m, 4), (n, 16)):
        y[i : i + 4, j : j + 16] = x[i : i + 4, j : j + 16] / all_[0] * half + total[i : i + 4][:, None]
    return y


def _phases(x: Any, total: Any, all_: Any, y: Any, power: int) -> tuple[Any, ...]:
    rows = np.abs(x.astype(np.float64)).sum(1)
    return rows, rows.sum(), Close(x / rows.sum() * power / 2 + rows[:, None], rows[:, None])


@conformance(
    [
        Case(
            f"phases-{m}x{n}",
            phases,
            lambda rng, m=m, n=n: [
                normal(rng, (m, n), ts.f32),
                Output((m,), ts.f32),
                Output((1,), ts.f32),
                Output((m, n), ts.f32),
                3,
            ],
            _phases,
            [Tolerance(relative=1e-5), Tolerance(relative=1e-5), Tolerance(relative=1e-5, scaled=1e-5)],
        )
        for m, n in ((10, 33), (3, 16), (1, 1), (25, 100))
    ]
)
def test_grids_run_one_after_the_other(case, backend):
    check(case, backend)


# Loops that are left, helpers that return early


def sums_until(
    x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", ts.i32], at: ts.Tensor["m", ts.i64], limit: int, skipped: int
):
    """Sum columns until all rows of a block are beyond a limit; leave one block and some columns out."""
    for i in ts.tile.grid((m, 4)):
        if i == skipped:
            continue
        total = ts.tile.zeros((4,), ts.i32)
        k = -1
        for k in ts.tile.range(0, n, 3):
            part = x[i : i + 4, k : k + 3]
            if ts.tile.sum(part) % 5 == 0:
                continue
            total += ts.tile.row_sum(part)
            y[i : i + 4] = total
            if ts.tile.all(total > limit):
                break
            at[i : i + 4] = k
        at[i : i + 4] = at[i : i + 4] + 100 * k


def _sums_until(x: Any, y: Any, at: Any, limit: int, skipped: int) -> tuple[Any, Any]:
    m, n = x.shape
    for i in range(0, m, 4):
        rows = slice(i, i + 4)
        if i == skipped:
            continue
        total, k = np.zeros(4, np.int32), -1
        padded = np.zeros((4, n + 3), np.int32)
        padded[: len(x[rows]), :n] = x[rows]
        for k in range(0, n, 3):
            part = padded[:, k : k + 3]
            if part.sum() % 5 == 0:
                continue
            total += part.sum(1)
            y[rows] = total[: len(y[rows])]
            if (total > limit).all():
                break
            at[rows] = k
        at[rows] += 100 * k
    return y, at


@conformance(
    [
        Case(
            f"sums-until-{limit}-{skipped}",
            sums_until,
            lambda rng, numbers=(limit, skipped): [
                rng.integers(0, 9, (12, 25)).astype(np.int32),
                Output((12,), ts.i32),
                Updated(np.arange(12)),
                *numbers,
            ],
            _sums_until,
        )
        for limit, skipped in ((20, 4), (-1, 0), (1000, 8), (60, 99))
    ]
)
def test_loops_are_left_and_iterations_skipped(case, backend):
    check(case, backend)


@ts.function
def rooted(v):
    """The integer square roots of all elements."""
    guess = v
    while True:
        better = (guess + v // guess) // 2
        if ts.tile.all(better >= guess):
            return guess
        guess = ts.tile.minimum(better, guess)


@ts.function
def found(x, wanted, n):
    for i in ts.tile.range(0, n, 4):
        for j in ts.tile.static_range(4):
            if i + j >= n:
                return -1
            if x[i + j] == wanted:
                return i + j
    return -1


def returns(x: ts.Tensor["n", ts.i64], y: ts.Tensor["n", ts.i64], z: ts.Tensor[4, ts.i64], wanted: int):
    z[0] = found(x, wanted, n)
    if wanted > 30:
        return
    buffer = ts.tile.alloc_shared((16,), ts.i64)
    buffer[...] = x[0:16]
    ts.tile.barrier()
    y[0:16] = rooted(ts.tile.load(buffer) + 1)
    for s in ts.tile.static_range(3):
        for j in ts.tile.range(s, 8):
            if j * s == wanted:
                return
            z[1] = 10 * s + j
        z[2] = s
    z[3] = 1


def _returns(x: Any, y: Any, z: Any, wanted: int) -> tuple[Any, Any]:
    places = np.flatnonzero(x == wanted)
    z[0] = places[0] if len(places) else -1
    if wanted > 30:
        return y, z
    y[:16] = np.floor(np.sqrt(x[:16] + 1.0))
    for s in range(3):
        for j in range(s, 8):
            if j * s == wanted:
                return y, z
            z[1] = 10 * s + j
        z[2] = s
    z[3] = 1
    return y, z


@conformance(
    [
        Case(
            f"returns-{wanted}",
            returns,
            lambda rng, wanted=wanted: [
                rng.permutation(35)[:19].astype(np.int64),
                Output((19,), ts.i64),
                Output((4,), ts.i64),
                wanted,
            ],
            _returns,
        )
        for wanted in (0, 3, 12, 13, 31)
    ]
)
def test_kernels_and_helpers_return_anywhere(case, backend):
    check(case, backend)


@ts.function
def _first_above(x, least, n):
    """Numbers are returned from loops, and an element behind them: the numbers have its dtype."""
    for i in ts.tile.range(n):
        if x[i] == 9:
            return 3, 1
        for j in ts.tile.range(i, n):
            if x[j] > least:
                return x[j], 0.5
            if x[j] < 1:
                return 7, 2
    if n == 2:
        return 5, 4
    return x[0], 0.25


def _numbers_returned(of: ts.DType) -> Any:
    def kernel(x: ts.Tensor["m", "n", of], y: ts.Tensor["m", of], z: ts.Tensor["m", ts.f32], least: ts.i8):
        for i in ts.tile.grid((m, 1)):
            value, why = _first_above(x[i, :], least, n)
            y[i] = value
            z[i] = why

    return kernel


def _first_above_of(row: list[Any], least: int) -> tuple[Any, float]:
    for i, value in enumerate(row):
        if value == 9:
            return 3, 1
        for other in row[i:]:
            if other > least:
                return other, 0.5
            if other < 1:
                return 7, 2
    return (5, 4) if len(row) == 2 else (row[0], 0.25)


def _numbers_found(x: Any, y: Any, z: Any, least: int) -> tuple[Any, Any]:
    rows = [_first_above_of(row, least) for row in x.astype(np.float64).tolist()]
    return np.array([row[0] for row in rows]).astype(y.dtype), np.array([row[1] for row in rows], np.float32)


@conformance(
    [
        Case(
            f"numbers-returned-{of}-{n}",
            _numbers_returned(dtype(of)),
            lambda rng, of=of, n=n: [
                rng.integers(0, 10, (12, n)).astype(dtype(of).numpy()),
                Output((12,), dtype(of)),
                Output((12,), ts.f32),
                6,
            ],
            _numbers_found,
        )
        for of in ("u8", "i16", "i32", "i64", "f16", "f64")
        for n in (1, 2, 5)
    ]
)
def test_numbers_that_helpers_return_take_the_dtype_of_the_rest(case, backend):
    check(case, backend)


# Philox


def philox_reference(seed: int, counters: np.ndarray) -> np.ndarray:
    """Return the four words of each counter: Random123's Philox4x32-10 in plain integers."""
    found = []
    for counter in counters.tolist():
        c, k = (
            [counter & 0xFFFFFFFF, (counter >> 32) & 0xFFFFFFFF, 0, 0],
            [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF],
        )
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        found.append(c)
    return np.array(found, np.uint32).reshape(-1, 4).T


def test_the_reference_gives_the_known_answers():
    """From Random123's kat_vectors."""
    assert [hex(v) for v in philox_reference(0, np.array([0]))[:, 0]] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


def random_words(
    at: ts.Tensor["n", ts.i64],
    w: ts.Tensor[4, "n", ts.u32],
    u: ts.Tensor["n", ts.f32],
    d: ts.Tensor["n", ts.f32],
    seed: int,
):
    for i in ts.tile.grid((n, 48)):
        counters = at[i : i + 48]
        words = ts.tile.philox(seed, counters)
        for k in ts.tile.static_range(4):
            w[k, i : i + 48] = words[k]
        u[i : i + 48] = ts.tile.rand(seed, counters)
        d[i : i + 48] = ts.tile.dropout(ts.tile.full((48,), 2.0, ts.f32), 0.25, seed, counters)


def _random_words(at: Any, w: Any, u: Any, d: Any, seed: int) -> tuple[Any, ...]:
    words = philox_reference(seed, at)
    uniform = (words[0] >> 8).astype(np.float64) * 2.0**-24
    return words, uniform, Close(np.where(uniform >= 0.25, 2.0 / 0.75, 0.0), 1.0)


@conformance(
    [
        Case(
            f"philox-{seed}",
            random_words,
            lambda rng, seed=seed: [
                np.concatenate([[0, 1, 2**31, 2**32, 2**40, 2**62], rng.integers(0, 2**50, 94)]),
                Output((4, 100), ts.u32),
                Output((100,), ts.f32),
                Output((100,), ts.f32),
                seed,
            ],
            _random_words,
            [EXACT, EXACT, of_rounding(ts.f32, 2)],
        )
        for seed in (0, 1234567890123, -1)
    ]
)
def test_philox(case, backend):
    check(case, backend)


def random_numbers(
    at: ts.Tensor["n", ts.i64],
    w: ts.Tensor[4, "n", ts.u32],
    u: ts.Tensor["n", ts.f32],
    k: ts.Tensor["n", ts.i32],
    d: ts.Tensor["n", ts.f32],
    same: ts.Tensor[ts.u32],
):
    for i in ts.tile.grid((n, 1)):
        counter = at[i]
        for number, word in enumerate(ts.tile.philox(7, counter)):
            w[number, i] = word
        u[i], k[i] = ts.tile.rand(7, counter), ts.tile.randint(7, counter, -5, 12)
        d[i] = ts.tile.dropout(u[i], 0.25, 7, counter)
    for _ in ts.tile.grid((1, 1)):
        same[...] = ts.tile.philox(7, 3)[0]


def _random_numbers(at: Any, w: Any, u: Any, k: Any, d: Any, same: Any) -> tuple[Any, ...]:
    words = philox_reference(7, at)
    uniform = (words[0] >> 8).astype(np.float64) * 2.0**-24
    ranks = (words[0].astype(np.uint64) * 17 >> 32).astype(np.int32) - 5
    kept = Close(np.where(uniform >= 0.25, uniform / 0.75, 0.0), 1.0)
    return words, uniform, ranks, kept, philox_reference(7, np.array([3]))[0, 0]


@conformance(
    [
        Case(
            "philox-of-numbers",
            random_numbers,
            lambda rng: [
                np.concatenate([[0, 2**40], rng.integers(0, 2**50, 9)]),
                *(Output(shape, dtype) for shape, dtype in (((4, 11), ts.u32), ((11,), ts.f32), ((11,), ts.i32))),
                Output((11,), ts.f32),
                Output((), ts.u32),
            ],
            _random_numbers,
            [EXACT, EXACT, EXACT, of_rounding(ts.f32, 2), EXACT],
            backends=(*BACKENDS, "ptx-sm_90a"),
        )
    ]
)
def test_philox_of_numbers(case, backend):
    check(case, backend)


def uniform(x: ts.Tensor["n", ts.f32], seed: int):
    i = ts.tile.linear_id()
    if i < n:
        x[i] = ts.tile.rand(seed, i)
    return x


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.device)])
def test_random_numbers_are_uniform_and_independent(device):
    """Chi-square over 64 bins, correlation of neighbours and of seeds: all within five standard deviations."""
    kernel, count = ts.kernel(uniform), 1 << 16
    empty = [ts.empty(count, ts.f32, device=device) for _ in range(2)]
    first, second = (to_numpy(kernel(x, seed)).astype(np.float64) for x, seed in zip(empty, (3, 4), strict=True))
    bins = np.bincount((first * 64).astype(int), minlength=64)
    chi = ((bins - count / 64) ** 2 / (count / 64)).sum()
    assert abs(chi - 63) < 5 * np.sqrt(2 * 63)
    for other in (np.roll(first, 1), second):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(count)
    assert 0 <= first.min()
    assert first.max() < 1


# Types of loop-carried values and scalars of every dtype


def scalar_kinds(dt: DType) -> Any:
    def kernel(x: ts.Tensor["n", dt], y: ts.Tensor[3, dt], s: dt):
        total = s
        top = x[0]
        for i in ts.tile.range(n):
            total = ts.tile.cast(total + x[i], dt)
            top = ts.tile.maximum(top, x[i])
        y[0], y[1], y[2] = total, top, s

    return kernel


@conformance(
    [
        Case(
            f"scalars-{name}",
            scalar_kinds(dtype(name)),
            lambda rng, name=name: [normal(rng, (6,), dtype(name)), Output((3,), dtype(name)), 3],
            lambda x, y, s, name=name: np.array(
                [
                    x.astype(np.float64 if dtype(name).is_float else x.dtype).sum(
                        dtype=None if dtype(name).is_float else x.dtype
                    )
                    + s,
                    x.max(),
                    s,
                ]
            ),
            Tolerance(relative=0.02, absolute=0.1) if dtype(name).is_float else EXACT,
        )
        for name in ("f32", "f64", "f16", "bf16", "i8", "i64", "u8")
    ]
)
def test_scalars_of_every_dtype(case, backend):
    check(case, backend)


def doubled(y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i < n:
        before = y[i]
        y[i] = before + 1
        y[i] = y[i] * before
    return y


@conformance(
    [
        Case(
            "in-place",
            doubled,
            lambda rng: [Updated(normal(rng, (3000,), ts.f32))],
            lambda y: Close((y.astype(np.float64) + 1) * y, np.abs(y) + 1),
            Tolerance(relative=1e-6, scaled=2e-7),
        )
    ]
)
def test_stores_are_seen_by_later_loads(case, backend):
    check(case, backend)


def test_positions_and_i64_are_one_type_where_paths_meet():
    @ts.kernel
    def joined(a: ts.Tensor["n", ts.i64], flag: int):
        for i in ts.tile.grid((n, 4)):
            v = a[i : i + 4]
            s = a[i]
            for k in ts.tile.range(2):
                v = ts.tile.broadcast_to(i + k, (4,))
                s = i
            if flag > 0:
                t, u = i, ts.tile.broadcast_to(i, (4,))
            else:
                t, u = a[i], a[i : i + 4]
            a[i : i + 4] = v + s + t + u

    for flag in (0, 1):
        a = np.arange(8) * 10
        start = np.repeat([0, 4], 4)
        one, tile = (start, start) if flag else (start * 10, a.copy())
        joined(a, flag)
        assert np.array_equal(a, start + 1 + start + one + tile)
