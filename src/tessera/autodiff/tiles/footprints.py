"""Which elements of a tensor an access names, and whether two programs, or one program twice, may name the same.

An index along a dimension is taken apart into `constant + uniform + Σ factor · program + Σ factor · step`: `uniform` is
the same for all programs of a launch, a program counts along an axis of the grid, and a step counts iterations of a
loop or elements of a tile. What cannot be taken apart so is `wild`: it may be any number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import TypeVar

from xdsl.dialects.scf import ForOp, IfOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.autodiff.tiles.accesses import Access, Load
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp, shape_at
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Along:
    """A dimension of a tile.

    Args:
        axis: its number.
    """

    axis: int


Key = ForOp | Along
"""What counts within a program."""


@dataclass(frozen=True)
class Form:
    """An index along one dimension.

    Args:
        constant: its number.
        uniform: the factor of each scalar that all programs have alike.
        programs: the factor of the program's number along each axis of the grid.
        steps: factor and count (`inf` where it is not known) of what counts within a program.
        wild: whether there is more to it.
        odd: whether it differs along the tile in a way that is not known.
    """

    constant: int = 0
    uniform: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    programs: Mapping[int, int] = field(default_factory=dict[int, int])
    steps: Mapping[Key, tuple[int, float]] = field(default_factory=dict[Key, "tuple[int, float]"])
    wild: bool = False
    odd: bool = False

    def scaled(self, factor: int) -> Form:
        """Return the multiple."""
        if not factor:
            return Form()
        return replace(
            self,
            constant=self.constant * factor,
            uniform={value: f * factor for value, f in self.uniform.items()},
            programs={axis: f * factor for axis, f in self.programs.items()},
            steps={key: (f * factor, count) for key, (f, count) in self.steps.items()},
        )

    def plus(self, other: Form) -> Form:
        """Return the sum."""
        steps = dict(self.steps)
        for key, (factor, count) in other.steps.items():
            steps[key] = (steps.get(key, (0, count))[0] + factor, count)
        return Form(
            self.constant + other.constant,
            _sum(self.uniform, other.uniform),
            _sum(self.programs, other.programs),
            {key: step for key, step in steps.items() if step[0]},
            self.wild or other.wild,
            self.odd or other.odd,
        )

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most of its constant and its steps."""
        ends = [(factor * (count - 1) if count > 1 else 0) for factor, count in self.steps.values()]
        return self.constant + sum(min(end, 0) for end in ends), self.constant + sum(max(end, 0) for end in ends)

    @property
    def told_apart(self) -> set[Key]:
        """The steps that are known when the index is: each is longer than all shorter ones together."""
        if self.odd:
            return set()
        reach: float = 0
        for factor, count in sorted((abs(factor), count) for factor, count in self.steps.values()):
            if factor <= reach:
                return set()
            reach += factor * max(count - 1, 0)
        return {*self.steps}


def _sum(a: Mapping[T, int], b: Mapping[T, int]) -> dict[T, int]:
    keys = [*a, *(key for key in b if key not in a)]
    total = {key: a.get(key, 0) + b.get(key, 0) for key in keys}
    return {key: factor for key, factor in total.items() if factor}


WILD = Form(wild=True)


@dataclass(frozen=True)
class Footprint:
    """The elements that an access names.

    Args:
        op: the access.
        forms: an index for each dimension of the tensor.
        shape: of the tile.
        only: axes of the grid along which a branch lets one program only reach it, with what tells which.
    """

    op: Access
    forms: tuple[Form, ...]
    shape: tuple[int, ...]
    only: Mapping[int, SSAValue | int]

    @property
    def tile_keys(self) -> set[Along]:
        """The dimensions of the tile along which there are several elements."""
        return {Along(axis) for axis, size in enumerate(self.shape) if size > 1}

    @property
    def safe(self) -> set[Along]:
        """The dimensions of the tile whose elements are known to be different ones of the tensor."""
        tiles = [
            replace(form, steps={k: s for k, s in form.steps.items() if isinstance(k, Along)}) for form in self.forms
        ]
        return {key for form in tiles for key in form.told_apart if isinstance(key, Along)}

    @property
    def is_distinct(self) -> bool:
        """Whether the elements of the tile are known to be different ones of the tensor."""
        return self.tile_keys <= self.safe

    @property
    def happens_once(self) -> bool:
        """Whether a program is known to name no element twice, in all iterations of the loops around."""
        keys: set[Key] = {*self.tile_keys}
        parent = self.op.parent_op()
        while parent is not None and not isinstance(parent, GridOp):
            if isinstance(parent, ForOp):
                keys.add(parent)
            elif not isinstance(parent, IfOp):
                return False
            parent = parent.parent_op()
        return keys <= {key for form in self.forms if not form.wild for key in form.told_apart}

    def is_apart_from(self, other: Footprint) -> bool:
        """Return whether a program is known to name no element that it names by another access."""
        for a, b in zip(self.forms, other.forms, strict=True):
            known = not (a.wild or b.wild or a.odd or b.odd)
            if known and a.programs == b.programs and a.uniform == b.uniform:
                (low, high), (least, most) = a.range, b.range
                if high < least or most < low:
                    return True
        return False


