"""Stores past the caches, prefetched rows, two vectors side by side: only what runs differs, never what comes out."""

import math

import numpy as np
import pytest

import tessera as ts
from tessera.lower.vector import memory
from tessera.schedule.cpu import prefetch_boxes


@pytest.fixture
def eager_streams(monkeypatch, tmp_path):
    """Let small tensors go past the caches and short rows be asked for, as large ones are."""
    monkeypatch.setattr(memory, "STREAM_UNIT", 64)
    monkeypatch.setattr(prefetch_boxes, "LEAST_BYTES", 64)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path))


def soft(dtype):
    @ts.kernel
    def softmax(X: ts.Tensor["M", "N", dtype], Y: ts.Tensor["M", "N", dtype]):
        for m in ts.tile.grid((M, 1)):
            x = ts.tile.cast(X[m, :], ts.f32)
            e = ts.tile.exp(x - ts.tile.row_max(x))
            Y[m, :] = e / ts.tile.row_sum(e)

    return softmax


@pytest.mark.usefixtures("eager_streams")
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.f16])
@pytest.mark.parametrize("n", [16, 31, 32, 48, 100, 256, 777])
def test_rows_of_any_length_and_alignment(dtype, n):
    kernel, m, rng = soft(dtype), 37, np.random.default_rng(n)
    for shift in (0, 1, 3):
        memory_, out = (ts.empty(m * n + 64, dtype) for _ in range(2))
        x, y = (a[shift : shift + m * n].reshape(m, n) for a in (memory_, out))
        x[...] = rng.standard_normal((m, n))
        out[...] = 7
        kernel(x, y)
        wide = x.astype(np.float64)
        e = np.exp(wide - wide.max(axis=1, keepdims=True))
        tolerance = 2e-6 if dtype is ts.f32 else 1e-2
        np.testing.assert_allclose(y.astype(np.float64), e / e.sum(axis=1, keepdims=True), rtol=tolerance, atol=1e-7)
        assert (out[:shift] == 7).all()
        assert (out[shift + m * n :] == 7).all()


@pytest.mark.usefixtures("eager_streams")
def test_a_strided_output_keeps_what_lies_between():
    kernel, rng = soft(ts.f32), np.random.default_rng(0)
    x, out = ts.empty((20, 64)), ts.full((20, 96), 7)
    x[...] = rng.standard_normal((20, 64))
    kernel(x, out[:, :64])
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out[:, :64], e / e.sum(axis=1, keepdims=True), rtol=2e-6)
    assert (out[:, 64:] == 7).all()


def texts(kernel, **dims):
    return ts.compile(kernel, target="x86-64-v4", dims=dims, dump=["tirt", "ll"]).dumps


