"""What is said in fewer words: several axes, kept dimensions, methods, Python's own functions, random distributions."""

import math

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance
from tests.conformance.data import integers
from tests.conformance.harness import Case, Output, check, conformance, dtype

SHAPE = (6, 10, 16)
CLOSE = Tolerance(relative=1e-5, absolute=1e-5)


def axes(
    x: ts.Tensor[6, 10, 16, ts.f32],
    outer: ts.Tensor[10, ts.f32],
    inner: ts.Tensor[6, ts.f32],
    all_: ts.Tensor[4, ts.f32],
    centred: ts.Tensor[6, 10, 16, ts.f32],
    first: ts.Tensor[10, 16, ts.f32],
):
    for _ in ts.tile.grid((1, 1)):
        v = x[:, :, :]
        outer[:] = ts.tile.sum(v, axis=(0, 2))
        inner[:] = v.max(axis=(-1, 1))
        all_[0] = v.sum(axis=(2, 0, 1))
        all_[1] = v.mean()
        all_[2] = v.var()
        all_[3] = v.reshape(10, -1).var(1, ddof=1).min()
        centred[:, :, :] = (v - v.mean(axis=(1, 2), keepdims=True)) * v.transpose(0, 2, 1).T.min(keepdims=True)
        first[:, :] = ts.tile.prod(v, 0, keepdims=True).reshape(10, 16)


def axes_reference(x, *_outputs):
    x = x.astype(np.float64)
    rest = [x.sum(), x.mean(), x.var(), x.reshape(10, -1).var(1, ddof=1).min()]
    centred = (x - x.mean((1, 2), keepdims=True)) * x.min()
    return x.sum((0, 2)), x.max((1, 2)), np.array(rest), centred, x.prod(0)


@conformance(
    [
        Case(
            "axes",
            axes,
            lambda rng: [
                rng.standard_normal(SHAPE).astype(np.float32),
                *(Output(shape, ts.f32) for shape in ((10,), (6,), (4,), SHAPE, (10, 16))),
            ],
            axes_reference,
            CLOSE,
        )
    ]
)
def test_reductions_of_several_axes(case, backend):
    check(case, backend)


def narrow(
    x: ts.Tensor[8, 64, ts.bf16], r: ts.Tensor[8, ts.f32], y: ts.Tensor[8, 64, ts.bf16], n: ts.Tensor[8, ts.i32]
):
    for _ in ts.tile.grid((1, 1)):
        v = x[:, :]
        r[:] = v.var(-1)
        y[:, :] = v - v.astype(ts.f32).mean(1, keepdims=True).astype(ts.bf16)
        n[:] = (v > 0).astype(ts.i32).sum(1) * (v > -9).all(1).to(ts.i32)


def narrow_reference(x, *_outputs):
    wide = x.astype(np.float64)
    mean = wide.mean(1, keepdims=True).astype(np.float32).astype(x.dtype).astype(np.float64)
    return wide.var(1), (wide - mean).astype(np.float32).astype(x.dtype).astype(np.float64), (wide > 0).sum(1)


@conformance(
    [
        Case(
            "narrow",
            narrow,
            lambda rng: [
                # Sixteenths up to 4: their sums are exact, so that the means are the same wherever they are computed.
                (rng.integers(-64, 65, (8, 64)) / 16).astype(ts.bf16.numpy()),
                Output((8,), ts.f32),
                Output((8, 64), ts.bf16),
                Output((8,), ts.i32),
            ],
            narrow_reference,
            [CLOSE, EXACT, EXACT],
        )
    ]
)
def test_means_of_narrow_floats_accumulate_in_f32(case, backend):
    check(case, backend)


