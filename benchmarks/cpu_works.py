"""What `cpu.py` measures: each work with its operands, contestants, reference and bar."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import bias_gelu
import cpu_kernels
import cpu_numba
import flash_attention
import layernorm
import rmsnorm
import rope
import softmax

import tessera as ts
from tessera.ops import linalg

Call = Callable[[], Any]
SECTIONS = ("gemm", "skinny", "transposes", "rows", "attention", "calls")
DTYPES = {"f32": ts.f32, "bf16": ts.bf16}
TOLERANCE = {"f32": 2e-5, "bf16": 2e-2}
"""Largest error over the largest expected value; peers are held to the same."""

DROPOUT_P = 0.1


@dataclass
class Setup:
    """A work that is ready to run.

    Args:
        contestants: by name; `tessera` is ours. Each gives its result, or fills `out`.
        check: raises or returns the error of a result, over the largest expected value.
        out: what our call writes.
    """

    contestants: dict[str, Call]
    check: Callable[[Any], float]
    out: Any


@dataclass(frozen=True)
class Work:
    """One line of the table.

    Args:
        section: one of `SECTIONS`.
        name: what runs, with its sizes.
        dtype: element type.
        amount: gigabytes or GFLOP of one call; 0 for calls, whose time counts.
        make: sets it up, given the peers' switch for `torch.compile`.
        ratio: bar over the best peer; None where there is none.
        share: bar over a measured ceiling (`copy` or `fma`), and which.
        most_us: bar of a call, in µs.
    """

    section: str
    name: str
    dtype: str
    amount: float
    make: Callable[[bool], Setup] = field(compare=False)
    ratio: float | None = None
    share: tuple[str, float] | None = None
    most_us: float | None = None

    @property
    def unit(self) -> str:
        """Unit of the rate."""
        return {"rows": "GB/s", "calls": "µs"}.get(self.section, "GFLOP/s")


def torch_or_none() -> Any:
    """Return PyTorch where it is installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


def works(sections: Sequence[str], quick: bool = False) -> list[Work]:
    """Return the works of some sections; `quick` keeps a few of each, smaller."""
    makers = {
        "gemm": _gemms,
        "skinny": _skinny,
        "transposes": _transposes,
        "rows": _rows,
        "attention": _attentions,
        "calls": _calls,
    }
    return [work for section in SECTIONS if section in sections for work in makers[section](quick)]


def normal(*shape: int, dtype: str = "f32", seed: int = 0) -> np.ndarray:
    """Return normally distributed numbers, 64-byte aligned as PyTorch's are: NumPy's own are not."""
    array = ts.empty(shape, DTYPES[dtype])
    array[...] = np.random.default_rng(seed + len(shape)).standard_normal(shape, np.float32)
    return array


def as_torch(torch: Any, array: np.ndarray) -> Any:
    """Return a tensor over the memory of an array."""
    if array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def wide(values: Any) -> np.ndarray:
    """Return an array or tensor as float64."""
    values = values if isinstance(values, np.ndarray) else values.float().numpy()
    return values.astype(np.float64)


def checker(expected: np.ndarray, pick: Callable[[Any], Any]) -> Callable[[Any], float]:
    """Return a check of the part of a result that `pick` takes."""
    scale = float(np.max(np.abs(expected)))
    return lambda got: float(np.max(np.abs(wide(pick(got)) - expected))) / scale


def rows_of(m: int) -> np.ndarray:
    """Return rows to check: the first, the last, and some between."""
    return np.unique(np.r_[0, m - 1, np.random.default_rng(1).integers(0, m, 14)])


# Products


def _gemms(quick: bool) -> Iterator[Work]:
    shapes = [(size,) * 3 for size in ((256, 512) if quick else (256, 512, 1024, 2048, 4096))]
    for dtype in DTYPES:
        for m, n, k in [*shapes, (1000, 333, 777)]:
            bar = (1.04 if m == 1000 else 1.0) if dtype == "f32" else 0.98
            share = ("fma", 0.88) if dtype == "f32" and m >= 512 and m == n else None
            yield _gemm("gemm", dtype, m, n, k, bar, share)


def _skinny(quick: bool) -> Iterator[Work]:
    size = 1024 if quick else 4096
    for dtype in DTYPES:
        for m in (1, 8, 16):
            yield _gemm("skinny", dtype, m, size, size, (1.0 if m == 1 else 1.4) if dtype == "f32" else 1.3)


