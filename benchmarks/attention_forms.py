"""Measures forms of `ops.flash_attention` on a GPU: a user's own functions beside FlexAttention, packed sequences.

    python benchmarks/attention_forms.py [--csv results.csv] [--turns 3] [--positions 4096] [--only alibi varlen]

bf16, heads of 128, 16 of them. FlexAttention is compiled by `torch.compile` with block masks of its own; ratios above 1
mean that Tessera is faster. Packed sequences are measured beside a batch of sequences that are all as long as their
mean, and the ratio is that of operations per second. Dropout is beside PyTorch's attention with as much of it, whose
results are others. Times are of single calls after a flush of L2, in turns. Results
are compared with the peer's first, and one that is further from it than rounding allows ends the run with status 1.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts
from tessera import ops as op

BATCH, HEADS, SIZE = 4, 16, 128
ERROR = 2e-2
"""Largest difference from the peer, as a part of its largest element."""
WINDOW = 1024
DROPPED = 0.1
PARTS = (0.5, 0.2, 1.9, 1.4)
"""Lengths of packed sequences as parts of the mean."""


@ts.function
def alibi(score, b, h, q, k, slopes):
    """Return a score less by the distance."""
    return score - slopes[h] * ts.tile.abs(q - k).to(ts.f32)


@ts.function
def capped(score, b, h, q, k):
    """Return a score between -30 and 30."""
    return 30.0 * ts.tile.tanh(score * (1.0 / 30.0))


@ts.function
def causal(b, h, q, k):
    """Return whether a key is not behind the query."""
    return k <= q


@ts.function
def sliding(b, h, q, k):
    """Return whether a key is one of the last ones, or of the first."""
    return (k <= q) & ((q - k < WINDOW) | (k < 64))


@ts.function
def documents(b, h, q, k, of):
    """Return whether a key is of the same document, and not behind the query."""
    return (of[q] == of[k]) & (k <= q)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--positions", type=int, nargs="+", default=(4096,))
    parser.add_argument(
        "--only", nargs="+", default=("alibi", "capped", "causal", "sliding", "documents", "varlen", "dropout")
    )
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    lines = list[tuple[Any, ...]]()
    for positions in args.positions:
        for form in args.only:
            try:
                lines += {"varlen": packed, "dropout": dropped}.get(form, functions)(torch, args.turns, positions, form)
            except WrongResult as error:
                print(error, file=sys.stderr)
                return 1
    columns = ("form", "pass", "positions", "Tessera ms", "peer ms", "ratio")
    table = Table(*columns)
    for line in lines:
        table.add_row(*map(str, line[:3]), f"{line[3]:.3f}", f"{line[4]:.3f}", f"{line[5]:.3f}")
    Console().print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(lines)
    return 0


class WrongResult(Exception):
    """A result differs from the peer's."""


