"""Measures library ops, forward and backward, beside a copy, PyTorch, `torch.compile` and on a GPU Liger-Kernel.

    python benchmarks/library.py [--only rms ln] [--widths 1024 8192] [--peers eager] [--minutes 5] [--csv library.csv]

Arrays are bf16, or of `--kind`; `--device cpu` measures on this CPU, with a sixteenth of the elements. Every result is
compared with PyTorch in float64 before contestants are timed in turns, on a GPU after a flush of L2. `of copy` is the
rate at which an op moves the bytes it has to, as a part of that of a copy of as many; ratios to peers are above 1 where
Tessera is faster. Backward passes run through PyTorch's autograd for all contestants.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from library_losses import LOSSES
from library_works import PLACE, Work
from library_works import WORKS as OTHERS
from rich.console import Console
from rich.table import Table

ELEMENTS = 1 << 27
WIDTHS = (256, 1024, 4096, 8192, 16384)
WORKS = {**OTHERS, **LOSSES}
PEERS = ("eager", "compiled", "liger")


@dataclass(frozen=True)
class Line:
    """One measured pass.

    Args:
        work: name of the op.
        width: elements of a row.
        direction: `forward` or `backward`.
        seconds: by contestant, `copy` among them.
    """

    work: str
    width: int
    direction: str
    seconds: dict[str, float]

    def ratio(self, peer: str) -> float:
        """Return a contestant's time as a part of ours."""
        return self.seconds[peer] / self.seconds["tessera"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(WORKS), default=sorted(WORKS))
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS, help="elements of a row")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="contestants beside a copy")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0, help="no work begins later")
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--kind", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        raise SystemExit("needs PyTorch, and a GPU or --device cpu")
    PLACE.device, PLACE.kind = args.device, args.kind
    config: Any = import_module("torch._functorch.config")
    config.donated_buffer = False  # compiled gradients are computed again and again
    timer = Timer(torch, 0.03) if args.device == "cuda" else Calls(0.5)
    lines, end = list[Line](), time.monotonic() + 60 * args.minutes
    for name in args.only:
        for width in args.widths:
            if time.monotonic() < end:
                torch.manual_seed(0)
                torch._dynamo.reset()  # or functions compiled before count against its limit, past which it runs eager
                for line in measured(torch, timer, name, width, args.turns, args.peers):
                    lines.append(line)
                    print(name, width, line.direction, line.seconds, flush=True)
    shown(lines)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["work", "width", "direction", "contestant", "seconds"])
            writer.writerows(
                (one.work, one.width, one.direction, *pair) for one in lines for pair in one.seconds.items()
            )
    return 0


@dataclass(frozen=True)
class Calls:
    """Times calls on a CPU.

    Args:
        turn_s: seconds of a turn.
    """

    turn_s: float

    def flushed_in_turns(self, contestants: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
        """Return the median call of each contestant; whoever is first in a turn is last in the next."""
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(turns):
            for name in (sorted if turn % 2 else list)(contestants):
                contestants[name]()
                end = time.perf_counter() + self.turn_s
                while (start := time.perf_counter()) < end:
                    contestants[name]()
                    seconds[name].append(time.perf_counter() - start)
        return {name: median(found) for name, found in seconds.items()}


def measured(
    torch: Any, timer: Timer | Calls, name: str, width: int, turns: int, peers: Collection[str]
) -> Iterator[Line]:
    """Check an op, and measure both directions."""
    elements = ELEMENTS if PLACE.device == "cuda" else ELEMENTS // 16
    work = WORKS[name](torch, elements // width, width)
    if not work.is_random:
        check(torch, work)
    contestants = {"tessera": work.ours} | {one: call for one, call in others(torch, work).items() if one in peers}
    with torch.no_grad():
        calls: dict[str, Callable[[], Any]] = {
            one: (lambda call=call: call(*work.inputs)) for one, call in contestants.items()
        }
        yield Line(name, width, "forward", in_turns(torch, timer, calls, work.forward_bytes, turns))
    if not work.backward_bytes:
        return
    results = {one: as_tuple(call(*work.inputs)) for one, call in contestants.items()}
    grads = tuple(map(torch.randn_like, results["tessera"]))
    wanted = [one for one in work.inputs if one.requires_grad]
    calls = {
        one: (lambda result=result: torch.autograd.grad(result, wanted, grads, retain_graph=True))
        for one, result in results.items()
    }
    yield Line(name, width, "backward", in_turns(torch, timer, calls, work.backward_bytes, turns))


def others(torch: Any, work: Work) -> dict[str, Callable[..., Any]]:
    """Return all contestants but ours and a copy."""
    if work.is_slow:
        return dict(work.others)
    return {"eager": work.eager, "compiled": torch.compile(work.eager, dynamic=False), **work.others}


def check(torch: Any, work: Any) -> None:
    """Compare results and gradients of the first rows with float64."""
    rows = work.inputs[0].shape[0]
    few = [one.detach()[:64] if one.shape[0] == rows else one.detach() for one in work.inputs]
    ours = [one.clone().requires_grad_(one.is_floating_point()) for one in few]
    exact = [one.double().requires_grad_() if one.is_floating_point() else one for one in few]
    got, want = as_tuple(work.ours(*ours)), as_tuple(work.eager(*exact))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-2)
    grads = tuple(map(torch.randn_like, got))
    torch.autograd.backward(got, grads)
    torch.autograd.backward(want, tuple(one.double() for one in grads))
    for one, other in zip(ours, exact, strict=True):
        if other.requires_grad:
            scale = float(other.grad.abs().max())
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-2, atol=2e-2 * scale)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Return results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def in_turns(
    torch: Any, timer: Timer | Calls, calls: dict[str, Callable[[], Any]], size: int, turns: int
) -> dict[str, float]:
    """Return the seconds of each contestant and of a copy that moves as many bytes."""
    source, target = (torch.empty(size // 2, dtype=torch.int8, device=PLACE.device) for _ in range(2))
    return timer.flushed_in_turns({**calls, "copy": lambda: target.copy_(source)}, turns)


def shown(lines: list[Line]) -> None:
    """Print a table."""
    table = Table("op", "width", "pass", "µs", "of copy", "of eager", "of compiled", "of liger")
    for one in lines:
        ratios = (f"{one.ratio(peer):.2f}" if peer in one.seconds else "" for peer in ("copy", *PEERS))
        table.add_row(one.work, str(one.width), one.direction, f"{1e6 * one.seconds['tessera']:.0f}", *ratios)
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
