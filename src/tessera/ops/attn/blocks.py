"""The blocks of queries and keys that attention's kernels take, for a machine and a call."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from tessera.ops.attn.flash_steps import Call

_WIDE_HEAD = 144
"""Elements of heads up to which blocks are longer."""
_APART = 2048
"""Bytes of shared memory that operands leave to what threads exchange."""
_SMALLEST = 16
_SHORTEST, _LONG = 32, 128
"""Rows of the shortest and the longest blocks of a CPU."""
PART_KEYS = 64
"""That the keys of a part are a multiple of."""
_LEAST_BLOCKS = 4
"""Blocks of keys that a part has at least: fewer, and its result costs more than what it reads."""
_PART_PROGRAMS = 2
"""Programs of a multiprocessor where keys are taken in parts."""
_TWO_GROUPS, _THREE_GROUPS = 128, 192
"""Rows of a block that two and that three warpgroups share."""
_FEW_HEAD = 64
"""Elements of heads up to which the registers of three warpgroups hold a block, or those of two one of 256 keys."""
_FEWER_HEAD = 32
"""Elements of heads up to which registers of two warpgroups hold the products of two steps, which overlap."""
_KEY_TIME = 1.4
"""Time of a block of gradients of keys and values of three warpgroups, as a part of one of two: 1.5 times the rows
(heads of 64 on an H200)."""


class Form(NamedTuple):
    """Blocks of results.

    Args:
        rows: queries of a block.
        keys: keys of a step.
        step: time of a step, as a part of that of 128 queries and 128 keys.
        block: time of a block besides its steps, in the same unit.
    """

    rows: int
    keys: int
    step: float
    block: float


_USUAL = Form(_TWO_GROUPS, 128, 1.0, 1.0)
_HIGH = Form(_THREE_GROUPS, 128, 1.3, 1.65)
_LONG_STEPS = Form(_TWO_GROUPS, 256, 1.9, 0.8)
_HIGH_BY_FEW = _HIGH._replace(step=1.41)
"""Fitted to heads of 16 to 64 and 512 to 16384 positions on an H200; the last for heads of up to `_FEWER_HEAD`."""


@dataclass(frozen=True)
class Blocks:
    """Queries and keys of the blocks of kernels for a machine.

    Args:
        target: the machine.
        dtype: of queries, keys and values.
        head: elements of a head of queries and keys, and of one of values.
        lengths: queries and keys that there are at most.
        heads: heads of queries, and of keys, of all batches.
        dense: `Call.is_dense`.
        biased: whether there is a bias, which takes shared memory beside keys and values.
        causal: whether no query sees a key after its place.
        capped: whether there is a cap of scores.
        drops: whether weights are left out, which takes registers beside scores.
    """

    target: TargetRecord
    dtype: DType
    head: tuple[int, int]
    lengths: tuple[int, int] = (_LONG, _LONG)
    heads: tuple[int, int] = (1, 1)
    dense: bool = True
    biased: bool = False
    causal: bool = False
    capped: bool = False
    drops: bool = False

    @classmethod
    def of(cls, call: Call) -> Blocks:
        """Return the blocks for a call, on the device of its arrays."""
        q, v = call.q, call.v
        head, lengths = ((int(q.shape[axis]), int(v.shape[axis])) for axis in (3, 2))
        batch = int(q.shape[0])
        if call.starts_q is not None:  # as so many sequences that are as long as the longest
            batch, lengths = max(lengths[0] // max(call.most_q, 1), 1), (call.most_q, call.most_k)
        heads = batch * int(q.shape[1]), batch * int(v.shape[1])
        options = call.is_dense, call.bias is not None, call.causal, call.softcap > 0, call.dropout > 0
        return cls(rows.record_of(q), arrays.dtype_of(q), head, lengths, heads, *options)

    def forward(self) -> dict[str, int]:
        """Return those of results."""
        if not self.target.simt:
            return self._short(128, 128)
        if self._is_small:
            best = min(self._forms(), key=self._time)
            return {"BM": best.rows, "BN": best.keys}
        many = max(self.head) <= (_FEW_HEAD if self.biased else _WIDE_HEAD) and not self._drops_much
        most = (64, 32) if self._is_wide else (_TWO_GROUPS, 128 if many else 64)
        return self._fitting(*most, self.head[0], sum(self.head))

    def parts(self, q: Any, k: Any) -> int:
        """Return in how many parts keys are taken: one, but for so few queries that most of a GPU would be idle."""
        batch, heads, queries, _ = map(int, q.shape)
        groups, count = int(k.shape[1]), int(k.shape[2])
        if not self.target.simt or heads // groups * queries > self.in_parts()["BM"]:
            return 1
        units = _PART_PROGRAMS * self.target.machine.units
        return max(1, min(units // (batch * groups), count // (_LEAST_BLOCKS * PART_KEYS)))

    def in_parts(self) -> dict[str, int]:
        """Return those of results of few queries: their rows, one block for all, and the keys of a step."""
        rows_of = 32 if self._is_wide else 64
        return {"BM": rows_of, "BN": self._fitting(rows_of, rows_of, self.head[0], sum(self.head))["BN"]}

    def of_queries(self) -> dict[str, int]:
        """Return those of gradients of queries."""
        if not self.target.simt:
            return self._short(64, 128)
        keys = 32 if self._drops_much and not self.target.has("wgmma") else 64
        most = (32, 32) if self._is_wide else (128, keys) if max(self.head) <= _WIDE_HEAD else (64, 32)
        return self._fitting(*most, sum(self.head), sum(self.head))

    def of_keys(self) -> dict[str, int]:
        """Return those of gradients of keys and values."""
        if not self.target.simt:
            return self._short(128, 64)
        head = max(self.head)
        stay = _TWO_GROUPS if self.causal or not self._is_small else self._shared_by_keys()
        most = (stay, 32 if self._drops_much else 64) if head <= _WIDE_HEAD else (64, 32)
        found = self._fitting(*((32, 32) if self._is_wide else most), sum(self.head), sum(self.head))
        return {"BM": found["BN"], "BN": found["BM"]}

    def _short(self, queries: int, keys: int) -> dict[str, int]:
        """Return blocks of a CPU, no longer than what there is, of few lengths: each is a kernel of its own."""
        pairs = zip((queries, keys), self.lengths, strict=True)
        most = (min(block, max(_SHORTEST, 1 << max(length - 1, 0).bit_length())) for block, length in pairs)
        return dict(zip(("BM", "BN"), most, strict=True))

    @property
    def _is_small(self) -> bool:
        """Whether heads leave registers for higher blocks or longer steps."""
        return self.target.has("wgmma") and self.dtype.bits <= 16 and max(self.head) <= _FEW_HEAD and self.dense

    def _forms(self) -> list[Form]:
        """Return the blocks to choose from."""
        if max(self.head) <= _FEWER_HEAD:
            return [_USUAL, _HIGH_BY_FEW]
        plain = self.dtype.bits == 16 and not (self.causal or self.capped or self.biased)
        return [_USUAL, _HIGH, _LONG_STEPS] if plain else [_USUAL, _HIGH]

    def _time(self, form: Form) -> float:
        """Return the time of results, in steps of 128 queries and 128 keys."""
        heads, units, (queries, keys) = self.heads[0], self.target.machine.units, self.lengths
        blocks = -(-queries // form.rows)
        longest = -(-keys // form.keys) * form.step + form.block
        if not self.causal:
            return -(-heads * blocks // units) * longest
        steps = _seen_steps(queries, keys, form.rows, form.keys)
        return max(heads * (steps * form.step + blocks * form.block) / units, longest)

    def _shared_by_keys(self) -> int:
        """Return the rows of blocks of keys that warpgroups share: those of three where that takes less time."""
        heads, count, units = self.heads[1], self.lengths[1], self.target.machine.units
        two, three = (-(-heads * -(-count // rows) // units) for rows in (_TWO_GROUPS, _THREE_GROUPS))
        return _THREE_GROUPS if three * _KEY_TIME < two else _TWO_GROUPS

    @property
    def _drops_much(self) -> bool:
        """Whether dropout's numbers leave no registers for as many scores as there are without it."""
        return self.drops and max(self.head) > _FEW_HEAD

    @property
    def _is_wide(self) -> bool:
        return self.dtype.bits > 16

    def _fitting(self, stay: int, move: int, kept: int, moved: int) -> dict[str, int]:
        """Return blocks that shared memory holds: what stays, and two of what comes after each other.

        Args:
            stay: rows that stay, at most.
            move: rows that come after each other, at most.
            kept: elements of a row that stays.
            moved: elements of one that comes.
        """
        room = (self.target.shared_bytes - _APART) // self.dtype.bytes
        while stay * kept + 2 * move * moved > room and max(stay, move) > _SMALLEST:
            if move >= stay or stay == _SMALLEST:
                move //= 2
            else:
                stay //= 2
        return {"BM": stay, "BN": move}


@lru_cache(1024)
def _seen_steps(queries: int, keys: int, rows: int, step: int) -> int:
    """Return the steps of all blocks of a head, where no query sees a key after its place."""
    ends = (keys - queries + rows * block for block in range(1, -(-queries // rows) + 1))
    return sum(-(-min(max(end, 0), keys) // step) for end in ends)
