"""CUDA graphs of compiled graphs, for `torch.compile(…, mode="reduce-overhead")`.

PyTorch's own trees of CUDA graphs record and replay what a compiled graph launches, as they do for Inductor: they keep
memory, random numbers and the order of forward and backward steps right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Run = Callable[[list[Any]], Any]


def _part(name: str) -> Any:
    """Return a module of PyTorch; they import all of Inductor, and few programs ask for graphs."""
    return import_module(f"torch.{name}")


class CudaGraphs:
    """The CUDA graphs of one compiled function, forwards and backwards.

    Args:
        given: how many arguments the function has, parameters included.
    """

    def __init__(self, given: int) -> None:
        self._given = given
        self._device: int | None = None
        """The device of the forward graph, None where it is not recorded."""

    def forward(self, compile_: Callable[[], Run], traced: Any, inputs: Sequence[Any], is_inference: bool) -> Run:
        """Return how a forward graph runs.

        Args:
            compile_: compiles the traced graph, which it may change.
            traced: the graph.
            inputs: tensors as it takes.
            is_inference: whether nothing is kept for a backward graph.
        """
        fixed = _part("_inductor.utils").num_fw_fixed_arguments(self._given, len(inputs))
        facts = _Facts(traced, range(fixed) if is_inference else _fixed(fixed))
        run = compile_()
        if facts.reason:
            _skip(facts.reason)
            return run
        self._device = facts.device
        return facts.recorded(run, inputs, is_backward=False, is_inference=is_inference)

    def backward(self, compile_: Callable[[], Run], traced: Any, inputs: Sequence[Any]) -> Run:
        """Return how a backward graph runs; see `forward`."""
        if self._device is None:
            return compile_()
        facts = _Facts(traced, range(_part("_inductor.utils").count_tangents(traced)))
        run = compile_()
        if not facts.reason:
            return facts.recorded(run, inputs, is_backward=True, is_inference=False)
        _skip(facts.reason)
        trees, device = _part("_inductor.cudagraph_trees"), self._device

        def alone(given: list[Any]) -> Any:
            # Here: forward makes it when it runs, which may be after this graph is compiled.
            manager = trees.get_manager(device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(given)

        return _boxed(alone)


class _Facts:
    """What is to be known of a traced graph before it is changed.

    Args:
        traced: the graph.
        fixed: which of its arguments are where they were at every call: parameters, and what forward has saved.
    """

    def __init__(self, traced: Any, fixed: Sequence[int]) -> None:
        graphs = _part("_dynamo.backends.cudagraphs")
        self._fixed = fixed
        self.reason: str | None = graphs.check_for_skip(traced, len(fixed))
        """Why it is not recorded, None if it is."""
        if self.reason is None:
            self.device: int = graphs.get_device_index(traced)
            self._more = {
                "stack_traces": graphs.get_stack_traces(traced),
                "placeholders": _part("_inductor.cudagraph_utils").get_placeholder_info(traced.graph),
                "mutated_input_idxs": graphs.find_input_mutations(traced.graph),
            }

    def recorded(self, run: Run, inputs: Sequence[Any], *, is_backward: bool, is_inference: bool) -> Run:
        """Return what runs a compiled graph, and replays its launches from its third call on."""
        symbolic: Any = import_module("torch").SymInt
        made = _part("_inductor.cudagraph_trees").cudagraphify_impl(
            run,
            # Where integers are, each of which has graphs of its own, is seen by their type.
            [0 if isinstance(one, symbolic) else one for one in inputs],
            self._fixed,
            device_index=self.device,
            is_backward=is_backward,
            is_inference=is_inference,
            **self._more,
        )
        return _boxed(made)


def _fixed(count: int) -> Sequence[int]:
    """Return which arguments of a forward graph are parameters and buffers: where PyTorch says so, else the first."""
    context = import_module("torch._guards").TracingContext.try_get()
    found = getattr(getattr(context, "fw_metadata", None), "static_input_indices", None)
    return range(count) if found is None else sorted({*range(count), *found})


def _boxed(run: Any) -> Run:
    """Mark what takes a list, and empties it."""
    run._boxed_call = True
    return run


def _skip(reason: str) -> None:
    _part("_inductor.cudagraph_utils").log_cudagraph_skip_and_bump_counter(reason)


def reset() -> None:
    """Forget all CUDA graphs, as `torch.compiler.reset` asks."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()
