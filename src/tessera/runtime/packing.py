"""Parameter blocks: the memory that a compiled entry point reads its parameters from.

All parameters of a kernel live in 8-byte slots: first the base addresses, then the scalars, then sizes and strides,
then the address of a workspace. One `struct` call fills addresses and scalars; sizes and strides are written once per
distinct set of shapes. Each launch has an array of pointers into the slots, which is what both `void** params` (CPU)
and `kernelParams` (CUDA) are.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.errors import CallError, shown
from tessera.numerics.dtypes import DType, dtype_named
from tessera.target.artifact import ArgSpec, Artifact, Parameter, program_count
from tessera.target.assumptions import check_assumption, location_of_record
from tessera.target.extents import leaves

Encode = Callable[[Parameter, int, Sequence[int], Sequence[int]], bytes]
"""Makes the tensor map of a parameter from an array's address, sizes and strides."""

_MAP_ALIGN = 64
_MAPS_KEPT = 64
"""Descriptors kept for arrays seen before: an address is described once, not once a launch."""

Shapes = Sequence[tuple[tuple[int, ...], tuple[int, ...]] | None]
"""Sizes and strides of each argument, None for a scalar."""

_FORMATS = {
    "f64": "d",
    "f32": "f4x",
    "f16": "e6x",
    "i8": "b7x",
    "i16": "h6x",
    "i32": "i4x",
    "i64": "q",
    "u8": "B7x",
    "u16": "H6x",
    "u32": "I4x",
    "u64": "Q",
}
_BY_BITS = {1: "B7x", 2: "H6x"}


