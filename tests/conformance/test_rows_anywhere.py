"""Rows that begin at any element, computed in chunks that begin where accesses are aligned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

M = 3
BACKENDS = ("scheduled-sm_80", "scheduled-sm_90a", "ptx-sm_80", "ptx-sm_90a", "cuda")


def moved(dt: DType) -> Any:
    """Return a kernel that reduces nothing."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = x[i, :] + x[i, :]

    return kernel


def centred(dt: DType) -> Any:
    """Return a kernel that goes over a row twice."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = x[i, :] - ts.tile.min(x[i, :], 0)

    return kernel


def weighted(dt: DType) -> Any:
    """Return a kernel that goes over rows thrice, reads tensors that lie each in its own way, and tells places."""
    matrix, vector = ts.Tensor["m", "n", dt], ts.Tensor["n", dt]

    def kernel(x: matrix, y: matrix, z: matrix, w: vector):
        for i in ts.tile.grid((m, 1)):
            row, least = x[i, :], ts.tile.min(z[i, :], 0)
            most = ts.tile.max(row - least, 0)
            first = ts.tile.min(ts.tile.where(row - least == most, ts.tile.arange(n), n), 0)
            y[i, :] = ts.tile.where(ts.tile.arange(n) == first, most, row + w[:])

    return kernel


def in_place(dt: DType) -> Any:
    """Return a kernel that stores rows over themselves."""

    def kernel(x: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            x[i, :] = x[i, :] - ts.tile.min(x[i, :], 0)

    return kernel


def pairs(dt: DType) -> Any:
    """Return a kernel of two rows a program, of which the last is not there."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 2)):
            block = x[i : i + 2, :]
            y[i : i + 2, :] = block - ts.tile.min(block, 1, keepdims=True)

    return kernel


def joined(dt: DType) -> Any:
    """Return a kernel of two rows a program, of which the last is not there, from two tensors that lie otherwise."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt], z: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 2)):
            block = x[i : i + 2, :]
            y[i : i + 2, :] = block - ts.tile.min(block, 1, keepdims=True) + z[i : i + 2, :]

    return kernel


def added(dt: DType) -> Any:
    """Return a kernel that adds to rows, in place, those of a tensor that lie otherwise."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = x[i, :] + y[i, :]

    return kernel


def blocks(dt: DType) -> Any:
    """Return a kernel that goes over both rows of a program at once: they do not lie alike."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 2)):
            y[i : i + 2, :] = x[i : i + 2, :] - ts.tile.min(x[i : i + 2, :], 1, keepdims=True)

    return kernel


def converted(dt: DType) -> Any:
    """Return a kernel that stores rows of wider elements."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", ts.f32]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = (x[i, :] - ts.tile.min(x[i, :], 0)).to(ts.f32)

    return kernel


def reduced(dt: DType) -> Any:
    """Return a kernel that only reduces rows, of tensors that lie each in its own way, and tells places."""
    matrix, vector = ts.Tensor["m", "n", dt], ts.Tensor["n", dt]

    def kernel(x: matrix, z: matrix, w: vector, y: ts.Tensor["m", 4, ts.f32]):
        for i in ts.tile.grid((m, 1)):
            least = ts.tile.min(x[i, :], 0)
            y[i, 0] = least.to(ts.f32)
            y[i, 1] = ts.tile.max(x[i, :] - least + z[i, :] + w[:], 0).to(ts.f32)
            y[i, 2] = ts.tile.argmax(z[i, :]).to(ts.f32)
            y[i, 3] = ts.tile.sum(x[i, :].to(ts.f32) - 1)

    return kernel


def _reduced(x: np.ndarray, z: np.ndarray, w: np.ndarray, _y: np.ndarray) -> np.ndarray:
    x, z, w = (array.astype(np.int64) for array in (x, z, w))
    most = (x - x.min(1, keepdims=True) + z + w).max(1)
    return np.stack([x.min(1), most, z.argmax(1), (x - 1).sum(1)], 1).astype(np.float32)


