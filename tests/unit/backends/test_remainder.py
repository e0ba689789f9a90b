"""The exact remainder, run on the CPU, against C's `fmod` (which NumPy calls)."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tessera.backends.llvm.remainder import remainder_function, vector_remainder_function


def compiled(element: str, width: int) -> tuple[Any, Any]:
    name, text, declares = remainder_function(element) if width == 1 else vector_remainder_function(width)
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
    ("element", "dtype", "width"),
    [("float", np.float32, 1), ("double", np.float64, 1), ("float", np.float32, 4), ("float", np.float32, 16)],
)
def test_the_remainder_is_exact_for_all_kinds_of_numbers(element: str, dtype: Any, width: int) -> None:
    rng = np.random.default_rng(7)
    bits = np.dtype(dtype).itemsize * 8
    integers = rng.integers(0, 1 << 63, 60000, dtype=np.uint64) << np.uint64(1)
    raw = (integers >> np.uint64(64 - bits)).astype(f"u{bits // 8}").view(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, tiny, -tiny, 7.5, np.finfo(dtype).max], dtype)
    x = np.concatenate([raw[:30000], np.repeat(special, len(special)), np.arange(-500, 500).astype(dtype)])
    y = np.concatenate([raw[30000:], np.tile(special, len(special)), np.full(1000, 7, dtype)])
    x, y = (np.resize(one, -(-len(one) // width) * width) for one in (x, y))
    result = np.empty_like(x)
    engine, run = compiled(element, width)
    run(x.ctypes.data, y.ctypes.data, result.ctypes.data, len(x))
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()
    assert engine is not None
