"""Measures `ops.ssd`, `ops.linear_attention` and `ops.gated_delta_rule` beside chunks in plain PyTorch, in turns.

    python benchmarks/recurrent.py [--device cuda] [--csv results.csv] [--turns 3] [--positions 4096] [--batch 4]

On a GPU in bf16, beside the Triton kernels of `mamba_ssm` and `fla` too where they are installed; on a CPU in f32.
Times on a GPU are of single calls after a flush of L2. TFLOP/s count the operations of the recurrence, step by step:
products of chunks have more. "Copy" is the part of the rate of a copy at which inputs and results move, each once.
Results of smaller calls are compared with float64 first, and one that is further from it than rounding allows ends the
run with status 1.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from foundation import in_turns, torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

from tessera import ops as op
from tessera.numerics.dtypes import bf16, f32

ERROR = 3e-2
"""Largest difference allowed, as a part of the largest exact element."""
CHUNK = 64
WORKS = {"ssd": (32, 1, 128, 64), "linear_attention": (16, 16, 128, 128), "gated_delta_rule": (16, 16, 128, 128)}
"""Heads, heads of queries and keys, elements of these and of values."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    lines = list[tuple[Any, ...]]()
    for name in WORKS:
        error = worst(torch, name, args.device)
        if not error < ERROR:
            print(f"{name}: off by {error:.2e}", file=sys.stderr)
            return 1
        lines += measured(torch, name, args)
    columns = ("op", "pass", "contestant", "ms", "TFLOP/s", "Copy", "times Tessera's")
    table = Table(*columns)
    for line in lines:
        table.add_row(*line[:3], *(f"{value:.3f}" for value in line[3:]))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(lines)
    return 0


def operands(torch: Any, name: str, device: str, batch: int, positions: int) -> list[Any]:
    """Return queries, keys, values, numbers between 0 and 1 of places and heads, and a negative one of each head."""
    heads, groups, key, value = WORKS[name]
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = (batch, positions, groups, key), (batch, positions, groups, key), (batch, positions, heads, value)
    q, k, v = (torch.randn(size, device=device) for size in sizes)
    k = torch.nn.functional.normalize(k, dim=3)
    places = torch.rand(batch, positions, heads, device=device)
    return [*(one.to(kind) for one in (q, k, v)), places, -torch.rand(heads, device=device) - 0.05]


def tessera(name: str, q: Any, k: Any, v: Any, places: Any, rates: Any) -> Any:
    """Return what an op gives; decays of linear attention and the delta rule are those of `places` and `rates` too."""
    if name == "ssd":
        return op.ssd(v, places, rates, k, q)
    if name == "linear_attention":
        return op.linear_attention(q, k, v, places * rates, scale=1.0)
    return op.gated_delta_rule(q, k, v, places * rates, places, scale=1.0)


