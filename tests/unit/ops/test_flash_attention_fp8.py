"""Attention in 8 bits: exactly where rounding changes nothing, else by its error; and what GPUs would compute."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops import arrays
from tessera.ops.attn import fp8_kernels as kernels
from tessera.ops.attn.blocks import Blocks
from tessera.ops.attn.fp8_steps import blocks_of, forward_constants
from tessera.target.registry import target_named
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

attention = op.flash_attention_fp8
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ROUND = 2.0**-4
"""Half a step of e4m3 at 1."""


def of_library(library, array):
    """Return an array, of 8-bit numbers too, as one of a library."""
    if library == "numpy" or array.dtype not in (E4M3, E5M2):
        return lib.of_library(library, array)
    torch = pytest.importorskip("torch")
    kind = torch.float8_e4m3fn if array.dtype == E4M3 else torch.float8_e5m2
    return torch.from_numpy(array.view(np.uint8).copy()).view(kind)


def operands(rng, shape=(2, 4, 2, 150, 203, 32, 48), dtype=np.float32, outliers=0.0):
    """Return queries, keys and values of sizes (B, H, G, S, N, D, E), some of them with larger ones among them."""
    b, h, g, s, n, d, e = shape
    made = []
    for size in ((b, h, s, d), (b, g, n, d), (b, g, n, e)):
        one = rng.standard_normal(size)
        made.append((one + outliers * rng.standard_normal(size) * (rng.random(size) < 0.001)).astype(dtype))
    return made


def error(found, exact):
    """Return the root mean square of a difference, as a part of that of what is exact."""
    return float(np.sqrt(np.mean((arrays.host(found) - exact) ** 2) / np.mean(exact**2)))


def integers(rng, *shape):
    """Return numbers that e4m3 has."""
    return rng.integers(-7, 8, shape).astype(np.float32)


def seen(queries, keys):
    """Return which keys queries see."""
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


SHAPES = {
    "shared heads": (2, 4, 2, 150, 203, 32, 48),
    "one query": (1, 2, 2, 1, 300, 16, 16),
    "more queries than keys": (1, 2, 2, 150, 40, 16, 16),
    "odd heads": (1, 2, 1, 20, 33, 80, 112),
    "one key": (1, 1, 1, 5, 1, 16, 16),
    "no keys": (1, 2, 2, 5, 0, 16, 16),
    "no queries": (1, 2, 2, 0, 5, 16, 16),
}


@pytest.mark.parametrize(
    ("name", "causal"), [*((name, True) for name in SHAPES), ("shared heads", False), ("no keys", False)]
)
def test_means_of_values_are_exact(name, causal):
    b, h, g, s, n, d, e = SHAPES[name]
    rng = np.random.default_rng(1)
    q, k, v = np.zeros((b, h, s, d), np.float32), integers(rng, b, g, n, d), integers(rng, b, g, n, e)
    v[:, :, :1] = 7  # of the largest, 448 is a multiple by a power of two: nothing is rounded
    mask = seen(s, n) if causal else np.ones((s, n), bool)
    count = mask.sum(1)
    exact = np.einsum("mn,bgne->bgme", mask, v.repeat(h // g, 1)) / np.maximum(count, 1)[:, None]
    for scale in ("amax_dynamic", "block") if name == "shared heads" else ("amax_dynamic",):
        found, lse = attention(q, k, v, causal=causal, return_lse=True, scale=scale)
        lib.close(found, exact, ts.f32, 8)
        with np.errstate(divide="ignore"):
            lib.close(lse, np.broadcast_to(np.log(count), (b, h, s)), ts.f32, 4)
    found = attention(*(one.astype(E4M3) for one in (q, k, v)), causal=causal, dtype=ts.f32)
    lib.close(found, exact, ts.f32, 8)
    assert (arrays.host(found)[:, :, count == 0] == 0).all()


@pytest.mark.parametrize(
    ("kind", "library", "layout"), [(E4M3, "numpy", "bhsd"), (E5M2, "torch", "bhsd"), (E4M3, "torch", "bshd")], ids=str
)
def test_numbers_that_are_rounded(kind, library, layout):
    rng = np.random.default_rng(2)
    given = operands(rng, dtype=kind)
    scales = {
        name: rng.uniform(0.5, 2.0, one.shape[:2]).astype(np.float32) for name, one in zip("qkv", given, strict=True)
    }
    named = {f"{name}_scale": one for name, one in scales.items()}
    exact, sums = attention.reference(*given, causal=True, return_lse=True, **named)
    if layout == "bshd":
        given, exact = [np.ascontiguousarray(one.swapaxes(1, 2)) for one in given], exact.swapaxes(1, 2)
    ours = [of_library(library, one) for one in given]
    theirs = {name: of_library(library, one) for name, one in named.items()}
    found, lse = attention(*ours, causal=True, layout=layout, return_lse=True, **theirs)
    assert arrays.dtype_of(found) == ts.bf16
    assert error(found, exact) < ROUND / 2
    lib.close(lse, sums, ts.f32, 16)
    goal = of_library(library, np.full(exact.shape, np.nan, np.float32))
    assert attention(*ours, causal=True, layout=layout, dtype=ts.f32, out=goal, **theirs) is goal
    assert error(goal, exact) < ROUND / 2


def test_scales_that_are_numbers():
    given = operands(np.random.default_rng(3), dtype=E4M3)
    named = {"q_scale": 0.5, "k_scale": 2, "v_scale": -3.0}
    exact = attention.reference(*given, softmax_scale=0.1, **named)
    assert error(attention(*given, softmax_scale=0.1, **named), exact) < ROUND / 2


def rounded(x):
    """Return numbers rounded to e4m3."""
    return x.astype(E4M3).astype(np.float64)


def simulated(q, k, v, causal, lift=0.0):
    """Return attention with one scale a tensor, and weights that are rounded as 2**lift times what they are."""
    scales = [np.abs(one).max() / 448 for one in (q, k, v)]
    q, k, v = (rounded(one / scale) for one, scale in zip((q, k, v), scales, strict=True))
    k, v = (one.repeat(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = q @ k.swapaxes(2, 3) * (scales[0] * scales[1] * q.shape[3] ** -0.5)
    scores = np.where(seen(q.shape[2], k.shape[2]), scores, -np.inf) if causal else scores
    powers = np.exp(scores - scores.max(3, keepdims=True)) * 2.0**lift
    return rounded(powers) @ v * scales[2] / powers.sum(3, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
def test_error_of_normal_numbers_and_outliers(causal):
    rng = np.random.default_rng(4)
    for outliers in (0.0, 10.0):
        q, k, v = operands(rng, (1, 2, 2, 300, 400, 64, 64), np.float64, outliers)
        exact = attention.reference(q, k, v, causal=causal)
        theirs = error(simulated(q, k, v, causal), exact)
        assert error(simulated(q, k, v, causal, kernels.LIFT), exact) < theirs  # fewer weights are subnormal
        ours = [one.astype(np.float32) for one in (q, k, v)]
        plain = error(attention(*ours, causal=causal), exact)
        both = error(attention(*ours, causal=causal, scale="block", hadamard=True), exact)
        assert plain < 1.02 * theirs
        assert both < 1.05 * plain
        assert both < 0.08
        if outliers:
            assert both < 0.9 * theirs


def test_the_same_as_a_simulation():
    rng = np.random.default_rng(5)
    q, k, v = (rounded(one) for one in operands(rng, (1, 1, 1, 100, 128, 64, 64), np.float64))
    for one in (q, k, v):
        one[0, 0, 0, 0] = 448 / 64  # the scale is a power of two, by which nothing more is rounded
        np.clip(one, -7, 7, out=one)
    found = attention(*(one.astype(np.float32) for one in (q, k, v)), causal=True)
    assert error(found, simulated(q, k, v, True, kernels.LIFT)) < 2e-3


@pytest.mark.parametrize(("dtype", "library"), [(ts.bf16, "torch"), (ts.f16, "numpy")], ids=str)
def test_dtypes(dtype, library):
    given = [one.astype(dtype.numpy()) for one in operands(np.random.default_rng(6))]
    exact = attention.reference(*given, causal=True)
    for options in ({}, {"scale": "block", "hadamard": True}) if library == "torch" else ({},):
        found = attention(*(lib.of_library(library, one) for one in given), causal=True, **options)
        assert arrays.dtype_of(found) == dtype
        assert error(found, exact) < 0.1
    assert attention(*given, dtype=ts.f32).dtype == np.float32


def test_large_small_and_zero_numbers():
    q, k, v = operands(np.random.default_rng(7))
    for factor in (1e-20, 1e15):
        exact = attention.reference(q, k * factor, v * factor, softmax_scale=0.2 / factor, causal=True)
        found = attention(q, k * np.float32(factor), v * np.float32(factor), softmax_scale=0.2 / factor, causal=True)
        assert error(found, exact) < 0.1
    found = attention(q, k * 0, v, causal=True)
    assert error(found, attention.reference(q, k * 0, v, causal=True)) < ROUND
    assert (attention(q, k, v * 0) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_is_not_hidden(bad, place):
    given = operands(np.random.default_rng(13))
    given[place][0, 0, 5, 3] = bad
    found = attention(*given)
    heads = found[0, :1] if place == 0 else found[0, :2]
    assert np.isnan(heads).all()
    assert np.isfinite(found[0, 2:]).all()
    assert np.isfinite(found[1]).all()


def test_graphs_and_gradients_of_pytorch():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    q, k, v = (torch.from_numpy(one) for one in operands(np.random.default_rng(8)))
    with pytest.raises(ts.errors.CallError, match="no-gradient"):
        attention(q.clone().requires_grad_(), k, v)
    found = torch.ops.tessera.flash_attention_fp8(q, k, v, None, None, None, 0.2, True, False, False, "bf16")
    assert torch.equal(found[0], attention(q, k, v, softmax_scale=0.2, causal=True, dtype=torch.bfloat16))


@pytest.mark.slow
def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    q, k, v = (torch.from_numpy(one) for one in operands(np.random.default_rng(12)))
    options = None, None, None, 0.25, True, True, True, "f32"
    torch.library.opcheck(torch.ops.tessera.flash_attention_fp8.default, (q, k, v, *options))


def padded(values, dtype):
    """Return values with keys along rows, as the kernel takes them."""
    b, g, n, e = values.shape
    found = np.zeros((b, g, e, -(-n // 128) * 128), dtype)
    found[..., :n] = values.swapaxes(2, 3)
    return np.ascontiguousarray(found.reshape(b, g, e, -1, 2, 16).swapaxes(4, 5)).reshape(found.shape)


@pytest.mark.parametrize(("target", "causal"), [("sm_80", False), ("sm_90a", True)])
def test_what_gpus_would_compute(target, causal):
    rng = np.random.default_rng(9)
    q, k, v = operands(rng, (1, 2, 1, 40, 200, 32, 32), E4M3)
    exact, sums = attention.reference(q, k, v, causal=causal, return_lse=True)
    ones = [np.ones(shape, np.float32) for shape in ((1, 2, 1), (1, 1, 1), (1, 1))]
    found, lse = np.full(exact.shape, np.nan, np.float32), np.full(sums.shape, np.nan, np.float32)
    given = {"causal": causal, "block": False, "empties": False, "C": ts.fp8_e4m3, "O": ts.f32}
    given |= forward_constants(Blocks(target_named(target), ts.fp8_e4m3, (32, 32)))
    sizes = {"B": 1, "H": 2, "G": 1, "M": 40, "N": 200, "L": 256, "D": 32, "E": 32, "X": 1, "Y": 1}
    arguments = [q, k, padded(v, E4M3), *ones, found, lse]
    emulated(kernels.forward, target, arguments, sizes, (32**-0.5,), **given)
    assert error(found, exact) < ROUND / 2
    lib.close(lse, sums, ts.f32, 2**8)
    again = np.full_like(found, np.nan)
    options = {name: one for name, one in given.items() if name not in "CO"}
    kernels.forward(*arguments[:6], again, None, 32**-0.5, **options)
    assert error(found, arrays.host(again)) < 2e-3


def test_three_warpgroups_of_hopper_divide_queries():
    target, rng = target_named("sm_90a"), np.random.default_rng(13)
    long = (4096, 4096), (64, 64), False
    given = forward_constants(blocks_of(target, ts.fp8_e4m3, (64, 64), *long, block=False))
    assert given == {"BM": 192, "BN": 128}
    assert forward_constants(blocks_of(target, ts.fp8_e4m3, (64, 64), *long, block=True)) == {"BM": 128, "BN": 128}
    q, k, v = operands(rng, (1, 1, 1, 200, 140, 64, 64), E4M3)
    exact = attention.reference(q, k, v)
    ones, found = (
        [np.ones(shape, np.float32) for shape in ((1, 1, 1), (1, 1, 1), (1, 1))],
        np.full(exact.shape, np.nan, np.float32),
    )
    given |= {"causal": False, "block": False, "empties": False, "C": ts.fp8_e4m3, "O": ts.f32, "lse": None}
    sizes = {"B": 1, "H": 1, "G": 1, "M": 200, "N": 140, "L": 256, "D": 64, "E": 64, "X": 1, "Y": 1}
    emulated(kernels.forward, "sm_90a", [q, k, padded(v, E4M3), *ones, found], sizes, (64**-0.5,), **given)
    assert error(found, exact) < ROUND / 2


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_gpus_would_round(target):
    (q, *_) = operands(np.random.default_rng(10), (1, 2, 1, 150, 1, 32, 16), np.float16)
    exact = q.astype(np.float64)
    sizes = {"B": 1, "H": 2, "M": 150, "D": 32}
    codes, scales = np.zeros(q.shape, E4M3), np.full((1, 2, 2), np.nan, np.float32)
    options = {"rotates": False, "T": ts.f16}
    emulated(kernels.quantize, target, [q, scales, codes], {**sizes, "X": 2}, (), found=None, **options)
    assert error(codes.astype(np.float64) * scales.repeat(128, 2)[:, :, :150, None], exact) < 0.03
    found, scales = np.full((1, 2, 2), np.nan, np.float32), np.full((1, 2, 1), np.nan, np.float32)
    emulated(kernels.largest, target, [q, found], {**sizes, "P": 2}, (), rotates=True, T=ts.f16)
    options["rotates"] = True
    emulated(kernels.quantize, target, [q, found, scales, codes], {**sizes, "X": 1, "P": 2}, (), **options)
    assert np.allclose(scales[..., 0], found.max(2) / 448, rtol=1e-6)
    wide = codes.astype(np.float64) * scales[..., None]
    products, others = (np.einsum("bhmd,bhnd->bhmn", one, one) for one in (wide, exact))
    assert error(products, others) < 0.04


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_how_gpus_would_turn_values(target):
    *_, v = operands(np.random.default_rng(11), (1, 1, 1, 1, 200, 16, 48), np.float16)
    found = np.array([[[2, np.abs(v).max()]]], np.float32)
    codes, scales = np.zeros((1, 1, 48, 256), E4M3), np.full((1, 1), np.nan, np.float32)
    sizes = {"B": 1, "G": 1, "N": 200, "E": 48, "L": 256}
    given = {"C": ts.fp8_e4m3}
    emulated(kernels.quantize_values, target, [v, found, scales, codes], {**sizes, "P": 2}, (), W=ts.f16, **given)
    assert error(codes.astype(np.float64) * scales, padded(v.astype(np.float64), np.float64)) < 0.03
    small = v.astype(E4M3)
    given |= {"W": ts.fp8_e4m3, "found": None, "scales": None}
    emulated(kernels.quantize_values, target, [small, codes], sizes, (), **given)
    assert (codes.view(np.uint8) == padded(small, E4M3).view(np.uint8)).all()


@pytest.mark.parametrize("head", [64, 128, 256])
def test_hopper_multiplies_in_8_bits_without_exchanges(head):
    made = attention.compile(head, target="sm_90a", causal=True, dump=["ptx"])
    ptx = made.dumps["ptx"]
    assert "wgmma.mma_async.sync.aligned.m64n" in ptx
    assert "k32.f32.e4m3.e4m3" in ptx
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") < ptx.count("ex2.approx")  # of two weights each
    assert "prmt" not in ptx
    assert ptx.count("nanosleep") == 1, "nothing keeps the wait for values behind the weights of the next keys"
    assert "st.shared" not in ptx
    assert lib.spills(made) == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "cpu"])
def test_kernels_compile_without_a_device(target):
    made = attention.compile(64, ts.fp8_e5m2, scale="block", target=target)
    assert target == "cpu" or lib.spills(made) == 0


Q = np.zeros((1, 2, 3, 16), np.float32)
C = Q.astype(E4M3)
WRONG = {
    "not-an-array": lambda: attention(3, Q, Q),
    "wrong-rank": lambda: attention(Q[0], Q, Q),
    "wrong-shape": lambda: attention(Q, Q[:, :, :, :8], Q),
    "wrong-shape of heads": lambda: attention(Q[..., :8], Q[..., :8], Q),
    "wrong-shape of wide heads": lambda: attention(Q, Q, np.zeros((1, 2, 3, 272), np.float32)),
    "wrong-shape, hadamard": lambda: attention(*[np.zeros((1, 1, 2, 48), np.float32)] * 3, hadamard=True),
    "wrong-shape of a scale": lambda: attention(C, C, C, q_scale=np.ones(2, np.float32)),
    "wrong-shape of out": lambda: attention(Q, Q, Q, out=Q[..., :4]),
    "wrong-dtype": lambda: attention(*[Q.astype(np.float64)] * 3),
    "wrong-dtype of keys": lambda: attention(Q, C, Q),
    "wrong-dtype of a scale": lambda: attention(C, C, C, k_scale=np.ones((1, 2))),
    "wrong-dtype of the result": lambda: attention(C, C, C, dtype=ts.f64),
    "wrong-dtype of out": lambda: attention(C, C, C, out=Q.copy()),
    "bad-argument, scale": lambda: attention(Q, Q, Q, scale="tensor"),
    "bad-argument, scale of rounded": lambda: attention(C, C, C, scale="block"),
    "bad-argument, scales": lambda: attention(Q, Q, Q, v_scale=2.0),
    "bad-argument, no scale": lambda: attention(C, C, C, q_scale=0.0),
    "bad-argument, softmax_scale": lambda: attention(Q, Q, Q, softmax_scale=-1.0),
    "bad-argument, layout": lambda: attention(Q, Q, Q, layout="sbhd"),
    "bad-argument, out is an input": lambda: attention(Q.copy(), Q, Q.copy(), out=Q),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0].strip(",")
    assert "test_flash_attention_fp8.py" in str(caught.value)


def test_costs():
    shape = (1, 2, 3, 16)
    assert attention.flops(shape, shape, shape) == 2 * 2 * 3 * 3 * 32
    assert attention.bytes(shape, shape, shape, ts.fp8_e4m3) == 5 * 96
