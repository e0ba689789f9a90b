"""Turns a call that the Python path has served into a record of the compiled entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any, cast

from tessera.driver.direct_calls import Given, Origin
from tessera.driver.launch import load_starts
from tessera.entry import exchange, layout
from tessera.entry.tables import (
    Argument,
    ArrayGuard,
    AxisGuard,
    ConstantGuard,
    Filled,
    MemoryGuards,
    NotDirect,
    Record,
    ScalarGuard,
    Work,
)
from tessera.errors import TesseraError, caller_location
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import MISSING, ConstexprParam, ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import ArgFacts
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import chosen_profile
from tessera.runtime.device import Device
from tessera.runtime.packing import scalar_bits
from tessera.runtime.platforms import platform_of


def make_record(signature: Signature, key: frozenset[str], origin: Origin, given: Given) -> Record:
    """Return the record of a call's kind.

    Args:
        signature: the kernel's parameters.
        key: names whose values select a tuning result.
        origin: what the call's launch was made from.
        given: the call's arguments.

    Raises:
        NotDirect: the entry cannot serve such calls.
    """
    sizes = _SizeGuards(signature, origin.variant.fixed, key | _ordered(signature, origin))
    arguments, constants = _guards(signature, key, origin, given, sizes)
    placed = [
        given.place(number, param.name)
        for number, param in enumerate(signature.params)
        if not isinstance(param, ConstexprParam)
    ]
    returns = [placed[runtime] for runtime in origin.variant.artifact.returns]
    if None in returns:
        raise NotDirect("a default is returned")
    return Record(
        given.positional,
        [sys.intern(name) for name in given.names],
        arguments,
        constants,
        sizes.equal,
        cast("list[int]", returns),
        chosen_profile(),
        _work(origin, given),
        _memory(origin),
    )


def _ordered(signature: Signature, origin: Origin) -> set[str]:
    """Return names of sizes to guard: the entry does not compare strides with each other, whose order code follows."""
    params = zip(signature.runtime_params, origin.spec.args, strict=True)
    dims = [dim for param, fact in params if isinstance(param, TensorParam) and fact.order for dim in param.dims]
    return {name for dim in dims for name in dim.names}


def _memory(origin: Origin) -> MemoryGuards:
    """Return which arrays the code assumes to be the same memory, and which to be distinct."""
    written = [spec.written for spec in origin.variant.artifact.args]
    facts = origin.spec.seen_aliases(written).args
    firsts = [place if fact.alias < 0 else fact.alias for place, fact in enumerate(facts)]
    changed = {first for first, stored in zip(firsts, written, strict=True) if stored}
    memories = [place for place, fact in enumerate(facts) if fact.kind == "tensor" and firsts[place] == place]
    return MemoryGuards(
        tuple((fact.alias, place) for place, fact in enumerate(facts) if fact.alias >= 0),
        tuple((fact.view, place) for place, fact in enumerate(facts) if fact.view >= 0),
        tuple(pair for pair in combinations(memories, 2) if not changed.isdisjoint(pair)),
    )


def _guards(
    signature: Signature, key: frozenset[str], origin: Origin, given: Given, sizes: _SizeGuards
) -> tuple[list[Argument], list[ConstantGuard]]:
    arguments: list[Argument] = []
    constants: list[ConstantGuard] = []
    facts = iter(origin.spec.args)
    specs = iter(origin.variant.artifact.args)
    for number, param in enumerate(signature.params):
        place, value = given.place(number, param.name), given.values[number]
        if isinstance(param, ConstexprParam):
            if place is not None and value is not MISSING:
                constants.append(ConstantGuard(place, value, type(value) in (int, str)))
            continue
        fact, spec = next(facts), next(specs)
        if isinstance(param, ScalarParam):
            if param.name in key:
                raise NotDirect("a scalar selects the tuning point")
            arguments.append(_scalar(param.dtype, place, value))
        else:
            assert place is not None, "tensors have no default"
            array = replace(_array(value, origin.device), place=place, align=fact.align, written=spec.written)
            axes = sizes.axes(param, fact, value)
            arguments.append(replace(array, element_bytes=fact.dtype.bytes, axes=axes))
    return arguments, constants


class _SizeGuards:
    """Which sizes a record fixes, and which must be equal.

    Args:
        signature: the kernel's parameters.
        fixed: sizes that the code holds as constants, by dimension.
        key: names whose values are guarded, as they select a tuning result or tell orders of strides apart.
    """

    def __init__(self, signature: Signature, fixed: dict[str, int], key: frozenset[str]) -> None:
        dims = {str(dim): dim for tensor in signature.tensors for dim in tensor.dims if not dim.is_static}
        compound = [dim for dim in dims.values() if not dim.is_name]
        used = [name for dim in dims.values() for name in set(dim.names)]
        exact = set(key)
        for dim in compound:
            # A product of names that occur nowhere else is like one name. Other expressions fix all that
            # they depend on, as the sizes were found to agree.
            if not dim.is_product or dim.scale != 1 or any(used.count(name) > 1 for name in dim.names):
                exact |= set(dim.names)
        for text in fixed.keys() - dims.keys():
            exact |= set(Dim.parse(text).names)
        self._exact = exact
        self._fixed = fixed
        self._first: dict[str, tuple[int, int]] = {}
        self.equal: list[tuple[tuple[int, int], tuple[int, int]]] = []
        runtime = signature.runtime_params
        self._position = {param.name: place for place, param in enumerate(runtime)}

    def axes(self, param: TensorParam, fact: ArgFacts, array: Any) -> tuple[AxisGuard, ...]:
        """Return the guards of an array's dimensions."""
        return tuple(
            AxisGuard(
                self._size(param, axis, dim, int(array.shape[axis])),
                fact.dim_div[axis],
                fact.strides[axis],
                fact.stride_div[axis],
            )
            for axis, dim in enumerate(param.dims)
        )

    def _size(self, param: TensorParam, axis: int, dim: Dim, size: int) -> int:
        text = str(dim)
        if dim.is_static or text in self._fixed or not self._exact.isdisjoint(dim.names):
            return size
        here = (self._position[param.name], axis)
        first = self._first.setdefault(text, here)
        if first != here:
            self.equal.append((first, here))
        return -1


