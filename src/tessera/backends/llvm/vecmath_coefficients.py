"""Polynomial coefficients of the vector functions, lowest power first, by scripts/fit_vecmath.py.

Weighted minimax fits (Remez exchange, 50 digits), rounded to the element format one at a time, those still
free fitted again after each. The error is the largest relative one of the whole function in exact arithmetic.
"""

from __future__ import annotations

from typing import Final

# expm1(r) = r + r^2 * P(r), |r| <= ln(2)/2; error 2^-26.1.
EXPM1_F32: Final = (
    float.fromhex("0x1.fffffe0000000p-2"),
    float.fromhex("0x1.5554b40000000p-3"),
    float.fromhex("0x1.5556f60000000p-5"),
    float.fromhex("0x1.1225340000000p-7"),
    float.fromhex("0x1.6b97fe0000000p-10"),
)

# 2^r = 1 + r * P(r), |r| <= 1/2; error 2^-28.3.
EXP2_F32: Final = (
    float.fromhex("0x1.62e4300000000p-1"),
    float.fromhex("0x1.ebfbdc0000000p-3"),
    float.fromhex("0x1.c6af7c0000000p-5"),
    float.fromhex("0x1.3b2de00000000p-7"),
    float.fromhex("0x1.5f082e0000000p-10"),
    float.fromhex("0x1.416b5e0000000p-13"),
)

# log(1 + f) = f + f^2 * P(f), 3/4 <= 1 + f <= 3/2; error 2^-27.6.
LOG_F32: Final = (
    float.fromhex("-0x1.0000000000000p-1"),
    float.fromhex("0x1.5555a40000000p-2"),
    float.fromhex("-0x1.00004a0000000p-2"),
    float.fromhex("0x1.99699e0000000p-3"),
    float.fromhex("-0x1.54ed960000000p-3"),
    float.fromhex("0x1.28807a0000000p-3"),
    float.fromhex("-0x1.0d98f20000000p-3"),
    float.fromhex("0x1.acf4ba0000000p-4"),
    float.fromhex("-0x1.71e3540000000p-5"),
)

# log2(1 + f) = log2(e) * f + f^2 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2); error 2^-27.7.
LOG2_F32: Final = (
    float.fromhex("-0x1.7154700000000p-1"),
    float.fromhex("0x1.ec70940000000p-2"),
    float.fromhex("-0x1.715afe0000000p-2"),
    float.fromhex("0x1.277f440000000p-2"),
    float.fromhex("-0x1.eaa24a0000000p-3"),
    float.fromhex("0x1.a2c9dc0000000p-3"),
    float.fromhex("-0x1.87f7ee0000000p-3"),
    float.fromhex("0x1.7f281c0000000p-3"),
    float.fromhex("-0x1.c39b8a0000000p-4"),
)

# expm1(r) = r + r^2 * P(r), |r| <= ln(2)/2; error 2^-61.6.
EXPM1_F64: Final = (
    float.fromhex("0x1.0000000000000p-1"),
    float.fromhex("0x1.5555555555559p-3"),
    float.fromhex("0x1.5555555555559p-5"),
    float.fromhex("0x1.111111110f70ap-7"),
    float.fromhex("0x1.6c16c16c1684ep-10"),
    float.fromhex("0x1.a01a01af9c4b6p-13"),
    float.fromhex("0x1.a01a019e33cf6p-16"),
    float.fromhex("0x1.71ddf93926786p-19"),
    float.fromhex("0x1.27e4f9135525cp-22"),
    float.fromhex("0x1.af5d054faacd3p-26"),
    float.fromhex("0x1.1f383c3468896p-29"),
)

# 2^r = 1 + r * P(r), |r| <= 1/2; error 2^-59.7.
EXP2_F64: Final = (
    float.fromhex("0x1.62e42fefa39efp-1"),
    float.fromhex("0x1.ebfbdff82c58ep-3"),
    float.fromhex("0x1.c6b08d704a1d5p-5"),
    float.fromhex("0x1.3b2ab6fba51a0p-7"),
    float.fromhex("0x1.5d87fe7873f3fp-10"),
    float.fromhex("0x1.430912f75641ap-13"),
    float.fromhex("0x1.ffcbfd4b71161p-17"),
    float.fromhex("0x1.62c027283d755p-20"),
    float.fromhex("0x1.b5232cb6b0623p-24"),
    float.fromhex("0x1.e4bb9e0286c01p-28"),
    float.fromhex("0x1.ec7a921761bc8p-32"),
    float.fromhex("0x1.e0c93cf12734ap-36"),
)

