"""Index tiles and scalar indices anywhere: what is outside a tensor is `fill`, not written, left alone.

Every kind of access goes with every index dtype; the rest of a program (how it indexes, dtype, layout, sizes, mask) is
drawn from a seed. Indices lie inside, near the edges, and where `index * stride` overflows back into the tensor. The
expected result is computed with Python's integers.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import BY_NAME, DType
from tests.conformance.harness import Case, Output, Updated, check, conformance, poisoned

BLOCK = 12
ATOMICS = ("add", "max", "min", "and", "or", "xor", "exchange", "compare_exchange", "load", "store")
ORDERS = {"load": ("relaxed", "acquire", "seq_cst"), "store": ("relaxed", "release", "seq_cst")}
ALL_ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
OPS = ("gather", "scatter", *ATOMICS)
INDICES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FORMS = {  # rank, what is indexed, what a row of the result holds
    "one": (1, "x[r]", ""),
    "pair": (2, "x[r, c]", ""),
    "triple": (3, "x[s, r, c]", ""),
    "beside": (2, "x[s, r]", ""),
    "whole": (2, "x[r, :]", "n"),
    "part": (2, "x[r, s : s + 5]", "5"),
    "outer": (2, "x[r[:, None], c[None, :]]", str(BLOCK)),
    "single": (2, "x[s, t]", ""),
}
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda a: np.ascontiguousarray(a),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "stepped": lambda a: np.repeat(a, 2, axis=0)[::2],
    "columns": lambda a: np.repeat(a, 3, axis=-1)[..., ::3],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "repeated": lambda a: np.broadcast_to(a[..., :1], a.shape),
}


@dataclass(frozen=True)
class Spec:
    """One program and its arguments, but for the numbers in them."""

    op: str
    form: str
    rows: str
    columns: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    masked: bool
    static: bool
    order: str
    scope: str

    @property
    def name(self) -> str:
        """A name that says it all."""
        flags = "-masked" * self.masked + "-static" * self.static
        sizes = "x".join(map(str, self.shape))
        order = f"-{self.order}-{self.scope}" if self.op in ATOMICS else ""
        return f"{self.op}-{self.form}-{self.rows}-{self.columns}-{self.dtype}-{self.layout}-{sizes}{flags}{order}"

    @property
    def count(self) -> int:
        """How many rows of indices there are."""
        if self.form == "single":
            return 1
        return 29 if self.masked and self.form != "outer" else 2 * BLOCK

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of what one of them gives."""
        width = FORMS[self.form][2]
        return () if not width else (self.shape[1] if width == "n" else int(width),)


