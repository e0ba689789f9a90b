"""Draws graphs as one HTML page: boxes in layers, each below what it reads, as SVG without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tessera.data import dataclass

_CHARACTER, _LINE, _MARGIN = 7, 16, 8
_APART_X, _APART_Y = 24, 36
_LONGEST = 64
"""Characters of a line that are shown."""

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #1a2430; background: #fff }
pre { background: #f4f6f8; padding: 1em; overflow: auto }
.drawing { overflow: auto; border: 1px solid #d5dbe1; margin-bottom: 2em }
text { font: 12px ui-monospace, monospace } rect { fill: #f4f6f8; stroke: #8a97a5 }
rect.kernel { fill: #dcebfb; stroke: #2f6fb3 } path { fill: none; stroke: #8a97a5 }
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One box.

    Args:
        lines: its text.
        kind: `kernel` or `op`.
        reads: numbers of the boxes that it reads, which come before it.
    """

    lines: tuple[str, ...]
    kind: str
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph as it is drawn.

    Args:
        nodes: its boxes, each after those that it reads.
    """

    nodes: tuple[Node, ...]


def page(title: str, text: str, drawings: Sequence[tuple[str, Drawing]]) -> str:
    """Return a page with a text and drawings under their titles."""
    parts = [f"<h2>{escape(name)}</h2>\n<div class='drawing'>{svg(drawing)}</div>" for name, drawing in drawings]
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{escape(title)}</h1>\n<pre>{escape(text)}</pre>\n" + "\n".join(parts)
    return f"<!DOCTYPE html>\n<html lang='en'><head>{head}</head>\n<body>{body}</body></html>\n"


def svg(drawing: Drawing) -> str:
    """Return a drawing as SVG."""
    layers = _layers(drawing.nodes)
    sizes = [_size(node) for node in drawing.nodes]
    places: dict[int, tuple[int, int]] = {}
    y = width = _MARGIN
    for layer in layers:
        x = _MARGIN
        for number in layer:
            places[number] = x, y
            x += sizes[number][0] + _APART_X
        width = max(width, x)
        y += max(sizes[number][1] for number in layer) + _APART_Y
    edges = [
        _edge(places[at], sizes[at], places[to], sizes[to]) for to, n in enumerate(drawing.nodes) for at in n.reads
    ]
    boxes = [_box(node, places[number], sizes[number]) for number, node in enumerate(drawing.nodes)]
    return f"<svg width='{width}' height='{y}' xmlns='http://www.w3.org/2000/svg'>{''.join(edges + boxes)}</svg>"


def _layers(nodes: Sequence[Node]) -> list[list[int]]:
    """Return boxes by the length of the longest way to them, each layer in the order of what it reads."""
    depth: list[int] = []
    layers: list[list[int]] = []
    place: dict[int, float] = {}
    for node in nodes:
        depth.append(1 + max((depth[at] for at in node.reads), default=-1))
        layers += [[]] if depth[-1] == len(layers) else []
        layers[depth[-1]].append(len(depth) - 1)
    for layer in layers:
        wanted = {n: sum(place[at] for at in nodes[n].reads) / max(len(nodes[n].reads), 1) for n in layer}
        layer.sort(key=wanted.__getitem__)
        place |= {number: at for at, number in enumerate(layer)}
    return layers


def _size(node: Node) -> tuple[int, int]:
    longest = max((min(len(line), _LONGEST) for line in node.lines), default=0)
    return longest * _CHARACTER + 2 * _MARGIN, len(node.lines) * _LINE + 2 * _MARGIN


def _box(node: Node, place: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (width, height) = place, size
    shown = [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in node.lines]
    rows = (f"<text x='{x + _MARGIN}' y='{y + _LINE * n + 18}'>{escape(line)}</text>" for n, line in enumerate(shown))
    title = f"<title>{escape(chr(10).join(node.lines))}</title>"
    kind = f" class='{escape(node.kind)}'"
    return f"<g>{title}<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='4'{kind}/>{''.join(rows)}</g>"


def _edge(one: tuple[int, int], its: tuple[int, int], other: tuple[int, int], others: tuple[int, int]) -> str:
    x, y = one[0] + its[0] // 2, one[1] + its[1]
    to_x, to_y = other[0] + others[0] // 2, other[1]
    middle = (y + to_y) // 2
    return f"<path d='M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y}'/>"
