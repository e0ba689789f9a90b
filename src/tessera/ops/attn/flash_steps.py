"""The steps behind attention: kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.attn import flash_gradient_kernels as gradients
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.block_mask import lists_of
from tessera.ops.attn.blocks import PART_KEYS, Blocks
from tessera.ops.attn.drops import BY_NUMBER, BY_TENSOR
from tessera.ops.attn.join import join
from tessera.ops.attn.mods import NAMES, Mods
from tessera.ops.attn.packed import ROOM, lengths_between, packed_deltas, room_for, tiles_of, together
from tessera.ops.epilogue.chain import Epilogue
from tessera.ops.refusals import refused
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present, zeros
from tessera.ops.traced import Traced

FAR = 2**31 - 1
"""A window that reaches so far has no end."""


class Call(NamedTuple):
    """What attention is called with, as steps and PyTorch's operators take it: the fields in order.

    Args:
        q: queries `(B, H, S, D)`.
        k: keys `(B, G, N, D)`.
        v: values `(B, G, N, E)`.
        bias: numbers added to scores, `(B, H, S, N)`, or None.
        slopes: factors of distances for each head, or None.
        sinks: scores without a key for each head, or None.
        starts_q: where packed sequences begin in the one row of the batch, or None.
        starts_k: the same of keys.
        parts: tensors of the functions, and where `listed` kinds of blocks, partials, counts and blocks.
        mods: the name of the functions.
        listed: whether blocks are listed.
        scale: of products.
        softcap: limit of scores, 0 for none.
        before: keys before its place that a query sees.
        after: keys after it.
        causal: whether a query sees no key after its place.
        most_q: queries of the longest packed sequence.
        most_k: keys of the longest one.
        seed: the seed of dropout as an i64 array `(1,)`, or None.
        key: the seed where there is no array.
        dropout: the probability with which weights are left out.
    """

    q: Any
    k: Any
    v: Any
    bias: Any
    slopes: Any
    sinks: Any
    starts_q: Any
    starts_k: Any
    parts: Sequence[Any]
    mods: str
    listed: bool
    scale: float
    softcap: float
    before: int
    after: int
    causal: bool
    most_q: int
    most_k: int
    seed: Any = None
    key: int = 0
    dropout: float = 0.0

    def functions(self, epilogue: Epilogue | None = None) -> Mods:
        """Return the user's functions, dropout, and what happens to results."""
        values = self.parts[:-4] if self.listed else self.parts
        last, finish = ((), None) if epilogue is None else (epilogue.values, epilogue.layout)
        if not self.dropout:
            return NAMES.mods_of(self.mods, (*values, *last), None, finish)
        if self.seed is None:
            return NAMES.mods_of(self.mods, (*values, self.dropout, self.key, *last), BY_NUMBER, finish)
        return NAMES.mods_of(self.mods, (*values, self.dropout, self.seed, *last), BY_TENSOR, finish)

    def lists(self, across: bool) -> tuple[Any, Any, Any]:
        """Return the lists of blocks: partials, counts and blocks; None three times where none are listed."""
        if not self.listed:
            return None, None, None
        kinds, *lists = self.parts[-4:]
        batch, heads, groups = self.q.shape[0], self.q.shape[1], self.k.shape[1]
        if across:
            own = int(kinds.shape[1])
            lists = lists_of(kinds, 1 if own == 1 else groups, across=True)
        partials, counts, blocks = (repeated(one, (batch, groups if across else heads)) for one in lists)
        return partials, counts, blocks

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The numbers that kernels take."""
        sequences = 0 if self.starts_q is None else int(self.starts_q.shape[0]) - 1
        after = min(self.after, 0) if self.causal else self.after
        return self.scale, self.softcap or 1.0, self.before, after, sequences

    @property
    def is_windowed(self) -> bool:
        """Whether a query sees no keys that are far away."""
        return self.before < FAR or self.after < FAR

    @property
    def is_dense(self) -> bool:
        """Whether every query may see every key, at scores that take no work of threads but for a bias or a cap."""
        has_work = bool(self.mods) or self.slopes is not None or self.dropout > 0
        return not (self.is_windowed or has_work)

    @property
    def is_simple(self) -> bool:
        """Whether scores are products, scaled and perhaps capped, whose weights all count."""
        has_work = bool(self.mods) or self.is_windowed or self.dropout > 0
        return self.bias is self.slopes is self.sinks is self.starts_q is None and not has_work

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of all kernels."""
        windowed = self.is_windowed
        more_queries = self.causal and self.q.shape[2] > self.k.shape[2]
        has_mods = bool(self.mods)
        empties = windowed or self.bias is not None or more_queries or self.k.shape[2] == 0 or has_mods
        found = {"causal": self.causal, "windowed": windowed, "caps": self.softcap > 0}
        found["empties"] = bool(empties or self.starts_q is not None)
        adds = self.bias is not None or self.slopes is not None
        found["plain"] = not (adds or has_mods or self.softcap) and self.scale > 0
        return found | {"acc": accumulator(self.q)}


