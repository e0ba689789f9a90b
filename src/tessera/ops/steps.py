"""Steps of library ops: kernels behind a schema of PyTorch's, with the step that computes their gradient."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from tessera.data import dataclass
from tessera.errors import CallError, caller_location
from tessera.ops import arrays
from tessera.ops.traced import Traced, traced_among
from tessera.runtime.recording import current

Arguments = tuple[Any, ...]
"""What a step is called with: arrays, None for those that are missing, and numbers."""

STEPS: list[Step] = []
"""All steps of the families of ops that are imported."""


@dataclass(frozen=True)
class Gradient:
    """How the gradient of a step is computed.

    Args:
        step: what computes it.
        keep: makes what is kept for it of a call's arguments and results.
        arguments: makes its step's arguments of what was kept, the gradients of the results (None where nothing depends
            on one), and whether each argument of the call needs a gradient.
        of: for each argument of the call, by what was kept, which result of the gradient's step is its gradient, or
            None.
        view: makes the same results as `step` of what was kept and the gradients of the results, where they are views
            of these and PyTorch needs no kernel; None elsewhere.
    """

    step: Step
    keep: Callable[[Arguments, Arguments], Arguments]
    arguments: Callable[[Arguments, Sequence[Any], Sequence[bool]], Arguments]
    of: Callable[[Arguments], tuple[int | None, ...]]
    view: Callable[[Arguments, Sequence[Any]], Arguments | None] | None = None


@dataclass(frozen=True)
class Step:
    """Kernels that compute results of given shapes, known to PyTorch as `torch.ops.tessera.<name>`.

    Args:
        name: the name.
        schema: arguments and results as PyTorch writes them: `(Tensor x, float eps) -> (Tensor, Tensor)`.
        results: makes the unset results; reads shapes and dtypes of the arguments alone.
        launch: computes them: `launch(results, *arguments)`.
        gradient: how its gradient is computed; None where it has none.
        tangents: how tangents of the first argument go through it: `linear` for a step that gives of them what it gives
            of the argument, `taken` for one whose first result has elements along the
            second dimension, at the places in its second result.
        transposed: in graphs, where it has no step for it, the gradient of a linear step's first argument: what makes
            it of what comes back and the arguments; `taken` where those are the elements at the places that the second
            argument gives, along the second dimension.
    """

    name: str
    schema: str
    results: Callable[..., Arguments]
    launch: Callable[..., None]
    gradient: Gradient | None = None
    tangents: Literal["linear", "taken"] | None = None
    transposed: Callable[..., Any] | Literal["taken"] | None = None

    def __post_init__(self) -> None:
        STEPS.append(self)

    def __call__(self, *arguments: Any) -> Arguments:
        """Return new results; PyTorch follows the call where it asks for gradients or traces, and so does a graph."""
        _check_no_tangents(arguments)
        if traced_among(arguments) is None and is_followed(arguments):
            from tessera.ops.torch_steps import followed

            _check_tensors(arguments)
            return followed(self, arguments)
        return self.fresh(*arguments)

    def fresh(self, *arguments: Any) -> Arguments:
        """Return new results, which PyTorch does not follow."""
        traced = traced_among(arguments)
        if traced is not None:
            return traced.call(self, arguments)
        results = self.results(*arguments)
        self.launch(results, *arguments)
        return results

    def into(self, results: Arguments, *arguments: Any) -> None:
        """Compute into given arrays.

        Raises:
            CallError: `out-needs-no-gradient` where PyTorch asks for gradients, `not-in-graphs` in a traced function.
        """
        check_no_gradient((*arguments, *results))
        check_not_traced(*arguments, *results)
        self.launch(results, *arguments)
        written(*results)


def check_no_gradient(arguments: Arguments) -> None:
    """Refuse a call into given arrays that PyTorch asks gradients of.

    Raises:
        CallError: `out-needs-no-gradient`.
    """
    if needs_gradient(arguments):
        raise CallError(
            "results in given arrays have no gradients",
            code="out-needs-no-gradient",
            location=caller_location(),
            help="leave `out` away, or call it under torch.no_grad()",
        )


def _check_tensors(arguments: Arguments) -> None:
    """Refuse arrays of other libraries where PyTorch has to see a call.

    Raises:
        CallError: `mixed-libraries`.
    """
    torch: Any = sys.modules["torch"]
    if torch.compiler.is_compiling():  # which asks for tensors itself
        return
    if any(hasattr(one, "__dlpack__") and not isinstance(one, torch.Tensor) for one in arguments):
        raise CallError(
            "PyTorch asks for gradients of a call with arrays of other libraries",
            code="mixed-libraries",
            location=caller_location(),
            help="give PyTorch tensors alone, or call it under torch.no_grad()",
        )


def _check_no_tangents(arguments: Arguments) -> None:
    """Refuse forward-mode differentiation, whose tangents would be lost.

    Raises:
        CallError: `no-gradient`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.autograd.forward_ad._current_level < 0:
        return
    unpack = torch.autograd.forward_ad.unpack_dual
    if any(isinstance(one, torch.Tensor) and unpack(one).tangent is not None for one in arguments):
        raise CallError(
            "forward-mode gradients of library ops are not there",
            code="no-gradient",
            location=caller_location(),
            help="use backward()",
        )


