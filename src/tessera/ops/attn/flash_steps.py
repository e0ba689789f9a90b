"""The steps behind attention: blocks, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present
from tessera.target.records import TargetRecord

FAR = 2**31 - 1
"""A window that reaches so far has no end."""
_NARROW_HEAD, _WIDE_HEAD = 64, 144
"""Elements of heads up to which, and from which on, blocks are longer or shorter."""
_APART = 2048
"""Bytes of shared memory that operands leave to what threads exchange."""
_SMALLEST = 16
_PART_KEYS = 64
"""That the keys of a part are a multiple of."""
_LEAST_BLOCKS = 4
"""Blocks of keys that a part has at least: fewer, and its result costs more than what it reads."""
_PART_PROGRAMS = 2
"""Programs of a multiprocessor where keys are taken in parts."""


@dataclass(frozen=True)
class Blocks:
    """Queries and keys of the blocks of kernels for a machine.

    Args:
        target: the machine.
        dtype: of queries, keys and values.
        head: elements of a head of queries and keys, and of one of values.
    """

    target: TargetRecord
    dtype: DType
    head: tuple[int, int]

    @classmethod
    def of(cls, q: Any, v: Any) -> Blocks:
        """Return the blocks for arrays, on their device."""
        return cls(rows.record_of(q), arrays.dtype_of(q), (int(q.shape[3]), int(v.shape[3])))

    def forward(self) -> dict[str, int]:
        """Return those of results."""
        if not self.target.simt:
            return {"BM": 128, "BN": 128}
        most = (64, 32) if self._is_wide else (128, 128 if max(self.head) <= _WIDE_HEAD else 64)
        return self._fitting(*most, self.head[0], sum(self.head))

    def parts(self, q: Any, k: Any) -> int:
        """Return in how many parts keys are taken: one, but for so few queries that most of a GPU would be idle."""
        batch, heads, queries, _ = map(int, q.shape)
        groups, count = int(k.shape[1]), int(k.shape[2])
        if not self.target.simt or heads // groups * queries > self.in_parts()["BM"]:
            return 1
        units = _PART_PROGRAMS * self.target.machine.units
        return max(1, min(units // (batch * groups), count // (_LEAST_BLOCKS * _PART_KEYS)))

    def in_parts(self) -> dict[str, int]:
        """Return those of results of few queries: their rows, one block for all, and the keys of a step."""
        rows_of = 32 if self._is_wide else 64
        return {"BM": rows_of, "BN": self._fitting(rows_of, rows_of, self.head[0], sum(self.head))["BN"]}

    def of_queries(self) -> dict[str, int]:
        """Return those of gradients of queries."""
        if not self.target.simt:
            return {"BM": 64, "BN": 128}
        most = (32, 32) if self._is_wide else (128, 64) if max(self.head) <= _WIDE_HEAD else (64, 32)
        return self._fitting(*most, sum(self.head), sum(self.head))

    def of_keys(self) -> dict[str, int]:
        """Return those of gradients of keys and values.

        Those of wider heads take fewer queries at a time, so that one role fetches while others compute: 1.56 ms for
        2.81 of 4096 causal positions of 4 x 16 heads of 128 on an H100.
        """
        if not self.target.simt:
            return {"BM": 128, "BN": 64}
        head = max(self.head)
        most = (128, 64) if head <= _NARROW_HEAD else (128, 32) if head <= _WIDE_HEAD else (64, 32)
        found = self._fitting(*((32, 32) if self._is_wide else most), sum(self.head), sum(self.head))
        return {"BM": found["BN"], "BN": found["BM"]}

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


def options(
    q: Any, k: Any, bias: Any, slopes: Any, scale: float, softcap: float, before: int, after: int, causal: bool
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the reach of a window, and the constants of all kernels."""
    windowed = before < FAR or after < FAR
    empties = windowed or bias is not None or (causal and q.shape[2] > k.shape[2]) or k.shape[2] == 0
    found = {"causal": causal, "windowed": windowed, "caps": softcap > 0, "empties": bool(empties)}
    found["plain"] = bias is None and slopes is None and not softcap and scale > 0
    return (before, min(after, 0) if causal else after), found | {"acc": accumulator(q)}


def accumulator(array: Any) -> DType:
    """Return what is computed in."""
    return rows.accumulator(arrays.dtype_of(array))


def _results(q: Any, k: Any, v: Any, bias: Any, slopes: Any, *_others: Any) -> Arguments:
    shape = tuple(q.shape)
    return like(q, (*shape[:3], v.shape[3])), like(q, shape[:3], accumulator(q))


