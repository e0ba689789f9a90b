"""What PyTorch's functions become while a graph is traced, where their own parts would not become kernels."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from threading import Lock
from typing import Any

from tessera.torch.compiled import tangents
from tessera.torch.compiled.attention import attended
from tessera.torch.compiled.bags import bagged
from tessera.torch.compiled.between import between
from tessera.torch.compiled.cells import gated, remembered
from tessera.torch.compiled.encoder import encoded, several_heads
from tessera.torch.compiled.larger import enlarged
from tessera.torch.compiled.margins import margin_of_labels
from tessera.torch.compiled.padding import padded
from tessera.torch.compiled.products import multiplied, running
from tessera.torch.compiled.sampling import placed, sampled
from tessera.torch.compiled.shrinking import shrunk

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional

_attention: Callable[..., Any] = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own; what a program has put in its place is left alone."""
_INSTEAD: dict[Any, Callable[..., Any]] = {
    _attention: attended,
    _functional.embedding_bag: bagged,
    _functional.interpolate: enlarged,
    _functional.grid_sample: sampled,
    _functional.multilabel_margin_loss: margin_of_labels,
    _functional.softshrink: shrunk,
    _functional.affine_grid: placed,
    torch._C._nn.pad: padded,
    torch.pdist: between,
    torch.prod: multiplied,
    torch.Tensor.prod: multiplied,
    torch.cumprod: running,
    torch.Tensor.cumprod: running,
    torch._native_multi_head_attention: several_heads,
    torch._transformer_encoder_layer_fwd: encoded,
    torch.gru_cell: gated,
    torch.lstm_cell: remembered,
}

_Mode: Any = import_module("torch.overrides").TorchFunctionMode
_lock, _inside = Lock(), [0]
_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


class _Instead(_Mode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or what stands for it."""
        call = _INSTEAD[func] if func in _INSTEAD else func
        return call(*args, **(kwargs or {}))


def _attended(*args: Any, **kwargs: Any) -> Any:
    """Compute attention, in the library's way where a graph is traced in this thread."""
    return (attended if _tracing.get() else _attention)(*args, **kwargs)


@contextmanager
def instead() -> Generator[None]:
    """Let other functions be called than a program does.

    A mode does not see what PyTorch's functions call; its attention layer calls attention by the name in its module.
    """
    token = _tracing.set(True)
    _put(1)
    try:
        with _Instead():
            yield
    finally:
        _put(-1)
        _tracing.reset(token)


def _put(change: int) -> None:
    """Put the functions that serve traced calls in the place of PyTorch's while any thread traces."""
    with _lock:
        _inside[0] += change
        tangents.put(_inside[0] > 0)
        now = _functional.scaled_dot_product_attention
        if _inside[0] and now is _attention:
            _functional.scaled_dot_product_attention = _attended
        elif not _inside[0] and now is _attended:
            _functional.scaled_dot_product_attention = _attention