# log(1 + f) = f + f^2 * P(f), 3/4 <= 1 + f <= 3/2; error 2^-56.7.
LOG_F64: Final = (
    float.fromhex("-0x1.ffffffffffffbp-2"),
    float.fromhex("0x1.55555555555c3p-2"),
    float.fromhex("-0x1.0000000000dc7p-2"),
    float.fromhex("0x1.9999999989803p-3"),
    float.fromhex("-0x1.55555553fdf16p-3"),
    float.fromhex("0x1.24924929f0f80p-3"),
    float.fromhex("-0x1.00000077edf0bp-3"),
    float.fromhex("0x1.c71c70ef6190fp-4"),
    float.fromhex("-0x1.99996e148d3b3p-4"),
    float.fromhex("0x1.745ce35a3cbf7p-4"),
    float.fromhex("-0x1.555982503de7cp-4"),
    float.fromhex("0x1.3b1ff6ae078b1p-4"),
    float.fromhex("-0x1.2463ccbbe3b49p-4"),
    float.fromhex("0x1.1011a74da1c6dp-4"),
    float.fromhex("-0x1.ffeec067c4cf5p-5"),
    float.fromhex("0x1.f2a9732073220p-5"),
    float.fromhex("-0x1.e9a7071dab549p-5"),
    float.fromhex("0x1.9fb2efad52b84p-5"),
    float.fromhex("-0x1.e0f3b6bd87dd7p-6"),
    float.fromhex("0x1.08054db5bc320p-7"),
)

# log2(1 + f) = log2(e) * f + f^2 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2); error 2^-56.8.
LOG2_F64: Final = (
    float.fromhex("-0x1.71547652b8303p-1"),
    float.fromhex("0x1.ec709dc3a03aep-2"),
    float.fromhex("-0x1.71547652b699dp-2"),
    float.fromhex("0x1.2776c50eff26dp-2"),
    float.fromhex("-0x1.ec709dc5f2108p-3"),
    float.fromhex("0x1.a61762a4a8bafp-3"),
    float.fromhex("-0x1.7154758ef0216p-3"),
    float.fromhex("0x1.484b13d1e61aep-3"),
    float.fromhex("-0x1.2776e7c2e56cap-3"),
    float.fromhex("0x1.0c9aa818458e6p-3"),
    float.fromhex("-0x1.ec6985afe0a98p-4"),
    float.fromhex("0x1.c6821dfcb9260p-4"),
    float.fromhex("-0x1.a682735fde99fp-4"),
    float.fromhex("0x1.8b170b0381e56p-4"),
    float.fromhex("-0x1.6e0b0510ada8fp-4"),
    float.fromhex("0x1.4e68727f282cfp-4"),
    float.fromhex("-0x1.4f8938a0b9264p-4"),
    float.fromhex("0x1.81d6a3abf4198p-4"),
    float.fromhex("-0x1.62e8226f10366p-4"),
    float.fromhex("0x1.3555c06c10897p-5"),
)

# log2(1 + f) = f * P(f), sqrt(1/2) <= 1 + f <= sqrt(2) (for pow of f32); error 2^-33.2.
POW_LOG2: Final = (
    float.fromhex("0x1.71547652ef97cp+0"),
    float.fromhex("-0x1.7154767badcc3p-1"),
    float.fromhex("0x1.ec709c00e8163p-2"),
    float.fromhex("-0x1.715435ec043cep-2"),
    float.fromhex("0x1.277732ce7126cp-2"),
    float.fromhex("-0x1.ec8d73c66791ap-3"),
    float.fromhex("0x1.a615cb8df2dcfp-3"),
    float.fromhex("-0x1.6eb02ba2af258p-3"),
    float.fromhex("0x1.45a28ded897fep-3"),
    float.fromhex("-0x1.417fe30532cfep-3"),
    float.fromhex("0x1.3d2613fc00936p-3"),
    float.fromhex("-0x1.61acc9067e60ap-4"),
)

