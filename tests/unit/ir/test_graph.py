"""Graph IR: sizes, the textual form of every op, and what its verifiers refuse."""

import math
import struct

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import TypeMismatchError
from tessera.ir.graph import graph_dialect
from tessera.ir.graph.compact import block_of, compact_text
from tessera.ir.graph.points import FullOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.types import ONE, ArrayType, dim_of, dims_of, product
from tessera.ir.graph.writer import GraphWriter
from tessera.ir.text import parse_module, text_of
from tessera.numerics import dtypes

M, N = dim_of("M"), dim_of("N")


def writer() -> GraphWriter:
    types = [ArrayType.of([M, N], dtypes.f32), ArrayType.of([N], dtypes.bf16), ArrayType.of([M, ONE], dtypes.i32)]
    return GraphWriter("g", types, {"M": 6, "N": 8})


def test_sizes_that_are_equal_are_written_alike():
    assert dim_of("B*S") == dim_of("S*B")
    assert dim_of("2*S + B") == dim_of("B + S*2")
    assert product([M, N, M]) == dim_of("M*N*M")
    assert ArrayType.of([N * M], dtypes.f32) == ArrayType.of([M * N], dtypes.f32)


def every_op(w: GraphWriter):
    """Write each op, and return results."""
    x, y, z = w.arguments
    found = [
        w.apply("add", x, y),
        w.apply("select", w.apply("gt", x, 0.5), x, 1.0),
        w.cast(x, dtypes.f16),
        w.size(M * 2, dtypes.f32),
        w.iota([M, N], 1, dtypes.i64),
        w.transpose(x, [1, 0]),
        w.reshape(x, [M * N]),
        w.slice(x, [ONE, dim_of("N//2")], [2, 1], [dim_of("M//2"), ONE]),
        w.place(y, [N * 2], [N], [1]),
        w.concat([x, x], 0),
        w.take(x, [z, 1], [M, N]),
        w.add_rows(x, w.reshape(z, [M]), N),
        w.stop(x),
        w.alias(x),
        *w.own("rule", [x], [y]),
        w.reduce("max", x, [0], True),
        w.contract(x, w.transpose(x, [1, 0])),
        *w.call("f", [x, z], [ArrayType.of([M], dtypes.f32)]),
    ]
    w.update(x, w.apply("neg", x))
    return found


def test_every_op_is_read_back():
    w = writer()
    text = text_of(w.finish(every_op(w)))
    module = parse_module(text)
    assert text_of(module) == text
    used = {type(op).name for op in module.walk()}
    left = {op.name for op in graph_dialect().operations} - used
    assert left == {f"tessera_graph.{name}" for name in ("group", "parts", "product", "stored", "yield")}, (
        "passes write these"
    )


def again(block):
    """Return the text of a block's ops, read from their compact text."""
    graph = GraphOp("g", [])
    graph.body.detach_block(0)
    graph.body.add_block(block_of(compact_text(block)))
    return text_of(ModuleOp([graph]))


def test_every_op_is_read_back_from_its_compact_text():
    w = writer()
    module = w.finish(every_op(w))
    assert again(next(iter(module.ops)).body.block) == text_of(module)


def test_numbers_that_compare_equal_stay_apart_in_compact_texts():
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 1 / 3, 1e-45, 3.4028235e38]
    w = writer()
    module = w.finish([w.full(value, dtype) for dtype in (dtypes.f32, dtypes.f64) for value in values])
    block = block_of(compact_text(next(iter(module.ops)).body.block))
    found = [struct.pack("<d", op.number) for op in block.ops if isinstance(op, FullOp)]
    assert found[len(values) :] == [struct.pack("<d", value) for value in values]
    assert found[: len(values)] == [struct.pack("<d", np.float32(value)) for value in values]


def test_shapes_follow_numpy():
    w = writer()
    x, y, z = w.arguments
    assert dims_of(w.apply("mul", x, z)) == (M, N)
    assert dims_of(w.apply("mul", y, z)) == (M, N)
    with pytest.raises(TypeMismatchError, match="do not broadcast"):
        w.apply("add", w.transpose(x, [1, 0]), x)


def test_sizes_equal_at_this_call_are_noted():
    types = [ArrayType.of([M], dtypes.f32), ArrayType.of([N * 2], dtypes.f32)]
    w = GraphWriter("g", types, {"M": 6, "N": 3})
    assert dims_of(w.apply("add", *w.arguments)) == (M,)
    assert list(w.equal) == [(N * 2, M)]
    assert isinstance(w.finish([]), ModuleOp)


def test_sizes_of_products_that_meet_are_noted():
    types = [ArrayType.of([M, N, M], dtypes.f32), ArrayType.of([N * 2, N * 2, N], dtypes.f32)]
    w = GraphWriter("g", types, {"M": 6, "N": 3})
    found = w.contract(*w.arguments)
    assert dims_of(found) == (M, N, N)
    assert list(w.equal) == [(M, N * 2)]
    w.finish([found]).verify()
