"""What attention does to scores beside the products: the options of a call, checked once."""

from __future__ import annotations

from math import isfinite
from operator import index
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np

from tessera.ops import arrays, rows
from tessera.ops.attn.block_mask import BlockMask
from tessera.ops.attn.flash_steps import FAR, Call, accumulator
from tessera.ops.attn.mods import as_mod
from tessera.ops.refusals import refused
from tessera.ops.steps import needs_gradient, seed_of

Window = tuple[int | None, int | None]


class Options(TypedDict, total=False):
    """The options of `op.flash_attention` that change scores."""

    causal: bool
    scale: float | None
    window: Window | None
    softcap: float | None
    bias: Any
    alibi_slopes: Any
    sinks: Any
    score_mod: Any
    mask_mod: Any
    dropout_p: float
    seed: Any


class Scores(NamedTuple):
    """The same with their defaults; `op.flash_attention` says what they are."""

    causal: bool = False
    scale: float | None = None
    window: Window | None = None
    softcap: float | None = None
    bias: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    score_mod: Any = None
    mask_mod: Any = None
    dropout_p: float = 0.0
    seed: Any = None

    def of(
        self, q: Any, k: Any, v: Any, bias: Any, starts: tuple[Any, Any] = (None, None), most: tuple[int, int] = (0, 0)
    ) -> Call:
        """Return what the steps are called with.

        Args:
            q: queries `(B, H, S, D)`.
            k: keys.
            v: values.
            bias: the bias with all of its dimensions, or None.
            starts: where packed sequences begin in queries and keys, or None twice.
            most: queries and keys of the longest ones.

        Raises:
            CallError: for what does not fit.
        """
        cap = self.softcap
        if cap is not None and not (cap > 0 and isfinite(cap)):
            raise refused(f"softcap is {cap}", "bad-argument", "it is positive, or None")
        for name, one in (("alibi_slopes", self.alibi_slopes), ("sinks", self.sinks)):
            if one is not None:
                _check_heads(one, name, q)
        if self.alibi_slopes is not None and needs_gradient((self.alibi_slopes,)):
            raise refused("alibi_slopes have no gradients", "no-gradient", "detach them")
        parts, name, listed = self._functions(q, k)
        factor = float(q.shape[3]) ** -0.5 if self.scale is None else float(self.scale)
        arrays_of = q, k, v, bias, self.alibi_slopes, self.sinks, *starts
        numbers = factor, float(cap or 0.0), *reach(self.window), bool(self.causal)
        return Call(*arrays_of, parts, name, listed, *numbers, *most, *self._dropout(q))

    @property
    def exact_seed(self) -> int:
        """The seed of dropout on the host."""
        return seed_of(self.seed if _is_number(self.seed) else arrays.to_numpy(self.seed).item())

    def _dropout(self, q: Any) -> tuple[Any, Any, float]:
        """Return the seed of dropout as an array or as a number, and the probability."""
        p = float(self.dropout_p)
        if not 0 <= p <= 1:
            raise refused(f"dropout_p is {p}", "bad-argument", "it is from 0 to 1")
        if p == 0:
            return None, 0, p
        if self.seed is None:
            help = "give seed=, an integer or an i64 array of one element, that differs from call to call"
            raise refused(f"dropout_p is {p} without a seed", "bad-argument", help)
        if _is_number(self.seed):
            return None, seed_of(self.seed), p
        return _seed_array(self.seed, q), 0, p

    def _functions(self, q: Any, k: Any) -> tuple[list[Any], str, bool]:
        """Return the tensors of the functions and of lists of blocks, the functions' name, whether there are lists."""
        if self.score_mod is None and self.mask_mod is None:
            return [], "", False
        score, mask = as_mod(self.score_mod, "score_mod"), self.mask_mod
        lists: tuple[Any, ...] = ()
        if isinstance(mask, BlockMask):
            _check_sizes(mask, q, k)
            mask, lists = mask.mod, (mask.kinds, mask.partials, mask.counts, mask.blocks)
        keeps = as_mod(mask, "mask_mod")
        parts = [*(score.values if score else ()), *(keeps.values if keeps else ()), *lists]
        if arrays.is_torch(q) and not all(map(arrays.is_torch, parts)):
            raise refused(
                "a function's tensors are of another library", "mixed-libraries", "give PyTorch tensors alone"
            )
        return parts, f"{score.name if score else ''}|{keeps.name if keeps else ''}", bool(lists)


