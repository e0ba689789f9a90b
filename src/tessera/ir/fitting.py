"""Asks whether ops fit their definitions, at a fifth of what xDSL's verifier takes to say why one does not.

The answer is the verifier's own: what the definition of an op says is read once for its class. Definitions of a kind
that is not known here, such as those whose operands constrain each other, are left to xDSL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import iter_unpack
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, ArrayOfConstraint, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AnyOf,
    AnyRange,
    AttrConstraint,
    AttrSizedOperandSegments,
    BaseAttr,
    EqAttrConstraint,
    OpDef,
    OptionalDef,
    OptPropertyDef,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    SingleBlockRegionDef,
    VariadicDef,
    VerificationContext,
)
from xdsl.traits import IsolatedFromAbove, OpTrait
from xdsl.utils.exceptions import VerifyException

from tessera.ir.walking import ops_inside

Accepts = Callable[[Any], bool]
Fits = Callable[[Operation], bool]


class _UnknownKind(Exception):
    """A definition says something that is not read here."""


def fits(definition: OpDef) -> Fits | None:
    """Return what says whether ops fit a definition, apart from what their class checks itself.

    Args:
        definition: the definition.

    Returns:
        A function that is true only of ops that the verifier accepts; None where the definition is left to xDSL.
    """
    if definition.successors or definition.attributes:
        return None
    try:
        parts = [_operands(definition), _results(definition), _properties(definition), *_regions(definition)]
    except _UnknownKind:
        return None
    parts += [_trait(trait) for trait in definition.traits if type(trait).verify is not OpTrait.verify]

    def fit(op: Operation) -> bool:
        for part in parts:  # loops take half the time of `all`
            if not part(op):
                return False
        return True

    return fit


def _trait(trait: OpTrait) -> Fits:
    if type(trait) is IsolatedFromAbove:
        return _is_isolated

    def holds(op: Operation) -> bool:
        try:
            trait.verify(op)
        except VerifyException:
            return False
        return True

    return holds


def _is_isolated(op: Operation) -> bool:
    """Return whether all values that ops inside an op take are made inside it."""
    inner = [each for region in op.regions for each in ops_inside(region)]
    made = {id(value) for each in inner for value in each.results}
    for each in (op, *inner):
        for region in each.regions:
            made.update([id(argument) for block in region.blocks for argument in block.args])
    return all([id(value) in made for each in inner for value in each.operands])


def _operands(definition: OpDef) -> Fits:
    if not definition.options:
        accepts = _values(definition.operands)
        return lambda op: accepts(op._operands)  # pyright: ignore[reportPrivateUsage] - without a view of them
    if len(definition.options) > 1 or not isinstance(definition.options[0], AttrSizedOperandSegments):
        raise _UnknownKind
    return _segments(definition.operands, definition.options[0])


def _results(definition: OpDef) -> Fits:
    accepts = _values(definition.results)
    return lambda op: accepts(op.results)


def _values(defs: Sequence[tuple[str, Any]]) -> Accepts:
    """Return what accepts values of which at most one definition takes several."""
    checks = [_elements(each.constr, isinstance(each, VariadicDef)) for _, each in defs]
    several = [place for place, (_, each) in enumerate(defs) if isinstance(each, VariadicDef)]
    if len(several) > 1:
        raise _UnknownKind
    if not several:
        count = len(defs)
        if not any(checks):
            return lambda values: len(values) == count
        return lambda values: len(values) == count and _accepted(checks, values)
    at, fixed = several[0], len(defs) - 1
    optional = isinstance(defs[at][1], OptionalDef)

    def accepts(values: Sequence[SSAValue]) -> bool:
        extra = len(values) - fixed
        if extra < 0 or (optional and extra > 1):
            return False
        return _accepted([*checks[:at], *[checks[at]] * extra, *checks[at + 1 :]], values)

    return accepts


def _accepted(checks: Sequence[Accepts | None], values: Sequence[SSAValue]) -> bool:
    """Return whether the type of each value is accepted."""
    for check, value in zip(checks, values, strict=True):
        if check is not None and not check(value.type):
            return False
    return True


def _segments(defs: Sequence[tuple[str, Any]], option: AttrSizedOperandSegments) -> Fits:
    """Return what accepts operands whose numbers a property or attribute holds."""
    checks = [_elements(each.constr, isinstance(each, VariadicDef)) for _, each in defs]
    most = [None if isinstance(each, VariadicDef) and not isinstance(each, OptionalDef) else 1 for _, each in defs]
    least = [0 if isinstance(each, VariadicDef) else 1 for _, each in defs]

    @lru_cache(maxsize=64)
    def checks_of(sizes: bytes) -> list[Accepts | None] | None:
        """Return what accepts each operand's type, None where the definitions take other numbers of operands."""
        ends = ends_of(sizes)
        numbers = [end - start for start, end in pairwise((0, *ends))]
        if len(numbers) != len(checks):
            return None
        for number, low, high in zip(numbers, least, most, strict=True):
            if number < low or (high is not None and number > high):
                return None
        return [check for check, number in zip(checks, numbers, strict=True) for _ in range(number)]

    def accepts(op: Operation) -> bool:
        held: Any = option.container(op).get(option.attribute_name)
        if getattr(held, "elt_type", None) != i32:
            return False
        wanted, operands = checks_of(held.data.data), op._operands  # pyright: ignore[reportPrivateUsage]
        return wanted is not None and len(wanted) == len(operands) and _accepted(wanted, operands)

    return accepts