_FLOATS = {"f64": layout.FLOAT64, "f32": layout.FLOAT32, "f16": layout.FLOAT16, "bf16": layout.BFLOAT16}


def _scalar(dtype: DType, place: int | None, value: Any) -> Argument:
    name = dtype.storage.name
    signed, unsigned = name[:1] == "i", name[:1] == "u"
    if place is None:
        bits = scalar_bits(dtype.storage.name, value)
        whole = name == "bool" or signed or unsigned
        return Filled(int(value) if whole else int.from_bytes(bits, "little", signed=True), whole)
    if name in _FLOATS:
        return ScalarGuard(place, _FLOATS[name])
    if name == "bool":
        return ScalarGuard(place, layout.BOOLEAN)
    if not signed and not unsigned:
        raise NotDirect(f"scalars of {name} are packed in Python")
    width = 8 * dtype.storage.bytes
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, min(2**width, 2**63) - 1)
    return ScalarGuard(place, layout.INTEGER, low, high)


def _array(value: Any, device: Device) -> ArrayGuard:
    """Return the guard of an array, its place, dimensions and use left open."""
    guard = platform_of(device).array_guard(value)
    return _tensor(value) if guard is None else guard


def _tensor(value: Any) -> ArrayGuard:
    types = exchange.torch_types()
    if type(value) not in types:
        raise NotDirect(f"arrays of type {type(value).__name__} are read in Python")
    found = exchange.torch_exchange()
    facts = None if found is None else exchange.describe(found, value)
    if found is None or facts is None:
        raise NotDirect("this PyTorch has no exchange functions that we know")
    return ArrayGuard(
        kind=layout.DLPACK,
        types=tuple(map(id, types)),
        dtype=facts.dtype,
        device=facts.device,
        read=found.read,
        inner=found.inner,
        mark=found.mark,
        mark_mask=found.mark_mask,
        keep=types,
    )


def _located(callback: Callable[..., object]) -> Callable[..., object]:
    """Return a function of the record whose errors name the line of the call, as those of the Python path do."""

    def call(*numbers: int) -> object:
        try:
            return callback(*numbers)
        except TesseraError as error:
            raise error.at(caller_location()) from error.__cause__

    return call


def _work(origin: Origin, given: Given) -> Work:
    platform = platform_of(origin.device)
    work = origin.launcher.work(platform.entry_stream(given.values))
    start = load_starts(platform).address(layout.STARTER) if platform.has_streams else 0
    conditions = [one["condition"] for one in origin.variant.artifact.assumptions]
    return replace(work, start=start, failed=_located(work.failed), conditions=conditions)
