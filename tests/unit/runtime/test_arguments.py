"""Checks of arguments against a signature, and the binding of dimension names."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from tessera.errors import CallError
from tessera.numerics import dtypes
from tessera.runtime.arguments import (
    ExpectedTensor,
    bind_dims,
    check_writable,
    common_device,
)
from tessera.runtime.device import CPU, Device
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView
from tessera.target.dims import Dim


def tensor(name, *dims, dtype=dtypes.f32):
    return ExpectedTensor(name, dtype, tuple(Dim.parse(dim) for dim in dims))


def view(*shape, device=CPU):
    return ArrayView(
        shape, tuple(np.zeros(shape).strides[i] // 8 for i in range(len(shape))), dtypes.f32, device, False
    )


def bind(*pairs):
    return bind_dims([t for t, _ in pairs], [v for _, v in pairs])


@pytest.mark.parametrize("text", ["M", "B*H", "128", "2*N"])
def test_dims_print_as_they_are_written(text):
    assert str(Dim.parse(text)) == text


def test_names_are_bound():
    assert bind((tensor("a", "M", "K"), view(2, 3)), (tensor("b", "K", "N"), view(3, 4))) == {
        "M": 2,
        "K": 3,
        "N": 4,
    }


def test_a_disagreement_names_both_arguments_and_the_dim():
    with pytest.raises(CallError) as caught:
        bind((tensor("a", "M", "K"), view(2, 3)), (tensor("b", "K", "N"), view(5, 4)))
    assert caught.value.code == "wrong-shape"
    for part in ("'a'", "'b'", "K = 3", "K = 5", "dimension 0", "dimension 1"):
        assert part in caught.value.message


def test_a_static_dim_is_checked():
    with pytest.raises(CallError, match=r"the annotation says 128"):
        bind((tensor("a", "M", "128"), view(2, 64)))


def test_a_product_is_solved_for_its_unknown():
    assert bind((tensor("q", "B*H", "S"), view(12, 5)), (tensor("m", "B"), view(4)))["H"] == 3


def test_a_product_that_does_not_divide_is_an_error():
    with pytest.raises(CallError, match="not a multiple of 5"):
        bind((tensor("q", "B*H"), view(12)), (tensor("m", "B"), view(5)))


def test_a_product_of_known_names_is_checked():
    pairs = ((tensor("q", "B*H"), view(11)), (tensor("b", "B"), view(4)), (tensor("h", "H"), view(3)))
    with pytest.raises(CallError) as caught:
        bind(*pairs)
    for part in ("'q'", "size 11", "B = 4", "H = 3", "B*H = 12"):
        assert part in caught.value.message


def test_products_of_unknowns_must_agree():
    same = (tensor("q", "B*H"), view(12))
    assert bind(same, (tensor("k", "H*B"), view(12))) == {}
    with pytest.raises(CallError, match="both are"):
        bind(same, (tensor("k", "H*B"), view(6)))


def test_a_zero_factor_leaves_the_other_unknown():
    assert bind((tensor("q", "B*H"), view(0)), (tensor("b", "B"), view(0))) == {"B": 0}


def test_a_scaled_dim():
    assert bind((tensor("a", "2*N"), view(8))) == {"N": 4}
    with pytest.raises(CallError, match="not a multiple of 2"):
        bind((tensor("a", "2*N"), view(7)))


def test_dtype_and_rank():
    with pytest.raises(CallError) as caught:
        tensor("a", "M", dtype=dtypes.bf16).check(view(3))
    assert (caught.value.code, "f32" in caught.value.message) == ("wrong-dtype", True)
    with pytest.raises(CallError) as caught:
        tensor("a", "M", "N").check(view(3))
    assert caught.value.code == "wrong-rank"
    tensor("a", "M", dtype=dtypes.tf32).check(view(3))


def test_mixed_devices_are_named():
    with pytest.raises(CallError) as caught:
        common_device(["a", "b"], [view(1), view(1, device=Device("cuda", 1))])
    assert caught.value.code == "wrong-device"
    assert "cuda:1" in caught.value.message
    assert common_device([], []) is None


def test_outputs_must_be_writable():
    array = np.zeros(4, np.float32)
    check_writable("y", view_of(array)[1])
    array.flags.writeable = False
    with pytest.raises(CallError) as caught:
        check_writable("y", view_of(array)[1])
    assert caught.value.code == "read-only"


@pytest.mark.parametrize("seed", range(40))
def test_outputs_must_not_overlap_themselves(seed: int):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape, strides = rng.integers(0, 5, rank), rng.integers(-12, 13, rank)
    array = np.lib.stride_tricks.as_strided(np.zeros(200, np.float32)[100:], shape, strides * 4)
    places = [int(np.dot(place, strides)) for place in np.ndindex(*shape)]
    with pytest.raises(CallError) if len(set(places)) < len(places) else nullcontext() as caught:
        check_writable("y", view_of(array)[1])
    assert caught is None or caught.value.code == "overlapping"


def test_expressions_are_solved_where_one_size_fits():
    assert bind((tensor("a", "n+1"), view(9))) == {"n": 8}
    assert bind((tensor("a", "n//2"), view(4)), (tensor("b", "2*n-m"), view(13)), (tensor("c", "m"), view(3))) == {
        "m": 3,
        "n": 8,
    }
    assert bind((tensor("a", "n//2"), view(4)), (tensor("b", "n//2"), view(4))) == {}


@pytest.mark.parametrize(
    ("pairs", "parts"),
    [
        ((("a", "n", 5), ("b", "n+1", 5)), ["'a'", "'b'", "n = 5", "n = 4"]),
        ((("a", "n", 5), ("b", "n//2", 3)), ["'b' has size 3", "n = 5", "n//2 = 2"]),
        ((("a", "n+1", 0),), ["size 0", "n+1 is for no size of n"]),
        ((("a", "2*n+1", 4),), ["size 4", "2*n+1 is for no size of n"]),
        ((("a", "n//2", 4), ("b", "n//2", 5)), ["'a'", "'b'", "both are n//2"]),
        ((("a", "n", 0), ("b", "8//n", 4)), ["n = 0", "8//n divides by zero"]),
        ((("m", "m", 3), ("a", "m*n", 7)), ["not a multiple of 3"]),
        ((("m", "m", 3), ("a", "m*n+1", 9)), ["m*n+1 is for no size of n with m = 3"]),
    ],
)
def test_expressions_that_do_not_hold(pairs, parts):
    with pytest.raises(CallError) as caught:
        bind(*((tensor(name, dim), view(size)) for name, dim, size in pairs))
    assert caught.value.code == "wrong-shape"
    assert [part for part in parts if part not in caught.value.message] == []
