"""Functions of the library for 16-bit numbers, and f32 logarithms by a GPU's unit: exact ones are float64's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.numerics.dtypes import bf16, f16, f32
from tessera.ops import approximations as about
from tessera.ops.annotations import Constant
from tessera.ops.loss import pointwise_kernels
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

N = ts.dims("N")
NAMES = ("log", "log_of_given", "log1p", "exp", "sigmoid", "silu", "log2_of_normal", "quotient")
EXACT = {"log": np.log, "log_of_given": np.log, "log1p": np.log1p, "exp": np.exp}
EXACT |= {"log2_of_normal": np.log2, "quotient": lambda x: 0.75 / x}
EXACT |= {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x))}
SPECIAL = (0.0, -0.0, -1.0, -2.0, 1.0, np.inf, -np.inf, np.nan, 3e38, 1e-40, -1e-40)


@ts.kernel
def functions(x: ts.Tensor[N, ts.f32], y: ts.Tensor[8, N, ts.f32], rough: Constant):
    for i in ts.tile.grid((N, 256)):
        some = x[i : i + 256]
        y[0, i : i + 256] = about.log(some, rough)
        y[1, i : i + 256] = about.log_of_given(some, rough)
        y[2, i : i + 256] = about.log1p(some, rough)
        y[3, i : i + 256] = about.exp(some, rough)
        y[4, i : i + 256] = about.sigmoid(some, rough)
        y[5, i : i + 256] = about.silu(some, rough)
        y[6, i : i + 256] = about.log2_of_normal(some, rough)
        y[7, i : i + 256] = about.quotient(0.75, some, rough)


def numbers(count: int) -> Any:
    """Return numbers of bf16 near 1, near 0, and of all sizes."""
    rng = np.random.default_rng(3)
    near = 1 + rng.standard_normal(count) * 2.0 ** rng.integers(-9, 0, count)
    small = rng.standard_normal(count) * 2.0 ** rng.integers(-30, 0, count)
    wide = 2.0 ** rng.uniform(-120, 6, count)
    return np.concatenate([near, small, wide]).astype(bf16.numpy()).astype(np.float32)


@pytest.mark.parametrize("rough", ["bf16", "f16"])
def test_approximations_are_right_to_sixteen_bits(rough):
    x = numbers(256)
    found = np.full((8, x.size), np.nan, np.float32)
    emulated(functions, "sm_90a", [x, found], {"N": x.size}, (), rough=rough)
    for name, row in zip(NAMES, found, strict=True):
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            exact = EXACT[name](x.astype(np.float64))
        counts = np.isfinite(exact) & (np.abs(exact) < 3e38)
        limit = 2.0**-13 if (name, rough) == ("log_of_given", "bf16") else 2.0**-16
        size = np.maximum(np.abs(exact), 2.0**-6) if name == "log2_of_normal" else np.abs(exact)
        assert (np.abs(row - exact)[counts] <= limit * size[counts]).all(), name


def test_logarithms_of_f32_keep_their_bound_on_a_gpu():
    rng = np.random.default_rng(4)
    near = 1 + rng.standard_normal(512) * 2.0 ** rng.integers(-20, 0, 512)
    x = np.concatenate([near - 1, near, 2.0 ** rng.uniform(-149, 128, 512), SPECIAL]).astype(np.float32)
    found = np.full((8, x.size), np.nan, np.float32)
    emulated(functions, "sm_90a", [x, found], {"N": x.size}, (), rough="")
    for at, name in ((0, "log"), (2, "log1p")):
        with np.errstate(invalid="ignore", divide="ignore"):
            exact = EXACT[name](x.astype(np.float64))
        finite = np.isfinite(exact)
        ulp = np.spacing(np.abs(exact[finite]).astype(np.float32))
        assert (np.abs(found[at][finite] - exact[finite]) <= 2.0 * ulp).all()
        assert np.array_equal(found[at][~finite], exact[~finite].astype(np.float32), equal_nan=True)
        assert np.array_equal(np.signbit(found[at][finite & (x == 0)]), np.signbit(exact[finite & (x == 0)]))


def test_they_are_for_gpus_and_numbers_of_sixteen_bits():
    assert [about.suffice(dtype, True) for dtype in (bf16, f16, f32)] == ["bf16", "f16", ""]
    assert about.suffice(bf16, False) == ""
    with ts.numerics.profile("strict"):
        assert about.suffice(bf16, True) == ""


def test_what_compiles_for_a_gpu_is_what_runs_there():
    for dtype, units in ((ts.bf16, True), (ts.f32, False)):
        ptx = op.loss.bce_with_logits.compile(dtype, target="sm_90a", dump=("ptx",)).dumps["ptx"]
        assert ("lg2.approx.ftz.f32" in ptx) == units
        assert ptx.count("ld.weak.global.v4.b32") >= 8


def exact_losses(kind: str, x: Any, y: Any) -> Any:
    """Return losses in float64."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "bce":
            return -y * np.maximum(np.log(x), -100) - (1 - y) * np.maximum(np.log1p(-x), -100)
        if kind == "bce_with_logits":
            return y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)
        if kind == "kl":
            return np.where(y == 0, 0.0, y * (np.log(y) - x))
        p, q = (np.exp(x), np.exp(y)) if kind == "js_log" else (x, y)
        terms = [np.where(one == 0, 0.0, one * np.log(2 * one / (p + q))) for one in (p, q)]
        return (terms[0] + terms[1]) / 2


@pytest.mark.parametrize("kind", ["bce", "bce_with_logits", "kl", "js", "js_log"])
def test_losses_of_bf16_on_a_gpu_are_rounded_once(kind):
    rng = np.random.default_rng(5)
    x, y = rng.uniform(size=(2, 1024))
    x[:4], y[:4] = (0.0, 1.0, 1e-6, 0.0), (1.0, 0.0, 0.0, 0.0)
    if kind in ("bce_with_logits", "js_log", "kl"):
        x = np.log(np.maximum(x, 1e-6))
        y = np.log(np.maximum(y, 1e-6)) if kind == "js_log" else y
    x, y = x.astype(bf16.numpy()), y.astype(bf16.numpy())
    found = np.full_like(x, np.nan)
    fixed: dict[str, Any] = dict.fromkeys(("weight", "pos_weight"))
    fixed |= {"T": ts.bf16, "kind": kind, "whole": (False, False), "rough": "bf16", "acc": ts.f32}
    given = [x, y, found]
    emulated(pointwise_kernels.elements, "sm_90a", given, {"N": x.size}, (1.0,), **fixed)
    exact = exact_losses(kind, x.astype(np.float64), y.astype(np.float64))
    apart = np.abs(found.astype(np.float64) - exact)
    # Half a step of bf16, and what terms of this size cancel to in f32.
    assert (apart <= 2.02 * 2.0**-10 * 2 * np.abs(exact) + 1e-7).all()
    lib.close(found, exact, ts.bf16, 1)