def functions(torch: Any, turns: int, positions: int, form: str) -> list[tuple[Any, ...]]:
    """Return a line for each pass of a form beside FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, grad = (torch.randn(BATCH, HEADS, positions, SIZE, device="cuda").bfloat16() for _ in range(4))
    slopes = torch.exp2(-torch.arange(1, HEADS + 1, device="cuda") / 2)
    of = torch.arange(positions, device="cuda", dtype=torch.int32) // (positions // 5)
    theirs = {
        "alibi": lambda s, b, h, q, k: s - slopes[h] * (q - k).abs(),
        "capped": lambda s, b, h, q, k: 30 * torch.tanh(s / 30),
        "causal": lambda b, h, q, k: k <= q,
        "sliding": lambda b, h, q, k: (k <= q) & ((q - k < WINDOW) | (k < 64)),
        "documents": lambda b, h, q, k: (of[q] == of[k]) & (k <= q),
    }[form]
    ours = {
        "alibi": op.attn.mod(alibi, slopes),
        "capped": capped,
        "causal": causal,
        "sliding": sliding,
        "documents": op.attn.mod(documents, of),
    }[form]
    torch.compiler.reset()  # it gives up compiling a function again after some times
    compiled = torch.compile(flex_attention)
    if form in ("alibi", "capped"):
        given, other = {"score_mod": ours}, {"score_mod": theirs}
    else:
        given = {"mask_mod": op.attn.block_mask(ours, 1, 1, positions, positions, like=q)}
        other = {"block_mask": create_block_mask(theirs, None, None, positions, positions)}
    forms = {
        "Tessera": lambda *arrays: op.flash_attention(*arrays, **given),
        "FlexAttention": lambda *arrays: compiled(*arrays, **other),
    }
    return passes(torch, turns, (form, positions), forms, (q, k, v, grad))


def passes(
    torch: Any, turns: int, names: tuple[str, int], forms: dict[str, Callable[..., Any]], given: tuple[Any, ...]
) -> list[tuple[Any, ...]]:
    """Return a line for each pass, after a comparison."""
    *inputs, grad = given
    wide = [one.clone().requires_grad_() for one in inputs]
    results = {name: call(*wide) for name, call in forms.items()}
    slopes = {name: torch.autograd.grad(one, wide, grad, retain_graph=True) for name, one in results.items()}
    ours, theirs = ((results[name], *slopes[name]) for name in forms)
    for one, other in zip(ours, theirs, strict=True):
        off = float((one.float() - other.float()).abs().max() / other.float().abs().max())
        if not off < ERROR:
            raise WrongResult(f"{names[0]}: off by {off:.2e}")
    return timed(torch, turns, names, forms, given)


def timed(
    torch: Any, turns: int, names: tuple[str, int], forms: dict[str, Callable[..., Any]], given: tuple[Any, ...]
) -> list[tuple[Any, ...]]:
    """Return a line for each pass."""
    *inputs, grad = given
    wide = [one.clone().requires_grad_() for one in inputs]
    results = {name: call(*wide) for name, call in forms.items()}
    timer = Timer(torch, 0.1)
    calls = {
        "forward": {name: (lambda call=call: call(*inputs)) for name, call in forms.items()},
        "backward": {
            name: (lambda one=one: torch.autograd.grad(one, wide, grad, retain_graph=True))
            for name, one in results.items()
        },
    }
    lines = list[tuple[Any, ...]]()
    for direction, each in calls.items():
        mine, peer = (1e3 * taken for taken in timer.flushed_in_turns(each, turns).values())
        lines.append((names[0], direction, names[1], mine, peer, peer / mine))
    return lines


def dropped(torch: Any, turns: int, positions: int, form: str) -> list[tuple[Any, ...]]:
    """Return a line for each pass with dropout, causal or not, beside PyTorch's."""
    lines = list[tuple[Any, ...]]()
    for is_causal in (False, True):
        given = tuple(torch.randn(BATCH, HEADS, positions, SIZE, device="cuda").bfloat16() for _ in range(4))
        forms = {
            "Tessera": partial(op.flash_attention, causal=is_causal, dropout_p=DROPPED, seed=5),
            "PyTorch": partial(
                torch.nn.functional.scaled_dot_product_attention, is_causal=is_causal, dropout_p=DROPPED
            ),
        }
        lines += timed(torch, turns, (f"{form} causal" if is_causal else form, positions), forms, given)
    return lines


def packed(torch: Any, turns: int, positions: int, form: str) -> list[tuple[Any, ...]]:
    """Return a line for each pass of packed sequences beside a batch of equal ones; the ratio is of operations."""
    return [line for causal in (False, True) for line in packed_form(torch, turns, positions, causal)]


def packed_form(torch: Any, turns: int, positions: int, is_causal: bool) -> list[tuple[Any, ...]]:
    """The same, causal or not."""
    lengths = [int(part * positions) for part in PARTS]
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    *ours, grad = (torch.randn(sum(lengths), HEADS, SIZE, device="cuda").bfloat16().requires_grad_() for _ in range(4))
    shape = BATCH, HEADS, positions, SIZE
    *theirs, other_grad = (torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in range(4))

    def together() -> Any:
        return op.flash_attention_varlen(*ours, starts, max_seqlen_q=max(lengths), causal=is_causal)

    def apart() -> Any:
        return op.flash_attention(*theirs, causal=is_causal)

    out, other = together(), apart()
    calls = {
        "forward": {"packed": torch.no_grad()(together), "batch": torch.no_grad()(apart)},
        "backward": {
            "packed": lambda: torch.autograd.grad(out, ours, grad, retain_graph=True),
            "batch": lambda: torch.autograd.grad(other, theirs, other_grad, retain_graph=True),
        },
    }
    work = sum(one**2 for one in lengths) / (BATCH * positions**2)
    lines = list[tuple[Any, ...]]()
    for direction, both in calls.items():
        mine, peer = (1e3 * taken for taken in Timer(torch, 0.1).flushed_in_turns(both, turns).values())
        name = "varlen causal" if is_causal else "varlen"
        lines.append((name, direction, positions, mine, peer, peer * work / mine))
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
