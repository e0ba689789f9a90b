"""Functions of TIR-T and the identity of the program that runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, Region
from xdsl.irdl import opt_prop_def, prop_def, region_def, result_def, traits_def
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.types import index
from tessera.target.artifact import GRID, PARAMETER, Parameter
from tessera.target.schema import ArtifactError

_FIELDS = tuple(each.name for each in fields(Parameter))


@lru_cache(maxsize=1024)
def parameter_attr(parameter: Parameter) -> DictionaryAttr:
    """Return a parameter record as an IR attribute."""
    fields: dict[str, Attribute] = {
        "kind": text(parameter.kind),
        "arg": number(parameter.arg),
        "axis": number(parameter.axis),
        "align": number(parameter.align),
        "dtype": text(parameter.dtype),
    }
    for name, values in (("order", parameter.order), ("box", parameter.box)):
        if values:
            fields[name] = ints(values)
    if parameter.slot_bytes:
        fields["slot_bytes"] = number(parameter.slot_bytes)
    if parameter.parts:
        fields["parts"] = number(parameter.parts)
    if parameter.sharing:
        fields["sharing"] = number(parameter.sharing)
    return DictionaryAttr(fields)


def _from_attr(attr: DictionaryAttr) -> Parameter:
    data: dict[str, Any] = dict(attr.data)
    order, box = (tuple(value.data for value in data[name]) if name in data else () for name in ("order", "box"))
    return Parameter(
        data["kind"].data,
        data["arg"].data,
        data["axis"].data,
        data["align"].data,
        data["dtype"].data,
        order,
        box,
        *(data[name].data if name in data else 0 for name in ("slot_bytes", "parts", "sharing")),
    )


@op_definition
class FuncOp(TesseraOp):
    """One launch: the program that runs at every point of a grid.

    `grid` is the JSON text of `target.artifact.Launch.grid`: how the host computes the number of programs. `cluster`
    neighbouring programs run at the same time and reach into each other's shared memory. Threads take no more registers
    than leave room for `resident` programs on a multiprocessor. With `divides_exactly`, quotients are rounded once.
    """

    name = "tessera_target.func"
    sym_name = prop_def(StringAttr)
    params = prop_def(ArrayAttr[DictionaryAttr])
    grid = prop_def(StringAttr)
    num_warps = prop_def(IntAttr)
    profile = prop_def(StringAttr)
    cluster = prop_def(IntAttr)
    resident = opt_prop_def(IntAttr)
    divides_exactly = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())

    def __init__(
        self,
        name: str,
        params: Sequence[Parameter],
        types: Sequence[Attribute],
        grid: str,
        num_warps: int = 1,
        profile: str = "fast",
        cluster: int = 1,
        resident: int = 1,
        divides_exactly: bool = False,
    ):
        super().__init__(
            properties={
                "sym_name": text(name),
                "params": ArrayAttr([parameter_attr(p) for p in params]),
                "grid": text(grid),
                "num_warps": number(num_warps),
                "profile": text(profile),
                "cluster": number(cluster),
                "resident": number(resident) if resident > 1 else None,
                "divides_exactly": UnitAttr() if divides_exactly else None,
            },
            regions=[Region(Block(arg_types=types))],
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The record of each parameter."""
        return tuple(_from_attr(attr) for attr in self.params.data)

    def verify_(self) -> None:
        """Check that there is a record for every parameter, and that the host can compute the grid."""
        if len(self.body.block.args) != len(self.params.data):
            raise VerifyException("a function has one record per parameter")
        try:
            for number, parameter in enumerate(self.parameters):
                held = {name: getattr(parameter, name) for name in _FIELDS}
                PARAMETER(f"params[{number}]", held | {name: list(held[name]) for name in ("order", "box")})
            GRID("grid", json.loads(self.grid.data))
        except (ArtifactError, LookupError, AttributeError, ValueError) as error:
            what = error.what if isinstance(error, ArtifactError) else f"{type(error).__name__}: {error}"
            raise VerifyException(f"a record of {self.sym_name.data} is wrong: {what}") from error
        if self.num_warps.data < 1 or self.cluster.data < 1:
            raise VerifyException("a program has one warp or more, a cluster one program or more")


@op_definition
class ReturnOp(TesseraOp):
    """Ends a function."""

    name = "tessera_target.return"
    traits = traits_def(IsTerminator(), HasParent(FuncOp))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ProgramCountOp(TesseraOp):
    """How many programs the launch started."""

    name = "tessera_target.program_count"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[index])


@op_definition
class ProgramIdOp(TesseraOp):
    """The linear number of the running program, from 0."""

    name = "tessera_target.program_id"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[index])


@op_definition
class GridWaitOp(TesseraOp):
    """Waits until the launch before has ended and its writes are seen; then lets the next launch start early.

    A launch whose every program does this before it touches global memory may start while the one before still runs.
    Source: PTX ISA 9.2, "griddepcontrol".
    """

    name = "tessera_target.grid_wait"
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()