def _gemm(section: str, dtype: str, m: int, n: int, k: int, bar: float, share: tuple[str, float] | None = None) -> Work:
    def make(_compile: bool) -> Setup:
        a, b, c = (
            normal(m, k, dtype=dtype),
            normal(k, n, dtype=dtype, seed=9),
            ts.empty((m, n), DTYPES[dtype]),
        )
        contestants: dict[str, Call] = {"tessera": lambda: linalg.gemm(a, b, out=c)}
        if dtype == "f32":
            d = np.empty_like(c)
            contestants["NumPy"] = lambda: np.matmul(a, b, out=d)
        torch = torch_or_none()
        if torch is not None:
            ta, tb = as_torch(torch, a), as_torch(torch, b)
            tc = torch.empty(m, n, dtype=ta.dtype)
            contestants["PyTorch"] = lambda: torch.mm(ta, tb, out=tc)
        rows = rows_of(m)
        return Setup(contestants, checker(wide(a)[rows] @ wide(b), lambda got: got[rows]), c)

    return Work(section, f"{dtype} {m}x{n}x{k}", dtype, 2e-9 * m * n * k, make, bar, share)


def _transposes(quick: bool) -> Iterator[Work]:
    """Each order of storage beside the same product of operands stored by rows: there is no other peer."""
    shapes = [(256,) * 3] if quick else [(1024,) * 3, (2048,) * 3, (1000, 333, 777)]
    for dtype in DTYPES:
        for m, n, k in shapes:
            for turned in ((False, True), (True, False), (True, True)):
                yield _transposed(dtype, (m, n, k), turned)


def _transposed(dtype: str, sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> Work:
    (m, n, k), (turn_a, turn_b) = sizes, turned

    def make(_compile: bool) -> Setup:
        a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=9)
        stored = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)]
        c, d = (ts.empty((m, n), DTYPES[dtype]) for _ in range(2))
        contestants: dict[str, Call] = {
            "tessera": lambda: linalg.gemm(*stored, out=c, trans_a=turn_a, trans_b=turn_b),
            "by rows": lambda: linalg.gemm(a, b, out=d),
        }
        rows = rows_of(m)
        return Setup(contestants, checker(wide(a)[rows] @ wide(b), lambda got: got[rows]), c)

    name = f"{dtype} {'T' if turn_a else 'N'}{'T' if turn_b else 'N'} {m}x{n}x{k}"
    return Work("transposes", name, dtype, 2e-9 * m * n * k, make, 0.95)


# Rows


def _rows(quick: bool) -> Iterator[Work]:
    m, n = (512, 1024) if quick else (4096, 4096)
    for dtype in DTYPES:
        for name, (make, arrays) in _ROWS.items():
            bytes_ = arrays * m * n * (4 if dtype == "f32" else 2)
            share = ("copy", 0.8) if dtype == "f32" and not quick else None
            yield Work(
                "rows",
                f"{name} {dtype} {m}x{n}",
                dtype,
                1e-9 * bytes_,
                lambda compiled, make=make, dtype=dtype: make(dtype, m, n, compiled),
                1.3,
                share,
            )


