"""Stores of narrowed elements write what counts and nothing else, however few elements of a vector that is."""

import functools
import re
from typing import Any

import numpy as np
import pytest

import tessera as ts

GUARD = 64
PAIRS = (
    ("i64", "i8"),
    ("i64", "i16"),
    ("i64", "i32"),
    ("i32", "i8"),
    ("i32", "i16"),
    ("i16", "i8"),
    ("u32", "u16"),
    ("i32", "bool_"),
    ("f64", "f32"),
    ("f64", "i32"),
    ("f32", "f16"),
    ("f32", "bf16"),
    ("f32", "fp8_e4m3"),
)
LENGTHS = (1, 2, 3, 5, 9, 17, 33, 65)


@functools.cache
def narrowing(source: ts.DType, result: ts.DType) -> Any:
    """Return a kernel that narrows rows with tails of one element, under masks and at the end of a tensor."""

    @ts.kernel
    def narrow(
        x: ts.Tensor[200, source],
        rows1: ts.Tensor["B", 17, result],
        rows2: ts.Tensor["B", 33, result],
        end: ts.Tensor[17, result],
        short: ts.Tensor[9, result],
        one: ts.Tensor[32, result],
    ):
        for b in ts.tile.grid((B, 1)):
            rows1[b, :] = x[0:17].to(result)
            rows2[b, :] = x[0:33].to(result)
            end[16:32] = x[16:32].to(result)
            short[8:12] = x[8:12].to(result)
            if ts.tile.arange(16) == 3:
                one[0:16] = x[0:16].to(result)
            if ts.tile.arange(8) == 5:
                one[16:24] = x[16:24].to(result)
            if ts.tile.arange(4) == 0:
                one[24:28] = x[24:28].to(result)

    return narrow


@functools.cache
def casting(source: ts.DType, result: ts.DType, length: int) -> Any:
    """Return a kernel that narrows rows of a length."""

    @ts.kernel
    def cast(x: ts.Tensor["B", length, source], y: ts.Tensor["B", length, result]):
        for b in ts.tile.grid((B, 1)):
            y[b, :] = x[b, :].to(result)

    return cast


def guarded(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return zeros between guard elements of one, and all of it."""
    around = np.ones(int(np.prod(shape)) + 2 * GUARD, dtype)
    inner = around[GUARD:-GUARD].reshape(shape)
    inner[...] = 0
    return inner, around


def untouched(around: np.ndarray) -> bool:
    """Return whether the guard elements are as they were."""
    return bool((np.concatenate([around[:GUARD], around[-GUARD:]]) == 1).all())


@pytest.mark.parametrize(("source", "result"), PAIRS)
def test_tails_of_one_lane_write_one_element(source: str, result: str) -> None:
    first, second = getattr(ts, source), getattr(ts, result)
    x = (np.arange(200) % 13 + 2).astype(first.numpy())
    want = x.astype(second.numpy())
    sizes: tuple[tuple[int, ...], ...] = ((2, 17), (2, 33), (17,), (9,), (32,))
    results = [guarded(size, second.numpy()) for size in sizes]
    narrowing(first, second)(x, *(inner for inner, _ in results))
    rows1, rows2, end, short, one = (inner for inner, _ in results)
    assert (rows1 == want[:17]).all()
    assert (rows2 == want[:33]).all()
    assert list(np.flatnonzero(end)) == [16]
    assert list(np.flatnonzero(short)) == [8]
    assert list(np.flatnonzero(one)) == [3, 21, 24]
    for size, (_, around) in zip(sizes, results, strict=True):
        assert untouched(around), f"written outside an array of {size}"


@pytest.mark.parametrize("length", LENGTHS)
def test_narrowed_rows_of_any_length(length: int) -> None:
    x = (np.arange(2 * length) % 13).astype(np.int32).reshape(2, length)
    y, around = guarded((2, length), np.int8)
    casting(ts.i32, ts.i8, length)(x, y)
    np.testing.assert_array_equal(y, x)
    assert untouched(around)


@pytest.mark.parametrize(
    ("target", "hidden"), [("x86-64-v3", 0), ("x86-64-v4", 1), ("sapphirerapids", 1), ("aarch64", 0)]
)
def test_masks_of_narrow_stores_are_hidden_from_llvm_where_it_would_widen_them(target: str, hidden: int) -> None:
    text = str(ts.compile(casting(ts.i32, ts.i8, 17), target=target, dump=["ll"]).dumps["ll"])
    masks = re.findall(r"call void @llvm.masked.store.v16i8.*<16 x i1> (\S+)\)", text)
    assert all(bool(re.search(rf"{mask} = call .* asm ", text)) == bool(hidden) for mask in masks)
    assert masks or not hidden
