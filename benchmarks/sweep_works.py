"""What `sweep.py` measures: works drawn at random from a seed, each alone, with bounds on what one costs.

A work depends on its seed, its number and the device's bounds only, so that any of them can be drawn again by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep_kernels import ELEMENTWISE, REDUCTIONS

SIZES = {"bf16": 2, "f16": 2, "f32": 4}
"""Bytes of an element."""
ROW_KINDS = ("rms_norm", "layer_norm", "softmax", "row_sum", "argmax", "cumsum")
MISPLACED = 0.1
"""Share of works whose tensors start one element off, and of those whose rows are padded."""
TRIES = 10_000
UGLY = 0.5
UGLY_SIDE = 0.75
"""Share of works with ugly sizes, and among their sizes after the first."""


@dataclass(frozen=True)
class Limits:
    """Bounds on a work.

    Args:
        flops: of a product of 16-bit elements.
        f32_flops: of a product of f32.
        bytes: of all tensors.
        side: of M and N of a product, least and most.
        terms: of K.
        elements: of the largest tensor of a work bound by memory.
        row_elements: of a work on rows.
        width: of a row.
        positions: of attention.
        dtypes: weights of bf16, f16 and f32.
    """

    flops: float
    f32_flops: float
    bytes: int
    side: tuple[int, int]
    terms: tuple[int, int]
    elements: tuple[int, int]
    row_elements: tuple[int, int]
    width: tuple[int, int]
    positions: tuple[int, int]
    dtypes: tuple[int, int, int]


LIMITS = {
    "cuda": Limits(
        flops=1e12,
        f32_flops=6e10,
        bytes=1 << 31,
        side=(16, 32768),
        terms=(16, 131072),
        elements=(1 << 20, 1 << 28),
        row_elements=(1 << 22, 1 << 28),
        width=(32, 200_000),
        positions=(64, 8192),
        dtypes=(6, 2, 2),
    ),
    "cpu": Limits(
        flops=2e9,
        f32_flops=2e9,
        bytes=1 << 26,
        side=(8, 2048),
        terms=(8, 16384),
        elements=(1 << 16, 1 << 22),
        row_elements=(1 << 20, 1 << 22),
        width=(32, 200_000),
        positions=(64, 1024),
        dtypes=(4, 1, 5),
    ),
}


@dataclass(frozen=True)
class Work:
    """One work.

    Args:
        number: its place in the sample.
        family: which of `FAMILIES`.
        kind: what is computed.
        dtype: of its elements.
        shape: M, N and K, with the batch before them; heads, positions and head size; else of the largest tensor.
        flops: of products; 0 for works bound by memory.
        bytes: that have to be moved.
        options: what else the family needs.
        offset: elements that tensors start after a multiple of 16 bytes.
        pad: elements between rows.
        results_too: whether offset and padding are those of the result as well.
    """

    number: int
    family: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    pad: int = 0
    results_too: bool = False

    @property
    def name(self) -> str:
        """The work in words."""
        words = [self.family, self.kind, self.dtype, "x".join(map(str, self.shape))]
        words += [f"{name}={value}".replace(" ", "") for name, value in self.options.items()]
        words += [f"{name}={getattr(self, name)}" for name in ("offset", "pad") if getattr(self, name)]
        return " ".join([*words, "(result too)"] if self.results_too else words)


class TooCostly(Exception):
    """What was drawn is outside the bounds, and is drawn again."""


class Draw:
    """Random choices of one work.

    Args:
        source: random numbers.
        limits: bounds.
    """

    def __init__(self, source: random.Random, limits: Limits):
        """Decide what holds for the work as a whole: whether its sizes are ugly, and where its tensors lie."""
        self.source, self.limits = source, limits
        self.ugly = source.random() < UGLY
        self._first = True
        self.offset = int(source.random() < MISPLACED)
        self.pad = source.randrange(1, 16, 2) if source.random() < MISPLACED else 0
        self.results_too = bool(self.offset or self.pad) and source.random() < 0.5

    def number(self, least: float, most: float) -> float:
        """Return a number, uniform in its logarithm."""
        return math.exp(self.source.uniform(math.log(least), math.log(most)))

    def size(self, least: float, most: float) -> int:
        """Return a size near a number drawn between two: a round one, or an odd, a prime, or one off multiples of 8."""
        near = round(self.number(least, max(least, most)))
        ugly, self._first = self.ugly and (self._first or self.source.random() < UGLY_SIDE), False
        if ugly:
            how = self.source.choice(("odd", "prime", "off"))
            found = near | 1 if how == "odd" else next_prime(near) if how == "prime" else near // 8 * 8 + 1 + near % 7
        else:
            step = self.source.choice([step for step in (1, 8, 64, 256) if step == 1 or 2 * step <= near])
            found = 1 << round(math.log2(near)) if step == 1 else round(near / step) * step
        return max(found, 2)

    def shape(self, rank: int, elements: float) -> tuple[int, ...]:
        """Return sizes whose product is about a number."""
        cuts = sorted(self.source.random() for _ in range(rank - 1))
        shares = [b - a for a, b in zip([0.0, *cuts], [*cuts, 1.0], strict=True)]
        return tuple(self.size(max(2, near), near) for near in (elements**share for share in shares))

    def dtype(self, weights: Sequence[int] | None = None) -> str:
        """Return a dtype."""
        return self.source.choices(tuple(SIZES), weights or self.limits.dtypes)[0]

    def layout(self) -> str:
        """Return how A and B are stored: N by rows, T by columns."""
        return self.source.choice("NT") + self.source.choice("NT")


def next_prime(n: int) -> int:
    """Return the least prime that is not below a number."""
    while any(n % divisor == 0 for divisor in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


# Products


def gemm(draw: Draw) -> dict[str, Any]:
    """A product by the library."""
    m, n, k = draw.size(*draw.limits.side), draw.size(*draw.limits.side), draw.size(*draw.limits.terms)
    return _product(draw, "gemm", draw.dtype(), 1, (m, n, k), {"layout": draw.layout()})


def batched(draw: Draw) -> dict[str, Any]:
    """A batch of products by the library."""
    m, n, k = (draw.size(8, min(2048, draw.limits.side[1])) for _ in range(3))
    return _product(draw, "bmm", draw.dtype(), draw.size(2, 2048), (m, n, k), {"layout": draw.layout()})


def tiles(draw: Draw) -> dict[str, Any]:
    """A product by plain tile code with any tile."""
    step, most = draw.source.choice((8, 16)), draw.limits.side[1] // 4
    block = tuple(draw.source.randrange(least, most + 1, step) for least, most in ((64, 256), (32, 256), (16, 128)))
    m, n, k = draw.size(256, most), draw.size(256, most), draw.size(64, most)
    # Without matrix units the sums of a large tile fill the registers: nobody takes them for f32.
    weights = (3, 1, 0) if draw.limits.dtypes[0] > draw.limits.dtypes[2] else None
    return _product(draw, "tiles", draw.dtype(weights), 1, (m, n, k), {"layout": draw.layout(), "block": block})


def _product(
    draw: Draw, kind: str, dtype: str, batch: int, sides: tuple[int, int, int], options: dict[str, Any]
) -> dict[str, Any]:
    m, n, k = sides
    flops = 2.0 * batch * m * n * k
    if flops > (draw.limits.f32_flops if dtype == "f32" else draw.limits.flops):
        raise TooCostly
    moved = SIZES[dtype] * batch * (m * k + k * n + m * n)
    shape = sides if kind != "bmm" else (batch, *sides)
    return dict(kind=kind, dtype=dtype, shape=shape, flops=flops, bytes=moved, options=options)


# Works bound by memory


def rows(draw: Draw) -> dict[str, Any]:
    """A row a program."""
    kind = draw.source.choice(ROW_KINDS)
    dtype = "f32" if kind == "cumsum" else draw.dtype()  # PyTorch adds up running sums of 16 bits in 16 bits
    width = draw.size(*draw.limits.width)
    # Few long rows are as likely as many: what is drawn is the number of elements.
    count = draw.size(*(max(1, elements / width) for elements in draw.limits.row_elements))
    least, most = draw.limits.row_elements
    if not least <= width * count <= most:
        raise TooCostly
    moved = SIZES[dtype] * count * (width if kind in ("row_sum", "argmax") else 2 * width)
    return dict(kind=kind, dtype=dtype, shape=(count, width), bytes=moved)


def reductions(draw: Draw) -> dict[str, Any]:
    """A sum or maximum over any axis or axes."""
    rank, dtype = draw.source.randint(2, 4), draw.dtype()
    shape = draw.shape(rank, draw.number(*draw.limits.elements))
    axes = tuple(sorted(draw.source.sample(range(rank), draw.source.randint(1, rank))))
    draw.pad, pattern, sizes = merged(shape, ["r" if i in axes else "k" for i in range(rank)], draw.pad, REDUCTIONS)
    kept = math.prod(size for i, size in enumerate(shape) if i not in axes)
    options = {"axes": axes, "pattern": pattern, "sizes": sizes}
    moved = SIZES[dtype] * (math.prod(shape) + kept)
    return dict(kind=draw.source.choice(("sum", "max")), dtype=dtype, shape=shape, bytes=moved, options=options)


def elementwise(draw: Draw) -> dict[str, Any]:
    """A function of two operands, one of them the same along some dimensions."""
    rank, dtype = draw.source.randint(1, 4), draw.dtype()
    shape = draw.shape(rank, draw.number(*draw.limits.elements))
    letters = [draw.source.choice("fb") for _ in range(rank)]
    draw.pad, pattern, sizes = merged(shape, letters, draw.pad if rank > 1 else 0, ELEMENTWISE)
    other = tuple(size if letter == "f" else 1 for size, letter in zip(shape, letters, strict=True))
    options = {"other": other, "pattern": pattern, "sizes": sizes}
    moved = SIZES[dtype] * (2 * math.prod(shape) + math.prod(other))
    kind = draw.source.choice(("add", "mul", "swiglu", "gelu"))
    return dict(kind=kind, dtype=dtype, shape=shape, bytes=moved, options=options)


def merged(
    shape: Sequence[int], letters: Sequence[str], pad: int, known: Mapping[str, Any]
) -> tuple[int, str, tuple[int, ...]]:
    """Merge neighbouring dimensions of one kind, the last one with none where padding parts its rows.

    Returns:
        The padding, 0 where no kernel is for dimensions that it keeps apart; a letter for each dimension; its size.
    """
    pattern, sizes = "", list[int]()
    for place, (size, letter) in enumerate(zip(shape, letters, strict=True)):
        if pattern and pattern[-1] == letter and not (pad and place == len(shape) - 1):
            sizes[-1] *= size
        else:
            pattern += letter
            sizes.append(size)
    return (pad, pattern, tuple(sizes)) if pattern in known else merged(shape, letters, 0, known)


def permutes(draw: Draw) -> dict[str, Any]:
    """Dimensions in another order."""
    rank, dtype = draw.source.randint(2, 5), draw.dtype()
    shape = draw.shape(rank, draw.number(*draw.limits.elements))
    order = tuple(draw.source.sample(range(rank), rank))
    if order == tuple(range(rank)):
        raise TooCostly
    return dict(
        kind="permute", dtype=dtype, shape=shape, bytes=2 * SIZES[dtype] * math.prod(shape), options={"order": order}
    )


def gathers(draw: Draw) -> dict[str, Any]:
    """Rows from or to given places."""
    kind, dtype, width = draw.source.choice(("gather", "scatter")), draw.dtype(), draw.size(16, 8192)
    count = draw.size(*(max(2, elements / width) for elements in draw.limits.elements))
    others = draw.size(count / 2, 2 * count)
    if kind == "scatter":  # to each place at most once
        others = max(count, others)
    moved = 2 * SIZES[dtype] * width * count
    return dict(kind=kind, dtype=dtype, shape=(count, width), bytes=moved, options={"others": others})


# Attention


def attention(draw: Draw) -> dict[str, Any]:
    """Attention with any head size."""
    dtype = draw.dtype((3, 1, 0) if draw.limits.dtypes[0] > draw.limits.dtypes[2] else (2, 0, 3))
    heads, positions = draw.size(2, 256), draw.size(*draw.limits.positions)
    size, causal = draw.source.randrange(16, 257, 8), draw.source.random() < 0.5
    flops = 4.0 * heads * positions**2 * size * (0.5 if causal else 1)
    if 2 * flops > draw.limits.flops:
        raise TooCostly
    moved = 4 * SIZES[dtype] * heads * positions * size
    kind = "causal" if causal else "full"
    return dict(kind=kind, dtype=dtype, shape=(heads, positions, size), flops=flops, bytes=moved)


FAMILIES: dict[str, tuple[int, Callable[[Draw], dict[str, Any]]]] = {
    "gemm": (5, gemm),
    "batched": (2, batched),
    "tiles": (3, tiles),
    "rows": (5, rows),
    "reductions": (3, reductions),
    "elementwise": (3, elementwise),
    "permutes": (3, permutes),
    "gathers": (2, gathers),
    "attention": (3, attention),
}
"""How often each is drawn, and what draws it."""


def drawn(seed: int, number: int, limits: Limits) -> Work:
    """Return the work of a number in a seed's sample.

    Raises:
        ValueError: no work of its family is within the limits.
    """
    source = random.Random(f"{seed}/{number}")
    family = source.choices(list(FAMILIES), [weight for weight, _ in FAMILIES.values()])[0]
    for _ in range(TRIES):
        draw = Draw(source, limits)
        try:
            given = {"flops": 0.0, "options": {}, **FAMILIES[family][1](draw)}
        except TooCostly:
            continue
        if tensor_bytes(given) <= limits.bytes:
            moved = draw.results_too and bool(draw.offset or draw.pad)
            return Work(number, family, **given, offset=draw.offset, pad=draw.pad, results_too=moved)
    raise ValueError(f"the limits leave nothing of {family}")


def tensor_bytes(given: Mapping[str, Any]) -> int:
    """Return the bytes of all tensors of what was drawn, without padding."""
    (*_, width), spare = given["shape"], 0
    if given["kind"] in ("gather", "scatter"):  # rows that nothing reads or writes
        spare = max(0, given["options"]["others"] - given["shape"][0])
    return given["bytes"] + SIZES[given["dtype"]] * width * spare


def sample(seed: int, limits: Limits, families: Sequence[str] = tuple(FAMILIES), first: int = 0) -> Iterator[Work]:
    """Yield the works of a seed in some families, without end.

    Args:
        seed: of the sample.
        limits: of the device.
        families: the others are left out; numbers stay.
        first: number to start from.
    """
    number = first
    while True:
        work = drawn(seed, number, limits)
        if work.family in families:
            yield work
        number += 1


# Blocks, as one would choose them


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (n - 1).bit_length()


def blocks(sizes: Sequence[int], order: Sequence[tuple[int, int]], total: int) -> list[int]:
    """Return powers of two whose product is at most a number.

    Args:
        sizes: of the dimensions.
        order: dimensions that blocks extend along, first those that matter most, with the most along each.
        total: most elements.
    """
    found = [1] * len(sizes)
    for place, most in order:
        room = total // math.prod(found) * found[place]
        found[place] = max(found[place], min(power_of_two(sizes[place]), most, room))
    return found


def merged_strides(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring dimensions that lie one after the other in all of some tensors.

    Returns:
        The sizes, and the strides of each tensor.
    """
    sizes, found = [shape[0]], [[of[0]] for of in strides]
    for place in range(1, len(shape)):
        if all(kept[-1] == shape[place] * of[place] for kept, of in zip(found, strides, strict=True)):
            sizes[-1] *= shape[place]
            for kept, of in zip(found, strides, strict=True):
                kept[-1] = of[place]
        else:
            sizes.append(shape[place])
            for kept, of in zip(found, strides, strict=True):
                kept.append(of[place])
    return sizes, found
