"""A group of maps as a part of another kernel: it computes a tile's elements where they are, in registers.

A step of an epilogue calls `computed` with its structure, which holds the group's ops as text, the form in which they
see the tile, and operands that are loaded for it. What the group gives beside the step's own result is stored.
"""

from __future__ import annotations

import json
from typing import Any, cast

from xdsl.ir import Operation, SSAValue

from tessera.frontend.builder import Builder
from tessera.frontend.calls import call
from tessera.frontend.convert import operand
from tessera.frontend.group.accesses import Access, Shape
from tessera.frontend.group.emit import Emitter, Held
from tessera.frontend.registry import compiles
from tessera.frontend.structure import StructureValue
from tessera.frontend.values import Tile
from tessera.ir.graph.compact import block_of
from tessera.ir.tile.types import shape_of
from tessera.ir.types import element_type
from tessera.numerics.dtypes import DType, computed_in

ROWS, COLUMNS = 0, 1
"""The axes of a tile in its form."""
AXES = {"tensor": (), "row": (ROWS,), "col": (COLUMNS,), "full": (ROWS, COLUMNS)}
"""The axes along which an operand has several elements, by what these belong to."""


def computed(step: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    """Return what a step's group makes of a tile, in kernels.

    Args:
        step: the structure: `ops`, the text; `form`, the form's data as text; `source`, the number of the tile among
            the group's operands; `operands` and `goals`, which load and store what belongs to the tile in the order
            of the form; `n0` …, sizes.
        x: the tile.
        rows: the place of its first row in the result.
        cols: the place of its first column.
        batch: the number of the matrix in a batch, None without one.
    """
    raise NotImplementedError("kernels call it")


@compiles(computed)
def _computed(b: Builder, step: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return _TileEmitter(b, cast(StructureValue, step), x, (rows, cols, batch)).result()


class _TileEmitter(Emitter):
    """Writes a group's maps for one tile.

    Args:
        b: the builder of the kernel around.
        step: the structure.
        x: the tile.
        place: where it begins: row, column, number of the matrix.
    """

    def __init__(self, b: Builder, step: StructureValue, x: Tile, place: tuple[Any, Any, Any]) -> None:
        fields = step.fields
        shape = Shape.from_data(json.loads(fields["form"]))
        numbers: list[SSAValue] = [fields[f"n{at}"].ssa for at in range(len(shape.sizes))]
        arguments = [x.ssa] * len(shape.accesses) + numbers  # what is loaded and stored is so by others
        super().__init__(block_of(fields["ops"]), shape, arguments, shape_of(x.ssa.type), b.spec.profile)
        self._b, self._x, self._place, self._source = b, x, place, fields["source"]
        reads = [access for access in shape.accesses if not access.is_result and access.number != self._source]
        self._operands = dict(zip(reads, fields["operands"], strict=True))
        self._goals = fields["goals"]

    def result(self) -> Tile:
        """Store what is stored beside the step's result, the first one, and return that."""
        first, *others = (access for access in self._shape.accesses if access.is_result)
        tiles = [self._whole(access) for access in (*others, first)]
        for tile, goal in zip([*tiles[:-1], self._x], self._goals, strict=False):
            call(self._b, goal, [tile, *self._place], {})
        return tiles[-1]

    def _whole(self, access: Access) -> Tile:
        """Return what belongs to a result, in the dtype that its dtype is computed in."""
        end = self._ops.last_op
        assert end is not None, "a group ends with its yield"
        held = self._value(end.operands[access.number], access.place)
        return Tile(self._spread(held, (ROWS, COLUMNS)).ssa)

    def _add(self, op: Operation) -> Operation:
        return self._b.emit(op)

    def _loaded(self, access: Access, dtype: DType) -> Held:
        wanted = element_type(computed_in(dtype))
        if access.number == self._source:
            return Held(self._cast(self._x.ssa, wanted), (ROWS, COLUMNS))
        given = self._operands[access]
        part = operand(self._b, call(self._b, given, [self._x, *self._place], {}))
        return Held(self._cast(part.ssa, wanted), AXES[given.fields["axis"]])
