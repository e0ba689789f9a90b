"""Measures `torch.compile(backend="tessera")` beside eager PyTorch and Inductor: time, compile time, kernels.

    python benchmarks/graph.py [--suite parts ops chains] [--csv results.csv] [--turns 3] [--device cuda] [--only block]
                               [--minutes 5] [--jobs 14]

Works are parts of models (`parts`), single operators (`ops`) and chains of them (`chains`), forward and, where it says
so, forwards and backwards. Times are of single calls in turns, on a GPU after a flush of L2 and without the host. The
seconds are those of the first call, with compilation, caches being cold. Results are compared with float64 first: an
error above twice eager's, and above a floor of the dtype, makes the exit status 1, as does a work that raises. `--jobs`
processes run each work once before, so that its code is in the caches on disk; first calls are then no compile times.
Each line is in the file once its work is done. `--peers eager` leaves Inductor away.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from foundation import begun_within, in_processes, lines_of, torch_or_none
from graph_more import Drawn, more_ops
from graph_more_chains import more_chains
from graph_ops import chains, single
from rich.console import Console
from rich.table import Table
from step_seconds import seconds_of

PEERS = ("eager", "inductor")
FLOOR = {"float32": 1e-5, "bfloat16": 2e-2}


def _parts(torch: Any) -> dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], bool]]:
    """Return functions with the shapes of their operands, and whether they are differentiated."""
    functional = torch.nn.functional
    wide = (4096, 4096)

    def gelu_bias(x: Any, b: Any) -> Any:
        return functional.gelu(x + b, approximate="tanh") * 1.702 + x

    def gated(x: Any, y: Any) -> Any:
        return functional.silu(x) * y

    def norm(x: Any, w: Any, b: Any) -> Any:
        return functional.gelu(functional.layer_norm(x, (x.shape[-1],), w, b)) + x

    def rms(x: Any, w: Any) -> Any:
        return x * torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w

    def softmax(x: Any, b: Any) -> Any:
        return torch.softmax((x + b) * 0.125, -1)

    def entropy(x: Any) -> Any:
        return -(torch.log_softmax(x.float(), -1) * torch.softmax(x.float(), -1)).sum(-1)

    def turned(x: Any, y: Any) -> Any:
        return (x.t() + y).relu() * 0.5

    def mlp(x: Any, w: Any, v: Any) -> Any:
        return functional.gelu(x @ w) @ v

    return {
        "chain: gelu of a sum": (gelu_bias, (wide, (4096,)), False),
        "chain: gate": (gated, (wide, wide), False),
        "chain: transpose": (turned, (wide, wide), False),
        "rows: layer norm, gelu": (norm, (wide, (4096,), (4096,)), False),
        "rows: RMS norm": (rms, (wide, (4096,)), False),
        "rows: softmax of a sum": (softmax, (wide, (4096,)), False),
        "rows: entropy": (entropy, ((2048, 32000),), False),
        "mlp": (mlp, ((2048, 1024), (1024, 4096), (4096, 1024)), False),
        "step: layer norm, gelu": (norm, (wide, (4096,), (4096,)), True),
        "step: gate": (gated, (wide, wide), True),
        "step: mlp": (mlp, ((2048, 1024), (1024, 4096), (4096, 1024)), True),
        "step: block": (_block(torch), ((4, 512, 1024),), True),
    }


def _block(torch: Any) -> Callable[..., Any]:
    """Return a block of a transformer as GPT-2 has it, whose weights follow from a seed."""
    functional, size, heads = torch.nn.functional, 1024, 16
    weights: dict[Any, list[Any]] = {}

    def block(x: Any) -> Any:
        key = x.dtype, x.device
        w = weights[key]
        h = functional.layer_norm(x, (size,))
        q, k, v = (h @ w[0]).split(size, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + found.transpose(1, 2).flatten(-2) @ w[1]
        h = functional.layer_norm(x, (size,))
        return x + functional.gelu(h @ w[2], approximate="tanh") @ w[3]

    def prepare(x: Any) -> None:
        torch.manual_seed(1)
        shapes = ((size, 3 * size), (size, size), (size, 4 * size), (4 * size, size))
        made = [torch.randn(shape, dtype=torch.float64) * 0.02 for shape in shapes]
        weights[x.dtype, x.device] = [one.to(x.device, x.dtype).requires_grad_() for one in made]

    block.prepare = prepare  # type: ignore[attr-defined]
    return block


def _operand(torch: Any, what: Any, scale: float, device: str, dtype: Any, backward: bool) -> Any:
    """Return an operand of normal numbers of a shape, or one that is drawn otherwise."""
    if not isinstance(what, Drawn):
        made = torch.randn(what, dtype=torch.float64, device=device) * scale
        return made.to(dtype).requires_grad_(backward)
    if what.kind == "places":
        return torch.randint(0, what.limit, what.shape, device=device)
    made = torch.rand(what.shape, dtype=torch.float64, device=device)
    return made > 0.5 if what.kind == "mask" else (made * 0.9 + 0.05).to(dtype).requires_grad_(backward)


def _error(one: Any, exact: Any) -> float:
    """Return the largest error of a result; elements that are not finite have to be the same."""
    is_finite = exact.isfinite()
    infinite, others = one[~is_finite], exact[~is_finite]
    if not bool(((infinite == others) | (infinite.isnan() & others.isnan())).all()):
        return float("inf")
    one, exact = one[is_finite], exact[is_finite]
    return float((one - exact).abs().max() / (exact.abs().max() + 1e-30)) if exact.numel() else 0.0


class Work:
    """A function on one device, for all contestants."""

    def __init__(self, torch: Any, function: Any, shapes: Any, backward: bool, device: str, dtype: Any) -> None:
        self.torch, self.function, self.backward, self.device = torch, function, backward, device
        torch.manual_seed(0)
        few = len(shapes) > 2
        self.given = [
            _operand(torch, shape, 0.05 if few and i else 1, device, dtype, backward) for i, shape in enumerate(shapes)
        ]
        self.exact = [one.detach().double() if one.is_floating_point() else one for one in self.given]
        for each in (self.given, self.exact):
            if hasattr(function, "prepare"):
                function.prepare(each[0])

    def call(self, run: Callable[..., Any], given: list[Any]) -> list[Any]:
        """Return what a call computes: its results, or one with the gradients of its operands."""
        found = run(*given)
        if not self.backward:
            return list(found) if isinstance(found, tuple) else [found]
        smooth = [one for one in given if one.requires_grad]
        for one in smooth:
            one.grad = None
        found.backward(self.torch.ones_like(found))
        return [found.detach(), *(one.grad for one in smooth)]

    @cached_property
    def expected(self) -> list[Any]:
        """What a call computes of float64."""
        given = [one.requires_grad_(self.backward) if one.is_floating_point() else one for one in self.exact]
        return self.call(self.function, given)

    def errors(self, run: Callable[..., Any]) -> list[float]:
        """Return the largest error of each result, as a part of the largest exact element."""
        pairs = zip(self.call(run, self.given), self.expected, strict=True)
        return [_error(one.double(), other.double()) for one, other in pairs]

    def times(self, runs: dict[str, Callable[..., Any]], turns: int) -> dict[str, float]:
        """Return the seconds that a call of each contestant takes."""
        calls = {name: partial(self.call, run, self.given) for name, run in runs.items()}
        return seconds_of(self.torch, self.device, calls, turns)


def _contestants(torch: Any, work: Work, peers: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return what each contestant runs; nothing is left of works before."""
    from tessera.torch.compiled import backend as compiled

    torch._dynamo.reset()
    compiled.reports.clear()
    runs: dict[str, Callable[..., Any]] = {"eager": work.function}
    if "inductor" in peers:
        runs["inductor"] = torch.compile(work.function)
    runs["tessera"] = torch.compile(work.function, backend=compiled.backend)
    return runs


