"""What schedules decide: every attribute `tessera_schedule.*`, what it means, who writes it and which ops may carry it.

A decision is an integer on an op, so that it can be read in a dump and edited there. What a user asks for is none: it
is an option of a pass. The verifier refuses keys that are not declared here, and values and ops that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation
from xdsl.utils.exceptions import VerifyException

from tessera.data import dataclass
from tessera.ir.tile.elementwise import ElementwiseOp, is_zero
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import MOST_GROUPS, AllocBarriersOp, BarrierArriveOp, BarrierWaitOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp, CpAsyncOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp
from tessera.ir.types import int_value

PREFIX = "tessera_schedule."

_PRODUCTS = (MmaOp, MmaStartOp)


@dataclass(frozen=True)
class Decision:
    """A decision of the schedule, an integer on an op.

    Args:
        name: its key, without the prefix.
        meaning: what it says of the op.
        ops: the ops that may carry it.
        writers: the passes that decide it; others only copy it along with its op.
        least: the smallest value.
        most: the largest one, None for any.
        holds: says why the IR is not as the decision says, None where it is; nothing to check by default.
    """

    name: str
    meaning: str
    ops: tuple[type[Operation], ...]
    writers: tuple[str, ...]
    least: int = 0
    most: int | None = 1
    holds: Callable[[Operation], str | None] = field(default=lambda _: None, compare=False)

    @property
    def key(self) -> str:
        """The name of the attribute."""
        return PREFIX + self.name

    def of(self, op: Operation) -> int | None:
        """Return what was decided of an op, None where nothing was."""
        return int_value(op.attributes.get(self.key))

    def on(self, op: Operation) -> bool:
        """Return whether something else than 0 was decided of an op."""
        return bool(self.of(op))

    def write(self, op: Operation, value: int = 1) -> None:
        """Write the decision on an op."""
        op.attributes[self.key] = IntAttr(value)

    def check(self, op: Operation, attribute: Attribute) -> None:
        """Check that an op may carry the decision, with this value.

        Raises:
            VerifyException: it may not.
        """
        if not isinstance(op, self.ops):
            raise VerifyException(f"{self.key} belongs on {' or '.join(cls.name for cls in self.ops)}, not {op.name}")
        value = int_value(attribute)
        if value is None or value < self.least or (self.most is not None and value > self.most):
            end = "on" if self.most is None else f"to {self.most}"
            raise VerifyException(f"{self.key} is an integer (#builtin.int) from {self.least} {end}, got {attribute}")
        if value and (reason := self.holds(op)) is not None:
            raise VerifyException(f"{self.key}: {reason}")


def _why_not_carried(op: Operation) -> str | None:
    """Return why no loop carries the result of an op, None where one does."""
    carried = any(isinstance(use.operation, scf.ForOp | scf.YieldOp) for use in op.results[0].uses)
    return None if carried else "no loop carries what is loaded"


def _why_no_product(op: Operation) -> str | None:
    """Return why an op multiplies no matrix, None where it does."""
    assert isinstance(op, ElementwiseOp)
    is_matrix = isinstance(op.result.type, TileType) and op.result.type.rank == 2
    return None if op.fn.data == "mul" and is_matrix else "the op does not multiply a matrix"


def _why_outside_roles(op: Operation) -> str | None:
    """Return why an op is not the consumers' of a launch with roles, None where it is."""
    parent = op.parent_op()
    consumer = isinstance(parent, RolesOp) and op.parent is parent.consumer.block and parent.groups.data > 1
    return None if consumer else "the op is not one of a group of consumers among several"


def _why_packed_here(role: int) -> Callable[[Operation], str | None]:
    """Return what says why an operand of a product cannot be packed before a loop or branch, None where it can."""

    def why(op: Operation) -> str | None:
        owner = op.operands[role].owner
        home = owner if isinstance(owner, Block) else owner.parent_block()
        if not isinstance(op.operands[role].type, TileType):
            return "the operand is a shared buffer, which may change"
        return "the operand is made where the product is" if home is op.parent_block() else None

    return why


