"""`explain()` and `compile()` of traced functions: bytes are NumPy's, and reasons those of graphs made to have them."""

from html.parser import HTMLParser

import numpy as np
import pytest

import tessera as ts
from tessera import ops
from tessera.graph.drawing import Drawing, Node, page
from tessera.graph.explained import shown_bytes
from tessera.ir.text import parse_module
from tessera.schedule.fuse import apart

RNG = np.random.default_rng(3)


def layer(x, w):
    return np.tanh(x @ w + 1.0)


def test_parts_have_the_bytes_of_their_arrays():
    for rows, dtype in ((6, np.float32), (33, np.float32), (5, np.float64)):
        x, w = RNG.standard_normal((rows, 40)).astype(dtype), RNG.standard_normal((40, 7)).astype(dtype)
        traced = ts.jit(layer)
        y = traced(x, w)
        found = traced.explain()
        product, kernel = found.parts
        assert (product.kind, product.read, product.written) == ("product", x.nbytes + w.nbytes, y.nbytes)
        assert (kernel.kind, kernel.read, kernel.written) == ("kernel", y.nbytes, y.nbytes)
        assert kernel.ops == ("add", "tanh")
        assert found.kernels == (kernel,)
        assert (found.read, found.written) == (x.nbytes + w.nbytes + y.nbytes, 2 * y.nbytes)
        assert 0 < kernel.seconds < found.seconds
        assert kernel.kernel.kernel == kernel.name == "layer_0"
        assert kernel.kernel.backend == "cpu"
        assert not found.left


def test_it_tells_of_the_last_call():
    traced = ts.jit(lambda x: np.exp(x) * 2.0)
    for size in (50, 9, 50):
        traced(np.ones(size))
        assert (traced.explain().read, traced.explain().sizes) == (size * 8, {"s0": size})


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: np.exp(x).sum(axis=0) * 2.0, "reduced by the library"),
        (lambda x: np.exp(x @ x), "predicted to take as long"),
        (lambda x: np.exp(ops.cumsum(x, 1)), "code of its own"),
        (lambda x: (x / x.sum(-1, keepdims=True)).T / x.T.sum(-1, keepdims=True), apart.OTHER_ROWS),
    ],
)
def test_why_kernels_are_apart(function, why):
    traced = ts.jit(function)
    traced(RNG.standard_normal((9, 9)))
    assert any(why in reason for part in traced.explain().kernels for reason in part.apart), str(traced.explain())


def test_a_kernel_has_so_many_ops_at_most():
    def function(x):
        for _ in range(apart.MOST_OPS):
            x = x * 1.5
        return x * 1.5

    traced = ts.jit(function)
    with pytest.raises(ts.CallError, match="has not run"):
        traced.explain()
    traced(np.ones(5))
    assert traced.explain().kernels[-1].apart == (f"function_0: {apart.TOO_MANY_OPS}",)


def test_text():
    traced = ts.jit(layer)
    traced(np.ones((4, 5)), np.ones((5, 3)))
    lines = str(traced.explain()).split("\n")
    assert lines[0] == "graph layer at s0=4, s1=5, s2=3"
    assert lines[2].split() == ["name", "kind", "reads", "writes", "predicted", "ops"]
    assert lines[3].split()[:6] == ["matmul", "product", "280", "B", "96", "B"]
    assert lines[-1].startswith("  in all: 1 × product, 1 × kernel; 376 B read, 192 B written")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (25_500_000, "25.5 MB")])
def test_bytes_are_shown_in_a_unit_that_suits_them(count, text):
    assert shown_bytes(count) == text


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_needs_nothing_else(tmp_path):
    traced = ts.jit(layer)
    traced(np.ones((4, 5)), np.ones((5, 3)))
    found = traced.explain(html=tmp_path / "layer.html")
    text = (tmp_path / "layer.html").read_text(encoding="utf-8")
    assert text == found.html()
    tags = Tags(text)
    assert not tags.open
    assert not {tag for tag, _ in tags.seen} & {"script", "link", "img", "iframe"}
    assert not any(name in ("src", "href") for _, attrs in tags.seen for name in attrs)
    assert [tag for tag, _ in tags.seen].count("svg") == 2
    kernels = [attrs for tag, attrs in tags.seen if tag == "rect" and attrs.get("class") == "kernel"]
    assert len(kernels) == 1


def test_names_are_escaped_and_boxes_stand_below_what_they_read():
    bad = "<script>alert('x')</script>&\"" + "y" * 100
    nodes = (Node((bad,), "op", ()), Node(("b",), "op", (0,)), Node(("c",), "op", (0, 1)), Node((), "op", ()))
    tags = Tags(page(bad, bad, [(bad, Drawing(nodes))]))
    assert "script" not in {tag for tag, _ in tags.seen}
    assert tags.texts.count(bad) == 5  # title, heading, text, drawing's heading, and what a box says when pointed at
    boxes = [attrs for tag, attrs in tags.seen if tag == "rect"]
    heights = [int(box["y"]) for box in boxes]
    assert heights[0] < heights[1] < heights[2]
    assert heights[3] == heights[0]
    assert Tags(page("empty", "", [("", Drawing(()))])).open == []


def test_methods_explain_themselves():
    class Scale:
        def __init__(self):
            self.by = np.full(3, 2.0)

        @ts.jit
        def of(self, x):
            return x * self.by

    scale = Scale()
    scale.of(np.ones((2, 3)))
    assert scale.of.explain().read == (6 + 3) * 8
    found = scale.of.compile(np.ones((2, 3)), target="x86-64-v4", dump=["groups", "tirh"])
    assert [*found.dumps["tirh"]] == [*found.kernels] == ["of_0"]


def test_dumps():
    traced = ts.jit(layer)
    x, w = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)
    found = traced.compile(x, w=w, target="sm_90a", dump=["graph", "groups", "tirh", "tirt", "ptx"])
    assert (found.name, found.target) == ("layer", "sm_90a")
    assert [*found.dumps] == ["graph", "groups", "tirh", "tirt", "ptx"]
    assert "group" not in found.dumps["graph"]
    assert found.dumps["groups"].count("tessera_graph.group") == len(found.kernels) == 1
    for text in (found.dumps["graph"], found.dumps["groups"], found.dumps["tirh"]["layer_0"]):
        parse_module(text)
    assert ".entry" in found.dumps["ptx"]["layer_0"]
    assert found.kernels["layer_0"].target == "sm_90a"
    assert not ts.jit(layer).compile(x, w).dumps


@pytest.mark.parametrize(
    ("names", "code", "help"),
    [
        (["grops"], "unknown-dump", "did you mean 'groups'"),
        (["tir-h"], "unknown-dump", "did you mean 'tirh'"),
        (["zzz"], "unknown-dump", "one of graph, groups"),
        ("graph", "unknown-dump", "a list of graph"),
        (["ptx"], "no-such-level", "asm"),
    ],
)
def test_dumps_that_are_not_there(names, code, help):
    with pytest.raises(ts.CallError) as caught:
        ts.jit(lambda x: x + 1.0).compile(np.ones(3), target="x86-64-v4", dump=names)
    assert caught.value.code == code
    assert help in caught.value.help


def test_dump_folders_have_the_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_DUMP_DIR", str(tmp_path))
    ts.jit(lambda x: np.exp(x) + 1.0)(np.ones(7))
    assert {"00-graph-trace.mlir", "01-graph-groups.mlir"} <= {path.name for path in tmp_path.iterdir()}
    assert "tessera_graph.group" in (tmp_path / "01-graph-groups.mlir").read_text()
