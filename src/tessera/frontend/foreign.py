"""What to write in place of names that other tile and array languages have (Triton, CUDA, TileLang, CuTe, NumPy)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tessera.errors import LanguageError

_FUNCTIONS = {
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "astype": "cast",
    "atomic_cas": "atomic_compare_exchange",
    "atomic_xchg": "atomic_exchange",
    "atomic_exch": "atomic_exchange",
    "bitwise_count": "popcount",
    "broadcast": "broadcast_to",
    "cat": "concatenate",
    "chunk": "split",
    "clip": "clamp",
    "copy_async": "cp_async",
    "async_copy": "cp_async",
    "count_ones": "popcount",
    "debug_barrier": "barrier",
    "einsum": "mma",
    "fabs": "abs",
    "fill": "full",
    "flipud": "flip",
    "fliplr": "flip",
    "fmax": "maximum",
    "fmaxf": "maximum",
    "fmin": "minimum",
    "fminf": "minimum",
    "gemm": "mma",
    "hstack": "concatenate",
    "inline_asm_elementwise": "inline_asm",
    "matmul": "mma",
    "mm": "mma",
    "permute": "transpose",
    "popc": "popcount",
    "power": "pow",
    "printf": "device_print",
    "ravel": "reshape",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_sum": "sum",
    "reinterpret": "bitcast",
    "rotate": "roll",
    "rotate_left": "rotl",
    "rotate_right": "rotr",
    "shfl_xor_sync": "exchange",
    "sqrt_rn": "sqrt",
    "squeeze": "reshape",
    "static_print": "device_print",
    "sync_threads": "barrier",
    "syncthreads": "barrier",
    "thread_barrier": "barrier",
    "threadfence": "fence",
    "trans": "transpose",
    "umulhi": "mulhi",
    "unbind": "unstack",
    "unroll": "static_range",
    "range_constexpr": "static_range",
    "unsqueeze": "expand_dims",
    "vstack": "concatenate",
}
"""Functions of the language by the names that they have elsewhere."""

_GRID = "loop over ts.tile.grid: its variables are the program's offsets"
_LANES = "code is written for the whole program: ts.tile.arange(64) numbers a tile's elements"
_POINTERS = "tensors need no pointers: read and write slices, A[m : m + 64, k : k + 32], or index tiles, A[rows, cols]"
_HINTS = "say it of sizes and arguments: ts.assume(n % 16 == 0)"
_STAGES = "plain slices in a loop over ts.tile.range are pipelined; num_stages is a knob of @ts.kernel.autotune"
_LAYOUTS = "layouts are the compiler's: write x.T, ts.tile.reshape or ts.tile.transpose"
_ADVICE = {
    "advance": _POINTERS,
    "alloc_fragment": "a tile is a value: acc = ts.tile.zeros((64, 64), ts.f32)",
    "alloc_local": "a tile is a value: acc = ts.tile.zeros((64, 64), ts.f32)",
    "allocate_shared_memory": "use ts.tile.alloc_shared(shape, dtype)",
    "autotune": "decorate with @ts.kernel.autotune(space=dict(BM=[64, 128]))",
    "block_idx": _GRID,
    "block_dim": _LANES,
    "ceildiv": "use ts.cdiv(a, b)",
    "cdiv": "use ts.cdiv(a, b)",
    "clear": "a tile is a value: acc = ts.tile.zeros((64, 64), ts.f32)",
    "config": "give values of knobs: @ts.kernel.autotune(space=dict(BM=[64, 128], num_warps=[4]))",
    "constexpr": "annotate the parameter as ts.constexpr",
    "convert_layout": _LAYOUTS,
    "copy": "assign: B[m : m + 64] = A[m : m + 64]; to a shared buffer, ts.tile.cp_async(buffer, A[...])",
    "div_rn": "a / b rounds to the nearest under ts.numerics.profile('strict')",
    "dot_scaled": "multiply the scales into the operands, or into each step's product: acc + ts.tile.dot(a, b) * scale",
    "dtype": "dtypes are ts.f32, ts.bf16, ts.i32 and so on; of a tile, x.dtype",
    "empty": "tiles are values: ts.tile.zeros(shape, dtype)",
    "empty_like": "tiles are values: ts.tile.zeros_like(x)",
    "ffs": "use ts.tile.ctz(x) + 1",
    "flatten": "use ts.tile.reshape(x, -1)",
    "gather": "index the tensor with an index tile: X[index]; of a tile, use ts.tile.take_along_axis(x, index, axis)",
    "grid_dim": _GRID,
    "histogram": "count in a shared buffer or tensor: ts.tile.atomic_add(counts[index], 1)",
    "if_then_else": "use ts.tile.where(condition, a, b)",
    "infinity": "use float('inf')",
    "inf": "use float('inf')",
    "interleave": "use ts.tile.join(a, b), and ts.tile.reshape",
    "item": "x[0] of a tile of one dimension is a scalar",
    "lane_id": _LANES,
    "ldg": _POINTERS,
    "load_tensor_descriptor": _POINTERS,
    "local_tile": _POINTERS,
    "make_block_ptr": _POINTERS,
    "make_fragment": "a tile is a value: acc = ts.tile.zeros((64, 64), ts.f32)",
    "make_layout": _LAYOUTS,
    "make_rmem_tensor": "a tile is a value: acc = ts.tile.zeros((64, 64), ts.f32)",
    "make_tensor": _POINTERS,
    "make_tensor_descriptor": _POINTERS,
    "map_elementwise": "call the @ts.function: helpers take tiles",
    "max_constancy": _HINTS,
    "max_contiguous": _HINTS,
    "median": "use ts.tile.sort(x), and the element in the middle of it",
    "multiple_of": _HINTS,
    "nan": "use float('nan')",
    "ndim": "use len(x.shape)",
    "num_programs": "the extent that ts.tile.grid is given says it: ts.cdiv(n, 64)",
    "numel": "the sizes of a tile, x.shape, are numbers at compile time",
    "ones": "use ts.tile.full(shape, 1.0)",
    "ones_like": "use ts.tile.full_like(x, 1)",
    "parallel": "tiles are computed as a whole: y[m : m + 64] = x[m : m + 64] + 1",
    "persistent": "loop over ts.tile.grid; persistence is the schedule's",
    "pi": "use math.pi",
    "pipelined": _STAGES,
    "pointer_type": _POINTERS,
    "prim_func": "decorate with @ts.kernel",
    "program_id": _GRID,
    "rand4x": "use ts.tile.philox(seed, offsets), four tiles of random bits",
    "randint4x": "use ts.tile.philox(seed, offsets), four tiles of random bits",
    "randn4x": "use ts.tile.randn(seed, offsets)",
    "range_dynamic": "use ts.tile.range",
    "serial": "use ts.tile.range",
    "reduce_or": "use ts.tile.any(x, axis) of bools; of integers ts.tile.reduce with a @ts.function of a | b",
    "repeat": "add a dimension and use ts.tile.broadcast_to, then ts.tile.reshape",
    "scatter": "store with an index tile: X[index] = x",
    "shfl_down_sync": "use ts.tile.exchange, ts.tile.roll or a reduction such as ts.tile.sum",
    "shfl_sync": "use ts.tile.take(x, index)",
    "shfl_up_sync": "use ts.tile.roll or a scan such as ts.tile.cumsum",
    "static_assert": 'use assert condition, "text"; what is known at compile time is decided then',
    "size": "the sizes of a tile, x.shape, are numbers at compile time",
    "stride": _POINTERS,
    "store_tensor_descriptor": _POINTERS,
    "swizzle2d": "give ts.tile.grid an order, or leave raster orders to the schedule",
    "thread_id": _LANES,
    "thread_idx": _LANES,
    "tidx": _LANES,
    "tril": "use ts.tile.where(rows[:, None] >= cols[None, :], x, 0)",
    "triu": "use ts.tile.where(rows[:, None] <= cols[None, :], x, 0)",
    "use_swizzle": "give ts.tile.grid an order, or leave raster orders to the schedule",
    "vectorized": "tiles are computed as a whole: y[m : m + 64] = x[m : m + 64] + 1",
    "view": "use ts.tile.reshape for another shape, ts.tile.bitcast for another dtype",
    "warp_id": _LANES,
    "warp_specialize": "use with ts.tile.role('producer'): and with ts.tile.role('consumer'):",
    "xor_sum": "use ts.tile.reduce with a @ts.function of a ^ b",
}
"""What else to write."""
_DTYPES = {
    "bool": "bool_",
    "boolean": "bool_",
    "byte": "u8",
    "char": "i8",
    "double": "f64",
    "e4m3": "fp8_e4m3",
    "e5m2": "fp8_e5m2",
    "float": "f32",
    "float8_e4m3": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8e4nv": "fp8_e4m3",
    "float8e5": "fp8_e5m2",
    "half": "f16",
    "int": "i32",
    "int1": "bool_",
    "long": "i64",
    "short": "i16",
    "tfloat32": "tf32",
}
"""Dtypes by the names that they have elsewhere."""

KEYWORDS = {
    "allow_tf32": "f32 operands are multiplied as tf32 with compute=ts.tf32, otherwise as f32",
    "boundary_check": "slices are bounded: what is outside reads as fill= and is not written",
    "cache_modifier": "caching is the compiler's",
    "dim": "a dimension is axis=",
    "eviction_policy": "caching is the compiler's",
    "input_precision": "f32 operands are multiplied as tf32 with compute=ts.tf32, otherwise as f32",
    "keep_dims": "a dimension of size 1 stays with keepdims=",
    "keepdim": "a dimension of size 1 stays with keepdims=",
    "max": "bounds are lo= and hi=; of one bound, ts.tile.minimum and ts.tile.maximum",
    "min": "bounds are lo= and hi=; of one bound, ts.tile.minimum and ts.tile.maximum",
    "mask": "what stands under `if mask:` is done where the mask is true",
    "num_stages": "num_stages is a knob: @ts.kernel.autotune(space=dict(num_stages=[3]))",
    "other": "what is outside or masked off reads as fill=",
    "out": "a result is a value: store it",
    "out_dtype": "accumulator= is the dtype of the sums",
    "padding_option": "what is outside reads as fill=",
    "sem": "the memory order is order=",
    "volatile": "ts.tile.atomic_load reads what others write meanwhile",
}
"""What to write instead of keywords that other tile and array languages have."""


class MissingName(LanguageError, AttributeError):
    """A name that the package or `ts.tile` does not have: an attribute that is missing, to Python."""


def _folded(name: str) -> str:
    """Return a name without what spellings differ in: `atomicAdd` and `atomic_add`, `threadIdx` and `thread_idx`."""
    return name.replace("_", "").lower()


_FUNCTIONS_FOLDED = {_folded(name): function for name, function in _FUNCTIONS.items()}
_ADVICE_FOLDED = {
    **{_folded(name): text for name, text in _ADVICE.items()},
    **{_folded(name): f"use ts.{dtype}" for name, dtype in _DTYPES.items()},
}


def instead(name: str, functions: Collection[str]) -> str | None:
    """Return what to write in place of a name of another language, if that is known.

    Args:
        name: the name, such as `program_id` or `atomicCAS`.
        functions: the names of the language's own functions.
    """
    key = _folded(name)
    if key in _ADVICE_FOLDED:
        return _ADVICE_FOLDED[key]
    own = {_folded(function): function for function in functions}
    known = _FUNCTIONS_FOLDED.get(key) or own.get(key)
    return f"use ts.tile.{known}" if known else None


def nearest(name: str, names: Iterable[str], likeness: float = 0.7) -> str | None:
    """Return a help line with the public name that a name is most like, if one is like it.

    Args:
        name: the name that is not there.
        names: those that are.
        likeness: how like it has to be, from 0 to 1.
    """
    import difflib

    near = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], 1, likeness)
    return f"did you mean {near[0]!r}?" if near else None


def missing_name(owner: str, name: str, names: Iterable[str]) -> MissingName:
    """Return the error for a name that the package or `ts.tile` does not have.

    Args:
        owner: `ts` or `ts.tile`.
        name: the name.
        names: those that it has.
    """
    from tessera.frontend import tile

    help = instead(name, tile.functions()) or nearest(name, names) or "see the language reference for what there is"
    return MissingName(f"{owner} has no {name!r}", code="unknown-name", help=help)
