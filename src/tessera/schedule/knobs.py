"""The knobs a caller or tuner may fix: one declaration each, from which checks, messages, options and docs follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal, cast

from tessera.data import dataclass
from tessera.errors import LanguageError, shown
from tessera.target.records import TargetRecord

Taker = Literal["kernels", "linalg"]
BOTH: tuple[Taker, ...] = ("kernels", "linalg")

_LIMIT = 2**31
HOPPER = ("wgmma", "tma")
"""Features that warp roles take: warpgroup products, and bulk copies to feed them."""


@dataclass(frozen=True, slots=True)
class Knob:
    """What there is to say of a knob.

    Args:
        name: its name, in tuning spaces, options of passes and arguments of `ops.linalg`.
        meaning: what a value says.
        default: what holds where nobody fixes it: the value, or in words how it is chosen.
        values: the values it can have, or a range of integers; empty for any positive integer below 2^31.
        count: how many such values make one, as a tuple where there are several.
        takers: `kernels` in a tuning space, `linalg` as an argument of the products of `ops.linalg`.
        passes: the scheduling passes that read it.
        needs: features without which a target ignores it.
        lacks: what a target without them has not.
        alias: another name for it in tuning spaces.
    """

    name: str
    meaning: str
    default: int | str
    values: tuple[int | str, ...] | range = ()
    count: int = 1
    takers: tuple[Taker, ...] = ("kernels",)
    passes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    lacks: str = ""
    alias: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it is 0 or 1, for which bools stand too."""
        return self.values == (0, 1)

    @property
    def range(self) -> str:
        """The values it can have, in words."""
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}" + f", by {self.values.step}" * (self.values.step > 1)
        if self.values:
            return f"one of {', '.join(map(str, self.values))}"
        return "a positive integer below 2^31" if self.count == 1 else f"a tuple of {self.count} positive integers"

    def accepts(self, value: object) -> bool:
        """Return whether a value is one that it can have."""
        if self.count > 1:
            parts: tuple[object, ...] = cast("tuple[object, ...]", value) if isinstance(value, tuple | list) else ()
            return len(parts) == self.count and all(map(self._accepts_one, parts))
        return self._accepts_one(value)

    def _accepts_one(self, value: object) -> bool:
        if isinstance(value, bool):
            return self.is_switch
        if not isinstance(value, Integral | str):
            return False
        return value in self.values if self.values else isinstance(value, Integral) and 0 < int(value) < _LIMIT

    def works_on(self, target: TargetRecord) -> bool:
        """Return whether a target has what it needs."""
        return all(map(target.has, self.needs))

    def refusal(self, value: object, name: str = "") -> tuple[str, str]:
        """Return the message and the help line of the error about a value that it cannot have.

        Args:
            value: the value.
            name: the name it was given under.
        """
        otherwise = f"by default {self.default}" if isinstance(self.default, int) else f"left out, {self.default}"
        return f"{name or self.name} is {self.range}, got {shown(value)}", f"{self.meaning}; {otherwise}"


def _declared(knob: Knob) -> Any:
    return field(default=None, metadata={"knob": knob})


