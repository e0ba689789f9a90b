"""Draws programs that walk along rows: reductions of long rows by blocks, and states that follow each other."""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_plan_parts import Parts
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import accumulator, is_float


def rows(parts: Parts) -> tree.Grid:
    """Reduce long rows by blocks, and store what each block becomes by what its row gave."""
    dice = parts.dice
    dtype = dice.pick(("f32", "f32", "bf16", "f16", "f64", "i32"))
    block, width = dice.pick((1, 2, 4, 16, 64)), dice.pick((32, 64, 128, 256, 512))
    if dice.aside.random() < 0.5:  # chunks of these leave something over
        width = dice.aside.choice((20, 33, 100, 300))
    extent, length = parts.size("M", block, 3), parts.size("N", width, 3)
    m, n = tree.Name("m", INDEX), tree.Name("n", INDEX)
    place: tuple[tree.Axis, ...] = (tree.Span(m, block), tree.Span(n, width))
    x, wide = parts.tensor("X", ("M", "N"), dtype), accumulator(dtype)
    loaded = tree.Cast(parts.load(x, *place), wide)
    op = dice.pick(("sum", "max", "min"))
    start = {"sum": 0, "max": -100, "min": 100}[op]
    total = parts.bind(tree.Full((block,), tree.Number(start), wide), parts.body, "total")
    fn = {"sum": "add", "max": "maximum", "min": "minimum"}[op]
    step = tree.Apply(fn, (total, tree.Reduce(op, loaded, 1)))
    parts.body.append(tree.For("n", tree.Number(0), length, tree.Number(width), (tree.Assign(("total",), (step,)),)))
    if dice.chance(0.5):
        out = parts.tensor("totals", ("M",), wide)
        parts.body.append(tree.Store(out.name, (tree.Span(m, block),), wide, total))
    value = tree.Apply(dice.pick(("sub", "add", "maximum")), (loaded, tree.Expand(total, (1,), 1)))
    if dice.rarely(0.35):
        value = _swept(parts, value)
    kept = x.name if dice.chance(0.3) else parts.tensor("out", ("M", "N"), dtype).name
    store: tree.Stmt = tree.Store(kept, place, dtype, tree.Cast(value, dtype))
    if dice.chance(0.3):  # some elements, and of a tensor that is loaded for them alone
        other = tree.Cast(parts.load(parts.tensor("Z", ("M", "N"), dtype), *place), wide)
        chosen = tree.Cast(tree.Apply("add", (value, other)), dtype)
        store = tree.If(tree.Apply("gt", (loaded, tree.Number(0))), (tree.Store(kept, place, dtype, chosen),), ())
    parts.body.append(tree.For("n", tree.Number(0), length, tree.Number(width), (store,)))
    return tree.Grid(("m",), (extent,), (block,), tuple(parts.body))


def whole_rows(parts: Parts) -> tree.Grid:
    """Compute rows of a fixed width, one or two a program, from what up to three reductions of them give."""
    dice = parts.dice
    dtype = dice.pick(("f32", "bf16", "f16", "i32", "u8", "f64"))
    block, width, wide = dice.pick((1, 1, 2)), dice.pick((33, 64, 77, 100, 131, 257, 300)), accumulator(dtype)
    extent, m = parts.size("M", block, 3), tree.Name("m", INDEX)
    place = (tree.At(m) if block == 1 else tree.Span(m, block), tree.Span(None, width))
    x, axis = parts.tensor("X", ("M", width), dtype), int(block > 1)
    value: tree.Expr = parts.bind(tree.Cast(parts.load(x, *place), wide), parts.body)
    for number in range(dice.between(0, 3)):
        op = dice.pick(("max", "min", "max", "min", "sum")) if number == 0 else dice.pick(("max", "min"))
        found: tree.Expr = parts.bind(tree.Reduce(op, value, axis), parts.body)
        if block > 1:
            found = tree.Expand(found, (1,), 1)
        value = tree.Apply(dice.pick(("sub", "maximum", "minimum")), (value, found))
    if dice.chance(0.4):
        weights = parts.load(parts.tensor("W", (width,), dtype), tree.Span(None, width))
        value = tree.Apply("add", (value, tree.Cast(weights, wide)))
    if dice.chance(0.3):
        dims, there = _row_of_another(parts, place, width)
        other = parts.load(parts.tensor("Z", dims, dtype), *there)
        value = tree.Apply("maximum", (value, tree.Cast(other, wide)))
    kept, there = x.name, place
    if not dice.chance(0.3):
        dims, there = _row_of_another(parts, place, width)
        kept = parts.tensor("out", dims, dtype).name
    parts.body.append(tree.Store(kept, there, dtype, tree.Cast(value, dtype)))
    return tree.Grid(("m",), (extent,), (block,), tuple(parts.body))