_NO_NUMBER = (struct.error, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What objects raise that are packed as numbers and are none, such as tensors without memory."""


def _format(dtype: str) -> str:
    storage = dtype_named(dtype).storage
    return _FORMATS.get(storage.name) or _BY_BITS[storage.bytes]


def _as_bits(dtype: str, value: Any) -> int:
    """Return the bits of a value in a dtype that `struct` lacks (bf16, fp8 …) or takes anything for (bool).

    Raises:
        OverflowError: the dtype does not hold the value.
    """
    if dtype == "bool":
        if value != bool(value):
            raise OverflowError("a bool is neither true nor false")
        return int(bool(value))
    number = float(value)
    with np.errstate(over="ignore"):
        stored = np.array(number, np.float32).astype(dtype_named(dtype).numpy())
    if math.isfinite(number) and not math.isfinite(float(stored)):
        raise OverflowError(f"{dtype} does not hold {number}")
    return int(stored.view(np.uint8 if stored.itemsize == 1 else np.uint16))


def scalar_bits(dtype: str, value: Any) -> bytes:
    """Return the 8 bytes of a scalar's slot."""
    known = dtype_named(dtype).storage.name in _FORMATS
    return struct.pack("=" + _format(dtype), value if known else _as_bits(dtype, value))


def number_in(dtype: DType, value: Any) -> Any:
    """Return the number of a dtype that a value stands for.

    Raises:
        ValueError: it is no number, or one that the dtype does not hold.
    """
    try:
        bits = scalar_bits(dtype.storage.name, value)
    except _NO_NUMBER as error:
        raise ValueError(f"no {dtype}") from error
    return np.frombuffer(bits, dtype.numpy(), 1)[0]


def scalar_number(spec: ArgSpec, value: Any) -> Any:
    """Return the number of a scalar argument's dtype that compiled code is given for a value.

    Raises:
        CallError: `wrong-scalar` when it does not fit the dtype.
    """
    try:
        return number_in(dtype_named(spec.dtype), value)
    except ValueError as error:
        raise wrong_scalar(spec, value) from error


class MapSlot:
    """Where a block holds one tensor map, and of which address it is."""

    __slots__ = ("address", "described", "memory", "param")

    def __init__(self, param: Parameter) -> None:
        self.param = param
        self.memory = (ctypes.c_char * (2 * _MAP_ALIGN + _MAP_ALIGN))()
        start = ctypes.addressof(self.memory)
        self.address = -(-start // _MAP_ALIGN) * _MAP_ALIGN
        self.described = -1


class Block:
    """One fillable parameter block; used by one launch at a time.

    Its last slot is the error word, the one before it the address of the workspace.
    """

    __slots__ = ("addresses", "error_address", "maps", "params", "slots")

    def __init__(self, slots: Any, params: list[Any], maps: list[MapSlot]) -> None:
        self.slots = slots
        self.maps = maps
        self.params = params
        self.addresses = [ctypes.addressof(array) for array in params]
        self.error_address = ctypes.addressof(slots) + 8 * (len(slots) - 1)

    def put_workspace(self, address: int) -> None:
        """Write the address of the workspace."""
        self.slots[len(self.slots) - 2] = address


class Packing:
    """Fills parameter blocks of one artefact for one set of shapes.

    Args:
        artifact: the compiled kernel.
        shapes: sizes and strides of each argument.
        extra: pointer entries to reserve after the parameters of each launch; the last one points at the
            block's error word.
        encode: makes tensor maps; needed where parameters are such.
    """

    def __init__(self, artifact: Artifact, shapes: Shapes, extra: int = 0, encode: Encode | None = None) -> None:
        self._encode = encode
        self._shapes = shapes
        self._described: dict[tuple[Parameter, int], bytes] = {}
        self._args = artifact.args
        self._launches = artifact.launches
        self._extra = extra
        self._sizes = [None if shape is None else shape[0] for shape in shapes]
        self._strides = [None if shape is None else shape[1] for shape in shapes]
        tensors = [arg for arg, spec in enumerate(artifact.args) if spec.kind == "tensor"]
        scalars = [arg for arg, spec in enumerate(artifact.args) if spec.kind == "scalar"]
        self._position = {arg: slot for slot, arg in enumerate([*tensors, *scalars])}
        self._scalars = scalars
        formats = "Q" * len(tensors) + "".join(_format(artifact.args[arg].dtype) for arg in scalars)
        self._pack = struct.Struct("=" + formats).pack_into
        self._narrow = [
            (place, artifact.args[arg].dtype)
            for place, arg in enumerate(scalars)
            if dtype_named(artifact.args[arg].dtype).storage.name not in _FORMATS
        ]
        self._constants = self._constant_slots(shapes)
        self._free: list[Block] = []
        self._name = artifact.name
        self._names = [(arg.name, arg.dims) for arg in artifact.args]
        self._assumptions = [(one["condition"], location_of_record(one["location"])) for one in artifact.assumptions]
        self._fixed_counts = None if self._needs_scalars() else self._counted(())

    def _constant_slots(self, shapes: Shapes) -> dict[tuple[str, int, int], int]:
        found: dict[tuple[str, int, int], int] = {}
        for param in (param for launch in self._launches for param in launch.params):
            if param.kind in ("size", "stride"):
                shape = shapes[param.arg]
                assert shape is not None, "only tensors have sizes and strides"
                found[param.kind, param.arg, param.axis] = shape[param.kind == "stride"][param.axis]
        return found

    def _needs_scalars(self) -> bool:
        extents = [extent for launch in self._launches for extent, _ in launch.grid]
        conditions = [condition for condition, _ in self._assumptions]
        return any(leaf[0] == "scalar" for extent in (*extents, *conditions) for leaf in leaves(extent))

    def _counted(self, scalars: Sequence[Any]) -> list[int]:
        by_arg = dict(zip(self._scalars, scalars, strict=False))
        for condition, place in self._assumptions:
            check_assumption(self._name, condition, place, self._names, self._sizes, by_arg)
        return [program_count(launch, self._sizes, by_arg, self._strides) for launch in self._launches]

    def counts(self, scalars: Sequence[Any]) -> list[int]:
        """Return how many programs each launch starts.

        Raises:
            CallError: `assumption`, `grid-too-large`.
            ArtifactError: `grid-division-by-zero`, `grid-too-large`.
        """
        return self._fixed_counts or self._counted(scalars)

    def _new_block(self) -> Block:
        base = len(self._position)
        keys = list(self._constants)
        slots = (ctypes.c_int64 * (base + len(keys) + 2))(*([0] * base), *self._constants.values())
        start = ctypes.addressof(slots)

        maps: dict[Parameter, MapSlot] = {}

        def address(param: Parameter) -> int:
            if param.kind == "tensor_map":
                return maps.setdefault(param, MapSlot(param)).address
            if param.kind == "workspace":
                return start + 8 * (base + len(keys))
            if param.kind in ("pointer", "scalar"):
                return start + 8 * self._position[param.arg]
            return start + 8 * (base + keys.index((param.kind, param.arg, param.axis)))

        params = [
            (ctypes.c_void_p * (len(launch.params) + self._extra))(*map(address, launch.params))
            for launch in self._launches
        ]
        block = Block(slots, params, list(maps.values()))
        for array in params if self._extra else ():
            array[-1] = block.error_address
        return block

    def fill(self, pointers: Sequence[int], scalars: Sequence[Any]) -> Block:
        """Return a block holding these arguments; give it back with `release` when the launch has read it.

        Raises:
            CallError: `wrong-scalar` when a scalar does not fit its dtype.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = self._new_block()
        try:
            self._put(block, pointers, scalars)
            for slot in block.maps:
                self.describe(slot, pointers[self.position(slot.param.arg)])
        except _NO_NUMBER as error:
            self._free.append(block)
            raise self._misfit(scalars, error) from error
        return block

    def held(self, scalars: Sequence[Any]) -> Block:
        """Return a new block that holds scalars which a launch has taken before; addresses are put in later."""
        block = self._new_block()
        self._put(block, [0] * (len(self._position) - len(self._scalars)), scalars)
        return block

    def _put(self, block: Block, pointers: Sequence[int], scalars: Sequence[Any]) -> None:
        values = scalars
        if self._narrow:
            values = list(scalars)
            for place, dtype in self._narrow:
                values[place] = _as_bits(dtype, values[place])
        self._pack(block.slots, 0, *pointers, *values)

    def position(self, arg: int) -> int:
        """Return the slot of an argument."""
        return self._position[arg]

    def describe(self, slot: MapSlot, pointer: int) -> None:
        """Put the tensor map of an array into a block, made anew only for an address not seen lately."""
        if slot.described == pointer:
            return
        key = (slot.param, pointer)
        data = self._described.get(key)
        if data is None:
            shape = self._shapes[slot.param.arg]
            assert shape is not None
            assert self._encode is not None, "only GPUs have tensor maps"
            if len(self._described) >= _MAPS_KEPT:
                self._described.clear()
            data = self._described[key] = self._encode(slot.param, pointer, shape[0], shape[1])
        ctypes.memmove(slot.address, data, len(data))
        slot.described = pointer

    def release(self, block: Block) -> None:
        """Give a block back for the next launch."""
        self._free.append(block)

    def _misfit(self, scalars: Sequence[Any], error: Exception) -> CallError:
        for arg, value in zip(self._scalars, scalars, strict=True):
            try:
                scalar_number(self._args[arg], value)
            except CallError as found:
                return found
        return CallError(
            f"the arguments cannot be packed: {error}",
            code="wrong-scalar",
            help="pass numbers that fit the parameters' dtypes",
        )


def wrong_scalar(spec: ArgSpec, value: Any) -> CallError:
    """Return the error for a scalar argument that does not fit its dtype."""
    return CallError(
        f"argument {spec.name!r} is {shown(value)} ({type(value).__name__}), which is no {spec.dtype}",
        code="wrong-scalar",
        help=f"pass a number that fits {spec.dtype}",
    )
