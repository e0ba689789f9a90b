"""From a graph that PyTorch traced to Graph IR."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from tessera.data import dataclass
from tessera.errors import TesseraError
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ArrayType, array_type
from tessera.ir.graph.types import dims_of as dims_of_value
from tessera.ir.graph.views import ReshapeOp, SliceOp, TransposeOp, memory_of
from tessera.ir.graph.writer import GraphWriter
from tessera.numerics.dtypes import DType, boolean, f64, i64
from tessera.ops.arrays import by_torch_name, torch_dtypes
from tessera.schedule.fuse.transposes import inverse, is_plain, move_transposes, split_reductions, turn_reductions
from tessera.target.dims import Dim
from tessera.torch.compiled.aten_calls import AtenCall, is_complex
from tessera.torch.compiled.channels_last import RANKS, Layout, settle_operands, settled
from tessera.torch.compiled.computed import Computed, number_of, values_of, written
from tessera.torch.compiled.folding import device_of, no_modes
from tessera.torch.compiled.higher import is_refused
from tessera.torch.compiled.layouts import Lies, Order, gaps_of, hint_of, is_dense, is_empty, order_of
from tessera.torch.compiled.registry import row_of
from tessera.torch.compiled.sizes import Elsewhere, Unknown, dims_of, named_in

torch: Any = import_module("torch")
F = Callable[..., Any]
"""Applies a function of `numerics.functions` to values and numbers."""
Formula = Callable[[F, Any], Any] | Callable[[F, Any, Any], Any]
"""Gives the value of an elementwise op; takes how functions are applied, then the op's operands."""

_ASSERTIONS = (torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)
"""Checks of places, which are not reported."""

