"""A block of Graph IR as a short text, which is read in a twentieth of the time that MLIR's form takes.

It is what a group's kernel is made from, and what its keys hold. It says all of the ops but where they were written and
how their values are called: the texts of all attributes, the types of the arguments, and each op with the numbers of
its operands and attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import cast

from xdsl.context import Context
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.parser import Parser

from tessera.ir.attributes import exact_text
from tessera.ir.collect import new_context
from tessera.ir.graph import graph_dialect

_Op = tuple[str, list[int], dict[str, int], dict[str, int], list[int]]
"""An op's name, and numbers: of its operands, its properties and attributes, and the types of its results."""


def compact_text(block: Block) -> str:
    """Return the text of a block, whose ops have no regions."""
    writer = _Writer()
    arguments = writer.numbered(block.args)
    ops = [writer.op(op) for op in block.ops]
    return json.dumps([[*writer.texts], arguments, ops], separators=(",", ":"))


def block_of(source: str) -> Block:
    """Return the block whose text `compact_text` gave."""
    texts, arguments, ops = cast("tuple[list[str], list[int], list[_Op]]", json.loads(source))
    attributes = [_attribute(text) for text in texts]
    block = Block(arg_types=[attributes[at] for at in arguments])
    values: list[SSAValue] = [*block.args]
    classes = _classes()
    for name, operands, properties, others, results in ops:
        op = classes[name].create(
            operands=[values[number] for number in operands],
            result_types=[attributes[at] for at in results],
            properties={key: attributes[at] for key, at in properties.items()},
            attributes={key: attributes[at] for key, at in others.items()},
        )
        block.add_op(op)
        values += op.results
    return block


class _Writer:
    """Numbers the values and the attributes of a block."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self._types: dict[Attribute, int] = {}
        self._values: dict[SSAValue, int] = {}

    def op(self, op: Operation) -> _Op:
        """Return an op as numbers."""
        assert not op.regions, f"{op.name} has a region"
        operands = [self._values[value] for value in op.operands]
        return op.name, operands, self._named(op.properties), self._named(op.attributes), self.numbered(op.results)

    def numbered(self, values: Sequence[SSAValue]) -> list[int]:
        """Number values, and return the numbers of their types."""
        self._values |= {value: len(self._values) + at for at, value in enumerate(values)}
        return [self._type(value.type) for value in values]

    def _type(self, type_: Attribute) -> int:
        if type_ not in self._types:
            self._types[type_] = self._attribute(type_)
        return self._types[type_]

    def _named(self, attributes: Mapping[str, Attribute]) -> dict[str, int]:
        return {name: self._attribute(each) for name, each in sorted(attributes.items())}

    def _attribute(self, attribute: Attribute) -> int:
        return self.texts.setdefault(exact_text(attribute), len(self.texts))


@lru_cache(maxsize=4096)
def _attribute(text: str) -> Attribute:
    """Return the attribute that a text says; attributes never change, so that one object serves all ops."""
    return Parser(_context(), text).parse_attribute()


@cache
def _context() -> Context:
    return new_context()


@cache
def _classes() -> dict[str, type[Operation]]:
    return {each.name: each for each in graph_dialect().operations}
