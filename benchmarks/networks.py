"""Measures whole networks through `torch.compile(backend="tessera")`, beside eager PyTorch and Inductor.

    python benchmarks/networks.py [--scale full] [--device cuda] [--dtype bfloat16] [--only llama gpt] [--csv file.csv]

Networks are written as people write them in plain PyTorch, and run forwards and backwards. For each: the time of a
step, the seconds of the first one with compilation, kernels, what is left to ATen, how often a new size compiles anew,
and the error against float64 as a ratio to eager's, the largest among results and gradients. A ratio above 2 ends the
run with status 1. Networks are in `networks_*.py`; `--peers eager` leaves Inductor away, `--no-times` the times of
steps, `--one-size` new sizes. Each line is in the file once its network is done.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foundation import begun_within, lines_of, torch_or_none
from network import Network, Scale
from rich.console import Console
from rich.table import Table
from step_seconds import seconds_of

EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
"""An error of less than this counts as this: it is that of rounding an exact result."""
MODULES = ("networks_transformers", "networks_other")
PEERS = ("eager", "inductor")


def networks() -> dict[str, Network]:
    """Return all networks by their names."""
    found = [one for name in MODULES if find_spec(name) for one in import_module(name).networks()]
    return {one.name: one for one in found}


class Work:
    """A network on one device, with its inputs.

    Args:
        torch: PyTorch.
        network: the network.
        scale: its sizes.
        device: where it runs.
        dtype: of its parameters.
    """

    def __init__(self, torch: Any, network: Network, scale: Scale, device: str, dtype: Any) -> None:
        self.torch, self.network, self.scale, self.device, self.dtype = torch, network, scale, device, dtype
        torch.manual_seed(0)
        self.module = network.build(scale).to(device, dtype)
        self.exact = copy.deepcopy(self.module).double()
        self._weights: dict[tuple[Any, ...], Any] = {}

    def inputs(self, more: int = 0) -> list[Any]:
        """Return arguments, of which batch and length are larger by some number."""
        self.torch.manual_seed(1)
        given = [one.to(self.device) for one in self.network.inputs(self.scale, more)]
        return [
            one.to(self.dtype).requires_grad_(self.network.trains) if one.is_floating_point() else one for one in given
        ]

    def step(self, run: Callable[..., Any], module: Any, given: Sequence[Any]) -> list[Any]:
        """Return what a network gives, and the gradients of its arguments and parameters by weights of a seed."""
        found = run(*given)
        results = [one for one in (found if isinstance(found, tuple) else (found,)) if one is not None]
        smooth = [one for one in results if one.is_floating_point() and one.requires_grad]
        if not self.network.trains or not smooth:
            return [one.detach() for one in results]
        by = [one for one in (*given, *module.parameters()) if one.requires_grad]
        weights = [self._weight(place, one) for place, one in enumerate(smooth)]
        grads = self.torch.autograd.grad(smooth, by, weights, allow_unused=True)
        return [one.detach() for one in (*results, *grads) if one is not None]

    def _weight(self, place: int, like: Any) -> Any:
        """Return what a result is weighed by: the same numbers for all dtypes, kept as steps are timed."""
        key = place, like.shape, like.dtype
        if key not in self._weights:
            numbers = self.torch.Generator(like.device).manual_seed(2 + place)
            made = self.torch.rand(like.shape, dtype=self.torch.float64, device=like.device, generator=numbers)
            self._weights[key] = made.to(like.dtype)
        return self._weights[key]

    def errors(self, run: Callable[..., Any], more: int = 0) -> list[float]:
        """Return the error of each result as a part of the exact one, by norms.

        What is 0 but for rounding, as the gradient of a bias of keys, counts as a thousandth of the largest result.
        """
        given = self.inputs(more)
        wide = [
            one.detach().double().requires_grad_(one.requires_grad) if one.is_floating_point() else one for one in given
        ]
        exact = self.step(self.exact, self.exact, wide)
        sizes = [float(one.double().norm()) for one in exact]
        least = 1e-3 * max(sizes) + 1e-30
        found = zip(self.step(run, self.module, given), exact, sizes, strict=True)
        return [float((one.double() - other).norm()) / max(size, least) for one, other, size in found]

    def times(self, runs: dict[str, Callable[..., Any]], turns: int) -> dict[str, float]:
        """Return the seconds of a step of each contestant."""
        given = self.inputs()
        calls = {name: partial(self.step, run, self.module, given) for name, run in runs.items()}
        return seconds_of(self.torch, self.device, calls, turns)


class Measured:
    """What is found out about a network.

    Args:
        torch: PyTorch.
        work: the network.
        peers: whom it is compared with.
    """

    def __init__(self, torch: Any, work: Work, peers: Sequence[str]) -> None:
        from tessera.torch.compiled import backend as compiled

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled.reports.clear()
        self._torch, self._work, self._reports = torch, work, compiled.reports
        self.runs: dict[str, Callable[..., Any]] = {"eager": work.module}
        if "inductor" in peers:
            self.runs["inductor"] = torch.compile(work.module)
        self.runs["tessera"] = torch.compile(work.module, backend=compiled.backend)
        self.firsts: dict[str, float] = {}

    @property
    def kernels(self) -> int:
        """Kernels of all graphs."""
        return sum(report.kernels for report in self._reports)

    @property
    def left(self) -> Counter[str]:
        """How often each op runs as ATen; graphs that run as PyTorch traced them by their reason."""
        found = Counter[str]()
        for report in self._reports:
            found += report.left
            if report.reason:
                found[f"all: {report.reason}"] += 1
        return found

    def ratio(self, more: int = 0) -> float:
        """Return the largest error as a ratio to eager's, 0 for a network that is random."""
        epsilon = EPSILON[str(self._work.dtype).removeprefix("torch.")]
        allowed = self._work.errors(self.runs["eager"], more)
        for name in self.runs:
            if name == "eager":
                continue
            began = time.perf_counter()
            found = self._work.errors(self.runs[name], more)
            self.firsts.setdefault(name, time.perf_counter() - began)
        if self._work.network.is_random:
            return 0.0
        return max(one / max(other, epsilon) for one, other in zip(found, allowed, strict=True))

    def again(self) -> tuple[int, float]:
        """Return how many graphs are compiled once two other sizes have been seen, and the largest ratio of errors."""
        if not self._work.network.any_size:
            return 0, 0.0
        first = self.ratio(1)
        before = len(self._reports)
        second = self.ratio(2)
        return len(self._reports) - before, max(first, second)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", default="small", choices=("small", "full"))
    parser.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="float32", choices=tuple(EPSILON))
    parser.add_argument("--only", nargs="+", default=(), help="networks whose names have one of these parts")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--no-times", action="store_true", help="measure no times of steps")
    parser.add_argument("--one-size", action="store_true", help="try no other sizes")
    parser.add_argument("--minutes", type=float, help="begin no network after these")
    parser.add_argument("--csv", type=Path, help="file for the results")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    contestants = ("eager", "inductor", "tessera")
    columns = (
        "network",
        *(f"{one} ms" for one in contestants),
        "inductor s",
        "tessera s",
        "kernels",
        "anew",
        "error",
        "ATen",
    )
    lines: list[tuple[Any, ...]] = []
    with lines_of(args.csv) as write:
        write(columns)
        for _, network in begun_within(args.minutes, _chosen(args.only)):
            lines.append(_line(torch, network, args))
            write(lines[-1])
    table = Table(*columns)
    for line in lines:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in line))
    Console(width=max(Console().width, 180)).print(table)
    return int(any(line[8] > 2 for line in lines))


def _chosen(parts: Sequence[str]) -> list[tuple[str, Network]]:
    return [(name, one) for name, one in networks().items() if not parts or any(part in name for part in parts)]


def _line(torch: Any, network: Network, args: argparse.Namespace) -> tuple[Any, ...]:
    """Return what is found out about a network, as a line of the table."""
    work = Work(torch, network, args.scale, args.device, getattr(torch, args.dtype))
    measured = Measured(torch, work, args.peers)
    ratio = measured.ratio()
    kernels, left, firsts = measured.kernels, measured.left, dict(measured.firsts)
    taken = {} if args.no_times else work.times(measured.runs, args.turns)
    anew, other = (0, 0.0) if args.one_size else measured.again()
    print(f"{network.name}: error {max(ratio, other):.2f} of eager's, {kernels} kernels", file=sys.stderr)
    return (
        network.name,
        *(1e3 * taken[one] if one in taken else "" for one in ("eager", "inductor", "tessera")),
        *(firsts.get(one, "") for one in ("inductor", "tessera")),
        kernels,
        anew,
        max(ratio, other),
        ", ".join(f"{name.removeprefix('aten.')} {count}" for name, count in left.most_common()),
    )


if __name__ == "__main__":
    sys.exit(main())
