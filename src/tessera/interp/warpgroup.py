"""Products that run while others compute.

A product reads its shared operands when it starts and again when it ends, so that they must be there from the start
and stay as they are; it ends as late as can be, when a wait says so.
"""

from __future__ import annotations

from typing import Any

from tessera.interp.machine import Machine, handles
from tessera.interp.mma import given_to_warpgroup, multiply
from tessera.interp.shared import end_reading, read_until_waited
from tessera.interp.values import Product, Shared, dtype_at
from tessera.ir.locations import location_of
from tessera.ir.tile.warpgroup import MmaBeginOp, MmaRetireOp, MmaStartOp, MmaWaitOp, TurnOp, sums_type


@handles(MmaStartOp)
def _start(op: MmaStartOp, machine: Machine) -> Any:
    for value in map(machine.get, (op.a, op.b)):
        if isinstance(value, Shared):
            read_until_waited(value, op, machine)
    product = Product(op, (machine.get(op.a), machine.get(op.b), machine.get(op.acc)))
    machine.program.role.products.append(product)
    return product


@handles(MmaBeginOp)
def _begin(op: MmaBeginOp, machine: Machine) -> Any:
    acc = machine.get(op.acc)
    return Product(op, (None, None, acc), acc)


@handles(MmaRetireOp)
def _retire(op: MmaRetireOp | MmaWaitOp, machine: Machine) -> None:
    under_way = machine.program.role.products
    ended = max(len(under_way) - op.pending.data, 0)
    for product in under_way[:ended]:
        _end(product, machine)
    del under_way[:ended]


@handles(MmaWaitOp)
def _wait(op: MmaWaitOp, machine: Machine) -> Any:
    _retire(op, machine)
    product: Product = machine.get(op.product)
    if product.result is None:
        place = location_of(product.op)
        message = f"reads the accumulators of a product under way{f', started at {place}' if place else ''}"
        help = "let the wait leave fewer products pending"
        raise machine.fault(op, "race", message, help=help)
    return product.result


@handles(TurnOp)
def _turn(op: TurnOp, machine: Machine) -> None:
    """All consumer warpgroups are one role here, which has every turn."""


def _end(product: Product, machine: Machine) -> None:
    op = product.op
    assert isinstance(op, MmaStartOp)
    a, b, acc = product.operands
    a, b = (end_reading(v, op, machine) if isinstance(v, Shared) else v for v in (a, b))
    a, b = (given_to_warpgroup(operand, op.compute.data) for operand in (a, b))
    if isinstance(acc, Product):
        assert acc.result is not None
        acc = acc.result
    product.result = multiply(a, b, acc, dtype_at(op.a.type), dtype_at(sums_type(op.acc)), op.compute.data)