def _measure(torch: Any, name: str, work: Work, args: argparse.Namespace) -> tuple[Any, ...] | str:
    """Return a line of the table, or what is wrong."""
    from tessera.torch.compiled.backend import reports

    runs = _contestants(torch, work, args.peers)
    firsts: dict[str, float] = {}
    allowed = work.errors(runs["eager"])
    found = allowed
    for contestant in list(runs)[1:]:
        began = time.perf_counter()
        found = work.errors(runs[contestant])
        firsts[contestant] = time.perf_counter() - began
    if any(e > max(2 * a, FLOOR[args.dtype]) for e, a in zip(found, allowed, strict=True)):
        return f"{name}: errors {found}, eager's {allowed}"
    taken = work.times(runs, args.turns)
    return (
        name,
        *(1e3 * seconds for seconds in taken.values()),
        *(taken[peer] / taken["tessera"] for peer in args.peers),
        *firsts.values(),
        sum(report.kernels for report in reports),
        sum(sum(report.left.values()) for report in reports),
    )


def _columns(peers: Sequence[str]) -> tuple[str, ...]:
    """Return what a line of the table says."""
    times = [f"{name} ms" for name in (*peers, "tessera")]
    compiles = [f"{name} s" for name in (*peers[1:], "tessera")]
    return ("work", *times, *(f"of {name}" for name in peers), *compiles, "kernels", "ATen")


