"""What a module says of the kernel it is a stage of, so that its text alone can be compiled further.

It is plain data in the module's attributes: `tessera.target = "sm_90a"`. A module that says nothing is as good; then
whoever compiles it says what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute

from tessera.errors import VerifyError
from tessera.ir.attributes import integer, text
from tessera.ir.locations import location_of
from tessera.ir.types import i1

_PREFIX = "tessera."
_AFTER = "tessera.after"


def record_on(module: ModuleOp, **fields: Any) -> None:
    """Write fields on a module.

    Args:
        module: any module.
        **fields: numbers, texts, bools, None, and lists and dictionaries (by text) of them.
    """
    for name, value in fields.items():
        module.attributes[_PREFIX + name] = _to_attr(value)


def record_of(module: ModuleOp) -> dict[str, Any]:
    """Return the fields that a module has.

    Raises:
        VerifyError: one holds what no compiler writes.
    """
    found: dict[str, Any] = {}
    for name, attr in module.attributes.items():
        if name.startswith(_PREFIX):
            found[name.removeprefix(_PREFIX)] = _from_attr(module, name, attr)
    return found


def passed(module: ModuleOp, stage: str, name: str) -> None:
    """Write down which pass was the last, on a module that keeps account of it."""
    if _AFTER in module.attributes:
        module.attributes[_AFTER] = text(f"{stage}: {name}")


def _to_attr(value: Any) -> Attribute:
    match value:
        case None:
            return UnitAttr()
        case bool():
            return integer(int(value), i1)
        case int():
            return integer(value, i64) if -(2**63) <= value < 2**63 else IntAttr(value)
        case float():
            return FloatAttr(value, f64)
        case str():
            return text(value)
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return DictionaryAttr({name: _to_attr(part) for name, part in items})
        case _:
            return ArrayAttr([_to_attr(part) for part in cast("Sequence[Any]", value)])


def _from_attr(module: ModuleOp, name: str, attr: Attribute) -> Any:
    match attr:
        case UnitAttr():
            return None
        case IntegerAttr(value=IntAttr(data=number), type=type_):
            return bool(number) if type_ == i1 else number
        case IntAttr(data=number):
            return number
        case FloatAttr():
            return attr.value.data
        case StringAttr(data=text):
            return text
        case DictionaryAttr():
            return {key: _from_attr(module, f"{name}.{key}", part) for key, part in attr.data.items()}
        case ArrayAttr():
            return [_from_attr(module, f"{name}[{place}]", part) for place, part in enumerate(attr.data)]
        case _:
            raise VerifyError(f"{name} is {attr}, no plain data", location=location_of(module))
