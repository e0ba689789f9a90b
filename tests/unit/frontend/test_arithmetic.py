"""Promotion, broadcasting, functions, casts, reductions, mma policies."""

import math

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.numerics import dtypes
from tests.unit.frontend.support import built, ops, run

SCALE = 0.5
COUNT = np.float32(3)


PROMOTIONS = [
    (ts.bf16, ts.f32, "f32"),
    (ts.bf16, ts.f16, "f32"),
    (ts.i32, ts.f16, "f16"),
    (ts.i8, ts.u8, "i16"),
    (ts.bool_, ts.i8, "i8"),
    (ts.u64, ts.i64, "i64"),
    (ts.fp8_e4m3, ts.fp8_e5m2, "f16"),
    (ts.tf32, ts.bf16, "f32"),
]


@pytest.mark.parametrize(("left", "right", "expected"), PROMOTIONS)
def test_promotion(left, right, expected):
    def kernel(x: ts.Tensor[4, left], y: ts.Tensor[4, right], z: ts.Tensor[4, expected]):
        z[:] = x[:] + y[:]

    (op,) = ops(built(kernel), "elementwise")
    assert str(op.result.type.dtype) == expected


WEAK = [
    (ts.bf16, 2, "bf16"),
    (ts.bf16, 2.5, "bf16"),
    (ts.i8, 3, "i8"),
    (ts.i32, 2.5, "f32"),
    (ts.bool_, 1, "i32"),
    (ts.bool_, 1.5, "f32"),
    (ts.i16, True, "i16"),
    (ts.f16, math.inf, "f16"),
    (ts.u32, 2**32 - 1, "u32"),
    (ts.fp8_e4m3, 0.3, "fp8_e4m3"),
]


@pytest.mark.parametrize(("dtype", "number", "expected"), WEAK)
def test_python_numbers_take_the_type_of_the_tile(dtype, number, expected):
    def kernel(x: ts.Tensor[4, dtype], z: ts.Tensor[4, expected], number: ts.constexpr):
        z[:] = number * x[:]

    (op,) = ops(built(kernel, constexprs=dict(number=number)), "elementwise")
    assert str(op.result.type.dtype) == expected


CHOICES = [
    (1, 0, "i32"),
    (-(2**31), 2**31 - 1, "i32"),
    (0, 2**31, "i64"),
    (-(2**31) - 1, 0, "i64"),
    (True, False, "bool"),
    (True, 7, "i32"),
    (1, 0.5, "f32"),
]


@pytest.mark.parametrize(("a", "b", "expected"), CHOICES)
def test_a_tile_chooses_between_python_numbers(a, b, expected):
    def kernel(c: ts.Tensor[4, ts.bool_], y: ts.Tensor[4, expected], z: ts.Tensor[4, expected], a: ts.constexpr):
        y[:] = ts.tile.where(c[:], a, b)
        z[:] = a if c[:] else b

    found = ops(built(kernel, constexprs=dict(a=a)), "elementwise")
    assert [str(op.result.type.dtype) for op in found] == [expected, expected]


@pytest.mark.parametrize("update", ["add", "where", "if else"])
def test_matches_are_counted_in_a_loop(update):
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor[1, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            count = ts.tile.zeros((4,), ts.i32)
            for i in ts.tile.range(0, n, 4):
                found = x[i : i + 4] > 0.5
                if update == "add":
                    count += found
                elif update == "where":
                    count += ts.tile.where(found, 1, 0)
                else:
                    count += 1 if found else 0
            y[0] = count.sum()

    x, y = np.linspace(0, 1, 23, dtype=np.float32), np.zeros(1, np.int32)
    run(kernel, x, y)
    assert y[0] == (x > 0.5).sum()


def test_division_and_comparison_of_integers():
    def kernel(x: ts.Tensor[4, ts.i32], q: ts.Tensor[4, ts.f32], f: ts.Tensor[4, ts.i32], m: ts.Tensor[4, ts.i32]):
        v = x[:]
        q[:] = v / 2
        f[:] = v // 2
        m[:] = (v % 3) + (v > 1)

    x = np.array([-3, -1, 2, 5], np.int32)
    q, f, m = np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros(4, np.int32)
    run(kernel, x, q, f, m)
    np.testing.assert_array_equal(q, x / 2)
    np.testing.assert_array_equal(f, x // 2)
    np.testing.assert_array_equal(m, x % 3 + (x > 1))


def test_bits():
    def kernel(x: ts.Tensor[4, ts.u32], y: ts.Tensor[4, ts.u32]):
        v = x[:]
        y[:] = ((v << 3) | (v >> 2)) ^ (~v & 255)

    x = np.array([1, 77, 2**31, 12345], np.uint32)
    y = np.zeros_like(x)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, ((x << 3) | (x >> 2)) ^ (~x & 255))


FUNCTIONS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "rint": np.rint,
    "abs": np.abs,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "trunc": np.trunc,
    "rsqrt": lambda v: v**-0.5,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "erf": np.vectorize(math.erf),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "relu": lambda v: np.maximum(v, 0),
    "gelu": lambda v: v * 0.5 * (1 + np.vectorize(math.erf)(v * math.sqrt(0.5))),
    "softplus": lambda v: np.log1p(np.exp(v)),
    "sign": np.sign,
    "atan": np.arctan,
    "cbrt": np.cbrt,
    "erfc": np.vectorize(math.erfc),
    "lgamma": np.vectorize(math.lgamma),
    "log10": np.log10,
    "tan": np.tan,
    "isfinite": np.isfinite,
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions(name):
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], fn: ts.constexpr):
        y[:] = fn(x[:])

    x = np.linspace(0.3, 3.7, 8).astype(np.float32)
    y = np.zeros_like(x)
    run(kernel, x, y, constexprs=dict(fn=getattr(ts.tile, name)))
    np.testing.assert_allclose(y, FUNCTIONS[name](x.astype(float)), rtol=2e-6, atol=1e-6)


