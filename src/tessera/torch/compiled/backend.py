"""The backend that `torch.compile(backend="tessera")` finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from tessera.collecting import collector_paused
from tessera.data import dataclass
from tessera.errors import CallError, LanguageError, shown
from tessera.torch.compiled.attention_arguments import simplify_attention
from tessera.torch.compiled.by_hand import name_attention
from tessera.torch.compiled.calls import instead
from tessera.torch.compiled.channels_last import Layout, layout_of
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.cuda_graphs import CudaGraphs, reset
from tessera.torch.compiled.decomposed import attach, decompositions
from tessera.torch.compiled.folding import fold
from tessera.torch.compiled.higher import complete, inline
from tessera.torch.compiled.layouts import Lies, in_order, order_of
from tessera.torch.compiled.pieces import has_pieces, in_pieces, tells
from tessera.torch.compiled.reversing import reverse_sums
from tessera.torch.compiled.running import Compiled, watching
from tessera.torch.compiled.sharing import partition
from tessera.torch.compiled.sizes import Unknown

torch: Any = import_module("torch")
_aot: Any = import_module("functorch.compile")
_guards: Any = import_module("torch._guards")


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What became of a graph.

    Args:
        kernels: how many kernels it has.
        rows: how many of its ops they, products and views are.
        left: how often each op runs as ATen.
        reason: why all of it runs as PyTorch traced it, if it does.
    """

    kernels: int
    rows: int
    left: Counter[str]
    reason: str = ""