def _weighted(x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
    apart = x - z.min(1, keepdims=True)
    first = np.argmax(apart, 1)
    y = x + w
    y[np.arange(M), first] = apart.max(1)
    return y


MEANINGS: dict[Callable[[DType], Any], Callable[..., np.ndarray]] = {
    moved: lambda x, _y: x + x,
    centred: lambda x, _y: x - x.min(1, keepdims=True),
    weighted: _weighted,
    in_place: lambda x: x - x.min(1, keepdims=True),
    converted: lambda x, _y: x - x.min(1, keepdims=True),
    pairs: lambda x, _y: x - x.min(1, keepdims=True),
    blocks: lambda x, _y: x - x.min(1, keepdims=True),
    added: lambda x, y: x + y,
    joined: lambda x, _y, z: x - x.min(1, keepdims=True) + z,
}


def rows(rng: np.random.Generator, n: int, dt: DType, before: int, pad: int) -> np.ndarray:
    """Return rows of small integers, `before` elements behind an aligned address, with `pad` elements between them."""
    pitch = n + pad
    whole = rng.integers(1, 9, before + M * pitch + 1).astype(dt.numpy())
    return whole[before : before + M * pitch].reshape(M, pitch)[:, :n]


def case_of(make: Any, name: str, n: int, chunk: int, before: tuple[int, ...], pad: tuple[int, ...]) -> Case:
    """Return the case of a kernel.

    Args:
        make: returns the kernel.
        name: the dtype.
        n: elements of a row.
        chunk: of a chunk.
        before: elements before the first row of each tensor.
        pad: elements between the rows of each tensor.
    """
    dt = dtype(name)

    def arguments(rng: np.random.Generator) -> list[Any]:
        count = {weighted: 3, joined: 3, in_place: 1}.get(make, 2)
        found: list[Any] = [rows(rng, n, dt, before[place], pad[place]) for place in range(count)]
        if make is converted:
            found[1] = rows(rng, n, ts.f32, before[1], pad[1])
        written = min(count - 1, 1)
        found[written] = Updated(found[written])
        return [*found, rows(rng, n, dt, 0, 0)[0]] if make is weighted else found

    def meaning(*given: np.ndarray) -> np.ndarray:
        result = MEANINGS[make](*(array.astype(np.int64) for array in given))
        return result.astype((ts.f32 if make is converted else dt).numpy())

    words = "-".join(map(str, (make.__name__, name, n, chunk, *before, *pad)))
    return Case(words, make(dt), arguments, meaning, EXACT, knobs={"chunk": chunk, "batch": 1}, backends=BACKENDS)


ALIKE = ((0, 0, 0), (0, 0, 0))
WIDTHS = ((77, 16), (33, 16), (131, 32), (40, 32))


@conformance(
    [
        *(
            case_of(make, name, n, chunk, *ALIKE)
            for number, make in enumerate(MEANINGS)
            for place, name in enumerate(("bf16", "f32", "u8", "i16", "f16", "i32"))
            for n, chunk in (WIDTHS[(number + place) % 4],)
        ),
        *(case_of(weighted, "bf16", n, chunk, (1, 3, 0), (0, 0, 2)) for n, chunk in WIDTHS),
        *(case_of(centred, name, 77, 16, (2, 5, 0), (4, 1, 0)) for name in ("bf16", "f32", "u8")),
        *(case_of(make, "u8", 300, 8, *ALIKE) for make in (centred, weighted)),  # an access takes more than a chunk has
        *(case_of(moved, "f16", 80, 16, (0, off, 0), (pad, pad, 0)) for off in (1, 4) for pad in (0, 5)),
        *(case_of(in_place, name, 131, 32, (7, 0, 0), (3, 0, 0)) for name in ("u8", "f32", "bf16")),
        *(case_of(in_place, name, 13001, 8192, *ALIKE) for name in ("f32", "bf16")),
        case_of(added, "f16", 13001, 8192, (0, 5, 0), (0, 0, 0)),
        *(case_of(make, "bf16", 5001, 2048, (0, 3, 1), (0, 0, 0)) for make in (weighted, pairs, blocks, joined, added)),
        # Lanes pass on what belongs to their neighbour's 16 bytes.
        *(case_of(moved, name, 2601, 1024, (0, off, 0), (0, 1, 0)) for name in ("f16", "f32") for off in (2, 7)),
        case_of(moved, "u8", 9001, 4096, (0, 7, 0), (0, 1, 0)),
    ]
)
def test_rows(case, backend):
    check(case, backend)


@conformance(
    [
        Case(
            "-".join(map(str, (name, n, *before, *pad))),
            reduced(dtype(name)),
            lambda rng, name=name, n=n, before=before, pad=pad: [
                *(rows(rng, n, dtype(name), before[place], pad[place]) for place in (0, 1)),
                rows(rng, n, dtype(name), before[2], 0)[0],
                Output((M, 4), ts.f32),
            ],
            _reduced,
            EXACT,
            backends=BACKENDS,
        )
        for place, name in enumerate(("bf16", "f32", "u8", "i16"))
        for n, before, pad in (
            (3101, (0, 0, 0), (0, 0)),
            (3073, (1, 1, 1), (0, 0)),
            (3500, ((3, 0, 5), (0, 2, 0))[place % 2], (0, 1)),
            (4075, ((0, 2, 0), (7, 4, 1))[place % 2], (5, 5)),
            (4093, (3, 0, 0), (1, 0)),
        )
    ]
)
def test_rows_that_are_only_reduced(case, backend):
    check(case, backend)


@pytest.mark.parametrize("name", ["bf16", "f32", "u8"])
def test_rows_that_are_only_reduced_move_sixteen_bytes_at_a_time(name: str) -> None:
    made = ts.compile(ts.kernel(reduced(dtype(name))), target="sm_90a", dims={"n": 4999}, dump=["ptx"])
    text = made.dumps["ptx"]
    assert isinstance(text, str)
    assert text.count("ld.weak.global.v4") == text.count("ld.weak.global") > 0
    assert "ld.global" not in text


@pytest.mark.parametrize("name", ["bf16", "f32", "u8"])
@pytest.mark.parametrize(("target", "width"), [("sm_80", 70001), ("sm_90a", 50257)])
def test_chunks_move_sixteen_bytes_at_a_time(name: str, target: str, width: int) -> None:
    made = ts.compile(ts.kernel(moved(dtype(name))), target=target, dims={"n": width}, dump=["ptx"])
    text = made.dumps["ptx"]
    assert isinstance(text, str)
    wide, all_loads = text.count("ld.global.v4"), text.count("ld.global.")
    assert wide >= 4
    assert all_loads - wide in (2, 4)  # elements before and behind, which two loads of a row may read together
    assert text.count("st.global.v4") >= 4  # besides single ones for rows of the result that lie otherwise