def footprint(op: Access, grid: GridOp) -> Footprint:
    """Return the elements that an access in a grid names."""
    if isinstance(op, LoadOp | StoreOp):
        forms: list[Form] = []
        for axis, (offset, size) in enumerate(zip(op.offsets, op.size_list, strict=True)):
            form = _form(offset, grid)
            if size > 1:
                form = form.plus(Form(steps={Along(op.kept.index(axis)): (1, size)}))
            forms.append(form)
        shape = op.tile_shape
    else:
        forms = [_form(place, grid) for place in op.indices]
        shape = shape_at(op.indices)
    return Footprint(op, tuple(forms), shape, _only(op, grid))


def separated(footprints: Sequence[Footprint], grid: GridOp) -> set[int]:
    """Return the axes of a grid along which no two programs name the same element by any of some accesses."""
    found = {axis for axis, one in enumerate(grid.extents) if (constant_value(one) or inf) <= grid.block_sizes[axis]}
    for axis in range(len(grid.block_sizes)):
        only = [footprint.only.get(axis) for footprint in footprints]
        if (only[0] is not None and all(one == only[0] for one in only)) or any(
            _separates([footprint.forms[dim] for footprint in footprints], axis)
            for dim in range(len(footprints[0].forms))
        ):
            found.add(axis)
    return found


def _separates(forms: Sequence[Form], axis: int) -> bool:
    """Return whether indices along a dimension differ in any two programs that differ along an axis."""
    first = forms[0]
    if any(form.wild or form.odd or form.programs != first.programs or form.uniform != first.uniform for form in forms):
        return False
    if {*first.programs} != {axis}:
        return False
    low, high = min(form.range[0] for form in forms), max(form.range[1] for form in forms)
    return high - low < abs(first.programs[axis])


def _only(op: Operation, grid: GridOp) -> dict[int, SSAValue | int]:
    """Return the axes along which branches let one program reach an op, with the offset that it has there."""
    found: dict[int, SSAValue | int] = {}
    child, parent = op, op.parent_op()
    while parent is not None and parent is not grid:
        if isinstance(parent, IfOp) and child.parent_region() is parent.true_region:
            for test in _all_of(parent.cond):
                for place, value in (test.args, reversed(test.args)):
                    place = _uncast(place)
                    known = constant_value(_uncast(value))
                    if place.owner is grid.body.block and (known is not None or is_uniform(value, grid)):
                        found[grid.body.block.args.index(place)] = value if known is None else int(known)  # pyright: ignore
        child, parent = parent, parent.parent_op()
    return found


def _all_of(condition: SSAValue) -> list[ElementwiseOp]:
    """Return the comparisons for equality that hold where a condition does."""
    op = condition.owner
    if not isinstance(op, ElementwiseOp):
        return []
    if op.fn.data == "and":
        return [test for arg in op.args for test in _all_of(arg)]
    return [op] if op.fn.data == "eq" else []


def _uncast(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, CastOp) and dtype_of(element_of(value.owner.source.type)).is_int:
        value = value.owner.source
    return value


def is_uniform(value: SSAValue, grid: GridOp) -> bool:
    """Return whether a value is the same in all programs of a grid, and in all iterations of a program's loops."""
    seen, work = set[SSAValue](), [value]
    while work:
        one = work.pop()
        owner = one.owner
        if isinstance(owner, Block):
            if not isinstance(owner.parent_op(), KernelOp):
                return False
        elif one not in seen:
            seen.add(one)
            if owner.regions or isinstance(owner, Load) or effect_of(owner) > Effect.RANDOM:
                return False
            work += owner.operands
    return True


