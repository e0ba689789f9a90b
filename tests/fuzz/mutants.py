"""Faults to plant in the compiler, each of which the fuzzer has to find; `scripts/check_mutants.py` plants them.

A fault is a text of one file that occurs there once and what it becomes. Each is of a kind that compilers have had: a
barrier too few, a live buffer reused, a mask forgotten, an end off by one, signs mixed up. `device` says how it shows:
`cpu` runs programs, `amx` runs them on a CPU with matrix units, `passes` interprets scheduled IR, `threads` computes
what the GPU's lowering makes all threads do, `races` looks for what they touch unordered, `ptx` runs the PTX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Args:
        name: what it is.
        device: the device of `tessera fuzz` that shows it.
        file: below `src/tessera`.
        old: a text that occurs once.
        new: what takes its place.
        switches: what `--set` is given, for what programs otherwise seldom reach.
        target: what programs are compiled for, where it is not all that the device has.
    """

    name: str
    device: str
    file: str
    old: str
    new: str
    switches: tuple[str, ...] = ()
    target: str = ""


def _cpu(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "cpu", file, old, new)


def _ptx(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "ptx", file, old, new)


def _threads(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "threads", file, old, new)


def _races(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "races", "lower/simt/order.py", old, new)


def _canonicalize(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "passes", f"canonicalize/{file}.py", old, new, target="x86-64-v3")


def _copies(name: str, old: str, new: str, *switches: str) -> Mutant:
    return Mutant(name, "passes", "schedule/gpu/copies.py", old, new, switches, "sm_80")


def _planned(device: str, name: str, file: str, old: str, new: str, *switches: str) -> Mutant:
    """A fault that only programs after the plans of real kernels reach."""
    return Mutant(name, device, file, old, new, ("plans=1", *switches))


def _hopper(device: str, name: str, file: str, old: str, new: str, *switches: str) -> Mutant:
    return Mutant(name, device, file, old, new, ("plans=1", *switches), "sm_90a")


