"""Modules are verified as xDSL verifies them: what is a mistake to one is one to the other, in the same words."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, ModuleOp
from xdsl.ir import Block, Operation

from tessera.ir.fitting import fits
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.verifying import verify
from tests.unit.ir import samples


def _use_what_is_erased(module: ModuleOp) -> None:
    op = next(op for op in module.walk() if isinstance(op, ConstantOp) and op.result.first_use is not None)
    op.detach()
    op.erase(safe_erase=False)


def _end_no_loop(module: ModuleOp) -> None:
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert loop.body.block.last_op is not None
    loop.body.block.last_op.detach()


def _continue_after_the_end(module: ModuleOp) -> None:
    kernel = next(op for op in module.walk() if isinstance(op, KernelOp))
    kernel.body.block.add_op(ConstantOp(1, samples.I32))


def _add_a_block(module: ModuleOp) -> None:
    next(op for op in module.walk() if isinstance(op, scf.ForOp)).body.add_block(Block())


def _lose_a_parent(module: ModuleOp) -> None:
    next(op for op in module.walk() if isinstance(op, ConstantOp)).parent = None


def _lose_a_property(module: ModuleOp) -> None:
    next(op for op in module.walk() if isinstance(op, ConstantOp)).properties.clear()


def _mix_types(module: ModuleOp) -> None:
    op = next(op for op in module.walk() if isinstance(op, ElementwiseOp) and len(op.args) == 2)
    op.operands[1] = next(op for op in module.walk() if isinstance(op, ConstantOp)).result


def _take_from_outside(module: ModuleOp) -> None:
    op = next(op for op in module.walk() if isinstance(op, ElementwiseOp))
    op.operands = [ConstantOp(1, samples.I32).result for _ in op.operands]


MISTAKES: list[Callable[[ModuleOp], None]] = [
    _use_what_is_erased,
    _end_no_loop,
    _continue_after_the_end,
    _add_a_block,
    _lose_a_parent,
    _lose_a_property,
    _mix_types,
    _take_from_outside,
]


def _answer(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "valid"


@pytest.mark.parametrize("sample", [samples.tile_module, samples.target_module], ids=["tile", "target"])
def test_valid_modules_are_valid(sample: Callable[[], ModuleOp]) -> None:
    assert _answer(lambda: verify(sample())) == "valid"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__.strip("_"))
def test_mistakes_are_found_as_by_xdsl(mistake: Callable[[ModuleOp], None]) -> None:
    module = samples.tile_module()
    mistake(module)
    expected = _answer(module.verify)
    assert expected != "valid"
    assert _answer(lambda: verify(module)) == expected


def test_decisions_are_verified_too() -> None:
    module = samples.tile_module()
    next(op for op in module.walk() if isinstance(op, ConstantOp)).attributes["tessera_schedule.stages"] = IntAttr(2)
    assert _answer(module.verify) == "valid"
    assert "tessera_schedule.stages belongs on" in _answer(lambda: verify(module))


def test_ops_that_yield_check_nothing_but_their_definition() -> None:
    assert fits(scf.YieldOp.get_irdl_definition()) is not None
    assert inspect.getclosurevars(scf.YieldOp.verify_).nonlocals["custom_verify"] is Operation.verify_
