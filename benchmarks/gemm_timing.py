"""Time on the GPU for `gemm.py`: of launches replayed from a CUDA graph, and of single calls after a flush of L2.

Replayed, no host is in the way: a graph holds many launches one after the other, over as many sets of operands as
together exceed L2 three times, so that each launch finds its operands in device memory. That is what a kernel takes
inside a program that keeps the GPU busy, and the only fair figure for one of 20 µs. Between two launches of a graph
lies about a microsecond, which every contestant pays.

Flushed is the way of `triton.testing.do_bench`: L2 is overwritten, then one call is timed between two events. The
host queues the call while the flush still runs, which is repeated where a call takes the host longer than that, so that
launching costs nothing. A host that other processes share now and then takes ten times as long as just before: a call
that it queued after the flush had ended does not count.

Both are applied to every contestant alike, to the same tensors, in turns, and the median turn counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import tessera as ts

Call = Callable[[], Any]

REPLAY_S = 5e-3
"""Time of a graph: its own launch, a few microseconds, is to vanish in it."""
MOST_LAUNCHES = 1000
MOST_SETS = 64
LEAD = 2.0
"""How much longer flushes take than the host takes to queue a call: it has other work now and then."""
HOST_CALLS = 5
MOST_FLUSHES = 64
"""Before a call; a host that needs longer to queue it is what is measured."""
PAUSE_S = 0.02
"""Before a turn, so that each starts from a GPU alike warm."""


@dataclass(frozen=True)
class Seconds:
    """Median turns of one contestant.

    Args:
        replayed: of a launch in a graph; None when the calls could not be captured.
        flushed: of a call after a flush.
    """

    replayed: float | None
    flushed: float


class NotCapturable(Exception):
    """A CUDA graph cannot hold the calls."""


def sets_for(size: int, cache: int) -> int:
    """Return how many sets of operands are taken in rotation.

    Args:
        size: bytes of one set.
        cache: bytes of L2.
    """
    return min(MOST_SETS, max(1, math.ceil(3 * cache / size)))


def launches_for(seconds: float, sets: int) -> int:
    """Return how many launches a graph holds: whole rounds over the sets.

    Args:
        seconds: time of one.
        sets: sets of operands.
    """
    rounds = round(min(REPLAY_S / seconds, MOST_LAUNCHES) / sets)
    return sets * max(1, rounds)


class Timer:
    """Times calls on the current CUDA device."""

    def __init__(self, torch: Any, turn_s: float):
        """Make a timer.

        Args:
            torch: PyTorch.
            turn_s: seconds that one turn of one contestant takes, about.
        """
        self.torch = torch
        self.turn_s = turn_s
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes: int = properties.L2_cache_size
        self.stream = torch.cuda.Stream()
        self._flush = torch.empty(4 * self.cache_bytes, dtype=torch.int8, device="cuda")

    def measured(self, contestants: dict[str, Sequence[Call]], turns: int) -> tuple[dict[str, Seconds], list[str]]:
        """Return the times of each contestant, and what could not be captured.

        Args:
            contestants: by name, the same call on each set of operands.
            turns: turns of each: A, B, A, B.
        """
        graphs: dict[str, tuple[Any, int]] = {}
        notes: list[str] = []
        for name, calls in contestants.items():
            try:
                graphs[name] = self.captured(calls)
            except NotCapturable as error:
                notes.append(f"{name} is not in a CUDA graph: {error}")
        replayed: dict[str, list[float]] = {name: [] for name in graphs}
        # First what leaves the GPU cool.
        flushed = self.flushed_in_turns({name: calls[0] for name, calls in contestants.items()}, turns)
        for turn in range(turns):
            for name in _rotated(list(graphs), turn):
                graph, launches = graphs[name]
                time.sleep(PAUSE_S)
                replayed[name].append(self._replayed(graph) / launches)
        return {
            name: Seconds(median(replayed[name]) if name in graphs else None, flushed[name]) for name in contestants
        }, notes

    def flushed_in_turns(self, contestants: dict[str, Call], turns: int) -> dict[str, float]:
        """Return the median turn of each contestant, of single calls after a flush.

        Whoever is first in a turn is last in the next: each finds the GPU as the one before has left it.

        Args:
            contestants: by name.
            turns: turns of each.
        """
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(turns):
            for name in _rotated(list(contestants), turn):
                time.sleep(PAUSE_S)
                seconds[name].append(self.flushed(contestants[name], self.turn_s))
        return {name: median(found) for name, found in seconds.items()}

    def captured(self, calls: Sequence[Call]) -> tuple[Any, int]:
        """Return a graph of the calls, over and over, and how many launches it holds.

        Raises:
            NotCapturable: a call does what a capture forbids.
        """
        torch = self.torch
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for call in calls:  # what a first call makes: code, tensor maps, handles, workspaces
                call()
            launches = launches_for(self._span(lambda: [call() for call in calls]) / len(calls), len(calls))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                for place in range(launches):
                    calls[place % len(calls)]()
        except (RuntimeError, ts.errors.TesseraError) as error:
            torch.cuda.synchronize()
            raise NotCapturable(str(error).splitlines()[0]) from error
        return graph, launches

    def flushed(self, call: Call, budget_s: float) -> float:
        """Return the median time of a call whose operands are not in L2.

        Args:
            call: what is timed.
            budget_s: seconds that may be spent, about.
        """
        call()
        flush_s = self._span(self._flush.zero_)
        flushes = math.ceil(LEAD * self._host_s(call) / flush_s)
        repeats = _repeats(budget_s, self._span(call) + flushes * flush_s)
        while True:
            spans = [self._queued(call, flushes) for _ in range(repeats)]
            in_time = [span for span, late in spans if not late]
            if 2 * len(in_time) >= repeats:
                return self._median(in_time)
            if flushes >= MOST_FLUSHES:
                return self._median([span for span, _ in spans])
            flushes = min(2 * flushes, MOST_FLUSHES)

    def _queued(self, call: Call, flushes: int) -> tuple[tuple[Any, Any], bool]:
        """Return the events around a call after flushes, and whether the GPU waited for the host to queue it."""
        for _ in range(flushes):
            self._flush.zero_()
        start, end = self._events()
        start.record()
        call()
        late = start.query()
        end.record()
        return (start, end), late

    def _host_s(self, call: Call) -> float:
        """Return how long the host takes to queue a timed call."""
        found = list[float]()
        for _ in range(HOST_CALLS):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            self._between(call)
            found.append(time.perf_counter() - start)
        return median(found)

    def _replayed(self, graph: Any) -> float:
        graph.replay()
        repeats = _repeats(self.turn_s, self._span(graph.replay))
        return self._median([self._between(graph.replay) for _ in range(repeats)])

    def _between(self, call: Call) -> tuple[Any, Any]:
        start, end = self._events()
        start.record()
        call()
        end.record()
        return start, end

    def _events(self) -> tuple[Any, Any]:
        return self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)

    def _median(self, spans: Sequence[tuple[Any, Any]]) -> float:
        self.torch.cuda.synchronize()
        return median(1e-3 * start.elapsed_time(end) for start, end in spans)

    def _span(self, call: Call) -> float:
        self.torch.cuda.synchronize()
        return max(self._median([self._between(call)]), 1e-6)


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    start = turn % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _repeats(budget_s: float, each_s: float) -> int:
    return min(500, max(3, round(budget_s / each_s)))
