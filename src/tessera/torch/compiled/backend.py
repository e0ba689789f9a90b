"""The backend that `torch.compile(backend="tessera")` finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from importlib import import_module
from operator import or_  # pyright: ignore[reportUnknownVariableType]
from typing import Any

from tessera.collecting import collector_paused
from tessera.data import dataclass
from tessera.errors import CallError, LanguageError, shown
from tessera.graph.edges import Edges, Given, Number
from tessera.graph.explained import GraphExplanation
from tessera.graph.program import Program
from tessera.ops import arrays
from tessera.target.dims import Dim
from tessera.torch.compiled import apart, norms, nothing, single, smoothing
from tessera.torch.compiled.aten_calls import as_given, as_held
from tessera.torch.compiled.attention_arguments import simplify_attention
from tessera.torch.compiled.by_hand import name_attention
from tessera.torch.compiled.calls import instead
from tessera.torch.compiled.channels_last import Layout, layout_of
from tessera.torch.compiled.computed import Computed, values_of
from tessera.torch.compiled.convert import Converted, Converter
from tessera.torch.compiled.cuda_graphs import CudaGraphs, reset
from tessera.torch.compiled.folding import fold
from tessera.torch.compiled.higher import complete
from tessera.torch.compiled.layouts import Lies, Order, in_order, order_of, with_gaps
from tessera.torch.compiled.pieces import has_pieces, in_pieces, tells
from tessera.torch.compiled.reversing import reverse_sums
from tessera.torch.compiled.sharing import partition
from tessera.torch.compiled.sizes import Unknown

torch: Any = import_module("torch")
_aot: Any = import_module("functorch.compile")
_decomp: Any = import_module("torch._decomp")
_aten: Any = torch.ops.aten
_checks: Any = import_module("torch._C._dynamo.guards")
_guards: Any = import_module("torch._guards")
_MOST_KINDS = 1024
"""Kinds of calls that a graph tells apart."""
_MOST_RECENT = 4
"""Kinds that a call is compared with by PyTorch's check, before all its sizes and strides are looked at."""
_start: Callable[[Any], int] = torch.Tensor.data_ptr
_any_bits: Callable[[Sequence[int]], int] = partial(reduce, or_)
_WHOLE = (
    _aten._softmax,
    _aten.native_layer_norm,
    _aten.gelu,
    _aten.silu,
    _aten.leaky_relu,
    _aten.embedding_dense_backward,
    _aten.unfold_backward,
    _aten.im2col,
    _aten.col2im,
    _aten.log_sigmoid_forward,
    _aten.logaddexp,
    _aten.logaddexp2,
    _aten.baddbmm,  # its parts multiply 16-bit floats in f32
    _aten.special_log_ndtr,  # its parts lose bits
    _aten._scaled_dot_product_flash_attention_for_cpu,  # PyTorch's parts give other sums of exponentials
    _aten.select_scatter,  # its parts have another dtype where what is set has
    _aten.linspace,  # its parts round integers otherwise
    _aten.logspace,
)
"""Ops that are not taken apart."""
_APART = (
    _aten.gelu_backward,
    _aten.silu_backward,
    _aten.native_layer_norm_backward,
    _aten._softmax_backward_data,
    _aten._log_softmax_backward_data,
    _aten.native_batch_norm,
    _aten._native_batch_norm_legit,
    _aten._native_batch_norm_legit_functional,
    _aten._native_batch_norm_legit_no_training,
    _aten.native_batch_norm_backward,
    _aten.native_group_norm,
    _aten.native_group_norm_backward,
    _aten.sigmoid_backward,
    _aten.tanh_backward,
    _aten.threshold_backward,
    _aten.leaky_relu_backward,
    _aten.elu_backward,
    _aten.hardtanh_backward,
    _aten._log_softmax,
    _aten._safe_softmax,
    _aten.native_dropout_backward,
    _aten.addmv,
    _aten.dist,
    _aten.ldexp,
    _aten.narrow_copy,
    _aten.unbind_copy,
    _aten._batch_norm_with_update_functional,
    _aten.batch_norm_backward,
)
"""Ops beside PyTorch's own list that are taken apart."""


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