def _row_of_another(
    parts: Parts, place: tuple[tree.Axis, ...], width: int
) -> tuple[tuple[str | int, ...], tuple[tree.Axis, ...]]:
    """Return a tensor's dimensions and where as many elements as at a place are in it: mostly the same one."""
    rng, row = parts.dice.aside, place[0]
    if isinstance(row, tree.At):
        match rng.choice(("row", "row", "run", "part", "mirrored", "apart")):
            case "run":  # of one long row, which other programs have parts of
                parts.dims["L"] = parts.dims["M"] * width
                return ("L",), (tree.Span(tree.Apply("mul", (row.index, tree.Number(width))), width),)
            case "part":
                return ("M", width + 9), (row, tree.Span(tree.Number(rng.randint(0, 9)), width))
            case "mirrored":
                return ("M", width), (row, tree.Span(tree.Number(width - 1), width, -1))
            case "apart":  # some of them outside
                return ("M", width), (row, tree.Span(tree.Number(rng.randint(0, 2)), width, 2))
            case _:
                pass
    return ("M", width), place


def recurrence(parts: Parts) -> tree.Grid:
    """Let a state follow from the last ones and from a row, as filters and state spaces do; rows may be too few."""
    dice = parts.dice
    dtype = dice.pick(("f32", "f32", "bf16", "f64", "i32", "u8"))
    wide, block = accumulator(dtype), dice.pick((1, 4, 16, 32, 100))
    extent, n, t = parts.size("N", block, 3), tree.Name("n", INDEX), tree.Name("t", INDEX)
    for name in ("T", "U"):
        parts.dims[name] = 0 if dice.chance(dice.options.empty) else dice.between(1, 7)
    x = parts.tensor("X", ("T", "N"), dtype)
    place: tuple[tree.Axis, ...] = (tree.At(t), tree.Span(n, block))
    now, before = (parts.bind(tree.Full((block,), tree.Number(0), wide), parts.body, name) for name in ("now", "last"))
    loop: list[tree.Stmt] = []
    value = tree.Cast(parts.load(x, *place), wide)
    if dice.chance(0.6):
        other = parts.load(parts.tensor("Y", ("U", "N"), dtype), *place)
        value = tree.Apply(dice.pick(("add", "sub", "maximum")), (value, tree.Cast(other, wide)))
    scale = tree.Number(0.5 if is_float(wide) else 3)
    value = tree.Apply("add", (value, tree.Apply("mul", (now, scale))))
    if dice.chance(0.6):
        value = tree.Apply(dice.pick(("minimum", "maximum")), (value, tree.Apply("add", (before, value))))
    following = parts.bind(value, loop)
    if dice.chance(0.5):
        loop.append(tree.Assign(("now", "last"), (following, now)))
    else:
        loop += [tree.Assign(("last",), (now,)), tree.Assign(("now",), (following,))]
    kept = x.name if dice.chance(0.3) else parts.tensor("out", ("T", "N"), dtype).name
    loop.append(tree.Store(kept, place, dtype, tree.Cast(following, dtype)))
    step = tree.Number(1)
    parts.body.append(tree.For("t", tree.Number(0), tree.Name("T", INDEX), step, tuple(loop)))
    final = parts.tensor("states", ("N",), wide)
    both = tree.Apply("sub", (now, before))
    parts.body.append(tree.Store(final.name, (tree.Span(n, block),), wide, both))
    return tree.Grid(("n",), (extent,), (block,), tuple(parts.body))


def _swept(parts: Parts, value: tree.Expr) -> tree.Expr:
    """Scan rows from either end, or reduce them by hand, or add where an element stands."""
    rng, dtype = parts.dice.aside, value.type.dtype
    kind = rng.choice(("scan", "scan", "reduce", "place"))
    if kind == "scan":
        return tree.Scan(rng.choice(("sum", "max", "min")), value, 1, rng.random() < 0.5)
    if kind == "reduce":
        most = tree.Expand(tree.Reduce(rng.choice(("max", "min")), value, 1), (1,), 1)
        return tree.Apply("sub", (value, most))
    return tree.Apply("add", (value, tree.Cast(tree.Arange(0, value.type.shape[1], "i32"), dtype)))