_GRAPHS, _OTHERS = "reduce-overhead", ("default", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`."""
_HELP = 'leave options={"fallback": "error"} away'

reports: list[Report] = []
"""What became of the graphs of this process, the last one last."""


def _as_traced(traced: Any, layout: Layout, why: str) -> Any:
    """Return what runs a graph as PyTorch traced it, on arrays that lie as they were traced."""
    places = [node for node in traced.graph.nodes if node.op == "placeholder"]
    fakes = [(at, node.meta["val"]) for at, node in enumerate(places) if node.name in layout.saved]
    lies = [(at, Lies(order_of(fake) or tuple(range(fake.ndim)), False)) for at, fake in fakes]

    def run(*args: Any) -> Any:
        for ran in watching:
            ran.append(why)
        given = list(args)
        for at, one in lies:
            given[at] = in_order(given[at], one)
        return traced.forward(*given)

    return _aot.make_boxed_func(run)


def compile_graph(traced: Any, fallback: str = "aten", layout: Layout | None = None, shown: Sequence[Any] = ()) -> Any:
    """Return the compiled form of a traced graph of ATen ops.

    Args:
        traced: the graph.
        fallback: what runs ops that have no row: `aten`, or `error`, which refuses.
        layout: how its images lie; by default where the graph is fastest alone.
        shown: results of the program as they are without a compiler.

    Raises:
        CallError: `no-row` for such an op where they are refused.
    """
    inline(traced)
    attach(traced)
    complete(traced)
    fold(traced)
    if has_pieces(traced):
        return _in_pieces(traced, fallback)
    reverse_sums(traced)
    layout = layout or layout_of(traced)
    try:
        converted = Converter(traced, layout, _by_place(traced, shown)).run()
        if converted.left and fallback == "error":
            ops = ", ".join(f"{name} ({count})" for name, count in converted.left.most_common())
            raise CallError(f"torch.compile: no row for {ops}", code="no-row", help=_HELP)
        compiled = Compiled(converted)
    except (Unknown, LanguageError) as why:
        if isinstance(why, LanguageError) and why.code != "bad-annotation":  # a size of too many terms
            raise
        return _refused(traced, fallback, layout, str(why))
    reports.append(Report(compiled.kernels, converted.rows, converted.left))
    return compiled


def _refused(traced: Any, fallback: str, layout: Layout, why: str) -> Any:
    """Return what runs a graph as PyTorch traced it.

    Raises:
        CallError: `no-row` where that is refused.
    """
    reports.append(Report(0, 0, Counter(), why))
    if fallback == "error":
        raise CallError(f"torch.compile: the graph has {why}", code="no-row", help=_HELP) from None
    return _as_traced(traced, layout, why)


def _in_pieces(traced: Any, fallback: str) -> Any:
    """Return the compiled form of a graph some of whose sizes follow from data, or are checked.

    Raises:
        CallError: `no-row` where ops that tell sizes are refused.
    """
    tellers = Counter(str(node.target) for node in traced.graph.nodes if tells(node))
    told = f"sizes that {', '.join(tellers)} tells" if tellers else "checks of sizes"
    if tellers and fallback == "error":
        raise CallError(f"torch.compile: the graph has {told}", code="no-row", help=_HELP)
    try:
        whole = in_pieces(traced, partial(compile_graph, fallback=fallback))
    except Unknown as why:
        return _refused(traced, fallback, Layout(False), str(why))
    reports.append(Report(0, 0, tellers))
    return _as_traced(whole, Layout(False), told)


def _by_place(traced: Any, shown: Sequence[Any]) -> dict[int, Any]:
    """Return the program's results by their place among those of a graph, which gives tokens and what it changes first.

    Args:
        traced: the graph, whose ops are taken apart.
        shown: the results as they are without a compiler.
    """
    context = _guards.TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if facts is None:
        return {}
    first = len(facts.tokens) + facts.num_mutated_inp_runtime_indices
    results = traced.graph.output_node().args[0][first : first + len(shown)]
    made = [one.meta.get("val") if isinstance(one, torch.fx.Node) else None for one in results]
    pairs = enumerate(zip(made, shown, strict=False), first)
    return {place: _without_mode(before) for place, (fake, before) in pairs if _is_same(fake, before)}


def _is_same(fake: Any, before: Any) -> bool:
    """Return whether two traced tensors may differ in how they lie only."""
    are_tensors = isinstance(fake, torch.Tensor) and isinstance(before, torch.Tensor)
    return are_tensors and fake.ndim == before.ndim and fake.dtype == before.dtype


def _without_mode(fake: Any) -> Any:
    """Return a traced tensor for the trace that is under way: PyTorch has one for each of its stages."""
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")


def _shown(traced: Any) -> list[Any]:
    """Return the results of a program that PyTorch traced, as they are without a compiler."""
    results = traced.graph.output_node().args[0]
    return [one.meta.get("example_value") if isinstance(one, torch.fx.Node) else None for one in results]


def backend(traced: Any, examples: Sequence[Any], *, options: Any = None, mode: Any = None) -> Any:
    """Compile what `torch.compile(backend="tessera")` traced, for inference and for training.

    Args:
        traced: the graph.
        examples: tensors as it takes.
        options: `{"fallback": "error"}` refuses ops that would run as ATen.
        mode: `reduce-overhead` records CUDA graphs and replays them; others that PyTorch has change nothing.

    Raises:
        CallError: `bad-argument` for a mode that PyTorch has not.
    """
    if mode not in (None, _GRAPHS, *_OTHERS):
        raise CallError(f"mode is {shown(mode)}", code="bad-argument", help=f"one of {', '.join((_GRAPHS, *_OTHERS))}")
    given: dict[str, Any] = options or {}
    fallback = given.get("fallback", "aten")

    agreed: list[Layout] = []
    """The layout of a forward graph that has a backward graph, which may be compiled later, in another thread."""

    def cut(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        attach(joint)
        agreed[:] = [layout_of(joint, num_fwd_outputs)]
        return partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    graphs = CudaGraphs(len(examples)) if mode == _GRAPHS else None

    before = _shown(traced)

    def forward(graph: Any, inputs: Sequence[Any]) -> Any:
        compile_ = partial(compile_graph, graph, fallback, agreed[0] if agreed else None, before)
        return compile_() if graphs is None else graphs.forward(compile_, graph, inputs, is_inference=False)

    def backward(graph: Any, inputs: Sequence[Any]) -> Any:
        compile_ = partial(compile_graph, graph, fallback, agreed[0].of_backward() if agreed else None)
        return compile_() if graphs is None else graphs.backward(compile_, graph, inputs)

    def alone(graph: Any, inputs: Sequence[Any]) -> Any:
        compile_ = partial(compile_graph, graph, fallback, None, before)
        return compile_() if graphs is None else graphs.forward(compile_, graph, inputs, is_inference=True)

    common: Any = import_module("torch._dynamo.backends.common")
    whole = common.aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=alone,
        decompositions=decompositions(),
        partition_fn=cut,
        keep_inference_input_mutations=graphs is None,  # what changes arguments is not recorded
    )
    name_attention(traced)
    simplify_attention(traced)
    with collector_paused(), instead():
        return whole(traced, examples)


vars(backend)["reset"] = reset
