"""From arguments to facts."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tessera as ts
from tessera.driver.binding import (
    alignment,
    assumed_facts,
    bind_arguments,
    canonical_strides,
    dim_texts,
    tensor_facts,
    text_sizes,
)
from tessera.errors import CallError
from tessera.frontend.signature import Signature
from tessera.runtime.device import Device
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView


def sample(
    x: ts.Tensor["M", "B*H", ts.f32],
    y: ts.Tensor["M", 128, ts.bf16],
    alpha: ts.f32 = 1.0,
    BM: ts.constexpr = 4,
):
    pass


SIGNATURE = Signature.of(sample)


def facts_of(array, pointer=0):
    view = view_of(array)[1]
    return tensor_facts("x", pointer, view, canonical_strides(view))


def test_dims_are_counted_in_a_stable_order():
    assert dim_texts(SIGNATURE) == ("M", "B", "H", "B*H")
    assert text_sizes(SIGNATURE, {"M": 3, "B": 2}) == {"M": 3, "B": 2, "H": None, "B*H": None}
    assert text_sizes(SIGNATURE, {"B": 2, "H": 5})["B*H"] == 10


def test_facts_of_a_contiguous_array():
    facts = facts_of(np.zeros((5, 32), np.float32))
    assert (facts.strides, facts.stride_div, facts.dim_div, facts.align) == ((-1, 1), (16, 1), (1, 16), 16)


def test_facts_of_a_transposed_and_a_broadcast_array():
    assert facts_of(np.zeros((5, 32), np.float32).T).strides == (1, -1)
    assert facts_of(np.broadcast_to(np.zeros(32, np.float32), (5, 32))).strides == (0, 1)


@pytest.mark.parametrize(
    ("shape", "stride"), [((64, 32), -32), ((2**31, 32), 32), ((2, 2**31 - 2**15), 2**31), ((2, 32), 2**38)]
)
def test_nothing_is_known_on_a_gpu_of_strides_that_its_copy_engine_cannot_follow(shape, stride):
    facts = {}
    for kind in ("cpu", "cuda"):
        view = ArrayView(shape, (stride, 1), ts.f32, Device(kind), False)
        facts[kind] = tensor_facts("x", 0, view, view.strides)
    assert [facts[kind].stride_div for kind in facts] == [(16, 1), (1, 1)]
    assert [facts[kind].strides for kind in facts] == [(-1, 1)] * 2


def test_order_of_a_permuted_array():
    x = np.zeros((3, 4, 5, 6), np.float32)
    orders = [(1, 2, 0, 3), (3, 2, 1, 0), (0, 1, 2, 3), (0, 1, 3, 2)]
    assert [facts_of(x.transpose(order)).order for order in orders] == [(2, 0, 1, 3), (3, 2, 1, 0), (), (0, 1, 3, 2)]
    assert facts_of(x[0, 0].T).order == ()
    assert facts_of(np.broadcast_to(x[:, :1], (3, 9, 5, 6)).transpose(1, 0, 2, 3)).order == ()


def test_strides_of_one_element_dimensions_make_no_variants():
    wide = np.zeros((4, 8), np.float32)
    assert facts_of(wide[:1]) == facts_of(np.zeros((1, 8), np.float32))
    assert facts_of(wide[:, :1]).strides == (-1, 1)
    odd = np.lib.stride_tricks.as_strided(wide, (1, 8), (12, 4))
    assert facts_of(odd) == facts_of(np.zeros((1, 8), np.float32))


def test_alignment():
    view = view_of(np.zeros(4, np.float32))[1]
    assert [alignment("x", pointer, view) for pointer in (64, 16, 8, 20)] == [16, 16, 8, 4]
    assert alignment("x", 1, view_of(np.zeros(0, np.float32))[1]) == 16
    with pytest.raises(CallError) as caught:
        alignment("x", 18, view)
    assert caught.value.code == "misaligned"


def test_what_compile_assumes():
    x, y = SIGNATURE.tensors
    assert assumed_facts(x, {}).strides == (-1, 1)
    assert assumed_facts(x, {}).dim_div == (1, 1)
    known = assumed_facts(x, {"M": 4096, "B": 2, "H": 10})
    assert (known.sizes, known.stride_div, known.dim_div) == ((4096, 20), (4, 1), (16, 4))
    fixed = assumed_facts(y, {})
    assert (fixed.sizes, fixed.stride_div, fixed.dim_div) == ((None, 128), (16, 1), (1, 16))


def test_arguments_by_position_keyword_and_default():
    assert bind_arguments(SIGNATURE, ("x", "y"), {}) == ["x", "y", 1.0, 4]
    assert bind_arguments(SIGNATURE, ("x",), {"BM": 8, "y": "y"}) == ["x", "y", 1.0, 8]


@pytest.mark.parametrize(
    ("args", "kwargs", "code"),
    [
        ((), {}, "argument-count"),
        ((1, 2, 3, 4, 5), {}, "argument-count"),
        ((1, 2), {"x": 1}, "argument-count"),
        ((1, 2), {"z": 1}, "unknown-keyword"),
    ],
)
def test_calls_that_do_not_fit(args, kwargs, code):
    with pytest.raises(CallError) as caught:
        bind_arguments(SIGNATURE, args, kwargs)
    assert caught.value.code == code


def divided(x: ts.Tensor["M", ts.f32], /, y: ts.Tensor["M", ts.f32], *, scale: ts.f32 = 1.0, BM: ts.constexpr = 4):
    pass


def test_a_slash_and_a_star_mean_what_they_mean_in_python():
    signature = Signature.of(divided)
    assert (signature.position_only, signature.name_only) == ({"x"}, {"scale", "BM"})
    assert bind_arguments(signature, ("x",), {"y": "y", "BM": 8}) == ["x", "y", 1.0, 8]
    shape = inspect.signature(divided)
    for args, kwargs in (
        (("x", "y", 2.0), {}),
        (("x", "y", 2.0, 8), {}),
        ((), {"x": "x", "y": "y"}),
        (("x",), {"x": "x", "y": "y"}),
        (("x", "y"), {"y": "y"}),
    ):
        with pytest.raises(TypeError):
            shape.bind(*args, **kwargs)
        with pytest.raises(CallError) as caught:
            bind_arguments(signature, args, kwargs)
        assert caught.value.code in ("argument-count", "unknown-keyword")