_FIELDS = Call._fields
_SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? slopes, Tensor? sinks, Tensor? starts_q, Tensor? starts_k, "
    "Tensor[] parts, str mods, bool listed, float scale, float softcap, int before, int after, bool causal, "
    "int most_q, int most_k, Tensor? seed, SymInt key, float dropout"
)


def repeated(array: Any, leading: tuple[Any, Any]) -> Any:
    """Return an array with its first two dimensions repeated, by strides of 0.

    Raises:
        CallError: `bad-argument` for arrays that cannot be repeated.
    """
    shape = (*leading, *array.shape[2:])
    if tuple(array.shape) == tuple(shape):
        return array
    if arrays.is_torch(array):
        return array.expand(shape)
    if not isinstance(array, np.ndarray | Traced):
        help = "make the mask for all of the batch and heads"
        raise refused("lists on a device for one row or head of several", "bad-argument", help)
    return np.broadcast_to(cast("Any", array), shape)


def accumulator(array: Any) -> DType:
    """Return what is computed in."""
    return rows.accumulator(arrays.dtype_of(array))


def _check_starts(call: Call) -> None:
    """Check where packed sequences begin, where no device has to be asked.

    Raises:
        CallError: `bad-argument`.
    """
    packed = (
        ("cu_seqlens_q", call.starts_q, call.q, call.most_q),
        ("cu_seqlens_k", call.starts_k, call.k, call.most_k),
    )
    for name, starts, rows_of, most in packed:
        if starts is None or not arrays.view(starts, name).device.is_host:
            continue
        lengths = lengths_between(starts, name, int(rows_of.shape[2]))
        if lengths.max(initial=0) > most:
            help = f"max_seqlen_{name[-1]} is at least that"
            raise refused(f"a sequence of {name} has {lengths.max()} rows, not {most}", "bad-argument", help)


def in_order_of(array: Any, width: Any) -> Any:
    """Return an unset array like one `(B, H, S, D)` with rows of a width, and heads inside places where it has them."""
    batch, heads, places, _ = array.shape
    if isinstance(array, Traced):
        return like(array, (batch, heads, places, width))
    strides = array.stride() if arrays.is_torch(array) else arrays.view(array, "an array").strides
    if not hasattr(array, "swapaxes") or strides[1] >= strides[2]:
        return like(array, (batch, heads, places, width))
    return like(array, (batch, places, heads, width)).swapaxes(1, 2)


def _results(*arguments: Any) -> Arguments:
    call = Call(*arguments)
    return in_order_of(call.q, call.v.shape[3]), like(call.q, call.q.shape[:3], accumulator(call.q))


def _launch(results: Arguments, *arguments: Any) -> None:
    compute(results, Call(*arguments), None)


def compute(results: Arguments, call: Call, epilogue: Epilogue | None) -> None:
    """Compute attention into given arrays; an epilogue changes the results before they are stored."""
    out, lse = results
    if 0 in out.shape[:3]:
        return
    _check_starts(call)
    given, blocks = call.constants, Blocks.of(call)
    parts = blocks.parts(call.q, call.k) if call.is_simple and epilogue is None else 1
    if parts > 1:
        chosen = {name: given[name] for name in ("causal", "caps", "plain", "acc")}
        in_parts(results, call.q, call.k, call.v, call.scale, call.softcap, chosen, parts, blocks.in_parts())
        return
    chosen = blocks.forward()
    tiles = _tiles(call, chosen["BM"], of_keys=False)
    operands = call.q, call.k, call.v, call.bias, call.slopes, call.sinks, tiles, *call.lists(across=False)
    _run(kernels.forward, (*operands, call.functions(epilogue), out, lse, *call.numbers), given | chosen)


