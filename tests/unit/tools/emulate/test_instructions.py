"""Single instructions against NumPy, exact fractions and the tables of the PTX ISA."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault, Malformed, Unknown
from tessera.tools.emulate.parse import parse
from tests.unit.tools.emulate.running import run

RNG = np.random.default_rng(7)
WORDS = RNG.integers(0, 2**32, (3, 32), np.uint32)
DOUBLES = RNG.integers(0, 2**64, (2, 32), np.uint64)
FLOATS = (RNG.standard_normal((3, 32)) * 2.0 ** RNG.integers(-20, 20, (3, 32))).astype(np.float32)
LANES = np.arange(32)


def one(body: str, inputs: Any, register: str, dtype: Any) -> Any:
    return run(body, inputs, {register: dtype})[0]


def big(values: Any) -> list[int]:
    return [int(value) for value in values]


@pytest.mark.parametrize("fn", ["add", "min", "max"])
@pytest.mark.parametrize(("kind", "half"), [("u16x2", np.uint16), ("s16x2", np.int16)])
def test_pairs_of_16_bits_do_not_carry(fn: str, kind: str, half: Any) -> None:
    a, b = WORDS[:2]
    expected = {"add": np.add, "min": np.minimum, "max": np.maximum}[fn](a.view(half), b.view(half))
    found = one(f"{fn}.{kind} %r9, %r1, %r2;", [a, b], "%r9", np.uint32)
    np.testing.assert_array_equal(found.view(half), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.s32 %r9, %r1, %r2;", lambda a, b, c: a + b),
        ("sub.u32 %r9, %r1, %r2;", lambda a, b, c: a - b),
        ("mul.lo.s32 %r9, %r1, %r2;", lambda a, b, c: a * b),
        ("mul.hi.u32 %r9, %r1, %r2;", lambda a, b, c: a * b >> 32),
        ("mad.lo.s32 %r9, %r1, %r2, %r3;", lambda a, b, c: a * b + c),
        ("div.u32 %r9, %r1, %r2;", lambda a, b, c: a // b),
        ("rem.u32 %r9, %r1, %r2;", lambda a, b, c: a % b),
        ("min.u32 %r9, %r1, %r2;", lambda a, b, c: min(a, b)),
        ("and.b32 %r9, %r1, %r2;", lambda a, b, c: a & b),
        ("not.b32 %r9, %r1;", lambda a, b, c: ~a),
        ("popc.b32 %r9, %r1;", lambda a, b, c: a.bit_count()),
        ("clz.b32 %r9, %r1;", lambda a, b, c: 32 - a.bit_length()),
        ("brev.b32 %r9, %r1;", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
        ("shl.b32 %r9, %r1, %r0;", lambda a, b, c: a << 3),
        ("shf.l.wrap.b32 %r9, %r1, %r2, 5;", lambda a, b, c: b << 5 | a >> 27),
        ("shf.r.wrap.b32 %r9, %r1, %r2, 5;", lambda a, b, c: (b << 32 | a) >> 5),
        ("bfe.u32 %r9, %r1, 5, 7;", lambda a, b, c: a >> 5 & 127),
        ("bfe.s32 %r9, %r1, 5, 7;", lambda a, b, c: ((a >> 5 & 127) ^ 64) - 64),
        ("bfe.u32 %r9, %r1, 30, 9;", lambda a, b, c: a >> 30),
        ("bfi.b32 %r9, %r1, %r2, 8, 4;", lambda a, b, c: b & ~0xF00 | (a & 15) << 8),
        ("lop3.b32 %r9, %r1, %r2, %r3, 0xE2;", lambda a, b, c: (b & a) | (~b & c)),
        ("prmt.b32.f4e %r9, %r1, %r2, 3;", lambda a, b, c: (a >> 24) | (b & 0xFFFFFF) << 8),
        ("prmt.b32.f4e %r9, %r1, %r2, %r3;", lambda a, b, c: ((b << 32 | a) >> 8 * (c & 3)) & 0xFFFFFFFF),
        ("prmt.b32 %r9, %r1, %r2, 0x7421;", lambda a, b, c: (a >> 8 & 0xFFFF) | (b & 255) << 16 | (b >> 24) << 24),
    ],
)
def test_integers(text: str, expected: Any) -> None:
    if "%r0" in text:
        text = "mov.u32 %r0, 3; " + text
    found = one(text, WORDS, "%r9", np.uint32)
    wanted = [expected(a, b, c) % 2**32 for a, b, c in zip(*map(big, WORDS), strict=True)]
    assert big(found) == wanted


def test_wide_products_and_high_halves() -> None:
    a, b = map(big, DOUBLES)
    assert big(one("mul.hi.u64 %d9, %d1, %d2;", DOUBLES, "%d9", np.uint64)) == [
        x * y >> 64 for x, y in zip(a, b, strict=True)
    ]
    signed = [big(row) for row in DOUBLES.view(np.int64)]
    assert big(one("mul.hi.s64 %d9, %d1, %d2;", DOUBLES, "%d9", np.int64)) == [
        x * y >> 64 for x, y in zip(*signed, strict=True)
    ]
    assert big(one("mul.wide.s32 %d9, %r1, %r2;", WORDS, "%d9", np.int64)) == [
        x * y for x, y in zip(*map(big, WORDS.view(np.int32)[:2]), strict=True)
    ]


def test_signed_division_goes_towards_zero_and_shifts_are_clamped() -> None:
    a = np.array([-7, 7, -(2**31), 5] * 8, np.int32)
    b = np.array([2, -2, 3, -7] * 8, np.int32)
    assert list(one("div.s32 %r9, %r1, %r2;", [a, b], "%r9", np.int32)[:4]) == [-3, -3, -715827882, 0]
    assert list(one("rem.s32 %r9, %r1, %r2;", [a, b], "%r9", np.int32)[:4]) == [-1, 1, -2, 5]
    by = np.array([0, 31, 32, 200] * 8, np.uint32)
    ones = np.full(32, 0x80000001, np.uint32)
    assert list(one("shr.u32 %r9, %r1, %r2;", [ones, by], "%r9", np.uint32)[:4]) == [0x80000001, 1, 0, 0]
    assert list(one("shr.s32 %r9, %r1, %r2;", [ones, by], "%r9", np.int32)[:4]) == [-(2**31) + 1, -1, -1, -1]


def rounded(value: Fraction, bits: int) -> float:
    """Return the nearest number of so many bits, ties to even; subnormal numbers are not met here."""
    if value == 0:
        return 0.0
    exponent = 0
    scaled = abs(value)
    while scaled >= 2**bits:
        scaled, exponent = scaled / 2, exponent + 1
    while scaled < 2 ** (bits - 1):
        scaled, exponent = scaled * 2, exponent - 1
    whole = round(scaled)
    return float(whole * Fraction(2) ** exponent * (1 if value > 0 else -1))


def test_fused_products_are_rounded_once() -> None:
    a, b = FLOATS[:2]
    near = (-(a.astype(np.float64) * b)).astype(np.float32)  # what is left is a rounding error
    for c in (FLOATS[2], near):
        found = one("fma.rn.f32 %r9, %r1, %r2, %r3;", [a, b, c], "%r9", np.float32)
        exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
        assert [float(value) for value in found] == [rounded(value, 24) for value in exact]


@pytest.mark.parametrize("scale", [1.0, 2.0**-600, 2.0**510])
def test_fused_products_of_doubles_are_rounded_once(scale: float) -> None:
    a, b = RNG.standard_normal((2, 32)) * scale
    for c in (RNG.standard_normal(32), -(a * b)):
        found = one("fma.rn.f64 %d9, %d1, %d2, %d3;", [a, b, c], "%d9", np.float64)
        exact = [
            Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(*map(np.ndarray.tolist, (a, b, c)), strict=True)
        ]
        assert found.tolist() == [float(value) for value in exact]


def test_halves() -> None:
    a, b, c = (RNG.standard_normal((3, 32)) * 8).astype(np.float16)
    found = one("add.rn.f16 %h9, %h1, %h2;", [a, b], "%h9", np.float16)
    np.testing.assert_array_equal(found, (a.astype(np.float64) + b).astype(np.float16))
    x, y = (a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16))
    bits = one("mul.rn.bf16 %h9, %h1, %h2;", [x.view(np.uint16), y.view(np.uint16)], "%h9", np.uint16)
    exact = (x.astype(np.float32) * y.astype(np.float32)).astype(ml_dtypes.bfloat16)  # the product is exact in f32
    np.testing.assert_array_equal(bits, exact.view(np.uint16))
    fused = one("fma.rn.f16 %h9, %h1, %h2, %h3;", [a, b, c], "%h9", np.float16)
    exact_sums = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c, strict=True)]
    assert [float(value) for value in fused] == [rounded(value, 11) for value in exact_sums]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_beside_an_f32(kind: str) -> None:
    """`add.f32.f16 d, a, c` is `a + c` rounded once, where `c` and `d` alone are f32 (sm_100 and above)."""
    wide, c = (RNG.standard_normal((2, 32)) * 8).astype(np.float32), FLOATS[2]
    a, b = wide.astype({"f16": np.float16, "bf16": ml_dtypes.bfloat16}[kind])
    bits = [value.view(np.uint16) for value in (a, b)]
    for text, inputs, expected in (
        (f"add.rn.f32.{kind} %r9, %h1, %r2;", [bits[0], c], lambda x, y, z: x + z),
        (f"sub.f32.{kind} %r9, %h1, %r2;", [bits[0], c], lambda x, y, z: x - z),
        (f"fma.rn.f32.{kind} %r9, %h1, %h2, %r3;", [*bits, c], lambda x, y, z: x * y + z),
    ):
        exact = [
            expected(*map(Fraction, values))
            for values in zip(*(value.astype(np.float64).tolist() for value in (a, b, c)), strict=True)
        ]
        found = one(text, inputs, "%r9", np.float32)
        assert [float(value) for value in found] == [rounded(value, 24) for value in exact]
    with pytest.raises(Unknown):
        one(f"add.rz.f32.{kind} %r9, %h1, %r2;", [bits[0], c], "%r9", np.float32)


def test_minima_know_zeros_signs_and_nan() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0] * 8, np.float32)
    b = np.array([-0.0, 0.0, 2.0, np.nan] * 8, np.float32)
    low = one("min.f32 %r9, %r1, %r2;", [a, b], "%r9", np.float32)
    assert np.signbit(low[:2]).all()
    assert list(low[2:4]) == [2.0, 1.0]
    assert np.isnan(one("max.NaN.f32 %r9, %r1, %r2;", [a, b], "%r9", np.float32)[2:4]).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lt", "1000"), ("ltu", "1011"), ("ne", "1100"), ("neu", "1111"), ("num", "1100"), ("nan", "0011")],
)
def test_comparisons_with_nan(name: str, expected: str) -> None:
    a = np.array([1.0, 3.0, np.nan, 1.0] * 8, np.float32)
    b = np.array([2.0, 2.0, 2.0, np.nan] * 8, np.float32)
    found = one(f"setp.{name}.f32 %p1, %r1, %r2; selp.b32 %r9, 1, 0, %p1;", [a, b], "%r9", np.uint32)
    assert "".join(map(str, found[:4])) == expected


@pytest.mark.parametrize(("kind", "half"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)])
def test_comparisons_of_both_halves_of_a_word(kind: str, half: Any) -> None:
    a, b = (RNG.integers(-2, 3, (2, 64)) * 0.5).astype(half)
    a[::7] = np.nan
    body = f"setp.lt.{kind} %p1|%p2, %r1, %r2; selp.b32 %r8, 1, 0, %p1; selp.b32 %r9, 1, 0, %p2;"
    low, high = run(body, [a.view(np.uint32), b.view(np.uint32)], {"%r8": np.uint32, "%r9": np.uint32})
    expected = (a.astype(np.float32) < b.astype(np.float32)).reshape(32, 2)
    np.testing.assert_array_equal(np.stack([low, high], 1), expected)
    assert expected.any(0).all()


def test_conversions_to_integers_saturate() -> None:
    a = np.array([2.5, -3.5, 1e20, np.nan] * 8, np.float32)
    assert list(one("cvt.rni.s32.f32 %r9, %r1;", [a], "%r9", np.int32)[:4]) == [2, -4, 2**31 - 1, 0]
    assert list(one("cvt.rzi.u32.f32 %r9, %r1;", [a], "%r9", np.uint32)[:4]) == [2, 0, 2**32 - 1, 0]
    assert list(one("cvt.rmi.s64.f32 %d9, %r1;", [a], "%d9", np.int64)[:4]) == [2, -4, 2**63 - 1, -(2**63)]


def test_conversions_of_large_integers_are_rounded_once() -> None:
    a = np.array([2**63 + 2**39 + 1, 2**53 + 1, 2**24 + 1, 2**64 - 1] * 8, np.uint64)
    assert list(one("cvt.rn.f32.u64 %r9, %d1;", [a], "%r9", np.float32)[:4]) == [
        2.0**63 + 2.0**40,
        2.0**53,
        2.0**24,
        2.0**64,
    ]
    assert list(one("cvt.rn.f64.u64 %d9, %d1;", [a], "%d9", np.float64)[:2]) == [2.0**63 + 2.0**39, 2.0**53]


def test_directed_conversions() -> None:
    a = np.array([1 + 2.0**-40, -1 - 2.0**-40] * 16)
    up, down = np.float32(1 + 2.0**-23), np.float32(1)
    for mode, expected in {"rz": [down, -down], "rp": [up, -down], "rm": [down, -up], "rn": [down, -down]}.items():
        assert list(one(f"cvt.{mode}.f32.f64 %r9, %d1;", [a], "%r9", np.float32)[:2]) == expected


def test_narrow_floats() -> None:
    a = np.array([1.0625, 1.1875, 1000.0, -0.0009] * 8, np.float32)
    b = np.array([448.0, -17.5, np.nan, 2.0**-9] * 8, np.float32)
    words = one("cvt.rn.satfinite.e4m3x2.f32 %h9, %r1, %r2;", [a, b], "%h9", np.uint16)
    parts = np.ascontiguousarray(words).view(ml_dtypes.float8_e4m3fn).reshape(-1, 2).astype(np.float32)[:4]
    assert list(parts[:, 1]) == [1.0, 1.25, 448.0, 0.0]  # ties to even; overflow is the largest number
    assert parts[:2, 0].tolist() == [448.0, -18.0]
    assert np.isnan(parts[2, 0])
    pairs = one("cvt.rn.f16x2.e4m3x2 %r9, %h1;", [words], "%r9", np.uint32)
    np.testing.assert_array_equal(
        np.ascontiguousarray(pairs).view(np.float16).reshape(-1, 2)[:4], parts.astype(np.float16)
    )
    tf32 = one("cvt.rna.tf32.f32 %r9, %r1;", [np.full(32, 1 + 2.0**-11, np.float32)], "%r9", np.float32)
    assert tf32[0] == 1 + 2.0**-10  # ties away from zero


def test_vectors_and_halves_of_words() -> None:
    body = "mov.b32 {%h1, %h2}, %r1; mov.b32 %r9, {%h2, %h1}; mov.b64 %d9, {%r1, %r9};"
    (found,) = run(body, WORDS[:1], {"%d9": np.uint64})
    swapped = WORDS[0] >> 16 | WORDS[0] << 16
    np.testing.assert_array_equal(found, swapped.astype(np.uint64) << 32 | WORDS[0])


def test_carries() -> None:
    body = "add.cc.s64 %d8, %d1, %d2; addc.s64 %d9, %d1, %d2; sub.cc.s64 %d10, %d2, %d1; subc.s64 %d11, %d1, %d2;"
    found = run(body, DOUBLES, {f"%d{number}": np.uint64 for number in (8, 9, 10, 11)})
    a, b = map(big, DOUBLES)
    both = [(x << 64 | x) + (y << 64 | y) for x, y in zip(a, b, strict=True)]
    apart = [(x << 64 | y) - (y << 64 | x) for x, y in zip(a, b, strict=True)]
    low, high = 2**64 - 1, 2**128 - 1
    assert [big(part) for part in found] == [
        [value & low for value in both],
        [(value & high) >> 64 for value in both],
        [value & low for value in apart],
        [(value & high) >> 64 for value in apart],
    ]


def test_a_function_is_called_in_a_branch() -> None:
    function = """
