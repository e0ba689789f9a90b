"""Shared buffers of one to four dimensions, of any sizes: written in one way, read in another.

A buffer is written and read whole, by stages, by parts and by asynchronous copies, as it is and transposed, and
multiplied; whatever its order in memory is, and whatever its sizes are padded to, elements are where they were put.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Output, check, conformance, dtype

ON = ("interp", "cpu", "ptx-sm_80", "ptx-sm_90a", "cuda")
T = ts.tile


@ts.function
def part(x: Any, rank: Any, lo: Any, hi: Any) -> Any:
    """Return so many of the first positions of a tensor."""
    if rank == 2:
        return x[lo:hi, :]
    if rank == 3:
        return x[lo:hi, :, :]
    return x[lo:hi, :, :, :]


@ts.function
def stage_of(x: Any, rank: Any, at: Any) -> Any:
    """Return one position of the first dimension of a tensor."""
    if rank == 2:
        return x[at, :]
    if rank == 3:
        return x[at, :, :]
    return x[at, :, :, :]


@ts.function
def put(y: Any, rank: Any, lo: Any, hi: Any, tile: Any) -> None:
    """Store to so many of the first positions of a tensor or buffer."""
    if rank == 2:
        y[lo:hi, :] = tile
    elif rank == 3:
        y[lo:hi, :, :] = tile
    else:
        y[lo:hi, :, :, :] = tile


@ts.function
def put_at(y: Any, rank: Any, at: Any, tile: Any) -> None:
    """Store to positions of the first dimension of a tensor or buffer."""
    if rank == 2:
        y[at, :] = tile
    elif rank == 3:
        y[at, :, :] = tile
    else:
        y[at, :, :, :] = tile


@ts.function
def filled(x: Any, shape: Any, dt: Any, swizzle: Any, how: Any) -> Any:
    """Return a shared buffer with what a tensor holds."""
    buffer = T.alloc_shared(shape, dt, swizzle)
    rank, count = len(shape), shape[0]
    if how == "whole":
        buffer[...] = part(x, rank, 0, count)
    elif how == "copy":
        if rank == 2:
            T.cp_async(buffer, x[:, :])
        elif rank == 3:
            T.cp_async(buffer, x[:, :, :])
        else:
            T.cp_async(buffer, x[:, :, :, :])
    elif how == "stages":
        for stage in T.static_range(count):
            buffer[stage] = stage_of(x, rank, stage)
    elif how == "indices":
        put_at(buffer, rank, T.arange(count), part(x, rank, 0, count))
    else:
        half = (count + 1) // 2
        put(buffer, rank, 0, half, part(x, rank, 0, half))
        put(buffer, rank, half, count, part(x, rank, half, count))
    T.barrier()
    return buffer


def moved(shape: Sequence[int], name: str, swizzle: str, write: str, read: str) -> Case:
    """Return a case that copies a tensor by way of a buffer."""
    dt, rank = dtype(name), len(shape)
    order = (*range(1, rank), 0) if read == "turned" else tuple(range(rank))
    if read == "transposed":
        order = (*range(rank - 2), rank - 1, rank - 2)
    target = tuple(shape[axis] for axis in order)

    def kernel(x: ts.Tensor[*shape, dt], y: ts.Tensor[*target, dt]):
        for _ in T.grid((1, 1)):
            buffer = filled(x, shape, dt, swizzle, write)
            if read == "stages":
                for stage in T.static_range(shape[0]):
                    put_at(y, rank, stage, buffer[stage])
            elif read == "whole":
                put(y, rank, 0, target[0], buffer)
            elif read == "transposed":
                put(y, rank, 0, target[0], T.load(buffer.T))
            else:
                put(y, rank, 0, target[0], T.transpose(buffer, order))

    def arguments(rng: np.random.Generator) -> list[Any]:
        return [rng.integers(-9, 10, shape).astype(dt.numpy()), Output(target, dt)]

    words = f"{name}-{'x'.join(map(str, shape))}-{swizzle}-{write}-{read}"
    return Case(words, kernel, arguments, lambda x, y: x.transpose(order), backends=ON)


def multiplied(sizes: tuple[int, int, int], name: str, left: str, right: str) -> Case:
    """Return a case that multiplies two buffers, whose terms are padded where their number is no power of two."""
    dt, (m, k, n) = dtype(name), sizes

    def kernel(x: ts.Tensor[m, k, dt], y: ts.Tensor[k, n, dt], c: ts.Tensor[m, n, ts.f32]):
        for _ in T.grid((1, 1)):
            a, b = filled(x, (m, k), dt, "none", left), filled(y, (k, n), dt, "none", right)
            c[:, :] = T.mma(a, b, T.zeros((m, n), ts.f32))

    def arguments(rng: np.random.Generator) -> list[Any]:
        given = [rng.integers(-3, 4, shape).astype(dt.numpy()) for shape in ((m, k), (k, n))]
        return [*given, Output((m, n), dtype("f32"))]

    def reference(x: np.ndarray, y: np.ndarray, c: np.ndarray) -> np.ndarray:
        return (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32)

    words = f"mma-{name}-{m}x{k}x{n}-{left}-{right}"
    return Case(words, kernel, arguments, reference, backends=ON)


def drawn(seed: int, count: int) -> list[Case]:
    """Return so many cases, no two of one name."""
    random, cases = Random(seed), dict[str, Case]()
    while len(cases) < count:
        if random.random() < 0.3:
            sizes = (random.choice((8, 16, 12)), random.choice((5, 17, 24, 32)), random.choice((8, 16, 24)))
            ways = [random.choice(("whole", "stages", "indices", "halves", "copy")) for _ in "ab"]
            case = multiplied(sizes, random.choice(("f32", "bf16", "f16")), *ways)
        else:
            shape = tuple(random.choice((2, 3, 4, 5, 8)) for _ in range(random.choice((0, 1, 1, 2))))
            shape += (random.choice((4, 6, 8, 16, 24)), random.choice((5, 8, 12, 16, 32)))
            swizzle = random.choice(("none", "xor"))
            ways = ("whole", "stages", "copy") if swizzle == "xor" else ("whole", "stages", "indices", "halves", "copy")
            reads = random.choice(("stages", "whole", "transposed", "turned"))
            case = moved(shape, random.choice(("f32", "bf16", "i8", "f64", "u16")), swizzle, random.choice(ways), reads)
        cases[case.name] = case
    return [*cases.values()]


@conformance(drawn(1, 40))
def test_elements_are_where_they_were_put(case: Case, backend: str) -> None:
    check(case, backend)
