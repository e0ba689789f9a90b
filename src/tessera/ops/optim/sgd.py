"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from math import inf
from numbers import Real
from typing import Any, cast

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16, f32, f64
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.optim import again, kernels, lists, together
from tessera.ops.refusals import checked, refused
from tessera.ops.traced import traced_among
from tessera.target.artifact import Artifact


@library_op
class Sgd:
    """Stochastic gradient descent; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        params: lists.Tree,
        grads: lists.Tree,
        momentum_buffers: lists.Tree | None = None,
        step: int = 1,
        *,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        grad_scale: Any = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        """Change parameters and buffers in place, as `torch.optim.SGD` does.

        A launch changes a parameter, or on a GPU eight whose elements divide by 16.

        Args:
            params: arrays of any shapes, in lists, tuples and dictionaries; f64, f32, bf16 or f16.
            grads: their gradients, of any of these dtypes; they and states are nested as the parameters are.
            momentum_buffers: f32, bf16 or f64; None without momentum.
            step: which step this is, from 1: in the first one a buffer becomes the gradient, whatever it held.
            lr: the learning rate.
            momentum: what of a buffer stays in a step.
            dampening: what of a gradient does not enter the buffer.
            weight_decay: what of a parameter is added to its gradient.
            nesterov: whether a step looks ahead by the momentum.
            grad_scale: what gradients are divided by first: a number, or an array of one element on their device.
            stochastic_rounding: whether parameters and buffers of bf16 are rounded up or down at random, so that they
                are right on average.
            seed: of the random numbers; other ones are drawn in each step and for each parameter.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `not-contiguous`; in `ts.jit`
                `written-argument` for what is no argument of the traced function, or a part of one.
            LanguageError: `not-in-graphs` for random rounding in `ts.jit`, or inside of what is differentiated.

        Numerics:
            Computed in f32 (f64 for parameters of f64), and rounded once.

        Source: Sutskever et al., On the importance of initialization and momentum in deep learning, 2013;
            `torch.optim.SGD`.
        """
        buffers = {} if momentum_buffers is None else {"momentum_buffers": momentum_buffers}
        given = lists.leaves(params=params, grads=grads, **buffers)
        kind = "sgd_", "momentum_buffers" in given, bool(nesterov), isinstance(step, Real) and step == 1
        asked = lists.asked(kind, given, grad_scale, stochastic_rounding)
        if not again.is_known(asked):
            lists.check_lists(given, ("momentum_buffers",), ("f32", "bf16", "f64"))
        lists.check_numbers(
            step=(step, 1, inf),
            lr=(lr, 0, inf),
            momentum=(momentum, 0, inf),
            weight_decay=(weight_decay, 0, inf),
        )
        if (momentum_buffers is None) != (momentum == 0):
            raise refused("momentum and momentum_buffers do not go together", "bad-argument", "give both or none")
        if nesterov and (momentum == 0 or dampening != 0):
            raise refused("nesterov without momentum, or with dampening", "bad-argument", "as in PyTorch")
        scale, divisor = lists.scale_of(grad_scale)
        traced = traced_among(given["params"])
        fresh: Any = 1.0 - dampening
        kept: Any = momentum
        is_known = traced is None or isinstance(step, Real)
        if traced is not None and not is_known:
            zero: Any = traced.filled((), f64)
            later = cast(Any, np.where)(zero + step > 1.0, zero + 1.0, zero)
            fresh, kept = 1.0 - later * dampening, later * momentum
        numbers: list[Any] = [divisor, weight_decay, momentum, fresh, lr, kept]

        def launch(given: dict[str, list[Any]], table: Any) -> None:
            kernel: Any = kernels.sgd
            known = list(map(float, numbers)) if table is None else [0.0] * len(numbers)
            groups = [*zip(*given.values(), strict=True)]
            rule = together.sgd("momentum_buffers" in given, bool(nesterov), is_known and step == 1)
            if stochastic_rounding:
                rest = lists.in_memory(groups)
            else:
                rest = together.changed(rule, groups, known, scale, table)
            for place, (param, grad, *others) in enumerate(rest):
                buffer = others[0] if others else None
                kernel(
                    param,
                    grad,
                    buffer,
                    scale,
                    table,
                    *known,
                    lists.key_of(seed, step, place) if stochastic_rounding else 0,
                    nesterov=bool(nesterov),
                    is_first=is_known and step == 1,
                    stochastic=lists.shortens(stochastic_rounding, param, buffer),
                    acc=rows.accumulator(arrays.dtype_of(param)),
                )

        lists.change("sgd_", given, numbers, launch, not stochastic_rounding, asked)

    def reference(
        self,
        param: Any,
        grad: Any,
        momentum_buffer: Any = None,
        step: int = 1,
        *,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> tuple[Any, Any]:
        """Return a parameter and its buffer after a step, in NumPy and float64."""
        p, g = arrays.host(param), arrays.host(grad)
        g = g + weight_decay * p
        if momentum_buffer is None:
            return p - lr * g, None
        b = g if step == 1 else momentum * arrays.host(momentum_buffer) + (1 - dampening) * g
        return p - lr * (g + momentum * b if nesterov else b), b

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.sgd.explain()

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
            state: dtype of the buffer.
            stochastic_rounding: as in a call.
            target: as for `ts.compile`.
        """
        shortens = (dtype.name == "bf16", state.name == "bf16") if stochastic_rounding else ()
        given: dict[str, Any] = {
            "T": dtype,
            "G": dtype,
            "S": state,
            "scale": None,
            "table": None,
            "stochastic": shortens,
            "nesterov": False,
            "is_first": False,
        }
        return compiled(kernels.sgd, target, (), {"M": 1, "N": count}, **given, acc=rows.accumulator(dtype))

    @staticmethod
    def flops(count: int) -> int:
        """Return the operations of a step for so many elements."""
        return 6 * count

    @staticmethod
    def bytes(count: int, dtype: DType, state: DType = f32) -> int:
        """Return the bytes of a step: a gradient is read, a parameter and a buffer are read and written."""
        return count * (3 * dtype.bytes + 2 * state.bytes)


sgd_ = Sgd()
"""Stochastic gradient descent; see `Sgd.__call__`."""
