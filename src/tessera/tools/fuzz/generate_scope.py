"""What the generator knows while it draws: the dice, the switches, what names and tensors there are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.types import FLOATS, INTS, Shape, Type, elements

_T = TypeVar("_T")

INDEX: Final = Type("i64")
"""The type of offsets, sizes and loop variables."""


@dataclass(frozen=True, slots=True)
class Options:
    """How often what is drawn. Each is a probability; 0 leaves it out, so that campaigns can run beside known faults.

    Args:
        carries: loops that carry several tiles, and permute them.
        flat_transposes: reshapes of transposes.
        inplace: loads and stores of one tensor within a program.
        narrowing: stores and casts to narrower types in tails.
        outside: programs with index tiles that reach outside of their tensor.
        shared: explicit shared memory.
        approximate: programs with divisions and transcendental functions.
        narrow_floats: fp8, fp6 and fp4.
        special: extreme values, NaN and infinities in arrays.
        layouts: arrays that are not contiguous or not aligned.
        empty: dimensions of size 0.
        large: programs with large tiles.
        small: programs of a few operations on small tiles, which find most faults soonest.
        long: programs of twice as many statements.
        profiles: programs under another profile than `fast`.
        strict: programs under `strict`, whatever profile was drawn, most of them with numbers whose sums are inexact.
        knobs: programs with schedule knobs.
        atomics: atomic updates.
        products: matrix products.
        combiners: reductions and scans by a combiner.
        parts: slices and elements of tiles, flips, rolls, splits, elements at index tiles.
        exchanges: elements that change places, by bits of their indices or by their order.
        index_values: offsets and loop variables that are computed with as they are, not as `i64`.
        plans: programs after the plans of real kernels: products of blocks, chains of them, walks along rows.
        chains: products of products, where plans are drawn.
        rows: walks along rows, where plans are drawn.
        nests: programs of loops in loops that only add up, or nearly so.
        debug: programs with prints and asserts.
        jumps: programs with `break`, `continue` and early `return`.
        places: conditions that compare places with offsets and variables of loops.
        histograms: atomics of elements of shared buffers, where shared memory is drawn.
        activations: activations that the library has in the language, where there are approximate functions.
        buffer_parts: parts of shared buffers that are read and written, where there are buffers.
        buffer_products: products of shared buffers that are written in some way, where shared memory is drawn.
        batches: products of batches, where products are drawn.
        steps: programs with slices of tensors that have steps.
        orders: programs whose grids name the order in which their dimensions vary.
        assumes: programs that say what holds of their sizes and integer arguments.
        narrow_extents: programs with an extent computed in narrow integers.
        assembly: programs with inline assembly.
        reuse: programs of few dtypes and shapes, which use the same tiles again and again, in blocks within blocks.
        narrow: products of blocks of short rows on units of warpgroups, where plans are drawn.
        starts: loops and branches in which sums start from tiles outside, in place of loops.
        moved: programs whose products have operands that are loaded before their loop, in branches, or outside.
        dims: programs with sizes that are spelled as expressions of names.
        tuples: programs that keep names in tuples.
        fixed: schedule knobs that every program has, and their values.
    """

    carries: float = 1.0
    flat_transposes: float = 1.0
    inplace: float = 1.0
    narrowing: float = 1.0
    outside: float = 0.15
    shared: float = 0.15
    approximate: float = 0.35
    narrow_floats: float = 0.2
    special: float = 0.05
    layouts: float = 0.35
    empty: float = 0.02
    large: float = 0.06
    small: float = 0.5
    long: float = 0.04
    profiles: float = 0.4
    knobs: float = 0.3
    atomics: float = 1.0
    products: float = 1.0
    combiners: float = 1.0
    parts: float = 1.0
    exchanges: float = 1.0
    index_values: float = 0.7
    plans: float = 0.05
    chains: float = 1.0
    rows: float = 1.0
    nests: float = 0.04
    debug: float = 0.04
    jumps: float = 0.1
    dims: float = 0.12
    tuples: float = 0.06
    strict: float = 0.0
    steps: float = 0.1
    orders: float = 0.1
    assumes: float = 0.08
    narrow_extents: float = 0.03
    assembly: float = 0.05
    reuse: float = 0.12
    moved: float = 0.15
    starts: float = 0.2
    narrow: float = 1.0
    batches: float = 0.15
    histograms: float = 0.1
    buffer_parts: float = 0.3
    buffer_products: float = 0.12
    activations: float = 0.3
    places: float = 0.15
    fixed: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """What a program of the current grid may do with a tensor.

    Args:
        tensor: the tensor.
        role: `read`, `own` (load and store the part at the program's offsets) or `accumulate` (one kind of atomic).
        parts: for each dimension that the grid divides, the grid variable and its block.
        fn: the atomic that is accumulated by.
    """

    tensor: tree.Tensor
    role: str
    parts: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    fn: str = ""

    @property
    def readable(self) -> bool:
        """Whether the program may load from it."""
        return self.role in ("read", "own")


@dataclass(slots=True)
class Dice:
    """The random choices of one program.

    Args:
        rng: what decides them.
        options: how often what is drawn.
        aside: decides whether something rare is drawn, and leaves the other choices what they are.
    """

    rng: random.Random
    options: Options
    aside: random.Random = field(default_factory=lambda: random.Random(0))

    def rarely(self, probability: float) -> bool:
        """Return True with a probability, decided aside."""
        return self.aside.random() < probability

    def rough(self, kind: str) -> str:
        """Return how floats are drawn: with all their bits where the order of sums is to show."""
        return "wide" if self.options.strict and self.rarely(0.7) else kind

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.rng.random() < probability

    def pick(self, items: Sequence[_T]) -> _T:
        """Return one of several."""
        return items[int(self.rng.random() * len(items))]

    def weighted(self, items: Sequence[tuple[_T, float]]) -> _T:
        """Return one of several by weight."""
        at = self.rng.random() * sum(weight for _, weight in items)
        for item, weight in items:
            at -= weight
            if at < 0:
                return item
        return items[-1][0]

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + int(self.rng.random() * (high - low + 1))

    def shuffled(self, items: Sequence[_T]) -> list[_T]:
        """Return the items in random order."""
        left, result = list(items), list[_T]()
        while left:
            result.append(left.pop(int(self.rng.random() * len(left))))
        return result


@dataclass(slots=True)
class Palette:
    """The dtypes and sizes of one program: few, so that its values meet.

    Args:
        floats: float dtypes.
        ints: integer dtypes.
        sizes: sizes of dimensions.
        limit: elements of a tile.
        extent: `small`, `long`, or empty for one in between.
        approximate: whether divisions and transcendental functions are used.
        outside: whether index tiles may reach outside of their tensor.
        profile: the numerics profile.
        reuse: whether tiles that exist are used more often than new ones are loaded.
    """

    floats: tuple[str, ...]
    ints: tuple[str, ...]
    sizes: tuple[int, ...]
    limit: int
    extent: str
    approximate: bool
    outside: bool
    profile: str
    reuse: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """All dtypes but bool."""
        return self.floats + self.ints


def palette(dice: Dice, profile: str) -> Palette:
    """Draw a palette."""
    wide = [("f32", 10.0), ("f64", 2.0), ("f16", 3.0), ("bf16", 3.0)]
    narrow = [(name, 1.0) for name in FLOATS if name.startswith("fp")]
    floats = {dice.weighted(wide) for _ in range(dice.between(1, 2))}
    if dice.chance(dice.options.narrow_floats):
        floats.add(dice.weighted(narrow))
    ints = {dice.pick(("i32", "i32", "i64", *INTS)) for _ in range(dice.between(1, 2))}
    small = (1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 12, 13, 15, 16, 16, 17, 20, 24, 31, 32, 32, 33, 40)
    large = (1, 7, 16, 32, 48, 63, 64, 64, 65, 80, 100, 128, 130, 256, 257)
    extent = "small" if dice.chance(dice.options.small) else "long" if dice.chance(dice.options.long) else ""
    is_large = dice.chance(dice.options.large) and extent != "small"
    sizes = tuple(dice.pick(large if is_large else small) for _ in range(dice.between(2, 3)))
    if dice.chance(0.3 if extent != "small" else 0.05):
        sizes += (dice.pick(large),)
    limit = 16384 if is_large else 300 if extent == "small" else 1600
    reuse = dice.rarely(dice.options.reuse)
    few = 1 if reuse else None
    return Palette(
        tuple(sorted(floats)[:few]),
        tuple(sorted(ints)[:few]),
        sizes[:few],
        limit,
        extent,
        dice.chance(dice.options.approximate),
        dice.chance(dice.options.outside),
        profile,
        reuse,
    )


@dataclass(slots=True)
class Scope:
    """A block under construction.

    Args:
        dice: the random choices.
        palette: the program's dtypes and sizes.
        regions: the tensors, and what may be done with them in this grid.
        names: tiles and scalars that are visible and may be rebound.
        offsets: integer scalars with the least and largest value they take.
        ids: the element numbers of a kernel without a grid, where no shape is known; None elsewhere.
        dims: those that are names of dimensions.
        unrolled: those of them that are constants, as loops are unrolled over them.
        helpers: functions that may be called.
        buffers: shared buffers that have been written.
        swizzled: those of which no parts are accessed.
        params: scalar and constant parameters.
        counter: makes names unique.
        fixed: names that may not be rebound.
        contexts: what encloses the block: `for`, `while`, `if`, `predicated`, `helper`.
        predicate: shape of the condition of the enclosing `if` on a tile.
        favourite: tensor that loads come from if they can.
        work: how often the block runs.
    """

    dice: Dice
    palette: Palette
    regions: dict[str, Region]
    names: dict[str, Type]
    offsets: dict[str, tuple[int, int]]
    helpers: list[tree.Helper]
    buffers: dict[str, Type]
    params: list[tree.Param]
    counter: list[int]
    fixed: set[str]
    swizzled: set[str] = field(default_factory=set[str])
    ids: tree.Name | None = None
    dims: frozenset[str] = frozenset()
    unrolled: frozenset[str] = frozenset()
    contexts: tuple[str, ...] = ()
    predicate: Shape | None = None
    favourite: str = ""
    work: int = 1

    def inner(self, context: str, work: int = 1) -> Scope:
        """Return the scope of a block inside this one."""
        return replace(
            self,
            names=dict(self.names),
            offsets=dict(self.offsets),
            buffers=dict(self.buffers),
            contexts=(*self.contexts, context),
            work=self.work * max(work, 1),
        )

    def fresh(self, prefix: str = "v") -> str:
        """Return a name that is not used yet."""
        self.counter[0] += 1
        return f"{prefix}{self.counter[0]}"

    def shape(self, rank: int | None = None) -> Shape:
        """Draw the shape of a tile."""
        if rank is None:
            rank = self.dice.weighted(((1, 3.0), (2, 6.0), (3, 1.0), (4, 0.3)))
        while True:
            sizes = [self.dice.pick(self.palette.sizes) for _ in range(rank)]
            if self.dice.chance(0.12):
                sizes[self.dice.between(0, rank - 1)] = 1
            for axis in range(rank):
                if elements(tuple(sizes)) > self.palette.limit:
                    sizes[axis] = self.dice.pick((1, 2, 3, 4))
            if elements(tuple(sizes)) <= self.palette.limit:
                return tuple(sizes)

    def dtype(self) -> str:
        """Draw a dtype of the palette, rarely bool."""
        if self.dice.chance(0.04):
            return "bool"
        return self.dice.pick(self.palette.dtypes)

    def known_shape(self) -> Shape:
        """Draw the shape of a tile that exists, or a new one."""
        if self.ids is not None:
            return self.ids.own.shape
        shapes = [type_.shape for type_ in self.names.values() if type_.shape]
        if shapes and self.dice.chance(0.75):
            return self.dice.pick(shapes)
        return self.shape()