# atanh(s) = s * (1 + z/3 + z^2 * P(z)), z = s^2, |s| <= 3 - sqrt(8); error 2^-77.0.
POW_ATANH: Final = (
    float.fromhex("0x1.999999999999ap-3"),
    float.fromhex("0x1.2492492492363p-3"),
    float.fromhex("0x1.c71c71c747ea4p-4"),
    float.fromhex("0x1.745d172bc8922p-4"),
    float.fromhex("0x1.3b13ba5a9925ap-4"),
    float.fromhex("0x1.110f1c37334a3p-4"),
    float.fromhex("0x1.e2657e7023c7ep-5"),
    float.fromhex("0x1.a508efa503f01p-5"),
    float.fromhex("0x1.eca1c30da099fp-5"),
)

# 2^r = 1 + r * P(r), |r| <= 1/2 (for pow of f32); error 2^-28.9.
POW_EXP2: Final = (
    float.fromhex("0x1.62e430af2314cp-1"),
    float.fromhex("0x1.ebfbdc3c23614p-3"),
    float.fromhex("0x1.c6aee89162466p-5"),
    float.fromhex("0x1.3b2d4cfe2235dp-7"),
    float.fromhex("0x1.5f3e5213415c6p-10"),
    float.fromhex("0x1.41fbb31997f5cp-13"),
)

# sin(r) = r + r * z * P(z), z = r^2, |r| <= pi/4; error 2^-27.9.
SIN_F32: Final = (
    float.fromhex("-0x1.5555460000000p-3"),
    float.fromhex("0x1.1107780000000p-7"),
    float.fromhex("-0x1.9953fe0000000p-13"),
)

# cos(r) = 1 - z/2 + z^2 * P(z), z = r^2, |r| <= pi/4; error 2^-33.0.
COS_F32: Final = (
    float.fromhex("0x1.55554a0000000p-5"),
    float.fromhex("-0x1.6c0c280000000p-10"),
    float.fromhex("0x1.99e80c0000000p-16"),
)

# sin(r) = r + r * z * P(z), z = r^2, |r| <= pi/4; error 2^-57.9.
SIN_F64: Final = (
    float.fromhex("-0x1.5555555555548p-3"),
    float.fromhex("0x1.111111110f730p-7"),
    float.fromhex("-0x1.a01a019be921fp-13"),
    float.fromhex("0x1.71de35552c339p-19"),
    float.fromhex("-0x1.ae5e4b84deb52p-26"),
    float.fromhex("0x1.5d8b55edeb951p-33"),
)

# cos(r) = 1 - z/2 + z^2 * P(z), z = r^2, |r| <= pi/4; error 2^-63.9.
COS_F64: Final = (
    float.fromhex("0x1.555555555554bp-5"),
    float.fromhex("-0x1.6c16c16c15013p-10"),
    float.fromhex("0x1.a01a019c8ed08p-16"),
    float.fromhex("-0x1.27e4f7f141270p-22"),
    float.fromhex("0x1.1ee9db8e48d77p-29"),
    float.fromhex("-0x1.8fa65ea24fa2cp-37"),
)

# tanh(x) = x + x * z * P(z), z = x^2, |x| <= 0.65625; error 2^-27.0.
TANH_F32: Final = (
    float.fromhex("-0x1.5555200000000p-2"),
    float.fromhex("0x1.1103160000000p-3"),
    float.fromhex("-0x1.b7b3cc0000000p-5"),
    float.fromhex("0x1.4eacdc0000000p-6"),
    float.fromhex("-0x1.6673e40000000p-8"),
)

# tanh(x) = x + x * z * P(z), z = x^2, |x| <= 0.65625; error 2^-59.5.
TANH_F64: Final = (
    float.fromhex("-0x1.555555555554ap-2"),
    float.fromhex("0x1.1111111110310p-3"),
    float.fromhex("-0x1.ba1ba1b95a251p-5"),
    float.fromhex("0x1.664f4858c333fp-6"),
    float.fromhex("-0x1.226e30035f5c8p-7"),
    float.fromhex("0x1.d6d2f162bb00cp-9"),
    float.fromhex("-0x1.7d972e54e28b6p-10"),
    float.fromhex("0x1.34e2b00d0d765p-11"),
    float.fromhex("-0x1.ef5db5313ccb1p-13"),
    float.fromhex("0x1.7a50c349698a2p-14"),
    float.fromhex("-0x1.e444f9e0d487bp-16"),
    float.fromhex("0x1.6fd670c8de0b8p-18"),
)

