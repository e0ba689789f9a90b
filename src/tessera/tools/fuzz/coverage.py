"""What a program reaches: which operation, on which dtype, in which context."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.types import Type


def reached(program: tree.Program) -> tuple[str, ...]:
    """Return each `operation dtype context` of a program once."""
    found: set[str] = set()
    for helper in program.helpers:
        for statement in helper.body:
            found.update(_of(statement, ("function",)))
        found.update(_of(helper.result, ("function",)))
    for grid in program.grids:
        stored = {node.tensor for node in tree.walk(grid) if isinstance(node, tree.Store | tree.Atomic)}
        context = "top"
        for statement in grid.body:
            found.update(_of(statement, (context,), stored))
    return tuple(sorted(found))


def _of(node: tree.Node, contexts: tuple[str, ...], stored: set[str] | None = None) -> Iterator[str]:
    named = _named(node)
    if named is not None:
        for context in contexts:
            yield f"{named} {context}"
        if isinstance(node, tree.Load) and stored and node.tensor in stored:
            yield f"{named} in-place"
    inner = contexts
    if isinstance(node, tree.For):
        inner = _with(contexts, "unrolled" if node.static else "loop", _carries(node))
    elif isinstance(node, tree.While):
        inner = _with(contexts, "while", _carries(node))
    elif isinstance(node, tree.If):
        inner = _with(contexts, "predicated" if node.predicates else "branch")
    for child in tree.children(node):
        yield from _of(child, inner, stored)


def _with(contexts: tuple[str, ...], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*(c for c in contexts if c != "top"), *(c for c in more if c))))


def _carries(loop: tree.For | tree.While) -> str:
    """Say whether a loop carries several names."""
    bound = [name for node in tree.walk(loop) if isinstance(node, tree.Assign) for name in node.names]
    return "carried" if len(set(bound)) > 1 else ""


def _named(node: tree.Node) -> str | None:
    """Return an operation and the dtype that it works on."""
    if isinstance(node, tree.Apply):
        return f"{node.fn} {node.args[0].type.dtype}"
    if isinstance(node, tree.Cast):
        return f"cast-to-{node.dtype} {node.x.type.dtype}"
    if isinstance(node, tree.Reduce | tree.Scan):
        return f"{type(node).__name__.lower()}-{node.op} {node.x.type.dtype}"
    if isinstance(node, tree.Sort):
        return f"{'topk' if node.k else 'sort'}{'-places' if node.places else ''} {node.x.type.dtype}"
    if isinstance(node, tree.Combined):
        return f"{'scan' if node.running else 'reduce'}-by-{node.combiner} {node.type.dtype}"
    if isinstance(node, tree.Mma):
        return f"mma-{node.b.type.dtype}-{node.type.dtype} {node.a.type.dtype}"
    if isinstance(node, tree.Atomic):
        return f"atomic-{node.fn} {node.dtype}"
    if isinstance(node, tree.Load | tree.Store):
        kind = "gather" if isinstance(node, tree.Load) else "scatter"
        picks = any(isinstance(axis, tree.Pick) for axis in node.axes)
        return f"{kind if picks else type(node).__name__.lower()} {node.dtype}"
    if isinstance(node, tree.Jump):
        return f"{type(node).__name__.lower()} jump"
    if isinstance(node, tree.Number | tree.Name) or not isinstance(node, tree.Expr):
        return None
    return f"{type(node).__name__.lower()} {_type(node).dtype}"


def _type(node: tree.Expr) -> Type:
    return node.type
