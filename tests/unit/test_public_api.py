"""Public functions given what they do not take: a typed error or a result, never another exception, never a hang."""

from __future__ import annotations

import inspect
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts


class Hostile:
    """An object whose every protocol fails."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


LOOP: list[Any] = []
LOOP.append(LOOP)

NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    3,
    2**63,
    2**200,
    1.5,
    math.nan,
    math.inf,
    1j,
    "",
    "a",
    "x" * 1000,
    "\0",
    "M*",
    b"bytes",
    (),
    (1, 2),
    (-1,),
    (2**62, 2**62),
    ("a", None),
    [],
    [1, [2, 3]],
    LOOP,
    {},
    {"a": 1},
    {1: 2},
    set(),
    object(),
    Hostile(),
    len,
    int,
    np.float32,
    np.float32(2),
    np.dtype("f4"),
    np.zeros(3, np.float32),
    np.zeros((2, 2), np.complex64),
    np.array(["a"]),
    np.array([None]),
    ts.f32,
    ts.f32 @ ts.accum(ts.f32),
    ts.Tensor["n", ts.f32],
    Ellipsis,
    slice(1),
]


@ts.kernel
def doubled(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], a: float = 2.0, b: ts.constexpr[int] = 8):
    for i in ts.tile.grid((n, b)):
        y[i : i + b] = x[i : i + b] * a
    return y


T = ts.dtype_var("T")


@ts.kernel
def added(x: ts.Tensor["n", T], y: ts.Tensor["n", T], bias: ts.Tensor["n", ts.f32] | None = None):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = x[i : i + 8] if bias is None else ts.tile.cast(x[i : i + 8] + bias[i : i + 8], T)


@ts.kernel
def parts(
    x: ts.Tensor[8, 16, ts.f32],
    start: ts.constexpr = 1,
    stop: ts.constexpr = 7,
    step: ts.constexpr = 2,
    place: ts.constexpr = -1,
    axis: ts.constexpr = 0,
    shift: ts.constexpr = 3,
    pieces: ts.constexpr = 4,
    index: ts.constexpr = 2,
    fill: ts.constexpr = 0.5,
):
    v = x[:, :]
    x[0, 0] = ts.tile.sum(v[start:stop:step, place])
    x[:, :] = v.flip(axis).roll(shift, axis)
    x[1, 1] = ts.tile.sum(v.split(pieces, axis)[0]) + ts.tile.sum(ts.tile.unstack(v, axis)[0])
    x[2, 2] = ts.tile.sum(v.take(index, axis, fill))
    x[3, 3] = ts.tile.sum(ts.tile.take_along_axis(v, v.to(ts.i32), axis, fill))


def square(x):
    return np.sum(x * x)


ARRAY = np.zeros((8, 8), np.float32)
PARTS = {"start": 1, "stop": 7, "step": 2, "place": -1, "axis": 0, "shift": 3, "pieces": 4, "index": 2, "fill": 0.5}
CALLS: dict[str, tuple[Callable[..., Any], list[Any], dict[str, Any]]] = {
    "empty": (ts.empty, [(2, 3)], {"dtype": ts.f32, "device": "cpu"}),
    "full": (ts.full, [(2, 3), 1.0], {"dtype": ts.f32, "device": "cpu"}),
    "zeros": (ts.zeros, [(2, 3)], {"dtype": ts.i8, "device": "cpu"}),
    "ones": (ts.ones, [(2, 3)], {"dtype": ts.bf16, "device": "cpu"}),
    "asarray": (ts.asarray, [[1.0, 2.0]], {"dtype": ts.f32, "device": "cpu"}),
    "from_dlpack": (ts.from_dlpack, [ARRAY], {}),
    "to_numpy": (ts.to_numpy, [ARRAY], {}),
    "dims": (ts.dims, ["M N"], {}),
    "dtype_var": (ts.dtype_var, ["T", ts.f32, "bf16"], {}),
    "Tensor": (lambda *items: ts.Tensor[items], ["M", 4, ts.f32], {}),
    "cdiv": (ts.cdiv, [7, 2], {}),
    "constexpr": (lambda item: ts.constexpr[item], [int], {}),
    "kernel": (ts.kernel, [lambda: None], {}),
    "autotune": (ts.kernel.autotune, [{"BM": [1]}], {"key": ("M",)}),
    "function": (ts.function, [lambda: None], {}),
    "compile": (
        ts.compile,
        [doubled],
        {"target": "cpu", "dump": ["tirh"], "dims": {"n": 8}, "strides": {"x": (1,)}, "b": 8},
    ),
    "load": (ts.load, ["/nowhere/at/all"], {}),
    "a kernel": (doubled, [ARRAY[0], ARRAY[1].copy(), 2.0], {"b": 8}),
    "a kernel of any dtype": (added, [ARRAY[0], ARRAY[1].copy()], {"bias": ARRAY[2]}),
    "parts of tiles": (ts.compile, [parts], {"target": "cpu", **PARTS}),
    "compile for a dtype": (ts.compile, [added], {"target": "cpu", "T": ts.f32, "bias": None}),
    "specialize": (added.specialize, [], {"T": ts.f32, "bias": None}),
    "accum": (ts.accum, [ts.f32], {}),
    "loss_scale": (ts.loss_scale, [2.0], {}),
    "policy": (lambda rule: ts.f32 @ rule, [ts.saturate], {}),
    "profile": (ts.numerics.profile, ["fast"], {}),
    "assume": (ts.assume, [True], {}),
    "capabilities": (ts.runtime.capabilities, ["cpu"], {}),
    "select_backend": (ts.runtime.select_backend, ["rocm"], {}),
    "jit": (ts.jit, [square], {}),
    "a traced function": (ts.jit(square), [ARRAY], {}),
    "grad": (ts.grad, [square], {"argnums": 0, "has_aux": False}),
    "value_and_grad": (ts.value_and_grad, [square], {"argnums": (0,), "has_aux": False}),
    "a gradient": (ts.grad(square), [ARRAY], {}),
    "vjp": (ts.vjp, [square, ARRAY], {}),
    "the other half of vjp": (ts.vjp(square, ARRAY)[1], [np.ones((), np.float32)], {}),
    "jvp": (ts.jvp, [square, (ARRAY,), (ARRAY,)], {}),
    "pullback": (ts.pullback, [doubled], {"wrt": ("x",)}),
    "a pullback": (ts.pullback(doubled), [ARRAY[0], ARRAY[1].copy(), 2.0], {"cotangents": ARRAY[2], "b": 8}),
    "stop_gradient": (ts.stop_gradient, [ARRAY], {}),
    "linearize": (ts.linearize, [square, ARRAY], {}),
    "the other half of linearize": (ts.linearize(square, ARRAY)[1], [ARRAY], {}),
    "checkpoint": (ts.checkpoint, [square], {}),
    "autodiff": (ts.autodiff, [square], {"argnums": 0}),
    "custom_vjp": (ts.custom_vjp, [square], {"nondiff_argnums": (1,)}),
    "defvjp": (ts.custom_vjp(square).defvjp, [square, square], {}),
    "custom_jvp": (ts.custom_jvp, [square], {"nondiff_argnums": (1,)}),
    "defjvp": (ts.custom_jvp(square).defjvp, [square], {}),
    "the gradient of a kernel": (doubled.vjp, [square], {}),
    "gemm": (ts.gemm, [ARRAY, ARRAY], {"alpha": 2.0}),
    "mse": (ts.mse, [ARRAY, ARRAY], {"reduction": "mean"}),
}


def variants(args: list[Any], kwargs: dict[str, Any]):
    for place in range(len(args)):
        for value in NASTY:
            yield [*args[:place], value, *args[place + 1 :]], kwargs
    for name in kwargs:
        for value in NASTY:
            yield args, {**kwargs, name: value}


@pytest.fixture
def watchdog():
    """Fail, with the stack, a call that does not come back."""

    def expire(_signal: int, _frame: Any) -> None:
        raise TimeoutError("a public function hangs")

    old = signal.signal(signal.SIGALRM, expire)
    yield lambda: signal.alarm(20)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("name", CALLS)
def test_nasty_arguments_give_typed_errors(name, watchdog, monkeypatch):
    function, args, kwargs = CALLS[name]
    monkeypatch.setenv("TESSERA_NUM_THREADS", "1")
    raw: list[str] = []
    for given, named in variants(args, kwargs):
        watchdog()
        try:
            function(*given, **named)
        except ts.TesseraError as error:
            if not error.help:
                raw.append(f"{given!r:.100} {named!r:.100}: without help: {error!s:.200}")
        except Exception as error:
            raw.append(f"{given!r:.100} {named!r:.100}: {type(error).__name__}: {error!s:.100}")
    assert not raw, f"{len(raw)} raw errors:\n" + "\n".join(raw[:20])


def test_the_table_names_every_public_function():
    left_out = {"saturate", "stochastic_round"}  # they take nothing
    functions = {name for name in ts.__all__ if callable(getattr(ts, name)) and not inspect.isclass(getattr(ts, name))}
    assert functions - set(CALLS) - left_out == set()
    assert os.environ.get("TESSERA_BACKEND") is None