_VECTOR = (
    _cpu(
        "carried-tiles-overwrite-each-other",
        "lower/vector/control.py",
        "if any(not aligned and written & {*part.resources} for part, aligned in walk(node)):",
        "if False:",
    ),
    _cpu(
        "carried-tiles-written-one-after-the-other",
        "lower/vector/context.py",
        "            values = [site.chunk(node, coords) for node, _ in group]\n"
        "            for value, (_, target) in zip(values, group, strict=True):\n"
        "                site.store(target, coords, value)",
        "            for node, target in group:\n                site.store(target, coords, site.chunk(node, coords))",
    ),
    _cpu(
        "live-buffer-reused",
        "lower/vector/context.py",
        "        if any(isinstance(n.stored or n, Stored) for n in others):\n            return False\n",
        "",
    ),
    _cpu(
        "start-values-share-a-buffer",
        "lower/vector/control.py",
        "waiting = [v for at, v in enumerate(values) if at > position and _is_tile(v) and at not in unwritten]",
        "waiting = []",
    ),
    _cpu(
        "loads-move-behind-stores",
        "lower/vector/context.py",
        "if isinstance(value.type, TileType) and resource in reads(node):",
        "if False:",
    ),
    Mutant(
        "shuffled-reads-fused-into-their-store",
        "cpu",
        "lower/vector/memory.py",
        "if not aligned or not isinstance(part, Load) or not part.box.same_place(box):",
        "if not isinstance(part, Load) or not part.box.same_place(box):",
        ("inplace=5", "small=0"),
    ),
    _cpu(
        "shifted-reads-fused-into-their-store",
        "lower/vector/nodes.py",
        "(self.arg, self.starts, self.sizes, self.kept) == (",
        "(self.arg, other.starts, self.sizes, self.kept) == (",
    ),
    _cpu(
        "transpose-counts-as-in-order",
        "lower/vector/nodes.py",
        "return axes == sorted(axes) and prod(self.shape) == prod(self.source.shape)",
        "return prod(self.shape) == prod(self.source.shape)",
    ),
    _cpu(
        "maximum-of-integers-starts-from-zero",
        "numerics/functions.py",
        'return low if fn == "max" else high',
        'return 0 if fn == "max" else high',
    ),
    _cpu(
        "minimum-of-floats-starts-from-one",
        "numerics/functions.py",
        'return float("-inf") if fn == "max" else float("inf")',
        'return float("-inf") if fn == "max" else 1.0',
    ),
    _cpu(
        "the-vector-that-an-end-cuts-is-left-out",
        "lower/vector/site.py",
        'self.writer.branch(scalars.binary("lt", full, end.count), rest)',
        "",
    ),
    _cpu(
        "tiles-that-begin-before-a-tensor-go-to-its-end",
        "lower/vector/nest.py",
        "if whole and dim in box.unsafe and dim in box.forward:",
        "if whole and dim in box.unsafe:",
    ),
    Mutant(
        "sums-in-regions-take-buffers-of-tiles-outside",
        "cpu",
        "lower/vector/context.py",
        "if others and self.position_end(part.root) > self.position:",
        "if False:",
        ("reuse=1", "starts=3"),
    ),
    Mutant(
        "operands-end-before-tensors-begin",
        "cpu",
        "lower/vector/packing.py",
        "if axis not in box.forward:  # bounds are compared unsigned",
        "if False:  # bounds are compared unsigned",
        ("products=3", "moved=1"),
    ),
    _cpu(
        "what-is-read-ends-where-the-result-does",
        "lower/vector/site.py",
        "if axis in checked and (coord.base, box.offsets[axis], box.bounds[axis]) in self._before_ends:",
        "if axis in checked and any(coord.base is before[0] for before in self._before_ends):",
    ),
    _cpu(
        "reduction-takes-in-padding",
        "lower/vector/reduce.py",
        '[site.apply("select", [valid, value, self.fold.start])]',
        "[value]",
    ),
    _cpu(
        "reduction-leaves-out-the-last-chunk",
        "lower/vector/reduce.py",
        "        for k in range(rest):",
        "        for k in range(rest - 1):",
    ),
    _cpu(
        "reduction-drops-the-odd-one",
        "lower/vector/reduce.py",
        "[self.fold(site, *pair) if len(pair) == 2 else pair[0] for pair in pairs]",
        "[self.fold(site, *pair) for pair in pairs if len(pair) == 2]",
    ),
    Mutant(
        "combiners-take-in-the-tail",
        "cpu",
        "lower/vector/reduce.py",
        'site.apply("select", [valid, combined, alone])',
        "combined",
        ("combiners=10", "small=0.9"),
    ),
    Mutant(
        "scans-by-combiners-leave-out-the-first",
        "cpu",
        "lower/vector/scan.py",
        "self.fold(site, before, values)",
        "(values if self.fold.start is None else self.fold(site, before, values))",
        ("combiners=10", "small=0.9"),
    ),
    _cpu(
        "reversed-scan-runs-forwards",
        "lower/vector/scan.py",
        'writer.scalars.binary("sub", last, at) if self.reverse else at',
        "at",
    ),
    _cpu(
        "box-before-the-tensor-counts-as-inside",
        "lower/vector/context.py",
        'both = scalars.binary("and", above, scalars.binary("le", end, box.bounds[axis]))',
        'both = scalars.binary("le", end, box.bounds[axis])',
    ),
    _cpu(
        "box-one-past-the-tensor-counts-as-inside",
        "lower/vector/context.py",
        "end = scalars.add(box.offsets[axis], box.sizes[axis])",
        "end = scalars.add(box.offsets[axis], box.sizes[axis] - 1)",
    ),
    _cpu(
        "ragged-block-counts-as-whole",
        "lower/boxes.py",
        "return length == 1 or (divides % length == 0 and divisor(op.offsets[axis]) % length == 0)",
        "return length == 1 or (divides > 0 and divisor(op.offsets[axis]) % length == 0)",
    ),
    _cpu(
        "mask-of-a-row's-end-one-too-long",
        "lower/vector/site.py",
        'return self.apply("lt", [lanes, self.writer.scalars.constant(tail, i32)])',
        'return self.apply("le", [lanes, self.writer.scalars.constant(tail, i32)])',
    ),
    _cpu(
        "row's-end-reaches-past-the-tensor",
        "lower/vector/site.py",
        'bounds[axis] = scalars.binary("minimum", bounds[axis], end) if axis in checked else end',
        "bounds[axis] = end",
    ),
    _cpu(
        "row's-end-of-one-left-out",
        "lower/vector/site.py",
        "        if rest:\n            self.tail = rest",
        "        if rest > 1:\n            self.tail = rest",
    ),
    _cpu(
        "mask-of-load-ignored",
        "lower/vector/nodes.py",
        "mask = None if self.mask is None else site.splat_like(site.evaluate(self.mask, coords), place.lanes)",
        "mask = None",
    ),
    _cpu(
        "fill-of-gather-forgotten",
        "lower/vector/memory.py",
        "strides_of(context, arg, len(op.indices)), scalar_of(context, op.fill), op.result.type",
        "strides_of(context, arg, len(op.indices)), None, op.result.type",
    ),
    _planned(
        "cpu",
        "certain-mask-looks-at-the-wrong-end",
        "lower/vector/certain.py",
        "lesser[1], greater[0])",
        "lesser[0], greater[0])",
    ),
    _planned(
        "cpu",
        "stored-only-where-a-mask-is-asked-for",
        "lower/vector/site.py",
        "for node, kept in tees.items() if node in computed}",
        "for node, kept in tees.items()}",
    ),
    _cpu(
        "last-rows-of-a-transpose-left-out",
        "lower/vector/transposed.py",
        "        if rest:\n            body(site.index(full * height), rest)",
        "        if rest > 1:\n            body(site.index(full * height), rest - 1)",
    ),
    Mutant(
        "shared-buffer-overwritten-under-its-reader",
        "cpu",
        "lower/vector/shared.py",
        "    if resource in reads(node):\n        context.rescue(node)\n",
        "",
        ("shared=0.8",),
    ),
    _cpu(
        "transpose-by-the-inverse-permutation",
        "lower/vector/shape.py",
        "take = tuple(op.permutation.index(axis) for axis in range(len(source.shape)))",
        "take = tuple(op.permutation)",
    ),
    _cpu(
        "index-tested-at-one-end-only",
        "lower/bounds.py",
        "        return low and high\n",
        "        return low or high\n",
    ),
    _cpu(
        "index-one-past-the-end-proven-inside",
        "lower/bounds.py",
        "fixed and interval.high < size\n",
        "fixed and interval.high <= size\n",
    ),
    _planned(
        "cpu",
        "loop-counter-proven-inside-any-tensor",
        "lower/facts.py",
        "return low is not None and low >= 0 and _extent_name(kernel, parent.ub) == size",
        "return low is not None and low >= 0",
    ),
)

