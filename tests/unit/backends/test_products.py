"""Products of tiles on CPUs: every dtype, order of storage and odd size against float64, and other CPUs' code."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product as every
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu import amx, compile_cpu, host_target
from tessera.driver.pipeline import CANONICALIZE
from tessera.lower.vector import lower_to_vector
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tests.unit.backends.test_cpu import _runnable, run
from tests.unit.lower.support import aligned, scheduled

RNG = np.random.default_rng(11)
NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
}
TOTALS = {"f64": "f64", "i8": "i32", "u8": "i32"}


@cache
def product(dtype: str, tile: tuple[int, int, int], turned: tuple[bool, bool] = (False, False)) -> Any:
    """Return a function that multiplies tile by tile."""
    rows, columns, depth = tile
    turn_a, turn_b = turned
    total = getattr(ts, TOTALS.get(dtype, "f32"))

    def multiply(a, b, c):
        for i, j in ts.tile.grid((c.shape[0], rows), (c.shape[1], columns)):
            acc = ts.tile.zeros((rows, columns), total)
            for k in ts.tile.range(0, a.shape[0] if turn_a else a.shape[1], depth):
                left = a[k : k + depth, i : i + rows].T if turn_a else a[i : i + rows, k : k + depth]
                right = b[j : j + columns, k : k + depth].T if turn_b else b[k : k + depth, j : j + columns]
                acc = ts.tile.mma(left, right, acc)
            c[i : i + rows, j : j + columns] = acc

    element = getattr(ts, dtype)
    multiply.__annotations__ = {
        "a": ts.Tensor["k", "m", element] if turn_a else ts.Tensor["m", "k", element],
        "b": ts.Tensor["n", "k", element] if turn_b else ts.Tensor["k", "n", element],
        "c": ts.Tensor["m", "n", total],
    }
    return multiply


def numbers(dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Return random numbers; of integers, all that the type has."""
    if dtype in TOTALS and dtype != "f64":
        limits = np.iinfo(NUMPY[dtype])
        return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(NUMPY[dtype])
    return RNG.standard_normal(shape).astype(NUMPY[dtype])


def check(
    dtype: str,
    sizes: tuple[int, int, int],
    tile: tuple[int, int, int],
    turned: tuple[bool, bool] = (False, False),
    target: str = "cpu",
) -> Any:
    """Run a product and compare it with float64; returns the artefact."""
    m, n, k = sizes
    a, b = numbers(dtype, (m, k)), numbers(dtype, (k, n))
    total = np.dtype({"f32": "f4", "f64": "f8", "i32": "i4"}[TOTALS.get(dtype, "f32")])
    c = np.full((m, n), 77, total)
    stored = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)]
    artifact = run(ts.kernel(product(dtype, tile, turned)), [*stored, c], target)
    if total == np.int32:
        wide = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(c, wide.astype(np.int32))
        return artifact
    wide = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.all(np.abs(c - wide) <= (k + 8) * np.finfo(total).eps * bound)
    return artifact


