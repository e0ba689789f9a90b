"""What `torch.compile(backend="tessera")` made of a function: `tessera.torch.explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from os import PathLike
from typing import Any

from tessera.data import dataclass
from tessera.errors import CallError, caller_location
from tessera.graph.drawing import page
from tessera.graph.explained import GraphExplanation, shown_bytes, written
from tessera.torch.compiled.running import Ran, watching


@dataclass(frozen=True, slots=True)
class ModuleExplanation:
    """What one call of a compiled function ran.

    Args:
        graphs: the graphs that ran, in order, those of gradients too.
        as_traced: for each graph that ran as PyTorch traced it, why.
    """

    graphs: tuple[GraphExplanation, ...]
    as_traced: tuple[str, ...]

    @property
    def left(self) -> dict[str, tuple[int, int]]:
        """For each op that runs as ATen how often it does, and the bytes that it reads and writes."""
        found: dict[str, tuple[int, int]] = {}
        for graph in self.graphs:
            for op, (count, moved) in graph.left.items():
                before = found.get(op, (0, 0))
                found[op] = before[0] + count, before[1] + moved
        return found

    def __str__(self) -> str:
        why = [
            f"runs as PyTorch traced it: a graph, {count}×, for {reason}"
            for reason, count in Counter(self.as_traced).items()
        ]
        left = [f"runs as ATen: {op}, {n}×, {shown_bytes(moved)}" for op, (n, moved) in self.left.items()]
        kernels = sum(len(graph.kernels) for graph in self.graphs)
        moved = shown_bytes(sum(graph.read + graph.written for graph in self.graphs))
        total = f"in all: {len(self.graphs)} graphs, {kernels} kernels, {moved}"
        return "\n".join([*map(str, self.graphs), *why, *left, total])

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """Return a page that draws the graphs as they were traced and as they run, which needs nothing else.

        Args:
            path: where to write it, too.
        """
        drawings = [
            (f"{title}, graph {number}", drawing)
            for number, graph in enumerate(self.graphs)
            for title, drawing in (("Traced", graph.before), ("Run", graph.after))
        ]
        return written(page("torch.compile", str(self), drawings), path)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ModuleExplanation:
    """Return what a call runs; see `tessera.torch.explain`."""
    ran: list[Ran] = []
    watching.append(ran)
    try:
        function(*args, **kwargs)
    finally:
        watching[:] = [one for one in watching if one is not ran]
    if not ran:
        raise CallError(
            "the function ran nothing that Tessera compiled",
            code="never-run",
            location=caller_location(),
            help='pass torch.compile(f, backend="tessera")',
        )
    graphs = tuple(one[0].explain(one[1], one[2]) for one in ran if not isinstance(one, str))
    return ModuleExplanation(graphs, tuple(one for one in ran if isinstance(one, str)))
