"""`gemm` on the CPU, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops.support import BOUND, error, random

E = op.epilogue
gemm, batched = op.linalg.gemm, op.linalg.gemm_batched

DTYPES = (ts.f32, ts.f64, ts.f16, ts.bf16, ts.fp8_e4m3, ts.fp8_e5m2, ts.i8, ts.u8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    a, b = random(37, 77, dtype=dtype), random(77, 45, dtype=dtype)
    got = gemm(a, b)
    out = {"fp8_e4m3": "bf16", "fp8_e5m2": "bf16", "i8": "i32", "u8": "i32"}.get(dtype.name, dtype.name)
    assert got.dtype == getattr(ts, out).numpy()
    assert error(got, a.astype(np.float64) @ b.astype(np.float64)) <= BOUND[out]


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 70), (300, 1, 5), (64, 64, 64), (17, 33, 129)])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_shapes_and_transposes(shape, trans):
    m, n, k = shape
    a = random(k, m) if trans[0] else random(m, k)
    b = random(n, k) if trans[1] else random(k, n)
    got = gemm(a, b, trans_a=trans[0], trans_b=trans[1])
    exact = (a.T if trans[0] else a).astype(np.float64) @ (b.T if trans[1] else b).astype(np.float64)
    assert error(got, exact) < BOUND["f32"]


def test_operands_of_any_strides():
    a, b = random(90, 80), random(80, 60)
    views = [
        (a.T[:77], b[:, ::2][: 90 // 1]),
        (a[::3, ::2], b[::2, 1:58]),
        (a[::-1], b),
        (a[:, ::-1], b[::-1]),
    ]
    for left, right in views:
        right = right[: left.shape[1]]
        left = left[:, : right.shape[0]]
        assert error(gemm(left, right), left.astype(np.float64) @ right.astype(np.float64)) < BOUND["f32"]


def test_alpha_beta_out_and_epilogue():
    a, b, c, bias = random(37, 77), random(77, 45), random(37, 45), random(45)
    chain = E.chain([E.bias(bias), E.gelu()])
    out = np.full_like(c, np.nan)
    exact = 0.5 * (a.astype(np.float64) @ b) - 2.0 * c + bias
    got = gemm(a, b, c, out=out, alpha=0.5, beta=-2.0, epilogue=chain)
    assert got is out
    assert error(got, E.gelu().reference(exact)) < BOUND["f32"]
    assert error(gemm(a, b, c, out=c, beta=1.0), a.astype(np.float64) @ b + random(37, 45)) < BOUND["f32"]


def test_sizes_of_zero():
    a, b, c = random(5, 7), random(7, 3), random(5, 3)
    assert gemm(a[:0], b).shape == (0, 3)
    assert gemm(a, b[:, :0]).shape == (5, 0)
    np.testing.assert_array_equal(gemm(a[:, :0], b[:0]), np.zeros((5, 3), np.float32))
    chain = E.chain([E.scale(2.0)])
    np.testing.assert_array_equal(gemm(a[:, :0], b[:0], c, beta=1.0, epilogue=chain), 2 * c)


def test_integers_stay_exact_and_become_floats_for_an_epilogue():
    a, b, scale = random(20, 300, dtype=ts.i8), random(300, 30, dtype=ts.i8), random(30)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(gemm(a, b), exact)
    got = gemm(a, b, epilogue=E.chain([E.dequant(scale)]))
    assert got.dtype == np.float32
    assert error(got, exact * scale.astype(np.float64)) < BOUND["f32"]


def test_the_result_has_the_dtype_asked_for():
    a, b = random(9, 8, dtype=ts.bf16), random(8, 7, dtype=ts.bf16)
    assert gemm(a, b, out_dtype=ts.f32).dtype == np.float32
    assert gemm(a, b, epilogue=E.chain([E.cast(ts.f16)])).dtype == np.float16


@pytest.mark.parametrize("part", ["lower", "upper"])
def test_triangular_results(part):
    a, b, old = random(100, 70), random(70, 130), random(100, 130, seed=5)
    keep = np.tril if part == "lower" else np.triu
    exact = keep(a.astype(np.float64) @ b)
    assert error(gemm(a, b, triangular_only=part), exact) < BOUND["f32"]
    out = old.copy()
    gemm(a, b, out=out, triangular_only=part, block=(32, 64, 32))
    assert error(out, exact + old - keep(old)) < BOUND["f32"]


SCALES = {
    "numbers": (2.5, 0.5),
    "elements": (random(1), random(1, 1)),
    "vectors": (random(137), random(150)),
    "columns": (random(137, 1), random(1, 150)),
    "rows of blocks, blocks": (random(137, 3), random(3, 2)),
    "blocks, columns of blocks": (random(2, 3), random(3, 150)),
    "one side": (None, random(3, 2)),
    "blocks and a vector": (random(137), random(3, 2)),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_fp8_operands(name):
    a, b = random(137, 300, dtype=ts.fp8_e4m3), random(150, 300, dtype=ts.fp8_e5m2)
    scale_a, scale_b = SCALES[name]
    got = gemm(a, b, trans_b=True, scale_a=scale_a, scale_b=scale_b, out_dtype=ts.f32, alpha=2.0)

    def full(scale, shape):
        """Return the factor of every element, one by one."""
        if scale is None or np.size(scale) == 1:
            return np.full(shape, 1.0 if scale is None else np.ravel(scale)[0], np.float64)
        table = np.reshape(scale, (-1, 1) if shape[0] == 137 else (1, -1)) if np.ndim(scale) == 1 else scale
        step = [1 if table.shape[axis] in (1, shape[axis]) else 128 for axis in (0, 1)]
        last = [table.shape[axis] - 1 for axis in (0, 1)]
        return np.array(
            [
                [table[min(i // step[0], last[0]), min(j // step[1], last[1])] for j in range(shape[1])]
                for i in range(shape[0])
            ],
            np.float64,
        )

    left = a.astype(np.float64) * full(scale_a, (137, 300))
    right = b.T.astype(np.float64) * full(scale_b, (300, 150))
    assert error(got, 2 * (left @ right)) < BOUND["f32"]
    assert (
        error(
            gemm.reference(a, b, trans_b=True, scale_a=scale_a, scale_b=scale_b, alpha=2.0),
            2 * (left @ right),
        )
        < 1e-12
    )


def test_calls_that_differ_in_a_scale_or_the_result_are_told_apart():
    a, b = random(9, 8), random(8, 7)
    exact = a.astype(np.float64) @ b
    for scale in (None, 2.0, np.float32(3.0), 4):
        got = gemm(a, b, scale_a=scale)
        assert error(got, exact * (1 if scale is None else float(scale))) < BOUND["f32"]
    for kind in (np.float32, np.float64, np.float16):
        out = np.zeros((9, 7), kind)
        gemm(a, b, out=out)
        assert error(out, exact) < 1e-3
    for alpha, beta in ((1.0, 0.0), (2.0, 0.0), (1.0, 3.0), (2.0, 3.0)):
        got = gemm(a, b, a[:, :7], alpha=alpha, beta=beta)
        assert error(got, alpha * exact + beta * a[:, :7]) < BOUND["f32"]


def test_promotion_sums_blocks_apart():
    a, b = random(30, 300, dtype=ts.fp8_e4m3), random(300, 40, dtype=ts.fp8_e4m3)
    got = gemm(a, b, promote=128, out_dtype=ts.f32)
    assert error(got, a.astype(np.float64) @ b.astype(np.float64)) < BOUND["f32"]


def test_batches():
    a, b = random(3, 37, 50), random(3, 50, 41)
    exact = a.astype(np.float64) @ b
    assert error(batched(a, b), exact) < BOUND["f32"]
    assert error(batched(a, b[1]), a.astype(np.float64) @ b[1]) < BOUND["f32"]
    assert error(batched(a[1], b), a[1].astype(np.float64) @ b) < BOUND["f32"]
    repeated, same = np.broadcast_to(a[1], a.shape), np.broadcast_to(b[1], b.shape)
    assert error(batched(repeated, b), a[1].astype(np.float64) @ b) < BOUND["f32"]
    assert error(batched(repeated, same), np.stack([a[1].astype(np.float64) @ b[1]] * 3)) < BOUND["f32"]
    for steps in (
        [E.bias(random(41))],
        [E.bias(random(3, 41))],
        [E.residual(random(3, 37, 41))],
        [E.dropout(0.5, 3)],
    ):
        chain = E.chain(steps)
        assert error(batched(a, b, epilogue=chain), chain.reference(exact)) < BOUND["f32"]


A, B, SQUARE = random(5, 7), random(7, 3), random(7, 7)

BAD = {
    "inner dims": (lambda: gemm(A, B[1:]), "wrong-shape", "7 != 6"),
    "dtype pair": (lambda: gemm(A, B.astype(np.float16)), "unsupported-dtypes", "f32 and f16"),
    "dtype": (lambda: gemm(A.astype(np.int16), B.astype(np.int16)), "unsupported-dtypes", "i16"),
    "rank": (lambda: gemm(A[0], B), "wrong-rank", "'a'"),
    "out": (lambda: gemm(A, B, out=np.empty((5, 4), np.float32)), "wrong-shape", "'out'"),
    "out is b": (lambda: gemm(A.T @ A, SQUARE, out=SQUARE), "bad-argument", "out is an operand"),
    "out is another view of a residual": (
        lambda: gemm(A.T @ A, A.T @ A, out=SQUARE, epilogue=E.chain([E.relu(), E.residual(SQUARE.T)])),
        "bad-argument",
        "another view of a tensor of the epilogue",
    ),
    "out is a scale": (
        lambda: gemm(A.T @ A, A.T @ A, out=SQUARE, scale_a=SQUARE[0]),
        "bad-argument",
        "another view of scale_a",
    ),
    "out is another view of c": (
        lambda: gemm(A.T @ A, A.T @ A, SQUARE.T, out=SQUARE, beta=1.0),
        "bad-argument",
        "another view of c",
    ),
    "out is a view of a": (lambda: gemm(SQUARE, A.T @ A, out=SQUARE.T), "bad-argument", "out is an operand"),
    "empty out": (lambda: gemm(A[:0], B, out=np.empty((1, 3), np.float32)), "wrong-shape", "'out'"),
    "bias": (
        lambda: gemm(A, B, epilogue=E.chain([E.bias(random(4))])),
        "wrong-shape",
        "'epilogue.bias.values'",
    ),
    "a step alone": (lambda: gemm(A, B, epilogue=E.relu()), "not-a-structure", "'epilogue'"),
    "a list": (lambda: gemm(A, B, epilogue=[E.relu()]), "not-a-structure", "'epilogue'"),
    "beta": (lambda: gemm(A, B, beta=1.0), "argument-count", "no c"),
    "triangle": (lambda: gemm(A, B, triangular_only="left"), "bad-argument", "triangular_only"),
    "block": (lambda: gemm(A, B, block=(8, 8)), "bad-argument", "block"),
    "split": (lambda: gemm(A, B, split_k=3), "bad-argument", "split_k"),
    "turns": (lambda: gemm(A, B, ping_pong=2), "bad-argument", "ping_pong"),
    "stream": (lambda: gemm(A, B, stream_k=2), "bad-argument", "stream_k"),
    "mma_kind": (lambda: gemm(A, B, mma_kind="wgmma"), "unsupported-mma-kind", "wgmma"),
    "scale": (lambda: gemm(A, B, scale_a=random(3)), "wrong-shape", "'scale_a'"),
    "compute": (
        lambda: gemm(A.astype(np.float64), B.astype(np.float64), compute=ts.tf32),
        "unsupported-dtypes",
        "tf32",
    ),
    "acc_dtype": (lambda: gemm(A, B, acc_dtype=ts.f16), "unsupported-dtypes", "f16"),
    "not an array": (lambda: gemm([[1.0]], B), "not-an-array", "'a'"),
    "batch": (lambda: batched(random(2, 3, 4), random(3, 4, 5)), "wrong-shape", "2"),
    "option": (lambda: gemm.plan(5, 3, 7, ts.f32, target="cpu", tile=3), "unknown-keyword", "tile"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_typed_error_at_the_call(name):
    call, code, text = BAD[name]
    with pytest.raises(ts.CallError) as caught:
        call()
    assert caught.value.code == code
    assert text in caught.value.message
    assert caught.value.location is None or caught.value.location.frame.file.endswith("test_gemm.py")


def test_a_misaligned_pointer_is_refused_and_an_odd_one_works():
    memory = np.zeros(5 * 7 * 4 + 8, np.uint8)
    with pytest.raises(ts.CallError) as caught:
        gemm(memory[2 : 2 + 140].view(np.float32).reshape(5, 7), B)
    assert caught.value.code == "misaligned"
    odd = memory[4:144].view(np.float32).reshape(5, 7)
    odd[...] = A
    assert error(gemm(odd, B), A.astype(np.float64) @ B) < BOUND["f32"]


def test_calls_of_a_known_kind_are_checked_as_the_first_one_is():
    x, y, out = random(9, 9), random(9, 9), np.empty((9, 9), np.float32)
    exact = x.astype(np.float64) @ y
    for _ in range(6):
        assert error(gemm(x, y, out=out), exact) < BOUND["f32"]
    for wrong in (x, y, x[:], y.view()):
        with pytest.raises(ts.CallError) as caught:
            gemm(x, y, out=wrong)
        assert caught.value.code == "bad-argument"
        assert "out is" in caught.value.message
        assert caught.value.location.frame.file.endswith("test_gemm.py")
    locked = out.copy()
    locked.flags.writeable = False
    with pytest.raises(ts.CallError):
        gemm(x, y, out=locked)
    memory = np.zeros(9 * 9 * 4 + 2, np.uint8)
    with pytest.raises(ts.CallError) as caught:
        gemm(memory[2:].view(np.float32).reshape(9, 9), y, out=out)
    assert caught.value.code == "misaligned"
    assert error(gemm(x, y, out=out), exact) < BOUND["f32"]
    assert error(gemm(x, x, out=out), x.astype(np.float64) @ x) < BOUND["f32"]
    assert error(gemm(x[:5], y, out=out[:5]), exact[:5]) < BOUND["f32"]


def test_explain_tells_plan_and_kernel():
    gemm(A, B, cta_pairs=True)
    told = gemm.explain()
    assert told["plan"]["path"] == "vector"
    assert any("cta_pairs" in note for note in told["plan"]["notes"])
    assert told["kernel"].backend == "cpu"


def test_counts():
    assert gemm.flops(2, 3, 4) == 48
    assert gemm.bytes(2, 3, 4, ts.bf16, ts.f32) == 2 * (8 + 12) + 24


def test_the_interpreter_agrees(monkeypatch):
    from tessera.driver.settings import settings

    monkeypatch.setattr(settings(), "interpret", True)
    a, b, bias = random(19, 40), random(40, 21), random(21)
    chain = E.chain([E.bias(bias), E.silu()])
    got = gemm(a, b, epilogue=chain, out=np.empty((19, 21), np.float32), block=(16, 16, 32))
    assert error(got, chain.reference(a.astype(np.float64) @ b)) < BOUND["f32"]


def test_deterministic_results_are_the_same_bits_on_every_run():
    a, b, rows, cols = (
        random(200, 300),
        random(300, 150),
        np.empty(200, np.float32),
        np.empty(150, np.float32),
    )
    chain = E.chain([E.row_sum(rows), E.col_sum(cols), E.gelu()])
    seen = set()
    with ts.numerics.profile("deterministic"):
        for _ in range(100):
            seen.add((gemm(a, b, epilogue=chain).tobytes(), rows.tobytes(), cols.tobytes()))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("odd", "right", "code"),
    [
        (dict(alpha=np.array(2.0)), dict(alpha=2.0), ""),
        (dict(beta=np.array(2.0)), dict(beta=2.0), ""),
        (dict(promote=128.0), dict(promote=128), "bad-argument"),
        (dict(alpha="2"), dict(alpha=2.0), "bad-argument"),
        (dict(stages=2.0), dict(stages=2), "bad-argument"),
        (dict(block=[32, 32, 32]), dict(block=(32, 32, 32)), "bad-argument"),
        (dict(out_dtype="f32"), dict(out_dtype=ts.f32), "bad-argument"),
        (dict(acc_dtype="f32"), dict(acc_dtype=ts.f32), "bad-argument"),
        (dict(compute="tf32"), dict(compute=ts.tf32), "bad-argument"),
    ],
    ids=str,
)
def test_an_odd_argument_leaves_later_calls_as_they_are(odd, right, code):
    a, b, c = random(16, 128), random(128, 16, seed=1), random(16, 16, seed=2)
    if code:
        with pytest.raises(ts.CallError, match=next(iter(odd))) as caught:
            gemm(a, b, c, **odd)
        assert caught.value.code == code
    else:
        np.testing.assert_array_equal(gemm(a, b, c, **odd), gemm(a, b, c, **right))
    scale, addend = right.get("alpha", 1), right.get("beta", 0)
    exact = scale * (a.astype(np.float64) @ b) + addend * c
    assert error(gemm(a, b, c, **right), exact) < (2e-3 if "compute" in right else BOUND["f32"])


@pytest.mark.parametrize("rows", [2, 5, 128, 200])
def test_scales_of_few_blocks_mean_the_same_in_the_reference(rows):
    for terms in (100, 128, 256, 300):
        a, b = random(rows, terms), random(terms, rows, seed=1)
        blocks, many = -(-terms // 128), -(-rows // 128)
        scale = 1 + np.arange(many * blocks, dtype=np.float32).reshape(many, blocks)
        spread = scale.repeat(128, 0).repeat(128, 1)[:rows, :terms]
        exact = [(a.astype(np.float64) * spread) @ b, a.astype(np.float64) @ (b.astype(np.float64) * spread.T)]
        for scales, wanted in zip((dict(scale_a=scale), dict(scale_b=scale.T)), exact, strict=True):
            assert error(gemm.reference(a, b, **scales), wanted) < 1e-12
            assert error(gemm(a, b, **scales), wanted) < BOUND["f32"]


def test_a_float_result_is_not_cut_to_integers():
    a, b, out = random(8, 8), random(8, 8), np.zeros((8, 8), np.int32)
    with pytest.raises(ts.CallError, match="'out' is i32") as caught:
        gemm(a, b, out=out)
    assert caught.value.code == "unsupported-dtypes"
    gemm(10 * a, b, out=out, epilogue=E.chain([E.cast(ts.i32)]))
    np.testing.assert_array_equal(out, np.trunc(10 * a @ b))


def test_a_reduction_is_not_written_to_the_result():
    a, b, out = random(16, 8), random(8, 16), np.zeros((16, 17), np.float32)
    for column, refused in ((0, "bad-argument"), (3, "overlapping-arguments"), (16, "")):
        chain = E.chain([E.row_sum(out[:, column])])
        if refused:
            with pytest.raises(ts.CallError) as caught:
                gemm(a, b, out=out[:, :16], epilogue=chain)
            assert caught.value.code == refused
        else:
            gemm(a, b, out=out[:, :16], epilogue=chain)
    exact = a.astype(np.float64) @ b
    assert error(out[:, :16], exact) < BOUND["f32"]
    assert error(out[:, 16], exact.sum(1)) < BOUND["f32"]


def test_sizes_of_other_libraries_are_integers():
    sizes = [np.int32(4096)] * 3
    assert gemm.flops(*sizes) == 2 * 4096**3
    assert gemm.bytes(*sizes, ts.f32) == 3 * 4 * 4096**2
    assert op.linalg.linear.flops(*sizes) == (2 * 4096 + 1) * 4096**2
    assert gemm.plan(*map(np.int64, (64, 64, 64)), ts.f32, target="cpu") == gemm.plan(64, 64, 64, ts.f32, target="cpu")
    assert gemm.compile(np.int64(32), np.int64(32), np.int64(32), ts.f32, target="cpu").code


def test_plans_of_tall_products_take_no_time():
    tall = [gemm.plan(rows, 64, 64, ts.f32, target="cpu") for rows in (2**30, 2**60)]
    assert tall[0].block_m == tall[1].block_m


def test_seeds_of_other_libraries_are_integers():
    a, b = random(16, 16), random(16, 16)
    one, other = (gemm(a, b, epilogue=E.chain([E.dropout(0.5, seed)])) for seed in (5, np.uint64(5)))
    np.testing.assert_array_equal(one, other)
