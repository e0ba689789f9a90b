"""The linear layout: a map over F2 from hardware index bits to tile index bits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tessera.data import dataclass
from tessera.ir.layouts.f2 import Span, log2_exact

REGISTER, LANE, WARP, BLOCK = "register", "lane", "warp", "block"
_HARDWARE = (REGISTER, LANE, WARP, BLOCK)

Basis = tuple[int, ...]


class LayoutError(ValueError):
    """A layout was asked for something that it cannot mean; a fault of the caller inside the compiler."""


def axis_names(rank: int) -> tuple[str, ...]:
    """Return the names of the axes of a tile of this rank: `("dim0", "dim1", ...)`."""
    return tuple(f"dim{axis}" for axis in range(rank))


@dataclass(frozen=True)
class LinearLayout:
    """A linear map over F2 from named input dims to named output dims, all of power-of-two sizes.

    Input bit i of dim d contributes the coordinates `bases[d][i]`; contributions are combined with XOR. A
    distributed tile maps (register, lane, warp, block) to tile coordinates, a shared buffer maps (offset,) to
    tile coordinates, and inverses go the other way. Build one with `make`, which brings the dims into their
    standard order, so that equal maps compare equal.

    Attributes:
        bases: `(input dim, basis vectors, lowest bit first)` in the order register, lane, warp, block,
            others.
        out_sizes: size of every output dim.
        out_dims: name of every output dim; tile axes are `dim0, dim1, ...`.

    Source: Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2",
        arXiv:2505.23819.
    """

    bases: tuple[tuple[str, tuple[Basis, ...]], ...]
    out_sizes: tuple[int, ...]
    out_dims: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check sizes, ranks and ranges."""
        if len(self.out_sizes) != len(self.out_dims) or len(set(self.out_dims)) != len(self.out_dims):
            raise LayoutError(f"output dims {self.out_dims} do not name the sizes {self.out_sizes} one to one")
        for size in self.out_sizes:
            if log2_exact(size) is None:
                raise LayoutError(f"output sizes must be powers of two: {self.out_sizes}")
        for dim, vectors in self.bases:
            for vector in vectors:
                if len(vector) != len(self.out_sizes):
                    raise LayoutError(f"basis {vector} of {dim} does not have {len(self.out_sizes)} coordinates")
                if any(not 0 <= x < size for x, size in zip(vector, self.out_sizes, strict=True)):
                    raise LayoutError(f"basis {vector} of {dim} lies outside {self.out_sizes}")

    @staticmethod
    def make(
        bases: Mapping[str, Sequence[Sequence[int]]],
        out_sizes: Sequence[int],
        out_dims: Sequence[str] | None = None,
    ) -> LinearLayout:
        """Build a layout from basis vectors.

        Args:
            bases: input dim to its basis vectors, lowest bit first; one coordinate per output dim.
            out_sizes: power-of-two size of every output dim.
            out_dims: names of the output dims; tile axes `dim0, dim1, ...` when left out.

        Returns:
            The layout, its hardware dims in the order register, lane, warp, block, the others after them as
            given.

        Raises:
            LayoutError: a size is not a power of two, or a vector does not fit the output dims.
        """
        order = [dim for dim in _HARDWARE if dim in bases] + [dim for dim in bases if dim not in _HARDWARE]
        return LinearLayout(
            tuple((dim, tuple(tuple(vector) for vector in bases[dim])) for dim in order),
            tuple(out_sizes),
            axis_names(len(out_sizes)) if out_dims is None else tuple(out_dims),
        )

    @staticmethod
    def parse(text: str) -> LinearLayout:
        """Read back what `str(layout)` wrote.

        Raises:
            LayoutError: the text is not a layout.
        """
        left, arrow, right = text.partition(" -> ")
        try:
            bases, outs = json.loads(left), json.loads(right)
            if arrow:
                return LinearLayout.make(bases, tuple(outs.values()), tuple(outs))
        except (json.JSONDecodeError, AttributeError, TypeError) as error:
            raise LayoutError(f"not a layout: {text!r}") from error
        raise LayoutError(f"not a layout: {text!r}")

    def __str__(self) -> str:
        """Write the layout on one line; `parse` reads it back."""
        outs = dict(zip(self.out_dims, self.out_sizes, strict=True))
        return f"{json.dumps(dict(self.bases))} -> {json.dumps(outs)}"

    # Sizes

    @property
    def in_dims(self) -> tuple[str, ...]:
        """Names of the input dims."""
        return tuple(dim for dim, _ in self.bases)

    def in_bases(self, dim: str) -> tuple[Basis, ...]:
        """Return the basis vectors of an input dim; none for a dim that the layout lacks."""
        return next((vectors for name, vectors in self.bases if name == dim), ())

    def in_size(self, dim: str) -> int:
        """Return the size of an input dim; 1 for a dim that the layout lacks."""
        return 1 << len(self.in_bases(dim))

    @property
    def registers(self) -> int:
        """Elements that a thread holds."""
        return self.in_size(REGISTER)

    @property
    def lanes(self) -> int:
        """Threads of a warp."""
        return self.in_size(LANE)

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.in_size(WARP)

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""
        return self.in_size(BLOCK)

    @property
    def rank(self) -> int:
        """Number of output dims."""
        return len(self.out_sizes)

    @property
    def size(self) -> int:
        """Number of output elements."""
        return 1 << self.out_bits

    @property
    def out_bits(self) -> int:
        """Number of output bits."""
        return sum(size.bit_length() - 1 for size in self.out_sizes)

    # The flat view: outputs as one row-major integer, inputs as one list of columns

    def flatten(self, coordinates: Sequence[int]) -> int:
        """Return the row-major index of output coordinates."""
        flat = 0
        for x, size in zip(coordinates, self.out_sizes, strict=True):
            flat = flat * size + x
        return flat

    def unflatten(self, flat: int) -> Basis:
        """Return the output coordinates of a row-major index."""
        found: list[int] = []
        for size in reversed(self.out_sizes):
            found.append(flat % size)
            flat //= size
        return tuple(reversed(found))

    def columns(self, *dims: str) -> tuple[int, ...]:
        """Return the flat basis vectors of these input dims (of all when none is named), lowest bit first."""
        names = dims or self.in_dims
        return tuple(self.flatten(vector) for dim in names for vector in self.in_bases(dim))

    def unit(self, axis: int, bit: int) -> int:
        """Return the flat vector of one bit of an output axis."""
        return self.flatten([1 << bit if a == axis else 0 for a in range(self.rank)])

    def _split_inputs(self, mask: int) -> Basis:
        """Cut a mask over all input columns into one value per input dim."""
        values: list[int] = []
        for _, vectors in self.bases:
            values.append(mask & (1 << len(vectors)) - 1)
            mask >>= len(vectors)
        return tuple(values)

    # The map

    def apply(self, **inputs: int) -> Basis:
        """Return the output coordinates of an input index; dims left out are at 0.

        Raises:
            LayoutError: an input dim is unknown or an index lies outside it.
        """
        for dim, value in inputs.items():
            if not 0 <= value < self.in_size(dim):
                raise LayoutError(f"{dim} = {value} lies outside the layout's {self.in_size(dim)}")
        flat = 0
        for dim, vectors in self.bases:
            value = inputs.get(dim, 0)
            for bit, vector in enumerate(vectors):
                if value >> bit & 1:
                    flat ^= self.flatten(vector)
        return self.unflatten(flat)

    @property
    def is_surjective(self) -> bool:
        """Whether every output element is held somewhere."""
        return Span(self.columns()).rank == self.out_bits

    @property
    def is_injective(self) -> bool:
        """Whether no output element is held twice."""
        columns = self.columns()
        return Span(columns).rank == len(columns)

    def free_variable_masks(self) -> dict[str, int]:
        """Return, per input dim, the mask of the bits that only replicate.

        Inputs whose masked bits are all zero hold every element of the image exactly once, so
        `index & mask == 0` is the predicate of the thread that stores. Registers are taken first, then lanes,
        warps and blocks.
        """
        span = Span()
        masks: dict[str, int] = {}
        for dim, vectors in self.bases:
            kept = [span.add(self.flatten(vector)) for vector in vectors]
            masks[dim] = sum(1 << bit for bit, independent in enumerate(kept) if not independent)
        return masks

    # Algebra

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Place copies of `self` at the positions of `other`: its bits are the low ones of every dim."""
        dims = self.out_dims + tuple(d for d in other.out_dims if d not in self.out_dims)
        low = dict(zip(self.out_dims, self.out_sizes, strict=True))
        high = dict(zip(other.out_dims, other.out_sizes, strict=True))
        bases: dict[str, list[Basis]] = {dim: [] for dim in (*self.in_dims, *other.in_dims)}
        for dim, vectors in self.bases:
            for vector in vectors:
                at = dict(zip(self.out_dims, vector, strict=True))
                bases[dim].append(tuple(at.get(d, 0) for d in dims))
        for dim, vectors in other.bases:
            for vector in vectors:
                at = dict(zip(other.out_dims, vector, strict=True))
                bases[dim].append(tuple(at.get(d, 0) * low.get(d, 1) for d in dims))
        return LinearLayout.make(bases, [low.get(d, 1) * high.get(d, 1) for d in dims], dims)

    def compose(self, other: LinearLayout) -> LinearLayout:
        """Return the layout that applies `self`, then `other`.

        Raises:
            LayoutError: the outputs of `self` are not inputs of `other`.
        """
        sizes = dict(zip(self.out_dims, self.out_sizes, strict=True))
        if set(sizes) != set(other.in_dims) or any(size > other.in_size(dim) for dim, size in sizes.items()):
            raise LayoutError(f"outputs {sizes} do not feed inputs {[(d, other.in_size(d)) for d in other.in_dims]}")
        bases = {
            dim: [other.apply(**dict(zip(self.out_dims, vector, strict=True))) for vector in vectors]
            for dim, vectors in self.bases
        }
        return LinearLayout.make(bases, other.out_sizes, other.out_dims)

    def pseudo_inverse(self) -> LinearLayout:
        """Return a right inverse: for every output the input that holds it whose free bits are zero.

        Raises:
            LayoutError: the layout is not surjective.
        """
        span = Span(self.columns())
        bases: dict[str, list[Basis]] = {}
        for axis, (name, size) in enumerate(zip(self.out_dims, self.out_sizes, strict=True)):
            bases[name] = []
            for bit in range(size.bit_length() - 1):
                mask = span.solve(self.unit(axis, bit))
                if mask is None:
                    raise LayoutError(f"no input holds bit {bit} of {name}: the layout is not surjective")
                bases[name].append(self._split_inputs(mask))
        return LinearLayout.make(bases, [self.in_size(dim) for dim in self.in_dims], self.in_dims)

    def inverse(self) -> LinearLayout:
        """Return the two-sided inverse.

        Raises:
            LayoutError: the layout is not a bijection.
        """
        if not self.is_injective:
            raise LayoutError("a layout that replicates has no inverse; use pseudo_inverse")
        return self.pseudo_inverse()

    def sublayout(self, in_dims: Sequence[str], axes: Sequence[int] | None = None) -> LinearLayout:
        """Keep only some input dims and, when `axes` is given, only some output dims."""
        kept = range(self.rank) if axes is None else axes
        bases = {dim: [[vector[a] for a in kept] for vector in self.in_bases(dim)] for dim in in_dims}
        return LinearLayout.make(bases, [self.out_sizes[a] for a in kept], [self.out_dims[a] for a in kept])

    def _rebuild(self, vectors: Mapping[Basis, Basis], out_sizes: Sequence[int]) -> LinearLayout:
        """Replace every basis vector; the outputs become tile axes numbered from 0."""
        return LinearLayout.make({d: [vectors[v] for v in old] for d, old in self.bases}, out_sizes)

    def _all_vectors(self) -> set[Basis]:
        return {vector for _, vectors in self.bases for vector in vectors}

    def drop_axis(self, axis: int) -> LinearLayout:
        """Forget an output axis: the layout of a reduction's result, replicated along the dropped axis."""
        return self._rebuild(
            {v: v[:axis] + v[axis + 1 :] for v in self._all_vectors()},
            self.out_sizes[:axis] + self.out_sizes[axis + 1 :],
        )

    def expand_axis(self, axis: int) -> LinearLayout:
        """Insert an output axis of size 1 before `axis`."""
        return self._rebuild(
            {v: (*v[:axis], 0, *v[axis:]) for v in self._all_vectors()},
            (*self.out_sizes[:axis], 1, *self.out_sizes[axis:]),
        )

    def transpose(self, perm: Sequence[int]) -> LinearLayout:
        """Reorder the output axes: axis i of the result is axis `perm[i]` of this layout, as in NumPy."""
        if sorted(perm) != list(range(self.rank)):
            raise LayoutError(f"{tuple(perm)} does not permute {self.rank} axes")
        return self._rebuild(
            {v: tuple(v[a] for a in perm) for v in self._all_vectors()}, [self.out_sizes[a] for a in perm]
        )

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """Read the outputs, taken in row-major order, as a tile of another shape of the same size."""
        target = LinearLayout.make({}, shape)
        if target.size != self.size:
            raise LayoutError(f"cannot reshape {self.out_sizes} to {tuple(shape)}")
        return self._rebuild({v: target.unflatten(self.flatten(v)) for v in self._all_vectors()}, shape)

    # Registers

    def with_registers(self, columns: Sequence[int]) -> LinearLayout:
        """Replace the register bases by these flat vectors."""
        bases = {dim: vectors for dim, vectors in self.bases if dim != REGISTER}
        return LinearLayout.make(
            {REGISTER: [self.unflatten(column) for column in columns], **bases}, self.out_sizes, self.out_dims
        )

    def unique_registers(self) -> LinearLayout:
        """Drop the register bits that hold nothing new within the thread."""
        span = Span()
        return self.with_registers([column for column in self.columns(REGISTER) if span.add(column)])

    def contiguous_per_thread(self, axis: int) -> int:
        """Return how many elements in a row along `axis`, aligned, all threads hold in one register order."""
        span = Span(self.columns(REGISTER))
        # A lane that flips one of the low bits would walk the same run in another order than its neighbour.
        flipped = 0
        for column in self.columns(LANE, WARP, BLOCK):
            flipped |= column
        units = [self.unit(axis, bit) for bit in range(self.out_sizes[axis].bit_length() - 1)]
        return 1 << next((bit for bit, u in enumerate(units) if u not in span or u & flipped), len(units))

    def order_registers_by(self, order: Sequence[int]) -> LinearLayout:
        """Renumber the registers so that they walk the axes in `order`, fastest axis first.

        Each thread keeps the same elements. Directions that are no single bit of an axis come next, bits that
        only replicate come last. `register_map(self, result)` tells which register moved where.
        """
        if sorted(order) != list(range(self.rank)):
            raise LayoutError(f"{tuple(order)} does not order {self.rank} axes")
        old = self.columns(REGISTER)
        held, chosen = Span(old), Span()
        units = [self.unit(axis, b) for axis in order for b in range(self.out_sizes[axis].bit_length() - 1)]
        units = [unit for unit in units if unit in held]
        others = [column & ~sum(units) for column in old]
        new = [vector for vector in (*units, *others) if chosen.add(vector)]
        return self.with_registers([*new, *[0] * (len(old) - len(new))])

    def same_up_to_registers(self, other: LinearLayout) -> bool:
        """Return whether the layouts differ only in the order in which each thread numbers its registers."""
        if (self.out_sizes, self.out_dims) != (other.out_sizes, other.out_dims):
            return False
        mine, theirs = (
            {dim: vectors for dim, vectors in layout.bases if vectors and dim != REGISTER} for layout in (self, other)
        )
        if mine != theirs or self.registers != other.registers:
            return False
        a, b = self.columns(REGISTER), other.columns(REGISTER)
        return Span(a).rank == Span(b).rank == Span((*a, *b)).rank
