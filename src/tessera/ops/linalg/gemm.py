"""`gemm` and `gemm_batched`: matrix products, planned once for each kind of call."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

import tessera as ts
from tessera.driver.compile import target_record
from tessera.driver.kernel import Kernel
from tessera.errors import CallError, caller_location, shown
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile
from tessera.ops import arrays
from tessera.ops import epilogue as epi
from tessera.ops.epilogue.chain import is_number
from tessera.ops.linalg import whole
from tessera.ops.linalg.by_halves import stored
from tessera.ops.linalg.calls import remembered
from tessera.ops.linalg.packing import copies, sums_of
from tessera.ops.linalg.plan import Plan, plan, tuning_space
from tessera.ops.linalg.preferences import specialized
from tessera.ops.linalg.prepare import (
    EMPTY,
    Call,
    Operands,
    check_beside,
    check_read_beside,
    kernel_for,
    layout_of,
    prepare,
    sized,
)
from tessera.ops.linalg.problem import Options, check_sizes, default_out
from tessera.ops.operation import with_checked_methods
from tessera.ops.refusals import WRONG_ARGUMENT, refuse
from tessera.ops.rules import RULES
from tessera.ops.steps import is_seen, needs_gradient, versioned
from tessera.ops.traced import traced_among
from tessera.runtime.readers import FOREIGN_ERRORS, READERS
from tessera.schedule.products import ALIGN_BYTES
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord

_PLAIN = Options().values()
"""Options of a product of operands as they are."""


@with_checked_methods
class Gemm:
    """A matrix product with scales, an addend and an epilogue; `__call__` says what it takes.

    Args:
        batched: whether it takes batches of matrices.
    """

    def __init__(self, batched: bool = False) -> None:
        self._batched = batched
        self._calls: dict[Any, Call] = {}
        self._plain_calls: dict[Any, tuple[Call, bool]] = {}
        self._last: Call | None = None

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        *,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        scale_a: Any = None,
        scale_b: Any = None,
        epilogue: epi.Epilogue | None = None,
        out_dtype: DType | None = None,
        acc_dtype: DType | None = None,
        compute: DType | None = None,
        promote: int = 0,
        triangular_only: str | None = None,
        mma_kind: str | None = None,
        cta_pairs: bool | None = None,
        split_k: int | None = None,
        stream_k: int | None = None,
        block: tuple[int, int, int] | None = None,
        stages: int | None = None,
        num_warps: int | None = None,
        ping_pong: bool | None = None,
        pack: bool | None = None,
        stream: Any = None,
    ) -> Any:
        """Return `epilogue(alpha·a·b + beta·c)`.

        Args:
            a: `(M, K)`, or `(K, M)` with `trans_a`; any strides. A batched product takes `(B, M, K)` too.
            b: `(K, N)`, or `(N, K)` with `trans_b`; any strides. A batched product takes `(B, K, N)` too.
            c: `(M, N)` or `(B, M, N)`, read when `beta` is not 0.
            out: array for the result; by default a new one beside `a`.
            alpha: factor of the product.
            beta: factor of `c`.
            trans_a: use the transpose of `a`.
            trans_b: use the transpose of `b`.
            scale_a: factors of `a`: a number, one element, `(M,)`, or f32 for blocks of 128 terms: `(M, K/128)`, or
                `(M/128, K/128)` for blocks of 128 rows; sizes are rounded up.
            scale_b: factors of `b`: a number, one element, `(N,)`, `(K/128, N)` or `(K/128, N/128)`.
            epilogue: `op.epilogue.chain([...])`, applied in registers.
            out_dtype: dtype of a new result; by default that of the operands, bf16 for fp8, i32 for 8-bit
                integers (f32 when an epilogue follows), or what the chain's last `cast` says.
            acc_dtype: dtype of the sums: f32, f64 for f64, i32 for integers unless given.
            compute: `ts.tf32` rounds f32 operands to 10 bits for the matrix units.
            promote: number of terms summed apart before they join the accumulator; 128 keeps fp8 sums on Hopper,
                whose matrix units add with fewer bits, as exact as f32 ones.
            triangular_only: `lower` or `upper` computes that triangle, diagonal included. The rest of `out` is left
                as it is; that of a new result is 0.
            mma_kind: `wgmma`, `mma_sync` or `fma`; the plan's choice unless given.
            cta_pairs: pairs of programs that share one product; recorded, without effect before Blackwell.
            split_k: programs that share one tile's K; the plan's choice unless given.
            stream_k: 1 shares the last tiles of a large product out evenly over all programs (Hopper), 0 leaves whole
                tiles; the plan's choice unless given.
            block: `(BM, BN, BK)` to use; the plan's choice unless given.
            stages: depth of the rings of copies.
            num_warps: warps that compute.
            ping_pong: two groups of four warps take the tiles in turn, so that one's epilogue overlaps the other's
                products (Hopper); the plan's choice unless given.
            pack: on GPUs with warpgroup products, whether operands that bulk copies cannot fetch (misaligned rows or
                address, no contiguous dimension) are copied first, into scratch memory that `plan(...).scratch_bytes`
                counts; the plan's choice unless given.
            stream: CUDA stream to launch on.

        Returns:
            The result `(M, N)`: `out`, or a NumPy array, PyTorch tensor or device array as `a` is. PyTorch tensors that
            need gradients have them, of a product of two operands alone.

        Raises:
            CallError: `wrong-rank`, `wrong-shape`, `unsupported-dtypes`, `bad-argument`, `unsupported-mma-kind`,
                `no-gradient` for what has none, or what is wrong with an argument.
            DeviceError: `out-of-memory` when there is no room for copies of operands.

        Numerics:
            Sums are kept in f32 (f64, i32) in the order of K within a tile. `K = 0` gives `epilogue(beta·c)`. On GPUs
            with warpgroup products, large f32 products are three products of tf32, whose sums join the accumulator
            every 32 terms: errors are no larger than those of multiply-adds, which `mma_kind="fma"` computes. Factors
            below 2**-115 keep 11 bits.
        """
        options = (
            trans_a,
            trans_b,
            out_dtype,
            acc_dtype,
            compute,
            promote,
            triangular_only,
            mma_kind,
            cta_pairs,
            split_k,
            stream_k,
            block,
            stages,
            num_warps,
            ping_pong,
            pack,
        )
        try:
            if traced_among((a, b, c)) is not None:
                beside = {"scale_a": scale_a, "scale_b": scale_b, "epilogue": epilogue, "stream": stream}
                return whole.gemm(a, b, c, out, alpha, beta, None, beside, options)
            is_alone = stream is c is scale_a is scale_b is epilogue is None
            numbers = type(alpha) is type(beta) is float
            beside = () if is_alone and numbers else beside_of(alpha, beta, scale_a, scale_b, epilogue)
            if is_seen((a, b, c, out, *beside)):
                is_plain = is_alone and not needs_gradient(beside) and alpha == 1
                found = self._followed(a, b, c, out, is_plain, options, beside)
                if found is not None:
                    return found
            if is_alone and numbers and alpha == 1 and beta == 0:
                found = self._run_plain(a, b, out, options)
            else:
                found = self.run(a, b, c, out, alpha, beta, None, scale_a, scale_b, epilogue, options, stream)
            if out is not None:
                versioned(out)
            return found
        except WRONG_ARGUMENT as error:
            refuse(Gemm.__call__, locals(), error)
            raise

    def _followed(
        self, a: Any, b: Any, c: Any, out: Any, is_plain: bool, options: tuple[Any, ...], beside: tuple[Any, ...]
    ) -> Any:
        """Return a product that PyTorch follows, None where it does not have to."""
        from tessera.ops.linalg.steps import followed_matrices

        return followed_matrices(a, b, c, out, is_plain, options, (2, 3) if self._batched else (2,), beside)

    def plain(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return a product of two operands as they are, inside of graphs and operators: PyTorch does not see it.

        Args:
            a: as for a call.
            b: as for a call.
            out: as for a call.

        Raises:
            CallError: as for a call.
        """
        return self._run_plain(a, b, out, _PLAIN)

    def inside(self, a: Any, b: Any, epilogue: epi.Epilogue) -> Any:
        """Return a product with an epilogue, inside of graphs: PyTorch does not see it.

        Args:
            a: as for a call.
            b: as for a call.
            epilogue: as for a call.

        Raises:
            CallError: as for a call.
        """
        return self.run(a, b, None, None, 1.0, 0.0, None, None, None, epilogue, _PLAIN)

    def planned(self, a: Any, b: Any, epilogue: epi.Epilogue | None = None) -> Plan:
        """Return the plan of such a product, or of one without an epilogue, which does not run.

        Args:
            a: as for a call.
            b: as for a call.
            epilogue: as for a call.

        Raises:
            CallError: as for a call.
        """
        rules = RULES.get()
        options = specialized(_PLAIN, a, rules) if rules else _PLAIN
        return self._call_for(Operands(a, b, epilogue=epilogue), options).plan

    def _run_plain(self, a: object, b: object, out: Any, options: tuple[Any, ...]) -> Any:
        """Run a product of two operands with nothing beside it: few microseconds are most of a small one's time."""
        rules = RULES.get()
        if rules:
            options = specialized(options, a, rules)
        call = self._plain_call(a, b, out, options)
        if call is None:
            return self.run(a, b, None, out, 1.0, 0.0, None, None, None, None, options)
        self._last = call
        assert call.kernel is not None
        return call.kernel(a, b, call.make(a) if out is None else out)

    def _plain_call(self, a: object, b: object, out: Any, options: tuple[Any, ...]) -> Call | None:
        """Return a call that is nothing but its kernel's, None where there is more to do."""
        readers = READERS.get(type(a)), READERS.get(type(b))
        if readers[0] is None or readers[1] is None or readers[0].facts is None or readers[1].facts is None:
            return None
        try:
            key = readers[0].facts(a), readers[1].facts(b), a is b, options, _place(out), current_profile()
        except FOREIGN_ERRORS:  # as reading the arrays says better
            return None
        found = self._plain_calls.get(key)
        if found is None:
            call = self._call_for(Operands(a, b, out=out), options)
            alone = call.kernel is not None and call.copies is None and not any(call.repeats)
            found = remembered(self._plain_calls, key, lambda: (call, alone))
        return found[0] if found[1] else None

    def run(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        bias: Any,
        scale_a: Any,
        scale_b: Any,
        epilogue: epi.Epilogue | None,
        options: tuple[Any, ...],
        stream: Any = None,
    ) -> Any:
        """Run a call; `options` are the fields of `Options`, `bias` a vector that is added before the epilogue."""
        if not is_number(alpha) or not is_number(beta):
            alpha, beta = _number(alpha, "alpha"), _number(beta, "beta")
        rules = RULES.get()
        if rules:
            options = specialized(options, a, rules)
        call = self._call_for(Operands(a, b, c, out, alpha, beta, bias, scale_a, scale_b, epilogue), options)
        self._last = call
        given_out, out = out, call.make(a) if out is None else out
        reducing = epilogue if epilogue is not None and epilogue.needs_sizes else None
        if call.kernel is None:
            if reducing is not None:  # no elements
                reducing.bound(call.problem.sizes).finish(stream)
            return out
        if self._batched:
            a, b = (x[0] if repeats else x for x, repeats in zip((a, b), call.repeats, strict=True))
        if call.extra is None:
            return _launch(call, call.kernel, a, b, (out,), stream)
        if given_out is not None:
            check_read_beside(out, bias=bias, scale_a=scale_a, scale_b=scale_b, epilogue=epilogue)
        if reducing is not None and given_out is not None:
            check_beside(out, reducing)
        bound = None if reducing is None else reducing.bound(call.problem.sizes)
        extra = call.extra(out, c, alpha, beta, bias, scale_a, scale_b, bound or epilogue)
        result = _launch(call, call.kernel, a, b, extra, stream)
        if bound is not None:
            bound.finish(stream)
        return result

    def _call_for(self, given: Operands, options: tuple[Any, ...]) -> Call:
        """Return the prepared call for operands and options."""
        key = _kind(given, options), current_profile()
        call = self._calls.get(key)
        if call is None:
            call = remembered(self._calls, key, lambda: prepare(given, Options(*options), self._batched))
        return call

    def explain(self) -> dict[str, Any]:
        """Return what the last call ran: the plan, and the kernel's own explanation (None without a launch).

        Raises:
            CallError: `never-run` before the first call.
        """
        if self._last is None:
            raise CallError("it has not run yet", code="never-run", help="call it first")
        kernel = self._last.kernel
        return {"plan": self._last.plan.explain(), "kernel": None if kernel is None else kernel.explain()}

    @property
    def last(self) -> Kernel[..., Any] | None:
        """The kernel of the last call, None where that had nothing to compute."""
        return None if self._last is None else self._last.kernel

    def plan(
        self,
        m: int,
        n: int,
        k: int,
        dtype: DType = ts.bf16,
        b_dtype: DType | None = None,
        *,
        target: str | TargetRecord | None = None,
        epilogue: epi.Epilogue = EMPTY,
        **options: Any,
    ) -> Plan:
        """Return the schedule for contiguous operands; needs no device.

        Args:
            m: rows of the result.
            n: columns of the result.
            k: terms of each sum.
            dtype: dtype of `a`, and of `b` unless `b_dtype` says otherwise.
            b_dtype: dtype of `b`.
            target: a target's name or record; by default the chosen backend's device.
            epilogue: chain of steps.
            **options: `trans_a`, `out_dtype` and so on, as for a call.
        """
        chosen = Options.of(options)
        return plan(sized(m, n, k, dtype, b_dtype or dtype, chosen, epilogue), _record(target), chosen.forced)

    def compile(
        self,
        m: int,
        n: int,
        k: int,
        dtype: DType = ts.bf16,
        b_dtype: DType | None = None,
        *,
        target: str | None = None,
        dump: tuple[str, ...] = (),
        epilogue: epi.Epilogue = EMPTY,
        **options: Any,
    ) -> Artifact:
        """Compile the product of contiguous operands, or of their copies, without running it; arguments as for `plan`.

        Args:
            m: rows of the result.
            n: columns of the result.
            k: terms of each sum.
            dtype: dtype of `a`, and of `b` unless `b_dtype` says otherwise.
            b_dtype: dtype of `b`.
            target: a target's name; by default the chosen backend's device.
            dump: stages to keep, as for `ts.compile`.
            epilogue: chain of steps.
            **options: `trans_a`, `out_dtype` and so on, as for a call.
        """
        chosen = Options.of(options)
        m, n, k = check_sizes(m=m, n=n, k=k)
        problem = sized(m, n, k, dtype, b_dtype or dtype, chosen, epilogue)
        schedule = plan(problem, _record(target), chosen.forced)
        kernel = kernel_for(problem, schedule, epilogue)
        if schedule.halves:
            terms = stored(problem)[0].lines[-1]
            return kernel.compile(target=target, dump=dump, dims={"M": m, "N": n, "K": terms})
        a, b = copies(problem, schedule.pack_a, schedule.pack_b)
        strides = {name: copy.strides for name, copy in (("a", a), ("b", b)) if copy is not None}
        dims = {"M": m, "N": n, "K": k}
        if schedule.parts > 1:
            dims |= dict(zip(("PARTS", "M", "PADDED"), sums_of(problem, schedule.parts).lines, strict=True))
        return kernel.compile(target=target, dump=dump, dims=dims, strides=strides)

    def space(
        self, m: int, n: int, k: int, dtype: DType = ts.bf16, target: str | TargetRecord | None = None
    ) -> dict[str, tuple[Any, ...]]:
        """Return the values that a tuner may try for each knob, those of the plan first."""
        return dict(tuning_space(sized(m, n, k, dtype, dtype, Options()), _record(target)))

    @staticmethod
    def flops(m: int, n: int, k: int, epilogue: epi.Epilogue = EMPTY) -> int:
        """Return the operations of a product and its epilogue."""
        m, n, k = check_sizes(m=m, n=n, k=k)
        return 2 * m * n * k + epilogue.flops(m * n)

    @staticmethod
    def bytes(
        m: int,
        n: int,
        k: int,
        dtype: DType = ts.bf16,
        out_dtype: DType | None = None,
        epilogue: epi.Epilogue = EMPTY,
    ) -> int:
        """Return the bytes of operands, result and the epilogue's tensors, each once."""
        m, n, k = check_sizes(m=m, n=n, k=k)
        out = out_dtype or default_out(dtype)
        return (m * k + k * n) * dtype.bytes + m * n * out.bytes + epilogue.bytes()

    @staticmethod
    def reference(
        a: Any,
        b: Any,
        c: Any = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        scale_a: Any = None,
        scale_b: Any = None,
        epilogue: epi.Epilogue = EMPTY,
    ) -> Any:
        """Return the exact result in NumPy and float64; arguments as for a call."""
        left, right = arrays.host(a), arrays.host(b)
        left = left.swapaxes(-1, -2) if trans_a else left
        right = right.swapaxes(-1, -2) if trans_b else right
        scales = _spread(scale_a, left.shape, 0), _spread(scale_b, right.shape, 1)
        total = np.matmul(left * scales[0], right * scales[1])
        total = alpha * total
        if beta != 0:
            total = total + beta * arrays.host(c)
        return epilogue.reference(total)

    def __repr__(self) -> str:
        return f"<op.linalg.gemm{'_batched' if self._batched else ''}>"