TURNS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(
    ("dtype", "turned"),
    [*((dtype, turned) for dtype in ("f32", "bf16") for turned in TURNS), ("i8", TURNS[0]), ("i8", TURNS[3])]
    + [(dtype, TURNS[1]) for dtype in NUMPY if dtype not in ("f32", "bf16", "i8")],
)
def test_tiles_at_the_edges_of_tensors_hold_what_lies_inside(dtype: str, turned: tuple[bool, bool]) -> None:
    check(dtype, (70, 77, 51), (32, 64, 32), turned)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((33, 70, 37), (33, 70, 37)),  # tiles of odd sizes, all inside
        ((50, 90, 55), (24, 40, 11)),  # the end of one group of terms is not the tensor's
        ((1, 1, 1), (16, 16, 16)),
        ((20, 130, 300), (32, 128, 300)),  # a depth that is cut to fit the cache
        ((130, 20, 4), (64, 16, 128)),
    ],
)
def test_sizes(dtype: str, sizes: Any, tile: Any) -> None:
    check(dtype, sizes, tile, (dtype == "bf16", dtype != "f32"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_few_rows_read_the_right_operand_in_place(dtype: str, rows: int) -> None:
    check(dtype, (rows, 203, 75), (rows, 64, 32))
    check(dtype, (rows + 2, 203, 75), (rows, 64, 32))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
def test_few_rows_and_contiguous_columns_are_inner_products(dtype: str) -> None:
    check(dtype, (1, 71, 275), (1, 32, 160), (False, True))
    check(dtype, (7, 70, 333), (5, 32, 333), (False, True))


@pytest.mark.parametrize("target", _runnable())
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "u8"])
def test_a_left_operand_stored_by_columns_is_packed_by_columns(dtype: str, target: str) -> None:
    check(dtype, (70, 50, 37), (32, 64, 16), (True, False), target)
    check(dtype, (33, 20, 5), (48, 32, 33), (True, True), target)


@pytest.mark.parametrize("target", _runnable())
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_older_cpus_give_the_same(dtype: str, target: str) -> None:
    check(dtype, (40, 50, 37), (32, 64, 16), (False, True), target)


