"""What a product does once for each kind of call: checks, the problem, the chain of its epilogue, its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import tessera as ts
from tessera.data import dataclass
from tessera.driver.kernel import Kernel
from tessera.driver.variants import destination_of
from tessera.errors import CallError, caller_location
from tessera.frontend.structure import Layout
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile
from tessera.ops import arrays
from tessera.ops import epilogue as epi
from tessera.ops.epilogue.chain import Axis, bad_argument, is_number
from tessera.ops.linalg import halves, halves_kernels, kernels
from tessera.ops.linalg.plan import Plan, plan, unshared
from tessera.ops.linalg.problem import Major, Options, Problem, accumulator, check_pair, check_sizes, default_out
from tessera.ops.linalg.scratch import Copies, Scratch
from tessera.ops.templates import annotated
from tessera.runtime.arguments import check_overlap, elements
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.schedule.products import ALIGN_BYTES, LINE_BYTES

EMPTY = epi.chain([])


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a product.

    Args:
        a: left operand.
        b: right operand.
        c: addend, or None.
        out: where the result goes, or None.
        alpha: factor of the product.
        beta: factor of the addend.
        bias: vector added to each row, or None.
        scale_a: scales of the left operand, or None.
        scale_b: scales of the right operand, or None.
        epilogue: the caller's chain, or None.
    """

    a: Any
    b: Any
    c: Any = None
    out: Any = None
    alpha: float = 1.0
    beta: float = 0.0
    bias: Any = None
    scale_a: Any = None
    scale_b: Any = None
    epilogue: epi.Epilogue | None = None