def _form(value: SSAValue, grid: GridOp) -> Form:
    """Return an index, or a tile of them, taken apart."""
    op = value.owner
    if isinstance(op, Block):
        return _of_argument(value, op, grid)
    match op:
        case ConstantOp():
            return Form(int(op.python_value))
        case CastOp() if dtype_of(element_of(op.source.type)).is_int and dtype_of(element_of(value.type)).bits >= 32:
            return _form(op.source, grid)
        case SplatOp():
            return _form(op.value, grid)
        case ArangeOp():
            return Form(steps={Along(0): (1, shape_of(value.type)[0])})
        case BroadcastOp() | ReshapeOp() | TransposeOp():
            return _moved(op, grid)
        case ElementwiseOp():
            return _function(op, grid)
        case _:
            return _other(value, grid)


def _other(value: SSAValue, grid: GridOp) -> Form:
    """Return an index that is no sum."""
    if shape_of(value.type):
        return Form(wild=True, odd=True)
    return Form(uniform={value: 1}) if is_uniform(value, grid) else WILD


def _of_argument(value: SSAValue, block: Block, grid: GridOp) -> Form:
    place, parent = list(block.args).index(value), block.parent_op()  # pyright: ignore
    if parent is grid:
        return Form(programs={place: grid.block_sizes[place]})
    if isinstance(parent, ForOp) and place == 0:
        step = constant_value(parent.step)
        if not isinstance(step, int) or step < 1:
            return WILD
        low = _form(parent.lb, grid)
        length = _form(parent.ub, grid).plus(low.scaled(-1))
        known = not (length.wild or length.uniform or length.programs or length.steps)
        count = max(-(-length.constant // step), 0) if known else inf
        return low.plus(Form(steps={parent: (step, count)}))
    return _other(value, grid)


def _function(op: ElementwiseOp, grid: GridOp) -> Form:
    fn, args = op.fn.data, list(op.args)
    if fn in ("add", "sub"):
        return _form(args[0], grid).plus(_form(args[1], grid).scaled(1 if fn == "add" else -1))
    if fn == "mul":
        for factor, other in (args, reversed(args)):
            number = _number(factor)
            if number is not None:
                return _form(other, grid).scaled(number)
    if fn == "floordiv" and (by := _number(args[1])):
        return _quotient(_form(args[0], grid), by) or _other(op.result, grid)
    return _other(op.result, grid)


def _quotient(form: Form, by: int) -> Form | None:
    """Return a quotient of which nothing is cut off."""
    parts = [form.constant, *form.programs.values(), *form.uniform.values(), *(step for step, _ in form.steps.values())]
    if by < 1 or form.wild or form.odd or any(part % by for part in parts):
        return None
    return Form(
        form.constant // by,
        {value: factor // by for value, factor in form.uniform.items()},
        {axis: factor // by for axis, factor in form.programs.items()},
        {key: (factor // by, count) for key, (factor, count) in form.steps.items()},
    )


def _number(value: SSAValue) -> int | None:
    value = _uncast(value)
    found = constant_value(value.owner.value if isinstance(value.owner, SplatOp) else value)
    return int(found) if isinstance(found, int) else None


def _moved(op: BroadcastOp | ReshapeOp | TransposeOp, grid: GridOp) -> Form:
    """Return the index that a change of shape gives: its steps are along other dimensions."""
    form = _form(op.source, grid)
    source, result = shape_of(op.source.type), shape_of(op.result.type)
    if isinstance(op, TransposeOp):
        places = {old: new for new, old in enumerate(op.permutation)}
    elif isinstance(op, BroadcastOp):
        places = {axis: axis for axis in range(len(source))}
    else:
        old = [axis for axis, size in enumerate(source) if size > 1]
        new = [axis for axis, size in enumerate(result) if size > 1]
        if [source[axis] for axis in old] != [result[axis] for axis in new]:
            return Form(wild=True, odd=True)
        places = dict(zip(old, new, strict=True))
    steps: dict[Key, tuple[int, float]] = {}
    for key, step in form.steps.items():
        if not isinstance(key, Along):
            steps[key] = step
        elif key.axis in places:
            steps[Along(places[key.axis])] = step
    return replace(form, steps=steps)
