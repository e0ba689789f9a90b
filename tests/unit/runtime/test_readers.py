"""Reading arrays: address, shape, strides, dtype, device, without a copy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tessera.errors import CallError
from tessera.numerics import dtypes
from tessera.platforms.platform import Platform
from tessera.runtime import cuda_interface, dlpack, readers
from tessera.runtime.device import CPU, Device
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView, Reader, row_major
from tessera.target.registry import register, unregister


class Exported:
    """A NumPy array that shows only its DLPack side."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(stream=stream, **options)


class OnDevice(Exported):
    """Claims a device of another kind."""

    def __dlpack_device__(self):
        return (10, 0)


def test_a_strided_numpy_view_is_read_as_it_is():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[1:, ::-2]
    pointer, view, _ = view_of(array)
    assert pointer == array.ctypes.data
    assert view.shape == (3, 3)
    assert view.strides == (6, -2)
    assert (view.dtype, view.device, view.readonly) == (dtypes.f32, CPU, False)


@pytest.mark.parametrize(
    ("numpy_dtype", "dtype"),
    [
        (ml_dtypes.bfloat16, dtypes.bf16),
        (ml_dtypes.float8_e4m3fn, dtypes.fp8_e4m3),
        (ml_dtypes.float8_e5m2, dtypes.fp8_e5m2),
        (np.bool_, dtypes.boolean),
        (np.uint16, dtypes.u16),
        (np.longlong, dtypes.i64),
    ],
)
def test_every_dtype_has_its_name(numpy_dtype, dtype):
    assert view_of(np.zeros(3, numpy_dtype))[1].dtype == dtype


def test_a_read_only_array_says_so():
    array = np.zeros(3)
    array.flags.writeable = False
    assert view_of(array)[1].readonly


def test_the_other_byte_order_is_an_error():
    with pytest.raises(CallError) as caught:
        view_of(np.zeros(3, ">f4"))
    assert caught.value.code == "byte-order"


@pytest.mark.parametrize("array", [np.zeros(3, "c8"), np.zeros(3, object), np.zeros(3, "U4")])
def test_an_unknown_dtype_is_an_error(array):
    with pytest.raises(CallError) as caught:
        view_of(array)
    assert caught.value.code == "wrong-dtype"


def test_a_field_of_a_structured_array_may_not_stand_on_element_steps():
    table = np.zeros(4, np.dtype([("a", "u1"), ("b", "<f4")]))
    with pytest.raises(CallError) as caught:
        view_of(table["b"])
    assert caught.value.code == "misaligned"


def test_a_masked_array_is_refused_because_its_mask_would_be_lost():
    with pytest.raises(CallError) as caught:
        view_of(np.ma.array([1.0, 2.0], mask=[True, False]))
    assert caught.value.code == "not-an-array"


@pytest.mark.parametrize("value", [[1.0], 1.0, np.float32(1), None, "x"])
def test_what_is_no_array_is_an_error(value):
    with pytest.raises(CallError) as caught:
        view_of(value)
    assert caught.value.code == "not-an-array"


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_is_read_in_both_versions(versioned):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[:, 1:]
    pointer, view, capsule = view_of(Exported(array, versioned))
    assert pointer == array.ctypes.data
    assert (view.shape, view.strides, view.dtype) == ((3, 3), (4, 1), dtypes.i16)
    assert capsule is not None


def test_dlpack_of_a_scalar_array():
    _, view, _ = view_of(Exported(np.array(3.0)))
    assert (view.shape, view.strides, view.dtype) == ((), (), dtypes.f64)


def test_dlpack_of_a_read_only_array_keeps_the_flag():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert view_of(Exported(array))[1].readonly


def test_a_device_without_a_backend_is_an_error(monkeypatch):
    capsule_of = dlpack.read_capsule

    def relocated(capsule):
        found = capsule_of(capsule)
        kind, shape, strides, _, index, readonly = found.layout
        return dlpack.Imported(found.pointer, (kind, shape, strides, 10, index, readonly))

    monkeypatch.setattr(dlpack, "read_capsule", relocated)
    with pytest.raises(CallError) as caught:
        view_of(OnDevice(np.zeros(3)))
    assert caught.value.code == "wrong-device"


def test_a_zero_size_array_is_fine():
    _, view, _ = view_of(np.zeros((0, 4), np.float32))
    assert view.shape == (0, 4)


def test_the_slow_reader_agrees_with_the_fast_one():
    array = np.arange(10, dtype=np.float32)[3:]
    assert readers._read_numpy(array) == readers._read_numpy_slowly(array)