def test_only_large_outputs_that_nobody_reads_are_streamed():
    @ts.kernel
    def twice(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = x[i : i + 1024] * 2.0

    @ts.kernel
    def in_place(y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = y[i : i + 1024] * 2.0

    @ts.kernel
    def small(x: ts.Tensor["4096", ts.f32], y: ts.Tensor["4096", ts.f32]):
        for i in ts.tile.grid((4096, 1024)):
            y[i : i + 1024] = x[i : i + 1024] * 2.0

    text = texts(twice)["ll"]  # the size decides at run time
    assert "nontemporal" in text
    assert "sfence" in text
    assert "nontemporal" not in texts(small)["ll"]
    assert "nontemporal" not in texts(in_place)["ll"]
    assert "nontemporal" not in ts.compile(twice, target="aarch64", dump=["ll"]).dumps["ll"]


def test_a_row_that_is_read_twice_is_asked_for_ahead():
    tirt = texts(soft(ts.f32), N=4096)["tirt"]
    assert tirt.count("tessera_target.prefetch") == tirt.count('"exp"')  # the loop that has time for it
    assert tirt.rindex("tessera_target.prefetch") < tirt.rindex('"exp"')
    assert "prefetch" not in texts(soft(ts.f32), N=64)["tirt"]


def test_a_short_reduction_leaves_asking_to_the_loop_that_stores():
    @ts.kernel
    def centre(X: ts.Tensor["M", "N", ts.f32], Y: ts.Tensor["M", "N", ts.f32]):
        for m in ts.tile.grid((M, 1)):
            x = X[m, :]
            Y[m, :] = x - ts.tile.row_sum(x)

    tirt = texts(centre, N=4096)["tirt"]
    assert tirt.count("tessera_target.prefetch") == 4, "one for each line of a chunk of four vectors"
    assert tirt.index("tessera_target.prefetch") > tirt.index("tessera_target.reduce_registers")


@pytest.mark.parametrize("n", [33, 48, 64, 96, 100, 160])
def test_long_arithmetic_runs_on_two_vectors_at_once(n):
    @ts.kernel
    def gelu(X: ts.Tensor["M", "N", ts.f32], Y: ts.Tensor["M", "N", ts.f32]):
        for m in ts.tile.grid((M, 8)):
            x = X[m : m + 8, :]
            y = ts.tile.gelu(x) + ts.tile.log(ts.tile.abs(x) + 1.0) + ts.tile.pow(ts.tile.abs(x) + 0.5, 1.5)
            Y[m : m + 8, :] = y * ts.tile.sigmoid(x) + ts.tile.sin(x) + ts.tile.row_sum(y)[:, None] * 0.0

    import math

    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((29, n)).astype(np.float32), np.zeros((29, n), np.float32)
    gelu(x, y)
    wide = x.astype(np.float64)
    value = 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
    value = value + np.log(np.abs(wide) + 1) + (np.abs(wide) + 0.5) ** 1.5
    np.testing.assert_allclose(y, value / (1 + np.exp(-wide)) + np.sin(wide), rtol=2e-5, atol=2e-6)


def test_one_run_of_philox_gives_all_four_words():
    @ts.kernel
    def words(Y: ts.Tensor["4", "n", ts.u32], seed: ts.i64):
        for i in ts.tile.grid((n, 64)):
            w = ts.tile.philox(seed, ts.tile.arange(64) + i)
            for part in ts.tile.static_range(4):
                Y[part, i : i + 64] = w[part]

    @ts.kernel
    def one(Y: ts.Tensor["n", ts.u32], seed: ts.i64):
        for i in ts.tile.grid((n, 64)):
            Y[i : i + 64] = ts.tile.philox(seed, ts.tile.arange(64) + i)[2]

    four, single = np.zeros((4, 1000), np.uint32), np.zeros(1000, np.uint32)
    words(four, 12345)
    one(single, 12345)
    low = np.uint64(0xFFFFFFFF)
    c = [np.arange(1000, dtype=np.uint64), *(np.zeros(1000, np.uint64) for _ in range(3))]
    key = [12345, 0]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [
            (second >> shift) ^ c[1] ^ np.uint64(key[0]),
            second & low,
            (first >> shift) ^ c[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    np.testing.assert_array_equal(four, np.array(c))
    np.testing.assert_array_equal(single, c[2])
    mulls = texts(words)["ll"].count("lshr <")
    assert mulls < 2 * texts(one)["ll"].count("lshr <") + 8


@pytest.mark.parametrize("profile", ["fast", "deterministic"])
def test_rounding_to_bf16_is_that_of_ml_dtypes(profile):
    import ml_dtypes

    @ts.kernel
    def narrow(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.bf16]):
        for i in ts.tile.grid((n, 64)):
            y[i : i + 64] = x[i : i + 64]

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    bits[1000:3000] &= 0x807FFFFF  # subnormals
    special = np.array(
        [
            0,
            0x80000000,
            0x7F800000,
            0xFF800000,
            0x7FFFFFFF,
            0xFFFFFFFF,
            0x7F800001,
            0x7F7FFFFF,
            0x7F7F8000,
            1,
            0x8000,
            0x8001,
            0x18000,
            0x3F808000,
            0x3F818000,
        ],
        np.uint32,
    )
    x = np.concatenate([special, bits]).view(np.float32)
    y = np.zeros(x.size, ml_dtypes.bfloat16)
    with ts.numerics.profile(profile):
        narrow(x, y)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(y.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])
    assert np.isnan(y.astype(np.float32)[nan]).all()


@ts.kernel
def bell(
    X: ts.Tensor["M", "N", ts.f32],
    Y: ts.Tensor["M", "N", ts.f32],
    rows: ts.constexpr = 16,
    columns: ts.constexpr = 256,
):
    for m, n in ts.tile.grid((M, rows), (N, columns)):
        Y[m : m + rows, n : n + columns] = ts.tile.erf(X[m : m + rows, n : n + columns])


def test_short_rows_of_one_tile_are_asked_for_ahead_and_a_single_one_is_not():
    several = ts.compile(bell, target="x86-64-v4", dump=["tirt"]).dumps["tirt"]
    assert "tessera_target.prefetch" in several
    single = ts.compile(bell, target="x86-64-v4", dump=["tirt"], rows=1, columns=1024).dumps["tirt"]
    assert "tessera_target.prefetch" not in single


@pytest.mark.parametrize(("target", "width"), [("x86-64-v4", 64), ("x86-64-v3", 16), ("aarch64", 16)])
def test_the_registers_say_how_many_vectors_go_side_by_side(target, width):
    tirt = ts.compile(bell, target=target, dump=["tirt"]).dumps["tirt"]
    assert f"-> !tessera_target.fragment<{width}xf32" in tirt


@pytest.mark.parametrize("columns", [48, 64, 100, 120, 256])
def test_four_vectors_side_by_side_keep_to_the_row(columns):
    x, out = ts.empty((19, 300)), ts.full((19, 320), 7)
    x[...] = np.random.default_rng(3).standard_normal((19, 300)) * 2
    bell(x, out[:, :300], columns=columns)
    expected = np.vectorize(math.erf)(x.astype(np.float64))
    np.testing.assert_allclose(out[:, :300], expected, rtol=4e-7)
    assert (out[:, 300:] == 7).all()


@ts.function
def side_by_side(words):
    return ts.tile.stack(words, axis=1).reshape(256)


@ts.function
def one_after_the_other(words):
    return ts.tile.stack(words, axis=0).reshape(256)


@ts.function
def backwards(words):
    return ts.tile.flip(ts.tile.stack((words[3], words[2], words[1], words[0]), axis=1).reshape(256), 0)


@ts.function
def three(words):
    return ts.tile.stack((words[0], words[2], words[3], words[2]), axis=1).reshape(256)


@pytest.mark.parametrize("used", [side_by_side, one_after_the_other, backwards, three], ids=str)
def test_words_that_move_before_they_are_used_are_of_one_run_of_philox(used, monkeypatch):
    @ts.kernel
    def moved(Y: ts.Tensor["n", ts.u32], seed: ts.i64):
        for i in ts.tile.grid((n, 256)):
            Y[i : i + 256] = used(ts.tile.philox(seed, ts.tile.arange(64) + i // 4)) >> 8

    text = ts.compile(moved, target="x86-64-v4", dump=["tirt"]).dumps["tirt"]
    assert text.count('"mulhi"') == 20  # two a round
    found, interpreted = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
    moved(found, 7)
    monkeypatch.setenv("TESSERA_INTERPRET", "1")
    moved(interpreted, 7)
    assert np.array_equal(found, interpreted)