_EMITTERS = (
    _cpu(
        "lanes-before-the-tensor-are-read",
        "backends/cpu/memory.py",
        'if predicate == "uge" and offset.isdigit():',
        'if predicate == "uge":',
    ),
    _cpu(
        "lanes-one-past-the-tensor",
        "backends/cpu/memory.py",
        '((room, "ult"), (',
        '((room, "ule"), (',
    ),
    _cpu(
        "fill-of-masked-load-forgotten",
        "backends/cpu/memory.py",
        'default = e.ops.splat(self.memory, fill) if fill is not None else "zeroinitializer"',
        'default = "zeroinitializer"',
    ),
    Mutant(
        "atomic-maximum-of-unsigned-is-signed",
        "cpu",
        "backends/cpu/atomics.py",
        'f"u{name}" if name in ("max", "min") and dtype.kind != "int" else _INTEGER[name]',
        "_INTEGER[name]",
        ("atomics=4",),
    ),
    _cpu(
        "atomics-ignore-their-mask",
        "backends/cpu/atomics.py",
        'single.and_mask(fn.assign(f"trunc i{width} {shifted} to i1"))',
        "pass",
    ),
    _cpu(
        "subtraction-of-integers-swapped",
        "backends/llvm/elementwise.py",
        "return ops.binary(_INT_BINARY[fn], type_, *args)",
        "return ops.binary(_INT_BINARY[fn], type_, *args[::-1])",
    ),
    _cpu(
        "comparison-of-unsigned-is-signed",
        "backends/llvm/elementwise.py",
        'prefix = "" if fn in ("eq", "ne") else "s" if signed else "u"',
        'prefix = "" if fn in ("eq", "ne") else "s"',
    ),
    _cpu(
        "right-shift-forgets-the-sign",
        "backends/llvm/elementwise.py",
        'return ops.binary("ashr", type_, a, amount)',
        'return ops.binary("lshr", type_, a, amount)',
    ),
    _cpu(
        "floor-division-adjusts-exact-quotients",
        "backends/llvm/elementwise.py",
        'adjust = ops.binary("and", type_.of("i1"), nonzero, opposite)',
        "adjust = opposite",
    ),
    _cpu(
        "halves-round-away-from-zero",
        "backends/llvm/elementwise.py",
        '"round": "roundeven"',
        '"round": "round"',
    ),
    _cpu(
        "widening-of-unsigned-takes-the-sign",
        "backends/llvm/casts.py",
        'return ops.convert("sext" if source.kind == "int" else "zext", src, value, dst)',
        'return ops.convert("sext", src, value, dst)',
    ),
    _cpu(
        "float-to-unsigned-by-way-of-signed",
        "backends/llvm/emitter.py",
        'name = "fptosi" if result.kind == "int" else "fptoui"',
        'name = "fptosi"',
    ),
    _cpu(
        "subnormals-of-narrow-floats",
        "backends/llvm/narrow.py",
        "ops.integer(i32, (128 - form.bias) << 23)",
        "ops.integer(i32, (127 - form.bias) << 23)",
    ),
)

