"""Programs that divide work among themselves while they run: queues, tickets, chained sums, parts of one product."""

from itertools import pairwise
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tests.conformance.data import normal
from tests.conformance.harness import Close, Output, Updated, check, conformance
from tests.conformance.workloads import case, wide

PARTS = 4


def queue(
    start: ts.Tensor["w+1", ts.i32],
    x: ts.Tensor["n", ts.f32],
    y: ts.Tensor["n", ts.f32],
    head: ts.Tensor[1, ts.i32],
):
    for _ in ts.tile.grid((3, 1)):
        while True:
            item = ts.tile.atomic_add(head[0], 1)
            if item >= w:
                break
            first, last = start[item], start[item + 1]
            if first == last:
                continue
            for i in ts.tile.range(first, last, 32):
                at = i + ts.tile.arange(32)
                if at < last:
                    y[at] = x[at] * 2.0 - item


def _segments(rng: np.random.Generator, w: int) -> list[Any]:
    counts = rng.integers(0, 80, w)
    counts[::3] = 0
    start = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    n = int(start[-1]) + 2
    return [start, normal(rng, (n,), ts.f32), Output((n,), ts.f32), Updated(np.zeros(1, np.int32))]


def _queue(start: np.ndarray, x: np.ndarray, y: np.ndarray, head: np.ndarray) -> Any:
    found = y.copy()
    for item, (first, last) in enumerate(pairwise(start)):
        found[first:last] = x[first:last] * np.float32(2) - np.float32(item)
    return found, head + len(start) + 2


def last_adds_up(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    parts: ts.Tensor[PARTS, "M", "N", ts.f32],
    done: ts.Tensor["t", ts.i32],
    y: ts.Tensor["M", "N", ts.f32],
):
    for m, n, s in ts.tile.grid((M, 16), (N, 32), (PARTS, 1)):
        acc = ts.tile.zeros((16, 32))
        for k in ts.tile.range(s * 16, K, 16 * PARTS):
            acc = ts.tile.mma(a[m : m + 16, k : k + 16], b[k : k + 16, n : n + 32], acc)
        parts[s, m : m + 16, n : n + 32] = acc
        here = m // 16 * ts.cdiv(N, 32) + n // 32
        if ts.tile.atomic_add(done[here], 1, order="acq_rel") == PARTS - 1:
            total = ts.tile.zeros((16, 32))
            for part in ts.tile.range(PARTS):
                total += parts[part, m : m + 16, n : n + 32]
            y[m : m + 16, n : n + 32] = total
            done[here] = 0


def _last_adds_up(a: Any, b: Any, parts: Any, done: Any, y: Any) -> Any:
    of_part = np.arange(a.shape[1]) // 16 % PARTS
    each = np.stack([wide(a)[:, of_part == s] @ wide(b)[of_part == s] for s in range(PARTS)])
    magnitude = abs(wide(a)) @ abs(wide(b))
    return Close(each, magnitude), np.zeros_like(done), Close(each.sum(0), magnitude)


def stream_k(
    a: ts.Tensor["M", "K", ts.f32],
    b: ts.Tensor["K", "N", ts.f32],
    y: ts.Tensor["M", "N", ts.f32],
    programs: ts.constexpr,
):
    columns, steps = ts.cdiv(N, 16), ts.cdiv(K, 8)
    work = ts.cdiv(M, 16) * columns * steps
    share = ts.cdiv(work, programs)
    for p in ts.tile.grid((programs, 1)):
        at, end = p * share, min(p * share + share, work)
        while at < end:
            tile, first = at // steps, at % steps
            count = min(steps - first, end - at)
            m, n = tile // columns * 16, tile % columns * 16
            acc = ts.tile.zeros((16, 16))
            for k in ts.tile.range(first, first + count):
                acc = ts.tile.mma(a[m : m + 16, k * 8 : k * 8 + 8], b[k * 8 : k * 8 + 8, n : n + 16], acc)
            ts.tile.atomic_add(y[m : m + 16, n : n + 16], acc)
            at += count


def _stream_k(a: Any, b: Any, y: Any) -> Close:
    return Close(wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b)))


def kept_in_order(
    x: ts.Tensor["n", ts.f32],
    y: ts.Tensor["n", ts.f32],
    kept: ts.Tensor["blocks", ts.u64],
    ticket: ts.Tensor[1, ts.i32],
):
    for _ in ts.tile.grid((blocks, 1)):
        block = ts.tile.atomic_add(ticket[0], 1)
        values = x[block * 32 : block * 32 + 32]
        keep = values > 0.0
        rank = ts.tile.cumsum(keep.to(ts.i32))
        before = rank[31] * 0
        if block > 0:
            seen = ts.tile.atomic_load(kept[block - 1], order="acquire")
            while seen == 0:
                seen = ts.tile.atomic_load(kept[block - 1], order="acquire")
            before = (seen - 1).to(ts.i32)
        ts.tile.atomic_store(kept[block], (before + rank[31] + 1).to(ts.u64), order="release")
        if keep:
            y[before + rank - 1] = values


def _kept_in_order(x: np.ndarray, y: np.ndarray, kept: np.ndarray, ticket: np.ndarray) -> Any:
    found, chosen = y.copy(), x[x > 0]
    found[: len(chosen)] = chosen
    counts = [(x[: 32 * block + 32] > 0).sum() + 1 for block in range(len(kept))]
    return found, np.array(counts, np.uint64), ticket + len(kept)


@conformance(
    [
        *(case(f"queue-{w}", queue, lambda rng, w=w: _segments(rng, w), _queue) for w in (1, 8)),
        *(
            case(
                f"last-adds-up-{m}-{n}-{k}",
                last_adds_up,
                lambda rng, m=m, n=n, k=k: [
                    normal(rng, (m, k), ts.bf16),
                    normal(rng, (k, n), ts.bf16),
                    Output((PARTS, m, n), ts.f32),
                    Updated(np.zeros(-(-m // 16) * -(-n // 32), np.int32)),
                    Output((m, n), ts.f32),
                ],
                _last_adds_up,
            )
            for m, n, k in ((20, 33, 70), (1, 1, 1))
        ),
        *(
            case(
                f"stream-k-{m}-{n}-{k}",
                stream_k,
                lambda rng, m=m, n=n, k=k: [
                    normal(rng, (m, k), ts.f32),
                    normal(rng, (k, n), ts.f32),
                    Updated(np.zeros((m, n), np.float32)),
                ],
                _stream_k,
                constexprs={"programs": 5},
            )
            for m, n, k in ((35, 17, 41), (5, 3, 0), (0, 5, 3))
        ),
        *(
            case(
                f"kept-in-order-{n}",
                kept_in_order,
                lambda rng, n=n: [
                    normal(rng, (n,), ts.f32),
                    Output((n,), ts.f32),
                    Updated(np.zeros(-(-n // 32), np.uint64)),
                    Updated(np.zeros(1, np.int32)),
                ],
                _kept_in_order,
                EXACT,
            )
            for n in (1, 150)
        ),
    ]
)
def test_shared_work(case, backend):
    check(case, backend)
