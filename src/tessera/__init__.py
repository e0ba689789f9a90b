"""Tessera: tile-first kernels in Python, compiled to CPUs and GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera.collecting import collector_paused

with collector_paused(keep=True):
    from tessera import errors, numerics
    from tessera.autodiff import autodiff
    from tessera.errors import (
        CallError,
        CompilerFault,
        DeviceError,
        DiagnosticWarning,
        LanguageError,
        ResourceError,
        TargetError,
        TesseraError,
        TypeMismatchError,
        VerifyError,
    )
    from tessera.frontend import tile
    from tessera.frontend.annotations import Dim, Tensor, constexpr, dims, dtype_var
    from tessera.frontend.function import function
    from tessera.numerics.dtypes import (
        DType,
        Policy,
        accum,
        bf16,
        f16,
        f32,
        f64,
        fp4_e2m1,
        fp6_e2m3,
        fp6_e3m2,
        fp8_e4m3,
        fp8_e5m2,
        i8,
        i16,
        i32,
        i64,
        loss_scale,
        saturate,
        stochastic_round,
        tf32,
        u8,
        u16,
        u32,
        u64,
    )
    from tessera.numerics.dtypes import bf16 as bfloat16
    from tessera.numerics.dtypes import boolean as bool_
    from tessera.numerics.dtypes import f16 as float16
    from tessera.numerics.dtypes import f16 as fp16
    from tessera.numerics.dtypes import f32 as float32
    from tessera.numerics.dtypes import f32 as fp32
    from tessera.numerics.dtypes import f64 as float64
    from tessera.numerics.dtypes import f64 as fp64
    from tessera.numerics.dtypes import i8 as int8
    from tessera.numerics.dtypes import i16 as int16
    from tessera.numerics.dtypes import i32 as int32
    from tessera.numerics.dtypes import i64 as int64
    from tessera.numerics.dtypes import u8 as uint8
    from tessera.numerics.dtypes import u16 as uint16
    from tessera.numerics.dtypes import u32 as uint32
    from tessera.numerics.dtypes import u64 as uint64
    from tessera.numerics.integers import cdiv
    from tessera.platforms import PLATFORMS
    from tessera.target.registry import register as _register

if TYPE_CHECKING:
    from tessera import ops, runtime
    from tessera import ops as op
    from tessera.driver.compile import compile
    from tessera.driver.kernel import kernel
    from tessera.driver.loaded import load
    from tessera.driver.pullback import pullback
    from tessera.frontend.tile import assume
    from tessera.graph import (
        checkpoint,
        custom_jvp,
        custom_vjp,
        grad,
        jit,
        jvp,
        linearize,
        stop_gradient,
        value_and_grad,
        vjp,
    )
    from tessera.ops import mse
    from tessera.ops.linalg import gemm
    from tessera.runtime import asarray, empty, from_dlpack, full, ones, to_numpy, zeros
    from tessera.target.artifact import Artifact

__version__ = "0.1.0"

for _platform in PLATFORMS:
    _register(_platform)

_LAZY = {
    "Artifact": "tessera.target.artifact",
    "asarray": "tessera.runtime",
    "assume": "tessera.frontend.tile",
    "checkpoint": "tessera.graph",
    "compile": "tessera.driver.compile",
    "custom_jvp": "tessera.graph",
    "custom_vjp": "tessera.graph",
    "empty": "tessera.runtime",
    "from_dlpack": "tessera.runtime",
    "full": "tessera.runtime",
    "gemm": "tessera.ops.linalg",
    "grad": "tessera.graph",
    "jit": "tessera.graph",
    "jvp": "tessera.graph",
    "kernel": "tessera.driver.kernel",
    "linearize": "tessera.graph",
    "load": "tessera.driver.loaded",
    "mse": "tessera.ops",
    "ones": "tessera.runtime",
    "pullback": "tessera.driver.pullback",
    "stop_gradient": "tessera.graph",
    "to_numpy": "tessera.runtime",
    "value_and_grad": "tessera.graph",
    "vjp": "tessera.graph",
    "zeros": "tessera.runtime",
}
"""Where names come from that need the compiler or a device library; imported at their first use."""

_LAZY_MODULES = {"driver": "driver", "op": "ops", "ops": "ops", "runtime": "runtime", "tools": "tools"}

__all__ = [
    "Artifact",
    "CallError",
    "CompilerFault",
    "DType",
    "DeviceError",
    "DiagnosticWarning",
    "Dim",
    "LanguageError",
    "Policy",
    "ResourceError",
    "TargetError",
    "Tensor",
    "TesseraError",
    "TypeMismatchError",
    "VerifyError",
    "accum",
    "asarray",
    "assume",
    "autodiff",
    "bf16",
    "bfloat16",
    "bool_",
    "cdiv",
    "checkpoint",
    "compile",
    "constexpr",
    "custom_jvp",
    "custom_vjp",
    "dims",
    "dtype_var",
    "empty",
    "errors",
    "f16",
    "f32",
    "f64",
    "float16",
    "float32",
    "float64",
    "fp4_e2m1",
    "fp6_e2m3",
    "fp6_e3m2",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp16",
    "fp32",
    "fp64",
    "from_dlpack",
    "full",
    "function",
    "gemm",
    "grad",
    "i8",
    "i16",
    "i32",
    "i64",
    "int8",
    "int16",
    "int32",
    "int64",
    "jit",
    "jvp",
    "kernel",
    "linearize",
    "load",
    "loss_scale",
    "mse",
    "numerics",
    "ones",
    "op",
    "ops",
    "pullback",
    "runtime",
    "saturate",
    "stochastic_round",
    "stop_gradient",
    "tf32",
    "tile",
    "to_numpy",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    "vjp",
    "zeros",
]


def __getattr__(name: str) -> Any:
    """Import what needs the compiler or a device library when it is first asked for."""
    if name in _LAZY:
        with collector_paused(keep=True):
            value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _LAZY_MODULES:
        return import_module(f"tessera.{_LAZY_MODULES[name]}")
    if name.startswith("_"):
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    from tessera.frontend.foreign import missing_name

    raise missing_name("ts", name, __all__).at(errors.caller_location())


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
