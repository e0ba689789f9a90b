"""What a matrix product is, without its data: sizes, dtypes and how the operands lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Integral
from typing import Any, Literal, cast

from tessera.data import dataclass
from tessera.errors import CallError, caller_location, shown
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, accumulator_of
from tessera.schedule.knobs import HOPPER, KNOBS, Knob, nearest
from tessera.schedule.products import ALIGN_BYTES, LINE_BYTES, MatrixProduct, Operand

Major = Literal["k", "other", "strided"]
"""Which dimension of an operand is contiguous: the one summed over, the other one, or neither."""


def power_of_two(value: int, low: int, high: int) -> int:
    """Return the least power of two that is at least `value`, within bounds that are powers of two."""
    return max(low, min(high, 1 << max(value - 1, 0).bit_length()))


@dataclass(frozen=True, slots=True)
class Problem:
    """A product `(batch ×) (M, K)·(K, N)`.

    Args:
        m: rows of the result.
        n: columns of the result.
        k: terms of each sum.
        a: dtype of the left operand.
        b: dtype of the right operand.
        out: dtype of the result.
        acc: dtype the sums are kept in.
        compute: `tf32` for f32 operands rounded to 10 bits, else the operands' dtype.
        batch: number of products, None for a plain one.
        trans_a: whether the left operand is stored `(K, M)`.
        trans_b: whether the right operand is stored `(N, K)`.
        a_batched: whether the left operand has a batch dimension.
        b_batched: whether the right operand has one.
        a_major: which dimension of the left operand is contiguous.
        b_major: which dimension of the right operand is contiguous.
        a_aligned: whether address and strides of the left operand are multiples of 16 bytes, as bulk copies need.
        b_aligned: the same of the right operand.
        a_lines: whether they are multiples of 128 bytes, so that each row of a box is one line of the L2 cache.
        b_lines: the same of the right operand.
        out_aligned: whether rows of the result begin at multiples of 16 bytes, as bulk copies need.
        same: whether both operands are one array.
        promote: terms that are summed apart before they are added to the accumulator; 0 for none.
        triangular: `lower` or `upper` where only that part of the result is wanted.
        scale_a: how scales of blocks of the left operand lie: `row` (1 x 128), `block` (128 x 128) or none.
        scale_b: the same of the right operand: `col` (128 x 1), `block` or none.
        mma_kind: the instructions asked for, None for the plan's choice.
        weight: registers that the epilogue needs beside the accumulator (`Epilogue.weight`).
        work: operations of the epilogue on each element.
        reduces: whether the epilogue combines columns, which takes tiles of at least 16 rows.
        grouped: whether rows belong to groups whose places are read from memory.
        rereads: whether the epilogue may read what lies where the result goes.
        in_order: whether each sum is one chain of multiply-adds in the order of K, as `strict` has it.
    """

    m: int
    n: int
    k: int
    a: DType
    b: DType
    out: DType
    acc: DType
    compute: DType
    batch: int | None = None
    trans_a: bool = False
    trans_b: bool = False
    a_batched: bool = False
    b_batched: bool = False
    a_major: Major = "k"
    b_major: Major = "other"
    a_aligned: bool = True
    b_aligned: bool = True
    a_lines: bool = True
    b_lines: bool = True
    out_aligned: bool = True
    same: bool = False
    promote: int = 0
    triangular: str = ""
    scale_a: str = ""
    scale_b: str = ""
    mma_kind: str | None = None
    weight: int = 0
    work: int = 0
    reduces: bool = False
    grouped: bool = False
    rereads: bool = False
    in_order: bool = False

    @property
    def aligned(self) -> bool:
        """Whether both operands are."""
        return self.a_aligned and self.b_aligned

    @property
    def product(self) -> MatrixProduct:
        """What the scheduler asks of it to say which instructions compute it."""
        return MatrixProduct(
            Operand("a", self.a, self.a_major, self.a_aligned),
            Operand("b", self.b, self.b_major, self.b_aligned),
            self.acc,
            self.compute == dtypes.tf32,
            self.grouped,
        )

    @property
    def flops(self) -> int:
        """Operations of the product: a multiplication and an addition for each term."""
        return 2 * self.m * self.n * self.k * (1 if self.batch is None else self.batch)

    @property
    def bytes(self) -> int:
        """Bytes of operands and result, each once."""
        count = 1 if self.batch is None else self.batch
        left = self.m * self.k * self.a.bytes * (count if self.a_batched else 1)
        right = self.k * self.n * self.b.bytes * (count if self.b_batched else 1)
        return left + right + count * self.m * self.n * self.out.bytes

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the result, by the formal dimensions of an epilogue."""
        return {"rows": self.m, "cols": self.n} | ({} if self.batch is None else {"batch": self.batch})

    @property
    def scaled(self) -> bool:
        """Whether blocks of an operand have scales."""
        return bool(self.scale_a or self.scale_b)

    def with_majors(self) -> Problem:
        """Return the problem for contiguous operands."""
        rows = (self.m if self.trans_a else self.k) * self.a.bytes
        cols = (self.k if self.trans_b else self.n) * self.b.bytes
        return replace(
            self,
            a_major="other" if self.trans_a else "k",
            b_major="k" if self.trans_b else "other",
            a_aligned=rows % ALIGN_BYTES == 0,
            b_aligned=cols % ALIGN_BYTES == 0,
            a_lines=rows % LINE_BYTES == 0,
            b_lines=cols % LINE_BYTES == 0,
            out_aligned=self.n * self.out.bytes % ALIGN_BYTES == 0,
        )