_CANONICALIZE = (
    _canonicalize(
        "equal-but-for-their-function",
        "common_subexpressions",
        "if op.properties == other.properties and op.attributes == other.attributes:",
        "if op.attributes == other.attributes:",
    ),
    _canonicalize(
        "subtractions-count-as-commutative",
        "common_subexpressions",
        "if type(op) is ElementwiseOp and record_of(op.fn.data).commutative:",
        "if type(op) is ElementwiseOp:",
    ),
    _canonicalize(
        "transpose-becomes-reshape",
        "fuse_shapes",
        "        if moved == sorted(moved):",
        "        if len(moved) <= 2:",
    ),
    _canonicalize(
        "cast-by-way-of-a-narrower-type-is-one",
        "merge_casts",
        "    if not holds_all(middle, source) or (saturates and source.is_float):\n",
        "    if False:\n",
    ),
    _canonicalize(
        "loads-leave-loops-that-store",
        "loop_invariants",
        "return not op.regions and bool(op.results) and effect_of(op) <= Effect.RANDOM and not _may_trap(op)",
        "return not op.regions and bool(op.results) and not _may_trap(op)",
    ),
    _canonicalize(
        "subtraction-from-zero-is-nothing",
        "remove_noops",
        '"sub": _positive_zero',
        '"sub": _is(1)',
    ),
    _canonicalize(
        "loop-of-two-trips-becomes-its-body",
        "simplify_control_flow",
        "elif upper <= lower + step:",
        "elif upper <= lower + 2 * step:",
    ),
    _canonicalize(
        "place-of-a-carried-value",
        "simplify_control_flow",
        "if yielded is carried or yielded is initial:",
        "if yielded is not carried and yielded in op.body.block.args:",
    ),
)

_ORDER = (
    _races(
        "barrier-dropped",
        "if len(pending) >= MOST_PENDING or _meets(pending, [access]):",
        "if len(pending) >= MOST_PENDING:",
    ),
    _races("trips-of-a-loop-not-ordered", "elif TILE_LOOP not in op.attributes:", "elif False:"),
    _races(
        "any-two-threads-count-as-one",
        "return before.layout[0].same_up_to_registers(after.layout[0])",
        "return True",
    ),
    _races("boxes-of-one-size-count-as-one", "all(d.divisible(size) for d, size in", "any(True for d, size in"),
    _races(
        "writes-behind-reads-not-ordered",
        "if before.memory != after.memory or not (before.writes or after.writes):",
        "if before.memory != after.memory or not before.writes:",
    ),
    _races(
        "only-one-branch-is-left-behind",
        "            pending.update(taken)",
        "            pending.clear()\n            pending.update(taken)",
    ),
)

