"""Calls in interpreter mode take, convert and refuse the same arguments as compiled calls."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.settings import settings
from tessera.errors import TesseraError


@ts.kernel
def grow(x: ts.Tensor["n", 2, ts.f32], y: ts.Tensor["n", "2*n", ts.f32]):
    for i in ts.tile.grid((n, 4)):
        y[i : i + 4, 0:2] = x[i : i + 4, 0:2] + 1.0
    return y


def putter(dtype: str) -> Any:
    """Return a kernel that stores a scalar of a dtype."""
    element = getattr(ts, dtype)

    @ts.kernel
    def put(out: ts.Tensor["n", element], value: element):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = value

    return put


def outcome(kernel: Any, *args: Any) -> Any:
    """Return the code of the error of a call, or what it stored to its last array."""
    stored = next(array for array in reversed(args) if isinstance(array, np.ndarray))
    try:
        kernel(*args)
    except TesseraError as error:
        return error.code, error.message
    return stored.tobytes()


def both(kernel: Any, monkeypatch: pytest.MonkeyPatch, make: Any) -> tuple[Any, Any]:
    """Return the outcomes of a compiled and an interpreted call with what `make` gives."""
    compiled = outcome(kernel, *make())
    with monkeypatch.context() as patch:
        patch.setattr(settings(), "interpret", True)
        fresh = ts.kernel(kernel.__wrapped__)
        return compiled, outcome(fresh, *make())


def f32(*shape: int) -> Any:
    """Return an array of zeros."""
    return np.zeros(shape, np.float32)


def strided(*strides: int) -> Any:
    """Return an output whose elements have some strides."""
    return np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (4, 8), strides)


ARRAYS = {
    "right": lambda: (f32(4, 2), f32(4, 8)),
    "name": lambda: (f32(5, 2), f32(4, 8)),
    "multiple": lambda: (f32(4, 2), f32(4, 9)),
    "fixed": lambda: (f32(4, 3), f32(4, 8)),
    "rank": lambda: (f32(4), f32(4, 8)),
    "scalar": lambda: (f32(), f32(4, 8)),
    "empty": lambda: (f32(0, 2), f32(0, 0)),
    "dtype": lambda: (np.zeros((4, 2)), f32(4, 8)),
    "order": lambda: (f32(4, 2).astype(">f4"), f32(4, 8)),
    "read-only": lambda: (f32(4, 2), np.frombuffer(bytes(128), np.float32).reshape(4, 8)),
    "one element": lambda: (f32(4, 2), strided(0, 0)),
    "overlapping": lambda: (f32(4, 2), strided(8, 4)),
    "misaligned": lambda: (np.frombuffer(bytearray(33), np.float32, 8, 1).reshape(4, 2), f32(4, 8)),
    "list": lambda: ([1.0, 2.0], f32(4, 8)),
    "count": lambda: (f32(4, 8),),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name, monkeypatch):
    compiled, interpreted = both(grow, monkeypatch, ARRAYS[name])
    assert interpreted == compiled
    assert isinstance(compiled, bytes) == (name in ("right", "empty"))


class Index:
    """A number by its method."""

    def __index__(self) -> int:
        return 3


SCALARS = [0, 1, -1, True, 1.0, 1.9, -0.0, 127, 128, 255, 256, 300, 2**31, -(2**63), 2**63, 2**64, 10**400]
SCALARS += [float("nan"), float("inf"), 65520.0, 0.1, 1e300, 1e39, 449.0, 1j, "1", None, Decimal(1), Index()]
SCALARS += [
    np.int64(300),
    np.float32(1.5),
    np.float16(1),
    np.bool_(True),
    np.array(1),
    np.array([1]),
    np.float64(1e300),
]


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "bool_"])
def test_numbers(dtype, monkeypatch):
    put = putter(dtype)
    for value in SCALARS:
        compiled, interpreted = both(put, monkeypatch, lambda value=value: (ts.zeros((2,), getattr(ts, dtype)), value))
        assert interpreted == compiled, value
