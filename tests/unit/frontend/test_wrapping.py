"""What `functools.wraps` copies onto a function, and its attributes, change nothing about what it does in kernels."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.function import DeviceFunction, signature_of
from tessera.frontend.reads import Reads
from tessera.frontend.text import text_of


def plain(x: Any, k: float = 2.0, *, more: float = 20.0) -> Any:
    return x * k + more


@ts.function
def helper(x: Any, k: Any = 2.0, *, more: Any = 20.0) -> Any:
    return x * k + more


@ts.kernel
def kernel(x: ts.Tensor["n", ts.f32], k: ts.f32 = 2.0, *, more: ts.constexpr = 20.0):
    x[0:4] = x[0:4] * k + more


WRAPPED = [plain, helper, kernel, ts.tile.silu, ts.tile.sum, len, functools.partial(plain, 1), DeviceFunction]


def ran(made: Any, *args: Any) -> float:
    x = np.ones(4, np.float32)
    made(x, *args)
    return float(x[0])


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_helper_that_wraps_another_is_itself(wrapped):
    @ts.function
    @functools.wraps(wrapped)
    def better(x: Any, k: Any = 3.0, *, more: Any = 30.0) -> Any:
        return x * k - more

    @ts.kernel
    def caller(x: ts.Tensor["n", ts.f32]):
        x[0:4] = better(x[0:4]) + better(0.0, more=1.0)

    assert ran(caller) == 3.0 - 30.0 - 1.0


@pytest.mark.parametrize("wrapped", [plain, helper, kernel])
def test_a_kernel_that_wraps_another_is_itself(wrapped):
    annotations = {"x": ts.Tensor["n", ts.f32], "k": ts.f32, "more": ts.constexpr}

    def better(x, k=3.0, *, more=30.0):
        x[0:4] = x[0:4] * k - more

    functools.update_wrapper(better, wrapped)
    better.__annotations__ = annotations
    assert ran(ts.kernel(better)) == 3.0 - 30.0
    assert ran(ts.kernel(better), 5.0) == 5.0 - 30.0
    better.__annotations__ = {**annotations, "x": ts.Tensor["n", ts.dtype_var("T")]}
    assert ran(ts.kernel(better)) == 3.0 - 30.0


def test_a_helper_may_have_attributes_of_any_name():
    names = {*vars(helper), *dir(DeviceFunction)} - {"__class__", "__dict__", "__doc__"}
    for name in names:

        def tagged(x: Any) -> Any:
            return x + 4.0

        if name.startswith("__") and name not in ("__signature__", "__wrapped__"):
            continue
        vars(tagged)[name] = "tag"
        made = ts.function(tagged)

        @ts.kernel
        def caller(x: ts.Tensor["n", ts.f32]):
            x[0:4] = made(x[0:4])  # noqa: B023

        assert ran(caller) == 5.0


def test_a_functions_own_parameters_count():
    def made(a: int, /, b: int = 2, *, c: int = 3) -> None: ...

    expected = inspect.signature(made)
    functools.update_wrapper(made, plain, assigned=())
    vars(made)["__signature__"] = inspect.signature(plain)
    assert signature_of(made) == expected


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_the_text_of_a_function_counts_whatever_it_wraps(wrapped):
    @functools.wraps(wrapped)
    def own(x: Any) -> Any:
        return x * 2.0

    assert text_of(own).digest in Reads({"f": own}).roots