_SIMT = (
    Mutant(
        "lanes-of-a-pair-change-places",
        "threads",
        "lower/simt/reduce_by.py",
        "results = fold([pair.lower for pair in pairs], [pair.upper for pair in pairs])",
        "results = fold([pair.lower for pair in pairs], [pair.lower for pair in pairs])",
        ("combiners=10", "small=0.9"),
    ),
    Mutant(
        "combiners-take-in-padding",
        "threads",
        "lower/simt/reduce.py",
        'apply("select", behind, two, alone)',
        "both",
        ("combiners=10", "small=0.9"),
    ),
    Mutant(
        "scans-by-combiners-combine-backwards",
        "threads",
        "lower/simt/scan.py",
        "self.fold(first, self.before), first)",
        "self.fold(self.before, first), first)",
        ("combiners=10", "small=0.9"),
    ),
    Mutant(
        "elements-without-a-partner-take-padding",
        "threads",
        "lower/simt/exchange.py",
        "if not is_whole(size, bits):",
        "if False:",
        ("exchanges=10", "small=0.9"),
    ),
    Mutant(
        "partners-within-a-chunk-stay",
        "cpu",
        "lower/vector/exchange.py",
        "        if within:\n",
        "        if within and width == 1:\n",
        ("exchanges=10", "small=0.9"),
    ),
    _threads(
        "padding-of-a-reduction-not-filled",
        "lower/simt/reduce.py",
        "fragment = context.fill_outside(fragment, tile_shape(op.source), identity_of(op.fn.data, dtype))\n    result",
        "result",
    ),
    _threads(
        "scan-of-signed-maximum-starts-from-zero",
        "numerics/functions.py",
        'low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0',
        "low = 0",
    ),
    _threads(
        "reversed-scan-runs-forwards-on-gpus",
        "lower/simt/scan.py",
        '"eq" if self.reverse else "ne"',
        '"ne"',
    ),
    _threads(
        "indices-in-padding-are-used",
        "lower/simt/memory.py",
        "return mask if inside_tile is None else _both(context, mask, inside_tile)",
        "return mask",
    ),
    _threads(
        "padding-is-stored",
        "lower/boxes.py",
        'size = scalars.binary("minimum", size, end)',
        "pass",
    ),
    _ptx(
        "vectors-at-any-offset",
        "lower/boxes.py",
        "limit = gcd(limit, divisor(op.offsets[unit]))",
        "limit = max(limit, 1)",
    ),
    _threads(
        "reshape-forgets-padding",
        "lower/simt/shape.py",
        "constant(size)), step * padded",
        "constant(size)), step * size",
    ),
    _ptx(
        "last-dimension-not-tested",
        "backends/simt/memory.py",
        "        for axis in self.checked:\n            if apart",
        "        for axis in self.checked[:-1]:\n            if apart",
    ),
    _ptx(
        "fill-forgotten-on-gpus",
        "backends/simt/memory.py",
        "if predicate is not None and fill is not None:",
        "if False:",
    ),
    _planned(
        "ptx",
        "one-mask-for-a-vector",
        "backends/simt/memory.py",
        "    while vector > 1 and masks is not None:\n",
        "    while vector < 0:\n",
    ),
    _ptx(
        "copies-take-part-in-atomics",
        "backends/nvidia/atomics.py",
        "predicate = emitter.both(owner, masks[register] if masks is not None else None)",
        "predicate = masks[register] if masks is not None else None",
    ),
    _ptx(
        "words-that-hold-no-element-are-loaded",
        "backends/nvidia/realign.py",
        'limit = ops.select(I32, wanted, reach, "0")',
        "limit = reach",
    ),
    Mutant(
        "rows-of-swizzled-buffers-keep-their-order",
        "ptx",
        "lower/simt/shared.py",
        'swizzle = "none" if accesses.by_rows and type_.swizzle.data == "xor" else type_.swizzle.data',
        "swizzle = type_.swizzle.data",
        ("shared=0.9",),
    ),
    Mutant(
        "buffers-of-any-rank-are-read-as-matrices",
        "ptx",
        "lower/simt/shared.py",
        'matrix = context.target.has("ldmatrix") and len(type_.shape) == 2',
        'matrix = context.target.has("ldmatrix")',
        ("shared=0.9",),
    ),
    Mutant(
        "whole-buffers-are-padded-in-two-axes-only",
        "ptx",
        "lower/simt/shared.py",
        "padded(size) if accesses.whole or axis >= rank - 2 else size",
        "padded(size) if axis >= rank - 2 else size",
        ("shared=0.9",),
    ),
    Mutant(
        "extents-of-narrow-integers-do-not-wrap",
        "cpu",
        "ir/tile/extents.py",
        'if dtype.kind == "bool" or (dtype.kind == "int" and dtype.bits == _WIDEST):',
        "if True:",
        ("narrow_extents=0.5",),
    ),
    Mutant(
        "assumed-divisors-are-doubled",
        "ptx",
        "frontend/ops/assume.py",
        'yield "multiple", leaf, divisor',
        'yield "multiple", leaf, 2 * divisor',
        ("assumes=0.9",),
    ),
    Mutant(
        "parts-of-buffers-end-in-zeros",
        "ptx",
        "lower/simt/mma.py",
        "by_parts = any(isinstance(user, SharedScatterOp) for user, _ in uses)",
        "by_parts = False",
        ("shared=0.9", "buffer_products=0.4"),
    ),
    Mutant(
        "operands-that-threads-copy-are-read-against-k",
        "ptx",
        "schedule/hopper/warp_specialize.py",
        "if isinstance(op, LoadOp) and qualifies(op) and op not in loads and op not in fetched:",
        "if False:",
        ("plans=0.9", "chains=0", "rows=0", "moved=1"),
    ),
    Mutant(
        "nothing-orders-reads-and-the-copies-behind-them",
        "ptx",
        "lower/simt/roles.py",
        "if _frees_for_copies(op):",
        "if False:",
        ("plans=0.9", "chains=0", "rows=0"),
    ),
    Mutant(
        "threads-copy-rows-that-no-instruction-reads",
        "ptx",
        "schedule/hopper/boxes.py",
        "reason = why_no_rows(name, op.size_list[along] * dtype.bytes)",
        "reason = None",
        ("plans=1", "chains=0", "rows=0", "moved=1", "narrow=8"),
        "sm_90a",
    ),
    Mutant(
        "parts-of-clusters-begin-anywhere",
        "ptx",
        "target/boxes.py",
        "equal = outermost > 0 and box[outermost] % programs == 0 and part_bytes % BOX_ALIGN_BYTES == 0",
        "equal = outermost > 0 and box[outermost] % programs == 0",
        ("plans=1", "chains=0", "rows=0", "narrow=8"),
        "sm_90a",
    ),
    Mutant(
        "what-stands-beside-a-tensor-is-copied",
        "ptx",
        "backends/nvidia/realign.py",
        "known = self.box.axes[self.axis] not in self.box.checked",
        "known = True",
        ("shared=1", "plans=0"),
    ),
)

