"""`//` and `%` of floats: NumPy's, to the bit. Their quotient is the exact floor up to 2**22 in f32, 2**51 in f64."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.conformance.harness import Case, Output, check, conformance, dtype

COUNT = 4096
BACKENDS = ("interp", "threads-sm_80", "ptx-sm_80", "cpu", "cpu-x86-64", "cpu-x86-64-v3", "cuda")
MANTISSA = {"f32": 24, "f64": 53, "f16": 11, "bf16": 8}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 7.0, -7.0, 3.0, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38]


def divided(dt: Any) -> Callable[..., Any]:
    def kernel(a: ts.Tensor[COUNT, dt], b: ts.Tensor[COUNT, dt], y: ts.Tensor[2, COUNT, dt]):
        for i in ts.tile.grid((COUNT, 512)):
            y[0, i : i + 512] = a[i : i + 512] // b[i : i + 512]
            y[1, i : i + 512] = a[i : i + 512] % b[i : i + 512]

    return kernel


def operands(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of every kind: near multiples, far apart, of all bits, special."""
    kind, part = dtype(name).numpy(), COUNT // 4
    exponent = 60 if name in ("f32", "f64") else 6
    b = rng.normal(size=part).astype(kind)
    most = 2.0 ** (MANTISSA[name] - 1)
    with np.errstate(all="ignore"):
        multiples = (np.floor(rng.uniform(-most, most, part)) * b.astype(np.float64)).astype(kind)
        bits = [rng.integers(0, 256, part * kind.itemsize, dtype=np.uint8).view(kind) for _ in range(2)]
        corners = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
        first = [
            np.where(
                rng.random(part) < 0.5, multiples, np.nextafter(multiples.astype(np.float32), np.inf).astype(kind)
            ),
            rng.normal(size=part) * 2.0 ** rng.integers(-exponent, exponent, part),
            bits[0],
            np.resize(corners[0], part),
        ]
        second = [b, rng.normal(size=part) * 2.0 ** rng.integers(-8, 8, part), bits[1], np.resize(corners[1], part)]
        return np.concatenate([v.astype(kind) for v in first]), np.concatenate([v.astype(kind) for v in second])


def _divided(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return what NumPy gives: of narrow formats in f32, rounded once."""
    wide = np.float64 if a.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        x, z = a.astype(wide), b.astype(wide)
        return np.stack([np.floor_divide(x, z), np.remainder(x, z)]).astype(a.dtype)


@conformance(
    [
        Case(
            f"{name}-{profile}",
            divided(dtype(name)),
            lambda rng, name=name: [*operands(name, rng), Output((2, COUNT), dtype(name))],
            _divided,
            profile=profile,
            backends=BACKENDS if name == "f32" else ("interp", "threads-sm_80", "cpu", "cuda"),
            signed_zeros=True,
        )
        for name in MANTISSA
        for profile in ("fast", "strict")
    ]
)
def test_they_are_numpys(case, backend):
    check(case, backend)


@pytest.mark.parametrize(("name", "most"), [("f32", 2.4), ("f64", 2.4)])
def test_how_far_from_the_exact_floor(name: str, most: float) -> None:
    """Quotients of two bits less than the format has are exact; larger ones are within the documented distance."""
    a, b = operands(name, np.random.default_rng(3))
    y = np.zeros((2, COUNT), a.dtype)
    ts.kernel(divided(dtype(name)))(a, b, y)
    checked = 0
    for x, z, quotient in zip(a, b, y[0], strict=True):
        if not (np.isfinite([x, z, quotient]).all() and z):
            continue
        floor = math.floor(Fraction(float(x)) / Fraction(float(z)))
        if abs(floor) < 2 ** (MANTISSA[name] - 2):
            assert quotient == floor, (x, z)
        else:
            spacing = 2.0 ** (math.frexp(abs(quotient))[1] - MANTISSA[name])
            assert abs(Fraction(float(quotient)) - floor) <= Fraction(most) * Fraction(spacing), (x, z)
        checked += 1
    assert checked > COUNT / 2