def _is_number(seed: Any) -> bool:
    """Return whether a seed is a number, which it is too where `torch.compile` traces."""
    return isinstance(seed, int | np.integer)


def _seed_array(seed: Any, q: Any) -> Any:
    """Return a seed that kernels read as an array `(1,)`."""
    if arrays.dtype_of(seed, "seed").name != "i64":
        raise refused(f"seed has the dtype {arrays.dtype_of(seed)}", "wrong-dtype", "an array of one element is i64")
    shape = tuple(arrays.shape_of(seed, "seed"))
    if shape not in ((), (1,)):
        raise refused(f"seed has the shape {shape}", "wrong-shape", "it has one element")
    if arrays.is_torch(q) and not arrays.is_torch(seed):
        raise refused("seed is of another library than q", "mixed-libraries", "give PyTorch tensors alone")
    return seed if shape else seed.reshape(1)


def _check_heads(array: Any, name: str, q: Any) -> None:
    """Check numbers of heads."""
    rows.same_shape(array, name, (q.shape[1],))
    if arrays.dtype_of(array, name).name != accumulator(q).name:
        raise refused(f"{name} has the dtype {arrays.dtype_of(array)}", "wrong-dtype", f"it takes {accumulator(q)}")


def _check_sizes(mask: BlockMask, q: Any, k: Any) -> None:
    """Check that a mask was made for queries and keys like these."""
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    fits = all(one in (size, 1) for one, size in zip(mask.sizes[:2], sizes[:2], strict=True))
    if not fits or mask.sizes[2:] != sizes[2:]:
        raise refused(f"mask_mod is for {mask.sizes}, not {sizes}", "wrong-shape", "batch, heads, queries, keys")


def reach(window: Window | None) -> tuple[int, int]:
    """Return how far a window reaches before and after a place.

    Raises:
        CallError: `bad-argument`.
    """
    if window is None:
        return FAR, FAR
    if not isinstance(cast("Any", window), tuple | list) or len(window) != 2:
        raise refused(f"window is {window!r:.60}", "bad-argument", "it is (before, after), each a number or None")
    before, after = (FAR if one is None else min(index(one), FAR) for one in window)
    if before < 0 or after < 0:
        raise refused(f"window is {window!r:.60}", "bad-argument", "its numbers are not negative")
    return before, after


def exact_scores(scores: Any, given: Scores) -> Any:
    """Return what is done to scaled products `(B, H, S, N)` in NumPy and float64; functions are of NumPy arrays."""
    if given.softcap is not None:
        scores = given.softcap * np.tanh(scores / given.softcap)
    if given.bias is not None:
        bias = arrays.host(given.bias)
        scores = scores + (np.where(bias, 0.0, -np.inf) if arrays.dtype_of(given.bias).name == "bool" else bias)
    apart = _apart(*scores.shape[2:])
    if given.alibi_slopes is not None:
        scores = scores - arrays.host(given.alibi_slopes)[:, None, None] * np.abs(apart)
    places = np.ogrid[tuple(map(slice, scores.shape))]
    if given.score_mod is not None:
        scores = given.score_mod(scores, *places)
    before, after = reach(given.window)
    scores = np.where((apart >= -before) & (apart <= (0 if given.causal else after)), scores, -np.inf)
    return scores if given.mask_mod is None else np.where(given.mask_mod(*places), scores, -np.inf)


def _apart(queries: int, keys: int) -> Any:
    """Return how far keys are behind the places of queries."""
    return np.arange(keys) - (np.arange(queries)[:, None] + (keys - queries))