_SCHEDULE = (
    _copies(
        "copy-not-waited-for",
        "start.add(WaitGroupOp(stages - 2))",
        "start.add(WaitGroupOp(stages))",
    ),
    _copies(
        "stage-off-by-one",
        'wraps = insert.binary("eq", following, insert.constant(stages))',
        'wraps = insert.binary("eq", following, insert.constant(stages - 1))',
    ),
    _copies(
        "copies-run-ahead-too-far",
        'ahead = before.binary("mul", loop.step, before.constant(stages - 1))',
        'ahead = before.binary("mul", loop.step, before.constant(stages))',
        "plans=1",
    ),
)

_ROLES = (
    _hopper(
        "passes",
        "parity-of-a-ring-never-flips",
        "schedule/hopper/warp_specialize.py",
        'flipped = insert.binary("sub", one, parity)',
        "flipped = parity",
    ),
    _hopper(
        "passes",
        "stage-handed-back-before-it-is-read",
        "schedule/hopper/warp_specialize.py",
        "Inserter(InsertPoint.after(last), last).add(BarrierArriveOp(ring.empty, slot))",
        "Inserter(InsertPoint.before(first), first).add(BarrierArriveOp(ring.empty, slot))",
    ),
    _hopper(
        "passes",
        "producer-does-not-wait-for-a-stage",
        "schedule/hopper/warp_specialize.py",
        'insert.add(BarrierWaitOp(ring.empty, at, insert.binary("sub", insert.constant(1), phase)))',
        "pass",
    ),
    _hopper(
        "ptx",
        "all-of-a-cluster-fetch-one-box",
        "schedule/hopper/warp_specialize.py",
        "if any(depends_on_rank(offset) for offset in load.offsets):",
        "if False:",
    ),
    _hopper(
        "passes",
        "tiles-of-a-cluster-too-far-apart",
        "schedule/hopper/pair_tiles.py",
        'insert.binary("mul", rank, insert.constant(rows))',
        'insert.binary("mul", rank, insert.constant(rows * programs))',
    ),
    _hopper(
        "passes",
        "split-loop-loses-its-last-steps",
        "schedule/hopper/split_k.py",
        "ceildiv(insert, steps, insert.constant(ranks), one)",
        'insert.binary("floordiv", steps, insert.constant(ranks))',
    ),
    _hopper(
        "passes",
        "every-part-of-a-split-loop-starts-from-the-sum",
        "schedule/hopper/split_k.py",
        "if not is_zero(initial):",
        "if False:",
    ),
    _hopper(
        "passes",
        "part-of-a-split-loop-goes-past-the-end",
        "schedule/hopper/split_k.py",
        'insert.binary("minimum", loop.ub, insert.binary("add", start, part))',
        'insert.binary("add", start, part)',
        "split_k=4",
    ),
    _hopper(
        "passes",
        "shared-steps-forget-where-the-loop-starts",
        "schedule/hopper/stream_k.py",
        'insert.binary("add", loop.lb, insert.binary("mul", step, loop.step))',
        'insert.binary("mul", step, loop.step)',
    ),
    _planned(
        "passes",
        "sum-is-stored-in-no-iteration",
        "schedule/cpu/sink_stores.py",
        'insert.binary("ge", insert.binary("add", counter, loop.step), loop.ub)',
        'insert.binary("gt", insert.binary("add", counter, loop.step), loop.ub)',
    ),
    _planned(
        "passes",
        "sum-of-nothing-is-not-stored",
        "schedule/cpu/sink_stores.py",
        'before.binary("maximum", loop.ub, before.constant(int(first) + 1))',
        "loop.ub",
        "empty=0.3",
    ),
    _hopper(
        "passes",
        "parts-of-a-bulk-store-in-one-place",
        "schedule/hopper/stores.py",
        'offsets[moving] = insert.binary("add", offsets[moving], insert.constant(part * width))',
        "pass",
    ),
    _hopper(
        "passes",
        "products-retired-one-too-late",
        "schedule/hopper/late_waits.py",
        "insert.add(MmaRetireOp(len(products)))",
        "insert.add(MmaRetireOp(len(products) + 1))",
    ),
    _hopper(
        "passes",
        "mask-skipped-by-its-smallest-position",
        "schedule/hopper/skip_masks.py",
        "_end(insert, below, below.high + gap)",
        "_end(insert, below, below.low + gap)",
    ),
    _planned(
        "cpu",
        "packing-leaves-out-a-ragged-end",
        "lower/vector/packing.py",
        'scalars.binary("mod", valid, step)',
        "scalars.constant(0)",
    ),
    _planned(
        "cpu",
        "more-is-multiplied-than-a-block-holds",
        "lower/vector/packing.py",
        'scalars.binary("minimum", room, box.sizes[axis])',
        "room",
    ),
    _planned(
        "amx",
        "rows-of-a-strip-past-the-block",
        "lower/vector/strips.py",
        'rows = scalars.binary("maximum", scalars.binary("minimum", left, rows), 0)',
        "rows = left",
    ),
    _planned(
        "amx",
        "rows-of-groups-too-short-for-a-matrix-unit",
        "lower/vector/packing.py",
        "step = form.group * (context.lanes if form.tiled else 1)",
        "step = form.group",
    ),
    _ptx(
        "every-part-of-a-tile-starts-from-the-sum",
        "schedule/gpu/split_sums.py",
        "if not changes_nothing(fn, initial):",
        "if False:",
    ),
    _ptx(
        "parts-of-a-tile-forget-where-the-loop-starts",
        "schedule/gpu/split_sums.py",
        'insert.binary("add", loop.lb, insert.binary("mul", step, loop.step))',
        'insert.binary("mul", step, loop.step)',
    ),
    _hopper(
        "ptx",
        "sums-copied-while-their-product-runs",
        "backends/nvidia/__init__.py",
        "if used_in_flight(ptx):",
        "if False:",
    ),
    _hopper(
        "ptx",
        "programs-past-the-end-of-a-grid-store",
        "schedule/hopper/pair_tiles.py",
        "if not all(_ends_with_grid(kernel, grid, op) for op in ops_in(grid) if isinstance(op, StoreOp)):",
        "if False:",
        "cluster=4",
    ),
    _ptx(
        "wide-shifts-look-at-half-of-their-count",
        "backends/llvm/elementwise.py",
        "    if bits == 64:\n        shifted",
        "    if False:\n        shifted",
    ),
    _hopper(
        "ptx",
        "sums-of-others-count-twice",
        "backends/nvidia/stream.py",
        "dtype, 1, [units[at], other])",
        "dtype, 1, [other, other])",
    ),
    _hopper(
        "ptx",
        "strides-of-any-length-are-copied-in-bulk",
        "schedule/hopper/tensor_maps.py",
        "info.stride_divisor(axis) * dtype.bytes % ALIGN_BYTES:",
        "info.stride_divisor(axis) * dtype.bytes % 2:",
    ),
    _hopper(
        "ptx",
        "rows-of-any-length-are-stored-in-bulk",
        "schedule/hopper/stores.py",
        "if info.dim_div[contiguous] * dtype.bytes % ALIGN_BYTES:",
        "if False:",
    ),
    _hopper(
        "ptx",
        "tiles-before-a-tensor-are-stored-in-bulk",
        "schedule/hopper/stores.py",
        "if op.mask is None and not all(map(nonnegative, op.offsets)):",
        "if False:",
    ),
    _hopper(
        "ptx",
        "parts-of-a-shared-copy-overlap",
        "backends/nvidia/roles.py",
        'coordinates[axis] = emitter.ops.binary("add", I32, coordinates[axis], moved)',
        'coordinates[axis] = emitter.ops.binary("add", I32, coordinates[axis], "0")',
    ),
)