def plain(torch: Any, name: str, q: Any, k: Any, v: Any, places: Any, rates: Any) -> Any:
    """Return the same by products of chunks in PyTorch."""
    batch, positions, heads, _ = v.shape
    q, k = (one.repeat_interleave(heads // q.shape[2], 2) for one in (q, k))
    cut = lambda one: one.reshape(batch, -1, CHUNK, *one.shape[2:]).transpose(2, 3)  # noqa: E731
    q, k, v = map(cut, (q, k, v))
    places, sums = (cut(one[..., None])[..., 0] for one in (places, places * rates))
    sums = sums.cumsum(3)
    apart = sums[..., :, None] - sums[..., None, :]
    hidden = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).triu(1)
    left = torch.exp(apart.masked_fill(hidden, -torch.inf))
    faded, rest, whole = torch.exp(sums), torch.exp(sums[..., -1:] - sums), torch.exp(sums[..., -1])
    keys = None
    if name == "gated_delta_rule":
        below = ((k @ k.transpose(3, 4)).to(left.dtype) * left * places[..., None]).tril(-1)
        inverse = torch.linalg.solve_triangular(below, torch.diag_embed(places), upper=False, unitriangular=True)
        keys = (inverse * faded[..., None, :]).to(k.dtype) @ k
        v = inverse.to(v.dtype) @ v
    elif name == "ssd":
        v = v * places[..., None].to(v.dtype)
    scores = ((q @ k.transpose(3, 4)).to(left.dtype) * left).to(v.dtype)
    kept = (k * rest[..., None].to(k.dtype)).transpose(3, 4)
    state = torch.zeros(batch, heads, k.shape[4], v.shape[4], device=v.device, dtype=left.dtype)
    found = []
    for c in range(v.shape[1]):
        held = state.to(v.dtype)
        values = v[:, c] - keys[:, c] @ held if keys is not None else v[:, c]
        found.append(scores[:, c] @ values + (q[:, c] @ held) * faded[:, c, ..., None].to(v.dtype))
        state = whole[:, c, :, None, None] * state + kept[:, c] @ values
    return torch.stack(found, 1).transpose(2, 3).reshape(batch, positions, heads, -1)


def peers(torch: Any, name: str, device: str) -> dict[str, Callable[..., Any]]:
    """Return contestants by name: plain PyTorch, and what is installed."""
    found: dict[str, Callable[..., Any]] = {"PyTorch": partial(plain, torch, name)}
    module, attribute = {
        "ssd": ("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined"),
        "linear_attention": ("fla.ops.simple_gla", "chunk_simple_gla"),
        "gated_delta_rule": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    }[name]
    try:
        call: Any = getattr(importlib.import_module(module), attribute) if device == "cuda" else None
    except ImportError:
        call = None
    if call is not None and name == "ssd":
        found["mamba_ssm"] = lambda q, k, v, places, rates: call(v, places, rates, k, q, chunk_size=256)
    elif call is not None and name == "linear_attention":
        found["fla"] = lambda q, k, v, places, rates: call(q, k, v, places * rates, scale=1.0)[0]
    elif call is not None:
        found["fla"] = lambda q, k, v, places, rates: call(q, k, v, places * rates, places, scale=1.0)[0]
    return found


def worst(torch: Any, name: str, device: str) -> float:
    """Return the largest difference of a smaller call from float64."""
    given = operands(torch, name, device, 1, 5 * CHUNK)
    exact = plain(torch, name, *(one.double() for one in given))
    return float((tessera(name, *given).double() - exact).abs().max() / exact.abs().max())


def measured(torch: Any, name: str, args: argparse.Namespace) -> list[tuple[Any, ...]]:
    """Return a line for each pass and contestant."""
    given = operands(torch, name, args.device, args.batch, args.positions)
    forms = {"Tessera": partial(tessera, name), **peers(torch, name, args.device)}
    q, _, v, *_ = (one.shape for one in given)
    work, dtype = getattr(op, name), bf16 if args.device == "cuda" else f32
    flops = work.flops(*((v, q) if name == "ssd" else (q, v)))
    moved = work.bytes(*((v, q) if name == "ssd" else (q, v)), dtype)
    source, goal = (torch.empty(moved // 2, dtype=torch.uint8, device=args.device) for _ in range(2))
    timer = Timer(torch, 0.1) if args.device == "cuda" else None
    timed = timer.flushed_in_turns if timer is not None else in_turns
    passes = {
        "forward": {each: partial(form, *given) for each, form in forms.items()},
        "both": {each: partial(trained, torch, form, given) for each, form in forms.items()},
    }
    lines = list[tuple[Any, ...]]()
    for direction, calls in passes.items():
        seconds = timed({**calls, "copy": partial(goal.copy_, source)}, args.turns)
        copied = seconds.pop("copy")
        for each, taken in seconds.items():
            rate = 1e-12 * flops * (3 if direction == "both" else 1) / taken
            part = copied * (3 if direction == "both" else 1) / taken
            lines.append((name, direction, each, 1e3 * taken, rate, part, taken / seconds["Tessera"]))
    return lines


def trained(torch: Any, form: Callable[..., Any], given: list[Any]) -> Any:
    """Return the gradients of a call."""
    wide = [one.detach().requires_grad_() for one in given]
    out = form(*wide)
    return torch.autograd.grad(out, wide, torch.ones_like(out))


if __name__ == "__main__":
    raise SystemExit(main())
