"""Why groups that read one another are not one kernel."""

from __future__ import annotations

from tessera.data import dataclass
from tessera.ir.graph.structure import GroupOp
from tessera.ir.graph.sums import ContractOp

MOST_OPS = 160
MOST_INPUTS = 28

OTHER_AXES = "it works along other axes"
OTHER_ROWS = "it reduces along other axes"
BETWEEN = "something else has to run between them"
TOO_MANY_OPS = f"together they have more than {MOST_OPS} ops"
TOO_MANY_INPUTS = f"together they read more than {MOST_INPUTS} arrays"
BY_PARTS = "columns are combined in parts, over all rows"
"""Reasons why an op does not join a group that it reads."""

NO_FLOATS = "its products are no floats"
NOT_POINTWISE = "it does more than maps of the product's elements"
OTHER_ORDER = "it goes along the product's elements in another order"
NEEDED_BETWEEN = "it reads what follows from the product in other ways"
IN_PARTS = "it writes a part of an array"
"""Reasons why a group is not computed where a product's sums are."""


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Why two groups are not one.

    Args:
        reader: the group that reads.
        read: the group, or the product, that it reads.
        why: the reason.
    """

    reader: GroupOp
    read: GroupOp | ContractOp
    why: str