def test_composites_of_narrow_floats_round_once():
    def kernel(x: ts.Tensor[8, ts.bf16], y: ts.Tensor[8, ts.bf16]):
        y[:] = ts.tile.gelu(x[:])

    x = np.linspace(-3, 3, 8).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    run(kernel, x, y)
    exact = FUNCTIONS["gelu"](x.astype(float))
    np.testing.assert_array_equal(y.astype(float), exact.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float))


def test_two_and_three_operand_functions():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[6, 8, ts.f32], s: ts.f32):
        v = x[:]
        y[0, :] = ts.tile.maximum(v, 1)
        y[1, :] = ts.tile.minimum(s, v)
        y[2, :] = ts.tile.fma(v, s, 1.5)
        y[3, :] = ts.tile.where(v > 0, v, -v)
        y[4, :] = ts.tile.clamp(v, -1, s)
        y[5, :] = ts.tile.pow(ts.tile.abs(v), 1.5) + v**3 + v**0 + 2.0**v

    x = np.linspace(-2, 2, 8).astype(np.float32)
    y = np.zeros((6, 8), np.float32)
    run(kernel, x, y, 0.5)
    v = x.astype(float)
    expected = [
        np.maximum(v, 1),
        np.minimum(v, 0.5),
        v * 0.5 + 1.5,
        np.abs(v),
        np.clip(v, -1, 0.5),
        np.abs(v) ** 1.5 + v**3 + 1 + 2.0**v,
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_module_constants_and_math():
    def kernel(y: ts.Tensor[4, "n", ts.f32]):
        y[0, 0] = SCALE * COUNT
        y[1, 0] = math.sqrt(n) + math.pi
        y[2, 0] = max(1, 2) + len((1, 2, 3)) + float("1.5")
        y[3, 0] = round(math.log2(8)) if n > 3 else 0

    y = np.zeros((4, 9), np.float32)
    run(kernel, y)
    np.testing.assert_allclose(y[:, 0], [1.5, 3 + math.pi, 6.5, 3], rtol=1e-6)


def test_reductions():
    def kernel(
        x: ts.Tensor[3, 4, 5, ts.f32],
        a: ts.Tensor[3, 5, ts.f32],
        b: ts.Tensor[3, 4, ts.f32],
        c: ts.Tensor[4, ts.f32],
    ):
        v = x[...]
        a[:, :] = ts.tile.sum(v, 1)
        b[:, :] = ts.tile.row_max(v)
        c[0] = ts.tile.sum(v)
        c[1] = ts.tile.min(v)
        c[2] = ts.tile.reduce(ts.tile.reduce(v, -3, "prod"), None, op="sum")
        c[3] = ts.tile.any(v > 100) | ts.tile.all(v > -100)

    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    a, b, c = np.zeros((3, 5), np.float32), np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
    run(kernel, x, a, b, c)
    np.testing.assert_allclose(a, x.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, x.max(2))
    np.testing.assert_allclose(c, [x.sum(), x.min(), x.prod(0).sum(), 1], rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bf16", "f32"), ("i8", "i32"), ("u8", "u32"), ("f64", "f64"), ("bool", "i32")]
)
def test_reductions_widen(dtype, expected):
    def kernel(x: ts.Tensor[4, dtype], y: ts.Tensor[1, expected]):
        y[0] = ts.tile.sum(x[:])

    assert str(dtypes.dtype_named(expected)) == str(ops(built(kernel), "store")[0].tensor.type.dtype)
    assert not [op for op in ops(built(kernel), "cast") if op.result.type == op.source.type]
    (op,) = ops(built(kernel), "reduce")
    assert str(op.source.type.dtype) == expected


def test_reductions_follow_the_policy():
    def kernel(x: ts.Tensor[4, "bf16 @accum(f64)"], y: ts.Tensor[1, ts.f64]):
        y[0] = ts.tile.sum(x[:])

    (op,) = ops(built(kernel), "reduce")
    assert str(op.source.type.dtype) == "f64"


def test_scans():
    def kernel(x: ts.Tensor[3, 4, ts.f32], y: ts.Tensor[3, 4, ts.f32], z: ts.Tensor[3, 4, ts.f32]):
        y[...] = ts.tile.cumsum(x[...], 0)
        z[...] = ts.tile.scan(x[...], op="max", reverse=True)

    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    run(kernel, x, y, z)
    np.testing.assert_allclose(y, x.cumsum(0), rtol=1e-5)
    np.testing.assert_array_equal(z, np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1])