def _kind(given: Operands, options: tuple[Any, ...]) -> Any:
    """Return what tells a call from those that another `Call` serves."""
    a, b, c, out, beta = given.a, given.b, given.c, given.out, given.beta
    (start_a, placed_a), (start_b, placed_b) = _placed(a, "a"), _placed(b, "b")
    goal, placed_out = (None, None) if out is None else _placed(out, "out")
    over_c = goal is not None and c is not None and c is not out and _start(c, "c") == goal
    return (
        placed_a,
        placed_b,
        a is b,
        placed_out,
        goal in (start_a, start_b),
        given.alpha == 1,
        beta == 0,
        options,
        layout_of(given.epilogue),
        None if beta == 0 or c is None else _traits(c, "c"),
        over_c,
        None if given.bias is None else _traits(given.bias, "bias"),
        None if given.scale_a is None else _scale_traits(given.scale_a, "scale_a"),
        None if given.scale_b is None else _scale_traits(given.scale_b, "scale_b"),
    )


def _launch(call: Call, kernel: Kernel[..., Any], a: Any, b: Any, rest: tuple[Any, ...], stream: Any) -> Any:
    """Launch a product, on copies of its operands where the plan wants them."""
    if call.copies is not None:
        return call.copies.run(kernel, a, b, rest, stream)
    return kernel(a, b, *rest) if stream is None else kernel(a, b, *rest, stream=stream)


