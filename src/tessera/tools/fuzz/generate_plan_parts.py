"""What programs after the plans of real kernels are made of: sizes, tensors, loads, names."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX, Dice
from tessera.tools.fuzz.types import is_float

Axis = tuple[str, tree.Expr, int]
"""A dimension's name, where a block starts in it, and the block's size."""


@dataclass(slots=True)
class Parts:
    """A program under construction, and what plans are made of.

    Args:
        dice: its random choices.
        profile: the numerics profile.
    """

    dice: Dice
    profile: str
    tensors: list[tree.Tensor] = field(default_factory=list[tree.Tensor])
    dims: dict[str, int] = field(default_factory=dict[str, int])
    body: list[tree.Stmt] = field(default_factory=list[tree.Stmt])
    counter: int = 0
    plain: bool = False
    """Whether it does what schedules were written for, and nothing beside it."""
    on_units: bool = False
    """Whether warpgroups of matrix units can compute its products: a plain program of their sizes and layouts."""

    narrow: bool = False
    """Whether rows of its blocks are short, of which programs of a cluster fetch parts of few bytes."""
    pitch: int = 1
    """What rows of all tensors are padded to multiples of, as parts of larger ones are; then sizes are any."""

    def rarely(self, probability: float) -> bool:
        """Return True with a probability, and never in a plain program."""
        return not self.plain and self.dice.chance(probability)

    def size(self, name: str, block: int, most: int) -> tree.Expr:
        """Draw how many blocks a dimension has, the last one often ragged; return its size as the kernel knows it."""
        count, unit = self.dice.between(1, most), self.dice.pick((16, 16, 8, 8, 1) if self.on_units else (8, 16, 1))
        unit = 1 if self.pitch > 1 else unit
        size = block * count
        if self.dice.chance(0.4):
            size -= block - min(self.dice.between(1, max(block // unit, 1)) * unit, block)
        self.dims[name] = 0 if self.dice.chance(self.dice.options.empty) else size
        return tree.Name(name, INDEX)

    def tensor(self, name: str, dims: tuple[str | int, ...], dtype: str) -> tree.Tensor:
        """Return a new tensor of small numbers, with dimensions by name or size."""
        dice = self.dice
        shape = tuple(self.dims[dim] if isinstance(dim, str) else dim for dim in dims)
        order, offset = tuple(range(len(shape))), 0
        if self.rarely(0.3 * dice.options.layouts):  # what the copy engine cannot fetch
            order, offset = tuple(dice.shuffled(order)), dice.pick((0, 1, 8))
        if is_float(dtype):
            kind = dice.pick(("small", "quarters")) if dtype.startswith("f") else "small"
            contents = tree.Contents(dice.rough(kind), -3, 3)
        else:
            contents = tree.Contents("small", 0 if dtype.startswith("u") else -5, 5)
        layout = tree.Layout(order, (1,) * len(shape), offset, self.pitch)
        policy = "tf32" if dtype == "f32" and dice.chance(0.1) else ""
        tensor = tree.Tensor(name, dims, dtype, shape, contents, layout, policy)
        self.tensors.append(tensor)
        return tensor

    def bind(self, value: tree.Expr, into: list[tree.Stmt], name: str = "") -> tree.Name:
        """Give a value a name."""
        self.counter += 1
        name = name or f"v{self.counter}"
        into.append(tree.Assign((name,), (value,)))
        return tree.Name(name, value.type)

    def rounded_up(self, extent: tree.Expr, block: int) -> tree.Expr:
        """Return how far a grid goes, now and then spelled as whole blocks, or less far than its tensors."""
        if isinstance(extent, tree.Name) and self.dims[extent.name] > 1 and self.dice.rarely(0.1):
            return tree.Number(self.dice.aside.randint(1, self.dims[extent.name] - 1))
        if not self.dice.rarely(0.08):
            return extent
        blocks = tree.Apply("floordiv", (tree.Apply("add", (extent, tree.Number(block - 1))), tree.Number(block)))
        return tree.Apply("mul", (blocks, tree.Number(block)))

    def of_rows(self, name: str, rows: Axis, dtype: str, along: Axis) -> tree.Expr:
        """Load a column of numbers, one for each row of a tile; others for each step along a dimension."""
        tensor = self.tensor(name, (along[0], rows[0]), dtype)
        return tree.Expand(self.load(tensor, tree.At(along[1]), tree.Span(rows[1], rows[2])), (1,), 1)

    def load(self, tensor: tree.Tensor, *axes: tree.Axis) -> tree.Load:
        """Load from a tensor."""
        return tree.Load(tensor.name, axes, tensor.dtype, None, tensor.policy)
