"""Rows that finite masks hide wholly, wherever the mask stands beside the scale: their elements have weights of 1.

The exponential's argument is then the difference of two equal numbers as large as the mask.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import Tolerance
from tests.conformance.harness import Case, Output, check, conformance, dtype

T = ts.tile
F32 = dtype("f32")
ROWS, COLUMNS = 8, 32


@ts.function
def hidden(x: Any, first: Any, value: Any) -> Any:
    """The score, or a mask where the column lies before `first`."""
    return T.where((T.arange(COLUMNS) >= first)[None, :], x, value)


@ts.function
def scaled(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return hidden(x, first, -1e9) * scale


@ts.function
def divided(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return hidden(x, first, -1e9) / scale


@ts.function
def scaled_twice(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return hidden(x, first, -1e9) * 0.3 * 0.7


@ts.function
def by_a_value(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return hidden(x, first, mask) * 0.3


@ts.function
def by_an_addend(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return (x + bias) * 0.3


@ts.function
def by_an_accumulator(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return T.mma(T.full((x.shape[0], 8), 0.5, F32), T.full((8, x.shape[1]), 0.25, F32), bias) * 0.3


@ts.function
def causal(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return T.causal_mask(x, -first, 0, value=-1e9) * scale


@ts.function
def afterwards(x: Any, bias: Any, scale: Any, mask: Any, first: Any) -> Any:
    return hidden(x * scale, first, mask)


@ts.function
def of_base_e(s: Any) -> Any:
    return T.exp(s - T.max(s, 1, keepdims=True))


@ts.function
def of_base_2(s: Any) -> Any:
    return T.exp2((s - T.max(s, 1, keepdims=True)) * 1.4426950408889634)


@ts.function
def of_the_whole(s: Any) -> Any:
    return T.exp(s - T.max(s))


@ts.function
def as_softmax(s: Any) -> Any:
    return T.softmax(s) * COLUMNS


SCORES: dict[str, Any] = {
    "scaled": scaled,
    "divided": divided,
    "scaled-twice": scaled_twice,
    "by-a-value": by_a_value,
    "by-an-addend": by_an_addend,
    "by-an-accumulator": by_an_accumulator,
    "causal": causal,
    "afterwards": afterwards,
}
WEIGHTS: dict[str, Any] = {"exp": of_base_e, "exp2": of_base_2, "whole": of_the_whole, "softmax": as_softmax}


def case_of(name: str, weigh: str, mask: float) -> Case:
    score, weight = SCORES[name], WEIGHTS[weigh]

    def kernel(
        x: ts.Tensor[ROWS, COLUMNS, F32],
        bias: ts.Tensor[ROWS, COLUMNS, F32],
        y: ts.Tensor[ROWS, COLUMNS, F32],
        scale: ts.f32,
        value: ts.f32,
        first: int,
    ):
        for _ in T.grid((1, 1)):
            y[:, :] = weight(score(x[:, :], bias[:, :], scale, value, first))

    def expected(x: np.ndarray, bias: np.ndarray, y: np.ndarray, *_: float) -> np.ndarray:
        return np.ones_like(y)

    def arguments(rng: np.random.Generator) -> list[Any]:
        x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        return [x, np.full((ROWS, COLUMNS), mask, np.float32), Output((ROWS, COLUMNS), F32), 0.7, mask, COLUMNS]

    words = f"{name}-{weigh}-{mask:g}"
    backends = ("interp", "cpu", "cpu-x86-64-v3", "ptx-sm_80", "ptx-sm_90a", "cuda")
    return Case(words, kernel, arguments, expected, Tolerance(relative=1e-5), backends=backends)


MASKS = (-1e9, -1e30)


@conformance(
    [
        case_of(name, weigh, mask)
        for number, name in enumerate(SCORES)
        for at, weigh in enumerate(WEIGHTS)
        for mask in MASKS[(number + at) % 2 :][:1]
    ]
)
def test_hidden_rows_have_weights_of_one(case: Case, backend: str) -> None:
    check(case, backend)


def attention_of(name: str, masked: Callable[..., Any], mask: float) -> Case:
    """The first block of keys is hidden; what it leaves behind is scaled by 0 later, and may not be infinite."""
    half = dtype("f16")

    def kernel(
        q: ts.Tensor[16, 16, half],
        k: ts.Tensor[64, 16, half],
        v: ts.Tensor[64, 16, half],
        bias: ts.Tensor[16, 64, F32],
        o: ts.Tensor[16, 16, F32],
        scale: ts.f32,
        value: ts.f32,
        first: int,
    ):
        for _ in T.grid((1, 1)):
            top, total = T.full((16,), -math.inf, F32), T.zeros((16,), F32)
            acc = T.zeros((16, 16), F32)
            for n in T.range(0, 64, COLUMNS):
                s = masked(T.dot(q[:, :], k[n : n + COLUMNS, :].T), bias[:, n : n + COLUMNS], scale, value, first - n)
                new = T.maximum(top, T.max(s, 1))
                p, kept = T.exp(s - new[:, None]), T.exp(top - new)
                total = total * kept + T.sum(p, 1)
                acc = T.mma(p.to(half), v[n : n + COLUMNS, :], acc * kept[:, None])
                top = new
            o[:, :] = acc / total[:, None]

    def expected(*given: Any) -> np.ndarray:
        q, k, v, _, _, scale, _, first = given
        scale = {"scaled": scale, "divided": 1 / scale, "scaled-twice": 0.21}.get(name, 0.3)
        s = q.astype(float) @ k.astype(float).T * scale
        s[:, :first] = -np.inf
        p = np.exp(s - s.max(1, keepdims=True))
        return (p @ v.astype(float) / p.sum(1, keepdims=True)).astype(np.float32)

    def arguments(rng: np.random.Generator) -> list[Any]:
        q, k, v = (rng.standard_normal((size, 16)).astype(np.float16) for size in (16, 64, 64))
        bias = np.zeros((16, 64), np.float32)
        bias[:, :40] = mask
        return [q, k, v, bias, Output((16, 16), F32), 0.7, mask, 40]

    tolerance, backends = Tolerance(relative=4e-3, absolute=4e-3), ("interp", "cpu", "ptx-sm_80", "ptx-sm_90a", "cuda")
    return Case(f"{name}-{mask:g}", kernel, arguments, expected, tolerance, backends=backends)


@conformance([attention_of(name, SCORES[name], mask) for name in (*SCORES,)[:5] for mask in (-1e9, -1e30)])
def test_a_hidden_block_leaves_nothing_behind(case: Case, backend: str) -> None:
    check(case, backend)
