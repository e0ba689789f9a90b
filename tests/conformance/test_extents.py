"""What the host computes before a launch: extents in integers of every width, which wrap, and assumptions."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

SIZE = 50
"""Extents are below."""

FORMS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda k: k + k.dtype.type(57),
    "difference": lambda k: k - k.dtype.type(100),
    "product": lambda k: k * k.dtype.type(87),
    "negative": lambda k: -k,
    "quotient-of-sum": lambda k: (k + k.dtype.type(120)) // k.dtype.type(3),
    "rest-of-product": lambda k: k * k.dtype.type(5) % k.dtype.type(31),
    "as-i8": lambda k: k.astype(np.int8),
    "as-u8": lambda k: k.astype(np.uint8),
    "as-bool": lambda k: np.int64(k != 0),
    "between": lambda k: np.int64(3 < k <= 90) * 7,
    "neither": lambda k: np.int64(not (k == 5 or k != 90)) + 2,
}


@ts.function
def _extent(k, form: ts.constexpr):
    if form == "sum":
        return k + 57
    if form == "difference":
        return k - 100
    if form == "product":
        return k * 87
    if form == "negative":
        return -k
    if form == "quotient-of-sum":
        return (k + 120) // 3
    if form == "rest-of-product":
        return k * 5 % 31
    if form == "as-i8":
        return ts.tile.cast(k, ts.i8)
    if form == "as-u8":
        return ts.tile.cast(k, ts.u8)
    if form == "as-bool":
        return ts.tile.cast(k != 0, ts.i32)
    if form == "between":
        return ts.tile.cast((k > 3) & (k <= 90), ts.i32) * 7
    return ts.tile.cast(~((k == 5) | (k != 90)), ts.i32) + 2


def _launching(of: ts.DType, form: str) -> Callable[..., None]:
    def kernel(k: of, y: ts.Tensor["N", ts.i32]):
        for i in ts.tile.grid((_extent(k, form) % 50, 1)):
            y[i] = 1

    return kernel


def _programs(extent: Callable[[np.generic], Any], k: np.generic) -> np.ndarray:
    with np.errstate(over="ignore"):
        count = int(extent(k)) % 50
    return (np.arange(SIZE) < count).astype(np.int32)


CASES = [(of, form, k) for of in ("i8", "u8", "i16", "u32") for form in FORMS for k in (5, 90, 127)]


@conformance(
    [
        Case(
            f"{form}-of-{of}-{k}",
            _launching(dtype(of), form),
            lambda _rng, k=k: [k, Updated(np.zeros(SIZE, np.int32))],
            lambda _k, _y, of=of, form=form, k=k: _programs(FORMS[form], dtype(of).numpy().type(k)),
            EXACT,
        )
        for of, form, k in CASES
    ]
)
def test_extents_wrap_as_integers_of_the_language(case, backend):
    check(case, backend)


def _assuming(rows: int, columns: int) -> Callable[..., None]:
    def kernel(x: ts.Tensor["M", "N", ts.bf16], y: ts.Tensor["M", "N", ts.bf16], k: ts.i32):
        ts.assume(N % 32 == 0)
        ts.assume(0 <= k and k % 8 == 0 and k <= 64)
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            y[i : i + rows, j : j + columns] = x[i : i + rows, k + j : k + j + columns] * 2

    return kernel


def _shifted(x: np.ndarray, k: int) -> np.ndarray:
    padded = np.concatenate([x, np.zeros((len(x), k), x.dtype)], axis=1)
    return padded[:, k:] * x.dtype.type(2)


@conformance(
    [
        Case(
            f"{rows}x{columns}-of-{m}x{n}-from-{k}",
            _assuming(rows, columns),
            lambda rng, m=m, n=n, k=k: [
                rng.standard_normal((m, n)).astype(ts.bf16.numpy()),
                Output((m, n), ts.bf16),
                k,
            ],
            lambda x, _y, k: _shifted(x, k),
            EXACT,
        )
        for rows, columns, m, n, k in [
            (4, 32, 9, 64, 0),
            (4, 32, 9, 96, 8),
            (1, 64, 5, 96, 16),
            (2, 48, 5, 160, 64),
            (8, 128, 3, 32, 24),
            (3, 20, 7, 64, 8),
            (4, 32, 4, 0, 8),
        ]
    ]
)
def test_what_assumptions_say_holds(case, backend):
    check(case, backend)
