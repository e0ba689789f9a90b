"""Draws programs after the plans of real kernels: products of blocks, chains of products, walks along rows.

Statements that are drawn one by one hardly ever come to what a schedule for matrix units looks for: one loop that sums
products of blocks of the units' sizes, and stores the sum behind it. Here that much is given, and everything around it
drawn: dtypes, sizes, transposes, what operands are computed from, what becomes of the sum, and the schedule's knobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_knobs import of_plan, shared_out
from tessera.tools.fuzz.generate_nests import nests
from tessera.tools.fuzz.generate_plan_parts import Axis, Parts
from tessera.tools.fuzz.generate_rows import recurrence, rows, whole_rows
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import accumulator, bits, is_float

_OPERANDS: Final = (
    ("bf16", 6.0),
    ("f16", 4.0),
    ("f32", 2.0),
    ("i8", 1.5),
    ("u8", 0.5),
    ("fp8_e4m3", 1.0),
    ("fp8_e5m2", 1.0),
    ("f64", 0.7),
)
_NARROWER: Final = ("i8", "u8", "i16", "fp8_e4m3", "fp8_e5m2", "f32")
"""What operands of 16 bits may be stored as."""

_BLOCKS: Final = (
    (((8, 16, 32, 48), (8, 16, 32, 40), (8, 16, 32)), 4.0),
    (((64, 64, 128), (64, 64, 128), (64, 64, 128)), 4.0),
    (((64, 64, 128, 256), (8, 24, 128, 192, 256), (32, 64, 128)), 1.5),
    (((1, 2, 4, 16), (16, 64, 100), (64, 512, 1024)), 2.5),
)
"""Rows, columns and depth of the blocks of a product, with how often they are drawn."""
_ODD: Final = ((96, 192, 192, 80, 48), (96, 192, 24, 40, 200), (48, 96, 80, 192))
"""Rows, columns and depth of blocks that are no powers of two, which schedules compute in parts."""
_UNITS: Final = (
    (("bf16", (64, 64, 128)), 4.0),
    (("f16", (64, 64, 128)), 3.0),
    (("f32", (32, 64)), 1.0),
    (("i8", (64, 128)), 1.0),
    (("fp8_e4m3", (64, 128)), 1.0),
)
"""Operands of warpgroups, and sizes of their blocks: the copy engine fetches rows of 128 bytes."""
_NARROW: Final = ((64, 64, 128), (8, 8, 8, 16, 24, 40), (32, 32, 32, 64, 96))
"""Rows, columns, and bytes of terms, of narrow blocks: rows that only some instructions and copies take."""


@dataclass(frozen=True, slots=True)
class _Product:
    """What a loop multiplies block by block.

    Args:
        operand: dtype of the operands.
        rows: rows of the accumulator.
        columns: columns of the accumulator.
        depth: what is summed over.
        batch: which product of a batch, None for a single product.
    """

    operand: str
    rows: Axis
    columns: Axis
    depth: Axis
    batch: tree.Expr | None


CHUNKS = (8, 16, 32, 64, 256)
"""Elements of rows that are computed at a time, where a row is a tile."""


@dataclass(slots=True)
class Plan(Parts):
    """A program under construction."""

    def program(self, seed: int) -> tree.Program:
        """Draw the program of a seed."""
        if self.dice.rarely(min(0.1 * self.dice.options.rows, 0.5)):
            program = self._of(seed, whole_rows(self))
            knobs = {**dict(program.knobs), "chunk": self.dice.aside.choice(CHUNKS), "batch": 1}
            return replace(program, knobs=tuple(knobs.items()))
        draw = self.dice.weighted(
            (
                (self._gemm, 6.0),
                (self._chain, 2.5 * self.dice.options.chains),
                (partial(rows, self), 1.5 * self.dice.options.rows),
                (partial(recurrence, self), 1.0),
            )
        )
        program = self._of(seed, draw())
        if draw == self._chain and self.dice.rarely(0.25):
            knobs = {**dict(program.knobs), "pipeline": 1, "ping_pong": 1}
            return replace(program, knobs=tuple(knobs.items()))
        return program

    def nest(self, seed: int) -> tree.Program:
        """Draw the program of a seed: loops in loops."""
        return self._of(seed, nests(self))

    def _of(self, seed: int, grid: tree.Grid) -> tree.Program:
        knobs = of_plan(self.dice, self.on_units, self.profile == "strict")
        if self.narrow and self.dice.rarely(0.75):
            knobs = shared_out(self.dice.aside, knobs)
        params = self.dice.shuffled(self.tensors)
        return tree.Program(seed, tuple(params), (), (grid,), self.profile, tuple(knobs.items()))

    # Operands

    def _block(
        self,
        name: str,
        dtype: str,
        rows: Axis,
        columns: Axis,
        batch: tree.Expr | None = None,
    ) -> tree.Expr:
        """Load a block of a new tensor, as it is stored or transposed."""
        turned = self.dice.chance(0.4)
        (first, a, height), (second, b, width) = (columns, rows) if turned else (rows, columns)
        batched = batch is not None and self.dice.chance(0.8)
        tensor = self.tensor(name, (*(("B",) if batched else ()), first, second), dtype)
        axes: list[tree.Axis] = [tree.Span(a, height), tree.Span(b, width)]
        if batched and batch is not None:
            axes.insert(0, tree.At(batch))
        loaded: tree.Expr = self.load(tensor, *axes)
        return tree.Transpose(loaded, (1, 0), 1) if turned else loaded

    def _operand(
        self,
        name: str,
        dtype: str,
        rows: Axis,
        columns: Axis,
        batch: tree.Expr | None = None,
    ) -> tree.Expr:
        """Draw an operand of a product: a block of a tensor, or one that is computed from blocks."""
        dice, shape = self.dice, (rows[2], columns[2])
        computed = 0.35 if dtype in ("bf16", "f16") else 0.1
        if not self.rarely(computed):
            return self._block(name, dtype, rows, columns, batch)
        kinds = ["times", "masked"]
        if dtype in ("bf16", "f16"):
            kinds += ["cast", "cast", "scaled"]
        kind = dice.pick(kinds)
        if kind == "cast":
            return tree.Cast(self._block(name, dice.pick(_NARROWER), rows, columns, batch), dtype)
        if kind == "scaled":
            scale = self.tensor(f"{name}_scale", (rows[0],), "f32")
            factor = tree.Expand(self.load(scale, tree.Span(rows[1], rows[2])), (1,), 1)
            wide = tree.Cast(self._block(name, dice.pick(("i8", dtype)), rows, columns, batch), "f32")
            return tree.Cast(tree.Apply("mul", (wide, factor)), dtype)
        block = self._block(name, dtype, rows, columns, batch)
        if kind == "times":
            return tree.Apply("mul", (block, tree.Number(2)))
        keep = self.load(
            self.tensor(f"{name}_keep", (rows[0], columns[0]), "u8"),
            tree.Span(rows[1], rows[2]),
            tree.Span(columns[1], columns[2]),
        )
        zeros = tree.Full(shape, tree.Number(0), dtype)
        return tree.Where(tree.Apply("gt", (keep, tree.Number(1))), block, zeros)

    def _compute(self, dtype: str) -> str:
        return "tf32" if dtype == "f32" and (self.on_units or self.dice.chance(0.5)) else ""

    # Products of blocks

    def _gemm(self) -> tree.Grid:
        """`out = epilogue(Σ a · b)`, sometimes batched, sometimes two products that share an operand."""
        dice = self.dice
        self.narrow = self.profile != "strict" and dice.rarely(0.12 * dice.options.narrow)
        self.on_units = (self.profile != "strict" and dice.chance(0.35)) or self.narrow
        self.plain = self.on_units or dice.chance(0.25)
        self.pitch = dice.pick((8, 16, 32)) if dice.chance(0.3 * dice.options.layouts) else 1
        operand, (bm, bn, bk) = self._units() if self.on_units else self._blocks()
        batch = tree.Name("b", INDEX) if self.rarely(0.25) else None
        extents = [self.size("M", bm, 3 if bm < 64 else 2), self.size("N", bn, 2)]
        end: tree.Expr = self.size("K", bk, 6 if bm * bn <= 64 * 128 else 3)
        if batch is not None:
            self.dims["B"] = dice.between(1, 2)
        m, n, k = (tree.Name(name, INDEX) for name in "mnk")
        if batch is None and dice.rarely(0.06):  # something is written before the sum is complete
            marks = tree.Full((bm, bn), tree.Number(3), "i32")
            self.body.append(tree.Store(self._out("marks", "i32").name, self._place(m, bm, n, bn), "i32", marks))
        loop, sums = self._products(_Product(operand, ("M", m, bm), ("N", n, bn), ("K", k, bk), batch))
        end = self._end(end, (m, bm), bk)
        first = tree.Number(bk if dice.chance(0.2) else 0)
        self.body.append(tree.For("k", first, end, tree.Number(bk), tuple(loop)))
        self._epilogue(sums, (m, bm), (n, bn), batch)
        names, blocks = ["m", "n"], [bm, bn]
        extents = [self.rounded_up(extent, block) for extent, block in zip(extents, blocks, strict=True)]
        if batch is not None:
            names, blocks, extents = ["b", *names], [1, *blocks], [tree.Name("B", INDEX), *extents]
            if not any("B" in tensor.dims for tensor in self.tensors):
                extents[0] = tree.Number(self.dims["B"])
        return tree.Grid(tuple(names), tuple(extents), tuple(blocks), tuple(self.body))

    def _blocks(self) -> tuple[str, tuple[int, ...]]:
        """Draw the operands' dtype, and the rows, columns and depth of a product's blocks."""
        dice = self.dice
        operand = dice.weighted(_OPERANDS[:2] if self.plain and dice.chance(0.7) else _OPERANDS)
        return operand, tuple(dice.pick(sizes) for sizes in dice.weighted(_BLOCKS))

    def _units(self) -> tuple[str, tuple[int, ...]]:
        """Draw them for products that warpgroups compute."""
        dice = self.dice
        operand, sizes = dice.weighted(_UNITS)
        found = [dice.pick((64, 64, 128)), dice.pick(sizes), dice.pick(sizes)]
        for place, odd in enumerate(_ODD):
            if dice.rarely(0.2):
                found[place] = dice.aside.choice(odd)
        if self.narrow:
            rows, columns, terms = (dice.aside.choice(sizes) for sizes in _NARROW)
            found = [rows, columns, terms * 8 // bits(operand) if dice.rarely(0.85) else found[2]]
        return operand, tuple(found)

    def _end(self, length: tree.Expr, rows: tuple[tree.Expr, int], step: int) -> tree.Expr:
        """Return where a loop over `length` ends: there, before, or, of a triangle of blocks, at the diagonal."""
        if self.rarely(0.25):  # tiles differ in their number of steps
            return tree.Apply("minimum", (length, tree.Apply("add", (rows[0], tree.Number(rows[1])))))
        if self.dice.chance(0.25):  # what lies behind is no part of the sum
            return tree.Apply("minimum", (length, tree.Number(step * self.dice.between(1, 3))))
        return length

    def _products(self, of: _Product) -> tuple[list[tree.Stmt], list[tree.Name]]:
        """Draw one or two products that share their left operand; return the loop's body and what it sums."""
        dice, (_, _, bm), (_, _, bn) = self.dice, of.rows, of.columns
        loop: list[tree.Stmt] = []
        left = self._operand("X", of.operand, of.rows, of.depth, of.batch)
        products = 2 if bm * bn <= 128 * 64 and self.rarely(0.35) else 1
        if products > 1 or self.rarely(0.4):
            left = self.bind(left, loop)
        kind = dice.weighted((("sum", 1.0), ("apart", 0.6), ("scaled", 0.3))) if self.rarely(0.6) else "sum"
        if dice.rarely(0.15):
            kind = "scaled" if dice.rarely(0.7) else "fading"
        compute = self._compute(of.operand)
        sums = [self._product(of, number, left, kind, compute, loop) for number in range(products)]
        if isinstance(left, tree.Name) and is_float(of.operand) and dice.chance(0.3):
            of_rows = self.bind(tree.Full((bm,), tree.Number(0), accumulator(of.operand)), self.body, "of_rows")
            more = tree.Reduce(dice.pick(("sum", "max")), left, 1)
            fn = "add" if more.op == "sum" else "maximum"
            loop.append(tree.Assign(("of_rows",), (tree.Apply(fn, (of_rows, more)),)))
            sums.append(of_rows)
        if dice.rarely(0.15):
            sums.append(self._carried_on(sums[:products], loop))
        return loop, sums

    def _carried_on(self, sums: list[tree.Name], loop: list[tree.Stmt]) -> tree.Name:
        """Let a loop carry sums on under other names: exchanged, as they were before, or before they are changed."""
        rng, acc = self.dice.aside, sums[-1]
        start = tree.Full(acc.own.shape, tree.Number(rng.choice((0, 1))), acc.own.dtype)
        other = self.bind(start, self.body, "other")
        kind = rng.choice(("exchanged", "exchanged", "before", "changed"))
        if kind == "exchanged":
            names = [*sums, other]
            rng.shuffle(names)
            loop.append(tree.Assign(tuple(name.name for name in names), (*names[1:], names[0])))
        elif kind == "before":
            loop.insert(rng.randint(0, len(loop)), tree.Assign((other.name,), (acc,)))
        else:
            changed = tree.Apply("mul", (acc, tree.Number(0.5 if is_float(acc.own.dtype) else 3)))
            loop += [tree.Assign((other.name,), (acc,)), tree.Assign((acc.name,), (changed,))]
        return other

    def _product(
        self, of: _Product, number: int, left: tree.Expr, kind: str, compute: str, loop: list[tree.Stmt]
    ) -> tree.Name:
        """Append a product to a loop's body; return its accumulator.

        Args:
            of: what it is a product of.
            number: how many products the loop has already.
            left: the left operand.
            kind: `sum` accumulates in the product itself, `apart` adds to it, `scaled` scales it before, by
                rows or by a number, `fading` scales the sum before.
            compute: the precision of the product.
            loop: the body.
        """
        (_, m, bm), (_, n, bn), (_, k, bk), total = of.rows, of.columns, of.depth, accumulator(of.operand)
        along = of.depth
        if "J" not in self.dims and self.rarely(0.12):  # one that ends before the loop does
            self.size("J", bk, 2)
            along = ("J", k, bk)
        right = self._operand("YZ"[number], of.operand, along, of.columns, of.batch)
        first: tree.Expr = tree.Full((bm, bn), tree.Number(0), total)
        if self.rarely(0.25):
            first = tree.Cast(self.load(self._out(f"S{number}", total), *self._place(m, bm, n, bn)), total)
        acc = self.bind(first, self.body, f"acc{number}")
        less = tree.Number(0.5 if is_float(total) else 3)
        start = {"sum": acc, "fading": tree.Apply("mul", (acc, less))}.get(kind)
        value: tree.Expr = tree.Mma(left, right, start, "", compute)
        if kind == "scaled":
            by_rows = of.batch is None and self.dice.rarely(0.6)
            value = tree.Apply(
                "mul", (value, self.of_rows(f"SCALES{number}", of.rows, total, of.depth) if by_rows else less)
            )
        if start is None:
            value = tree.Apply("add", (acc, value))
        loop.append(tree.Assign((acc.name,), (value,)))
        return acc

    def _out(self, name: str, dtype: str, turned: bool = False, batched: bool = False) -> tree.Tensor:
        dims = ("N", "M") if turned else ("M", "N")
        return self.tensor(name, (*(("B",) if batched else ()), *dims), dtype)

    def _place(self, m: tree.Expr, bm: int, n: tree.Expr, bn: int) -> tuple[tree.Axis, ...]:
        return tree.Span(m, bm), tree.Span(n, bn)

    def _epilogue(
        self,
        sums: list[tree.Name],
        rows: tuple[tree.Expr, int],
        columns: tuple[tree.Expr, int],
        batch: tree.Expr | None,
    ) -> None:
        """Combine what a loop summed, change it and store it, sometimes twice or transposed."""
        dice, (m, bm), (n, bn) = self.dice, rows, columns
        value: tree.Expr = sums[0]
        for other in sums[1:]:
            more: tree.Expr = other if len(other.own.shape) == 2 else tree.Expand(other, (1,), 1)
            value = tree.Apply(dice.pick(("add", "sub", "maximum")), (value, more))
        float_ = is_float(value.type.dtype)
        kinds = ["bias", "rows", "residual", "scale", "relu", "clamp", "mask"]
        kinds += ["sigmoid", "narrow"] if float_ else []
        for number in range(dice.weighted(((0, 3.0), (1, 3.0), (2, 2.0), (3, 1.0)))):
            value = self._step(dice.pick(kinds), value, number, rows, columns)
        kept = value.type.dtype
        outs = (
            ("f32", "bf16", "f16", "fp8_e4m3")
            if float_ and kept != "f64"
            else (kept, "i8")
            if not float_
            else ("f64", "f32")
        )
        for number in range(2 if dice.chance(0.15) else 1):
            dtype = kept if dice.chance(0.5) else dice.pick(outs)
            stored: tree.Expr = value if dtype == kept else tree.Cast(value, dtype)
            turned = dice.chance(0.15)
            out = self._out(f"out{number}", dtype, turned, batch is not None)
            axes = list(self._place(m, bm, n, bn))
            if dice.rarely(0.06):  # the first tiles begin before the result
                place = dice.between(0, 1)
                start, size = (rows, columns)[place]
                axes[place] = tree.Span(tree.Apply("sub", (start, tree.Number(dice.pick((1, 8, 16, 64))))), size)
            if turned:
                stored, axes = tree.Transpose(stored, (1, 0), 1), axes[::-1]
            if batch is not None:
                axes.insert(0, tree.At(batch))
            fn = "add" if dtype in ("f32", "f64", "i32") and dice.chance(0.06) else ""
            self.body.append(tree.Store(out.name, tuple(axes), dtype, stored, dice.between(0, 1) if not fn else 0, fn))

    def _step(
        self, kind: str, value: tree.Expr, number: int, rows: tuple[tree.Expr, int], columns: tuple[tree.Expr, int]
    ) -> tree.Expr:
        """Return a value after one step of an epilogue."""
        dice, (m, bm), (n, bn), dtype = self.dice, rows, columns, value.type.dtype
        side = "f32" if is_float(dtype) else dtype
        if kind in ("bias", "rows"):
            axis, (start, size) = (0, columns) if kind == "bias" else (1, rows)
            vector = self.load(
                self.tensor(f"V{number}", ("N" if kind == "bias" else "M",), side), tree.Span(start, size)
            )
            return tree.Apply(dice.pick(("add", "mul")), (value, tree.Expand(vector, (axis,), 1)))
        if kind == "residual":
            held = dice.pick((side, "bf16" if is_float(dtype) else side))
            loaded = self.load(self._out(f"R{number}", held), *self._place(m, bm, n, bn))
            return tree.Apply("add", (value, tree.Cast(loaded, dtype)))
        if kind == "scale":
            return tree.Apply("mul", (value, tree.Number(0.5 if is_float(dtype) else 2)))
        if kind == "clamp":
            return tree.Apply("clamp", (value, tree.Number(5 if dtype.startswith("u") else -50), tree.Number(60)))
        if kind == "mask":
            place = tree.Apply("add", (n, tree.Arange(0, bn, "i64")))
            return tree.Where(
                tree.Apply("lt", (place, tree.Number(dice.between(0, bn)))),
                value,
                tree.Full((bm, bn), tree.Number(0), dtype),
            )
        if kind == "narrow":
            return tree.Cast(tree.Cast(value, dice.pick(("bf16", "f16"))), dtype)
        return tree.Apply(kind, (value,))

    # Products of products

    def _chain(self) -> tree.Grid:
        """Attention, or gated layers: products whose operands are what other products gave."""
        dice = self.dice
        operand = dice.pick(("bf16", "bf16", "f16", "f32"))
        small = dice.chance(0.4)
        rows = dice.pick((16, 32) if small else (64, 64, 128, 192))
        columns = dice.pick((16, 32) if small else (32, 64, 128))
        size = dice.pick((16, 32) if small else (64, 64, 128))
        self.dims["H"] = dice.between(1, 2)
        extent, length = self.size("S", rows, 2), self.size("L", columns, 3)
        h, m, n = (tree.Name(name, INDEX) for name in "hmn")
        q = self.load(
            self.tensor("Q", ("H", "S", size), operand), tree.At(h), tree.Span(m, rows), tree.Span(None, size)
        )
        names = ("KEYS", "GATES") if dice.chance(0.3) else ("KEYS",)
        keys = [self._keys(name, operand, h, (n, columns), size) for name in names]
        width = dice.pick((size, 2 * size)) if rows * size <= 64 * 64 else size
        values = self.tensor("VALUES", ("H", "L", width), operand)
        taken = self.load(values, tree.At(h), tree.Span(n, columns), tree.Span(None, width))
        compute = self._compute(operand)
        query: tree.Expr = self.bind(q, self.body) if dice.chance(0.85) else q
        acc = self.bind(tree.Full((rows, width), tree.Number(0), "f32"), self.body, "acc")
        loop: list[tree.Stmt] = []
        scores: tree.Expr = tree.Mma(query, keys[0], None, "", compute)
        if len(keys) > 1:
            gate = self.bind(scores, loop)
            scores = tree.Apply("mul", (tree.Apply("sigmoid", (gate,)), tree.Mma(query, keys[1], None, "", compute)))
        scores = tree.Apply("mul", (scores, tree.Number(0.125)))
        if dice.rarely(0.3):
            bias = self.load(self.tensor("BIAS", ("L",), dice.pick(("f32", "f32", operand))), tree.Span(n, columns))
            scores = tree.Apply("add", (scores, tree.Cast(bias, "f32")))
        scores = self._mask(scores, (m, rows), (n, columns), length)
        end: tree.Expr = length
        if dice.chance(0.3):
            end = tree.Apply("minimum", (length, tree.Apply("add", (m, tree.Number(rows)))))
        out: tree.Expr = acc
        if dice.chance(0.6):
            out = self._online(scores, acc, taken, operand, rows, loop)
        else:
            weights = tree.Cast(tree.Apply("clamp", (scores, tree.Number(-2.0), tree.Number(2.0))), operand)
            loop.append(tree.Assign(("acc",), (tree.Mma(weights, taken, acc, "", compute),)))
        self.body.append(tree.For("n", tree.Number(0), end, tree.Number(columns), tuple(loop)))
        kept = dice.pick(("f32", operand))
        result = self.tensor("out", ("H", "S", width), kept)
        place: tuple[tree.Axis, ...] = (tree.At(h), tree.Span(m, rows), tree.Span(None, width))
        self.body.append(tree.Store("out", place, kept, out if kept == "f32" else tree.Cast(out, result.dtype)))
        return tree.Grid(("h", "m"), (tree.Name("H", INDEX), extent), (1, rows), tuple(self.body))

    def _keys(self, name: str, operand: str, head: tree.Expr, columns: tuple[tree.Expr, int], size: int) -> tree.Expr:
        """Load a block of keys, `(size, columns)`, stored as it is or transposed."""
        turned = self.dice.chance(0.7)
        dims: tuple[str | int, ...] = ("H", "L", size) if turned else ("H", size, "L")
        axes: list[tree.Axis] = [tree.Span(*columns), tree.Span(None, size)]
        block = self.load(self.tensor(name, dims, operand), tree.At(head), *(axes if turned else axes[::-1]))
        return tree.Transpose(block, (1, 0), 1) if turned else block

    def _mask(
        self, scores: tree.Expr, rows: tuple[tree.Expr, int], columns: tuple[tree.Expr, int], length: tree.Expr
    ) -> tree.Expr:
        """Hide scores behind the diagonal, outside a window along it or past the end, or none."""
        kind = self.dice.pick(("none", "causal", "window", "end"))
        if kind == "causal":
            return tree.CausalMask(scores, rows[0], columns[0], tree.Number(-8.0))
        if kind == "none":
            return scores
        place = tree.Apply("add", (columns[0], tree.Arange(0, columns[1])))
        if kind == "end":
            return tree.Where(tree.Apply("lt", (place, length)), scores, tree.Number(-8.0))
        row = tree.Expand(tree.Apply("add", (rows[0], tree.Arange(0, rows[1]))), (1,), 1)
        near = tree.Apply("gt", (place, tree.Apply("sub", (row, tree.Number(self.dice.pick((16, 64, 100)))))))
        seen = tree.Apply("and", (tree.Apply("le", (place, row)), near))
        return tree.Where(seen, scores, tree.Number(-8.0))

    def _online(
        self, scores: tree.Expr, acc: tree.Name, taken: tree.Expr, operand: str, rows: int, loop: list[tree.Stmt]
    ) -> tree.Expr:
        """Weigh values by a softmax that follows the largest score; return what is left to do behind the loop."""
        top = self.bind(tree.Full((rows,), tree.Number(-8.0), "f32"), self.body, "top")
        total = self.bind(tree.Full((rows,), tree.Number(0), "f32"), self.body, "total")
        exp = self.dice.pick(("exp", "exp2"))
        scores = self.bind(scores, loop)
        new = self.bind(tree.Apply("maximum", (top, tree.Reduce("max", scores, 1))), loop)
        alpha = self.bind(tree.Apply(exp, (tree.Apply("sub", (top, new)),)), loop)
        p = self.bind(tree.Apply(exp, (tree.Apply("sub", (scores, tree.Expand(new, (1,), 1))),)), loop)
        sums = tree.Apply("add", (tree.Apply("mul", (alpha, total)), tree.Reduce("sum", p, 1)))
        moved = tree.Apply("mul", (tree.Expand(alpha, (1,), 1), acc))
        loop += [
            tree.Assign(("total",), (sums,)),
            tree.Assign(("acc",), (tree.Mma(tree.Cast(p, operand), taken, moved),)),
            tree.Assign(("top",), (new,)),
        ]
        return tree.Apply("div", (acc, tree.Expand(total, (1,), 1)))