def _launch(
    results: Arguments,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    slopes: Any,
    scale: float,
    softcap: float,
    before: int,
    after: int,
    causal: bool,
) -> None:
    out, lse = results
    if 0 in out.shape[:3]:
        return
    reach, given = options(q, k, bias, slopes, scale, softcap, before, after, causal)
    blocks = Blocks.of(q, v)
    parts = blocks.parts(q, k) if bias is slopes is None and not given["windowed"] else 1
    if parts == 1:
        kernels.forward(q, k, v, bias, slopes, out, lse, scale, softcap or 1.0, *reach, **given, **blocks.forward())
        return
    chosen = {name: given[name] for name in ("causal", "caps", "plain", "acc")}
    in_parts((out, lse), q, k, v, scale, softcap, chosen, parts, blocks.in_parts())


def in_parts(
    results: Arguments,
    q: Any,
    k: Any,
    v: Any,
    scale: float,
    softcap: float,
    given: dict[str, Any],
    parts: int,
    block: dict[str, int],
) -> None:
    """Compute few queries by several programs, each with a part of the keys."""
    batch, heads, queries, size = map(int, q.shape)
    groups, count, wide = map(int, (k.shape[1], k.shape[2], v.shape[3]))
    rows_of = heads // groups * queries
    each = -(-count // (parts * _PART_KEYS)) * _PART_KEYS
    parts = -(-count // each)
    shape = (batch, groups, rows_of)
    some = like(q, (parts, *shape, wide), given["acc"])
    sums = like(q, (parts, *shape), given["acc"])
    shared = q.reshape(*shape, size)
    numbers = queries, each, scale, softcap or 1.0
    kernels.parts_forward(shared, k, v, some, sums, *numbers, **given, **block)
    goals = results[0].reshape(*shape, wide), results[1].reshape(shape)
    kernels.joined(some, sums, *goals, acc=given["acc"], BM=_SMALLEST)
    for goal, found in zip(results, goals, strict=True):
        if arrays.start(goal, "out") != arrays.start(found, "out"):
            goal[...] = found.reshape(goal.shape)


def _gradient_results(grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, bias: Any, *others: Any) -> Arguments:
    wanted = others[-1]
    return (
        like(q, q.shape) if wanted[0] else missing(q),
        like(k, k.shape) if wanted[1] else missing(q),
        like(v, v.shape) if wanted[1] else missing(q),
        like(bias, bias.shape) if wanted[2] else missing(q),
    )


def _launch_gradient(
    results: Arguments,
    grad: Any,
    grad_lse: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    slopes: Any,
    out: Any,
    lse: Any,
    scale: float,
    softcap: float,
    before: int,
    after: int,
    causal: bool,
    wanted: Sequence[bool],
) -> None:
    if 0 in q.shape[:3] or 0 in k.shape[:3]:
        for one in results:
            arrays.zero(one)
        return
    of_q, of_k, of_v, of_bias = results
    if arrays.view(grad, "grad").strides[3] != 1:  # of a sum, for example
        grad = rows.contiguous(grad)
    reach, given = options(q, k, bias, slopes, scale, softcap, before, after, causal)
    blocks = Blocks.of(q, v)
    delta = like(q, lse.shape, accumulator(q))
    kernels.deltas(grad, out, grad_lse, delta, acc=accumulator(q))
    common = grad, q, k, v, bias, slopes, lse, delta
    numbers = (scale, softcap or 1.0, *reach)
    if wanted[0] or wanted[2]:
        kernels.query_gradients(
            *common, present(of_q), of_bias if wanted[2] else None, *numbers, **given, **blocks.of_queries()
        )
    if wanted[1]:
        kernels.key_gradients(*common, of_k, of_v, *numbers, **given, **blocks.of_keys())


BACKWARD = Step(
    "flash_attention_backward",
    "(Tensor grad, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? slopes, Tensor out, "
    "Tensor lse, float scale, float softcap, int before, int after, bool causal, bool[] wanted) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    return (*given[:5], *results, *given[5:])


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    grad = like(kept[5], kept[5].shape).zero_() if grads[0] is None else grads[0]
    return grad, grads[1], *kept, [needed[0], needed[1] or needed[2], needed[3]]


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1, 2, 3, None, None, None, None, None, None


FORWARD = Step(
    "flash_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? slopes, float scale, float softcap, int before, int after, "
    "bool causal) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
