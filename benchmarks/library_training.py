"""Measures what a training step ends with on a GPU: linear + cross entropy, time and memory, and optimizers.

    python benchmarks/library_training.py [--tokens 8192] [--hidden 4096] [--classes 128256] [--turns 3]

Linear + cross entropy in bf16, loss and gradients of input and weight, beside PyTorch, `torch.compile` and
Liger-Kernel's fused one where it is installed; `memory` is what a step needs beside its inputs. Optimizers change
parameters of a transformer's shapes in f32, beside PyTorch's fused AdamW; `of copy` is the part of the rate of a copy
of as many bytes. Results are compared with PyTorch's first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

from tessera import ops as op

LAYERS, WIDTH = 8, 2048
Call = Callable[[], Any]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--classes", type=int, default=128256)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("needs PyTorch and a GPU")
    torch.manual_seed(0)
    timer = Timer(torch, 0.2)
    losses(torch, timer, args)
    optimizers(torch, timer, args.turns)
    return 0


def losses(torch: Any, timer: Timer, args: Any) -> None:
    """Measure linear + cross entropy."""
    f = torch.nn.functional
    given: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(args.tokens, args.hidden, **given).requires_grad_()
    weight = (torch.randn(args.classes, args.hidden, **given) * args.hidden**-0.5).requires_grad_()
    target = torch.randint(0, args.classes, (args.tokens,), device="cuda")

    def eager(x: Any, weight: Any, target: Any) -> Any:
        return f.cross_entropy(f.linear(x, weight).float(), target)

    forms = {"tessera": op.loss.linear_cross_entropy, "eager": eager, "compiled": torch.compile(eager, dynamic=False)}
    try:
        fused = import_module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction.apply
        forms["liger"] = lambda x, weight, target: fused(x, weight, target)[0]
    except ImportError:
        pass

    def step(form: Callable[..., Any]) -> tuple[Any, ...]:
        loss = form(x, weight, target)
        return (loss.detach(), *torch.autograd.grad(loss, (x, weight)))

    wanted, memory = step(eager), dict[str, int]()
    for name, form in forms.items():
        got = step(form)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one.float(), other.float(), rtol=3e-2, atol=3e-2 * float(other.abs().max()))
        del got
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(form)
        memory[name] = torch.cuda.max_memory_allocated() - before
    calls: dict[str, Call] = {name: (lambda form=form: step(form)) for name, form in forms.items()}
    seconds = timer.flushed_in_turns(calls, args.turns)
    table = Table("linear + cross entropy", "ms", "Tessera is faster by", "memory, MiB")
    for name, taken in seconds.items():
        table.add_row(name, f"{1e3 * taken:.2f}", f"{taken / seconds['tessera']:.2f}", f"{memory[name] / 2**20:.0f}")
    printed(table)


def optimizers(torch: Any, timer: Timer, turns: int) -> None:
    """Measure AdamW over the parameters of a small transformer."""
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,), (WIDTH,)] * LAYERS
    params, grads, means = ([torch.randn(shape, device="cuda") for shape in shapes] for _ in range(3))
    squares = [torch.rand(shape, device="cuda") for shape in shapes]
    others = [[one.clone() for one in some] for some in (params, means, squares)]
    steps = [torch.ones((), device="cuda") for _ in shapes]
    options = {"lr": 1e-3, "weight_decay": 1e-2, "eps": 1e-8}

    def ours() -> None:
        op.optim.adamw_(params, grads, means, squares, 2, **options)

    def theirs() -> None:
        torch._fused_adamw_(
            others[0],
            grads,
            others[1],
            others[2],
            [],
            steps,
            beta1=0.9,
            beta2=0.999,
            amsgrad=False,
            maximize=False,
            **options,
        )

    for one in steps:
        one.fill_(2.0)
    ours()
    theirs()
    for one, other in zip((*params, *means, *squares), (*others[0], *others[1], *others[2]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    size = 7 * sum(one.nbytes for one in params)
    source, target = (torch.empty(size // 2, dtype=torch.int8, device="cuda") for _ in range(2))
    seconds = timer.flushed_in_turns({"tessera": ours, "fused": theirs, "copy": lambda: target.copy_(source)}, turns)
    table = Table(f"AdamW, {len(shapes)} tensors, {size / 2**30:.1f} GiB", "ms", "of copy")
    for name, taken in seconds.items():
        table.add_row(name, f"{1e3 * taken:.3f}", f"{seconds['copy'] / taken:.2f}")
    printed(table)


def printed(table: Table) -> None:
    """Print a table, wide enough."""
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