pytree: Any = import_module("torch.utils._pytree")
_prims: Any = import_module("torch._prims_common")
_Undecided: Any = import_module("torch.fx.experimental.symbolic_shapes").GuardOnDataDependentSymNode
"""A row asks of a size what only a call can tell."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """A traced graph in Graph IR.

    Args:
        module: holds the graph.
        calls: what it calls: each takes the sizes of symbols and gives a function of tensors.
        arguments: the places of its tensors among the traced function's arguments.
        symbols: the places of numbers that are sizes, by the symbol.
        constants: tensors that it takes after those.
        contiguous: whether each tensor's elements lie side by side, in order.
        turned: numbers of the tensors that it takes with their dimensions in another order, and which.
        hints: sizes of the symbols when it was traced, and what those of `named` were.
        named: sizes that follow from symbols, by the names that stand for them.
        results: for each result the number of the graph's, with how it lies, or what it always is.
        written: places of arguments that are changed, each with the number of the result that is copied to it at the
            end; those of one dtype together.
        loose: for calls by name whether each result lies in another order than its dimensions', or with gaps.
        left: how often each op runs as ATen.
        rows: how many ops have become Graph IR.
    """

    module: ModuleOp
    calls: dict[str, Callable[[Any], Callable[..., Any]]]
    arguments: tuple[int, ...]
    symbols: tuple[tuple[str, int], ...]
    constants: tuple[Any, ...]
    contiguous: tuple[bool, ...]
    turned: tuple[tuple[int, Order], ...]
    hints: dict[str, int]
    named: dict[str, Computed]
    results: tuple[tuple[bool, Any], ...]
    written: tuple[tuple[tuple[int, int], ...], ...]
    loose: dict[str, list[bool]]
    left: Counter[str]
    rows: int


@dataclass(frozen=True, slots=True)
class Turned:
    """An argument of an op that runs as ATen, in memory with its dimensions in another order.

    Args:
        node: the argument.
        order: the dimension with the longest stride first.
    """

    node: Any
    order: Order


class Converter:
    """Converts one graph.

    Args:
        traced: the graph, with what PyTorch knows of each value in `meta`.
        layout: whether images of convolutions lie channels last, and what is known of arrays between graphs.
        shown: results, by place, as they are without a compiler: PyTorch's parts of an op may lie otherwise.

    Raises:
        Unknown: there is a dtype, a size or a device that Tessera has not.
    """

    node: Any
    """The op that is being converted."""

    def __init__(self, traced: Any, layout: Layout, shown: Mapping[int, Any] = MappingProxyType({})) -> None:
        if any(map(is_refused, traced.graph.nodes)):
            raise Unknown("control flow, or effects")
        self._traced, self._shown = traced, shown
        self.layout = layout
        self._seeds: list[Any] = []
        self._values: dict[Any, Any] = {}
        self._calls: dict[str, Callable[[Any], Callable[..., Any]]] = {}
        self._loose: dict[str, list[bool]] = {}
        self._written: dict[int, SSAValue] = {}
        self.left = Counter[str]()
        self._rows = 0
        places = [node for node in traced.graph.nodes if node.op == "placeholder"]
        self._places = {node: at for at, node in enumerate(places)}
        found = {node: getattr(traced, node.target) for node in traced.graph.nodes if node.op == "get_attr"}
        self._values |= {node: one for node, one in found.items() if isinstance(one, torch.nn.Module)}
        held: list[Any] = [node for node in found if node not in self._values]
        self.device = device_of(traced)
        self._constants = tuple(self._beside(found[node]) for node in held)
        tensors = [(node, node.meta["val"]) for node in places if isinstance(node.meta.get("val"), torch.Tensor)]
        self._arguments = tuple(places.index(node) for node, _ in tensors)
        if not tensors and not held:
            with no_modes():  # something that tells the device
                held, self._constants = [None], (torch.zeros((), device=self.device),)
        tensors += list(zip(held, self._constants, strict=True))
        if not all(isinstance(fake, torch.Tensor) for _, fake in tensors):
            raise Unknown("a constant that is no tensor")
        if any(fake.device != self.device for _, fake in tensors):
            raise Unknown("tensors on several devices")
        orders = {number: layout.order_of(node, fake) for number, (node, fake) in enumerate(tensors)}
        self._turned = {number: order for number, order in orders.items() if order is not None}
        self._contiguous = tuple(number in self._turned or is_dense(fake) for number, (_, fake) in enumerate(tensors))
        self._symbols = tuple(
            (str(node.meta["val"].node.expr), at) for at, node in enumerate(places) if _is_size(node.meta.get("val"))
        )
        types = [_type_in(fake, orders[number]) for number, (_, fake) in enumerate(tensors)]
        hints = _hints(fake for _, fake in tensors)
        hints |= {name: hint_of(places[at].meta["val"]) for name, at in self._symbols}
        self._named = _named(traced)
        self.w = GraphWriter("graph", types, hints | values_of(self._named, hints))
        for number, ((node, _), argument) in enumerate(zip(tensors, self.w.arguments, strict=True)):
            self._values[node] = self._turned_back(argument, orders[number])
        self._memory = dict[SSAValue, Any](zip(self.w.arguments, (node for node, _ in tensors), strict=True))
        """In whose memory arguments and results are: what made them."""
        for node in places:
            if node not in self._values:
                self._values[node] = node.meta.get("val")

    def _beside(self, constant: Any) -> Any:
        """Return a constant where the graph's tensors are, if it is a single number."""
        single = isinstance(constant, torch.Tensor) and not constant.ndim
        with no_modes():
            return constant.to(self.device) if single else constant

    def run(self) -> Converted:
        """Convert all of the graph."""
        results: Sequence[Any] = ()
        for node in self._traced.graph.nodes:
            if node.op == "output":
                results = node.args[0]
            elif node.op in ("call_function", "call_method"):
                self.node = node
                self._values[node] = self._convert(node)
        values: list[SSAValue] = []
        given: list[tuple[bool, Any]] = []
        names: dict[int, str] = {}
        wholes = self._wholes(results)
        for place, result in enumerate(results):
            value = self._values[result] if isinstance(result, torch.fx.Node) else result
            if isinstance(value, SSAValue):
                fake = self._shown.get(place, result.meta["val"])
                value = self._part_of(cast("SSAValue[Any]", value), result, wholes)
                laid, lies = self._laid(self._apart(cast("SSAValue[Any]", value), result), fake)
                if self.layout.visible is not None and place >= self.layout.visible:
                    names[place] = result.name
                elif is_dense(fake) and laid.owner not in self._seeds:
                    lies = Lies(tuple(range(fake.ndim + is_complex(fake))), False)
                given.append((True, (len(values), lies, is_complex(fake), self._gaps(fake))))
                values.append(laid)
            else:
                given.append((False, _known(value)))
        written: dict[DType, tuple[tuple[int, int], ...]] = {}
        for at, value in self._written.items():
            dtype = array_type(value).dtype
            written[dtype] = (*written.get(dtype, ()), (at, len(values)))
            values.append(value)
        module = self.w.finish(values)
        split_reductions(self.w.graph)
        turn_reductions(self.w.graph)
        if self.layout.is_last:
            self._settle(given, names)
        return Converted(
            module,
            self._calls,
            self._arguments,
            self._symbols,
            self._constants,
            self._contiguous,
            tuple(self._turned.items()),
            dict(self.w.hints),
            self._named,
            tuple(given),
            tuple(written.values()),
            self._loose,
            self.left,
            self._rows,
        )

    def _gaps(self, fake: Any) -> tuple[Dim | Computed, ...] | None:
        """Return the strides of a result whose elements lie apart, where calls can tell them."""
        found = gaps_of(fake)
        symbols = {
            str(one) for step in found or () if isinstance(step, torch.SymInt) for one in step.node.expr.free_symbols
        }
        return None if found is None or symbols - {*self.w.hints} else tuple(map(number_of, found))

    def _wholes(self, results: Sequence[Any]) -> dict[SSAValue, Any]:
        """Return results that lie in order in memory of their own, each with what made them."""
        nodes = [one for one in results if isinstance(one, torch.fx.Node)]
        pairs = [(self._values[node], node) for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        return {value: _owner_of(node) for value, node in pairs if order_of(node.meta["val"]) is None}

    def _part_of(self, value: SSAValue, node: Any, wholes: Mapping[SSAValue, Any]) -> SSAValue:
        """Return a result that is a part of another one in the memory of that: a program may change either."""
        moves: list[SliceOp | ReshapeOp | TransposeOp] = []
        whole: Any = value
        while isinstance(whole.owner, SliceOp | ReshapeOp | TransposeOp):
            moves.append(whole.owner)
            whole = whole.owner.source
            is_part = any(isinstance(move, SliceOp) for move in moves)
            if is_part and not isinstance(whole, BlockArgument) and wholes.get(whole) is _owner_of(node):
                found = self.w.stored(whole)
                for move in reversed(moves):
                    found = self.w.again(move, [found])
                return found
        return value

    def _apart(self, value: SSAValue, node: Any) -> SSAValue:
        """Return a result that shares memory only with what it does in PyTorch: a program may change either."""
        owner = _owner_of(node)
        if self._memory.setdefault(memory_of(value), owner) is owner:
            return value
        copy = self.w.copy(value)
        self._memory[copy] = owner
        return copy

    def _settle(self, given: list[tuple[bool, Any]], names: Mapping[int, str]) -> None:
        """Move transposes until they meet, and say how operands of calls and results lie.

        Args:
            given: the results; how they lie is changed.
            names: names of those that are saved for backward, by place.
        """
        moved = move_transposes(self.w.graph, self._seeds)
        calls = [(name, call) for name, call in self._calls.items() if isinstance(call, AtenCall)]
        settle_operands(self.w.graph, {name: call.operands for name, call in calls})
        end = self.w.graph.body.block.last_op
        assert end is not None, "a graph ends with its return"
        for place, (is_tensor, found) in enumerate(given):
            if is_tensor:
                number, before, *rest = found
                value = cast("SSAValue[Any]", end.operands[number])
                end.operands[number], lies = settled(value, before, place in names, moved, end)
                given[place] = True, (number, lies, *rest)
                if place in names and lies.is_turned and lies.order is not None:
                    self.layout.saved[names[place]] = lies.order

    def _turned_back(self, value: SSAValue, order: Order | None) -> SSAValue:
        """Return what is in memory in another order with its dimensions in their own."""
        if order is None:
            return value
        found = self.w.transpose(value, inverse(order))
        self._seeds.append(found.owner)
        return found

    def _convert(self, node: Any) -> Any:
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            return fake
        if node.target in _ASSERTIONS:
            return None
        if node.target is torch.ops.aten.copy_.default:
            return self._write(*node.args[:2])
        if node.target is operator.getitem:
            return self._values[node.args[0]][node.args[1]]
        fakes = [one for one in pytree.tree_leaves(fake) if isinstance(one, torch.Tensor)]
        given = [one.meta.get("val") for one in node.all_input_nodes]
        found = row_of(node.target, any(map(is_complex, (*given, *fakes))))
        if found is not None and self._is_here(node, fakes):
            if fakes and all(map(is_empty, fakes)):
                return self._nothing(fake)
            try:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
                left = self.left.total()
                made = found(self, *self._arrays(node.target, args), **kwargs)
                fitted = self._fitted(made, fake)
                self._rows += self.left.total() == left
                return fitted
            except Elsewhere:
                raise
            except (Unknown, TesseraError, _Undecided):
                pass
        return self._call(node, fake)

    def _arrays(self, target: Any, args: Sequence[Any]) -> list[Any]:
        """Return operands with arrays for the numbers that an op takes for tensors, where it has no other tensor.

        PyTorch traces `0.1 * x` of several levels of `torch.func` as a copy of the number.
        """
        if any(map(is_value, args)):
            return list(args)
        takes = [str(one.type) == "Tensor" for one in target._schema.arguments]
        are_arrays = [wants and isinstance(one, int | float) for one, wants in zip(args, takes, strict=False)]
        pairs = zip(args, are_arrays, strict=True)
        return [self.w.full(one, _WIDEST[_kind(one)]) if is_array else one for one, is_array in pairs]

    def _write(self, target: Any, source: Any) -> SSAValue:
        """Have a value copied to an argument after all else: PyTorch puts such copies at the end of a graph.

        Raises:
            Unknown: something else is changed.
        """
        if target.op != "placeholder" or is_complex(target.meta["val"]):
            raise Unknown("a change of what is no argument")
        value, fake = self._values[source], target.meta["val"]
        value = self.w.broadcast_to(self.w.cast(value, type_of(fake).dtype), dims_of(fake))
        value = value if isinstance(value.owner, MapOp | CastOp) else self.w.copy(value)
        self._written[self._places[target]] = value
        return value

    def _is_here(self, node: Any, fakes: Sequence[Any]) -> bool:
        """Return whether all tensors of an op are on the graph's device, and have dtypes that Tessera has."""
        given = [one.meta.get("val") for one in node.all_input_nodes]
        known = [fake for fake in (*given, *fakes) if isinstance(fake, torch.Tensor)]
        return all(fake.device == self.device and _dtype_of(fake) is not None for fake in known)

    def _nothing(self, fake: Any) -> Any:
        """Return results without elements: nothing is computed."""
        if isinstance(fake, torch.Tensor):
            type_ = type_of(fake)
            return self.w.broadcast_to(self.w.full(0, type_.dtype), type_.dims)
        return [None if one is None else self._nothing(one) for one in fake]

    def _fitted(self, made: Any, fake: Any) -> Any:
        """Return results with dtypes and sizes as PyTorch has them."""
        if isinstance(fake, torch.Tensor):
            dtype = type_of(fake).dtype
            value, dims = self.w.cast(made, dtype, dtype.is_float), dims_of(fake)
            same = len(dims) == len(dims_of_value(value)) and all(map(self.w.same, dims, dims_of_value(value)))
            if not same:
                raise Unknown(f"{self.node.target} of another shape")
            return self.w.reshape(value, dims)
        return [None if one is None else self._fitted(value, one) for value, one in zip(made, fake, strict=True)]

    def _laid(self, value: SSAValue, fake: Any) -> tuple[SSAValue, Lies]:
        """Return a value for memory, and how it lies there: a kernel that computes it writes it as PyTorch has it."""
        order = order_of(fake)
        if order is None and _is_turned(value):
            return self.w.copy(value), Lies(None, False)
        if order is None or not isinstance(value.owner, _COMPUTED):
            return value, Lies(order, False)
        return self.w.copy(self.w.transpose(value, order)), Lies(order, True)

    def _call(self, node: Any, fake: Any) -> Any:
        """Let an op run as it is, between kernels: one of the library, or as ATen."""
        is_own = str(node.target).startswith("tessera.")
        found = self.left_as_it_is(node.args, node.kwargs, fake)
        self._rows += is_own
        return found

    def left_as_it_is(self, args: Any, kwargs: Any, fake: Any, order: Order | None = None) -> Any:
        """Return what the op gives that is converted, which runs as it is.

        Args:
            args: its arguments: nodes, some `Turned`, and constants.
            kwargs: those that have names.
            fake: what it gives, as PyTorch has traced it.
            order: the order in which results of as many dimensions lie in memory; None for those that were traced.

        Raises:
            Unknown: it gives other things than tensors.
        """
        node = self.node
        leaves, spec = pytree.tree_flatten((args, kwargs))
        inputs: list[SSAValue] = []
        template: list[tuple[str, Any]] = []
        for leaf in leaves:
            given = leaf.node if isinstance(leaf, Turned) else leaf
            value = self._values[given] if isinstance(given, torch.fx.Node) else given
            if isinstance(value, SSAValue):
                laid, lies = self._taken(cast("SSAValue[Any]", value), leaf)
                template.append(("tensor", (len(inputs), lies, is_complex(given.meta.get("val")))))
                inputs.append(laid)
            else:
                template.append(_number(value))
        made, outline = pytree.tree_flatten(fake)
        tensors = [one for one in made if isinstance(one, torch.Tensor)]
        if not all(one is None or isinstance(one, torch.Tensor) for one in made) or not tensors:
            raise Unknown(f"{node.target}, whose result is no tensor")
        name = f"{node.target} {len(self._calls)}"
        orders = [order if order is not None and len(order) == one.ndim else None for one in tensors]
        kinds = [
            (one.dtype, Lies(order_of(one), False) if turned is None else Lies(turned, True))
            for one, turned in zip(tensors, orders, strict=True)
        ]
        self._calls[name] = AtenCall(node.target, tuple(template), spec, kinds)
        self._loose[name] = [
            not lies.is_turned and not is_dense(one) for one, (_, lies) in zip(tensors, kinds, strict=True)
        ]
        types = [_type_in(one, turned) for one, turned in zip(tensors, orders, strict=True)]
        results = iter(map(self._turned_back, self.w.call(name, inputs, types), orders))
        if not str(node.target).startswith("tessera."):
            self.left[str(node.target)] += 1
        return pytree.tree_unflatten([None if one is None else next(results) for one in made], outline)

    def _taken(self, value: SSAValue, leaf: Any) -> tuple[SSAValue, Lies]:
        """Return an operand of an op that runs as it is, and how it lies."""
        if isinstance(leaf, Turned):
            return self.w.transpose(value, leaf.order), Lies(leaf.order, True)
        return self._laid(value, leaf.meta.get("val"))

    # What rows ask

    def dims(self, value: SSAValue) -> tuple[Dim, ...]:
        """Return the sizes of a value."""
        return dims_of_value(value)

    def w_dtype(self, value: SSAValue) -> DType:
        """Return the dtype of a value."""
        return array_type(value).dtype

    def is_float(self, *values: Any) -> bool:
        """Return whether any of some operands is of floating point numbers."""
        return any(_kind(value) == "float" for value in values)

    def is_bool(self, *values: Any) -> bool:
        """Return whether all of some operands are bool."""
        return all(_kind(value) == "bool" for value in values)

    def result_dims(self) -> tuple[Dim, ...]:
        """Return the sizes of the op's result."""
        return dims_of(self.node.meta["val"])

    def results_dims(self) -> list[tuple[Dim, ...]]:
        """Return the sizes of the op's results."""
        return [dims_of(fake) for fake in self.node.meta["val"]]

    def result_dtype(self) -> DType:
        """Return the dtype of the op's result."""
        return type_of(self.node.meta["val"]).dtype

    def truth(self, value: Any) -> Any:
        """Return whether elements are not zero."""
        if not isinstance(value, SSAValue):
            return bool(value)
        given = cast("SSAValue[Any]", value)
        return given if _kind(given) == "bool" else self.w.apply("ne", given, 0)

    def lies_last(self, value: SSAValue) -> bool:
        """Return whether a value is of images that lie channels last."""
        return self.layout.is_last and len(dims_of_value(value)) in RANKS

    def is_part_of_argument(self, node: Any) -> bool:
        """Return whether a result of the graph shares the memory of an argument by way of an op."""
        parts = [each for each in node.users if each.op == "output" or _shares(each)]
        is_given = any(each.op == "output" or self.is_part_of_argument(each) for each in parts)
        return is_given and _owner_of(node).op == "placeholder"

    def copied(self, value: SSAValue) -> SSAValue:
        """Return an array of its own with the same elements."""
        return self.w.copy(value)

    def library(
        self,
        function: Callable[..., Any],
        inputs: Sequence[SSAValue],
        types: Sequence[ArrayType] | None = None,
        sizes: Sequence[Dim] = (),
    ) -> list[SSAValue]:
        """Return what an op of the library gives.

        Args:
            function: takes sizes, then the tensors.
            inputs: values.
            types: of the results; by default those of the op that is converted.
            sizes: those that the function takes.
        """
        fakes = [one for one in pytree.tree_leaves(self.node.meta["val"]) if isinstance(one, torch.Tensor)]
        given = [type_of(one) for one in fakes] if types is None else types
        name = f"tessera {self.node.target} {len(self._calls)}"

        def ready(known: Mapping[str, int]) -> Callable[..., Any]:
            given = [size.value(known) for size in sizes]
            return lambda *tensors: pytree.tree_leaves(function(*given, *tensors))

        self._calls[name] = ready
        return list(self.w.call(name, inputs, given))

    def keep_rounding(self, value: Any) -> None:
        """Let a result of the dtype that the program sees be rounded to it in all kernels."""
        owner = memory_of(value).owner
        if isinstance(owner, CastOp):
            owner.loose = None

    def original(self) -> str:
        """Return the op of the program that the one which is converted is a part of."""
        return str(self.node.meta.get("original_aten"))

    def elementwise(self, formula: Formula, values: Sequence[Any], kind: str) -> Any:
        """Return a formula of operands that are promoted as PyTorch does.

        Args:
            formula: takes how functions are applied, and the operands.
            values: tensors and numbers.
            kind: a rule of promotion, by its name in PyTorch.
        """
        if any(isinstance(value, complex) for value in values):
            raise Unknown("a complex number")
        like = [_like(value) for value in values]
        rule = getattr(_prims.ELEMENTWISE_TYPE_PROMOTION_KIND, kind)
        computed, result = _prims.elementwise_dtypes(*like, type_promotion_kind=rule)
        inner = by_torch_name(str(computed))
        outer = by_torch_name(str(result))
        if inner is None or outer is None:
            raise Unknown(f"{computed}")
        ready = [self.ready(value, inner) for value in values]

        def apply(fn: str, *given: Any) -> SSAValue:
            """Return a function of operands, numbers alone in the dtype that the formula is computed in."""
            given = tuple(written(self.w, one) if isinstance(one, _SYMBOLIC) else one for one in given)
            are_numbers = not any(isinstance(one, SSAValue) for one in given[fn == "select" :])
            return self.w.apply(fn, *given, dtype=inner if are_numbers else None)

        write: Any = formula
        found = write(apply, *ready)
        return found if kind == "ALWAYS_BOOL" else self.w.cast(found, outer, outer.is_float)

    def narrow(self, *values: Any) -> list[Any]:
        """Return operands of which PyTorch rounds numbers to the dtype of the tensors before they take part."""
        kind = _prims.ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
        _, common = _prims.elementwise_dtypes(*map(_like, values), type_promotion_kind=kind)
        dtype = by_torch_name(str(common))
        if dtype is None:
            raise Unknown(f"{common}")
        return [value if isinstance(value, SSAValue) else self.ready(value, dtype) for value in values]

    def ready(self, value: Any, dtype: DType) -> Any:
        """Return an operand in the dtype that it takes part in."""
        if isinstance(value, torch.SymInt | torch.SymFloat):
            value = written(self.w, value)
        return self.w.cast(cast(Any, value), dtype) if isinstance(value, SSAValue) else _as(value, dtype)


_WIDEST = {"float": f64, "int": i64, "bool": boolean}
"""The dtype of a number by its kind."""

_COMPUTED = MapOp | CastOp | ReduceOp | TakeOp
"""Ops that groups compute, which may write what they compute in any order."""


def _is_turned(value: SSAValue) -> bool:
    """Return whether a value is the transpose of a computed one: a group writes it as it is read."""
    op = value.owner
    if not isinstance(op, TransposeOp) or is_plain(dims_of_value(op.source), op.permutation):
        return False
    return isinstance(op.source.owner, _COMPUTED)


def _kind(value: Any) -> str:
    """Return the kind of an operand's dtype."""
    if isinstance(value, SSAValue):
        return array_type(cast("SSAValue[Any]", value)).dtype.kind
    return "float" if isinstance(value, float) else "bool" if isinstance(value, bool) else "int"


def _as(value: float, dtype: DType) -> Any:
    """Return a number that takes part as one of a dtype: of 16-bit floats it is one that they hold."""
    if dtype.is_float:
        return float(value) if dtype.bits > 16 else _rounded(value, dtype)
    return bool(value) if dtype.kind == "bool" else int(value)


def _rounded(value: float, dtype: DType) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(float(value)).astype(dtype.numpy()))