def stacked(
    x: ts.Tensor[8, 12, ts.f32],
    y: ts.Tensor[8, 12, ts.f32],
    pairs: ts.Tensor[8, 12, 2, ts.f32],
    rows: ts.Tensor[16, 12, ts.f32],
    columns: ts.Tensor[8, 36, ts.f32],
    middle: ts.Tensor[8, 3, 12, ts.f32],
    woven: ts.Tensor[8, 24, ts.f32],
    flags: ts.Tensor[2, 8, 12, ts.bool_],
):
    for _ in ts.tile.grid((1, 1)):
        a, b = x[:, :], y[:, :]
        pairs[:, :, :] = ts.tile.join(a, b)
        rows[:, :] = ts.tile.concatenate((a, b))
        columns[:, :] = ts.tile.concatenate([a, b, (a > 0).to(ts.i8)], axis=-1)
        middle[:, :, :] = ts.tile.stack((a, b, a + b), axis=1)
        woven[:, :] = ts.tile.join(a, b).reshape(8, 24)
        flags[:, :, :] = ts.tile.stack((a > b, a > 0))


def stacked_reference(x, y, *_outputs):
    pairs = np.stack([x, y], -1)
    columns = np.concatenate([x, y, x > 0], -1)
    middle = np.stack([x, y, x + y], 1)
    return pairs, np.concatenate([x, y]), columns, middle, pairs.reshape(8, 24), np.stack([x > y, x > 0])


@conformance(
    [
        Case(
            "stacked",
            stacked,
            lambda rng: [
                *(rng.standard_normal((8, 12)).astype(np.float32) for _ in "xy"),
                *(Output(shape, ts.f32) for shape in ((8, 12, 2), (16, 12), (8, 36), (8, 3, 12), (8, 24))),
                Output((2, 8, 12), ts.bool_),
            ],
            stacked_reference,
        )
    ]
)
def test_tiles_side_by_side(case, backend):
    check(case, backend)