Collect = Callable[[Any, Any, float, float, Any, Any, Any, "epi.Epilogue | None"], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """A product with everything done that does not change between calls of one kind.

    Args:
        kernel: runs it; None when the result has no elements.
        make: makes the result beside `a`.
        extra: gives the arguments after the operands from the result, c, alpha, beta, bias, scales and epilogue;
            None when there is only the result.
        problem: the product.
        plan: its schedule.
        repeats: whether the left and the right operand are one matrix that a stride of 0 repeats.
        copies: makes what the product takes in place of its operands, None where it takes them as they are.
    """

    kernel: Kernel[..., Any] | None
    make: arrays.Maker
    extra: Collect | None
    problem: Problem
    plan: Plan
    repeats: tuple[bool, bool] = (False, False)
    copies: Scratch | None = None


def in_operand(out: Any, *operands: Any) -> bool:
    """Return whether a result starts where an operand does: programs would overwrite what others read."""
    start = arrays.start(out, "out")
    return any(arrays.start(operand, "operand") == start for operand in operands)


def check_own_memory(out: Any, *operands: Any) -> None:
    """Check that a result is not stored to an operand.

    Raises:
        CallError: `bad-argument`.
    """
    if out is not None and 0 not in arrays.view(out, "out").shape and in_operand(out, *operands):
        raise CallError(
            "out is an operand of the product", code="bad-argument", help="give the result memory of its own"
        )


def check_read_beside(out: Any, *, epilogue: epi.Epilogue | None, **others: Any) -> None:
    """Check that what is read beside a result and starts where it does is the result itself: programs read their own.

    Args:
        out: the result.
        epilogue: its tensors are read.
        others: so are these, which may be None or numbers.

    Raises:
        CallError: `bad-argument`.
    """
    for name, other in others.items():
        _check_same_view(out, other, name)
    for other in () if epilogue is None else epilogue.values:
        _check_same_view(out, other, "a tensor of the epilogue")


def check_apart(out: Any, **others: Any) -> None:
    """Check that a result has no element in common with other arrays.

    Args:
        out: the result.
        others: the arrays by name.

    Raises:
        CallError: `overlapping-arguments`.
    """
    for name, other in others.items():
        both = [elements(arrays.start(each, name), arrays.view(each, name)) for each in (out, other)]
        check_overlap(("out", name), both, (True, False))


def check_beside(out: Any, epilogue: epi.Epilogue) -> None:
    """Check that a result has no element in common with what the reductions of an epilogue are written to."""
    for step in epilogue.steps:
        if step.reduces:
            check_apart(out, **{step.layout.label: step.values[0]})


def _check_same_view(out: Any, other: Any, name: str) -> None:
    if other is None or other is out or is_number(other) or not in_operand(out, other):
        return
    result, read = arrays.view(out, "out"), arrays.view(other, name)
    if (read.shape, read.strides, read.dtype) != (result.shape, result.strides, result.dtype):
        raise bad_argument(
            f"out is another view of {name}", f"pass {name} itself, or give the result memory of its own"
        )


def prepare(given: Operands, options: Options, batched: bool) -> Call:
    """Check a call of a new kind, plan it and make its kernel.

    Raises:
        CallError: `wrong-rank`, `wrong-shape`, `unsupported-dtypes`, `bad-argument`, or an argument's own fault.
    """
    options.check()
    left, right = arrays.view(given.a, "a"), arrays.view(given.b, "b")
    _check_rank(left, "a", batched)
    _check_rank(right, "b", batched)
    kinds = _scale_kinds(given, left, right, options)
    chain = _chain(given, left.dtype, kinds)
    if options.triangular_only is not None:
        refuse_reductions(chain, "a triangle")
    result = None if given.out is None else arrays.view(given.out, "out")
    check_own_memory(given.out, given.a, given.b)
    if given.out is not None:
        check_read_beside(given.out, epilogue=None, c=given.c)
    problem = _problem(left, right, options, chain, None if result is None else result.dtype, batched)
    problem = _placed(problem, given)
    if "row" in kinds or "block" in kinds or "col" in kinds:
        problem = _with_block_scales(problem, kinds)
    beside = given.out is not None and any(not is_number(value) for value in chain.values)
    problem = replace(problem, rereads=beside)
    schedule = plan(problem, destination_of(left.device).record(), options.forced)
    schedule = _noted(schedule, options)
    shape = (problem.m, problem.n) if problem.batch is None else (problem.batch, problem.m, problem.n)
    make = arrays.maker(given.a, shape, problem.out)
    if options.triangular_only is not None:
        make = _zeroed(make)
    if 0 in shape:
        _check_empty(result, shape)
        return Call(None, make, None, problem, schedule)
    kernel = kernel_for(problem, schedule, chain)
    repeats = (_repeats(left), _repeats(right))
    copies = _scratch(problem, schedule, chain, left.device)
    return Call(kernel, make, _collector(given, kinds, chain), problem, schedule, repeats, copies)


def _scratch(problem: Problem, schedule: Plan, chain: epi.Epilogue, device: Device) -> Scratch | None:
    """Return what makes the operands that a plan wants, None where it takes them as they are."""
    if not schedule.halves:
        packs = schedule.pack_a or schedule.pack_b
        return Copies.of(problem, schedule, device, None if packs else _in_one_launch(problem, schedule, chain, device))
    problem = replace(problem, mma_kind="fma")
    exact = unshared(problem, destination_of(device).record())
    alone = kernel_for(problem, exact, chain)
    return halves.Halves(problem, again_kernel(problem, exact, chain), alone, device)


def _in_one_launch(problem: Problem, schedule: Plan, chain: epi.Epilogue, device: Device) -> Kernel[..., Any] | None:
    """Return the kernel that takes no memory for partial sums, None where the plan's own takes none."""
    if schedule.parts == 1:
        return None
    return kernel_for(problem, unshared(problem, destination_of(device).record()), chain)


def _repeats(view: ArrayView) -> bool:
    """Return whether a batch is one matrix, which the copy engine cannot repeat and need not fetch again."""
    return len(view.shape) == 3 and view.strides[0] == 0


def _check_empty(result: ArrayView | None, shape: tuple[int, ...]) -> None:
    if result is not None and result.shape != shape:
        raise CallError(
            f"argument 'out' has the shape {result.shape}, the result is {shape}",
            code="wrong-shape",
            help="make out of that shape, or leave it out",
        )


def layout_of(epilogue: epi.Epilogue | None) -> Layout | None:
    """Return what of an epilogue is compiled in.

    Raises:
        CallError: `not-a-structure` for anything but a chain.
    """
    if epilogue is None:
        return None
    if not isinstance(epilogue, epi.Epilogue):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CallError(
            f"argument 'epilogue' is {epilogue!r:.60}, not a chain",
            code="not-a-structure",
            location=caller_location(),
            help=epi.Epilogue.HELP,
        )
    return epilogue.layout


def refuse_reductions(chain: epi.Epilogue, what: str) -> None:
    """Refuse steps that combine rows or columns where tiles are stored in part.

    Raises:
        CallError: `bad-argument`.
    """
    if chain.needs_sizes:
        raise CallError(
            f"{chain} combines rows or columns, which does not go with {what}",
            code="bad-argument",
            help="reduce the result in a kernel of its own",
        )


def _zeroed(make: arrays.Maker) -> arrays.Maker:
    def made(like: Any) -> Any:
        array = make(like)
        arrays.zero(array)
        return array

    return made


def _noted(schedule: Plan, options: Options) -> Plan:
    if options.cta_pairs is None:
        return schedule
    note = f"cta_pairs={options.cta_pairs}: no pairs of programs before Blackwell's tcgen05"
    return replace(schedule, notes=(*schedule.notes, note))


# Kernels. One for each combination of dtypes, layouts, schedule and layout of the epilogue.

_kernels: dict[Any, Kernel[..., Any]] = {}


def kernel_for(problem: Problem, schedule: Plan, chain: epi.Epilogue) -> Kernel[..., Any]:
    """Return the kernel of a product with a schedule and an epilogue's layout.

    Args:
        problem: dtypes and layouts; sizes do not matter.
        schedule: blocks and knobs.
        chain: what is done to results.
    """
    if schedule.halves:
        batches = problem.batch is None, problem.a_batched, problem.b_batched
        key = "halves", problem.out, batches, tuple(schedule.space().items()), chain.layout
        return _remembered(key, lambda: halves.product_kernel(problem, schedule, chain))
    given = _annotations(problem)
    if schedule.parts > 1:
        sums = {"parts": ts.Tensor[kernels.PARTS, kernels.M, kernels.PADDED, problem.acc]}
        annotations = {name: given[name] for name in ("a", "b")} | sums | given
        return _kernel_of(problem, schedule, chain, kernels.gemm_in_parts, annotations)
    return _kernel_of(problem, schedule, chain, _template(problem, schedule), given)


def again_kernel(problem: Problem, schedule: Plan, chain: epi.Epilogue) -> Kernel[..., Any]:
    """Return the kernel that computes a product once more where one of the flags is set that it takes."""
    template = halves_kernels.gemm_again if problem.batch is None else halves_kernels.gemm_again_batched
    given = _annotations(problem)
    annotations = {name: given[name] for name in ("a", "b")} | {"odd": ts.Tensor[kernels.FLAGS, ts.i32]}
    return _kernel_of(problem, schedule, chain, template, annotations | given)


def _kernel_of(
    problem: Problem, schedule: Plan, chain: epi.Epilogue, template: Any, annotations: dict[str, Any]
) -> Kernel[..., Any]:
    space: dict[str, tuple[Any, ...]] = {
        **schedule.space(),
        "trans_a": (problem.trans_a,),
        "trans_b": (problem.trans_b,),
        "a_batched": (problem.a_batched,),
        "b_batched": (problem.b_batched,),
        "acc": (problem.acc,),
        "compute": (ts.tf32 if problem.compute == ts.tf32 else None,),
        "promote": (problem.promote,),
        "triangular": (problem.triangular,),
    }
    if problem.mma_kind is not None:
        space["mma_kind"] = (problem.mma_kind,)
    if problem.scaled:
        space |= {"scale_a": (problem.scale_a,), "scale_b": (problem.scale_b,)}
    key = template, tuple(space.items()), problem.a, problem.b, problem.out, chain.layout

    def make() -> Kernel[..., Any]:
        function = annotated(template, annotations)
        made = Kernel[..., Any](function, tuple(space.items()), ("M", "N", "K"), {"epilogue": chain.layout})
        made.may_copy = False  # a plan says what is copied
        made.apart = (("out", "a"), ("out", "b"))
        return made

    return _remembered(key, make)


def _remembered(key: Any, make: Callable[[], Kernel[..., Any]]) -> Kernel[..., Any]:
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = make()
    return found


def _template(problem: Problem, schedule: Plan) -> Any:
    if problem.scaled:
        return kernels.gemm_scaled
    if schedule.turned:
        return kernels.gemm_turned
    return kernels.gemm if problem.batch is None else kernels.gemm_batched


def _annotations(problem: Problem) -> dict[str, Any]:
    m, n, k, batch = kernels.M, kernels.N, kernels.K, kernels.B
    left = (k, m) if problem.trans_a else (m, k)
    right = (n, k) if problem.trans_b else (k, n)
    out = (m, n) if problem.batch is None else (batch, m, n)
    scales: dict[str, Any] = {}
    if problem.scaled:
        rows = {"row": (m, "KA"), "block": ("MA", "KA")}.get(problem.scale_a, (1, 1))
        cols = {"col": ("KB", n), "block": ("KB", "NB")}.get(problem.scale_b, (1, 1))
        scales = {"scale_a": ts.Tensor[(*rows, ts.f32)], "scale_b": ts.Tensor[(*cols, ts.f32)]}
    return {
        "a": ts.Tensor[(*((batch, *left) if problem.a_batched else left), problem.a)],
        "b": ts.Tensor[(*((batch, *right) if problem.b_batched else right), problem.b)],
        **scales,
        "out": ts.Tensor[(*out, problem.out)],
        "epilogue": epi.Epilogue[out],
    }


# The problem.


def major(view: ArrayView, k_axis: int) -> Major:
    """Return which of a matrix's two last dimensions is contiguous.

    Args:
        view: the matrix, with or without a batch.
        k_axis: which of the two (0 or 1) is summed over.
    """
    steps, sizes = view.strides[-2:], view.shape[-2:]
    if steps[k_axis] == 1 or sizes[k_axis] == 1:
        return "k"
    return "other" if steps[1 - k_axis] == 1 or sizes[1 - k_axis] == 1 else "strided"


def _is_aligned(view: ArrayView, bytes_: int = ALIGN_BYTES) -> bool:
    """Return whether bulk copies can step through an array; nothing of it repeats but, maybe, a whole matrix.

    Args:
        view: the array.
        bytes_: what divides its steps.
    """
    steps = view.strides[1:] if _repeats(view) else view.strides
    return all(step == 1 or (step > 0 and step * view.dtype.bytes % bytes_ == 0) for step in steps)


def _placed(problem: Problem, given: Operands) -> Problem:
    """Return a problem that knows where its operands and its result begin."""
    a, b = (arrays.start(array, name) % ALIGN_BYTES == 0 for array, name in ((given.a, "a"), (given.b, "b")))
    out = problem.out_aligned
    if given.out is not None:
        out = arrays.start(given.out, "out") % ALIGN_BYTES == 0 and _is_aligned(arrays.view(given.out, "out"))
    return replace(
        problem,
        a_aligned=problem.a_aligned and a,
        b_aligned=problem.b_aligned and b,
        out_aligned=out,
        same=given.a is given.b,
    )


def _check_rank(view: ArrayView, name: str, batched: bool) -> None:
    if len(view.shape) not in ((2, 3) if batched else (2,)):
        what = "(B, M, K) or a matrix" if batched else "a matrix"
        raise CallError(
            f"argument {name!r} has the shape {view.shape}, which is not {what}",
            code="wrong-rank",
            help="op.linalg.matmul takes vectors and any batch",
        )


def _problem(
    left: ArrayView,
    right: ArrayView,
    options: Options,
    chain: epi.Epilogue,
    result: DType | None,
    batched: bool,
) -> Problem:
    (m, k), (inner, n) = left.shape[-2:], right.shape[-2:]
    if options.trans_a:
        m, k = k, m
    if options.trans_b:
        inner, n = n, inner
    if k != inner:
        raise CallError(
            f"a is ({m}, {k}) and b is ({inner}, {n}): {k} != {inner}",
            code="wrong-shape",
            help="a (M, K) and b (K, N); trans_a and trans_b use an operand's transpose",
        )
    made = sized(m, n, k, left.dtype, right.dtype, options, chain, result)
    return replace(
        made,
        batch=_batch(left, right) if batched else None,
        a_batched=len(left.shape) == 3 and not _repeats(left),
        b_batched=len(right.shape) == 3 and not _repeats(right),
        a_major=major(left, 0 if options.trans_a else 1),
        b_major=major(right, 1 if options.trans_b else 0),
        a_aligned=_is_aligned(left),
        a_lines=_is_aligned(left, LINE_BYTES),
        b_lines=_is_aligned(right, LINE_BYTES),
        b_aligned=_is_aligned(right),
    )


def _batch(left: ArrayView, right: ArrayView) -> int:
    sizes = [view.shape[0] for view in (left, right) if len(view.shape) == 3]
    if not sizes:
        raise CallError("neither a nor b has a batch", code="wrong-rank", help="use op.linalg.gemm")
    if sizes[0] != sizes[-1]:
        raise CallError(
            f"a has a batch of {sizes[0]}, b one of {sizes[1]}",
            code="wrong-shape",
            help="op.linalg.matmul repeats a batch of 1",
        )
    return sizes[0]


def sized(
    m: int,
    n: int,
    k: int,
    a: DType,
    b: DType,
    options: Options,
    chain: epi.Epilogue = EMPTY,
    result: DType | None = None,
) -> Problem:
    """Return the problem of contiguous operands.

    Raises:
        CallError: `bad-argument`, `unsupported-dtypes`.
    """
    m, n, k = check_sizes(m=m, n=n, k=k)
    check_pair(a, b)
    compute = options.compute or a
    if compute != a and not (compute == ts.tf32 and a == ts.f32):
        raise CallError(
            f"{a} operands cannot be computed in {compute}",
            code="unsupported-dtypes",
            help="compute=ts.tf32 is for f32 operands",
        )
    default = ts.f32 if a.is_int and chain.steps else default_out(a)
    out = result or options.out_dtype or chain.out_dtype or default
    rounded = chain.out_dtype or default
    if result is not None and a.is_float and rounded.is_float and not result.is_float:
        raise CallError(
            f"argument 'out' is {result}, the result {rounded}",
            code="unsupported-dtypes",
            location=caller_location(),
            help=f"say how it is rounded: end the epilogue with cast(ts.{out}), or give a float array",
        )
    return Problem(
        m,
        n,
        k,
        a,
        b,
        out,
        accumulator(a, options.acc_dtype),
        compute,
        trans_a=options.trans_a,
        trans_b=options.trans_b,
        promote=options.promote,
        triangular=options.triangular_only or "",
        mma_kind=options.mma_kind,
        weight=chain.weight,
        work=chain.flops(1),
        reduces=chain.reduces_columns,
        in_order=current_profile() == "strict",
    ).with_majors()


# Scales of the operands. A number, a vector or a single element joins the epilogue; blocks are applied as K runs.


def _scale_kinds(given: Operands, left: ArrayView, right: ArrayView, options: Options) -> tuple[str, str]:
    """Return how the scales of both operands lie: `` for none, `tensor`, `vector`, or the kind of block."""
    m, k = reversed(left.shape[-2:]) if options.trans_a else left.shape[-2:]
    n = right.shape[-2] if options.trans_b else right.shape[-1]
    return (
        _scale_kind("scale_a", given.scale_a, m, k, "row"),
        _scale_kind("scale_b", given.scale_b, n, k, "col"),
    )


def _scale_kind(name: str, scale: Any, size: int, k: int, per_line: str) -> str:
    if scale is None:
        return ""
    if is_number(scale):
        return "number"
    shape = arrays.view(scale, name).shape
    blocks = -(-k // kernels.SCALE_BLOCK)
    many = -(-size // kernels.SCALE_BLOCK)
    # (M, K/128) for a and (K/128, N) for b: the blocks' dimension is where K is.
    options: dict[tuple[int, ...], str] = {}
    for count, kind in ((many, "block"), (size, per_line)):
        options[(count, blocks) if per_line == "row" else (blocks, count)] = kind
    options |= {(size,): "vector", (size, 1) if per_line == "row" else (1, size): "vector"}
    if prod(shape) == 1:
        return "tensor"
    if shape not in options:
        known = ", ".join(map(str, options))
        raise CallError(
            f"argument {name!r} has the shape {shape}",
            code="wrong-shape",
            help=f"one element, or one of {known} for blocks of {kernels.SCALE_BLOCK}",
        )
    return options[shape]


def _with_block_scales(problem: Problem, kinds: tuple[str, str]) -> Problem:
    if problem.batch is not None or problem.triangular:
        raise CallError(
            "scales of blocks do not go with a batch or a triangle",
            code="bad-argument",
            help="give one scale for each row or column, or call gemm for each matrix",
        )
    a, b = (kind if kind in ("row", "col", "block") else "" for kind in kinds)
    return replace(problem, scale_a=a, scale_b=b, promote=kernels.SCALE_BLOCK)


# The chain: scales, alpha, beta·c and the bias come before the caller's steps.


def _chain(given: Operands, dtype: DType, kinds: tuple[str, str]) -> epi.Epilogue:
    wide = ts.f64 if dtype == ts.f64 else ts.f32
    steps: list[epi.Step] = []
    # Columns first: in that order ptxas keeps both vectors and the accumulator in registers.
    sides: tuple[tuple[Any, str, Axis], ...] = (
        (given.scale_b, kinds[1], "col"),
        (given.scale_a, kinds[0], "row"),
    )
    for scale, kind, axis in sides:
        if kind == "vector":
            steps.append(epi.scale(scale.reshape(-1), axis=axis))
        elif kind == "tensor":
            steps.append(epi.scale(scale.reshape(1), axis="tensor"))
        elif kind == "number":
            steps.append(epi.scale(scale, dtype=wide))
    if given.alpha != 1:
        steps.append(epi.scale(given.alpha, dtype=wide))
    if given.beta != 0:
        if given.c is None:
            raise CallError(f"beta is {given.beta} and there is no c", code="argument-count", help="pass c")
        steps.append(epi.residual(given.c, given.beta))
    if given.bias is not None:
        steps.append(epi.bias(given.bias))
    return epi.Epilogue((*steps, *(() if given.epilogue is None else given.epilogue.steps)))


def _collector(given: Operands, kinds: tuple[str, str], chain: epi.Epilogue) -> Collect | None:
    """Return what gives a call's arguments after the operands, in the order of the kernel's parameters."""
    has_blocks = any(kind in ("row", "col", "block") for kind in kinds)
    if not chain.steps and not has_blocks:
        return None
    flat = [_flattened(kind) for kind in kinds]
    has_alpha, has_beta, has_bias = given.alpha != 1, given.beta != 0, given.bias is not None
    unit = _unit_scale(given.a) if has_blocks else None

    def collect(
        out: Any,
        c: Any,
        alpha: float,
        beta: float,
        bias: Any,
        scale_a: Any,
        scale_b: Any,
        chain: epi.Epilogue | None,
    ) -> tuple[Any, ...]:
        values: list[Any] = []
        if has_blocks:
            values += [
                unit if flat[0] or scale_a is None else scale_a,
                unit if flat[1] or scale_b is None else scale_b,
            ]
        values.append(out)
        for scale, change in ((scale_b, flat[1]), (scale_a, flat[0])):
            if change is not None:
                values.append(change(scale))
        if has_alpha:
            values.append(float(alpha))
        if has_beta:
            values += (c, float(beta))
        if has_bias:
            values.append(bias)
        if chain is not None:
            values += chain.values
        return tuple(values)

    return collect


def _flattened(kind: str) -> Callable[[Any], Any] | None:
    """Return what makes a scale a value of the chain; None when it is not one."""
    if kind == "number":
        return float
    if kind == "tensor":
        return lambda scale: scale.reshape(1)
    return (lambda scale: scale.reshape(-1)) if kind == "vector" else None


def _unit_scale(like: Any) -> Any:
    """Return what stands in for the scales of an operand that has none."""
    unit = arrays.maker(like, (1, 1), ts.f32)(like)
    unit.fill(1) if hasattr(unit, "fill") else unit.fill_(1)
    return unit
