"""Conversions to and from fp8 on emulated GPUs: all codes, all halves, and the ends and ties of f32."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90a")
FP8 = (ts.fp8_e4m3, ts.fp8_e5m2)
WIDE = (ts.f16, ts.bf16, ts.f32)
LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


def cast(source: DType, result: DType, block: int, saturate: bool = False) -> Any:
    to = result @ ts.saturate if saturate else result

    @ts.kernel
    def kernel(x: ts.Tensor["N", source], y: ts.Tensor["N", result]):
        for i in ts.tile.grid((N, block)):
            y[i : i + block] = x[i : i + block].to(to)

    return kernel


def emulated(kernel: Any, target: str, x: np.ndarray[Any, Any], result: DType) -> np.ndarray[Any, Any]:
    """Return what a kernel makes of an array."""
    device, y = Device(), np.zeros(x.size, result.numpy())
    pointers = [device.add(array.view(np.uint8), np.ones(array.nbytes, bool)) for array in (x, y)]
    artifact = ts.compile(kernel, target=target, dims={"N": x.size}, dump=["ptx"])
    Emulation(artifact).run(device, pointers, [((x.size,), (1,))] * 2, [], Limits(10**9, None))
    return device.back(1).view(result.numpy())


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Compare bit by bit, signs of zeros too; of NaN there are several."""
    found, expected = found.astype(np.float32), expected.astype(np.float32)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(found[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))


def singles(dtype: DType) -> np.ndarray[Any, Any]:
    """Return f32 of all magnitudes, and around all middles between neighbours of a dtype."""
    rng = np.random.default_rng(dtype.bits)
    with np.errstate(invalid="ignore"):
        codes = np.sort(np.arange(128, dtype=np.uint8).view(dtype.numpy()).astype(np.float32))
    codes = codes[np.isfinite(codes)]
    codes = np.append(codes, codes[-1] * 2 - codes[-2])
    middles = (codes[1:] + codes[:-1]) / 2
    ends = [step(middles, np.float32(way)) for step, way in ((np.nextafter, 0), (np.nextafter, np.inf))]
    special = np.array([0, np.inf, np.nan, 3e38, 1e-45, 1e-38, 1e-7], np.float32)
    some = rng.integers(0, 1 << 31, 2048, np.uint32).view(np.float32)
    positive = np.concatenate([codes, middles, *ends, special, some, rng.uniform(0, 600, 1024).astype(np.float32)])
    return np.concatenate([positive, -positive])


def values(source: DType, dtype: DType) -> np.ndarray[Any, Any]:
    if source == ts.f32:
        return singles(dtype)
    return np.arange(1 << 16, dtype=np.uint16).view(source.numpy())


def rounded(x: np.ndarray[Any, Any], dtype: DType, saturate: bool) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        wide, most = x.astype(np.float32), np.float32(LARGEST[dtype.name])
        return (np.clip(wide, -most, most) if saturate else wide).astype(dtype.numpy())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [32, 64, 512])
@pytest.mark.parametrize("result", WIDE, ids=str)
@pytest.mark.parametrize("source", FP8, ids=str)
def test_all_codes_are_what_they_stand_for(source: DType, result: DType, block: int, target: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(source.numpy())
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float32).astype(result.numpy())
    check(emulated(cast(source, result, block), target, x, result), expected)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("result", FP8, ids=str)
@pytest.mark.parametrize("source", WIDE, ids=str)
def test_numbers_are_rounded_once(source: DType, result: DType, target: str, saturate: bool) -> None:
    x = values(source, result)
    check(emulated(cast(source, result, 1024, saturate), target, x, result), rounded(x, result, saturate))


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("result", FP8, ids=str)
def test_one_and_two_numbers_of_a_thread(result: DType, saturate: bool, block: int) -> None:
    x = singles(result)
    check(emulated(cast(ts.f32, result, block, saturate), "sm_90a", x, result), rounded(x, result, saturate))


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_arithmetic_rounds_after_each_operation(dtype: DType) -> None:
    @ts.kernel
    def kernel(x: ts.Tensor["N", dtype], y: ts.Tensor["N", dtype]):
        for i in ts.tile.grid((N, 128)):
            y[i : i + 128] = x[i : i + 128] * x[i : i + 128] + x[i : i + 128]

    x = np.arange(256, dtype=np.uint8).view(dtype.numpy())
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        squares = (wide * wide).astype(dtype.numpy()).astype(np.float32)
        expected = (squares + wide).astype(dtype.numpy())

    check(emulated(kernel, "sm_90a", x, dtype), expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("source", FP8, ids=str)
def test_four_codes_become_two_words(source: DType, target: str) -> None:
    kernel = cast(source, ts.f16, 512)
    ptx = str(ts.compile(kernel, target=target, dims={"N": 1024}, dump=["ptx"]).dumps["ptx"])
    kind = source.name.removeprefix("fp8_")
    instruction = f"cvt.rn.f16x2.{kind}x2" if target == "sm_90a" else "prmt.b32"
    assert ptx.count(instruction) == 16 // 2 // 2  # a thread stores 16 bytes
    assert "b8" not in ptx


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("result", FP8, ids=str)
def test_pairs_are_converted_at_once(result: DType, saturate: bool) -> None:
    ptx, old = (
        str(ts.compile(cast(ts.f32, result, 512, saturate), target=target, dims={"N": 1024}, dump=["ptx"]).dumps["ptx"])
        for target in ("sm_90a", "sm_80")
    )
    # A thread loads 16 bytes.
    instruction, each = f"cvt.rn.satfinite.{result.name.removeprefix('fp8_')}x2.f32", 16 // 4
    assert ptx.count(instruction) == each // 2
    assert ptx.count("selp.") == (0 if saturate else each)
    assert instruction not in old
