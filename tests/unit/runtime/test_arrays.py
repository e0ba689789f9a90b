"""`ts.empty` and its kin on the CPU."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from tessera.errors import CallError, LanguageError, ResourceError, TargetError
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert
from tessera.runtime import arrays
from tessera.runtime.packing import scalar_number
from tessera.runtime.readers import view_of
from tessera.target.artifact import ArgSpec
from tests.unit.foreign import Foreign


@pytest.mark.parametrize("shape", [5, (3, 7), (0, 4), ()])
@pytest.mark.parametrize("dtype", [dtypes.f32, "bf16", dtypes.fp8_e4m3, "bool", "i64"])
def test_empty_is_aligned_and_of_the_dtype(shape, dtype):
    array = arrays.empty(shape, dtype)
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.size == 0 or array.ctypes.data % 64 == 0
    name = dtype if isinstance(dtype, str) else dtype.name
    assert view_of(array)[1].dtype.name == name
    assert array.flags.c_contiguous


def test_zeros_ones_full():
    np.testing.assert_array_equal(arrays.zeros((2, 3)), np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(arrays.ones(4, "i32"), np.ones(4, np.int32))
    np.testing.assert_array_equal(arrays.full(3, 1.5, "bf16").astype(np.float32), np.full(3, 1.5, np.float32))


def test_asarray_copies_only_when_it_must():
    source = np.arange(6, dtype=np.float32)
    assert arrays.asarray(source) is source
    converted = arrays.asarray(source, dtype="bf16")
    assert converted.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(converted.astype(np.float32), source)


def test_asarray_of_numbers():
    assert arrays.asarray([1.0, 2.0]).dtype == np.float32
    assert arrays.asarray([1, 2]).dtype == np.int64
    assert arrays.asarray([1.0, 2.0], dtype="f64").dtype == np.float64


def test_from_dlpack_shares_memory_and_keeps_its_owner():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-1]
    shared = arrays.from_dlpack(Foreign(array))
    np.testing.assert_array_equal(shared, array)
    array[0, 0] = 99
    assert shared[0, 0] == 99
    owned = arrays.from_dlpack(Foreign(np.full(1000, 7.0)))
    gc.collect()
    assert (owned == 7.0).all()


def test_to_numpy_of_a_read_only_source_is_read_only():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert not arrays.to_numpy(Foreign(array)).flags.writeable


def test_errors():
    with pytest.raises(TargetError) as caught:
        arrays.empty(3, device="gpu")
    assert caught.value.code == "unknown-device"
    with pytest.raises(LanguageError) as unknown:
        arrays.empty(3, "f33")
    assert unknown.value.code == "unknown-dtype"
    with pytest.raises(CallError):
        arrays.asarray(np.zeros(3, "c8"))


_NUMBERS = [0, 1, -1, True, 2, 300, 2**24 + 1, 2**63, 10**400, 0.0, 0.5, 1.0, 1e39, 1e300, 500.0, 65520.0, float("inf")]


@pytest.mark.parametrize("dtype", ["bool", "i8", "u32", "i64", "f16", "bf16", "f32", "f64", "fp8_e4m3"])
def test_full_takes_what_a_scalar_argument_takes(dtype):
    spec = ArgSpec("x", "scalar", dtype)
    for value in [*_NUMBERS, *map(np.float64, (1.5, 1e300)), np.int64(300), np.bool_(True), 1j, "1", None, [1]]:
        assert made(lambda value=value: arrays.full(1, value, dtype)) == made(
            lambda value=value: scalar_number(spec, value)
        )


def made(make):
    """Return the bytes of an element that is made, or the code of the error."""
    try:
        element = make()
    except CallError as error:
        return error.code
    return str(element.dtype), element.tobytes()


@pytest.mark.parametrize("value", [2, -1, 0.5, float("nan"), "x", None, [], 10**400])
def test_a_bool_is_true_or_false(value):
    with pytest.raises(CallError) as caught:
        scalar_number(ArgSpec("x", "scalar", "bool"), value)
    assert caught.value.code == "wrong-scalar"


def test_asarray_converts_as_a_cast():
    odd = [0.0, -0.0, 1.9, -1.9, 127.5, 300.0, -300.0, 500.0, 65520.0, 1e10, -1e10, 1e20, 1e39, 1e300]
    odd += [float("nan"), float("inf"), float("-inf"), 1 + 2**-8 + 2**-40]
    whole = [0, 1, -1, 127, 128, 300, -300, 2**24 + 1, 2**40, 2**62 + 1, -(2**63)]
    narrow = [value for value in odd if not 1e38 < abs(value) < float("inf")]
    sources = [np.array(odd), np.array(narrow, np.float32), np.array(whole), np.array([2**63 + 5], np.uint64)]
    for source in sources:
        dtype = dtypes.from_numpy(source.dtype)
        for target in (*map(dtypes.dtype_named, ("bool", "i8", "u8", "i32", "u64", "f16", "bf16", "f32", "fp8_e4m3")),):
            wanted = convert(source, dtype, target)
            for given in (source, source.tolist()):
                made = arrays.asarray(given, target)
                assert made.dtype == target.numpy()
                assert made.tobytes() == wanted.tobytes(), (source, target)
    assert arrays.asarray([float("nan"), 1e10, -1e10], "i32").tolist() == [0, 2**31 - 1, -(2**31)]


def test_asarray_of_one_number():
    assert arrays.asarray(300.7, "i8").shape == ()
    assert arrays.asarray(300.7, "i8") == 127


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 44, 8), (0, 1 << 61), (1 << 61,), (1 << 62,)])
@pytest.mark.parametrize("make", [arrays.empty, arrays.zeros, arrays.ones, lambda shape: arrays.full(shape, 2.0)])
def test_no_memory(make, shape):
    with pytest.raises((ResourceError, CallError)) as caught:
        make(shape)
    assert caught.value.code == ("out-of-memory" if shape[0] in (1 << 50, 1 << 44) else "bad-shape")


def test_no_memory_for_a_copy():
    for dtype in ("f64", "i8", "bf16"):
        with pytest.raises(ResourceError) as caught:
            arrays.asarray(np.broadcast_to(np.float32(1), (1 << 47,)), dtype)
        assert caught.value.code == "out-of-memory"