.func (.param .align 8 .b8 result[12]) half(.param .b64 half_param_0, .param .b32 half_param_1)
{
    .reg .pred %p<2>; .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.b64 %rd1, [half_param_0]; ld.param.b32 %r1, [half_param_1];
    setp.eq.b32 %p1, %r1, 0;
    @%p1 bra ZERO;
    shr.u64 %rd1, %rd1, 1;
    ZERO: st.param.b64 [result], %rd1; st.param.b32 [result+8], %r1;
    ret;
}
"""
    body = """
        and.b32 %r5, %r0, 1; and.b32 %r6, %r0, 2; setp.eq.b32 %p1, %r6, 0; mov.b64 %d9, 7; mov.b32 %r9, 9;
        @%p1 bra LEAVE;
        { .param .b64 param0; .param .b32 param1; .param .align 8 .b8 retval0[12];
        st.param.b64 [param0], %d1; st.param.b32 [param1], %r5;
        call.uni (retval0), half, (param0, param1);
        ld.param.b64 %d9, [retval0]; ld.param.b32 %r9, [retval0+8]; }
        LEAVE: mov.b32 %r9, %r9;
    """
    halves, odd = run(body, DOUBLES[:1], {"%d9": np.uint64, "%r9": np.uint32}, functions=function)
    called = LANES & 2 != 0
    np.testing.assert_array_equal(halves, np.where(called, DOUBLES[0] >> (LANES & 1).astype(np.uint64), np.uint64(7)))
    np.testing.assert_array_equal(odd, np.where(called, LANES & 1, 9))


def test_branches_join_again_before_a_shuffle() -> None:
    body = """
        and.b32 %r2, %r0, 1; setp.eq.b32 %p1, %r2, 0; mov.b32 %r3, 5;
        @%p1 bra EVEN;
        add.s32 %r3, %r3, %r0; bra JOIN;
    EVEN: sub.s32 %r3, %r3, %r0;
    JOIN: shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
    """
    mine = np.where(LANES % 2 == 0, 5 - LANES, 5 + LANES)
    np.testing.assert_array_equal(one(body, [], "%r4", np.int32), mine[LANES ^ 1])


@pytest.mark.parametrize(
    ("mode", "by", "clamp", "source"),
    [
        ("up", 3, 0, np.where(LANES >= 3, LANES - 3, LANES)),
        ("down", 3, 31, np.where(LANES + 3 <= 31, LANES + 3, LANES)),
        ("idx", 2, 0x181F, LANES // 8 * 8 + 2),
    ],
)
def test_shuffles(mode: str, by: int, clamp: int, source: Any) -> None:
    body = f"shfl.sync.{mode}.b32 %r9|%p1, %r1, {by}, {clamp}, -1;"
    np.testing.assert_array_equal(one(body, WORDS[:1], "%r9", np.uint32), WORDS[0][source])


def test_votes_and_reductions() -> None:
    body = "setp.lt.u32 %p1, %r0, 5; vote.sync.ballot.b32 %r9, %p1, -1; redux.sync.add.s32 %r8, %r0, -1;"
    ballot, total = run(body, [], {"%r9": np.uint32, "%r8": np.int32})
    assert set(ballot) == {31}
    assert set(total) == {31 * 16}


def test_barriers_let_warps_read_what_others_wrote() -> None:
    body = """
        mov.b32 %r1, buffer; shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2;
        st.shared.b32 [%r3], %r0; bar.sync 0;
        xor.b32 %r4, %r2, 508; add.s32 %r4, %r4, %r1; ld.shared.b32 %r9, [%r4];
    """
    np.testing.assert_array_equal(run(body, [], {"%r9": np.uint32}, threads=128)[0], np.arange(128)[::-1])


def test_atomics_see_each_other() -> None:
    body = """
        mov.b32 %r1, buffer; setp.eq.b32 %p1, %r0, 0; mov.b32 %r2, 0;
        @%p1 st.shared.b32 [%r1], %r2; bar.sync 0;
        atom.shared.add.u32 %r9, [%r1], 2; bar.sync 0; ld.shared.b32 %r8, [%r1];
    """
    old, total = run(body, [], {"%r9": np.uint32, "%r8": np.uint32}, threads=64)
    assert sorted(old) == list(range(0, 128, 2))
    assert set(total) == {128}


def test_asynchronous_copies_arrive_when_they_are_waited_for() -> None:
    body = """
        mov.b32 %r2, buffer; shl.b32 %r3, %r0, 2; add.s32 %r2, %r2, %r3; mov.b32 %r4, 7; st.shared.b32 [%r2], %r4;
        cp.async.ca.shared.global [%r2], [%d30], 4, 4; cp.async.commit_group;
        ld.shared.b32 %r8, [%r2]; cp.async.wait_group 0; ld.shared.b32 %r9, [%r2];
    """
    before, after = run(body, WORDS[:1], {"%r8": np.uint32, "%r9": np.uint32})
    assert set(before) == {7}
    np.testing.assert_array_equal(after, WORDS[0])


def test_matrices_of_a_warp() -> None:
    body = """
        mov.b32 %r2, buffer; shl.b32 %r3, %r0, 2; add.s32 %r3, %r3, %r2; st.shared.b32 [%r3], %r1; bar.warp.sync -1;
        and.b32 %r4, %r0, 7; shl.b32 %r4, %r4, 4; add.s32 %r4, %r4, %r2;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r4];
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r9}, [%r4];
    """
    plain, turned = run(body, WORDS[:1], {"%r8": np.uint32, "%r9": np.uint32})
    matrix = WORDS[0].view(np.uint16).reshape(8, 8)
    np.testing.assert_array_equal(plain.view(np.uint16).reshape(8, 8), matrix)
    np.testing.assert_array_equal(turned.view(np.uint16).reshape(8, 8), matrix.T)


def fragment(matrix: Any, rows: Any, columns: Any) -> Any:
    """Return words of pairs of a matrix."""
    pairs = np.stack([matrix[rows, columns], matrix[rows, columns + 1]], axis=-1).astype(np.float16)
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1)


def test_a_product_of_matrices() -> None:
    """The fragments are those of the figures "MMA .m16n8k16 fragment layout" of the PTX ISA."""
    a, b = RNG.integers(-8, 8, (16, 16)).astype(float), RNG.integers(-8, 8, (16, 8)).astype(float)
    group, number = LANES // 4, LANES % 4 * 2
    inputs = [fragment(a, group + 8 * (i % 2), number + 8 * (i // 2)) for i in range(4)]
    inputs += [fragment(b.T, group, number + 8 * i) for i in range(2)]
    body = """mov.b32 %r20, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r10, %r11, %r12, %r13}, {%r1, %r2, %r3, %r4}, {%r5, %r6},
            {%r20, %r20, %r20, %r20};"""
    found = run(body, inputs, {f"%r{10 + i}": np.float32 for i in range(4)})
    for i, part in enumerate(found):
        np.testing.assert_array_equal(part, (a @ b + 1)[group + 8 * (i // 2), number + i % 2])


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_products_of_quad_pairs(kind: str) -> None:
    """Four products of 8x8x4, in the layout of "mma.m8n8k4 with .f16 floating point type" of the PTX ISA."""
    a, b = (RNG.integers(-8, 8, (4, 8, 4)).astype(float) for _ in range(2))
    pair, row = LANES % 16 // 4, LANES % 4 + 4 * (LANES >= 16)
    words = [np.ascontiguousarray(m[pair, row].astype(np.float16)).view(np.uint32) for m in (a, b)]
    inputs = [np.ascontiguousarray(part[:, column]) for part in words for column in range(2)]
    sums = 8 if kind == "f32" else 4
    into = ", ".join(f"%r{10 + i}" for i in range(sums))
    ones = ", ".join(["%r20"] * sums)
    body = f"""mov.b32 %r20, {"0f3F800000" if kind == "f32" else "0x3C003C00"};
        mma.sync.aligned.m8n8k4.row.col.{kind}.f16.f16.{kind} {{{into}}}, {{%r1, %r2}}, {{%r3, %r4}}, {{{ones}}};"""
    expected = a @ np.swapaxes(b, 1, 2) + 1
    found = run(body, inputs, {f"%r{10 + i}": np.float32 if kind == "f32" else np.uint32 for i in range(sums)})
    if kind == "f16":
        np.testing.assert_array_equal(np.stack(found, 1).view(np.float16), expected[pair, row])
        return
    for i, part in enumerate(found):
        rows = LANES % 2 + (i & 2) + 4 * (LANES >= 16)
        np.testing.assert_array_equal(part, expected[pair, rows, (i & 4) + (LANES & 2) + (i & 1)])


def test_barriers_in_shared_memory_count_arrivals() -> None:
    body = """
        mov.b32 %r1, buffer; setp.eq.b32 %p1, %r0, 0; mov.b32 %r3, 0;
        @%p1 mbarrier.init.shared::cta.b64 [%r1], 2; @%p1 st.shared.b32 [%r1+64], %r3; bar.sync 0;
        setp.ge.u32 %p2, %r0, 32; and.b32 %r2, %r0, 31; setp.eq.b32 %p3, %r2, 0; mov.b32 %r4, 9;
        @%p2 bra SECOND;
        { .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], 0;
        @done bra ready; bra again; ready: }
        bra JOIN;
    SECOND: st.shared.b32 [%r1+64], %r4;
        @%p3 mbarrier.arrive.shared::cta.b64 _, [%r1];
        @%p3 mbarrier.arrive.shared::cta.b64 _, [%r1];
    JOIN: ld.shared.b32 %r9, [%r1+64];
    """
    assert set(run(body, [], {"%r9": np.uint32}, threads=64)[0]) == {9}


def test_programs_of_a_cluster_read_each_other() -> None:
    body = """
        mov.b32 %r1, buffer; mov.u32 %r2, %cluster_ctarank; st.shared.b32 [%r1], %r2;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mapa.shared::cluster.u32 %r3, %r1, 0; ld.shared::cluster.b32 %r8, [%r3];
        mapa.shared::cluster.u32 %r3, %r1, 1; ld.shared::cluster.b32 %r9, [%r3];
    """
    first, second = run(body, [], {"%r8": np.uint32, "%r9": np.uint32}, programs=2, cluster=2)
    assert set(first) == {0}
    assert set(second) == {1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("add.s64 %d1, %d30, 4096; ld.global.b32 %r9, [%d1];", "outside of all arrays"),
        ("add.s64 %d1, %d30, 2; ld.global.b32 %r9, [%d1];", "no multiple"),
        ("mov.b32 %r1, buffer; st.shared.b32 [%r1+4096], %r0;", "outside of shared memory"),
        ("mov.b32 %r1, buffer; add.s32 %r1, %r1, 4; ld.shared.v2.b32 {%r8, %r9}, [%r1];", "no multiple"),
        ("setp.eq.b32 %p1, %r0, 3; @%p1 bra OUT; bar.warp.sync -1; AGAIN: bra OUT; OUT: bar.sync 1, 64;", "deadlock"),
        ("AGAIN: ld.global.b32 %r1, [%d30]; setp.eq.b32 %p1, %r1, 0; nanosleep.u32 8; @%p1 bra AGAIN;", "deadlock"),
        ("mov.b32 %r1, 0; nanosleep.u32 8; nanosleep.u32 8; bar.sync 1, 64;", "deadlock"),
        ("trap;", "a trap"),
    ],
)
def test_faults(body: str, says: str) -> None:
    with pytest.raises(Fault, match=says):
        run(body, [], {"%r9": np.uint32})


def test_threads_that_sleep_go_on_though_nothing_has_changed() -> None:
    body = """
    mov.b32 %r9, %r0; nanosleep.u32 8; nanosleep.u32 8;
    AGAIN: nanosleep.u32 8; add.s32 %r9, %r9, 1; setp.lt.s32 %p1, %r9, 40; @%p1 bra AGAIN;
    nanosleep.u32 8; nanosleep.u32 8;
    """
    assert set(one(body, [], "%r9", np.int32)) == {40}


ROUNDED = "mad.wide.u32 %d1, %r0, 0, %d30; and.b64 %d1, %d1, -4; "


def test_aligned_words_are_read_where_one_byte_belongs_to_an_array() -> None:
    halves = RNG.integers(0, 2**16, 33, np.uint16)
    found = one(ROUNDED + "ld.weak.global.b32 %r9, [%d1+4];", [halves], "%r9", np.uint32)
    at = LANES // 2 * 2 + 2
    np.testing.assert_array_equal(found & 0xFFFF, halves[at])
    np.testing.assert_array_equal((found >> 16)[:30], halves[at[:30] + 1])


@pytest.mark.parametrize(
    "body",
    [
        ROUNDED + "ld.weak.global.b32 %r9, [%d1+8];",
        ROUNDED + "ld.global.b32 %r9, [%d1+4];",
        "setp.eq.b32 %p1, %r0, 30; @%p1 ld.global.b32 %r9, [%d30+4];",
        ROUNDED + "mov.b32 %r9, 0; st.global.b32 [%d1+4], %r9;",
    ],
)
def test_no_other_access_leaves_its_array(body: str) -> None:
    with pytest.raises(Fault, match="outside of all arrays"):
        run(body, [RNG.integers(0, 2**16, 33, np.uint16)], {"%r9": np.uint32})


def test_what_is_not_known_says_its_name() -> None:
    with pytest.raises(Unknown, match=r"sad\.u32"):
        run("sad.u32 %r9, %r1, %r2, %r3;")


@pytest.mark.parametrize(
    "text", [".entry k( { }", ".visible .entry k() { add.s32 %r1 %r2; }", "\x00", ".entry k() { bra X; }"]
)
def test_what_is_no_ptx(text: str) -> None:
    with pytest.raises((Malformed, Unknown)):
        parse(text)