_REGISTERS = range(24, 257, 8)
"""Counts of registers that `setmaxnreg` takes (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the caller (or the tuner) fixed; None leaves the choice to the schedule."""

    num_warps: int | None = _declared(
        Knob(
            "num_warps",
            "warps of a program that compute",
            "the sizes of the tiles decide",
            (1, 2, 4, 8, 16, 32),
            takers=BOTH,
            passes=(
                "flatten-rows",
                "share-rows",
                "scan-rows",
                "pack-permutes",
                "fit-permutes",
                "fit-blocks",
                "divide-rows",
                "shorten-steps",
                "warp-specialize",
                "choose-warps",
            ),
        )
    )
    stages: int | None = _declared(
        Knob(
            "stages",
            "depth of the ring buffers of pipelined copies; 1 keeps one role",
            "what shared memory holds: at most 8 with roles, 4 without, 2 where threads fill them",
            takers=BOTH,
            passes=("fit-blocks", "deepen-steps", "divide-rows", "shorten-steps", "warp-specialize", "stage-copies"),
            alias="num_stages",
        )
    )
    terms: int | None = _declared(
        Knob(
            "terms",
            "terms of a step of a loop that does nothing but add products",
            "128 bytes of each row, or 256 for small tiles; as written where a power of two has more",
            passes=("fit-blocks", "deepen-steps"),
            needs=HOPPER,
            lacks="bulk copies",
        )
    )
    group_m: int | None = _declared(
        Knob(
            "group_m",
            "rows of tiles that are walked together, for reuse in the L2 cache",
            16,
            range(1, 65537),
            passes=("choose-warps",),
        )
    )
    batch: int | None = _declared(
        Knob(
            "batch",
            "neighbouring programs that run as one, with tiles as many times as large; 1 keeps them apart",
            "the sizes of the tiles decide",
            (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
            passes=("widen-programs", "flatten-rows", "pack-permutes", "fit-permutes", "batch-steps", "batch-programs"),
        )
    )
    chunk: int | None = _declared(
        Knob(
            "chunk",
            "elements of a tile that are computed at a time where it has more; 0 computes tiles whole",
            "what registers hold decides",
            (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            passes=("align-rows", "keep-rows", "scan-rows", "chunk-tiles"),
        )
    )
    bulk_stores: int | None = _declared(
        Knob(
            "bulk_stores",
            "0 stores tiles from registers where the copy engine could",
            1,
            (0, 1),
            passes=("divide-rows", "shorten-steps", "warp-specialize", "whole-stores", "bulk-stores"),
            needs=HOPPER,
            lacks="bulk stores",
        )
    )
    split_k: int | None = _declared(
        Knob(
            "split_k",
            "programs that share a tile, each with a part of the loop over K",
            1,
            (1, 2, 4, 8),  # CUDA: every GPU with clusters can run eight programs of one at once
            takers=BOTH,
            passes=("fit-blocks", "divide-rows", "split-k"),
            needs=("clusters",),
            lacks="schedule that splits K",
        )
    )
    stream_k: int | None = _declared(
        Knob(
            "stream_k",
            "1 shares the last tiles of a launch out evenly over all its programs, by steps of the loop",
            0,
            (0, 1),
            takers=BOTH,
            passes=("fit-blocks", "divide-rows", "stream-k"),
            needs=HOPPER,
            lacks="persistent programs",
        )
    )
    fit_blocks: int | None = _declared(
        Knob(
            "fit_blocks",
            "0 computes products in tiles as they are written, of any size",
            "tiles that instructions do not take whole, or of plain loops, are computed as others where that is faster",
            (0, 1),
            passes=("fit-blocks",),
        )
    )
    split_sums: int | None = _declared(
        Knob(
            "split_sums",
            "programs that share the loop of a tile at most, where the grid alone does not fill the GPU and the loop "
            "only adds up, or takes the largest or the like; 1 never splits it",
            "256, or 64 of products, where a tile's loop can be split",
            passes=("split-sums",),
        )
    )
    hold_rows: int | None = _declared(
        Knob(
            "hold_rows",
            "programs that a multiprocessor has room for at least if the rows that they reduce stay in shared memory; "
            "0 loads rows again for each pass",
            "2, of rows of 24 KB and more whose functions are not dear to compute again, and of longer ones",
            (0, 1, 2, 4),
            passes=("chunk-tiles",),
        )
    )
    share_rows: int | None = _declared(
        Knob(
            "share_rows",
            "programs of a cluster that share a row which is reduced or scanned, and stored; "
            "1 leaves rows to a program each",
            "up to 8, of rows of which several passes need exponentials and which shared memory does not hold, "
            "of few rows, and of rows that are scanned",
            range(1, 9),
            passes=("share-rows", "scan-rows"),
            needs=("clusters",),
            lacks="clusters of programs",
        )
    )
    cluster: int | None = _declared(
        Knob(
            "cluster",
            "neighbouring programs along the rows that fetch the operands they share once",
            1,
            (1, 2, 4),
            passes=("fit-blocks", "divide-rows", "stream-k", "pair-tiles"),
            needs=("clusters", "wgmma"),
            lacks="clusters that share copies",
        )
    )
    pipeline: int | None = _declared(
        Knob(
            "pipeline",
            "1 overlaps dependent products with the work between them even where the cost model sees no gain, 0 keeps "
            "them in order",
            "the cost model and the registers decide",
            (0, 1),
            passes=("pipeline-products",),
            needs=HOPPER,
            lacks="products that run on beside other work",
        )
    )
    ping_pong: int | None = _declared(
        Knob(
            "ping_pong",
            "1 lets two groups of consumers take tiles in turn or, where products wait for each other, start their "
            "products in turn",
            "0; of products that wait for each other, 1 where the work between them takes as long",
            (0, 1),
            takers=BOTH,
            passes=("fit-blocks", "divide-rows", "stream-k", "warp-specialize", "pipeline-products"),
            needs=HOPPER,
            lacks="groups of consumers",
        )
    )
    producer_registers: int | None = _declared(
        Knob(
            "producer_registers",
            "registers of a thread that fetches, where warps have roles",
            "56 or 24, by the consumer warps",
            _REGISTERS,
            passes=("fit-blocks", "warp-specialize"),
            needs=HOPPER,
            lacks="warp roles",
        )
    )
    consumer_registers: int | None = _declared(
        Knob(
            "consumer_registers",
            "registers of a thread that computes, where warps have roles",
            "240",
            _REGISTERS,
            passes=("fit-blocks", "warp-specialize"),
            needs=HOPPER,
            lacks="warp roles",
        )
    )
    mma_kind: str | None = _declared(
        Knob(
            "mma_kind",
            "instructions of products; anything but `wgmma` keeps a program in one role",
            "the fastest that fit",
            ("wgmma", "mma_sync", "fma"),
            takers=BOTH,
            passes=("fit-blocks", "divide-rows", "shorten-steps", "warp-specialize", "choose-products"),
        )
    )
    keep_copies: int | None = _declared(
        Knob(
            "keep_copies",
            "1 keeps shared buffers that a kernel fills for products, their copies, waits and barriers as written",
            0,
            (0, 1),
            passes=("raise-copies",),
        )
    )
    in_place: int | None = _declared(
        Knob(
            "in_place",
            "0 packs all operands of products, also those that could be read where they lie",
            1,
            (0, 1),
            passes=("pack-operands", "split-masks"),
        )
    )
    panel: int | None = _declared(
        Knob(
            "panel",
            "columns of a panel of a packed right operand, where vector units multiply and their registers hold sums "
            "of so many",
            "as many as leave registers for enough rows of sums",
            (8, 16, 32, 64),
            passes=("pack-operands",),
        )
    )
    pack_before: int | None = _declared(
        Knob(
            "pack_before",
            "0 packs operands at each product, also those that come from outside of its loop",
            1,
            (0, 1),
            passes=("pack-operands",),
        )
    )
    begin_sums: int | None = _declared(
        Knob(
            "begin_sums",
            "0 writes the zeros that products are added to, and reads them again",
            1,
            (0, 1),
            passes=("begin-sums",),
        )
    )
    squares: int | None = _declared(
        Knob(
            "squares",
            "0 reads tiles against their order in memory element by element",
            1,
            (0, 1),
            passes=("turn-squares",),
        )
    )
    trim: int | None = _declared(
        Knob(
            "trim",
            "0 computes tiles that reach past an end as a whole, where they are kept before they are stored",
            1,
            (0, 1),
            passes=("trim-tiles",),
        )
    )
    prefetch: int | None = _declared(
        Knob(
            "prefetch",
            "0 leaves it to the hardware to read ahead",
            1,
            (0, 1),
            passes=("pack-operands", "prefetch-boxes"),
        )
    )
    stream: int | None = _declared(
        Knob(
            "stream",
            "MiB of a tensor that is only written from which on it is stored past the caches, on x86-64, where all "
            "tensors of the kernel take three times as much; 0 never does",
            16,
            (0, 1, 4, 16, 64),
            passes=("stream-stores",),
        )
    )
    strip: int | None = _declared(
        Knob(
            "strip",
            "rows of a matrix unit's product that are computed at a time, just before they are stored; 0 computes all "
            "of them before",
            32,
            (0, 32, 64),
            passes=("strip-products",),
            needs=("amx-tile",),
            lacks="matrix unit",
        )
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Knobs:
        """Return knobs by name; None fixes nothing.

        Raises:
            LanguageError: `unknown-knob`, `bad-knob` for a value out of range.
        """
        values: dict[str, Any] = {}
        for name, value in given.items():
            knob = knob_named(name)
            if knob is None:
                raise unknown_knob(name)
            if value is None:
                continue
            if not knob.accepts(value):
                message, help_line = knob.refusal(value, name)
                raise LanguageError(message, code="bad-knob", help=help_line)
            if values.setdefault(knob.name, value) != value:
                raise LanguageError(
                    f"{name} is {value!r} and {knob.name} is {values[knob.name]!r}",
                    code="bad-knob",
                    help=f"they are one knob; give {knob.name} alone",
                )
        fixed: dict[str, Any] = {
            name: int(value) if isinstance(value, Integral) else value for name, value in values.items()
        }
        return cls(**fixed)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Knobs:
        """Return the knobs among a tuning point's names, where a knob may go by its other name.

        Raises:
            LanguageError: `bad-knob` for a value out of range.
        """
        return cls.of({name: value for name, value in config.items() if knob_named(name) is not None})

    @classmethod
    def from_text(cls, given: Mapping[str, str]) -> Knobs:
        """Return knobs whose values are text, as the options of a pass are.

        Raises:
            LanguageError: `unknown-knob`, `bad-knob` for a value that is not a number or out of range.
        """
        return cls.of({name: int(text) if text.isdecimal() else text for name, text in given.items()})

    def given(self) -> dict[str, int | str]:
        """Return the knobs that are fixed, by name."""
        return {name: value for name in KNOBS if (value := getattr(self, name)) is not None}

    def only(self, names: Collection[str]) -> Knobs:
        """Return these knobs with all others left to the schedule."""
        values: dict[str, Any] = {name: value for name, value in self.given().items() if name in names}
        return Knobs(**values)


KNOBS: Mapping[str, Knob] = {one.name: cast(Knob, one.metadata["knob"]) for one in fields(Knobs)}
"""Every knob of the schedule, by name."""

_NAMED = {**KNOBS, **{knob.alias: knob for knob in KNOBS.values() if knob.alias}}


def knob_named(name: str) -> Knob | None:
    """Return the knob of a name or of its alias, None where there is none."""
    return _NAMED.get(name)


@lru_cache(maxsize=256)
def read_by(name: str) -> tuple[str, ...]:
    """Return the names of the knobs that a scheduling pass reads."""
    return tuple(knob.name for knob in KNOBS.values() if name in knob.passes)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a help line that names what there is, the most alike first."""
    known = list(known)
    near = _alike(name, known)
    return (f"did you mean {near[0]}? " if near else "") + f"there are {', '.join(known)}"


def is_like_a_knob(name: str) -> bool:
    """Return whether a name that is no knob's looks like one that was misspelt."""
    return knob_named(name) is None and bool(_alike(name.lower(), _NAMED))


def _alike(name: str, known: Iterable[str]) -> list[str]:
    import difflib  # here: `import tessera.ops` does without

    return difflib.get_close_matches(name, list(known), 1, 0.75)


def unknown_knob(name: str) -> LanguageError:
    """Return the error about a name that is no knob's."""
    return LanguageError(f"no knob of the schedule is called {name!r}", code="unknown-knob", help=nearest(name, _NAMED))