def test_products_with_what_lies_outside_are_not_made() -> None:
    a, b = np.ones((8, 20), np.float32), np.ones((20, 40), np.float32)
    a[:, 19], b[19, :] = np.inf, 1.0
    c = np.zeros((8, 40), np.float32)
    run(ts.kernel(product("f32", (16, 64, 16))), [a, b, c])
    assert np.all(np.isposinf(c))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_sums_outside_of_tensors_are_zero(dtype: str) -> None:
    total = getattr(ts, TOTALS.get(dtype, "f32"))

    def sums(a, b, c):
        for i, j in ts.tile.grid((a.shape[0], 32), (b.shape[1], 64)):
            acc = ts.tile.zeros((32, 64), total)
            for k in ts.tile.range(0, a.shape[1], 32):
                acc = ts.tile.mma(a[i : i + 32, k : k + 32], b[k : k + 32, j : j + 64], acc)
            c[i // 32, j // 64] = ts.tile.sum(acc)

    element = getattr(ts, dtype)
    sums.__annotations__ = {
        "a": ts.Tensor["m", "k", element],
        "b": ts.Tensor["k", "n", element],
        "c": ts.Tensor["p", "q", total],
    }
    a, b = np.ones((32 + 20, 70), NUMPY[dtype]), np.ones((70, 64 + 37), NUMPY[dtype])
    c = np.full((2, 2), 77, np.int32 if dtype == "i8" else np.float32)
    run(ts.kernel(sums), [a, b, c])
    np.testing.assert_array_equal(c, 70 * np.outer([32, 20], [64, 37]))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_sums_of_nothing_are_zero(dtype: str) -> None:
    check(dtype, (40, 70, 0), (32, 64, 32))


@pytest.mark.parametrize("dtype", ["bf16", "i8"])
@pytest.mark.parametrize(("depth", "turned"), [(63, TURNS[0]), (64, TURNS[3]), (1100, TURNS[0]), (1101, TURNS[3])])
def test_tiles_of_the_matrix_unit_cover_rests(dtype: str, turned: tuple[bool, bool], depth: int) -> None:
    check(dtype, (75, 150, depth), (64, 96, 1 << (depth - 1).bit_length()), turned)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("depth", [1, 5, 33, 77])
def test_what_follows_a_row_in_memory_is_no_part_of_it(dtype: str, depth: int) -> None:
    a, b = numbers(dtype, (40, depth)), numbers(dtype, (depth, 70))
    a[1::2] = np.nan
    c = np.zeros((40, 70), np.float32)
    run(ts.kernel(product(dtype, (32, 64, 32))), [a, b, c])
    np.testing.assert_allclose(c[::2], a[::2].astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)
    assert np.all(np.isnan(c[1::2]))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_in_place_of_all_heights_and_widths(dtype: str) -> None:
    for m, n, k in ((29, 203, 301), (17, 16, 64), (23, 33, 131), (6, 64, 260)):
        check(dtype, (m, n, k), (48, 128, 130))
        check(dtype, (m, n, k), (max(m, 17), n, k))


@pytest.mark.parametrize(("dtype", "terms"), [("f32", 2047), ("f64", 1024), ("bf16", 4095), ("bf16", 77)])
def test_rows_that_crowd_a_few_sets_of_the_cache_are_copied(dtype: str, terms: int) -> None:
    """The same terms, in rows 8 KiB apart and side by side: only the former are copied, and nothing else differs."""
    pitch = 8192 // np.dtype(NUMPY[dtype]).itemsize
    wide = numbers(dtype, (70, pitch))
    wide[:, terms:] = np.nan
    a, b = wide[:, :terms], numbers(dtype, (terms, 150))
    kernel, (c, d) = (
        ts.kernel(product(dtype, (256, 160, 96))),
        np.zeros((2, 70, 150), np.dtype(TOTALS.get(dtype, "f4").replace("f64", "f8"))),
    )
    run(kernel, [a, b, c])
    run(kernel, [np.ascontiguousarray(a), b, d])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(c, d)


SAPPHIRE_RAPIDS, GRANITE_RAPIDS = target_named("sapphirerapids"), target_named("graniterapids")
NEOVERSE = TargetRecord(
    "neoverse",
    "cpu",
    frozenset({"neon", "fma", "f16c", "dotprod", "bf16"}),
    vector_bytes=16,
    triple="aarch64-unknown-linux-gnu",
    cpu="neoverse-n2",
)


def assembly(target: TargetRecord, dtype: str, tile: tuple[int, int, int]) -> str:
    """Return the assembly text of a product."""
    module = aligned(product(dtype, tile), {"m": 128, "n": 128, "k": 128})
    for step in CANONICALIZE:
        step.apply(module)
    code = compile_cpu(lower_to_vector(scheduled(module, target), target), target, ("asm",))
    assert code.reflection["spills"] == 0
    return str(code.dumps["asm"])


@pytest.mark.parametrize(
    ("target", "dtype", "instruction"),
    [
        (SAPPHIRE_RAPIDS, "bf16", "tdpbf16ps"),
        (SAPPHIRE_RAPIDS, "fp8_e4m3", "tdpbf16ps"),
        (SAPPHIRE_RAPIDS, "f16", "vfmadd231ps"),
        (GRANITE_RAPIDS, "f16", "tdpfp16ps"),
        (GRANITE_RAPIDS, "bf16", "tdpbf16ps"),
        (SAPPHIRE_RAPIDS, "i8", "tdpbssd"),
        (SAPPHIRE_RAPIDS, "u8", "vpdpwssd"),
        (target_named("x86-64-v3"), "f32", "vfmadd231ps"),
        (target_named("x86-64-v3"), "i8", "vpmaddwd"),
        (target_named("x86-64-v3"), "bf16", "vfmadd231ps"),
        (target_named("aarch64"), "f32", "fmla"),
        (NEOVERSE, "i8", "sdot"),
        (NEOVERSE, "bf16", "bfdot"),
    ],
)
def test_other_cpus_instructions(target: TargetRecord, dtype: str, instruction: str) -> None:
    assert instruction in assembly(target, dtype, (64, 64, 64))


def test_few_rows_need_no_matrix_unit() -> None:
    text = assembly(SAPPHIRE_RAPIDS, "i8", (4, 64, 64))
    assert "vpdpbusd" in text
    assert "tdpbssd" not in text


@pytest.mark.parametrize(("dtype", "instruction"), [("bf16", "tdpbf16ps"), ("f16", "tdpfp16ps"), ("i8", "tdpbssd")])
def test_a_matrix_unit_takes_a_few_rows_in_place(dtype: str, instruction: str) -> None:
    text = assembly(GRANITE_RAPIDS, dtype, (8, 64, 64))
    assert instruction in text
    assert "vpdp" not in text
    assert "vdpbf16ps" not in text


@pytest.mark.parametrize("rows", [70, 8])
@pytest.mark.parametrize("turned", TURNS)
def test_f16_reaches_a_matrix_unit_bit_by_bit(
    rows: int, turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No CPU at hand multiplies tiles of f16: its code runs with the bf16 instruction, on the bits of bf16 numbers."""
    host = host_target()
    if not host.has("amx-bf16"):
        pytest.skip("this CPU has no AMX")
    monkeypatch.setitem(amx.DOTS, "amx_f16", "tdpbf16ps")
    target = replace(host, features=host.features | {"amx-fp16"})
    monkeypatch.setattr(import_module("tessera.backends.cpu.host"), "host_target", lambda: target)
    a, b = numbers("bf16", (rows, 77)), numbers("bf16", (77, 51))
    c = np.full((rows, 51), 77, np.float32)
    stored = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)]
    run(ts.kernel(product("f16", (min(rows, 64), 48, 64), turned)), [*stored, c])
    wide = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.all(np.abs(c - wide) <= 85 * np.finfo(np.float32).eps * bound)


def test_strict_products_keep_subnormal_numbers() -> None:
    a = np.full((4, 32), 1e-39, ml_dtypes.bfloat16)
    b = np.full((32, 16), 1.0, ml_dtypes.bfloat16)
    c = np.zeros((4, 16), np.float32)
    with ts.numerics.profile("strict"):
        run(ts.kernel(product("bf16", (4, 16, 32))), [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5)


def test_caches_of_this_machine_are_known() -> None:
    target = host_target()
    assert 8 << 10 <= target.l1_bytes < target.l2_bytes


@cache
def whole_depth(dtype: str, tile: tuple[int, int], depth: int) -> Any:
    """Return a function that sums the rows of tiles of products plus one, outside the tensor too."""
    rows, columns = tile

    def multiply(a, b, c):
        for i, j in ts.tile.grid((a.shape[0], rows), (b.shape[1], columns)):
            zeros = ts.tile.zeros((rows, columns), ts.i32 if dtype == "i8" else ts.f32)
            total = ts.tile.mma(a[i : i + rows, :], b[:, j : j + columns], zeros)
            sums = ts.tile.row_sum(ts.tile.cast(total, ts.f32) + 1.0)
            c[i : i + rows, j : j + 1] = sums[:, None]

    element = getattr(ts, dtype)
    multiply.__annotations__ = {
        "a": ts.Tensor["m", depth, element],
        "b": ts.Tensor[depth, "n", element],
        "c": ts.Tensor["m", "n", ts.f32],
    }
    return multiply


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(
    ("depth", "target"),
    [*((depth, "cpu") for depth in (1, 31, 64, 300, 1000)), *every((31, 1000), _runnable())],
)
def test_sums_that_start_from_zero_are_zero_outside(dtype: str, depth: int, target: str) -> None:
    columns, m, n = 80, 70, 150
    a, b = numbers(dtype, (m, depth)), numbers(dtype, (depth, n))
    c = np.zeros((m, n), np.float32)
    run(ts.kernel(whole_depth(dtype, (48, columns), depth)), [a, b, c], target)
    left, right = a.astype(np.float64), b.astype(np.float64)
    for first in range(0, n, columns):
        part = right[:, first : first + columns]
        bound = (np.abs(left) @ np.abs(part)).sum(1) + columns
        error = np.abs(c[:, first] - (left @ part).sum(1) - columns)
        assert np.all(error <= (depth + 100) * np.finfo(np.float32).eps * bound)
