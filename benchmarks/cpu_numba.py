"""The row kernels of `cpu.py` for Numba: loops over rows on all threads, what a row needs twice read from the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tessera.runtime.pool import thread_count

try:
    from numba import config, njit, prange, set_num_threads
except ImportError:  # `cpu.py` says that it takes no part
    prange = range


@cache
def function(name: str) -> Callable[..., Any]:
    """Return a compiled function of f32 operands, scalars and the result, which it gives back.

    Args:
        name: of the work.
    """
    set_num_threads(min(config.NUMBA_NUM_THREADS, thread_count()))
    return njit(parallel=True, fastmath=True)(_FUNCTIONS[name])


def _rmsnorm(x: Any, w: Any, eps: Any, y: Any) -> Any:
    rows, columns = x.shape
    for i in prange(rows):
        total = np.float32(0)
        for j in range(columns):
            total += x[i, j] * x[i, j]
        scale = np.float32(1) / np.sqrt(total / np.float32(columns) + np.float32(eps))
        for j in range(columns):
            y[i, j] = x[i, j] * scale * w[j]
    return y


def _layernorm(x: Any, w: Any, b: Any, eps: Any, y: Any) -> Any:
    rows, columns = x.shape
    for i in prange(rows):
        total = np.float32(0)
        for j in range(columns):
            total += x[i, j]
        mean = total / np.float32(columns)
        squares = np.float32(0)
        for j in range(columns):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        scale = np.float32(1) / np.sqrt(squares / np.float32(columns) + np.float32(eps))
        for j in range(columns):
            y[i, j] = (x[i, j] - mean) * scale * w[j] + b[j]
    return y


def _softmax(x: Any, y: Any) -> Any:
    rows, columns = x.shape
    for i in prange(rows):
        top = x[i, 0]
        for j in range(columns):
            top = max(top, x[i, j])
        total = np.float32(0)
        for j in range(columns):
            y[i, j] = np.exp(x[i, j] - top)
            total += y[i, j]
        scale = np.float32(1) / total
        for j in range(columns):
            y[i, j] *= scale
    return y


def _rope(x: Any, cos: Any, sin: Any, y: Any) -> Any:
    heads, positions, size = x.shape
    half = size // 2
    for row in prange(heads * positions):
        head, at = row // positions, row % positions
        for j in range(half):
            low, high = x[head, at, j], x[head, at, j + half]
            y[head, at, j] = low * cos[at, j] - high * sin[at, j]
            y[head, at, j + half] = high * cos[at, j] + low * sin[at, j]
    return y


def _gelu_erf(x: Any, b: Any, y: Any) -> Any:
    rows, columns = x.shape
    for i in prange(rows):
        for j in range(columns):
            v = x[i, j] + b[j]
            y[i, j] = np.float32(0.5) * v * (np.float32(1) + math.erf(v * np.float32(0.70710678)))
    return y


def _gelu_tanh(x: Any, b: Any, y: Any) -> Any:
    rows, columns = x.shape
    for i in prange(rows):
        for j in range(columns):
            v = x[i, j] + b[j]
            u = v * (np.float32(0.7978845608) + np.float32(0.0356774081) * v * v)
            y[i, j] = np.float32(0.5) * v * (np.float32(1) + np.tanh(u))
    return y


def _residual_dropout(x: Any, r: Any, p: Any, y: Any) -> Any:
    rows, columns = x.shape
    scale, least = np.float32(1 / (1 - p)), np.float32(p)
    for i in prange(rows):
        for j in range(columns):
            kept = np.float32(np.random.random()) >= least
            y[i, j] = r[i, j] + (x[i, j] * scale if kept else np.float32(0))
    return y


_FUNCTIONS = {
    "RMSNorm": _rmsnorm,
    "LayerNorm": _layernorm,
    "softmax": _softmax,
    "RoPE": _rope,
    "bias+GELU erf": _gelu_erf,
    "bias+GELU tanh": _gelu_tanh,
    "residual+dropout": _residual_dropout,
}