def carried_sum(op: MmaOp) -> scf.ForOp | None:
    """Return the loop around a product that carries its sums and does nothing else with them before, None without."""
    acc, loop = op.acc, op.parent_op()
    carried = isinstance(acc, BlockArgument) and acc.owner is op.parent_block() and acc.index > 0
    return loop if carried and isinstance(loop, scf.ForOp) and acc.uses.get_length() == 1 else None


def why_not_from_zero(op: Operation) -> str | None:
    """Return why a product's sums do not begin at zero, None where they do: with it, or with its loop."""
    assert isinstance(op, MmaOp)
    loop = carried_sum(op)
    first = op.acc
    if loop is not None and isinstance(first, BlockArgument):
        first = loop.iter_args[first.index - 1]
    return None if is_zero(first) else "the sums do not begin at zero"


def _why_not_sums(op: Operation) -> str | None:
    """Return why what is stored are no sums that a loop carries and its first product begins, None where they are."""
    assert isinstance(op, StoreOp)
    loop = op.value.owner
    if isinstance(loop, scf.ForOp) and op.mask is None and op.value.uses.get_length() == 1:
        product = loop.body.block.last_op
        assert product is not None
        added = product.operands[loop.results.index(op.value)].owner  # pyright: ignore[reportArgumentType]
        if isinstance(added, MmaOp) and carried_sum(added) is loop and BEGINS_SUMS.on(added):
            return None
    return "what is stored are not the sums of a loop that its first product begins"


def why_not_last(op: Operation) -> str | None:
    """Return why a branch does not run in the last iteration of its loop alone, `counter + step >= end`; None if so."""
    assert isinstance(op, scf.IfOp)
    test, loop = op.cond.owner, op.parent_op()
    if isinstance(loop, scf.ForOp) and isinstance(test, ElementwiseOp) and test.fn.data == "ge":
        following, end = test.args[0].owner, test.args[1]
        if end is loop.ub and isinstance(following, ElementwiseOp) and following.fn.data == "add":
            if tuple(following.args) == (loop.body.block.args[0], loop.step):
                return None
    return "the condition is not that the loop's counter and its step reach the end"


