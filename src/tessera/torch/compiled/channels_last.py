"""Lets images of convolutions lie with their channels last, where that pays.

A convolution takes and gives images that are transposed in the graph, so that ATen sees strides of channels last. The
transposes are moved through the ops between convolutions, and most of them meet and vanish
(`schedule/fuse/transposes.py`). What forward saves for backward lies as it was computed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from importlib import import_module
from math import prod
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.points import CastOp
from tessera.ir.graph.structure import CallOp, GraphOp
from tessera.ir.graph.types import array_type
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, SliceOp, TransposeOp
from tessera.runtime.device import CPU
from tessera.schedule.fuse.places import insert
from tessera.schedule.fuse.transposes import composed, inverse
from tessera.torch.compiled.layouts import Lies, Order, hint_of, order_of
from tessera.torch.compiled.sharing import storages

torch: Any = import_module("torch")
_aten: Any = torch.ops.aten

WANTED: ContextVar[bool | None] = ContextVar("channels_last", default=None)
"""Whether images lie with their channels last; None where the rule says. Tests and benchmarks compare both."""

RANKS = (4, 5)
"""Dimensions of images, and of volumes, in batches."""
LEAST = 8
"""Channels of the image, and of the result, from which on a convolution gains: cuDNN's kernels for channels last load
16 bytes of neighbouring channels at a time, and pad fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What the graphs of one function agree on.

    Args:
        is_last: whether images of convolutions lie channels last.
        visible: how many results of a forward graph the program sees; all others are saved for backward.
        saved: the order of saved arrays that lie otherwise than they were traced, by the names of their nodes.
    """

    is_last: bool
    visible: int | None = None
    saved: dict[str, Order] = field(default_factory=dict[str, Order])

    def order_of(self, node: Any, fake: Any) -> Order | None:
        """Return the order in which an argument of a graph is taken, None for that of its dimensions."""
        if not self.is_last or fake.is_complex() or fake.ndim < 4:
            return None
        return self.saved.get(node.name) or order_of(fake)

    def of_backward(self) -> Layout:
        """Return the layout of the backward graph, whose results the program sees."""
        return Layout(self.is_last, None, self.saved)


def layout_of(traced: Any, visible: int | None = None) -> Layout:
    """Return the layout of a graph, or of a joint one of which so many results are forward's."""
    return Layout(not _shows_views(traced, visible) and _is_wanted(traced), visible)


def _shows_views(traced: Any, visible: int | None) -> bool:
    """Return whether results are views of arguments or of one another: PyTorch makes them anew by their strides."""
    results = traced.graph.output_node().args[0][:visible]
    nodes = dict.fromkeys(one for one in results if isinstance(one, torch.fx.Node))
    given = set(storages(node for node in traced.graph.nodes if node.op == "placeholder"))
    found = list(
        storages(node for node in nodes if node.op != "placeholder" and node.target is not _aten.copy_.default)
    )
    return len({*found}) < len(found) or not given.isdisjoint(found)


def _is_wanted(traced: Any) -> bool:
    wanted = WANTED.get()
    found = list(_convolutions(traced))
    return bool(found) and (_pays(found) if wanted is None else wanted)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """What the rule asks of a convolution.

    Args:
        device: where it runs.
        dtype: of its image.
        ins: channels of the image that an element of the result sees.
        outs: channels of the result in a group.
        groups: how many groups there are.
        work: multiplications, but for a factor that all have.
    """

    device: str
    dtype: Any
    ins: int
    outs: int
    groups: int
    work: int


def _convolutions(traced: Any) -> Iterator[_Convolution]:
    """Yield the convolutions of images and volumes in a graph."""
    for node in traced.graph.nodes:
        if node.target is _aten.convolution.default:
            image, weight, groups = node.args[0], node.args[1], node.args[8]
            result = node.meta["val"]
        elif node.target is _aten.convolution_backward.default:
            result, image, weight, groups = node.args[0].meta["val"], node.args[1], node.args[2], node.args[9]
        else:
            continue
        x, w = image.meta["val"], weight.meta["val"]
        groups = hint_of(groups.meta["val"] if isinstance(groups, torch.fx.Node) else groups)
        if x.ndim in RANKS:
            sizes = [*map(hint_of, w.shape)]
            ins, outs = hint_of(x.shape[1]) // groups, hint_of(result.shape[1]) // groups
            area = prod(map(hint_of, max(x.shape[2:], result.shape[2:], key=lambda dims: prod(map(hint_of, dims)))))
            yield _Convolution(x.device.type, x.dtype, ins, outs, groups, prod(sizes) * area * hint_of(x.shape[0]))


def _pays(found: Sequence[_Convolution]) -> bool:
    """Return whether most of the work of convolutions is faster with channels last.

    On GPUs tensor cores take 16-bit floats, and f32 as tf32 where PyTorch allows that, channels last: cuDNN turns other
    images for them. Depthwise convolutions gain, too; those of several groups with many channels have slow kernels.
    Other f32 and f64 have kernels for images in their own order. On CPUs images stay as they are: the errors of
    oneDNN's f32 kernels for channels last are up to 16 times those of its others.
    """
    gains = sum(one.work for one in found if _gains(one))
    return 2 * gains > sum(one.work for one in found)


def _gains(one: _Convolution) -> bool:
    if one.device == CPU.kind:
        return False
    fast = one.dtype in (torch.bfloat16, torch.float16)
    fast |= one.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    depthwise = one.groups > 1 and one.ins == 1
    return fast and (depthwise or (one.groups == 1 and min(one.ins, one.outs) >= LEAST))


def settle_operands(graph: GraphOp, wanted: Mapping[str, Sequence[Lies]]) -> None:
    """Copy operands of calls to memory in another order, where they have to lie in that of their dimensions.

    Args:
        graph: the graph; its transposes have been moved.
        wanted: for calls by name how each operand has to lie.
    """
    for op in [op for op in graph.body.block.ops if isinstance(op, CallOp)]:
        for place, lies in enumerate(wanted.get(op.callee.data, ())):
            value = op.operands[place]
            if (lies.is_turned or lies.order is None) and isinstance(value.owner, TransposeOp):
                op.operands[place] = _copied(value, op)


def settled(
    value: SSAValue, lies: Lies, is_saved: bool, moved: Container[Operation], end: Operation
) -> tuple[SSAValue, Lies]:
    """Return a result of a graph as it is given, and how it lies.

    Args:
        value: the result; transposes have been moved.
        lies: how it has to lie.
        is_saved: whether any order will do.
        moved: the transposes that have been moved; others are a program's own.
        end: the end of the graph.
    """
    owner = value.owner
    if lies.is_turned or not isinstance(owner, TransposeOp) or owner not in moved:
        return value, lies
    own = inverse(owner.permutation)
    wanted = lies.order or tuple(range(len(own)))
    if is_saved or wanted == own:
        is_view = isinstance(owner.source.owner, BroadcastOp | ReshapeOp | SliceOp | TransposeOp)
        return _copied(owner.source, end) if is_view else owner.source, Lies(own, True)
    turned = TransposeOp(owner.source, composed(owner.permutation, wanted))
    insert([turned], end)
    return _copied(turned.result, end), Lies(lies.order, lies.order is not None)


def _copied(value: SSAValue, before: Operation) -> SSAValue:
    copy = CastOp(value, array_type(value).dtype)
    insert([copy], before)
    return copy.result
