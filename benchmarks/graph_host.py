"""Measures what a call of a small compiled model costs the host: eager PyTorch, Inductor and Tessera, in turns.

    python benchmarks/graph_host.py [--device cpu] [--mode reduce-overhead] [--turns 7] [--csv results.csv]

Arrays are so small that a GPU waits for its host: a call's time is the host's. Every model is called 200 times in a row
for each turn, and the median turn counts; results are compared with eager PyTorch first. With `reduce-overhead` both
compiled ones replay CUDA graphs.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from foundation import torch_or_none
from rich.console import Console
from rich.table import Table

CALLS = 200
WIDTH = 256


def models(torch: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return small models by name, with the shape of what they take."""
    return {**_layers(torch), **_networks(torch)}


def _layers(torch: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    functional = torch.nn.functional

    class Rows(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count, self.weight = count, torch.nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            for _ in range(self.count):
                x = functional.rms_norm(x, (WIDTH,), self.weight).transpose(0, 1).contiguous()
            return x

    class Layers(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(count))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = functional.gelu(layer(x)) + x
            return x

    square = WIDTH, WIDTH
    return {
        "1 norm": (Rows(1), square),
        "8 norms": (Rows(8), square),
        "1 layer": (Layers(1), square),
        "8 layers": (Layers(8), square),
    }


def _networks(torch: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    functional = torch.nn.functional

    class Images(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            nn, part = torch.nn, range(count)
            self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in part)
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in part)

        def forward(self, x: Any) -> Any:
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = functional.relu(norm(convolution(x)))
            return x

    class Blocks(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            nn, part = torch.nn, range(count)
            self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in part)
            self.heads = nn.ModuleList(nn.Linear(32, 96) for _ in part)
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in part)

        def forward(self, x: Any) -> Any:
            for norm, heads, layer in zip(self.norms, self.heads, self.layers, strict=True):
                q, k, v = heads(norm(x)).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4)
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + functional.gelu(layer(y.transpose(1, 2).flatten(2)))
            return x

    class Cells(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count, self.cell = count, torch.nn.LSTMCell(8, 8)

        def forward(self, x: Any) -> Any:
            h = c = torch.zeros_like(x)
            for _ in range(self.count):
                h, c = self.cell(x, (h, c))
            return h

    return {
        "3 convolutions": (Images(3), (2, 8, 4, 4)),
        "2 blocks": (Blocks(2), (1, 16, 32)),
        "8 cells": (Cells(8), (2, 8)),
    }


def calls(torch: Any, device: str, dtype: Any, mode: str) -> dict[tuple[str, str, str], Callable[[], Any]]:
    """Return calls by model, way and contestant, compiled and compared."""
    from tessera.torch.compiled.backend import backend

    found: dict[tuple[str, str, str], Callable[[], Any]] = {}
    for name, (model, shape) in models(torch).items():
        model = model.to(device, dtype)
        for way in ("forwards", "both ways"):
            x = torch.randn(shape, device=device, dtype=dtype, requires_grad=way == "both ways")
            wanted = None
            for contestant in ("eager", "inductor", "tessera"):
                torch._dynamo.reset()
                how = backend if contestant == "tessera" else "inductor"
                run = model if contestant == "eager" else torch.compile(model, backend=how, mode=mode)
                found[name, way, contestant] = call = _call(torch, run, x)
                result = call().float()
                wanted = result if wanted is None else wanted
                torch.testing.assert_close(result, wanted, rtol=0.1, atol=0.1)
    return found


def _call(torch: Any, run: Callable[..., Any], x: Any) -> Callable[[], Any]:
    def forwards() -> Any:
        with torch.no_grad():
            return run(x)

    def both_ways() -> Any:
        result = run(x)
        result.backward(x.detach())
        return result

    return both_ways if x.requires_grad else forwards


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--mode", default="default", choices=("default", "reduce-overhead"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch = torch_or_none()
    if torch is None or (options.device == "cuda" and not torch.cuda.is_available()):
        print("needs PyTorch and the device")
        return 1
    wait: Callable[[], None] = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    contestants = calls(torch, options.device, getattr(torch, options.dtype), options.mode)
    times: dict[tuple[str, str, str], list[float]] = {key: [] for key in contestants}
    for _ in range(options.turns + 1):
        for key, call in contestants.items():
            call()
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            wait()
            times[key].append((time.perf_counter() - start) / CALLS * 1e6)
    rows: list[tuple[str, ...]] = []
    for name, way, _ in [key for key in times if key[2] == "tessera"]:
        found = [median(times[name, way, one][1:]) for one in ("eager", "inductor", "tessera")]
        rows.append((f"{name}, {way}", *(f"{one:.1f}" for one in found), f"{found[1] / found[2]:.2f}"))
    head = ("model", "eager µs", "inductor µs", "tessera µs", "of inductor")
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