def test_shapes():
    def kernel(
        x: ts.Tensor[2, 3, 4, ts.f32],
        y: ts.Tensor[4, 2, 3, ts.f32],
        z: ts.Tensor[6, 4, ts.f32],
        w: ts.Tensor[2, 3, ts.f32],
    ):
        v = x[...]
        y[...] = ts.tile.transpose(v, (2, 0, 1))
        z[...] = ts.tile.reshape(v, (6, -1)) + ts.tile.broadcast_to(1.0, (6, 4))
        w[...] = ts.tile.expand_dims(ts.tile.arange(3), 0) + ts.tile.broadcast_to(ts.tile.arange(2, 4)[:, None], (2, 3))

    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    y, z, w = np.zeros((4, 2, 3), np.float32), np.zeros((6, 4), np.float32), np.zeros((2, 3), np.float32)
    run(kernel, x, y, z, w)
    np.testing.assert_array_equal(y, x.transpose(2, 0, 1))
    np.testing.assert_array_equal(z, x.reshape(6, 4) + 1)
    np.testing.assert_array_equal(w, np.arange(3)[None] + np.arange(2, 4)[:, None])


def test_creation():
    def kernel(x: ts.Tensor[4, ts.bf16], y: ts.Tensor[6, 4, ts.f32], s: ts.f32):
        v = x[:]
        y[0, :] = ts.tile.zeros_like(v)
        y[1, :] = ts.tile.full_like(v, 2.5)
        y[2, :] = ts.tile.full((4,), s)
        y[3, :] = ts.tile.arange(1, 5)
        y[4, :] = ts.tile.full(4, 7)
        y[5, :] = ts.tile.full_like(x[:], s, ts.f32)

    y = np.zeros((6, 4), np.float32)
    run(kernel, np.ones(4, ml_dtypes.bfloat16), y, 1.25)
    np.testing.assert_array_equal(y, [[0] * 4, [2.5] * 4, [1.25] * 4, [1, 2, 3, 4], [7] * 4, [1.25] * 4])


def test_casts():
    def kernel(
        x: ts.Tensor[5, ts.f32],
        y: ts.Tensor[5, ts.i32],
        z: ts.Tensor[5, ts.fp8_e4m3],
        w: ts.Tensor[5, "fp8_e4m3 @saturate"],
    ):
        v = x[:]
        y[:] = ts.tile.cast(v, "i32")
        z[:] = v.to(ts.fp8_e4m3 @ ts.saturate)
        w[:] = v

    x = np.array([-2.9, 0.3, 7.5, 1e6, np.nan], np.float32)
    y = np.zeros(5, np.int32)
    z, w = np.zeros(5, ml_dtypes.float8_e4m3fn), np.zeros(5, ml_dtypes.float8_e4m3fn)
    run(kernel, x, y, z, w)
    np.testing.assert_array_equal(y, [-2, 0, 7, 1000000, 0])
    np.testing.assert_array_equal(z.astype(float)[:4], [-3.0, 0.3125, 7.5, 448])
    np.testing.assert_array_equal(z.astype(float), w.astype(float))


MMA = [
    (ts.bf16, {}, "bf16", "f32"),
    (ts.f16, {}, "f16", "f32"),
    (ts.f16, dict(accumulator=ts.f16), "f16", "f16"),
    (ts.tf32, {}, "tf32", "f32"),
    (ts.f32, {}, "f32", "f32"),
    (ts.f32, dict(compute=ts.tf32), "tf32", "f32"),
    (ts.i8, {}, "i8", "i32"),
    (ts.u8, {}, "u8", "u32"),
    (ts.u8, dict(accumulator=ts.i32), "u8", "i32"),
    (ts.f64, {}, "f64", "f64"),
    (ts.fp8_e4m3, {}, "fp8_e4m3", "f32"),
    ("bf16 @accum(f64)", {}, "bf16", "f64"),
    (ts.bf16 @ ts.accum(ts.f64), {}, "bf16", "f64"),
]