CHOICES: dict[str, Knob] = {
    **{name: knob for name, knob in KNOBS.items() if "linalg" in knob.takers},
    "block": Knob(
        "block",
        "rows, columns and terms of a step of a tile",
        "the plan's choice",
        count=3,
        takers=("linalg",),
    ),
    "pack": Knob(
        "pack",
        "whether operands that bulk copies cannot fetch are copied first",
        "the plan's choice",
        (0, 1),
        takers=("linalg",),
        needs=HOPPER,
        lacks="bulk copies to warpgroup products",
    ),
    "cta_pairs": Knob(
        "cta_pairs",
        "whether pairs of programs share one product; recorded, without effect before Blackwell's tcgen05",
        0,
        (0, 1),
        takers=("linalg",),
    ),
}
"""What of a product's schedule its caller may fix: knobs of the schedule, and what only plans know."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What a caller fixed of the schedule.

    Args:
        block: `(BM, BN, BK)`.
        stages: depth of the rings.
        num_warps: warps that compute.
        split_k: programs that share one tile's K.
        ping_pong: whether groups of consumers take tiles in turn.
        pack: whether operands that bulk copies cannot fetch are copied first.
        stream_k: 1 shares the last tiles out over all programs.
    """

    block: tuple[int, int, int] | None = None
    stages: int | None = None
    num_warps: int | None = None
    split_k: int | None = None
    ping_pong: bool | None = None
    pack: bool | None = None
    stream_k: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller asked for beside the arrays; see `Gemm.__call__`."""

    trans_a: bool = False
    trans_b: bool = False
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    compute: DType | None = None
    promote: int = 0
    triangular_only: str | None = None
    mma_kind: str | None = None
    cta_pairs: bool | None = None
    split_k: int | None = None
    stream_k: int | None = None
    block: tuple[int, int, int] | None = None
    stages: int | None = None
    num_warps: int | None = None
    ping_pong: bool | None = None
    pack: bool | None = None

    @property
    def forced(self) -> Forced:
        """What of it is the schedule's."""
        return Forced(**{field.name: getattr(self, field.name) for field in fields(Forced)})

    def values(self) -> tuple[Any, ...]:
        """Return the fields in order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def check(self) -> None:
        """Refuse values that have no meaning.

        Raises:
            CallError: `bad-argument`.
        """
        for name in ("out_dtype", "acc_dtype", "compute"):
            _dtype(name, getattr(self, name))
        for name in ("trans_a", "trans_b"):
            _one_of(name, getattr(self, name), (False, True))
        _one_of("triangular_only", self.triangular_only, (None, "lower", "upper"))
        _one_of("promote", self.promote, (0, 32, 64, 128, 256))
        for name, knob in CHOICES.items():
            value = getattr(self, name)
            if value is not None and not knob.accepts(value):
                message, help_line = knob.refusal(value)
                raise CallError(message, code="bad-argument", location=caller_location(), help=help_line)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return checked options by name.

        Raises:
            CallError: `unknown-keyword`, `bad-argument`.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise CallError(
                    f"a product has no option {name!r}",
                    code="unknown-keyword",
                    location=caller_location(),
                    help=nearest(name, known),
                )
        options = cls(**given)
        options.check()
        return options


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    # Numbers that are equal are of one kind: a call's key holds no types.
    if value not in known or isinstance(value, float):
        raise CallError(
            f"{name} is {shown(value)}",
            code="bad-argument",
            location=caller_location(),
            help=f"one of {', '.join(map(repr, known))}",
        )


def _dtype(name: str, value: object) -> None:
    if value is not None and not isinstance(value, DType):
        raise CallError(
            f"{name} is {shown(value)}",
            code="bad-argument",
            location=caller_location(),
            help="it takes a dtype, such as ts.f32",
        )


def check_sizes(**sizes: object) -> tuple[int, ...]:
    """Return sizes of a product as Python's integers, which have no limit; refuse others, and those below 0.

    Raises:
        CallError: `bad-argument`.
    """
    for name, size in sizes.items():
        if not isinstance(size, Integral) or int(size) < 0:
            raise CallError(
                f"{name} is {shown(size)}",
                code="bad-argument",
                location=caller_location(),
                help="sizes are integers, 0 or more",
            )
    return tuple(int(cast("Integral", size)) for size in sizes.values())


FP8 = (dtypes.fp8_e4m3, dtypes.fp8_e5m2)
OPERANDS = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16, *FP8, dtypes.i8, dtypes.u8)


def check_pair(a: DType, b: DType) -> None:
    """Refuse operands that no product is defined for.

    Raises:
        CallError: `unsupported-dtypes`.
    """
    _dtype("a", a)
    _dtype("b", b)
    if a not in OPERANDS or b not in OPERANDS or (a != b and not (a in FP8 and b in FP8)):
        names = ", ".join(dtype.name for dtype in OPERANDS)
        raise CallError(
            f"a matrix product of {a} and {b} is not defined",
            code="unsupported-dtypes",
            location=caller_location(),
            help=f"give both operands one dtype of {names} (fp8 formats may be mixed)",
        )


def default_out(a: DType) -> DType:
    """Return the result's dtype where nothing says it: the operands', bf16 for fp8, i32 for 8-bit integers."""
    if a in FP8:
        return dtypes.bf16
    return dtypes.i32 if a.is_int else a


def accumulator(a: DType, wanted: DType | None) -> DType:
    """Return the dtype sums are kept in.

    Raises:
        CallError: `unsupported-dtypes` when it would lose what products hold.
    """
    default = dtypes.i32 if a.is_int else accumulator_of(a)
    if wanted is None or wanted == default:
        return default
    if wanted == dtypes.f64 and a.is_float:
        return wanted
    if wanted == dtypes.f16 and a in (dtypes.f16, *FP8):
        return wanted
    raise CallError(
        f"products of {a} are not summed in {wanted}",
        code="unsupported-dtypes",
        location=caller_location(),
        help=f"leave acc_dtype out ({default})",
    )
