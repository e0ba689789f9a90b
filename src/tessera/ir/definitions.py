"""Defines ops as xDSL does, but faster ones, whose assembly formats are read when an op is first read or printed.

A compilation that keeps no dump reads and prints nothing, and the formats of a hundred ops take as long to read as a
small kernel to compile. Operands, results and properties are read without the views that xDSL makes of them, and ops
that fit their definitions are verified without its verifier (`fitting.py`), which then only says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from xdsl.dialects.builtin import UNKNOWN_LOC, DenseArrayBase, LocationAttr, i32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue, SSAValues, Use
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    OpDef,
    OptionalDef,
    OptPropertyDef,
    VariadicDef,
    irdl_op_definition,
)

from tessera.ir.fitting import Fits, ends_of, fits

if TYPE_CHECKING:
    from xdsl.irdl.declarative_assembly_format import FormatProgram
    from xdsl.parser import Parser
    from xdsl.printer import Printer

Op = TypeVar("Op", bound=IRDLOperation)


Operand = SSAValue | Operation | Sequence[SSAValue | Operation] | None


class TesseraOp(IRDLOperation):
    """What Tessera's ops derive from. It builds an op from values; whether they fit is the verifier's to say."""

    COUNTS_OPERANDS: ClassVar[bool]
    """Whether a property holds how many operands each definition has."""

    def __init__(
        self,
        *,
        operands: Sequence[Operand] = (),
        result_types: Sequence[Attribute | Sequence[Attribute] | None] = (),
        properties: Mapping[str, Attribute | None] | None = None,
        attributes: Mapping[str, Attribute | None] | None = None,
        regions: Sequence[Region] = (),
    ) -> None:
        """Build an op from the values of each operand's definition, and the types of each result's."""
        groups = [_values_of(given) for given in operands]
        held = {name: each for name, each in (properties or {}).items() if each is not None}
        if self.COUNTS_OPERANDS:
            held[AttrSizedOperandSegments.attribute_name] = _segments(*map(len, groups))
        self._fill(
            [value for group in groups for value in group],
            _types_of(result_types),
            held,
            {name: each for name, each in (attributes or {}).items() if each is not None},
            UNKNOWN_LOC,
            regions,
        )

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = {},
        attributes: Mapping[str, Attribute] = {},
        location: LocationAttr | None = None,
        successors: Sequence[Block] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        """Build an op from all its operands, results and properties."""
        assert not successors, "no op of Tessera has successors"
        op = cls.__new__(cls)
        op._fill(operands, result_types, dict(properties), dict(attributes), location or UNKNOWN_LOC, regions)
        return op

    def _fill(
        self,
        operands: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        properties: dict[str, Attribute],
        attributes: dict[str, Attribute],
        location: LocationAttr,
        regions: Sequence[Region],
    ) -> None:
        """Set what `Operation.__init__` sets, at a third of its cost."""
        uses = tuple([Use(self, at) for at in range(len(operands))])
        for operand, use in zip(operands, uses, strict=True):
            operand.add_use(use)
        self._operands, self._operand_uses = SSAValues(operands), uses
        self.results = SSAValues([OpResult(type_, self, at) for at, type_ in enumerate(result_types)])
        self.properties, self.attributes, self.location = properties, attributes, location
        for region in regions:
            self.add_region(region)


_VALUES = frozenset[type]({OpResult, BlockArgument})
"""The classes of values, which xDSL's checks take long to tell: they are abstract classes to Python."""

_LISTS = (list, tuple)


def _values_of(given: Operand) -> Sequence[SSAValue]:
    """Return the values of one definition's operands."""
    if given is None:
        return ()
    if isinstance(given, _LISTS):
        return [_value_of(each) for each in given]
    if type(given) in _VALUES or isinstance(given, Operation):
        return (_value_of(given),)
    return [_value_of(each) for each in cast("Sequence[SSAValue | Operation]", given)]


def _value_of(given: Any) -> SSAValue:
    return given if type(given) in _VALUES else SSAValue.get(given)


def _types_of(given: Sequence[Attribute | Sequence[Attribute] | None]) -> list[Attribute]:
    flat: list[Attribute] = []
    for each in given:
        if isinstance(each, _LISTS):
            flat += each
        elif each is not None:
            flat.append(each)  # pyright: ignore[reportArgumentType]
    return flat


@cache
def _segments(*sizes: int) -> DenseArrayBase[Any]:
    return DenseArrayBase.from_list(i32, sizes)


