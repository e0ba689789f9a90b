"""Writes a program as the Python file that a user would have written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from tessera.tools.fuzz import assembly, tree
from tessera.tools.fuzz.combiners import COMBINERS
from tessera.tools.fuzz.functions import FUNCTIONS
from tessera.tools.fuzz.source_tuples import assigned, functions

INDENT: Final = "    "


def source(program: tree.Program) -> str:
    """Return the text of a module that defines `kernel`."""
    lines = ["import math", "", "import tessera as ts", ""]
    if program.seed % 2 and program.dims:
        names = list(program.dims)
        trailing = "," if len(names) == 1 else ""
        lines += [f'{", ".join(names)}{trailing} = (ts.dims("{" ".join(names)}"){trailing})', ""]
        if trailing:
            lines[-2] = f'{names[0]} = ts.dims("{names[0]}")'
    for name in sorted({node.combiner for node in tree.walk(program) if isinstance(node, tree.Combined)}):
        combiner = COMBINERS[name]
        lines += ["", "@ts.function", f"def {name}({combiner.params}):", *(INDENT + line for line in combiner.body), ""]
    for fn in sorted({node.of.fn for node in tree.walk(program) if isinstance(node, tree.Assembly)}):
        computed = f"return x {assembly.SYMBOLS[fn]} y"
        lines += ["", "@ts.function", f"def {assembly.helper_name(fn)}(x, y):", f"{INDENT}{computed}", ""]
    lines += functions(program)
    for helper in program.helpers:
        lines += [
            "",
            "@ts.function",
            f"def {helper.name}({', '.join(param.name for param in helper.params)}):",
        ]
        lines += [INDENT + line for line in block(helper.body)]
        lines += [f"{INDENT}return {text(helper.result)}", ""]
    lines += ["", _decorator(program), "def kernel("]
    lines += [f"{INDENT}{_parameter(param, program)}," for param in program.params]
    lines += ["):"]
    if any(isinstance(node, tree.Constexpr) and node.name.startswith("ctx.") for node in tree.walk(program)):
        lines.append(f"{INDENT}ctx = ts.tile.context()")
    lines += [f"{INDENT}ts.assume({text(condition)})" for condition in program.assumes]
    for grid in program.grids:
        lines += [INDENT + line for line in _grid(grid)]
    return "\n".join(lines) + "\n"


def _decorator(program: tree.Program) -> str:
    if not program.knobs:
        return "@ts.kernel"
    space = ", ".join(f"{name}=[{value!r}]" for name, value in program.knobs)
    return f"@ts.kernel.autotune(space=dict({space}))"


def dtype(name: str) -> str:
    """Return how a dtype is written."""
    return "ts.bool_" if name == "bool" else f"ts.{name}"


def _parameter(param: tree.Param, program: tree.Program) -> str:
    if isinstance(param, tree.Tensor):
        dims = [str(dim) if program.seed % 2 or isinstance(dim, int) else f'"{dim}"' for dim in param.dims]
        element = f'"{param.policy}"' if "@" in param.policy else dtype(param.policy or param.dtype)
        return f"{param.name}: ts.Tensor[{', '.join([*dims, element])}]"
    if isinstance(param, tree.ScalarParam):
        kind = dtype(param.dtype)
        if param.python:
            kind = "int" if param.dtype == "i64" else "float"
        return f"{param.name}: {kind}"
    return f"{param.name}: ts.constexpr = {number(param.value)}"


def _grid(grid: tree.Grid) -> Iterator[str]:
    if isinstance(grid, tree.Linear):
        yield f"{grid.vars[0]} = ts.tile.linear_id()"
        yield from block(grid.body)
        return
    pairs = ", ".join(f"({text(extent)}, {block})" for extent, block in zip(grid.extents, grid.blocks, strict=True))
    order = f", order={grid.order}" if grid.order else ""
    yield f"for {', '.join(grid.vars)} in ts.tile.grid({pairs}{order}):"
    for line in block(grid.body):
        yield INDENT + line


def number(value: bool | int | float) -> str:
    """Return a number as Python text that gives it back."""
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
    return repr(value) if value >= 0 and not repr(value).startswith("-") else f"({value!r})"


# Expressions


def text(expr: tree.Expr) -> str:
    """Return the text of an expression."""
    return _TEXTS[type(expr)](expr)


def _tuple(values: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def place(tensor: str, axes: tuple[tree.Axis, ...]) -> str:
    """Return the text of a subscript of a tensor."""
    return f"{tensor}[{', '.join(map(_axis, axes))}]"


def _axis(axis: tree.Axis) -> str:
    if isinstance(axis, tree.NewAxis):
        return "None"
    if isinstance(axis, tree.At | tree.Pick):
        return text(axis.index)
    if axis.start is None:
        return ":"
    by = "" if axis.step == 1 else f":{axis.step}"
    if type(axis.start) is tree.Number:
        end = int(axis.start.value) + axis.size * axis.step
        return f"{axis.start.value}:{end if end >= 0 else ''}{by}"
    start = text(axis.start)
    return f"{start}:{start} {'-' if axis.step < 0 else '+'} {axis.size * abs(axis.step)}{by}"


def _load(expr: tree.Load) -> str:
    where = place(expr.tensor, expr.axes)
    return where if expr.fill is None else f"ts.tile.load({where}, fill={text(expr.fill)})"


def _atomic(expr: tree.Atomic) -> str:
    args = [place(expr.tensor, expr.axes)]
    if expr.compare is not None:
        args.append(text(expr.compare))
    if expr.value is not None:
        args.append(text(expr.value))
    if expr.order:
        args.append(f'order="{expr.order}"')
    if expr.scope:
        args.append(f'scope="{expr.scope}"')
    return f"ts.tile.atomic_{expr.fn}({', '.join(args)})"


def _buffer(name: str, stage: tree.Expr | None) -> str:
    return name if stage is None else f"{name}[{text(stage)}]"


def _read_part(expr: tree.ReadPart) -> str:
    where = place(expr.buffer, expr.axes)
    return f"ts.tile.load({where})" if tree.is_stage(expr.axes) else where


def _read_shared(expr: tree.ReadShared) -> str:
    buffer = _buffer(expr.buffer, expr.stage)
    return f"{buffer}.T" if expr.transposed else f"ts.tile.load({buffer})"


def _arange(expr: tree.Arange) -> str:
    bounds = f"{expr.start}, {expr.stop}" if expr.start else str(expr.stop)
    return (
        f"ts.tile.arange({bounds})" if expr.dtype == "i32" else f"ts.tile.arange({bounds}, dtype={dtype(expr.dtype)})"
    )


def _full(expr: tree.Full) -> str:
    if isinstance(expr.value, tree.Number) and expr.value.value == 0 and not isinstance(expr.value.value, bool):
        return f"ts.tile.zeros({_tuple(expr.shape)}, {dtype(expr.dtype)})"
    return f"ts.tile.full({_tuple(expr.shape)}, {text(expr.value)}, {dtype(expr.dtype)})"


def _full_like(expr: tree.FullLike) -> str:
    return f"ts.tile.full_like({text(expr.like)}, {text(expr.value)})"


def _apply(expr: tree.Apply) -> str:
    forms = FUNCTIONS[expr.fn].forms
    args = [text(arg) for arg in expr.args]
    if forms:
        return forms[expr.form % len(forms)].format(*args)
    return f"ts.tile.{expr.fn}({', '.join(args)})"


def _assembly(expr: tree.Assembly) -> str:
    texts = assembly.text_for(expr.of.fn, expr.of.type.dtype)
    assert texts is not None, "functions without a text are not written so"
    given = [*map(text, expr.of.args), f"meaning={assembly.helper_name(expr.of.fn)}"]
    return f"ts.tile.inline_asm({', '.join([*given, *(f'{name}={value!r}' for name, value in texts.items())])})"


def _fenced(node: tree.Fenced) -> Iterator[str]:
    texts = ", ".join(f"{name}={text!r}" for name, text in assembly.FENCE.items())
    yield f'ts.tile.inline_asm({node.number}, {texts}, effects="io")'


def _known(expr: tree.Known) -> str:
    return FUNCTIONS[expr.fn].forms[0].format(text(expr.left), text(expr.right))


def _power(expr: tree.Power) -> str:
    return f"({text(expr.base)} ** {expr.exponent})"


def _where(expr: tree.Where) -> str:
    condition, a, b = text(expr.condition), text(expr.a), text(expr.b)
    if not expr.type.shape:
        return f"({a} if {condition} else {b})"
    return f"ts.tile.where({condition}, {a}, {b})"


def _cast(expr: tree.Cast) -> str:
    kind = f'"{expr.dtype} @saturate"' if expr.saturate else dtype(expr.dtype)
    return f"{text(expr.x)}.to({kind})" if expr.method else f"ts.tile.cast({text(expr.x)}, {kind})"


def _reshape(expr: tree.Reshape) -> str:
    return f"ts.tile.reshape({text(expr.x)}, {_tuple(expr.shape)})"


def _transpose(expr: tree.Transpose) -> str:
    rank = len(expr.perm)
    if expr.form and rank > 1 and expr.perm == (*range(rank - 2), rank - 1, rank - 2):
        return f"{text(expr.x)}.T"
    return f"ts.tile.transpose({text(expr.x)}, {_tuple(expr.perm)})"


def _expand(expr: tree.Expand) -> str:
    if expr.form:
        items = ["None" if axis in expr.axes else ":" for axis in range(len(expr.type.shape))]
        return f"{text(expr.x)}[{', '.join(items)}]"
    axes = str(expr.axes[0]) if len(expr.axes) == 1 else _tuple(expr.axes)
    return f"ts.tile.expand_dims({text(expr.x)}, {axes})"


def _broadcast(expr: tree.BroadcastTo) -> str:
    return f"ts.tile.broadcast_to({text(expr.x)}, {_tuple(expr.shape)})"


def _stack(expr: tree.Stack) -> str:
    parts = f"({', '.join(map(text, expr.parts))},)"
    if not expr.merged and len(expr.parts) == 2 and expr.axis == len(expr.type.shape) - 1:
        return f"ts.tile.join{parts}"
    return f"ts.tile.{'concatenate' if expr.merged else 'stack'}({parts}, axis={expr.axis})"


def _part(expr: tree.Part) -> str:
    items = map(_along, expr.starts, expr.sizes, expr.steps)
    return f"{text(expr.x)}[{', '.join(items)}]"


def _along(start: tree.Expr, size: int, step: int) -> str:
    """Return the index along one dimension of a tile."""
    if not size:
        return text(start)
    by = "" if step == 1 else f":{step}"
    if not isinstance(start, tree.Number):
        return f"{text(start)}:{text(start)} + {size * step}{by}"
    end = int(start.value) + (size - 1) * step + (1 if step > 0 else -1)
    return f"{text(start)}:{end if end >= 0 else ''}{by}"


def _piece(expr: tree.Piece) -> str:
    how = "unstack" if expr.alone else "split"
    count = "" if expr.alone else f", {expr.count}"
    return f"ts.tile.{how}({text(expr.x)}{count}, axis={expr.axis})[{expr.number}]"


def _flip(expr: tree.Flip) -> str:
    axes = "" if expr.axes is None else f"axis={expr.axes[0] if len(expr.axes) == 1 else _tuple(expr.axes)}"
    return f"{text(expr.x)}.flip({axes})" if expr.form else f"ts.tile.flip({text(expr.x)}{', ' * bool(axes)}{axes})"


def _roll(expr: tree.Roll) -> str:
    axis = "" if expr.axis is None else f", axis={expr.axis}"
    return f"ts.tile.roll({text(expr.x)}, {text(expr.shift)}{axis})"


def _take(expr: tree.Take) -> str:
    given = "" if expr.axis is None else f", axis={expr.axis}"
    given += "" if expr.fill is None else f", fill={text(expr.fill)}"
    return f"ts.tile.{'take_along_axis' if expr.along else 'take'}({text(expr.x)}, {text(expr.index)}{given})"


def _reduce(expr: tree.Reduce) -> str:
    axis = [] if expr.axis is None else [f"axis={expr.axis}"]
    given = ", ".join([*axis, *["keepdims=True"] * expr.keepdims])
    if expr.form:
        return f"{text(expr.x)}.{expr.op}({given})"
    return f"ts.tile.{expr.op}({text(expr.x)}{', ' * bool(given)}{given})"


def _randint(expr: tree.Randint) -> str:
    bounds = f"{number(expr.low)}, {number(expr.high)}, dtype={dtype(expr.dtype)}"
    return f"ts.tile.randint({text(expr.seed)}, {text(expr.offsets)}, {bounds})"


def _scan(expr: tree.Scan) -> str:
    reverse = ", reverse=True" if expr.reverse else ""
    if expr.op == "sum":
        return f"ts.tile.cumsum({text(expr.x)}, axis={expr.axis}{reverse})"
    return f'ts.tile.scan({text(expr.x)}, {expr.axis}, "{expr.op}"{reverse})'


def _exchange(expr: tree.Exchange) -> str:
    return f"ts.tile.exchange({text(expr.x)}, {expr.bits}, axis={expr.axis})"


def _sort(expr: tree.Sort) -> str:
    if expr.k:
        largest = "" if expr.descending else ", largest=False"
        return f"ts.tile.topk({text(expr.x)}, {expr.k}, {expr.axis}{largest})[{int(expr.places)}]"
    descending = ", descending=True" if expr.descending else ""
    return f"ts.tile.{'argsort' if expr.places else 'sort'}({text(expr.x)}, {expr.axis}{descending})"


def _combined(expr: tree.Combined) -> str:
    tiles = "".join(f"{text(x)}, " for x in expr.xs).rstrip()
    if expr.running:
        reverse = ", reverse=True" if expr.reverse else ""
        return f"ts.tile.associative_scan(({tiles}), {expr.axis}, {expr.combiner}{reverse})[{expr.part}]"
    return f"ts.tile.reduce(({tiles}), {expr.axis}, {expr.combiner})[{expr.part}]"


def _multiplied(expr: tree.Expr) -> str:
    """Return the text of an operand of a product, which may be a shared buffer itself."""
    if isinstance(expr, tree.ReadShared) and not expr.transposed:
        return _buffer(expr.buffer, expr.stage)
    return text(expr)


def _mma(expr: tree.Mma) -> str:
    args = [_multiplied(expr.a), _multiplied(expr.b)]
    if expr.acc is not None:
        args.append(text(expr.acc))
    if expr.accumulator:
        args.append(f"accumulator={dtype(expr.accumulator)}")
    if expr.compute:
        args.append(f"compute={dtype(expr.compute)}")
    return f"ts.tile.mma({', '.join(args)})"


def _causal_mask(expr: tree.CausalMask) -> str:
    return f"ts.tile.causal_mask({text(expr.scores)}, {text(expr.q0)}, {text(expr.k0)}, {text(expr.value)})"


def _dropout(expr: tree.Dropout) -> str:
    return f"ts.tile.dropout({text(expr.x)}, {expr.p!r}, {text(expr.seed)}, {text(expr.offsets)})"


_TEXTS: Final[dict[type[tree.Expr], Callable[[Any], str]]] = {
    tree.Number: lambda expr: number(expr.value),
    tree.Constexpr: lambda expr: expr.name,
    tree.Name: lambda expr: expr.name,
    tree.Load: _load,
    tree.Atomic: _atomic,
    tree.ReadShared: _read_shared,
    tree.ReadPart: _read_part,
    tree.Arange: _arange,
    tree.Full: _full,
    tree.FullLike: _full_like,
    tree.Apply: _apply,
    tree.Assembly: _assembly,
    tree.Known: _known,
    tree.Power: _power,
    tree.Where: _where,
    tree.Cast: _cast,
    tree.Bitcast: lambda expr: f"ts.tile.bitcast({text(expr.x)}, {dtype(expr.dtype)})",
    tree.Reshape: _reshape,
    tree.Transpose: _transpose,
    tree.Expand: _expand,
    tree.BroadcastTo: _broadcast,
    tree.Stack: _stack,
    tree.Part: _part,
    tree.Piece: _piece,
    tree.Flip: _flip,
    tree.Roll: _roll,
    tree.Take: _take,
    tree.Reduce: _reduce,
    tree.Scan: _scan,
    tree.Exchange: _exchange,
    tree.Sort: _sort,
    tree.Combined: _combined,
    tree.Mma: _mma,
    tree.CausalMask: _causal_mask,
    tree.Philox: lambda expr: f"ts.tile.philox({text(expr.seed)}, {text(expr.offsets)})[{expr.word}]",
    tree.Rand: lambda expr: f"ts.tile.rand({text(expr.seed)}, {text(expr.offsets)})",
    tree.Randn: lambda expr: f"ts.tile.randn({text(expr.seed)}, {text(expr.offsets)})",
    tree.Randint: _randint,
    tree.Dropout: _dropout,
    tree.Call: lambda expr: f"{expr.function}({', '.join(map(text, expr.args))})",
}


# Statements


def block(statements: tree.Block) -> Iterator[str]:
    """Yield the lines of statements; `pass` when there are none."""
    empty = True
    for statement in statements:
        empty = False
        yield from _LINES[type(statement)](statement)
    if empty:
        yield "pass"


def _inner(statements: tree.Block) -> Iterator[str]:
    for line in block(statements):
        yield INDENT + line


def _assign(node: tree.Assign) -> Iterator[str]:
    yield assigned(zip(node.names, map(_bound, node.values), strict=True))


def _bound(value: tree.Expr) -> str:
    """Return what a name is bound to: what a transposed buffer holds; a view of it is read where it is used."""
    return f"ts.tile.load({text(value)})" if _is_view(value) else text(value)


def _is_view(value: tree.Expr) -> bool:
    match value:
        case tree.ReadShared():
            return value.transposed
        case tree.Transpose():
            return _is_view(value.x)
        case _:
            return False


def _augment(node: tree.Augment) -> Iterator[str]:
    yield f"{node.name.name} {FUNCTIONS[node.fn].augmented}= {text(node.value)}"


def _store(node: tree.Store) -> Iterator[str]:
    where = place(node.tensor, node.axes)
    if node.fn:
        yield f"{where} {FUNCTIONS[node.fn].augmented}= {text(node.value)}"
    elif node.form:
        yield f"ts.tile.store({where}, {text(node.value)})"
    else:
        yield f"{where} = {text(node.value)}"


def _otherwise(block: tree.Block) -> Iterator[str]:
    if block:
        yield "else:"
        yield from _inner(block)


def _for(node: tree.For) -> Iterator[str]:
    bounds = [text(node.lower), text(node.upper), text(node.step)]
    if bounds[2] == "1":
        bounds = bounds[1:2] if bounds[0] == "0" else bounds[:2]
    yield f"for {node.var} in ts.tile.{'static_range' if node.static else 'range'}({', '.join(bounds)}):"
    yield from _inner(node.body)
    yield from _otherwise(node.orelse)


def _while(node: tree.While) -> Iterator[str]:
    yield f"while {text(node.condition)}:"
    yield from _inner(node.body)
    yield from _otherwise(node.orelse)


def _if(node: tree.If) -> Iterator[str]:
    yield f"if {text(node.condition)}:"
    yield from _inner(node.then)
    yield from _otherwise(node.orelse)


def _alloc(node: tree.AllocShared) -> Iterator[str]:
    swizzle = "" if node.swizzle == "none" else f', swizzle="{node.swizzle}"'
    yield f"{node.name} = ts.tile.alloc_shared({_tuple(node.shape)}, {dtype(node.dtype)}{swizzle})"


def _store_shared(node: tree.StoreShared) -> Iterator[str]:
    if node.stage is None:
        yield f"{node.buffer}[...] = {text(node.value)}"
    else:
        yield f"ts.tile.store({_buffer(node.buffer, node.stage)}, {text(node.value)})"


def _store_part(node: tree.StorePart) -> Iterator[str]:
    sign = f"{FUNCTIONS[node.fn].augmented}=" if node.fn else "="
    yield f"{place(node.buffer, node.axes)} {sign} {text(node.value)}"


def _update_shared(node: tree.UpdateShared) -> Iterator[str]:
    yield f"ts.tile.atomic_{node.fn}({node.buffer}[{', '.join(map(text, node.indices))}], {text(node.value)})"


def _copy(node: tree.CopyAsync) -> Iterator[str]:
    yield f"ts.tile.cp_async({_buffer(node.buffer, node.stage)}, {place(node.tensor, node.axes)})"


def _fence(node: tree.Fence) -> Iterator[str]:
    yield f'ts.tile.fence("{node.order}", scope="{node.scope}")'


def _lines(line: str) -> Callable[[Any], Iterator[str]]:
    return lambda node: iter([line])


_LINES: Final[dict[type[tree.Stmt], Callable[[Any], Iterator[str]]]] = {
    tree.Assign: _assign,
    tree.Augment: _augment,
    tree.Store: _store,
    tree.Evaluate: lambda node: iter([text(node.value)]),
    tree.For: _for,
    tree.While: _while,
    tree.Break: _lines("break"),
    tree.Continue: _lines("continue"),
    tree.Return: lambda node: iter(["return" if node.value is None else f"return {text(node.value)}"]),
    tree.If: _if,
    tree.AllocShared: _alloc,
    tree.StoreShared: _store_shared,
    tree.StorePart: _store_part,
    tree.UpdateShared: _update_shared,
    tree.CopyAsync: _copy,
    tree.Commit: _lines("ts.tile.commit_group()"),
    tree.Wait: lambda node: iter([f"ts.tile.wait_group({node.pending})"]),
    tree.Barrier: _lines("ts.tile.barrier()"),
    tree.Fence: _fence,
    tree.Fenced: _fenced,
    tree.Print: lambda node: iter([f"print({', '.join([repr(node.label), *map(text, node.values)])})"]),
    tree.Check: lambda node: iter([f"assert {text(node.condition)}, {node.message!r}"]),
}
