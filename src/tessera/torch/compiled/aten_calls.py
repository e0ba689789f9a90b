"""Ops that run as ATen between kernels, and tensors as they have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from tessera.torch.compiled.layouts import Lies, in_order

torch: Any = import_module("torch")
pytree: Any = import_module("torch.utils._pytree")


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

    def __call__(self, sizes: Any) -> Callable[..., Any]:
        """Return the function of its tensors, for sizes of symbols."""
        fixed = [value.value(sizes) if kind == "size" else value for kind, value in self._template]
        places = [at for at, (kind, _) in enumerate(self._template) if kind == "tensor"]
        args, kwargs = pytree.tree_unflatten(fixed, self._spec)
        plain = all(any(fixed[at] is one for one in args) for at in places)
        takes = [(self._index(args, fixed[at]) if plain else at, *fixed[at]) for at in places]

        def call(*tensors: Any) -> Any:
            given = list(args if plain else fixed)
            for at, number, lies, as_complex in takes:
                given[at] = as_given(in_order(tensors[number], lies), as_complex)
            if plain:
                found = self._target(*given, **kwargs)
            else:
                all_args, named = pytree.tree_unflatten(given, self._spec)
                found = self._target(*all_args, **named)
            made = [found] if isinstance(found, torch.Tensor) else pytree.tree_leaves(found)
            wanted = zip([one for one in made if one is not None], self._kinds, strict=True)
            return [
                _held_in(as_held(one if one.dtype is dtype else one.to(dtype)), lies) for one, (dtype, lies) in wanted
            ]

        return call

    @staticmethod
    def _index(args: Sequence[Any], leaf: Any) -> int:
        """Return where a leaf stands among arguments."""
        return next(at for at, one in enumerate(args) if one is leaf)


def _held_in(tensor: Any, lies: Lies) -> Any:
    """Return a result of an op as the graph has it."""
    return tensor.permute(lies.order) if lies.is_turned else in_order(tensor, lies)


def is_complex(value: Any) -> bool:
    """Return whether a value is a tensor of complex numbers."""
    return isinstance(value, torch.Tensor) and value.is_complex()


def as_held(tensor: Any) -> Any:
    """Return a tensor as Tessera has it: complex numbers as pairs."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_given(tensor: Any, as_complex: bool) -> Any:
    """Return a tensor as PyTorch has it."""
    if not as_complex:
        return tensor
    in_pairs = tensor.stride(-1) == 1 and all(step % 2 == 0 for step in tensor.stride()[:-1])
    return torch.view_as_complex(tensor if in_pairs else tensor.contiguous())
