"""AdamW: steps by means of gradients over roots of means of their squares; decay apart from both."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16, f32
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.optim import again, kernels, lists, together
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact


@library_op
class AdamW:
    """AdamW; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        params: lists.Tree,
        grads: lists.Tree,
        exp_avgs: lists.Tree,
        exp_avg_sqs: lists.Tree,
        step: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        grad_scale: Any = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Change parameters and states in place, as `torch.optim.AdamW` does.

        A launch changes a parameter, or on a GPU eight whose elements divide by 16.

        Args:
            params: arrays of any shapes, in lists, tuples and dictionaries; f64, f32, bf16 or f16.
            grads: their gradients, of any of these dtypes; they and states are nested as the parameters are.
            exp_avgs: means of gradients; f32, bf16 or f64.
            exp_avg_sqs: means of their squares, of the dtype of `exp_avgs`.
            step: which step this is, from 1. In `ts.jit` a float or an array: for another integer it traces anew.
            lr: the learning rate; in `ts.jit` an array, too.
            betas: what of the means stays in a step.
            eps: added to roots.
            weight_decay: what of a parameter goes in a step, over the rate.
            grad_scale: what gradients are divided by first: a number, or an array of one element on their device.
            stochastic_rounding: whether parameters and states of bf16 are rounded up or down at random, so that they
                are right on average.
            seed: of the random numbers; other ones are drawn in each step and for each parameter.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `not-contiguous`; in `ts.jit`
                `written-argument` for what is no argument of the traced function, or a part of one.
            LanguageError: `not-in-graphs` for random rounding in `ts.jit`, or inside of what is differentiated.

        Numerics:
            Computed in f32 (f64 for parameters of f64), and rounded once.

        Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2017; `torch.optim.AdamW`.
        """
        given = lists.leaves(params=params, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
        asked = lists.asked(("adamw_",), given, grad_scale, stochastic_rounding)
        if not again.is_known(asked):
            lists.check_lists(given, ("exp_avgs", "exp_avg_sqs"), ("f32", "bf16", "f64"))
            for one, other in zip(given["exp_avgs"], given["exp_avg_sqs"], strict=True):
                if one.dtype != other.dtype:
                    rows.same_dtype(other, "exp_avg_sqs", one, "exp_avgs")
        lists.check_numbers(
            step=(step, 1, inf),
            lr=(lr, 0, inf),
            eps=(eps, 0, inf),
            weight_decay=(weight_decay, 0, inf),
            **{f"betas[{at}]": (beta, 0, 1) for at, beta in enumerate(betas)},
        )
        scale, divisor = lists.scale_of(grad_scale)
        root: Any = (1 - betas[1] ** step) ** 0.5
        numbers = [divisor, 1 - lr * weight_decay, *betas, lr / (1 - betas[0] ** step), root, eps]

        def launch(given: dict[str, list[Any]], table: Any) -> None:
            kernel: Any = kernels.adamw
            known = list(map(float, numbers)) if table is None else [0.0] * len(numbers)
            groups = [*zip(*given.values(), strict=True)]
            if stochastic_rounding:
                rest = lists.in_memory(groups)
            else:
                rest = together.changed(together.ADAMW, groups, known, scale, table)
            for place, (param, grad, mean, square) in enumerate(rest):
                kernel(
                    param,
                    grad,
                    mean,
                    square,
                    scale,
                    table,
                    *known,
                    lists.key_of(seed, step, place) if stochastic_rounding else 0,
                    stochastic=lists.shortens(stochastic_rounding, param, mean, square),
                    acc=rows.accumulator(arrays.dtype_of(param)),
                )

        lists.change("adamw_", given, numbers, launch, not stochastic_rounding, asked)

    def reference(
        self,
        param: Any,
        grad: Any,
        exp_avg: Any,
        exp_avg_sq: Any,
        step: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> tuple[Any, Any, Any]:
        """Return a parameter and its states after a step, in NumPy and float64."""
        p, g, m, v = (arrays.host(one) for one in (param, grad, exp_avg, exp_avg_sq))
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        root = np.sqrt(v / (1 - betas[1] ** step)) + eps
        return p * (1 - lr * weight_decay) - lr * (m / (1 - betas[0] ** step)) / root, m, v

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.adamw.explain()

    def compile(
        self,
        count: int,
        dtype: DType = bf16,
        *,
        state: DType = f32,
        stochastic_rounding: bool = False,
        target: str | None = None,
    ) -> Artifact:
        """Return the kernel for a parameter of so many elements; needs no device.

        Args:
            count: elements of the parameter.
            dtype: dtype of the parameter and its gradient.
            state: dtype of the states.
            stochastic_rounding: as in a call.
            target: as for `ts.compile`.
        """
        shortens = (dtype.name == "bf16", *(state.name == "bf16",) * 2) if stochastic_rounding else ()
        given: dict[str, Any] = {
            "T": dtype,
            "G": dtype,
            "S": state,
            "scale": None,
            "table": None,
            "stochastic": shortens,
        }
        return compiled(kernels.adamw, target, (), {"M": 1, "N": count}, **given, acc=rows.accumulator(dtype))

    @staticmethod
    def flops(count: int) -> int:
        """Return the operations of a step for so many elements."""
        return 14 * count

    @staticmethod
    def bytes(count: int, dtype: DType, state: DType = f32) -> int:
        """Return the bytes of a step: a gradient is read, a parameter and two states are read and written."""
        return count * (3 * dtype.bytes + 4 * state.bytes)


adamw_ = AdamW()
"""AdamW; see `AdamW.__call__`."""