def op_definition(cls: type[Op]) -> type[Op]:
    """Define an op by its class; use it as a decorator, in place of `irdl_op_definition`.

    Args:
        cls: the class, with its operands, results, attributes, and perhaps an `assembly_format`, as xDSL wants them. A
            mistake in the format is reported when it is first used, by `ParseError`.

    Returns:
        The class.
    """
    text = cls.__dict__.get("assembly_format")
    own = cls.verify_
    if text is not None:
        del cls.assembly_format  # else the format is read now
    irdl_op_definition(cls)
    definition = cls.get_irdl_definition()
    setattr(cls, "COUNTS_OPERANDS", bool(definition.options))  # noqa: B010 - for those that derive from `TesseraOp`
    for name, accessor in _accessors(definition).items():
        setattr(cls, name, accessor)
    setattr(cls, "verify_", _verifier(definition, own))  # noqa: B010 - pyright knows no assignment to a method
    if text is not None:
        cls.assembly_format = definition.assembly_format = text
        _format(cls, definition, text)
    return cls


def _format(cls: type[Op], definition: OpDef, text: str) -> None:
    """Let a class read and print by its assembly format."""

    @cache
    def program() -> FormatProgram:
        from xdsl.irdl.declarative_assembly_format import FormatProgram

        return FormatProgram.from_str(text, definition)

    def parse(cls: type[Op], parser: Parser) -> Op:
        return program().parse(parser, cls)

    def print_(self: Op, printer: Printer) -> None:
        program().print(printer, self)

    setattr(cls, "parse", classmethod(parse))  # noqa: B010
    setattr(cls, "print", print_)  # noqa: B010


def _verifier(definition: OpDef, own: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an op's verifier: that it fits its definition, then what its class checks."""

    @cache
    def fitting() -> Fits | None:
        return fits(definition)

    def verify_(self: IRDLOperation) -> None:
        check = fitting()
        if check is None or not check(self):
            definition.verify(self)
        own(self)

    return verify_


def _accessors(definition: OpDef) -> dict[str, property]:
    """Return what reads operands, results, regions and properties."""
    assert all(type(option) is AttrSizedOperandSegments for option in definition.options)
    found = _parts(definition.results, "results") | _parts(definition.regions, "regions")
    if definition.options:
        found |= {name: _counted(place, kind) for place, (name, kind) in enumerate(definition.operands)}
    else:
        found |= _parts(definition.operands, "_operands")
    for name, (key, kind) in definition.accessor_names.items():
        if kind == "property" and not isinstance(definition.properties[key], OptPropertyDef):
            found[name] = _property(key)
    return found


_ITEM: Callable[[Any, Any], Any] = tuple.__getitem__  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
"""Reads a tuple as Python does; xDSL's own tuples first ask what the index is."""

_Read = Callable[[Any], Any]


def _parts(defs: Sequence[tuple[str, Any]], holder: str) -> dict[str, property]:
    """Return what reads the parts of a tuple of which at most one definition takes several."""
    several = [place for place, (_, each) in enumerate(defs) if isinstance(each, VariadicDef)]
    if len(several) > 1:
        return {}
    at = several[0] if several else len(defs)
    read = attrgetter(holder)
    found: dict[str, property] = {}
    for place, (name, each) in enumerate(defs):
        if place != at:
            found[name] = _single(read, place if place < at else place - len(defs))
        elif isinstance(each, OptionalDef):
            found[name] = _optional(read, place, len(defs))
        elif holder != "regions":
            found[name] = _variadic(read, place, len(defs) - 1)
    return found


def _single(read: _Read, at: int) -> property:
    return property(lambda op: _ITEM(read(op), at))


def _optional(read: _Read, at: int, most: int) -> property:
    return property(lambda op: _ITEM(held, at) if len(held := read(op)) == most else None)


def _variadic(read: _Read, at: int, others: int) -> property:
    if not others:
        return property(read)
    return property(lambda op: SSAValues(_ITEM(held := read(op), slice(at, at + len(held) - others))))


def _counted(place: int, kind: Any) -> property:
    """Return what reads the operands of one definition where a property says how many each has."""
    several, optional = isinstance(kind, VariadicDef), isinstance(kind, OptionalDef)

    def read(op: IRDLOperation) -> Any:
        sizes: Any = op.properties[AttrSizedOperandSegments.attribute_name]
        ends = ends_of(sizes.data.data)
        first, end = ends[place - 1] if place else 0, ends[place]
        held = op._operands  # pyright: ignore[reportPrivateUsage]
        if several and not optional:
            return SSAValues(_ITEM(held, slice(first, end)))
        return _ITEM(held, first) if end > first or not several else None

    return property(read)


def _property(key: str) -> property:
    def write(op: IRDLOperation, value: Attribute) -> None:
        op.properties[key] = value

    return property(lambda op: op.properties[key], write)