def test_cuda_interface_strides_are_bytes():
    view = cuda_interface._decode(("<f4", (2, 3), (24, 8), Device("cuda", 1), True))
    assert (view.strides, view.device, view.readonly) == ((6, 2), Device("cuda", 1), True)
    assert cuda_interface._decode(("<f4", (2, 3), None, Device("cuda"), False)).strides == (3, 1)


def raising(error):
    """Return a method that raises."""

    def method(self, **options):
        raise error

    return method


def exporter(**methods):
    """Return an object with DLPack, some of whose methods are replaced."""
    kind = type("Producer", (Exported,), methods)
    return kind(np.zeros(3, np.float32))


_ERRORS = [ZeroDivisionError("x"), KeyError("x"), AttributeError("x"), NotImplementedError("x"), BufferError("x")]


@pytest.mark.parametrize(
    "array",
    [
        *(exporter(__dlpack__=raising(error)) for error in _ERRORS),
        *(exporter(__dlpack_device__=raising(error)) for error in _ERRORS),
        *(exporter(__dlpack_device__=lambda self, given=given: given) for given in ("x", "xy", None, 1, ([], 0))),
        *(exporter(__dlpack__=lambda self, given=given, **options: given) for given in (None, 5, "x")),
        exporter(__dlpack__=lambda self: self.array.__dlpack__()),
    ],
)
def test_a_producer_that_gives_no_array_is_refused(array):
    with pytest.raises(CallError) as caught:
        view_of(array)
    assert caught.value.code == "not-an-array"


_INTERFACE = {"shape": (3,), "typestr": "<f4", "data": (0, False), "version": 3}


def on_a_gpu(facts):
    """Return an object that claims to be an array on a GPU."""
    return type("OnGpu", (), {"__cuda_array_interface__": facts})()


@pytest.mark.parametrize(
    "facts",
    [
        *(
            {key: value for key, value in _INTERFACE.items() if key != left_out}
            for left_out in ("shape", "typestr", "data")
        ),
        *({**_INTERFACE, "data": data} for data in (5, (), (1, 2, 3), ("x", True), (1.5, True), None)),
        *({**_INTERFACE, "shape": shape} for shape in ("x", 3, (1.5,), ([],), (-1,), None)),
        *({**_INTERFACE, "strides": strides} for strides in ("x", 4, (4, 4), (1.5,), ())),
        *({**_INTERFACE, "stream": stream} for stream in ("x", 1.5)),
        None,
        "x",
    ],
)
def test_a_cuda_interface_that_says_no_array_is_refused(facts):
    with pytest.raises(CallError) as caught:
        view_of(on_a_gpu(facts))
    assert caught.value.code == "not-an-array"


@pytest.mark.parametrize("typestr", ["x!", "<q9", None, "<f4,", "|O8"])
def test_a_cuda_interface_of_an_unknown_type(typestr):
    with pytest.raises(CallError) as caught:
        view_of(on_a_gpu({**_INTERFACE, "typestr": typestr}))
    assert caught.value.code == "wrong-dtype"


def test_an_array_without_memory_is_refused():
    with pytest.raises(CallError, match="no memory") as caught:
        view_of(on_a_gpu(_INTERFACE))
    assert caught.value.code == "not-an-array"
    assert view_of(on_a_gpu({**_INTERFACE, "shape": (0,)}))[1].shape == (0,)


class Seen:
    """An array of a library that has a protocol of its own."""

    __toy_array__ = (0x1000, (2, 3))


class Toy(Platform):
    """A platform whose devices have such arrays."""

    name = "toy"
    device_kind = "toy"
    array_protocol = "__toy_array__"

    def protocol_reader(self):
        def read(array):
            pointer, shape = array.__toy_array__
            return pointer, shape, array

        return Reader(read, lambda shape: ArrayView(shape, row_major(shape), dtypes.f32, Device("toy", 1), False))

    target = schedule = lower = generate = None


def test_a_platform_reads_the_arrays_of_its_protocol():
    with pytest.raises(CallError) as caught:
        view_of(Seen())
    assert caught.value.code == "not-an-array"
    assert "__toy_array__" not in caught.value.help
    register(Toy())
    try:
        array = Seen()
        pointer, view, keep = view_of(array)
        assert (pointer, view.shape, view.strides, view.device) == (0x1000, (2, 3), (3, 1), Device("toy", 1))
        assert keep is array
        assert "DLPack or __cuda_array_interface__ or __toy_array__" in readers.array_help()
    finally:
        unregister("toy")
        readers.READERS.pop(Seen)
