"""`gemm_grouped`: many products of one kernel, rows of one matrix each with the weights of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, cast

import numpy as np

import tessera as ts
from tessera.driver.kernel import Kernel
from tessera.driver.variants import destination_of
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops import epilogue as epi
from tessera.ops.linalg import kernels
from tessera.ops.linalg.calls import remembered
from tessera.ops.linalg.gemm import gemm
from tessera.ops.linalg.plan import Plan, plan
from tessera.ops.linalg.prepare import (
    EMPTY,
    Call,
    check_own_memory,
    check_read_beside,
    in_operand,
    layout_of,
    major,
    refuse_reductions,
    sized,
)
from tessera.ops.linalg.problem import Forced, Options, Problem, default_out
from tessera.ops.operation import with_checked_methods
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import needs_gradient, versioned
from tessera.ops.templates import annotated
from tessera.runtime.readers import READERS


@with_checked_methods
class Grouped:
    """Products of groups of rows; `__call__` says what it takes."""

    def __init__(self) -> None:
        self._calls: dict[Any, Call] = {}
        self._last: Call | None = None

    @checked
    def __call__(
        self,
        a: Any,
        b: Any,
        offsets: Any = None,
        *,
        out: Any = None,
        trans_b: bool = False,
        epilogue: epi.Epilogue | None = None,
        out_dtype: DType | None = None,
        block: tuple[int, int, int] | None = None,
        stages: int | None = None,
        num_warps: int | None = None,
    ) -> Any:
        """Return `a[offsets[g]:offsets[g+1]] · b[g]` for every group, one below the other.

        Args:
            a: `(T, K)`: rows of all groups, one group after the other; or a list of matrices.
            b: `(G, K, N)`, or `(G, N, K)` with `trans_b`; or a list of matrices, one for each of `a`.
            offsets: i32 `(G + 1)` on the device of `a`, not decreasing, from 0 to T. Read on the device: groups may
                change from call to call without waiting for it, and nothing checks them. Rows outside all groups
                are not written: a new result holds nothing of meaning there.
            out: `(T, N)`; by default a new array. For lists, a list.
            trans_b: use the transposes of `b`.
            epilogue: `op.epilogue.chain([...])` over `(T, N)`.
            out_dtype: dtype of a new result, as for `gemm`.
            block: `(BM, BN, BK)` to use.
            stages: depth of the rings of copies.
            num_warps: warps that compute.

        Returns:
            `(T, N)`; for lists, a list of results.

        Raises:
            CallError: `wrong-rank`, `wrong-shape`, `wrong-dtype`, `argument-count`, `no-gradient`, or as for `gemm`.
        """
        if isinstance(a, list | tuple):
            return _each(cast("Sequence[Any]", a), b, out, trans_b, epilogue, out_dtype)
        if needs_gradient((a, b, out, *(() if epilogue is None else epilogue.values))):
            raise refused("products of groups have no gradient", "no-gradient", "call it under torch.no_grad()")
        if offsets is None:
            raise CallError(
                "offsets are missing",
                code="argument-count",
                location=caller_location(),
                help="i32 of one element more than groups, or lists of matrices",
            )
        traits = _traits(a, "a"), _traits(b, "b"), _traits(offsets, "offsets")
        over_operand = out is not None and in_operand(out, a, b)
        goal = out is None, getattr(out, "dtype", None), over_operand
        key = (traits, goal, layout_of(epilogue), trans_b, out_dtype, block, stages, num_warps)
        call = self._calls.get(key)
        if call is None:
            options = Options(trans_b=trans_b, out_dtype=out_dtype, block=block, stages=stages, num_warps=num_warps)
            call = remembered(self._calls, key, lambda: _prepare(a, b, offsets, out, epilogue or EMPTY, options))
        self._last = call
        given_out, out = out, call.make(a) if out is None else out
        if call.kernel is not None:
            if given_out is not None:
                check_read_beside(out, epilogue=epilogue)
            call.kernel(a, b, offsets, out, *(() if epilogue is None else epilogue.values))
        if given_out is not None:
            versioned(out)
        return out

    def explain(self) -> dict[str, Any]:
        """Return what the last call ran: the plan, and the kernel's own explanation (None without a launch).

        Raises:
            CallError: `never-run` before the first call.
        """
        if self._last is None:
            raise CallError("it has not run yet", code="never-run", help="call it first")
        kernel = self._last.kernel
        return {"plan": self._last.plan.explain(), "kernel": None if kernel is None else kernel.explain()}

    @staticmethod
    def reference(a: Any, b: Any, offsets: Any, *, trans_b: bool = False, epilogue: epi.Epilogue = EMPTY) -> Any:
        """Return the exact result in NumPy and float64; rows outside all groups are 0 before the epilogue."""
        rows, weights, starts = arrays.host(a), arrays.host(b), arrays.host(offsets).astype(int)
        weights = weights.swapaxes(-1, -2) if trans_b else weights
        total = np.zeros((rows.shape[0], weights.shape[-1]))
        for group in range(len(starts) - 1):
            place = slice(starts[group], starts[group + 1])
            total[place] = rows[place] @ weights[group]
        return epilogue.reference(total)

    @staticmethod
    def flops(rows: int, columns: int, k: int) -> int:
        """Return the operations of all groups, which have `rows` rows together."""
        return 2 * rows * columns * k

    @staticmethod
    def bytes(rows: int, groups: int, columns: int, k: int, dtype: DType, out_dtype: DType | None = None) -> int:
        """Return the bytes of operands, offsets and result, each once."""
        out = out_dtype or default_out(dtype)
        return (rows * k + groups * k * columns) * dtype.bytes + 4 * (groups + 1) + rows * columns * out.bytes


def _each(
    a: Sequence[Any],
    b: Sequence[Any],
    out: Sequence[Any] | None,
    trans_b: bool,
    epilogue: epi.Epilogue | None,
    out_dtype: DType | None,
) -> list[Any]:
    """Return the products of two lists, one launch each."""
    outs = [None] * len(a) if out is None else out
    if len(a) != len(b) or len(a) != len(outs):
        raise CallError(
            f"{len(a)} left operands, {len(b)} right ones and {len(outs)} results",
            code="argument-count",
            location=caller_location(),
            help="give one of each for every product",
        )
    return [
        gemm(x, y, out=z, trans_b=trans_b, epilogue=epilogue, out_dtype=out_dtype)
        for x, y, z in zip(a, b, outs, strict=True)
    ]


def grouped_kernel(problem: Problem, groups: int, schedule: Plan, chain: epi.Epilogue) -> Kernel[..., Any]:
    """Return the kernel of a grouped product with a schedule and an epilogue's layout."""
    space = {
        **schedule.space(),
        "trans_a": (False,),
        "trans_b": (problem.trans_b,),
        "a_batched": (False,),
        "b_batched": (True,),
        "acc": (problem.acc,),
        "compute": (None,),
        "promote": (0,),
        "triangular": ("",),
        "groups": (1 << max(groups - 1, 0).bit_length(),),
    }
    key = (tuple(space.items()), problem.a, problem.b, problem.out, chain.layout)
    if key not in _kernels:
        m, n, k = kernels.M, kernels.N, kernels.K
        right = (n, k) if problem.trans_b else (k, n)
        annotations = {
            "a": ts.Tensor[m, k, problem.a],
            "b": ts.Tensor[(kernels.G, *right, problem.b)],
            "offsets": ts.Tensor[kernels.OFFSETS, ts.i32],
            "out": ts.Tensor[m, n, problem.out],
            "epilogue": epi.Epilogue[m, n],
        }
        function = annotated(kernels.gemm_grouped, annotations)
        _kernels[key] = Kernel[..., Any](function, tuple(space.items()), (), {"epilogue": chain.layout})
    return _kernels[key]


