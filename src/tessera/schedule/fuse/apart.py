"""Why groups that read one another are not one kernel."""

from __future__ import annotations

from tessera.data import dataclass
from tessera.ir.graph.structure import GroupOp

MOST_OPS = 160
MOST_INPUTS = 28

OTHER_AXES = "it works along other axes"
OTHER_ROWS = "it reduces along other axes"
BETWEEN = "something else has to run between them"
TOO_MANY_OPS = f"together they have more than {MOST_OPS} ops"
TOO_MANY_INPUTS = f"together they read more than {MOST_INPUTS} arrays"
BY_PARTS = "columns are combined in parts, over all rows"
"""Reasons why an op does not join a group that it reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Why two groups are not one.

    Args:
        reader: the group that reads.
        read: the group that it reads.
        why: the reason.
    """

    reader: GroupOp
    read: GroupOp
    why: str
