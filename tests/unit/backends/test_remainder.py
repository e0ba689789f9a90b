"""The exact remainder, run on the CPU, against C's `fmod` (which NumPy calls)."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tessera.backends.llvm.remainder import floor_function, remainder_function, vector_remainder_function

UNIT = """
define internal float @unit(float %x) alwaysinline {{
  %magnitude = call float @llvm.fabs.f32(float %x)
  %tiny = fcmp olt float %magnitude, 0x3810000000000000
  %given = select i1 %tiny, float 0.0, float %x
  %exact = fdiv float 1.0, %given
  %bits = bitcast float %exact to i32
  %other = add i32 %bits, {off}
  %found = bitcast i32 %other to float
  %large = fcmp ogt float %magnitude, 0x47D0000000000000
  %near = select i1 %tiny, float %exact, float %found
  %result = select i1 %large, float 0.0, float %near
  ret float %result
}}
declare float @llvm.fabs.f32(float)
"""
"""Reciprocals that are one unit off, and flush what is no normal number."""

LARGE = """
define internal float @large(float %x, float %y) {
  ret float 0x7FF8000000000000
}
"""
"""What quotients take that are large, or no numbers."""


def compiled(element: str, width: int, off: int | None = None, floors: bool = False) -> tuple[Any, Any]:
    if floors:
        name, text, declares = floor_function("unit", "large")
        text += LARGE
    elif width > 1:
        name, text, declares = vector_remainder_function(width)
    else:
        name, text, declares = remainder_function(element, "" if off is None else "unit")
    if off is not None:
        declares = *(one for one in declares if "@unit" not in one), UNIT.format(off=off)
    scalar, element = element, element if width == 1 else f"<{width} x {element}>"
    pointer = (
        f"define void @run(ptr %x, ptr %y, ptr %r, i64 %n) {{\nentry:\n  br label %head\nhead:\n"
        f"  %i = phi i64 [ 0, %entry ], [ %next, %head ]\n"
        f"  %px = getelementptr {scalar}, ptr %x, i64 %i\n  %py = getelementptr {scalar}, ptr %y, i64 %i\n"
        f"  %pr = getelementptr {scalar}, ptr %r, i64 %i\n  %a = load {element}, ptr %px, align 4\n"
        f"  %b = load {element}, ptr %py, align 4\n  %v = call {element} @{name}({element} %a, {element} %b)\n"
        f"  store {element} %v, ptr %pr, align 4\n  %next = add i64 %i, {width}\n  %more = icmp ult i64 %next, %n\n"
        f"  br i1 %more, label %head, label %done\ndone:\n  ret void\n}}\n"
    )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*declares, text, pointer]))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic", jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    return engine, signature(engine.get_function_address("run"))


@pytest.mark.parametrize(
    ("element", "dtype", "width", "off"),
    [
        ("float", np.float32, 1, None),
        ("double", np.float64, 1, None),
        ("float", np.float32, 4, None),
        ("float", np.float32, 16, None),
        *(("float", np.float32, 1, off) for off in (-1, 0, 1)),
    ],
)
def test_the_remainder_is_exact_for_all_kinds_of_numbers(element: str, dtype: Any, width: int, off: int | None) -> None:
    rng = np.random.default_rng(7)
    bits = np.dtype(dtype).itemsize * 8
    integers = rng.integers(0, 1 << 63, 60000, dtype=np.uint64) << np.uint64(1)
    raw = (integers >> np.uint64(64 - bits)).astype(f"u{bits // 8}").view(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, tiny, -tiny, 7.5, np.finfo(dtype).max], dtype)
    with np.errstate(all="ignore"):
        near = raw[30000:] * (rng.random(30000) * 2.0 ** rng.integers(-25, 4, 30000)).astype(
            dtype
        )  # quotients of all sizes
    x = np.concatenate([raw, np.repeat(special, len(special)), np.arange(-500, 500).astype(dtype)])
    y = np.concatenate([np.roll(raw[:30000], 1), near, np.tile(special, len(special)), np.full(1000, 7, dtype)])
    x, y = (np.resize(one, -(-len(one) // width) * width) for one in (x, y))
    result = np.empty_like(x)
    engine, run = compiled(element, width, off)
    run(x.ctypes.data, y.ctypes.data, result.ctypes.data, len(x))
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()
    assert engine is not None


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_quotients_of_ordinary_size_are_cut_off_without_a_division(off: int) -> None:
    rng = np.random.default_rng(11)
    y = rng.standard_normal(60000).astype(np.float32) * np.float32(2) ** rng.integers(-40, 40, 60000).astype(np.float32)
    whole = np.floor(2.0 ** rng.uniform(0, 18, 60000)) * rng.choice((-1, 1), 60000)
    near = (whole * y.astype(np.float64)).astype(np.float32)  # multiples, and numbers beside them
    near = np.nextafter(near, rng.choice((-np.inf, 0, np.inf), 60000).astype(np.float32))
    x = np.where(rng.random(60000) < 0.5, near, (y * rng.uniform(-3, 3, 60000)).astype(np.float32))
    x = np.concatenate([x, np.float32([0, -0.0, 0, -0.0, 6, -6, 7, -7])])
    y = np.concatenate([y, np.float32([3, 3, -3, -3, 3, 3, -3, -3])])
    result = np.empty_like(x)
    engine, run = compiled("float", 1, off, floors=True)
    run(x.ctypes.data, y.ctypes.data, result.ctypes.data, len(x))
    expected = np.floor_divide(x, y)
    np.testing.assert_array_equal(result, expected)
    assert np.array_equal(np.signbit(result), np.signbit(expected))
    assert engine is not None
