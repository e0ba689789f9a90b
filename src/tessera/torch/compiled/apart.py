"""How ops are taken apart that PyTorch takes apart in no way, or in one that loses bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

torch: Any = import_module("torch")
_aten: Any = torch.ops.aten
_MEAN = 1
"""The number of the reduction that is a mean."""
_OF_LISTS = "_foreach_"
_NAMES = {"norm": "linalg_vector_norm", "max": "amax"}
"""Names of ops whose form for lists has another one."""
_SCALED = ("addcmul", "addcdiv")
"""Ops whose last operand is a factor."""
_ALIKE = 1e-6
"""Slopes that are no further apart are one."""
_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""The same where they take a number beside tensors."""


def addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return the sum of a batch of products: one product of longer sums."""
    left, right = a.permute(1, 0, 2).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2])
    return torch.addmm(x, left, right, beta=beta, alpha=alpha)


def masked_scatter_backward(grad: Any, mask: Any, sizes: Sequence[Any]) -> Any:
    """Return the gradient of what `masked_scatter` takes in order: where the mask is true, one after the other."""
    count = 1
    for size in sizes:
        count = count * size
    mask = mask.expand(grad.shape).reshape(-1)
    places = torch.where(mask, mask.cumsum(0) - 1, count)  # all others behind the last
    return grad.new_zeros(count + 1).scatter(0, places, grad.reshape(-1))[:count].reshape(sizes)


def soft_margin_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
    """Return the gradient of `log1p(exp(-target * x))`; `1 - sigmoid` loses the bits of what is small."""
    found = -target * torch.sigmoid(-(target * x)) * grad
    return found / x.numel() if reduction == _MEAN else found


def scatter_reduce(x: Any, axis: int, index: Any, source: Any, *, reduce: str) -> Any:
    """Return the newer op of the same meaning."""
    return torch.scatter_reduce(x, axis, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def scatter_reduce_number(x: Any, axis: int, index: Any, value: Any, *, reduce: str) -> Any:
    """Return the same of one number."""
    return scatter_reduce(x, axis, index, torch.full(index.shape, value, dtype=x.dtype, device=x.device), reduce=reduce)


def rrelu(
    x: Any, noise: Any, lower: Any = 1 / 8, upper: Any = 1 / 3, training: bool = False, _random: Any = None
) -> Any:
    """Return a leaky ReLU whose slope is random in training, where it stays whole, and its slopes."""
    return NotImplemented if training else (torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise.clone())


def rrelu_backward(grad: Any, x: Any, noise: Any, lower: Any, upper: Any, training: bool, self_is_result: bool) -> Any:
    """Return the gradient of the same: in training its slopes are known."""
    if training and upper - lower > _ALIKE:
        return grad * noise
    return _aten.leaky_relu_backward(grad, x, (lower + upper) / 2, self_is_result)


def trilinear(
    a: Any,
    b: Any,
    c: Any,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    _unroll: int = 1,
) -> Any:
    """Return the sum of products of three tensors, each with dimensions of 1 at given places."""
    for axis in expand_a:
        a = a.unsqueeze(axis)
    for axis in expand_b:
        b = b.unsqueeze(axis)
    for axis in expand_c:
        c = c.unsqueeze(axis)
    found = a * b * c
    return found.sum(summed) if summed else found


def fake_quantized(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    """Return what is left of elements as integers of few bits, and which of them are in their range.

    Args:
        x: elements.
        scale: the width of a step: a number, or one for each channel, which is a dimension of its own.
        zero: what stands for 0, likewise: an integer, or a float that is added before rounding.
        low: the least integer.
        high: the largest.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if not isinstance(scale, torch.Tensor):
        scale = torch.full((), scale, dtype=torch.float32, device=x.device)
    steps = x.to(wide) * scale.to(torch.float32).reciprocal()
    is_float = isinstance(zero, torch.Tensor) and zero.is_floating_point()
    steps = torch.round(steps + zero) if is_float else torch.round(steps) + zero
    found = (steps.clamp(low, high) - zero) * scale
    return found.to(x.dtype), (steps >= low) & (steps <= high)


def fake_quantized_where(x: Any, scale: Any, zero: Any, enabled: Any, low: int, high: int) -> tuple[Any, Any]:
    """Return the same where that is switched on, else the elements."""
    found, inside = fake_quantized(x, scale, zero, low, high)
    return torch.where(enabled != 0, found, x), inside | (enabled == 0)


def fake_quantized_channels(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> tuple[Any, Any]:
    """Return the same with a scale for each place along a dimension."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return fake_quantized(x, scale.reshape(shape), zero.reshape(shape), low, high)


def take(x: Any, index: Any) -> Any:
    """Return elements by their places in all; PyTorch's parts ask an index without dimensions for its value."""
    return _aten.index.Tensor(x.reshape(-1), [index])


def _length(value: Any) -> int:
    return len(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else 0


def _at(value: Any, number: int) -> Any:
    """Return one of several values, or the one that is for all."""
    return cast("Sequence[Any]", value)[number] if isinstance(value, list | tuple) else value


def _each(name: str, overload: str) -> Callable[..., list[Any]]:
    """Return an op of lists of tensors as that of each of them."""
    other = _OF_NUMBERS.get(name, name) if overload.startswith("Scalar") else name
    single = getattr(_aten, _NAMES.get(other, other))

    def parts(*given: Any, **named: Any) -> list[Any]:
        if name in _SCALED:
            given, named = given[:3], {"value": given[3]} if len(given) > 3 else {"value": named.get("scalars", 1)}
        count = max(map(_length, given))
        return [
            single(*(_at(one, number) for one in given), **{key: _at(one, number) for key, one in named.items()})
            for number in range(count)
        ]

    return parts


def _of_lists() -> dict[Any, Callable[..., Any]]:
    """Return how ops of lists of tensors are taken apart, other than those that change them."""
    found: dict[Any, Callable[..., Any]] = {}
    for whole in torch._C._dispatch_get_all_op_names():
        name, _, overload = whole.removeprefix("aten::").partition(".")
        single = name.removeprefix(_OF_LISTS)
        is_one = name.startswith(_OF_LISTS) and not name.endswith("_") and not overload.endswith("out")
        is_known = overload != "Tensor" or single not in _SCALED  # a tensor of factors
        if is_one and is_known and hasattr(_aten, _NAMES.get(single, single)):
            found[getattr(getattr(_aten, name), overload or "default")] = _each(single, overload)
    return found


def table() -> dict[Any, Callable[..., Any]]:
    """Return how ops are taken apart, by the op."""
    found: dict[Any, Callable[..., Any]] = {
        _aten.addbmm.default: addbmm,
        _aten.masked_scatter_backward.default: masked_scatter_backward,
        _aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
        _aten.scatter.reduce: scatter_reduce,
        _aten.scatter.value_reduce: scatter_reduce_number,
        _aten._trilinear.default: trilinear,
        _aten.take.default: take,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantized,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantized_where,
        _aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantized_channels,
        _aten.rrelu_with_noise_functional.default: rrelu,
        _aten.rrelu_with_noise_backward.default: rrelu_backward,
    }
    return found | _of_lists()