def _tiles(call: Call, block: int, *, of_keys: bool) -> Any:
    """Return the blocks of packed sequences; None in a batch."""
    if call.starts_q is None:
        return None
    stays, moves, longest = (call.k, call.q, call.most_k) if of_keys else (call.q, call.k, call.most_q)
    heads, count = map(int, stays.shape[1:3])
    bytes_of_row = arrays.dtype_of(call.q).bytes * int(call.q.shape[3] + call.v.shape[3])
    room = room_for(bytes_of_row * max(together(heads) * int(moves.shape[1]) // heads, 1))
    starts = call.starts_q, call.starts_k
    return tiles_of(starts, count, longest, heads, block, room, causal=call.causal, of_keys=of_keys)


def _run(kernel: Any, arguments: Arguments, constants: dict[str, Any]) -> None:
    kernel(*arguments, **constants)


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
    each = -(-count // (parts * PART_KEYS)) * PART_KEYS
    parts = -(-count // each)
    shape = (batch, groups, rows_of)
    some = like(q, (parts, *shape, wide), given["acc"])
    sums = like(q, (parts, *shape), given["acc"])
    shared = q.reshape(*shape, size)
    numbers = queries, each, scale, softcap or 1.0
    kernels.parts_forward(shared, k, v, some, sums, *numbers, **given, **block)
    count = batch * groups * rows_of
    join(some.reshape(parts, count, wide), sums.reshape(parts, count), None, *results)


def _gradient_results(*arguments: Any) -> Arguments:
    wanted, call = arguments[-1], Call(*arguments[2 : 2 + len(_FIELDS)])
    of_keys = wanted[1]
    return (
        in_order_of(call.q, call.q.shape[3]) if wanted[0] else missing(call.q),
        in_order_of(call.k, call.k.shape[3]) if of_keys else missing(call.q),
        in_order_of(call.v, call.v.shape[3]) if of_keys else missing(call.q),
        like(call.bias, call.bias.shape) if wanted[2] else missing(call.q),
        like(call.sinks, call.sinks.shape) if wanted[3] else missing(call.q),
    )


def _launch_gradient(results: Arguments, grad: Any, grad_lse: Any, *arguments: Any) -> None:
    *fields, out, lse, wanted = arguments
    call = Call(*fields)
    is_empty = 0 in call.q.shape[:3] or 0 in call.k.shape[:3]
    if is_empty:
        for one in results:
            arrays.zero(one)
        if 0 in call.q.shape[:3] or not wanted[3]:
            return
    of_q, of_k, of_v, of_bias, of_sinks = results
    if arrays.view(grad, "grad").strides[3] != 1:  # of a sum, for example
        grad = rows.contiguous(grad)
    given, blocks = call.constants, Blocks.of(call)
    lse, delta = _row_numbers(call, grad, grad_lse, out, lse)
    common = grad, call.q, call.k, call.v, call.bias, call.slopes
    if (wanted[0] or wanted[2]) and not is_empty:
        results_of = present(of_q), of_bias if wanted[2] else None
        chosen = blocks.of_queries()
        tiles = _tiles(call, chosen["BM"], of_keys=False)
        operands = *common, tiles, *call.lists(across=False), lse, delta, *results_of, call.functions()
        _run(gradients.query_gradients, (*operands, *call.numbers), given | chosen)
    if wanted[1] and not is_empty:
        chosen = blocks.of_keys()
        tiles = _tiles(call, chosen["BN"], of_keys=True)
        operands = *common, tiles, *call.lists(across=True), lse, delta, of_k, of_v, call.functions()
        constants = given | chosen | {"grouped": call.q.shape[1] != call.k.shape[1]}
        _run(gradients.key_gradients, (*operands, *call.numbers), constants)
    if wanted[3]:
        gradients.sink_gradients(call.sinks, lse, delta, of_sinks, acc=accumulator(call.q))


def _row_numbers(call: Call, grad: Any, grad_lse: Any, out: Any, lse: Any) -> tuple[Any, Any]:
    """Return the logsumexp of rows and what is taken from the gradients of their weights, as the kernels read them."""
    acc = accumulator(call.q)
    if call.starts_q is None:
        delta = like(call.q, lse.shape, acc)
        gradients.deltas(grad, out, grad_lse, delta, acc=acc)
        return lse, delta
    _, heads, rows_of = map(int, lse.shape)
    count = (rows_of // ROOM + int(call.starts_q.shape[0]) - 1) * ROOM
    bases, delta = (like(call.q, (1, heads, count), acc) for _ in range(2))
    packed_deltas(grad, out, grad_lse, lse, call.starts_q, bases, delta, call.most_q, acc=acc)
    return bases, delta


BACKWARD = Step(
    "flash_attention_backward",
    f"(Tensor grad, Tensor? grad_lse, {_SCHEMA}, Tensor out, Tensor lse, bool[] wanted) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def gradients_of(call: Call, grad: Any, results: Arguments) -> dict[str, Any]:
    """Return the gradients of all that has any, which nothing follows."""
    wanted = [True, True, call.bias is not None, call.sinks is not None]
    found = BACKWARD.fresh(grad, None, *call, *results, wanted)
    return dict(zip(("q", "k", "v", "bias", "sinks"), found, strict=True))


def _keep(given: Arguments, results: Arguments) -> Arguments:
    return (*given, *results)


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    out = kept[len(_FIELDS)]
    grad = zeros(out) if grads[0] is None else grads[0]
    by_name = dict(zip(_FIELDS, needed, strict=True))
    return grad, grads[1], *kept, [by_name["q"], by_name["k"] or by_name["v"], by_name["bias"], by_name["sinks"]]


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    places = {"q": 0, "k": 1, "v": 2, "bias": 3, "sinks": 4}
    return tuple(places.get(name) for name in _FIELDS)


FORWARD = Step(
    "flash_attention",
    f"({_SCHEMA}) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