Ran = tuple["Compiled", dict[str, int], Any] | str
"""A graph that ran, with its sizes and one of its tensors; or why one runs as PyTorch traced it."""

watching: list[list[Ran]] = []
"""Lists to which graphs are added that run; see `torch.compiled.explained`."""

_GRAPHS, _OTHERS = "reduce-overhead", ("default", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`."""
_HELP = 'leave options={"fallback": "error"} away'

reports: list[Report] = []
"""What became of the graphs of this process, the last one last."""


@cache
def decompositions() -> dict[Any, Any]:
    """Return how ops are taken apart before they become Graph IR; nobody may change the table."""
    table: dict[Any, Any] = {**_decomp._core_aten_decompositions_post_autograd(), **_decomp.get_decompositions(_APART)}
    for op in _WHOLE:
        for overload in op.overloads():
            if "Tensor_" not in overload and "_Tensor" not in overload:  # a range between tensors
                table.pop(getattr(op, overload), None)
    table |= apart.table() | smoothing.table()
    table |= norms.table(table)
    return table | single.table(table) | nothing.table(table)


class _Kind:
    """How the tensors of calls lie: what tells calls apart, beside sizes that are numbers, and alignment.

    Args:
        tensors: the tensors of a call.
    """

    __slots__ = ("check", "sizes")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.sizes: dict[Any, dict[str, int]] = {}
        """Sizes of symbols, by the sizes that are numbers."""
        self.check: Callable[..., bool] = _never
        """Returns whether tensors are surely of this kind."""
        self.learn(tensors)

    def learn(self, tensors: Sequence[Any]) -> None:
        """Check calls against other tensors of this kind, by PyTorch's own check, which costs least."""
        made = getattr(_checks, "TensorGuards", None)
        if made is not None:
            self.check = made(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def _never(*_tensors: Any) -> bool:
    return False


class Compiled:
    """A traced graph, compiled.

    Args:
        converted: the graph in Graph IR.
    """

    def __init__(self, converted: Converted) -> None:
        calls: dict[str, Any] = dict(converted.calls)
        facts = converted.contiguous, converted.hints, converted.loose
        self._edges = _edges(converted)
        self._program = Program(converted.module, calls, *facts, edges=self._edges)
        self._converted = converted
        self.kernels = len(self._program.kernels)
        self._held = {one.untyped_storage().data_ptr() for one in converted.constants}
        self._kinds: dict[Any, _Kind] = {}
        self._recent: dict[tuple[int, ...], list[_Kind]] = {}
        """Kinds of calls that came last, by the sizes that are numbers."""
        # It takes a list, and empties it, so that arguments die when they are not needed any more.
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run it."""
        if torch._C._is_any_autocast_enabled():  # around backward, for example; the graph has its casts
            with torch._C._DisableAutocast():
                return self(args)
        graph = self._converted
        tensors = [args[at] for at in graph.arguments]
        tensors += graph.constants
        numbers = tuple([int(args[at]) for _, at in graph.symbols])
        args.clear()
        kind = self._kind_of(tensors, numbers)
        sizes = kind.sizes.get(numbers)
        if sizes is None:
            sizes = self._sizes(tensors, numbers, kind)
        for ran in watching:
            ran.append((self, sizes, tensors[0]))
        starts = [*map(_start, tensors)]
        # All arrays but parts of others are aligned. A size may be a number that no tensor has.
        unaligned = tuple([start & 15 for start in starts]) if _any_bits(starts) & 15 else ()
        key = kind, numbers, unaligned
        if not torch.is_grad_enabled():
            found = self._program.run(tensors, sizes, key, starts)
        else:
            torch._C._set_grad_enabled(False)  # a third of the time of `no_grad`
            try:
                found = self._program.run(tensors, sizes, key, starts)
            finally:
                torch._C._set_grad_enabled(True)
        return [_apart(one, self._held) for one in found] if self._held else found

    def _kind_of(self, tensors: Sequence[Any], numbers: tuple[int, ...]) -> _Kind:
        recent = self._recent.get(numbers, ())
        for kind in recent:
            if kind.check(*tensors):
                return kind
        lies = tuple((one.shape, one.stride(), one.dtype, one.device, one.is_conj(), one.is_neg()) for one in tensors)
        kind = self._kinds.get(lies)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[lies] = _Kind(tensors)
        else:
            kind.learn(tensors)
        if len(self._recent) >= _MOST_KINDS:
            self._recent.clear()
        self._recent[numbers] = [kind, *(one for one in recent if one is not kind)][:_MOST_RECENT]
        return kind

    def _sizes(self, tensors: Sequence[Any], numbers: tuple[int, ...], kind: _Kind) -> dict[str, int]:
        """Return the sizes of symbols, which are kept."""
        graph = self._converted
        found = {name: number for (name, _), number in zip(graph.symbols, numbers, strict=True)}
        if any(name not in found and name not in graph.named for name in graph.hints):
            found |= self._program.sizes(self._edges.taken(tensors))
        found |= values_of(graph.named, found)
        if len(kind.sizes) >= _MOST_KINDS:
            kind.sizes.clear()
        kind.sizes[numbers] = found
        return found

    def explain(self, sizes: dict[str, int], like: Any) -> GraphExplanation:
        """Return what it runs at some sizes, on the device of a tensor."""
        return self._program.explain(sizes, arrays.view(as_held(like), "a tensor").device, self._converted.left)


def _apart(result: Any, held: set[int]) -> Any:
    """Return a result that shares no memory with what the graph holds: a caller may change it."""
    shares = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in held
    return result.clone() if shares else result


def _edges(graph: Converted) -> Edges:
    """Return what is done to a graph's tensors before and after it runs."""
    orders, count = dict(graph.turned), len(graph.contiguous)
    ready = [partial(_argument, orders.get(number), graph.contiguous[number]) for number in range(count)]
    gives = [
        Given(value[0], partial(_giver, *value[1:])) if is_tensor else Number(partial(_number, value))
        for is_tensor, value in graph.results
    ]
    written = tuple(tuple((graph.arguments.index(at), number) for at, number in together) for together in graph.written)
    return Edges(tuple(ready), tuple(gives), written, torch._foreach_copy_)


def _argument(order: Order | None, contiguous: bool, tensor: Any) -> Any:
    """Return an argument as the graph takes it."""
    tensor = as_held(tensor)
    tensor = tensor if order is None else tensor.permute(order)
    return tensor.contiguous() if contiguous else tensor


def _giver(
    lies: Lies, as_complex: bool, strides: Sequence[Any] | None, sizes: Mapping[str, int]
) -> Callable[[Any], Any]:
    """Return what makes of a result what the program wants."""
    known = None if strides is None else [_number(stride, sizes) for stride in strides]
    return partial(_result, lies, as_complex, known)


def _result(lies: Lies, as_complex: bool, strides: Sequence[int] | None, tensor: Any) -> Any:
    """Return a result as the program wants it."""
    found = as_given(in_order(tensor, lies), as_complex)
    return found if strides is None else with_gaps(found, strides)


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


def _number(value: Any, sizes: Mapping[str, int]) -> Any:
    return value.value(sizes) if isinstance(value, Dim | Computed) else value


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
    """Return the compiled form of a graph some of whose sizes follow from data.

    Raises:
        CallError: `no-row` where ops that tell sizes are refused.
    """
    tellers = Counter(str(node.target) for node in traced.graph.nodes if tells(node))
    told = f"sizes that {', '.join(tellers)} tells"
    if fallback == "error":
        raise CallError(f"torch.compile: the graph has {told}", code="no-row", help=_HELP)
    try:
        whole = in_pieces(traced, compile_graph)
    except Unknown as why:
        return _refused(traced, fallback, Layout(False), str(why))
    reports.append(Report(0, 0, tellers))
    return _as_traced(whole, Layout(False), told)


def _by_place(traced: Any, shown: Sequence[Any]) -> dict[int, Any]:
    """Return the program's results by their place among those of a graph, which gives what it changes first.

    Args:
        traced: the graph, whose ops are taken apart.
        shown: the results as they are without a compiler.
    """
    context = _guards.TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if facts is None:
        return {}
    first = facts.num_mutated_inp_runtime_indices
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