def main() -> int:
    """Measure and print."""
    args = _options()
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    if args.jobs:
        in_processes(_compile_share, args, args.jobs)
    columns = _columns(args.peers)
    lines: list[tuple[Any, ...]] = []
    is_wrong = False
    with lines_of(args.csv) as write:
        write(columns)
        for found in _outcomes(torch, args):
            if isinstance(found, str):
                is_wrong = True
                print(found, file=sys.stderr)
            else:
                lines.append(found)
                write(found)
    table = Table(*columns)
    for line in lines:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in line))
    Console(width=max(Console().width, 160)).print(table)
    for summary in _summaries(lines, columns.index(f"of {args.peers[-1]}"), args.peers[-1]):
        print(summary)
    return int(is_wrong)


def _options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(FLOOR))
    parser.add_argument("--suite", nargs="+", default=("parts",), choices=tuple(SUITES), help="which works")
    parser.add_argument("--only", nargs="+", default=(), help="works whose names have one of these parts")
    parser.add_argument("--minutes", type=float, help="begin no work after these, those of --jobs not counted")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile all works before")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS, help="whom to compare with")
    args = parser.parse_args()
    args.peers = [one for one in PEERS if one == "eager" or one in args.peers]
    return args


def _chosen(torch: Any, args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Yield the names of the works that are asked for, and what makes them."""
    works = {name: work for suite in args.suite for name, work in SUITES[suite](torch).items()}
    for name, (function, shapes, backward) in works.items():
        if not args.only or any(part in name for part in args.only):
            yield name, partial(Work, torch, function, shapes, backward, args.device, getattr(torch, args.dtype))


def _outcomes(torch: Any, args: argparse.Namespace) -> Iterator[tuple[Any, ...] | str]:
    """Yield a line of the table for each work, or what is wrong with it."""
    for name, make in begun_within(args.minutes, _chosen(torch, args)):
        try:
            yield _measure(torch, name, make(), args)
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {error}"


def _compile_share(args: argparse.Namespace, job: int) -> None:
    """Run each `jobs`-th work once; those that fail do so again where they are measured."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch = torch_or_none()
    for _, make in itertools.islice(_chosen(torch, args), job, None, args.jobs):
        work = make()
        for run in list(_contestants(torch, work, args.peers).values())[1:]:
            with contextlib.suppress(Exception):
                work.call(run, work.given)


def _summaries(lines: Sequence[tuple[Any, ...]], column: int, peer: str) -> list[str]:
    """Return how works of each kind stand to a peer."""
    found: list[str] = []
    for kind in dict.fromkeys(line[0].partition(":")[0] for line in lines):
        of = [line[column] for line in lines if line[0].partition(":")[0] == kind]
        level = sum(ratio >= 0.995 for ratio in of)
        found.append(
            f"{kind}: {len(of)} works, of {peer} {geometric_mean(of):.2f} (geometric mean), "
            f"{min(of):.2f} least, {level} level or faster"
        )
    return found


SUITES = {
    "parts": _parts,
    "ops": single,
    "chains": chains,
    "more-ops": more_ops,
    "more-chains": more_chains,
}


if __name__ == "__main__":
    sys.exit(main())