NUM_WARPS = Decision(
    "num_warps",
    "warps of a program that compute",
    (GridOp, KernelOp),
    ("choose-warps", "warp-specialize", "chunk-tiles", "keep-rows", "share-rows", "scan-rows"),
    1,
    32,
)
ROWS_ONLY = Decision("rows_only", "warps split the rows of a product and not its columns", _PRODUCTS, ("choose-warps",))
GROUP = Decision("group", "rows of tiles that programs walk together", (GridOp,), ("choose-warps",), 1, None)
STAGES = Decision("stages", "depth of a loop's rings", (scf.ForOp,), ("stage-copies", "warp-specialize"), 2, None)
WARPGROUP = Decision("warpgroup", "a warpgroup instruction computes a product", _PRODUCTS, ("warp-specialize",))
MULTIPLY_ADDS = Decision(
    "multiply_adds", "fused multiply-adds of threads compute a product", _PRODUCTS, ("choose-products",)
)
SPREAD_ROWS = Decision(
    "spread_rows",
    "a product takes rows in the order in which threads read 32-bit data",
    _PRODUCTS,
    ("warp-specialize",),
)
PERSISTENT = Decision("persistent", "programs take one tile after another", (GridOp,), ("warp-specialize",))
UNEVEN = Decision(
    "uneven",
    "tiles take different numbers of steps; 2: later tiles take more, so that the last one is taken first",
    (GridOp,),
    ("warp-specialize",),
    most=2,
)
LAST_FIRST = 2
"""A value of `UNEVEN`."""
UNEVEN_AXIS = Decision(
    "uneven_axis",
    "the one dimension of the grid along which tiles take different numbers of steps",
    (GridOp,),
    ("warp-specialize",),
    most=None,
)
MISPLACED = Decision(
    "misplaced",
    "bits of the kernel's arguments that roles could fetch if they began at multiples of 16 bytes, as did their rows",
    (GridOp,),
    ("warp-specialize",),
    most=None,
)
REREADS = Decision(
    "rereads",
    "for each misplaced argument eight bits, of the grid's dimensions along which programs read it again",
    (GridOp,),
    ("warp-specialize",),
    most=None,
)
PING_PONG = Decision(
    "ping_pong", "two groups of consumers take a program's tiles in turn", (GridOp,), ("warp-specialize",)
)
ROW_GROUPS = Decision(
    "row_groups",
    "groups of consumers that each take as many rows of every tile",
    (GridOp,),
    ("divide-rows",),
    2,
    MOST_GROUPS,
)
GROUP_TURN = Decision(
    "group_turn",
    "a group of consumers waits for its turn, or gives it to the other one",
    (BarrierWaitOp, BarrierArriveOp),
    ("warp-specialize",),
    holds=_why_outside_roles,
)
PRODUCT_TURNS = Decision(
    "product_turns", "two warpgroups start a loop's products in turn", (scf.ForOp,), ("pipeline-products",)
)
RING = Decision(
    "ring",
    "which buffers and barriers belong together",
    (AllocSharedOp, AllocBarriersOp),
    ("warp-specialize",),
    0,
    None,
)
LOOSE_END = Decision(
    "loose_end",
    "the dimension of the tensor, counted from 1, past whose end it does not matter what is loaded",
    (LoadOp,),
    ("trim-boxes",),
    0,
    None,
)
CLUSTER = Decision(
    "cluster", "programs of a cluster", (GridOp,), ("pair-tiles", "split-k", "share-rows", "scan-rows"), 1, 8
)
SPLIT_K = Decision("split_k", "programs that share each tile's loop", (GridOp,), ("split-k",), 1, 8)
SHARES = Decision("shares", "programs are to share out steps as with `stream_k` = 1", (GridOp,), ("fit-blocks",))
STREAM_K = Decision("stream_k", "programs share out the steps of the last tiles", (GridOp,), ("stream-k",))
SPLIT_SUMS = Decision(
    "split_sums", "programs that share each tile's loop, at most", (GridOp,), ("split-sums",), 2, None
)
PART_STEPS = Decision(
    "part_steps", "steps of a shared loop that a program does at least", (GridOp,), ("split-sums",), 1, None
)
SHARING_PROGRAMS = Decision(
    "sharing_programs", "programs of a launch that share tiles, at most", (GridOp,), ("split-sums",), 1, None
)
LEADER = Decision(
    "leader",
    "only the program that has a tile's total runs this branch",
    (scf.IfOp,),
    ("split-k", "stream-k", "split-sums"),
)
WHOLE_STORE = Decision(
    "whole_store",
    "a tile that a mask hides nothing of is stored in one branch, others in the other",
    (scf.IfOp,),
    ("whole-stores",),
)
STORE_BUFFERS = Decision("store_buffers", "buffers that stores take in turn", (GridOp,), ("bulk-stores",), 1, None)
SKIPS_MASK = Decision("skips_mask", "a mask that hides nothing is skipped", (scf.IfOp,), ("skip-masks",))
SKIPS_ONES = Decision(
    "skips_ones",
    "a warp leaves sums as they are where all that it multiplies them by is one",
    (ElementwiseOp,),
    ("skip-scales",),
    holds=_why_no_product,
)
PIPELINE = Decision("pipeline", "products overlap the work between them", (scf.ForOp,), ("pipeline-products",))
AFTER_WORK = Decision(
    "after_work", "a wait comes after work that runs beside the products", (MmaWaitOp,), ("pipeline-products",)
)
AHEAD = Decision(
    "ahead",
    "a tile is loaded one iteration before its use, and lies as its uses read it",
    (LoadOp,),
    ("load-ahead",),
    holds=_why_not_carried,
)
RESIDENT = Decision(
    "resident",
    "programs that a multiprocessor has registers for at once",
    (GridOp,),
    ("pack-permutes", "choose-warps", "chunk-tiles"),
    1,
    None,
)
CYCLES = Decision(
    "cycles", "length of an iteration, as the cost model has it", (scf.ForOp,), ("pipeline-products",), 0, None
)
INSIDE = Decision(
    "inside",
    "along which dimensions a box is known to lie in its tensor, bit by bit",
    (LoadOp, StoreOp, CpAsyncOp),
    ("chunk-tiles", "share-rows", "full-boxes", "stage-copies"),
    1,
    None,
)
LOOKED_AT = 2
"""What `ALIGNED` says of a box of which only the launch knows where it begins."""
ALIGNED = Decision(
    "aligned",
    "whether a box begins at a multiple of 16 bytes: 1, it does; 2, the launch looks",
    (LoadOp, StoreOp, CpAsyncOp),
    ("align-rows", "chunk-tiles", "share-rows"),
    1,
    LOOKED_AT,
)
EARLY = Decision(
    "early",
    "how many elements before its tensor a box of whole rows begins at most, less than 16 bytes of one of them",
    (LoadOp,),
    ("align-rows",),
    1,
    15,
)
MATRIX_UNIT = Decision("matrix_unit", "a matrix unit computes a product", (MmaOp,), ("pack-operands",))
LEFT_IN_PLACE = Decision(
    "left_in_place", "the rows of a product's left operand are read where they lie", (MmaOp,), ("pack-operands",)
)
RIGHT_IN_PLACE = Decision(
    "right_in_place", "a product's right operand is read where it lies", (MmaOp,), ("pack-operands",)
)
COPIES_ROWS = Decision(
    "copies_rows",
    "rows in place are copied for a step where they would crowd a few sets of the cache",
    (MmaOp,),
    ("pack-operands",),
)
PREFETCH_OPERAND = Decision(
    "prefetch_operand",
    "what the loop's next iteration packs as the right operand is prefetched while a product is computed",
    (MmaOp,),
    ("pack-operands",),
)
PANEL = Decision(
    "panel", "columns of a panel of a product's packed right operand", (MmaOp,), ("pack-operands",), 1, None
)
LEFT_PACKED_BEFORE = Decision(
    "left_packed_before",
    "a product's left operand is packed once, before the loops and branches that it comes from outside of",
    (MmaOp,),
    ("pack-operands",),
    holds=_why_packed_here(0),
)
RIGHT_PACKED_BEFORE = Decision(
    "right_packed_before",
    "a product's right operand is packed once, before the loops and branches that it comes from outside of",
    (MmaOp,),
    ("pack-operands",),
    holds=_why_packed_here(1),
)
BEGINS_SUMS = Decision(
    "begins_sums",
    "sums begin with a product, or with the first one of its loop: the zeros before are neither written nor read",
    (MmaOp,),
    ("begin-sums",),
    holds=why_not_from_zero,
)
SUMS_IN_PLACE = Decision(
    "sums_in_place",
    "sums of a loop of products are added up where they are stored",
    (StoreOp,),
    ("place-sums",),
    holds=_why_not_sums,
)
SQUARES = Decision(
    "squares",
    "tiles that loops read against their order in memory are transposed in squares, in registers",
    (GridOp, KernelOp),
    ("turn-squares",),
)
TRIM = Decision(
    "trim",
    "rows of tiles that lead only to what lies past the end of a tensor are not computed",
    (GridOp, KernelOp),
    ("trim-tiles",),
)
LAST_ITERATION = Decision(
    "last_iteration",
    "a branch runs in the last iteration of its loop, and in no other",
    (scf.IfOp,),
    ("sink-stores",),
    holds=why_not_last,
)
STRIP = Decision(
    "strip",
    "rows of a product that are computed at a time, just before they are stored",
    (MmaOp,),
    ("strip-products",),
    1,
    None,
)
PREFETCH_BOX = Decision(
    "prefetch_box",
    "what the next program loads in its place is prefetched by a loop over a tile of its shape",
    (LoadOp,),
    ("prefetch-boxes",),
)
STREAM = Decision(
    "stream",
    "tensors of at least so many MiB are stored past the caches",
    (StoreOp,),
    ("stream-stores",),
    1,
    None,
)

DECISIONS = {each.name: each for each in list(globals().values()) if isinstance(each, Decision)}


def check_decisions(op: Operation) -> None:
    """Check the decisions that an op carries.

    Raises:
        VerifyException: one is unknown, or belongs on other ops, or has a wrong value.
    """
    for key, attribute in op.attributes.items():
        if not key.startswith(PREFIX):
            continue
        decision = DECISIONS.get(key.removeprefix(PREFIX))
        if decision is None:
            raise VerifyException(f"{key} is not a decision of a schedule; there are {', '.join(DECISIONS)}")
        decision.check(op, attribute)
