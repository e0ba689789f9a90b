"""Lowers TIR-H to TIR-T for CPUs: a program is one thread that walks its tiles in loops over vector chunks.

A tile is an expression (`nodes`) until something needs it stored: elementwise chains are fused into the loop
of their consumer, and only what is used several times, re-ordered or multiplied goes through scratch memory.
One file per op family registers its rules (`rules.lowers`).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from xdsl.dialects.builtin import ModuleOp

from tessera.errors import CompilerFault
from tessera.ir.target.structure import FuncOp
from tessera.ir.tile.structure import KernelOp
from tessera.lower.launch import LaunchPlan, Parameters, new_function, plan_launches
from tessera.lower.vector.context import VectorContext
from tessera.target.records import TargetRecord


@cache
def _load_rules() -> None:
    """Import every file of this folder, so that their rules are registered."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")


def lower_to_vector(module: ModuleOp, target: TargetRecord) -> ModuleOp:
    """Return the TIR-T of a TIR-H module: one function per grid.

    Args:
        module: holds one kernel.
        target: a CPU.

    Raises:
        LanguageError: the kernel does what a launch cannot (`grid-extent`, `statement-outside-grid`).
    """
    _load_rules()
    kernel = next((op for op in module.ops if isinstance(op, KernelOp)), None)
    if kernel is None:
        raise CompilerFault("the module holds no kernel", code="invalid-ir")
    return ModuleOp([_lower_launch(kernel, plan, target) for plan in plan_launches(kernel)])


def _lower_launch(kernel: KernelOp, plan: LaunchPlan, target: TargetRecord) -> FuncOp:
    func = new_function(kernel, plan)
    context = VectorContext(target, Parameters(kernel, func), plan)
    context.lower_launch()
    return func