def _like(value: Any) -> Any:
    """Return what stands for an operand where PyTorch finds the dtype of a result."""
    if not isinstance(value, SSAValue):
        return 1 if isinstance(value, torch.SymInt) else 1.0 if isinstance(value, torch.SymFloat) else value
    type_ = array_type(cast("SSAValue[Any]", value))
    return torch.empty((1,) * type_.rank, dtype=torch_dtypes()[type_.dtype.name], device="meta")


def _number(value: Any) -> tuple[str, Any]:
    """Return how an argument that is no tensor is given to an op."""
    return ("size", number_of(value)) if isinstance(value, _SYMBOLIC) else ("constant", value)


def _known(value: Any) -> Any:
    """Return a result that is no tensor: a constant, or a number that follows from sizes."""
    return number_of(value) if isinstance(value, _SYMBOLIC) else value


def type_of(fake: Any) -> ArrayType:
    """Return the type of a traced tensor.

    Raises:
        Unknown: for a dtype or a size that Tessera has not.
    """
    dtype = _dtype_of(fake)
    if dtype is None or fake.layout != torch.strided:
        raise Unknown(f"a tensor of {fake.dtype}, {fake.layout}")
    return ArrayType.of(dims_of(fake), dtype)


def _type_in(fake: Any, order: Order | None) -> ArrayType:
    """Return the type of a traced tensor with its dimensions in an order."""
    found = type_of(fake)
    return found if order is None else ArrayType.of([found.dims[axis] for axis in order], found.dtype)


