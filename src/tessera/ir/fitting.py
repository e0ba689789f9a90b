"""Asks whether ops fit their definitions, at a fifth of what xDSL's verifier takes to say why one does not.

The answer is the verifier's own: what the definition of an op says is read once for its class. Definitions of a kind
that is not known here, such as those whose operands constrain each other, are left to xDSL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
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
    VariadicDef,
    VerificationContext,
)
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException

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
    if definition.regions or definition.successors or definition.attributes:
        return None
    try:
        parts = [_operands(definition), _results(definition), _properties(definition)]
    except _UnknownKind:
        return None
    parts += [_trait(trait) for trait in definition.traits if type(trait).verify is not OpTrait.verify]
    return lambda op: all([part(op) for part in parts])


def _trait(trait: OpTrait) -> Fits:
    def holds(op: Operation) -> bool:
        try:
            trait.verify(op)
        except VerifyException:
            return False
        return True

    return holds


def _operands(definition: OpDef) -> Fits:
    if not definition.options:
        accepts = _values(definition.operands)
        return lambda op: accepts(op.operands)
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
        named = [(place, check) for place, check in enumerate(checks) if check is not None]
        count = len(defs)
        return lambda values: len(values) == count and all([check(values[place].type) for place, check in named])
    at, fixed = several[0], len(defs) - 1
    optional = isinstance(defs[at][1], OptionalDef)

    def accepts(values: Sequence[SSAValue]) -> bool:
        extra = len(values) - fixed
        if extra < 0 or (optional and extra > 1):
            return False
        spread = [*checks[:at], *[checks[at]] * extra, *checks[at + 1 :]]
        return all([check is None or check(value.type) for check, value in zip(spread, values, strict=True)])

    return accepts


def _segments(defs: Sequence[tuple[str, Any]], option: AttrSizedOperandSegments) -> Fits:
    """Return what accepts operands whose numbers a property or attribute holds."""
    checks = [_elements(each.constr, isinstance(each, VariadicDef)) for _, each in defs]
    most = [None if isinstance(each, VariadicDef) and not isinstance(each, OptionalDef) else 1 for _, each in defs]
    least = [0 if isinstance(each, VariadicDef) else 1 for _, each in defs]

    def accepts(op: Operation) -> bool:
        held: Any = option.container(op).get(option.attribute_name)
        operands = op.operands
        if getattr(held, "elt_type", None) != i32:
            return False
        sizes: Sequence[int] = held.get_values()
        if len(sizes) != len(checks) or sum(sizes) != len(operands):
            return False
        for size, low, high in zip(sizes, least, most, strict=True):
            if size < low or (high is not None and size > high):
                return False
        starts = accumulate(sizes, initial=0)
        for check, size, start in zip(checks, sizes, starts, strict=False):
            if check is not None and not all([check(operands[start + k].type) for k in range(size)]):
                return False
        return True

    return accepts


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
