"""Which ways scalars go as a program's place grows."""

from __future__ import annotations

from xdsl.ir import Block

from tessera.ir.directions import GROWS, SHRINKS, UNKNOWN, directions
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.types import index


def test_sums_and_bounds_go_the_ways_of_their_parts() -> None:
    block, other = Block(arg_types=[index, index]), Block(arg_types=[index])
    (at, second), (size,) = block.args, other.args
    three, minus = ConstantOp(3, index).result, ConstantOp(-3, index).result

    def made(name: str, *args: object) -> object:
        return ElementwiseOp(name, list(args)).result

    ways = [
        (size, frozenset()),
        (made("add", at, three), GROWS),
        (made("minimum", size, made("add", at, second)), GROWS),
        (made("sub", size, at), SHRINKS),
        (made("sub", at, second), UNKNOWN),
        (made("mul", at, minus), SHRINKS),
        (made("mul", at, size), UNKNOWN),
        (made("floordiv", made("mul", at, three), three), GROWS),
        (made("floordiv", at, minus), UNKNOWN),
        (made("mod", at, three), UNKNOWN),
        (made("mod", size, three), frozenset()),
    ]
    for value, expected in ways:
        assert directions(value, block) == expected, value