def scalars(x: ts.Tensor["n", ts.i32], out: ts.Tensor[9, "n", ts.i32], m: int):
    for i in ts.tile.grid((n, 16)):
        v = x[i : i + 16]
        lo, hi = min(i, m, 40), max((i, m))
        quotient, rest = divmod(i, m)
        out[0, i : i + 16] = ts.tile.full((16,), lo, ts.i32)
        out[1, i : i + 16] = ts.tile.full((16,), hi, ts.i32)
        out[2, i : i + 16] = ts.tile.full((16,), quotient, ts.i32)
        out[3, i : i + 16] = ts.tile.full((16,), rest, ts.i32)
        out[4, i : i + 16] = ts.tile.full((16,), ts.cdiv(i, m) + abs(m - i) + ts.cdiv(7, 2), ts.i32)
        out[5, i : i + 16] = min(v, 100)
        out[6, i : i + 16] = max(v, lo, v // 2)
        out[7, i : i + 16] = abs(v)
        out[8, i : i + 16] = ts.cdiv(v // 2, 7)


def scalars_reference(x, _out, m):
    n = x.size
    start = np.arange(n) // 16 * 16
    wide = x.astype(np.int64)
    lo = np.minimum(np.minimum(start, m), 40)
    up = -(-start // m) + np.abs(m - start) + 4
    rows = [lo, np.maximum(start, m), start // m, start % m, up, np.minimum(wide, 100)]
    rows += [np.maximum(np.maximum(wide, lo), wide // 2), np.abs(wide), -(-(wide // 2) // 7)]
    return np.stack(rows).astype(np.int32)


@conformance(
    [
        Case(
            f"scalars-{m}",
            scalars,
            lambda rng, m=m: [integers(rng, (100,), dtype("i32")), Output((9, 100), ts.i32), m],
            scalars_reference,
        )
        for m in (1, 7, 90)
    ]
)
def test_python_functions_at_run_time(case, backend):
    check(case, backend)


def distributions(z: ts.Tensor["n", ts.f32], i: ts.Tensor["n", ts.i32], j: ts.Tensor["n", ts.u8], seed: int, high: int):
    for at in ts.tile.grid((n, 128)):
        offsets = at + ts.tile.arange(128)
        z[at : at + 128] = ts.tile.randn(seed, offsets)
        i[at : at + 128] = ts.tile.randint(seed, offsets, -5, high)
        j[at : at + 128] = ts.tile.randint(seed, offsets, 250, 256, ts.u8)


def philox(seed: int, count: int) -> list[np.ndarray]:
    """The words of Philox4x32-10 for the counters 0, 1, …: Salmon et al., "Parallel random numbers", SC 2011."""
    low, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    counter = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (second >> low) ^ counter[1] ^ np.uint64(key[0]),
            second & mask,
            (first >> low) ^ counter[3] ^ np.uint64(key[1]),
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def distributions_reference(z, _i, _j, seed, high):
    words = philox(seed, z.size)
    radius = np.sqrt(-2 * np.log((words[0].astype(np.float64) + 0.5) / 2**32))
    normal = radius * np.cos(2 * math.pi * (words[1] >> np.uint64(8)).astype(np.float64) / 2**24)
    drawn = [(words[0] * np.uint64(size) >> np.uint64(32)).astype(np.int64) for size in (high + 5, 6)]
    return normal, (drawn[0] - 5).astype(np.int32), (drawn[1] + 250).astype(np.uint8)


@conformance(
    [
        Case(
            "distributions",
            distributions,
            lambda rng: [Output((5000,), ts.f32), Output((5000,), ts.i32), Output((5000,), ts.u8), 2**40 + 77, 1000],
            distributions_reference,
            [Tolerance(relative=1e-5, absolute=2e-6), EXACT, EXACT],
        )
    ]
)
def test_random_distributions(case, backend):
    check(case, backend)


def test_randn_is_normal():
    """Moments and tail of a million numbers: none is off by five standard errors of what N(0, 1) has."""
    count = 1 << 20
    z, i, j = np.empty(count, np.float32), np.empty(count, np.int32), np.empty(count, np.uint8)
    ts.kernel(distributions)(z, i, j, 3, 7)
    z = z.astype(np.float64)
    expected = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}
    for power, (mean, variance) in expected.items():
        assert abs((z**power).mean() - mean) < 5 * math.sqrt(variance / count), power
    beyond = math.erfc(3 / math.sqrt(2))
    assert abs((np.abs(z) > 3).mean() - beyond) < 5 * math.sqrt(beyond / count)
    counts = np.bincount(i + 5, minlength=12)
    assert counts.size == 12
    assert abs(counts - count / 12).max() < 5 * math.sqrt(count / 12)


@ts.function
def power(x, n):
    """x to a power known at compile time, by squaring."""
    if n == 0:
        return ts.tile.full_like(x, 1)
    root = power(x, n // 2)
    return root * root * x if n % 2 else root * root


@ts.function
def summed(xs):
    """The sum of a tuple, by halves."""
    if len(xs) == 1:
        return xs[0]
    return summed(xs[: len(xs) // 2]) + summed(xs[len(xs) // 2 :])


@ts.function
def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@ts.function
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def recursive(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32], N: ts.constexpr = 3):
    for i in ts.tile.grid((n, 8)):
        v = x[i : i + 8]
        if is_even(N):
            y[i : i + 8] = power(v, N)
        else:
            y[i : i + 8] = summed((v,) * N) - power(v + 1, N)


def recursive_reference(x, _y, power):
    return x**power if power % 2 == 0 else power * x - (x + 1) ** power


@conformance(
    [
        Case(
            f"recursive-{n}",
            recursive,
            lambda rng: [integers(rng, (13,), ts.i32), Output((13,), ts.i32)],
            lambda x, y, n=n: recursive_reference(x, y, n),
            EXACT,
            constexprs={"N": n},
        )
        for n in (0, 1, 7, 20)
    ]
)
def test_helpers_that_call_themselves(case, backend):
    check(case, backend)


def dots(a: ts.Tensor["M", "K", ts.f16], b: ts.Tensor["K", "N", ts.f16], y: ts.Tensor[2, "M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.dot(a[m : m + 16, k : k + 16], b[k : k + 16, n : n + 16], acc)
        y[0, m : m + 16, n : n + 16] = acc
        y[1, m : m + 16, n : n + 16] = ts.tile.dot(
            a[m : m + 16, 0:16], b[0:16, n : n + 16], acc=acc, accumulator=ts.f32
        )


def dots_reference(a, b, _y):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.stack([a @ b, a @ b + a[:, :16] @ b[:16]])


@conformance(
    [
        Case(
            "dots",
            dots,
            lambda rng: [
                rng.standard_normal((19, 40)).astype(np.float16),
                rng.standard_normal((40, 21)).astype(np.float16),
                Output((2, 19, 21), ts.f32),
            ],
            dots_reference,
            Tolerance(relative=1e-4, absolute=1e-4),
        )
    ]
)
def test_dot_adds_to_an_accumulator(case, backend):
    check(case, backend)


LEVELS = (-1.0, -0.5, 0.25, 2.0, 7.5)


def tables(
    q: ts.Tensor["n", ts.u8],
    x: ts.Tensor["n", ts.f16],
    y: ts.Tensor["n", ts.f32],
    ends: ts.Tensor["m", 3, ts.f16],
    whole: ts.Tensor["m", 4, ts.i64],
    pairs: ts.Tensor["m", 2, ts.bool_],
    sums: ts.Tensor["m", ts.f32],
):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = ts.tile.take(ts.tile.stack(LEVELS), q[i : i + 16])
        j, last = i // 16, min(i + 16, n) - 1
        ends[j, :] = ts.tile.stack((x[i], 0.5, x[last]))
        whole[j, :] = ts.tile.stack([i, last, 2**40, -1], axis=-1)
        pairs[j, :] = ts.tile.join(x[i] > 0, True)
        sums[j] = sum((x[i].to(ts.f32), x[last].to(ts.f32), 3))


def tables_reference(q, x, *_outputs):
    starts = np.arange(0, len(q), 16)
    last, ones = np.minimum(starts + 16, len(q)) - 1, np.ones(len(starts))
    levels = np.array([*LEVELS, *[0.0] * 251], np.float32)
    x64 = x.astype(np.float64)
    return (
        levels[q],
        np.stack([x[starts], (ones / 2).astype(np.float16), x[last]], 1),
        np.stack([starts, last, ones * 2**40, -ones], 1).astype(np.int64),
        np.stack([x[starts] > 0, ones > 0], 1),
        x64[starts] + x64[last] + 3,
    )


@conformance(
    [
        Case(
            f"tables-{n}",
            tables,
            lambda rng, n=n, m=m: [
                rng.integers(0, 8, n).astype(np.uint8),
                rng.standard_normal(n).astype(np.float16),
                Output((n,), ts.f32),
                Output((m, 3), ts.f16),
                Output((m, 4), ts.i64),
                Output((m, 2), ts.bool_),
                Output((m,), ts.f32),
            ],
            tables_reference,
            [EXACT, EXACT, EXACT, EXACT, Tolerance(relative=1e-6)],
        )
        for n, m in ((1, 1), (37, 3))
    ]
)
def test_numbers_become_tiles(case, backend):
    check(case, backend)


def methods_of_buffers(x: ts.Tensor["n", 6, ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor[6, 4, ts.f32]):
    for i in ts.tile.grid((n, 4)):
        buffer = ts.tile.alloc_shared((4, 6), ts.f32)
        buffer[...] = x[i : i + 4, :]
        ts.tile.barrier()
        y[i : i + 4] = buffer.sum(axis=1) + buffer.max() - buffer.reshape(24)[5]
        if i == 0:
            z[:, :] = buffer.transpose()


@conformance(
    [
        Case(
            "methods-of-buffers",
            methods_of_buffers,
            lambda rng: [
                rng.standard_normal((10, 6)).astype(np.float32),
                Output((10,), ts.f32),
                Output((6, 4), ts.f32),
            ],
            lambda x, _y, _z: (_by_fours(x.astype(np.float64)), x[:4].T),
            [CLOSE, EXACT],
        )
    ]
)
def test_buffers_have_the_methods_of_tiles(case, backend):
    check(case, backend)


def _by_fours(x):
    blocks = np.concatenate([x, np.zeros((-len(x) % 4, 6))]).reshape(-1, 4, 6)
    return (blocks.sum(2) + blocks.max((1, 2))[:, None] - blocks[:, :1, 5]).ravel()[: len(x)]