# erf(x) = x + x * P(z), z = x^2, |x| <= 0.9375; error 2^-30.0.
ERF_SMALL_F32: Final = (
    float.fromhex("0x1.06eba80000000p-3"),
    float.fromhex("-0x1.8127400000000p-2"),
    float.fromhex("0x1.ce2d640000000p-4"),
    float.fromhex("-0x1.b801200000000p-6"),
    float.fromhex("0x1.544aa80000000p-8"),
    float.fromhex("-0x1.a6126e0000000p-11"),
    float.fromhex("0x1.4f8e560000000p-14"),
)

# log2(erfc(x)) = P(x), 0.9375 <= x <= 3.95; error 2^-34.5.
ERF_LARGE_F32: Final = (
    float.fromhex("0x1.0f377a0000000p-12"),
    float.fromhex("-0x1.a12bfc0000000p+0"),
    float.fromhex("-0x1.d3cb8c0000000p-1"),
    float.fromhex("-0x1.4012a60000000p-3"),
    float.fromhex("0x1.293f700000000p-5"),
    float.fromhex("-0x1.8b7f440000000p-8"),
    float.fromhex("0x1.4a7bd60000000p-11"),
    float.fromhex("-0x1.01ddc00000000p-15"),
)

# erf(x) = x + x * P(z), z = x^2, |x| <= 1; error 2^-56.3.
ERF_SMALL_F64: Final = (
    float.fromhex("0x1.06eba8214db69p-3"),
    float.fromhex("-0x1.812746b037a25p-2"),
    float.fromhex("0x1.ce2f21a0458d7p-4"),
    float.fromhex("-0x1.b82ce31354c49p-6"),
    float.fromhex("0x1.565bcd2c608adp-8"),
    float.fromhex("-0x1.c02db9328193bp-11"),
    float.fromhex("0x1.f9a3b93d3a54ep-14"),
    float.fromhex("-0x1.f4dcef666415bp-17"),
    float.fromhex("0x1.ba68f85eca612p-20"),
    float.fromhex("-0x1.638fbf898ceb2p-23"),
    float.fromhex("0x1.131abfaddfe5fp-26"),
    float.fromhex("-0x1.c49361d86a0cep-30"),
    float.fromhex("0x1.3b6a0c2640a4ap-33"),
)

# log2(erfc(x)) = P(x), 1 <= x <= 5.95; error 2^-62.3.
ERF_LARGE_F64: Final = (
    float.fromhex("-0x1.58c6f71603b7fp-25"),
    float.fromhex("-0x1.a0be7dc20d56bp+0"),
    float.fromhex("-0x1.d63f05e3c9de3p-1"),
    float.fromhex("-0x1.2fa6942cb1790p-3"),
    float.fromhex("0x1.c421b63cce47dp-6"),
    float.fromhex("0x1.320d738b7156dp-12"),
    float.fromhex("-0x1.3cbb75e0756b5p-9"),
    float.fromhex("0x1.a1cdb667c055ep-11"),
    float.fromhex("0x1.0a4e07c47374ap-15"),
    float.fromhex("-0x1.4f2d8317a38b9p-13"),
    float.fromhex("0x1.87dfcf35e9c90p-14"),
    float.fromhex("-0x1.25d817c69ab0fp-15"),
    float.fromhex("0x1.48699c474163cp-17"),
    float.fromhex("-0x1.1c964042c9bb3p-19"),
    float.fromhex("0x1.80633489c5e53p-22"),
    float.fromhex("-0x1.8efa0dabe55e5p-25"),
    float.fromhex("0x1.34258584472fcp-28"),
    float.fromhex("-0x1.4df1f4513a49ap-32"),
    float.fromhex("0x1.c5388e4229151p-37"),
    float.fromhex("-0x1.21c0d088c56e7p-42"),
)