def _row_setup(
    m: int,
    x: np.ndarray,
    y: np.ndarray,
    ours: Call,
    numpy: Call | None,
    eager: Any,
    args: Sequence[Any],
    expected: np.ndarray,
    compiled: bool,
    numba: str,
    scalars: Sequence[Any] = (),
) -> Setup:
    contestants: dict[str, Call] = {"tessera": ours}
    if numpy is not None:
        contestants["NumPy"] = numpy
    if x.dtype == np.float32 and importlib.util.find_spec("numba") is not None:
        function, out = cpu_numba.function(numba), np.empty_like(y)
        contestants["Numba"] = lambda: function(*args, *scalars, out)
    torch = torch_or_none()
    if torch is not None and eager is not None:
        tensors = [as_torch(torch, arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        contestants["PyTorch"] = lambda: eager(*tensors)
        if compiled:
            fast = torch.compile(eager, dynamic=False)
            contestants["torch.compile"] = lambda: fast(*tensors)
    rows = rows_of(m)
    return Setup(contestants, checker(expected[rows], lambda got: got[rows]), y)


def _norm(which: str) -> Callable[..., Setup]:
    def make(dtype: str, m: int, n: int, compiled: bool) -> Setup:
        x, w, b = normal(m, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype, seed=5)
        y = ts.empty((m, n), DTYPES[dtype])
        torch = torch_or_none()
        scratch = np.empty((m, n), np.float32)

        def numpy() -> Any:
            np.subtract(x, x.mean(axis=1, keepdims=True) if which == "LayerNorm" else 0, out=scratch)
            scale = np.float32(1) / np.sqrt(np.einsum("ij,ij->i", scratch, scratch) / n + np.float32(1e-5))
            np.multiply(scratch, scale[:, None], out=scratch)
            np.multiply(scratch, w, out=scratch)
            return np.add(scratch, b, out=scratch) if which == "LayerNorm" else scratch

        if which == "RMSNorm":
            kernel = rmsnorm.rmsnorm_for(DTYPES[dtype])
            ours, args = (lambda: kernel(x, w, y, 1e-5)), (x, w)
            expected = rmsnorm.reference(wide(x), wide(w), 1e-5)
            eager = None if torch is None else lambda x, w: torch.nn.functional.rms_norm(x, (n,), w, 1e-5)
        else:
            kernel = layernorm.layernorm_for(DTYPES[dtype])
            ours, args = (lambda: kernel(x, w, b, y, 1e-5)), (x, w, b)
            expected = layernorm.reference(wide(x), wide(w), wide(b), 1e-5)
            eager = None if torch is None else lambda x, w, b: torch.nn.functional.layer_norm(x, (n,), w, b)
        return _row_setup(
            m, x, y, ours, numpy if dtype == "f32" else None, eager, args, expected, compiled, which, (1e-5,)
        )

    return make


def _softmax(dtype: str, m: int, n: int, compiled: bool) -> Setup:
    x, y, scratch = normal(m, n, dtype=dtype), ts.empty((m, n), DTYPES[dtype]), np.empty((m, n), np.float32)

    def numpy() -> Any:
        np.subtract(x, x.max(axis=1, keepdims=True), out=scratch)
        np.exp(scratch, out=scratch)
        return np.divide(scratch, scratch.sum(axis=1, keepdims=True), out=scratch)

    torch, kernel = torch_or_none(), softmax.softmax_for(DTYPES[dtype])
    eager = None if torch is None else lambda x: torch.softmax(x, dim=1)
    return _row_setup(
        m,
        x,
        y,
        lambda: kernel(x, y),
        numpy if dtype == "f32" else None,
        eager,
        (x,),
        softmax.reference(wide(x)),
        compiled,
        "softmax",
    )


def _rope(dtype: str, m: int, n: int, compiled: bool) -> Setup:
    heads, d = n // 128, 128
    x, y = normal(heads, m, d, dtype=dtype), ts.empty((heads, m, d), DTYPES[dtype])
    angle = rope.angles(m, d // 2)
    cos, sin = (np.ascontiguousarray(f(angle), np.float32) for f in (np.cos, np.sin))
    torch, kernel = torch_or_none(), rope.rope_for(DTYPES[dtype])

    def eager(x: Any, cos: Any, sin: Any) -> Any:
        low, high = x.float().chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)

    return _row_setup(
        heads,
        x,
        y,
        lambda: kernel(x, cos, sin, y),
        None,
        eager if torch else None,
        (x, cos, sin),
        rope.reference(wide(x), angle),
        compiled,
        "RoPE",
    )


def _gelu(approximate: bool) -> Callable[..., Setup]:
    def make(dtype: str, m: int, n: int, compiled: bool) -> Setup:
        x, b, y = normal(m, n, dtype=dtype), normal(n, dtype=dtype), ts.empty((m, n), DTYPES[dtype])
        torch, kernel = torch_or_none(), bias_gelu.bias_gelu_for(DTYPES[dtype])
        kind = "tanh" if approximate else "none"
        eager = None if torch is None else lambda x, b: torch.nn.functional.gelu(x + b, approximate=kind)
        rows = rows_of(m)
        expected = np.zeros((m, n))
        expected[rows] = bias_gelu.reference(wide(x)[rows], wide(b), approximate)
        return _row_setup(
            m,
            x,
            y,
            lambda: kernel(x, b, y, approximate),
            None,
            eager,
            (x, b),
            expected,
            compiled,
            "bias+GELU tanh" if approximate else "bias+GELU erf",
        )

    return make


def _residual_dropout(dtype: str, m: int, n: int, compiled: bool) -> Setup:
    x, r = normal(m, n, dtype=dtype), normal(m, n, dtype=dtype, seed=3)
    y, kernel = ts.empty((m, n), DTYPES[dtype]), cpu_kernels.residual_dropout_for(DTYPES[dtype])
    torch = torch_or_none()
    eager = None if torch is None else lambda x, r: r + torch.nn.functional.dropout(x, DROPOUT_P, True)
    setup = _row_setup(
        m,
        x,
        y,
        lambda: kernel(x, r, y, DROPOUT_P, 7),
        None,
        eager,
        (x, r),
        np.ones((m, n)),
        compiled,
        "residual+dropout",
        (DROPOUT_P,),
    )

    def check(got: Any) -> float:
        """Each generator keeps elements of its own: judge what is kept, and how much."""
        given, base, values = wide(x), wide(r), wide(got)
        kept = np.abs(values - base) > 0.5 * np.abs(given)
        expected = np.where(kept, base + given / (1 - DROPOUT_P), base)
        share = abs(np.mean(kept) - (1 - DROPOUT_P))
        sure = np.abs(given) > (0 if dtype == "f32" else 0.1)  # a small one vanishes in bf16's rounding
        error = np.max(np.abs(values - expected)[sure]) / np.max(np.abs(expected))
        return float(error if share < 0.02 else 1.0)

    return Setup(setup.contestants, check, y)


_ROWS: dict[str, tuple[Callable[..., Setup], int]] = {
    "RMSNorm": (_norm("RMSNorm"), 2),
    "LayerNorm": (_norm("LayerNorm"), 2),
    "softmax": (_softmax, 2),
    "RoPE": (_rope, 2),
    "bias+GELU erf": (_gelu(False), 2),
    "bias+GELU tanh": (_gelu(True), 2),
    "residual+dropout": (_residual_dropout, 3),
}
"""Each with the arrays of full size that it has to read and write."""


# Attention


def _attentions(quick: bool) -> Iterator[Work]:
    heads, lengths = (2, (256, 250)) if quick else (16, (2048, 2000))
    for dtype in DTYPES:
        for s in lengths:
            for d in (64, 128):
                for causal in (False, True):
                    yield _attention(dtype, heads, s, d, causal)


def _attention(dtype: str, heads: int, s: int, d: int, causal: bool) -> Work:
    def make(_compile: bool) -> Setup:
        q, k, v = (normal(heads, s, d, dtype=dtype, seed=seed) for seed in range(3))
        out, kernel = (
            ts.empty((heads, s, d), DTYPES[dtype]),
            flash_attention.flash_attention_for(DTYPES[dtype], "cpu"),
        )
        contestants: dict[str, Call] = {"tessera": lambda: kernel(q, k, v, out, causal)}
        torch = torch_or_none()
        if torch is not None:
            given = [as_torch(torch, t)[None] for t in (q, k, v)]
            attend = torch.nn.functional.scaled_dot_product_attention
            contestants["PyTorch"] = lambda: attend(*given, is_causal=causal)[0]
        expected = flash_attention.reference(*(wide(t[-1:]) for t in (q, k, v)), causal)
        return Setup(contestants, checker(expected, lambda got: got[-1:]), out)

    flops = 4e-9 * heads * s * s * d / (2 if causal else 1)
    name = f"{'causal ' if causal else ''}{dtype} {heads}x{s}x{d}"
    return Work("attention", name, dtype, flops, make, 1.2 if dtype == "f32" else 2.0)


# Calls


def _calls(quick: bool) -> Iterator[Work]:
    for kind, most in (("NumPy arrays", 0.15), ("torch tensors", 0.35)):
        if kind == "NumPy arrays" or torch_or_none() is not None:
            yield Work("calls", f"call with 4 {kind}", "f32", 0, _call(kind), most_us=most)


def _call(kind: str) -> Callable[[bool], Setup]:
    def make(_compile: bool) -> Setup:
        arrays: list[Any] = [normal(1, seed=seed) for seed in range(3)] + [ts.empty(1)]
        expected = wide(arrays[0]) + wide(arrays[1]) + wide(arrays[2])
        out = arrays[3]
        contestants: dict[str, Call]
        if kind == "NumPy arrays":
            contestants = {"NumPy": lambda: np.add(arrays[0], arrays[1], out=arrays[3])}
        else:
            torch = torch_or_none()
            arrays = [as_torch(torch, array) for array in arrays]
            contestants = {"PyTorch": lambda: torch.add(arrays[0], arrays[1], out=arrays[3])}
        if importlib.util.find_spec("numba") is not None and kind == "NumPy arrays":
            contestants["Numba"] = _numba_call(arrays)
        a, b, c, d = arrays
        ours = {"tessera": lambda: cpu_kernels.four(a, b, c, d)}
        return Setup({**ours, **contestants}, checker(expected, lambda got: got), out)

    return make


def _numba_call(arrays: Sequence[Any]) -> Call:
    import numba

    @numba.njit
    def add(a: Any, b: Any, c: Any, d: Any) -> None:
        for i in range(a.shape[0]):
            d[i] = a[i] + b[i] + c[i]

    return lambda: add(*arrays)
