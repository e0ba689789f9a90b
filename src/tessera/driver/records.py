"""What the record of a module (`ir/record.py`) says at each level, checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.errors import CallError, VerifyError
from tessera.ir.locations import location_of
from tessera.ir.record import record_of
from tessera.ir.tile.structure import KernelOp
from tessera.target.artifact import HEADER, ArgSpec
from tessera.target.schema import ArtifactError, Check, anything, record, table, text, wrong

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TileRecord:
    """What TIR-H says.

    Args:
        target: name of the target, empty where it says none.
        after: `frontend`, or the stage and the name of the last pass that it had: `schedule: dead-code`; the stage
            alone after all of its passes.
        knobs: what the caller or tuner fixed.
        facts: facts for the artefact's reflection.
    """

    target: str
    after: str
    knobs: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """What TIR-T says; see `Artifact` for all but `facts`, which are for its reflection."""

    target: str
    name: str
    args: tuple[ArgSpec, ...]
    returns: tuple[int, ...]
    facts: dict[str, Any]


def _after(where: str, value: Any) -> str:
    if not re.fullmatch(r"frontend|(canonicalize|schedule)(: \S+)?", text(where, value)):
        raise wrong(where, f'is "{value}", not a stage and pass')
    return value


_TILES: dict[str, Check] = {"target": text, "after": _after, "knobs": table(anything), "facts": HEADER["reflection"]}
_THREADS: dict[str, Check] = {
    "target": text,
    "name": HEADER["name"],
    "args": HEADER["args"],
    "returns": HEADER["returns"],
    "facts": HEADER["reflection"],
}


def kernel_of(module: ModuleOp) -> KernelOp:
    """Return the kernel of TIR-H.

    Raises:
        VerifyError: it holds none, or several.
    """
    kernels = [op for op in module.ops if isinstance(op, KernelOp)]
    if len(kernels) != 1:
        raise VerifyError(f"the module holds {len(kernels)} kernels, not one", location=location_of(module))
    return kernels[0]


def tile_record(module: ModuleOp) -> TileRecord:
    """Return what TIR-H says; what it leaves out is as for a kernel just written.

    Raises:
        VerifyError: it says what no compiler writes.
    """
    given: dict[str, Any] = {"target": "", "after": "frontend", "knobs": {}, "facts": {}}
    return _checked(module, TileRecord, _TILES, given | record_of(module))


def thread_record(module: ModuleOp) -> ThreadRecord:
    """Return what TIR-T says.

    Raises:
        CallError: `no-record` when it says nothing.
        VerifyError: it says what no compiler writes.
    """
    given = record_of(module)
    if given.keys() <= {"target"}:
        raise CallError(
            "the module does not say what kernel it is of",
            code="no-record",
            location=location_of(module),
            help="continue a dump of Tessera's with the attributes of its module",
        )
    return _checked(module, ThreadRecord, _THREADS, given)


def _checked(module: ModuleOp, make: Callable[..., T], fields: dict[str, Check], given: dict[str, Any]) -> T:
    try:
        return record(make, fields)("tessera", given)
    except ArtifactError as error:
        raise VerifyError(error.what, location=location_of(module)) from error