@pytest.mark.parametrize(("dtype", "options", "compute", "acc"), MMA)
def test_mma_policies(dtype, options, compute, acc):
    def kernel(
        a: ts.Tensor[16, 16, dtype],
        b: ts.Tensor[16, 16, dtype],
        c: ts.Tensor[16, 16, ts.f32],
        accumulator: ts.constexpr = None,
        compute: ts.constexpr = None,
    ):
        c[:, :] = ts.tile.mma(a[:, :], b[:, :].T, accumulator=accumulator, compute=compute)

    (op,) = ops(built(kernel, constexprs=options), "mma")
    assert (op.compute.data, str(op.acc.type.dtype)) == (compute, acc)


def test_mma_takes_two_fp8_formats_and_shared_buffers():
    def kernel(a: ts.Tensor[16, 16, ts.fp8_e4m3], b: ts.Tensor[16, 16, ts.fp8_e5m2], c: ts.Tensor[16, 16, ts.f32]):
        sa = ts.tile.alloc_shared((16, 16), ts.fp8_e4m3)
        ts.tile.async_copy_2d(sa, a[:, :])
        ts.tile.barrier()
        c[:, :] = ts.tile.mma_sync(sa.T, b[:, :], ts.tile.zeros((16, 16)))

    (op,) = ops(built(kernel), "mma")
    assert op.compute.data == "fp8"
    assert "shared" in str(op.a.type)


def test_philox_matches_the_reference_vectors():
    """Known answers of Random123: counter and key zero, and all ones in the two words that a counter has."""

    def kernel(c: ts.Tensor[1, ts.i64], r: ts.Tensor[4, ts.u32]):
        words = ts.tile.philox(0, c[:])
        for i in ts.tile.static_range(4):
            r[i : i + 1] = words[i]

    r = np.zeros(4, np.uint32)
    run(kernel, np.zeros(1, np.int64), r)
    assert [hex(v) for v in r] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_rand_is_uniform():
    def kernel(x: ts.Tensor["n", ts.f32], seed: int):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = ts.tile.rand(seed, i)

    x = np.zeros(20000, np.float32)
    run(kernel, x, -5)
    assert 0 <= x.min() < 0.001
    assert 0.999 < x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01


def test_the_opposite_of_a_condition_known_at_compile_time_is_a_condition():
    def kernel(x: ts.Tensor["n", ts.i32], r: ts.Tensor["n", ts.i32], k: ts.constexpr):
        for i in ts.tile.grid((n, 4)):
            r[i : i + 4] = ts.tile.where(~(k > 1), x[i : i + 4], ~k)

    x = np.arange(8, dtype=np.int32)
    for k in (1, 2):
        r = np.zeros(8, np.int32)
        run(kernel, x, r, constexprs={"k": k})
        np.testing.assert_array_equal(r, x if k == 1 else np.full(8, ~k))


WIDE = [
    -2,
    300,
    2**40 + 7,
    -(2**63),
    2**63 - 1,
    True,
    -1.7,
    3e9,
    -3e9,
    1e30,
    math.inf,
    -math.inf,
    math.nan,
    255.9,
    -128.5,
]


@pytest.mark.parametrize("dt", [ts.i8, ts.u8, ts.i16, ts.u16, ts.i32, ts.u32, ts.i64, ts.u64], ids=str)
def test_a_number_is_cast_as_one_that_is_known_later(dt):
    @ts.kernel
    def kernel(y: ts.Tensor[2, dt], real: ts.f64, whole: ts.i64, number: ts.constexpr, real_one: ts.constexpr):
        for _ in ts.tile.grid((1, 1)):
            y[0] = ts.tile.cast(number, dt)
            y[1] = ts.tile.cast(real if real_one else whole, dt)

    least = 0 if str(dt).startswith("u") else -(2 ** (dt.bits - 1))
    for number in WIDE:
        real = isinstance(number, float)
        y = np.zeros(2, dt.numpy())
        kernel(y, number if real else 0.0, 0 if real else int(number), number=number, real_one=real)
        if not real:
            exact = (number - least) % 2**dt.bits + least
        else:
            exact = 0 if math.isnan(number) else min(max(number, least), least + 2**dt.bits - 1)
        assert [int(each) for each in y] == [int(exact)] * 2, number