_PARTS = tuple(
    Mutant(*fault, ("parts=8",))
    for fault in (
        (
            "what-wraps-around-is-what-lies-behind-the-tile",
            "cpu",
            "lower/vector/parts.py",
            "return _Along(known, twice=known + count > size, after=context.lanes)",
            "return _Along(known, twice=False, after=context.lanes)",
        ),
        (
            "rows-of-parts-run-into-the-next",
            "cpu",
            "lower/vector/parts.py",
            'value = site.apply("select", [valid, value, zero])',
            "value = value",
        ),
        (
            "narrowed-loads-start-where-the-tile-does",
            "cpu",
            "canonicalize/narrow_parts.py",
            "offsets[axis] = moved.result",
            "offsets[axis] = load.offsets[axis]",
        ),
        (
            "what-leaves-a-rolled-tile-stays-at-its-end",
            "threads",
            "lower/simt/parts.py",
            "        if self._wraps(axis):\n            place",
            "        if False:\n            place",
        ),
    )
)

_FLOW = tuple(
    Mutant(name, "cpu", f"frontend/{file}.py", old, new, ("jumps=1", "small=0.8"))
    for name, file, old, new in (
        ("ranges-go-on-after-a-break", "loops", 'more, apply(b, "not", stopped)', "more, more"),
        (
            "unrolled-loops-go-on-after-a-break",
            "loops",
            "branch(b, stopped, (lambda: None, iteration), names)",
            "iteration()",
        ),
        ("what-follows-a-branch-that-jumps-is-lost", "flow", "else [*node.orelse, *rest]", "else node.orelse"),
        (
            "what-follows-a-branch-that-may-jump-always-runs",
            "flow",
            "Guard(flag, [], self",
            "Guard(ast.Constant(False), [], self",
        ),
        (
            "the-else-of-a-loop-runs-after-a-break",
            "flow",
            "if stop is None or not loop.orelse",
            "if stop or not loop.orelse",
        ),
    )
)