_COMPLEX = {"torch.complex64": "torch.float32", "torch.complex128": "torch.float64"}
"""The dtypes of the parts of complex numbers."""


def _dtype_of(fake: Any) -> DType | None:
    return by_torch_name(_COMPLEX.get(str(fake.dtype), str(fake.dtype)))


def is_value(operand: Any) -> bool:
    """Return whether an operand of an op is a value of the graph, and no number."""
    return isinstance(operand, SSAValue)


def _owner_of(node: Any) -> Any:
    """Return the op in whose memory, or the argument in which, the result of an op is."""
    while node.op == "call_function" and _shares(node.args[0] if node.target is operator.getitem else node):
        node = node.args[0]
    return node


def _shares(node: Any) -> bool:
    """Return whether results of an op may share the memory of its first operand."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    aliased = any(one.alias_info is not None for one in node.target._schema.returns)
    return aliased or node.target is torch.ops.aten._unsafe_view.default


def _named(traced: Any) -> dict[str, Computed]:
    """Return the sizes of a graph that have names of their own."""
    found: dict[str, Computed] = {}
    for node in traced.graph.nodes:
        for fake in pytree.tree_leaves(node.meta.get("val")):
            sizes = (*fake.shape, *fake.stride()) if isinstance(fake, torch.Tensor) else (fake,)
            for size in sizes:
                if isinstance(size, torch.SymInt | torch.SymFloat):
                    found |= {name: Computed(expr) for name, expr in named_in(size.node.expr).items()}
    return found


def _is_size(value: Any) -> bool:
    """Return whether an argument is a size: the lengths of a nested tensor, of which PyTorch has a symbol, are none."""
    return isinstance(value, torch.SymInt) and value.node.expr.is_Symbol and not value.node.is_nested_int()


def _hints(fakes: Any) -> dict[str, int]:
    """Return the sizes that symbols had when the graph was traced."""
    found: dict[str, int] = {}
    for fake in fakes:
        for size in fake.shape:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found[str(size.node.expr)] = hint_of(size)
    return found
