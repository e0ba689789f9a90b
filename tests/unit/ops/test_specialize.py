"""`op.specialize`: schedules of a function's products by what the device is."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.unit.ops.support import BOUND, error, random

A, B = random(70, 50), random(50, 90, seed=1)


def block():
    """The tile of the last product."""
    plan = op.linalg.gemm.explain()["plan"]
    return plan["block_m"], plan["block_n"], plan["block_k"]


def product(**options):
    return op.linalg.gemm(A, B, **options)


@pytest.mark.parametrize("call", [lambda: op.matmul(A, B), lambda: op.linalg.linear(A, B.T, A[:, 0].repeat(2)[:90])])
def test_products_take_tiles_where_the_device_fits(call):
    wanted = op.specialize(when={"backend": "cpu"}, use={"tile_sizes": [32, 48, 16]})(call)
    other = op.specialize(when={"backend": "rocm"}, use={"tile_sizes": [32, 48, 16]})(call)
    plain = call()
    usual = block()
    assert error(wanted(), plain) < BOUND["f32"]
    assert block() == (32, 48, 16)
    assert np.array_equal(other(), plain)
    assert block() == usual
    call()
    assert block() == usual


def test_calls_and_inner_functions_come_first():
    inner = op.specialize(when={}, use={"block": (16, 32, 16)})(product)
    outer = op.specialize(when={}, use={"tile_sizes": (32, 32, 32)})

    outer(inner)()
    assert block() == (16, 32, 16)
    outer(product)(block=(48, 32, 16))
    assert block() == (48, 32, 16)
    with pytest.raises(ZeroDivisionError):
        outer(lambda: 1 // 0)()
    product()
    assert block() != (32, 32, 32)


def test_lists_and_dictionaries_of_capabilities_are_parts():
    facts = ts.runtime.capabilities()
    feature = facts["features"][0]
    for when, fits in (
        ({"features": [feature]}, True),
        ({"features": [feature, "antigravity"]}, False),
        ({"tensorcore": {"bf16": facts["tensorcore"]["bf16"]}}, True),
        ({"tensorcore": {"bf16": not facts["tensorcore"]["bf16"]}}, False),
        ({"warp_size": -1}, False),
    ):
        op.specialize(when=when, use={"block": (16, 64, 16)})(product)()
        assert (block() == (16, 64, 16)) == fits, when


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("unknown-keyword", {"tile_size": [1, 2, 3]}),
        ("unknown-keyword", {"trans_a": True}),
        ("bad-argument", {"stages": 0}),
    ],
)
def test_mistakes(code, use):
    with pytest.raises(ts.errors.CallError) as caught:
        op.specialize(when={"backend": "cpu"}, use=use)
    assert caught.value.code == code
    assert "test_specialize.py" in str(caught.value)
    with pytest.raises(ts.errors.CallError, match="bad-argument"):
        op.specialize(when="cpu", use={})


def test_capabilities_that_no_device_has():
    with pytest.raises(ts.errors.CallError, match="did you mean backend") as caught:
        op.specialize(when={"backnd": "cpu"}, use={})
    assert caught.value.code == "unknown-keyword"


async def _awaited():
    """Runs in pieces."""


def _yielding():
    yield 1


@pytest.mark.parametrize("function", [_awaited, _yielding])
def test_functions_that_run_in_pieces(function):
    with pytest.raises(ts.errors.CallError, match="runs in pieces"):
        op.specialize(when={}, use={})(function)