_kernels: dict[Any, Kernel[..., Any]] = {}


def _prepare(a: Any, b: Any, offsets: Any, out: Any, chain: epi.Epilogue, options: Options) -> Call:
    options.check()
    refuse_reductions(chain, "groups of rows")
    left, right, starts = arrays.view(a, "a"), arrays.view(b, "b"), arrays.view(offsets, "offsets")
    if (len(left.shape), len(right.shape), len(starts.shape)) != (2, 3, 1):
        raise CallError(
            f"a has the shape {left.shape}, b {right.shape}, offsets {starts.shape}",
            code="wrong-rank",
            help="a (T, K), b (G, K, N), offsets (G + 1)",
        )
    (rows, k), (groups, inner, n) = left.shape, right.shape
    if options.trans_b:
        inner, n = n, inner
    if k != inner or starts.shape[0] != groups + 1:
        raise CallError(
            f"a is ({rows}, {k}), b is {groups} times ({inner}, {n}), offsets has {starts.shape[0]} elements",
            code="wrong-shape",
            help="a (T, K), b (G, K, N), offsets (G + 1)",
        )
    result = None if out is None else arrays.view(out, "out").dtype
    check_own_memory(out, a, b)
    problem = sized(rows, n, k, left.dtype, right.dtype, options, chain, result)
    problem = replace(
        problem, b_batched=True, a_major=major(left, 1), b_major=major(right, 1 if options.trans_b else 0)
    )
    schedule = _plan(problem, groups, destination_of(left.device).record(), options.forced)
    make = arrays.maker(a, (rows, n), problem.out)
    if rows == 0 or n == 0:
        return Call(None, make, None, problem, schedule)
    return Call(grouped_kernel(problem, groups, schedule, chain), make, None, problem, schedule)


def _plan(problem: Problem, groups: int, target: Any, forced: Forced) -> Plan:
    """Return the plan for groups of the mean size: a tile holds rows of one group only."""
    mean = max(ceil(problem.m / max(groups, 1)), 1)
    typical = replace(problem, m=mean, batch=max(groups, 1), grouped=True)
    return plan(typical, target, replace(forced, pack=False))


def _traits(array: object, name: str) -> Any:
    found = READERS.get(type(array)) or arrays.reader(array, name)
    return found.read(array)[1]


gemm_grouped = Grouped()
"""Products of groups of rows; see `Grouped.__call__`."""
