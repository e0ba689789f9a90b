"""Annotations of kernels' numbers, which type checkers take for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tessera as ts

if TYPE_CHECKING:
    F64 = F32 = I64 = I32 = Constant = Any
else:
    F64, F32, I64, I32, Constant = ts.f64, ts.f32, ts.i64, ts.i32, ts.constexpr
