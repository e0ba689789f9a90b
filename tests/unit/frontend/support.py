"""Builds kernels without a backend, checks their IR, and runs them in the interpreter."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.ir import Operation
from xdsl.parser import Parser

from tessera.frontend.build import BuiltKernel, build_kernel
from tessera.frontend.signature import Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.interp import interpret
from tessera.ir.collect import new_context
from tessera.ir.locations import location_of


def built(function: Callable[..., Any], sizes: dict[str, int] | None = None, **options: Any) -> BuiltKernel:
    """Build a kernel and check that its IR verifies, prints, parses back, and has a location on every op."""
    signature = Signature.of(function)
    facts = tuple(_facts(param, sizes or {}) for param in signature.runtime_params)
    for name in ("constexprs", "config"):
        options[name] = tuple(options.get(name, {}).items())
    result = build_kernel(signature, Specialization(facts, **options))
    check(result)
    return result


def _facts(param: Any, sizes: dict[str, int]) -> ArgFacts:
    if not isinstance(param, TensorParam):
        return ArgFacts("scalar", param.dtype)

    return ArgFacts("tensor", param.dtype.storage, tuple(dim.value(sizes) for dim in param.dims))


def check(result: BuiltKernel) -> None:
    """Check what holds for every module the frontend makes."""
    result.module.verify()
    text = str(result.module)
    parsed = Parser(new_context(), text).parse_module()
    parsed.verify()
    assert str(parsed) == text
    for op in result.module.walk():
        if op is not result.module:
            assert location_of(op) is not None, op.name


def ops(result: BuiltKernel, name: str) -> list[Operation]:
    """Return the ops called `tessera_tile.<name>` or `scf.<name>`, in order."""
    return [op for op in result.module.walk() if op.name in (f"tessera_tile.{name}", f"scf.{name}")]


def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Build a kernel for its arguments, run it in the interpreter, and return what it returns."""
    signature = Signature.of(function)
    sizes: dict[str, int] = options.pop("sizes", {})
    for param, arg in zip(signature.runtime_params, args, strict=True):
        if isinstance(param, TensorParam):
            for dim, size in zip(param.dims, np.shape(arg), strict=True):
                if dim.is_name:
                    sizes[dim.names[0]] = size
    kernel_options = {
        k: options.pop(k) for k in ("constexprs", "config", "profile", "debug", "linear_block") if k in options
    }
    result = built(function, sizes, **kernel_options)
    returned = interpret(result.module, args, **options)
    return returned[0] if len(returned) == 1 else tuple(returned)


def printed(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return what a kernel prints."""
    out = io.StringIO()
    run(function, *args, out=out, **options)
    return out.getvalue()