@lru_cache(maxsize=256)
def ends_of(sizes: bytes) -> tuple[int, ...]:
    """Return where the operands of each definition end, given how many each has, as an op's property holds it."""
    return tuple(accumulate(size for (size,) in iter_unpack("<i", sizes)))


def _regions(definition: OpDef) -> list[Fits]:
    """Return what accepts regions of one block each, nothing where there are none."""
    for _, each in definition.regions:
        if type(each) is not SingleBlockRegionDef or _elements(each.entry_args, True) is not None:
            raise _UnknownKind
    count = len(definition.regions)

    def accepts(op: Operation) -> bool:
        blocks = [region.first_block for region in op.regions]
        return len(blocks) == count and all([block is not None and block.next_block is None for block in blocks])

    return [accepts] if count else []


def _properties(definition: OpDef) -> Fits:
    named = [
        (name, None if name in _sizes(definition) else _attribute(each.constr), isinstance(each, OptPropertyDef))
        for name, each in definition.properties.items()
    ]

    def accepts(op: Operation) -> bool:
        found, properties = 0, op.properties
        for name, check, optional in named:
            attribute = properties.get(name)
            if attribute is not None:
                found += 1
                if check is not None and not check(attribute):
                    return False
            elif not optional:
                return False
        return found == len(properties)

    return accepts


def _sizes(definition: OpDef) -> tuple[str, ...]:
    """Return the names of properties that `_segments` reads."""
    return tuple(AttrSizedOperandSegments.attribute_name for _ in definition.options)


def _elements(constraint: RangeConstraint, several: bool) -> Accepts | None:
    """Return what accepts the type of each value of a definition, None where anything goes."""
    if isinstance(constraint, RangeLengthConstraint) and not several:
        constraint = constraint.constraint  # its length is 1
    match constraint:
        case AnyRange():
            return None
        case RangeOf():
            return _attribute(constraint.constr)
        case _:
            raise _UnknownKind


def _attribute(constraint: AttrConstraint) -> Accepts | None:
    """Return what accepts an attribute or a type, None where anything goes."""
    match constraint:
        case AnyAttr():
            return None
        case EqAttrConstraint():
            expected: Any = constraint.attr
            return lambda attribute: attribute is expected or attribute == expected
        case BaseAttr():
            cls: type[Attribute] = constraint.attr
            return lambda attribute: type(attribute) is cls or isinstance(attribute, cls)
        case ArrayOfConstraint():
            check = _elements(constraint.elem_range_constraint, True)
            return lambda array: type(array) is ArrayAttr and (check is None or all([check(e) for e in array.data]))
        case AnyOf():
            choices = [_attribute(choice) for choice in constraint.attr_constrs]
            return lambda attribute: any([choice is None or choice(attribute) for choice in choices])
        case _ if constraint.variables():
            raise _UnknownKind
        case _:
            return _verified(constraint)


def _verified(constraint: AttrConstraint) -> Accepts:
    def accepts(attribute: Attribute) -> bool:
        try:
            constraint.verify(attribute, VerificationContext())
        except VerifyException:
            return False
        return True

    return accepts
