"""Builds kernels for arguments that are contiguous and 16-byte aligned, and lowers them for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera.driver.binding import assumed_facts
from tessera.driver.pipeline import schedule_passes
from tessera.frontend.build import build_kernel
from tessera.frontend.signature import Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.ir.target.structure import FuncOp
from tessera.lower.simt import lower_to_simt
from tessera.schedule.gpu.copies import StageCopiesPass
from tessera.schedule.gpu.warps import ChooseWarpsPass
from tessera.schedule.knobs import Knobs
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

Steps = Mapping[str, tuple[int, ...]]


def aligned(
    function: Any, sizes: Mapping[str, int] | None = None, strides: Steps | None = None, profile: str = "fast"
) -> ModuleOp:
    """Return a kernel's TIR-H for aligned arguments of sizes divisible by 16, contiguous unless `strides` says more."""
    signature = Signature.of(function)
    facts = [
        assumed_facts(param, dict(sizes or {}), (strides or {}).get(param.name))
        if isinstance(param, TensorParam)
        else ArgFacts("scalar", param.dtype)
        for param in signature.runtime_params
    ]
    return build_kernel(signature, Specialization(tuple(facts), (), (), profile)).module


def scheduled(module: ModuleOp, target: TargetRecord, knobs: Knobs | None = None) -> ModuleOp:
    """Run the scheduling passes of a target on a module, and return it."""
    for step in schedule_passes(target, knobs or Knobs()):
        step.apply(module)
    module.verify()
    return module


def lowered(
    function: Any,
    target: str = "sm_90a",
    knobs: Knobs | None = None,
    sizes: Mapping[str, int] | None = None,
    strides: Steps | None = None,
) -> FuncOp:
    """Return the single TIR-T function of a kernel, scheduled for `target`."""
    module = aligned(function, sizes, strides)
    record = target_named(target)
    for step in (StageCopiesPass(record, knobs or Knobs()), ChooseWarpsPass(record, knobs or Knobs())):
        step.apply(module)
    module.verify()
    result = lower_to_simt(module, record)
    result.verify()
    (func,) = [op for op in result.ops if isinstance(op, FuncOp)]
    return func