def _specs() -> Iterator[Spec]:
    rng = np.random.default_rng(20261122)

    def pick(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    forms = list(FORMS)
    for number, (op, rows) in enumerate((op, rows) for op in OPS for rows in INDICES):
        form = forms[(number + number // len(forms)) % len(forms)]
        rank = FORMS[form][0]
        shape = (*(int(pick(1, 5, 17, 40, 300)) for _ in range(rank - 1)), int(pick(7, 17, 20)))
        if rank == 1:
            shape = (int(pick(1, 40, 300)),)
        if rng.random() < 0.15 and form != "whole":
            shape = (*shape[:-1], 0)
        if op in ("and", "or", "xor"):
            dtype = pick("i32", "u32", "i64", "u64")
        elif op in ("gather", "scatter"):
            dtype = pick("f32", "f64", "bf16", "i8", "u16", "i64", "bool_", "fp8_e5m2")
        elif op in ORDERS:
            dtype = pick("f32", "f64", "f16", "bf16", "i8", "u16", "i32", "u64")
        else:
            dtype = pick("i32", "u32", "i64", "u64", "f32")
        layouts = [name for name in LAYOUTS if op == "gather" or name != "repeated"]
        layout = "plain" if 0 in shape else pick(*layouts)
        flags, order = (bool(pick(0, 1)), bool(pick(0, 0, 1))), pick(*ORDERS.get(op, ALL_ORDERS))
        scope = pick("group", "cluster", "device", "mesh")
        yield Spec(op, form, rows, pick(*INDICES), dtype, layout, shape, *flags, order, scope)


SPECS = tuple(_specs())

# Programs


def _source(spec: Spec, name: str) -> str:
    rank, target, width = FORMS[spec.form]
    dims = ", ".join(
        str(size) if spec.static and size else f'"{dim}"' for dim, size in zip("mnp"[:rank], spec.shape, strict=True)
    )
    last = ', "n"' if width == "n" and not (spec.static and spec.shape[1]) else f", {spec.row[0]}" if width else ""
    tail = ", :" if width else ""
    block = 1 if spec.form == "single" else BLOCK
    part, mask = f"[i : i + {block}{tail}]", "keep[i]" if spec.form == "single" else f"keep[i : i + {block}]"
    if spec.form == "single":
        part = "[i]"
    value = f"v{part}"
    if spec.op == "gather":
        statement = f"y{part} = ts.tile.load({target}, fill=3)"
    elif spec.op == "scatter":
        statement = f"{target} = {value}"
    else:
        given = {"compare_exchange": f", e{part}, {value}", "load": ""}.get(spec.op, f", {value}")
        atomic = f'ts.tile.atomic_{spec.op}({target}{given}, order="{spec.order}", scope="{spec.scope}")'
        statement = atomic if spec.op == "store" else f"y{part} = {atomic}"
    condition = f"({mask} != 0)" + ("[:, None]" if width else "")
    lines = [f"if {condition}:", f"    {statement}"] if spec.masked else [statement]
    return "\n".join(
        [
            f"def {name}(",
            f"    x: ts.Tensor[{dims}, ts.{spec.dtype}],",
            f'    a: ts.Tensor["k", ts.{spec.rows}],',
            f'    b: ts.Tensor["k", ts.{spec.columns}],',
            '    keep: ts.Tensor["k", ts.i32],',
            *(f'    {each}: ts.Tensor["k"{last}, ts.{spec.dtype}],' for each in "vey"),
            "    s: int,",
            "    t: int,",
            "):",
            f"    for i in ts.tile.grid((k, {block})):",
            f"        r, c = a[i : i + {block}], b[i : i + {block}]",
            *(f"        {line}" for line in lines),
        ]
    )


_FOLDER = tempfile.TemporaryDirectory(prefix="tessera-bounds-")  # the compiler reads the sources from there


def _kernels() -> dict[str, Callable[..., Any]]:
    path = Path(_FOLDER.name) / "bounds_kernels.py"
    sources = [_source(spec, f"kernel{number}") for number, spec in enumerate(SPECS)]
    path.write_text("\n\n\n".join(["import tessera as ts", *sources]) + "\n", encoding="utf-8")
    found = importlib.util.spec_from_file_location("bounds_kernels", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return {spec.name: getattr(module, f"kernel{number}") for number, spec in enumerate(SPECS)}


# Arguments

_POWERS = (7, 15, 30, 31, 32, 60, 61, 62, 63)
_FAR = [sign * ((1 << bits) + step) for bits in _POWERS for step in (-1, 0, 1) for sign in (1, -1)]


def _outside(size: int, low: int, high: int) -> list[int]:
    near = [-1, -2, -size, size, size + 1, 2 * size]
    return [at for at in (*near, *_FAR, low, high) if low <= at <= high and not 0 <= at < size]


def _indices(rng: np.random.Generator, count: int, size: int, name: str) -> np.ndarray:
    """Return indices of which those inside differ within a block."""
    dtype = BY_NAME[name]
    info = np.iinfo(dtype.numpy())
    low, high = int(info.min), int(info.max)
    outside = _outside(size, low, high)
    inside = [int(at) for at in rng.permutation(min(size, high + 1))]
    drawn: list[int] = []
    for _ in range(count):
        if inside and (rng.random() < 0.6 or not outside):
            drawn.append(inside.pop())
        else:
            drawn.append(outside[rng.integers(len(outside))] if outside else 0)
    return np.array(drawn, dtype.numpy())


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return rng.integers(0, 2 if dtype.kind == "bool" else 100, shape).astype(dtype.numpy())


def _scalar(rng: np.random.Generator, size: int) -> int:
    outside = _outside(size, -(1 << 63), (1 << 63) - 1)
    return int(rng.integers(size)) if size and rng.random() < 0.7 else outside[rng.integers(len(outside))]


def _arguments(spec: Spec, rng: np.random.Generator) -> list[Any]:
    dtype, count = BY_NAME[spec.dtype.removesuffix("_")], spec.count
    axis = {"beside": 1, "triple": 1}.get(spec.form, 0)
    x = LAYOUTS[spec.layout](_numbers(rng, spec.shape, dtype))
    last = spec.shape[-1]
    a = _indices(rng, count, spec.shape[axis], spec.rows)
    columns = [_indices(rng, min(BLOCK, count - start), last, spec.columns) for start in range(0, count, BLOCK)]
    s = _scalar(rng, spec.shape[1 if spec.form == "part" else 0])
    v, e = (_numbers(rng, (count, *spec.row), dtype) for _ in range(2))
    keep = (rng.random(count) < 0.7).astype(np.int32)
    result = Output((count, *spec.row), dtype)
    y = Updated(poisoned(result.shape, dtype))
    return [
        x if spec.op == "gather" else Updated(x),
        a,
        np.concatenate(columns),
        keep,
        v,
        e,
        y,
        s,
        _scalar(rng, last),
    ]


# Expected results


def _places(spec: Spec, a: np.ndarray, b: np.ndarray, s: int, t: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield, for each element of the result, its place there and the place in the tensor."""
    rows, columns = [int(at) for at in a], [int(at) for at in b]
    for k, row in enumerate(rows):
        match spec.form:
            case "one":
                yield (k,), (row,)
            case "pair":
                yield (k,), (row, columns[k])
            case "triple":
                yield (k,), (s, row, columns[k])
            case "beside":
                yield (k,), (s, row)
            case "whole":
                yield from (((k, j), (row, j)) for j in range(spec.shape[1]))
            case "part":
                yield from (((k, j), (row, s + j)) for j in range(5))
            case "outer":
                start = k // BLOCK * BLOCK
                yield from (((k, j), (row, columns[start + j])) for j in range(BLOCK))
            case _:
                yield (k,), (s, t)


def _updated(op: str, old: Any, new: Any, expected: Any) -> Any:
    match op:
        case "add":
            return old + new
        case "max":
            return max(old, new)
        case "min":
            return min(old, new)
        case "and":
            return old & new
        case "or":
            return old | new
        case "xor":
            return old ^ new
        case "compare_exchange":
            return new if old == expected else old
        case "load":
            return old
        case _:
            return new


def _reference(spec: Spec) -> Callable[..., Any]:
    def reference(x: Any, a: Any, b: Any, keep: Any, v: Any, e: Any, y: Any, s: int, t: int) -> tuple[np.ndarray, ...]:
        for at, place in _places(spec, a, b, s, t):
            if spec.masked and not keep[at[0]]:
                continue
            inside = all(0 <= p < size for p, size in zip(place, x.shape, strict=True))
            if spec.op == "gather":
                y[at] = x[place] if inside else 3
            elif spec.op in ("scatter", "store"):
                if inside:
                    x[place] = v[at]
            else:
                y[at] = x[place] if inside else 0
                if inside:
                    x[place] = _updated(spec.op, x[place], v[at], e[at])
        return (y,) if spec.op == "gather" else (x, y)

    return reference


def _case(spec: Spec, kernel: Callable[..., Any]) -> Case:
    backwards = spec.layout == "backwards"  # a device array has no negative strides
    return Case(
        f"bounds-{spec.name}",
        kernel,
        lambda rng: _arguments(spec, rng),
        _reference(spec),
        backends=("interp", "cpu") if backwards else ("interp", "cpu", "cuda"),
    )


_KERNELS = _kernels()


@conformance([_case(spec, _KERNELS[spec.name]) for spec in SPECS])
def test_what_is_outside_is_left_out(case, backend):
    check(case, backend)


# Sums of indices wrap as their dtype does, also where they count up and are read as a slice


def counted(
    x: ts.Tensor["n", ts.i8],
    y: ts.Tensor[64, ts.i8],
    z: ts.Tensor[64, ts.i8],
    w: ts.Tensor[64, ts.i8],
    s: ts.i32,
    t: ts.i32,
    u: ts.u32,
):
    for _ in ts.tile.grid((1, 1)):
        at = s + ts.tile.arange(64)
        y[:] = x[at]
        z[:] = ts.tile.load(x[at + t], fill=3)
        w[:] = ts.tile.load(x[ts.tile.cast(u, ts.i32) + ts.tile.arange(64)], fill=3)


def _counted(x: Any, y: Any, z: Any, w: Any, s: int, t: int, u: int) -> tuple[np.ndarray, ...]:
    def read(start: int, fill: int) -> np.ndarray:
        places = [(start + lane + (1 << 31)) % (1 << 32) - (1 << 31) for lane in range(64)]
        return np.array([x[at] if 0 <= at < len(x) else fill for at in places], np.int8)

    return read(s, 0), read(s + t, 3), read(u, 3)


_TOP = (1 << 31) - 1
_STARTS = (
    (_TOP - 9, 3, 5),
    (_TOP, _TOP, (1 << 32) - 10),
    (-20, 30, 1 << 31),
    (7, -30, (1 << 31) - 5),
)


@pytest.mark.parametrize("n", [100, (1 << 31) + 100, (1 << 33) + 1])
@pytest.mark.parametrize("interpreted", [False, True])
def test_counting_indices_wrap(n, interpreted, monkeypatch):
    """The tensor has one element in memory, so that indices beyond 32 bits are inside."""
    if interpreted:
        monkeypatch.setenv("TESSERA_INTERPRET", "1")
    x, kernel = np.broadcast_to(np.int8(5), (n,)), ts.kernel(counted)
    for starts in _STARTS:
        results = [np.zeros(64, np.int8) for _ in range(3)]
        kernel(x, *results, *starts)
        for result, expected in zip(results, _counted(x, *results, *starts), strict=True):
            np.testing.assert_array_equal(result, expected)