def check_not_traced(*given: Any) -> None:
    """Refuse to change given arrays where `torch.compile` or `ts.jit` traces: the graph would not know.

    Raises:
        CallError: `not-in-graphs`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        raise CallError(
            "given arrays cannot be changed inside torch.compile",
            code="not-in-graphs",  # without a place, which cannot be traced
            help="leave `out` or `inplace` away, or call it outside (torch.compiler.disable)",
        )
    if traced_among(given) is not None:
        raise CallError(
            "given arrays cannot be changed by an op inside ts.jit",
            code="not-in-graphs",
            location=caller_location(),
            help="leave `out` or `inplace` away, or call it outside",
        )


def seed_of(seed: Any) -> Any:
    """Return a seed as a signed 64-bit number; as it is where `torch.compile` traces, which keeps it open."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return seed
    return (int(seed) + 2**63) % 2**64 - 2**63


def written(*changed: Any) -> None:
    """Tell PyTorch that tensors have changed, so that gradients that need their old values are refused."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    recorder = current()
    if recorder is not None:
        recorder.changes = True
    versioned(*changed)


def versioned(*changed: Any) -> None:
    """Count tensors as changed: gradients that need their old values are refused. Calls may still be repeated."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    counted = [one for one in changed if isinstance(one, torch.Tensor) and not one.is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)


def as_tuple(results: Any) -> Arguments:
    """Return what an operator of PyTorch gives as a tuple: a single result comes alone."""
    return tuple(cast("Sequence[Any]", results)) if isinstance(results, tuple | list) else (results,)


def needs_gradient(arguments: Arguments) -> bool:
    """Return whether PyTorch asks for the gradient of an argument."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    return any(isinstance(one, torch.Tensor) and one.requires_grad for one in arguments)


def without_gradient(array: Any, name: str) -> Any:
    """Return an argument that has no gradient.

    Raises:
        CallError: `no-gradient` where PyTorch asks for one.
    """
    if needs_gradient((array,)):
        raise CallError(
            f"{name} has no gradient",
            code="no-gradient",
            location=caller_location(),
            help="detach it, or call the op under torch.no_grad()",
        )
    return array


def is_followed(arguments: Arguments) -> bool:
    """Return whether a gradient of a call may be wanted: PyTorch has to see it, or a graph differentiates it."""
    traced = traced_among(arguments)
    if traced is not None:
        return traced.is_differentiated
    return is_seen(arguments)


def is_seen(arguments: Arguments) -> bool:
    """Return whether PyTorch has to see a call: it has special tensors, is compiled, or its gradient may be wanted."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    found = follows = False
    for one in arguments:
        if type(one) is tensor or type(one) is parameter:
            found, follows = True, follows or one.requires_grad
        elif one is not None and isinstance(one, tensor):
            return True
    return found and (torch.compiler.is_compiling() or (follows and torch.is_grad_enabled()))


def like(array: Any, shape: Sequence[Any], dtype: Any = None) -> Any:
    """Return an unset array beside another one, of its dtype unless one is given.

    Raises:
        ResourceError: `out-of-memory`.
    """
    if arrays.is_torch(array):
        kind = array.dtype if dtype is None else arrays.torch_dtypes()[dtype.name]
        return arrays.unset_tensor(array, tuple(shape), kind)
    if isinstance(array, Traced):
        return array.filled(shape, array.element if dtype is None else dtype)
    size = tuple(int(extent) for extent in shape)
    return arrays.maker(array, size, arrays.dtype_of(array) if dtype is None else dtype)(array)


def zeros(array: Any) -> Any:
    """Return zeros beside an array, of its shape and dtype."""
    made = like(array, array.shape)
    if not isinstance(made, Traced):
        arrays.zero(made)
    return made


def missing(array: Any) -> Any:
    """Return what stands for a result that a call has not: an array without elements."""
    return like(array, (0,))


def present(array: Any) -> Any:
    """Return a result that a call has, None for what `missing` made."""
    return array if 0 not in array.shape else None
