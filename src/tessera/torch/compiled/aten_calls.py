"""Ops that run as ATen between kernels, and tensors as they have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from tessera.graph.runs import Direct, Slot
from tessera.ops.steps import STEPS, Step
from tessera.ops.torch_steps import NAMESPACE
from tessera.torch.compiled.layouts import Lies, in_order

torch: Any = import_module("torch")
pytree: Any = import_module("torch.utils._pytree")

_QUICKER = {torch.ops.aten.convolution.default: torch.convolution}
"""Functions of PyTorch's that call ops with the same arguments in less time."""


class AtenCall:
    """An op that runs as ATen.

    Args:
        target: the op.
        template: its arguments: of each whether it is a tensor, a size or a constant, and which.
        spec: how they are nested.
        kinds: dtypes and order of its results, as PyTorch has traced them: some kernels give others.
    """

    def __init__(
        self, target: Any, template: tuple[tuple[str, Any], ...], spec: Any, kinds: Sequence[tuple[Any, Lies]]
    ) -> None:
        self._target, self._template, self._spec, self._kinds = target, template, spec, kinds

    @property
    def operands(self) -> list[Lies]:
        """How each of its tensors has to lie."""
        return [value[1] for kind, value in self._template if kind == "tensor"]

    def __call__(self, sizes: Any) -> Direct:
        """Return the function of its tensors, for sizes of symbols."""
        places = [at for at, (kind, _) in enumerate(self._template) if kind == "tensor"]
        fixed = [value.value(sizes) if kind == "size" else value for kind, value in self._template]
        for slot, at in enumerate(places):
            fixed[at] = Slot(slot)
        args, kwargs = pytree.tree_unflatten(fixed, self._spec)
        # What an overload calls itself, a call of Python's later.
        target = _QUICKER.get(self._target) or getattr(self._target, "_op", self._target)
        step = step_of(self._target)
        if step is not None:
            args, target = _by_place(self._target._schema, args, kwargs), step.fresh
            kwargs = dict[str, Any]()
        given = [self._template[at][1] for at in places]
        slots = tuple((number, partial(_ready, lies, as_complex)) for number, lies, as_complex in given)
        holds = tuple(partial(_held, dtype, lies) for dtype, lies in self._kinds)
        return Direct(target, tuple(args), kwargs, slots, holds)


def step_of(target: Any) -> Step | None:
    """Return the step of a library op as which PyTorch traced it, None for other ops.

    A step that is called itself is launches to a graph's replay, which are started with those beside it.
    """
    space, _, name = str(target).partition(".")
    name = name.removesuffix(".default")
    return next((step for step in STEPS if step.name == name), None) if space == NAMESPACE else None


def _by_place(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return all arguments of a call in order, as PyTorch would hand them on."""
    found: list[Any] = []
    for place, one in enumerate(schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(one.name, one.default_value)
        is_float = str(one.type) == "float" and isinstance(value, int)
        found.append(float(value) if is_float else value)
    return found


def _ready(lies: Lies, as_complex: bool, tensor: Any) -> Any:
    """Return an operand as an op has to get it."""
    return as_given(in_order(tensor, lies), as_complex)


def _held(dtype: Any, lies: Lies, tensor: Any) -> Any:
    """Return a result of an op as the graph has it."""
    held = as_held(tensor if tensor.dtype is dtype else tensor.to(dtype))
    return held.permute(lies.order) if lies.is_turned else in_order(held, lies)


def is_complex(value: Any) -> bool:
    """Return whether a value is a tensor of complex numbers."""
    return isinstance(value, torch.Tensor) and value.is_complex()


def as_held(tensor: Any) -> Any:
    """Return a tensor as Tessera has it: complex numbers as pairs."""
    tensor = tensor.resolve_neg()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_given(tensor: Any, as_complex: bool) -> Any:
    """Return a tensor as PyTorch has it."""
    if not as_complex:
        return tensor
    in_pairs = tensor.stride(-1) == 1 and all(step % 2 == 0 for step in tensor.stride()[:-1])
    return torch.view_as_complex(tensor if in_pairs else tensor.contiguous())
