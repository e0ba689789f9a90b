"""Draws expressions of a wanted type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tessera.tools.fuzz import generate_parts as parts
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.combiners import COMBINERS
from tessera.tools.fuzz.functions import ACTIVATIONS, APPROXIMATE, BIT_COUNTS, CLASSES, GATES
from tessera.tools.fuzz.generate_access import Access
from tessera.tools.fuzz.generate_buffers import buffer_part
from tessera.tools.fuzz.generate_scope import INDEX, Scope
from tessera.tools.fuzz.types import (
    FLOATS,
    INTS,
    Shape,
    Type,
    accumulator,
    bits,
    elements,
    fits,
    int_range,
    is_float,
    is_int,
    is_signed,
)

_EXACT_FLOAT = ("floor", "ceil", "round", "trunc", "sqrt", "abs", "neg", "relu", "sign")

_BITS_SEEN = ("f64", "f32", "f16", "bf16", *INTS)
"""Dtypes that are drawn on either side of a bitcast."""


LONGEST_SORT = 40
"""Elements that are sorted at most: a network of twice as many has half as many steps again."""


@dataclass(frozen=True, slots=True)
class Expressions:
    """Draws expressions in a scope."""

    scope: Scope

    def draw(self, dtype: str, shape: Shape, depth: int | None = None) -> tree.Expr:
        """Return an expression of a dtype and shape.

        Args:
            dtype: the dtype wanted.
            shape: the shape wanted; empty for a scalar.
            depth: how deep it may be; drawn when None.
        """
        dice = self.scope.dice
        if depth is None:
            deep = ((3, 1.5), (4, 0.3)) if self.scope.palette.extent != "small" else ()
            depth = dice.weighted(((1, 4.0), (2, 4.0), *deep))
        if depth > 0 and dice.chance(0.85):
            for _ in range(4):
                make = dice.weighted(self._choices(dtype, shape))
                found = make(dtype, shape, depth - 1)
                if found is not None:
                    return found
        return self.leaf(dtype, shape)

    # Leaves

    def leaf(self, dtype: str, shape: Shape) -> tree.Expr:
        """Return a name, an access or a constant."""
        dice = self.scope.dice
        found = self._name(dtype, shape, 0)
        if found is not None and dice.chance(0.9 if self.scope.palette.reuse else 0.6):
            return found
        loaded = self._load(dtype, shape, 0)
        if loaded is not None:
            return loaded
        return found if found is not None else self._constant(dtype, shape)

    def number(self, dtype: str) -> tree.Expr:
        """Return a small number of a dtype, or the variable of a loop that is unrolled."""
        dice = self.scope.dice
        if dtype == "bool":
            return tree.Number(dice.chance(0.5))
        if self.scope.unrolled and dice.chance(0.3):
            return tree.Name(dice.pick(sorted(self.scope.unrolled)), Type("i64", weak=True))
        constants = [p for p in self.scope.params if isinstance(p, tree.Constant)]
        if constants and dice.chance(0.15):
            param = dice.pick(constants)
            if isinstance(param.value, float) == is_float(dtype):
                context = not any(c == "helper" for c in self.scope.contexts) and dice.chance(0.5)
                if "helper" not in self.scope.contexts:
                    return tree.Constexpr(param.value, f"ctx.{param.name}" if context else param.name)
        if is_float(dtype):
            return tree.Number(dice.pick((0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -2.0, 1.5)))
        low, high = int_range(dtype)
        if dice.chance(0.08):
            return tree.Number(dice.pick((low, high)))
        return tree.Number(dice.between(max(-9, low), 9))

    def _constant(self, dtype: str, shape: Shape) -> tree.Expr:
        dice = self.scope.dice
        if not shape:
            return tree.Cast(self.number(dtype), dtype)
        if self.scope.ids is not None:
            number = tree.Number(dice.between(0, 9))
            return tree.Apply("lt", (self.scope.ids, number)) if dtype == "bool" else tree.Cast(self.scope.ids, dtype)
        if len(shape) == 1 and dtype != "bool" and bits(dtype) >= 16 and dice.chance(0.4):
            start = dice.between(0, 5) if dice.chance(0.3) else 0
            return tree.Arange(start, start + shape[0], dtype)
        return tree.Full(shape, self.number(dtype), dtype)

    def _name(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        found = [n for n, type_ in self.scope.names.items() if type_.dtype == dtype and type_.shape == shape]
        if not shape and dtype == "i64" and self.scope.offsets and self.scope.dice.chance(0.5):
            offset = tree.Name(self.scope.dice.pick(list(self.scope.offsets)), INDEX)
            return offset if self.scope.dice.chance(self.scope.dice.options.index_values) else tree.Cast(offset, "i64")
        if not found:
            return None
        # Later names more often: they depend on the others.
        at = max(self.scope.dice.between(0, len(found) - 1) for _ in range(1 if self.scope.palette.reuse else 2))
        return tree.Name(found[at], Type(dtype, shape))

    def _load(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice, scope = self.scope.dice, self.scope
        regions = [r for r in scope.regions.values() if r.readable and r.tensor.contents.kind != "perm"]
        same = [r for r in regions if r.tensor.dtype == dtype]
        favourite = [r for r in same if r.tensor.name == scope.favourite]
        pool = favourite if favourite and dice.chance(0.8) else same if same and dice.chance(0.9) else regions
        if not pool:
            return None
        region = dice.pick(pool)
        axes = Access(scope, region).axes(shape)
        if axes is None:
            return None
        tensor = region.tensor
        fill = self.number(tensor.dtype) if dice.chance(0.15) else None
        if fill is not None and tensor.dtype == "bool":
            fill = None
        loaded = tree.Load(tensor.name, axes, tensor.dtype, fill, tensor.policy if tensor.policy == "tf32" else "")
        if tensor.dtype == dtype:
            return loaded
        return self._converted(loaded, dtype)

    def _converted(self, expr: tree.Expr, dtype: str) -> tree.Expr:
        dice = self.scope.dice
        saturate = dtype in FLOATS and is_float(expr.type.dtype) and bits(dtype) < 32 and dice.chance(0.15)
        return tree.Cast(expr, dtype, saturate, method=dice.chance(0.5))

    # Inner nodes

    def _choices(self, dtype: str, shape: Shape) -> list[tuple[Callable[[str, Shape, int], tree.Expr | None], float]]:
        choices: list[tuple[Callable[[str, Shape, int], tree.Expr | None], float]] = [
            (self._name, 4.0 if self.scope.palette.reuse else 2.0),
            (self._load, 2.0),
            (self._binary, 6.0),
            (self._unary, 2.0),
            (self._where, 1.2),
            (self._cast, 1.0),
            (self._call, 0.5),
            (self._reduction, 1.0),
            (self._combined, 0.0 if is_float(dtype) else 0.6 * self.scope.dice.options.combiners),
        ]
        if self.scope.ids is not None:
            return choices[:-3]
        often = self.scope.dice.options.parts
        choices.append((partial(parts.part, self), (0.6 if shape else 0.4) * often))
        if shape:
            choices += [
                (self._broadcast, 1.0),
                (self._reshape, 1.0),
                (self._transpose, 1.0),
                (self._stack, 0.4),
                (partial(parts.moved, self), 0.4 * often),
                (partial(parts.picked, self), 0.3 * often),
                (self._scan, 0.9),
                (self._exchange, 0.3 * self.scope.dice.options.exchanges),
                (self._sort, 0.15 * self.scope.dice.options.exchanges),
                (self._random, 0.15),
                (self._shared, 1.0),
                (self._like, 0.1),
                (self._mirrored, 0.3),
            ]
        if len(shape) == 2:
            choices += [(self._product, 1.2 * self.scope.dice.options.products), (self._causal, 0.15)]
        return choices

    def _operand(self, dtype: str, shape: Shape, depth: int) -> tree.Expr:
        """Return an operand: of the whole shape, of a part that is repeated, or a number."""
        dice = self.scope.dice
        kind = dice.weighted((("same", 6.0), ("number", 2.0), ("row", 1.0), ("column", 0.7), ("scalar", 0.7)))
        if kind == "number":
            return self.number(dtype)
        if kind == "row" and len(shape) > 1:
            return self.draw(dtype, shape[1:], depth)
        if kind == "column" and len(shape) > 1:
            axis = dice.between(0, len(shape) - 1)
            return self.draw(dtype, (*shape[:axis], 1, *shape[axis + 1 :]), depth)
        if kind == "scalar" and shape:
            return self.draw(dtype, (), depth)
        return self.draw(dtype, shape, depth)

    def _weaker(self, dtype: str) -> str:
        """Return a dtype that promotes to `dtype` when it meets it."""
        dice = self.scope.dice
        if is_float(dtype) and dice.chance(0.5):
            return dice.pick(self.scope.palette.ints)
        return dtype

    def _binary(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        if dtype == "bool":
            return self._condition(shape, depth)
        if is_float(dtype):
            names = [
                ("add", 3.0),
                ("sub", 3.0),
                ("mul", 2.5),
                ("maximum", 1.5),
                ("minimum", 1.5),
                ("clamp", 0.7),
            ]
            names += [("fma", 0.5), ("mod", 0.1), ("floordiv", 0.1), ("copysign", 0.2)]
            if self.scope.palette.approximate:
                names += [("div", 1.5), ("pow", 0.4), ("hypot", 0.3), ("atan2", 0.3)]
            if dice.chance(0.15):
                return self._halved(dtype, shape, depth)
        else:
            names = [
                ("add", 3.0),
                ("sub", 3.0),
                ("mul", 2.0),
                ("maximum", 1.0),
                ("minimum", 1.0),
                ("clamp", 0.5),
            ]
            names += [("and", 1.0), ("or", 1.0), ("xor", 1.0), ("mulhi", 0.4), ("power", 0.4)]
            names += [("floordiv", 0.7), ("mod", 0.7), ("rotl", 0.3), ("rotr", 0.3)]
            wide = bits(dtype) == 64  # machines look at parts of their counts
            names += [("shl", 1.8 if wide else 0.6), ("shr", 1.8 if wide else 0.8)]
            names += [("cdiv", 0.3)]
            names += [("byte_perm", 0.5 if dtype == "u32" else 0.0)]
        return self._binary_of(dice.weighted(names), dtype, shape, depth)

    def _halved(self, dtype: str, shape: Shape, depth: int) -> tree.Expr:
        return tree.Apply("mul", (self.draw(dtype, shape, depth), tree.Number(0.5)))

    def _binary_of(self, fn: str, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        first = self.draw(dtype, shape, depth)
        if fn == "power":
            return tree.Power(first, dice.between(0, 4))
        if fn == "cdiv":
            return tree.Apply(fn, (first, tree.Number(dice.between(1, 9))))
        if fn in ("floordiv", "mod"):
            if is_int(dtype) and shape and dice.chance(0.5):
                first = self._widened(first, shape, depth)
            return tree.Apply(fn, (first, self._divisor(dtype, shape, depth)))
        if fn in ("shl", "shr"):
            amount: tree.Expr = tree.Number(dice.between(0, bits(dtype) - 1))
            if dice.chance(0.5):
                most = bits(dtype) - 1
                if dice.rarely(0.7):  # counts beyond the width, which others may cut off
                    most |= 1 << bits(dtype) // 2
                amount = tree.Apply("and", (self.draw(dtype, shape, depth), tree.Number(most)))
            return tree.Apply(fn, (first, amount))
        if fn in ("clamp", "fma", "byte_perm"):
            return tree.Apply(fn, (first, self._operand(dtype, shape, depth), self._operand(dtype, shape, depth)))
        if fn == "pow":
            base = tree.Apply("add", (tree.Apply("abs", (first,)), tree.Number(0.5)))
            return tree.Apply("pow", (base, tree.Number(dice.pick((0.5, -1.5, 2.5)))), form=dice.between(0, 1))
        weak = self._weaker(dtype) if shape and is_float(dtype) and dice.chance(0.1) else dtype
        second = self._operand(weak, shape, depth)
        args = (first, second)
        if isinstance(second, tree.Number) and is_int(dtype) and isinstance(second.value, float):
            return None
        if dice.chance(0.25):
            args = (second, first)
        return tree.Apply(fn, args, form=self._by_builtin(fn, shape))

    def _by_builtin(self, fn: str, shape: Shape) -> int:
        """Return whether Python's own function is written, which on scalars may be one of constants."""
        return int(bool(shape) and fn in ("maximum", "minimum", "abs") and self.scope.dice.chance(0.25))

    def _widened(self, value: tree.Expr, shape: Shape, depth: int) -> tree.Expr:
        """Return narrow integers times a number in a value's dtype, of which compilers know the sign's bits."""
        dice, dtype = self.scope.dice, value.type.dtype
        narrow = [one for one in self.scope.palette.dtypes if is_int(one) and bits(one) < bits(dtype)]
        if not narrow:
            return value
        wide = self._converted(self.draw(dice.pick(narrow), shape, depth), dtype)
        return tree.Apply("mul", (wide, tree.Number(dice.between(2, 9))))

    def _divisor(self, dtype: str, shape: Shape, depth: int) -> tree.Expr:
        """Return a divisor, mostly one that is not zero."""
        dice = self.scope.dice
        if is_float(dtype):
            return tree.Number(dice.pick((2.0, 3.0, -4.0, 0.5)))
        if dice.chance(0.5):
            if dice.chance(0.3):
                return tree.Number(dice.pick((2, 4, 64, -2, -64) if is_signed(dtype) else (2, 4, 64)))
            low = -9 if is_signed(dtype) else 1
            return tree.Number(dice.between(low, 9) or 7)
        divisor = self.draw(dtype, shape, depth)
        return divisor if dice.chance(0.2) else tree.Apply("or", (divisor, tree.Number(1)))

    def _condition(self, shape: Shape, depth: int) -> tree.Expr:
        dice = self.scope.dice
        if shape and self.scope.offsets and self.scope.ids is None and dice.chance(dice.options.places):
            return self._places(shape)
        if dice.chance(0.2):
            fn = dice.pick(("and", "or", "xor"))
            return tree.Apply(fn, (self.draw("bool", shape, depth), self.draw("bool", shape, depth)))
        if dice.chance(0.1):
            return tree.Apply("not", (self.draw("bool", shape, depth),))
        dtype = dice.pick(self.scope.palette.dtypes)
        if is_float(dtype) and dice.chance(0.08):
            return tree.Apply(dice.pick(CLASSES), (self.draw(dtype, shape, depth),))
        first = self.draw(dtype, shape, depth)
        fn = dice.pick(("lt", "le", "gt", "ge", "eq", "ne"))
        return tree.Apply(fn, (first, self._operand(dtype, shape, depth)))

    def _places(self, shape: Shape) -> tree.Expr:
        """Compare places along a dimension with an offset or a loop's variable: diagonals, triangles, ends."""
        dice, offsets = self.scope.dice, self.scope.offsets
        axis = len(shape) - 1 if dice.chance(0.7) else dice.between(0, len(shape) - 1)
        name = dice.pick(list(offsets))
        at: tree.Expr = tree.Arange(0, shape[axis], dice.pick(("i32", "i32", "i64")))
        if offsets[name][0]:
            at = tree.Apply("add", (at, tree.Number(offsets[name][0])))
        test = tree.Apply(dice.pick(("ge", "ge", "lt", "le", "gt", "eq", "eq")), (at, tree.Name(name, INDEX)))
        if len(shape) == 1:
            return test
        return tree.BroadcastTo(tree.Expand(test, tuple(i for i in range(len(shape)) if i != axis), 1), shape)

    def condition(self, shape: Shape, depth: int = 2) -> tree.Expr:
        """Return a condition that is not a constant: a scalar one or a bool tile."""
        return self._condition(shape, depth)

    def again(self, dtype: str, shape: Shape) -> tree.Expr | None:
        """Return what is computed in few steps from a tile that exists."""
        dice, found = self.scope.dice, self._name(dtype, shape, 0)
        if not isinstance(found, tree.Name) or dtype == "bool":
            return None
        if dice.chance(0.3) and len(shape) == 2 and shape[0] == shape[1]:
            found = tree.Transpose(found, (1, 0), 1)
        if dice.chance(0.5):
            return tree.Apply(dice.pick(("neg", "abs")), (found,))
        return tree.Apply(dice.pick(("add", "sub", "mul")), (found, self.number(dtype)))

    def whole(self) -> tree.Expr | None:
        """Return a condition on all of a tile that exists: on a sum, or on the largest or smallest element."""
        dice = self.scope.dice
        names = [(n, t) for n, t in self.scope.names.items() if t.shape and t.dtype != "bool"]
        if not names or self.scope.ids is not None:
            return None
        name, type_ = dice.pick(names)
        found = tree.Reduce(dice.pick(("max", "min", "sum")), tree.Name(name, type_), None)
        return tree.Apply(dice.pick(("lt", "ge", "ne")), (found, self.number(found.type.dtype)))

    def _unary(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        x = self.draw(dtype, shape, depth)
        if dtype == "bool":
            return tree.Apply("not", (x,))
        if is_float(dtype):
            if self.scope.palette.approximate and dice.chance(0.6):
                return self._approximation(x)
            fn = dice.pick(_EXACT_FLOAT)
            if fn == "sqrt":
                x = tree.Apply("abs", (x,))
            elif fn in ("floor", "ceil", "round", "trunc") and dice.chance(0.5):  # ties
                x = tree.Apply("mul", (x, tree.Number(0.5)))
            return tree.Apply(fn, (x,))
        fn = dice.pick(("neg", "abs", "not", "relu", "sign", dice.pick(BIT_COUNTS)))
        return tree.Apply(fn, (x,), form=self._by_builtin(fn, shape))

    def _approximation(self, x: tree.Expr) -> tree.Expr:
        """Return a function of an argument in its domain, not too large."""
        if self.scope.dice.rarely(self.scope.dice.options.activations):
            fn = self.scope.dice.pick((*ACTIVATIONS, *GATES))
            more = (self.draw(x.type.dtype, x.type.shape, 1),) if fn in GATES else ()
            return tree.Apply(fn, (x, *more))
        fn = self.scope.dice.pick(APPROXIMATE)
        if fn in ("tan", "asin", "acos"):
            x = tree.Apply("clamp", (x, tree.Number(-1.0), tree.Number(1.0)))
        elif fn == "lgamma":
            x = tree.Apply("clamp", (x, tree.Number(0.5), tree.Number(32.0)))
        elif fn == "erfc":
            x = tree.Apply("minimum", (x, tree.Number(6.0)))
        elif fn in ("log", "log2", "log10", "rsqrt"):
            x = tree.Apply("add", (tree.Apply("abs", (x,)), tree.Number(0.5)))
        elif fn == "log1p":
            x = tree.Apply("abs", (x,))
        elif fn in ("exp", "exp2", "expm1"):
            x = tree.Apply("minimum", (x, tree.Number(4.0)))
        return tree.Apply(fn, (x,))

    def _where(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        condition = self._condition(shape if self.scope.dice.chance(0.8) else (), depth)
        a, b = self.draw(dtype, shape, depth), self._operand(dtype, shape, depth)
        if b.type.weak and dtype == "bool":
            return None
        if not shape and isinstance(condition, tree.Number):
            return None
        return tree.Where(condition, a, b)

    def _cast(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        alike = [other for other in _BITS_SEEN if bits(other) == bits(dtype) and other != dtype]
        if dtype in _BITS_SEEN and alike and self.scope.dice.chance(0.12):
            source = self.scope.dice.pick(alike)
            value = self.draw(source, shape, depth)
            if not shape:  # sizes, and what is made of them, may be known at compile time: numbers without a dtype
                value = tree.Cast(value, source)
            return tree.Bitcast(value, dtype)
        source = self.scope.dtype()
        if source == dtype:
            return None
        return self._converted(self.draw(source, shape, depth), dtype)

    def _reduction(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice, scope = self.scope.dice, self.scope
        extra = dice.pick(scope.palette.sizes)
        if elements(shape) * extra > scope.palette.limit or len(shape) > 2:
            return None
        if dtype == "bool":
            op, source = dice.pick(("any", "all")), "bool"
        else:
            sources = [d for d in scope.palette.dtypes if accumulator(d) == dtype]
            if dtype == "i32" and dice.chance(0.2):
                sources.append("bool")
            if not sources:
                return None
            op, source = (
                dice.weighted((("sum", 3.0), ("max", 2.0), ("min", 2.0), ("prod", 0.3))),
                dice.pick(sources),
            )
        form = int(dice.chance(0.3))
        ones = [axis for axis, size in enumerate(shape) if size == 1]
        if ones and dice.chance(0.4):
            wide = tuple(extra if axis == ones[0] else size for axis, size in enumerate(shape))
            axes = tuple(ones) if dice.chance(0.5) else ones[0]
            return tree.Reduce(op, self.draw(source, wide, depth), axes, True, form)
        axis = dice.between(0, len(shape))
        wide = (*shape[:axis], extra, *shape[axis:])
        if dice.chance(0.2) and elements(wide) * 3 <= scope.palette.limit and len(wide) < 3:
            other = dice.between(0, len(wide))
            both = (*wide[:other], 3, *wide[other:])
            pair = (other, axis + (other <= axis)) if dice.chance(0.5) else (axis + (other <= axis), other - len(both))
            return tree.Reduce(op, self.draw(source, both, depth), pair, False, form)
        if not shape and dice.chance(0.6):
            return tree.Reduce(op, self.draw(source, scope.shape(dice.between(1, 2)), depth), None)
        negative = dice.chance(0.3)
        return tree.Reduce(op, self.draw(source, wide, depth), axis - len(wide) if negative else axis)

    def _scan(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        if dtype == "bool":
            op, source = dice.pick(("any", "all")), "bool"
        else:
            sources = [d for d in self.scope.palette.dtypes if accumulator(d) == dtype]
            if not sources:
                return None
            op, source = (
                dice.weighted((("sum", 3.0), ("max", 2.0), ("min", 2.0), ("prod", 0.2))),
                dice.pick(sources),
            )
        axis = dice.between(-len(shape), len(shape) - 1)
        return tree.Scan(op, self.draw(source, shape, depth), axis, dice.chance(0.5))

    def _exchange(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        axis = dice.between(-len(shape), len(shape) - 1)
        bits = dice.between(0, max(2, 2 * shape[axis] - 1)) if dice.chance(0.6) else 1 << dice.between(0, 6)
        return tree.Exchange(self.draw(dtype, shape, depth), bits, axis)

    def _sort(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        """Draw elements in order; of few, as every doubling adds a merge of all."""
        dice = self.scope.dice
        axis = dice.between(-len(shape), len(shape) - 1)
        if shape[axis] > LONGEST_SORT:
            return None
        places = dtype == "i32" and dice.chance(0.5)
        source = dice.pick(self.scope.palette.dtypes) if places else dtype
        count = shape[axis] if dice.chance(0.4) else 0
        size = count + (dice.between(0, count) if dice.chance(0.5) else dice.between(0, 9)) if count else shape[axis]
        given = (*shape[: axis % len(shape)], size, *shape[axis % len(shape) + 1 :])
        return tree.Sort(self.draw(source, given, depth), axis, dice.chance(0.4), places, count)

    def _combined(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        """Draw a reduction or scan by a combiner, one of whose results has the dtype."""
        dice, scope = self.scope.dice, self.scope
        kind = "bool" if dtype == "bool" else "int"
        running = bool(shape) and dice.chance(0.5)
        fitting = [
            (name, part)
            for name, combiner in COMBINERS.items()
            for part, held in enumerate(combiner.kinds)
            if held == kind and (running or combiner.commutative)
        ]
        extra, ints = dice.pick(scope.palette.sizes), [d for d in scope.palette.dtypes if d in INTS]
        if not fitting or not ints or elements(shape) * extra > scope.palette.limit or len(shape) > 2:
            return None
        ordered = [choice for choice in fitting if not COMBINERS[choice[0]].commutative]
        name, part = dice.pick(ordered if ordered and dice.chance(0.7) else fitting)
        axis = dice.between(0, len(shape) - 1 if running else len(shape))
        wide = shape if running else (*shape[:axis], extra, *shape[axis:])
        kinds = COMBINERS[name].kinds
        own = {"bool": "bool", "same": dtype}
        xs = tuple(
            self.draw(dtype if at == part else own.get(held, dice.pick(ints)), wide, depth)
            for at, held in enumerate(kinds)
        )
        alone = not running and not shape and dice.chance(0.5)
        return tree.Combined(name, xs, None if alone else axis, part, running, running and dice.chance(0.3))

    def _broadcast(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        if len(shape) > 1 and dice.chance(0.5):
            axis = dice.between(0, len(shape) - 1)
            if shape[axis] == 1:
                inner = shape[:axis] + shape[axis + 1 :]
                if inner:
                    return tree.Expand(self.draw(dtype, inner, depth), (axis,), form=dice.between(0, 1))
            column = tree.Expand(
                self.draw(dtype, (shape[axis],), depth), tuple(i for i in range(len(shape)) if i != axis), 1
            )
            return tree.BroadcastTo(column, shape)
        small = dice.pick(((), shape[-1:], tuple(s if dice.chance(0.5) else 1 for s in shape)))
        if not fits(small, shape):
            return None
        return tree.BroadcastTo(self.draw(dtype, small, depth), shape)

    def _reshape(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        size = elements(shape)
        others = [t.shape for t in self.scope.names.values() if t.shape and t.size == size and t.shape != shape]
        factors = [n for n in range(1, size + 1) if size % n == 0]
        first = dice.pick(factors)
        options: list[Shape] = [*others, (size,), (first, size // first), (size // first, first)]
        other = dice.pick(options)
        if other == shape:
            return None
        x = self.draw(dtype, other, depth)
        if dice.chance(0.25 * dice.options.flat_transposes) and self.scope.ids is None:
            x = self._heads(dtype, size, depth)
        elif len(other) == 2 and dice.chance(0.4):
            x = tree.Transpose(self.draw(dtype, (other[1], other[0]), depth), (1, 0), dice.between(0, 1))
        if len(shape) == 1 and isinstance(x, tree.Transpose) and not dice.chance(dice.options.flat_transposes):
            return None
        return tree.Reshape(x, shape)

    def _heads(self, dtype: str, size: int, depth: int) -> tree.Expr:
        """Return a tile of so many elements whose three axes have changed places, as heads of attention do."""
        dice = self.scope.dice
        first = dice.pick([n for n in range(1, size + 1) if size % n == 0])
        second = dice.pick([n for n in range(1, size // first + 1) if size // first % n == 0])
        source = self.draw(dtype, (first, second, size // first // second), depth)
        return tree.Transpose(source, dice.pick(((1, 2, 0), (2, 0, 1), (1, 0, 2), (2, 1, 0), (0, 2, 1))), 1)

    def _transpose(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice, rank = self.scope.dice, len(shape)
        if rank < 2:
            return None
        perm = tuple(dice.shuffled(range(rank))) if rank > 2 or dice.chance(0.1) else (1, 0)
        source = [0] * rank
        for result_axis, source_axis in enumerate(perm):
            source[source_axis] = shape[result_axis]
        return tree.Transpose(self.draw(dtype, tuple(source), depth), perm, dice.between(0, 1))

    def _stack(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        axis = dice.between(0, len(shape) - 1)
        if shape[axis] > 2 and dice.chance(0.4):
            return self._uneven(dtype, shape, axis, depth)
        count = next((n for n in (2, 3) if shape[axis] % n == 0), 0)
        if not count:
            return None
        merged = shape[axis] != count or len(shape) == 1 or dice.chance(0.3)
        part = (*shape[:axis], shape[axis] // count, *shape[axis + 1 :]) if merged else shape[:axis] + shape[axis + 1 :]
        return tree.Stack(tuple(self.draw(dtype, part, depth) for _ in range(count)), axis, merged)

    def _uneven(self, dtype: str, shape: Shape, axis: int, depth: int) -> tree.Expr:
        """Return tiles of several sizes, one after the other."""
        dice = self.scope.dice
        cuts = sorted({dice.between(1, shape[axis] - 1) for _ in range(dice.between(1, 2))})
        sizes = [end - start for start, end in zip([0, *cuts], [*cuts, shape[axis]], strict=True)]
        shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return tree.Stack(tuple(self.draw(dtype, part, depth) for part in shapes), axis, merged=True)

    def _product(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice, scope = self.scope.dice, self.scope
        wanted = {
            "f32": ("f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2"),
            "f64": ("f64", "f32"),
            "f16": ("f16",),
            "i32": ("i8", "u8"),
            "u32": ("u8",),
        }.get(dtype, ())
        known = [d for d in wanted if d in scope.palette.dtypes] or list(wanted[:1])
        if not known or scope.work * elements(shape) > 40000:
            return None
        operand, depth_k = dice.pick(known), dice.pick((*scope.palette.sizes, 16, 8))
        if max(shape[0], shape[1]) * depth_k > scope.palette.limit:
            return None
        a, b = self.draw(operand, (shape[0], depth_k), depth), self.draw(operand, (depth_k, shape[1]), depth)
        if operand.startswith("fp8") and dice.chance(0.3):
            b = self._converted(b, dice.pick(("fp8_e4m3", "fp8_e5m2")))
        default = accumulator(operand) == dtype
        compute = "tf32" if operand == "f32" and dtype == "f32" and dice.chance(0.2) else ""
        if dice.chance(0.5):
            return tree.Mma(a, b, self.draw(dtype, shape, depth), "", compute)
        return tree.Mma(a, b, None, "" if default else dtype, compute)

    def _causal(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        if not is_float(dtype):
            return None
        # The default, minus infinity, turns sums into infinities soon.
        value = tree.Number(float("-inf") if dice.chance(0.2) and bits(dtype) > 8 else -5.0)
        first = tree.Cast(tree.Number(dice.between(0, shape[0])), "i64")
        return tree.CausalMask(self.draw(dtype, shape, depth), first, tree.Number(dice.between(0, shape[1])), value)

    def _mirrored(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        """Combine two differences of the same operands in both orders."""
        dice = self.scope.dice
        names = [n for n, type_ in self.scope.names.items() if type_ == Type(dtype, shape)]
        if dtype == "bool" or len(names) < 2:
            return None
        a, b = (tree.Name(name, Type(dtype, shape)) for name in dice.shuffled(names)[:2])
        differences = (tree.Apply("sub", (a, b)), tree.Apply("sub", (b, a)))
        return tree.Apply(dice.pick(("maximum", "mul")), differences)

    def computed(self, dtype: str, shape: Shape) -> tree.Expr | None:
        """Return what an implementation computes into a buffer: a scan, a reduction, a product, a transpose."""
        makers = [self._scan, self._reduction, self._transpose, self._reshape]
        if len(shape) == 2:
            makers.append(self._product)
        return self.scope.dice.pick(makers)(dtype, shape, 1)

    def _random(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        dice = self.scope.dice
        offsets = self.draw(dice.pick(("i32", "i64")), shape, 1)
        seed: tree.Expr = tree.Number(dice.between(0, 2**40))
        if dtype == "u32":
            return tree.Philox(seed, offsets, dice.between(0, 3))
        if is_int(dtype):
            low = dice.between(-9 if is_signed(dtype) else 0, 9)
            return tree.Randint(seed, offsets, low, low + dice.between(1, 99), dtype)
        if dtype == "f32" and dice.chance(0.6):
            normal = self.scope.palette.approximate and dice.chance(0.5)
            return tree.Randn(seed, offsets) if normal else tree.Rand(seed, offsets)
        if is_float(dtype):
            return tree.Dropout(self.draw(dtype, shape, depth), dice.pick((0.5, 0.75, 0.25)), seed, offsets)
        return None

    def _shared(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        return self.held(dtype, shape)

    def held(self, dtype: str, shape: Shape) -> tree.Expr | None:
        """Return a shared buffer that holds such a tile, as it is or transposed, or a part of one."""
        if self.scope.buffers and self.scope.dice.rarely(self.scope.dice.options.buffer_parts):
            part = buffer_part(self.scope, dtype, shape)
            if part is not None:
                return part
        found = [n for n, t in self.scope.buffers.items() if t.dtype == dtype and t.shape == shape]
        turned = [
            n
            for n, t in self.scope.buffers.items()
            if t.dtype == dtype and len(shape) == 2 and t.shape == (shape[1], shape[0])
        ]
        if found and self.scope.dice.chance(0.7):
            return tree.ReadShared(self.scope.dice.pick(found), Type(dtype, shape))
        if turned:
            return tree.ReadShared(self.scope.dice.pick(turned), Type(dtype, shape), transposed=True)
        return None

    def _like(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        other = self._name(dtype, shape, 0)
        return None if other is None else tree.FullLike(other, self.number(dtype))

    def _call(self, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
        found = [h for h in self.scope.helpers if h.result.type.dtype == dtype and h.result.type.shape == shape]
        if not found or "helper" in self.scope.contexts:
            return None
        helper = self.scope.dice.pick(found)
        args = tuple(self.draw(param.own.dtype, param.own.shape, depth) for param in helper.params)
        return tree.Call(helper.name, args, helper.result.type)