def _spread(scale: Any, shape: tuple[int, ...], line: int) -> Any:
    """Return the factors of an operand's elements: `line` is the dimension that a vector's elements belong to."""
    if scale is None:
        return 1.0
    factors, sizes = arrays.host(scale), shape[-2:]
    if factors.size == 1:
        return factors.reshape(())
    vector = (sizes[0], 1) if line == 0 else (1, sizes[1])
    if factors.ndim == 1 or factors.shape == vector:
        return factors.reshape(vector)
    for axis in (0, 1):
        if factors.shape[axis] != sizes[axis]:
            factors = factors.repeat(128, axis)
    return factors[: sizes[0], : sizes[1]]


def beside_of(*values: Any) -> tuple[Any, ...]:
    """Return what may be tensors beside a product's operands: factors, scales, and what an epilogue has."""
    flat: list[Any] = []
    for value in values:
        flat += value.values if isinstance(value, epi.Epilogue) else (value,)
    return tuple(flat)


def _number(value: Any, name: str) -> Any:
    """Return a factor as a number; an array of no dimensions holds one.

    Raises:
        CallError: `bad-argument`.
    """
    if is_number(value):
        return value
    if isinstance(value, Real):
        return float(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise CallError(
        f"{name} is {shown(value)}", code="bad-argument", location=caller_location(), help="it takes a number"
    )


def _traits(array: object, name: str) -> Any:
    found = READERS.get(type(array)) or arrays.reader(array, name)
    return found.read(array)[1]


def _place(out: object) -> Any:
    """Return what of a result that is given a plan depends on."""
    if out is None:
        return None
    reader = READERS.get(type(out))
    return getattr(out, "dtype", None) if reader is None or reader.place is None else reader.place(out)


def _start(array: object, name: str) -> int:
    found = READERS.get(type(array)) or arrays.reader(array, name)
    return found.read(array)[0]


def _placed(array: object, name: str) -> tuple[int, Any]:
    """Return where an array begins; its traits, and whether bulk copies can begin there."""
    found = READERS.get(type(array)) or arrays.reader(array, name)
    pointer, traits, _ = found.read(array)
    return pointer, (traits, pointer % ALIGN_BYTES == 0)


def _scale_traits(scale: Any, name: str) -> Any:
    return "number" if is_number(scale) else _traits(scale, name)


def _record(target: str | TargetRecord | None) -> TargetRecord:
    return target if isinstance(target, TargetRecord) else target_record(target)


gemm = Gemm()
"""The matrix product; see `Gemm.__call__`."""

gemm_batched = Gemm(batched=True)
"""Matrix products of two batches, or of a batch and one matrix; see `Gemm.__call__`."""
