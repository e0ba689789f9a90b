"""Products with few rows read their right operand where it lies: narrow, masked, and in pages by their numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts

NUMPY = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
KINDS = [
    ("f32", "f32"),
    ("f32", "bf16"),
    ("f32", "fp8_e4m3"),
    ("bf16", "bf16"),
    ("bf16", "fp8_e5m2"),
    ("f16", "f16"),
    ("f16", "fp8_e4m3"),
]
TARGETS = ["x86-64-v3", "x86-64-v4", "sapphirerapids", "aarch64"]
PAGES, SLOTS, GROUPS = 5, 16, 3


@cache
def scores(wide: str, narrow: str, rows: int) -> Any:
    """Return a kernel of products of rows with the keys of pages, each of which has a number."""

    def multiply(q, k, table, out):
        for p, g in ts.tile.grid((table.shape[0], 1), (k.shape[2], 1)):
            keys = k[table[p], 0:16, g, :].to(q.dtype)
            out[p, g, :, :] = ts.tile.mma(q[0:rows, :], keys.T)

    shapes = {"q": ("m", "d"), "k": ("pages", "slots", "groups", "d"), "table": ("p",)}
    return annotated(multiply, shapes, {"q": wide, "k": narrow, "table": "i32"}, ("p", "groups", rows, 16))


@cache
def sums(wide: str, narrow: str, rows: int) -> Any:
    """Return a kernel that sums values of pages with weights, up to a length."""

    def multiply(w, v, table, lengths, out):
        for g in ts.tile.grid((v.shape[2], 1)):
            length = lengths[g].to(ts.i64)
            total = ts.tile.zeros((rows, 64), ts.f32)
            for n in ts.tile.range(0, 16 * table.shape[0], 16):
                values = v[table[n // 16], 0:16, g, 0:64].to(w.dtype)
                places = n + ts.tile.arange(16, dtype=ts.i64)
                total = ts.tile.mma(
                    w[0:rows, n : n + 16], ts.tile.where((places < length)[:, None], values, 0.0), total
                )
            out[g, :, 0:64] = total

    shapes = {"w": ("m", "n"), "v": ("pages", "slots", "groups", "d"), "table": ("p",), "lengths": ("groups",)}
    kinds = {"w": wide, "v": narrow, "table": "i32", "lengths": "i32"}
    return annotated(multiply, shapes, kinds, ("groups", rows, "d"))


def annotated(function: Any, shapes: dict[str, Any], kinds: dict[str, str], out: tuple[Any, ...]) -> Any:
    function.__annotations__ = {name: ts.Tensor[(*shape, getattr(ts, kinds[name]))] for name, shape in shapes.items()}
    function.__annotations__["out"] = ts.Tensor[(*out, ts.f32)]
    return ts.kernel(function)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Any:
    return rng.standard_normal(shape).astype(NUMPY[kind])


def wide(array: Any) -> Any:
    return array.astype(np.float64)


def close(got: Any, exact: Any, size: Any) -> None:
    assert np.all(np.abs(got - exact) <= 2e-6 * size + 1e-6), np.abs(got - exact).max()


@pytest.mark.parametrize("rows", [1, 2, 4, 11])
@pytest.mark.parametrize("depth", [8, 61, 128])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_keys_in_pages_are_multiplied_where_they_lie(kinds: tuple[str, str], depth: int, rows: int) -> None:
    rng = np.random.default_rng(rows * depth)
    q, k = numbers(rng, (rows, depth), kinds[0]), numbers(rng, (PAGES, SLOTS, GROUPS, depth), kinds[1])
    table = np.array([3, 0, -1, 4, PAGES, 1, 2**31 - 1, -(2**31)], np.int32)
    out = np.full((len(table), GROUPS, rows, 16), np.nan, np.float32)
    scores(*kinds, rows)(q, k, table, out)
    for number, found in zip(table, out, strict=True):
        keys = k[number] if 0 <= number < PAGES else np.zeros_like(k[0])
        for g in range(GROUPS):
            close(found[g], wide(q) @ wide(keys[:, g]).T, np.abs(wide(q)) @ np.abs(wide(keys[:, g])).T)


@pytest.mark.parametrize("rows", [1, 3, 8, 16])
@pytest.mark.parametrize("columns", [5, 57, 64])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_values_in_pages_count_up_to_a_length(kinds: tuple[str, str], columns: int, rows: int) -> None:
    rng, table = np.random.default_rng(rows * columns), np.array([3, 0, PAGES, 1], np.int32)
    w = numbers(rng, (rows, 64), kinds[0])
    v = numbers(rng, (PAGES, SLOTS, GROUPS, columns), kinds[1])
    lengths = np.array([0, 25, 64], np.int32)
    laid = np.concatenate([v[number] if number < PAGES else np.zeros_like(v[0]) for number in table])
    for g, length in enumerate(lengths):  # what lies past a length may be anything
        for place in range(length, 64):
            if table[place // 16] < PAGES:
                v[table[place // 16], place % 16, g] = np.nan
    out = np.full((GROUPS, rows, columns), np.nan, np.float32)
    sums(*kinds, rows)(w, v, table, lengths, out)
    for g, length in enumerate(lengths):
        left, right = wide(w[:, :length]), wide(laid[:length, g])
        close(out[g], left @ right, np.abs(left) @ np.abs(right))


def test_a_mask_of_zeros_keeps_an_infinite_weight_a_nan() -> None:
    rng = np.random.default_rng(0)
    w, v = numbers(rng, (2, 16), "f32"), numbers(rng, (PAGES, SLOTS, 1, 64), "f32")
    w[1, 12] = np.inf
    out, lengths = np.zeros((1, 2, 64), np.float32), np.array([10], np.int32)
    sums("f32", "f32", 2)(w, v, np.array([2], np.int32), lengths, out)
    assert np.isfinite(out[0, 0]).all()
    assert np.isnan(out[0, 1]).all()


def test_masks_that_wrap_around_hold_nowhere() -> None:
    @ts.kernel
    def multiply(w: ts.Tensor[2, 16, ts.f32], v: ts.Tensor[16, 64, ts.f32], out: ts.Tensor[2, 64, ts.f32], at: ts.i64):
        for _ in ts.tile.grid((1, 1)):
            kept = at + ts.tile.arange(16, dtype=ts.i64) < 7
            out[:, :] = ts.tile.mma(w[:, :], ts.tile.where(kept[:, None], v[:, :], 0.0))

    rng = np.random.default_rng(1)
    w, v, out = numbers(rng, (2, 16), "f32"), numbers(rng, (16, 64), "f32"), np.zeros((2, 64), np.float32)
    for at, kept in ((0, slice(0, 7)), (-16, slice(0, 16)), (9, slice(0, 0)), (2**63 - 5, slice(5, 16))):
        multiply(w, v, out, at)
        close(out, wide(w[:, kept]) @ wide(v[kept]), np.abs(wide(w)) @ np.abs(wide(v)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_pages_are_not_copied_on_any_cpu(kinds: tuple[str, str], target: str) -> None:
    for kernel, dims in ((scores(*kinds, 4), {"d": 128}), (sums(*kinds, 4), {})):
        text = ts.compile(kernel, target=target, dims=dims, dump=["tirh", "ll"]).dumps["tirh"]
        pairs = kinds == ("bf16", "fp8_e5m2") and target == "sapphirerapids"
        assert ("right_in_place" in text) != pairs, "what is multiplied in pairs of bf16 is packed as such"