def _set(device: str, target: str, *switches: str) -> Callable[..., Mutant]:
    """Return what makes faults that programs with some knobs show, on one target."""
    return lambda name, file, old, new, *more: Mutant(name, device, file, old, new, (*switches, *more), target)


_in_chunks = _set("passes", "sm_80", "chunk=16", "plans=0.6", "rows=20", "products=0")
_in_batches = _set("passes", "sm_80", "batch=4", "products=0", "shared=0", "small=0.9", "plans=0")
_turning = _set("ptx", "sm_90a", "plans=1", "chains=50", "ping_pong=1", "pipeline=1")

_LONG = (
    _in_chunks(
        "chunks-end-before-the-last-one",
        "ir/chunking.py",
        "(first * self.length, self.count * self.length, self.length)",
        "(first * self.length, (self.count - 1) * self.length, self.length)",
    ),
    _in_chunks(
        "what-is-left-of-a-row-is-not-reduced",
        "ir/chunking.py",
        "results = self.combine(op, results, rest)",
        "pass",
        "plans=1",
    ),
    _in_chunks(
        "aligned-chunks-reduce-what-lies-outside",
        "ir/chunking.py",
        'inside = self.value(ElementwiseOp("and", tests))',
        'inside = self.value(ElementwiseOp("or", tests))',
    ),
    _in_chunks(
        "last-aligned-chunks-are-reduced-twice",
        "ir/chunking.py",
        "state = self._chunk(self.point, None, first, state, left)",
        "state = self._chunk(self.point, None, first, state)",
    ),
    _in_chunks(
        "aligned-chunks-in-place-are-computed-twice",
        "schedule/gpu/chunk_tiles.py",
        "again=not is_in_place(passes)",
        "again=True",
    ),
    _in_chunks(
        "aligned-chunks-reach-into-the-parts-of-other-programs",
        "schedule/gpu/chunk_tiles.py",
        "if not all(is_whole(op, passes) for op in passes.ops if isinstance(op, ACCESSES)):",
        "if False:",
    ),
    _in_chunks(
        "scans-start-anew-in-each-chunk",
        "ir/chunking.py",
        "        if before is not None:\n            spread",
        "        if False:\n            spread",
    ),
    _in_chunks(
        "backward-scans-go-on-from-the-wrong-end",
        "ir/chunking.py",
        "0 if backwards else self.size - 1",
        "self.size - 1",
    ),
    _in_chunks(
        "every-chunk-counts-from-zero",
        "ir/chunking.py",
        'return [chunk.value(ElementwiseOp("add", [places, chunk.value(SplatOp(first, [chunk.size]))]))]',
        "return [places]",
    ),
    _in_batches(
        "a-batch-stores-where-the-grid-has-ended",
        "ir/batching.py",
        "    return names_size_of(batch.kernel, batch.grid.extents[batch.axis], op.tensor, axis)",
        "    return True",
    ),
    _in_batches(
        "programs-of-a-batch-are-one-element-apart",
        "ir/batching.py",
        "        if self.step != 1:\n            step =",
        "        if False:\n            step =",
    ),
    _hopper(
        "passes",
        "terms-behind-the-end-of-a-loop-count",
        "schedule/hopper/deepen_steps.py",
        "if any(kernel.info_of(op.tensor).dims[axis] != size for op, axis in loads.items()):",
        "if False:",
        "terms=128",
    ),
    _hopper(
        "passes",
        "loads-ahead-take-the-step-at-hand",
        "schedule/hopper/prologue.py",
        'following = start.binary("add", block.args[0], loop.step)',
        "following = block.args[0]",
    ),
    _turning(
        "warps-meet-within-a-turn",
        "lower/simt/turns.py",
        "_TOGETHER = (BarrierOp, ClusterBarrierOp, ClusterWaitOp, ExchangeWarpsOp)",
        "_TOGETHER = (ClusterBarrierOp,)",
    ),
    _hopper(
        "ptx",
        "the-last-tile-of-a-share-is-forgotten",
        "lower/simt/stream.py",
        'n("sub", n("add", ends, partly), 1),',
        'n("sub", ends, 1),',
        "stream_k=1",
    ),
    _hopper(
        "ptx",
        "steps-left-over-are-done-by-nobody",
        "lower/simt/stream.py",
        'n("add", n("mul", at, each), n("minimum", at, extra))',
        'n("mul", at, each)',
        "stream_k=1",
    ),
)

MUTANTS = (*_FLOW, *_VECTOR, *_EMITTERS, *_CANONICALIZE, *_ORDER, *_SIMT, *_SCHEDULE, *_ROLES, *_PARTS, *_LONG)
