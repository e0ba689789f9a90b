"""The compiled entry on a GPU, with a driver that only notes what it is given.

Each launch is made twice, through the Python path and through the entry, and both must give the driver the same
parameters bit for bit. The Python path is `Kernel.__call__`; tests on a GPU compare it with PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import random
import struct
from types import SimpleNamespace

import pytest

import tessera as ts
from tessera.driver.kernel import Kernel
from tessera.driver.loaded import LoadedKernel
from tessera.entry import host, layout
from tessera.errors import CallError, DeviceError
from tessera.runtime import cuda, cuda_entry, cuda_launch, dlpack, tensor_maps, workspaces
from tessera.runtime.cuda_array import DeviceArray
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView, row_major
from tessera.target.artifact import Parameter
from tessera.target.registry import target_named

driver = pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())

CONTEXT = 0x1234500
REGION = 2**32
"""Bytes of memory in which one array lies: those of a call must not overlap."""
_REGIONS = itertools.count()
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
LAUNCH_EX = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
STREAM_OF = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
ASK_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_uint64,
    *[ctypes.c_void_p] * 4,
    *[ctypes.c_int] * 4,
)


class FakeDriver:
    """Answers as the driver's bindings do, and notes launches; its C functions note them in the same way."""

    def __init__(self) -> None:
        self.launches: list[tuple[object, ...]] = []
        self.known: dict[int, object] = {}
        self.encoded = 0
        self.context = CONTEXT
        self.status = 0
        self.c_launch = LAUNCH(self._c_launch)
        self.c_launch_ex = LAUNCH_EX(self._c_launch_ex)
        self.c_current = CURRENT(self._c_current)
        self.c_encode = ENCODE(self._c_encode)
        self.stream, self.capture, self.allocated = 0, (0, 0, None), 0x6F00_0000_0000
        self.c_stream_of = STREAM_OF(self._c_stream_of)
        self.c_capturing = ASK_STREAM(self._c_capturing)
        self.c_stream_id = ASK_STREAM(self._c_stream_id)

    def address(self, name: str) -> int:
        functions = {
            "cuLaunchKernel": self.c_launch,
            "cuLaunchKernelEx": self.c_launch_ex,
            "cuCtxGetCurrent": self.c_current,
            "cuTensorMapEncodeTiled": self.c_encode,
            "cuStreamIsCapturing": self.c_capturing,
            "cuStreamGetId": self.c_stream_id,
        }
        return ctypes.cast(functions[name], ctypes.c_void_p).value or 0

    def __getattr__(self, name: str):
        if name.startswith("cu") and name[2].isupper():
            return lambda *_: (driver.CUresult(0), 0)
        return getattr(driver, name)

    def cuCtxGetCurrent(self):
        return driver.CUresult(0), self.context

    def cuModuleLoadData(self, image):
        return driver.CUresult(0), 77

    def cuModuleGetFunction(self, module, entry):
        return driver.CUresult(0), 4096 + len(self.known)

    def cuMemAllocAsync(self, size, stream):
        return driver.CUresult(0), 0x7F00_0000_0000 + 256 * random.randrange(2**20)

    def cuMemAlloc(self, size):
        self.allocated += size
        return driver.CUresult(0), self.allocated - size

    def cuMemsetD8(self, pointer, value, size):
        return (driver.CUresult(0),)

    def cuStreamGetId(self, stream):
        return driver.CUresult(self._refused()), stream + 1000

    def cuStreamGetCaptureInfo(self, stream):
        return driver.CUresult(0), *self.capture

    def _refused(self):
        """A capture forbids the question and is ended by it."""
        if self.capture[0]:
            self.capture = (2, 0, None)
            return int(driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return 0

    def _c_stream_of(self, kind, index, out):
        out[0] = self.stream
        return 0

    def _c_capturing(self, stream, out):
        ctypes.c_int.from_address(out).value = self.capture[0]
        return 0

    def _c_stream_id(self, stream, out):
        ctypes.c_uint64.from_address(out).value = stream + 1000
        return self._refused()

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        self._note("python", function, (gx, gy, gz, bx, by, bz, shared), stream, params)
        return (driver.CUresult(self.status),)

    def _c_launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        self._note("entry", function, (gx, gy, gz, bx, by, bz, shared), stream or 0, params)
        return self.status

    def cuLaunchKernelEx(self, config, function, params, extra):
        (attribute,) = config.attrs
        numbers = (
            config.gridDimX,
            config.gridDimY,
            config.gridDimZ,
            config.blockDimX,
            config.blockDimY,
            config.blockDimZ,
            config.sharedMemBytes,
            "overlaps",
            int(attribute.id),
            attribute.value.programmaticStreamSerializationAllowed,
        )
        self._note("python", function, numbers, int(config.hStream), params)
        return (driver.CUresult(self.status),)

    def _c_launch_ex(self, config, function, params, extra):
        *numbers, stream, attributes, count = struct.unpack("<7I4xQQI", ctypes.string_at(config, 52))
        kind, value = struct.unpack("<I4xI60x", ctypes.string_at(attributes, 72))
        assert count == 1
        self._note("entry", function, (*numbers, "overlaps", kind, value), stream, params)
        return self.status

    def _c_current(self, out):
        out[0] = self.context
        return 0

    def _note(self, who, function, numbers, stream, params):
        launch = self.known[function]
        pointers = (ctypes.c_void_p * len(launch.params)).from_address(params)
        data = [ctypes.string_at(pointer, width(param)) for pointer, param in zip(pointers, launch.params, strict=True)]
        assert all(
            pointer % 64 == 0
            for pointer, param in zip(pointers, launch.params, strict=True)
            if param.kind == "tensor_map"
        )
        self.launches.append((who, function, numbers, stream, data))

    def cuTensorMapEncodeTiled(
        self, kind, rank, address, dims, strides, box, ones, interleave, swizzle, promotion, fill
    ):
        numbers = [*map(int, (*dims, *strides, *box, *ones, interleave, swizzle, promotion, fill))]
        self.map = ctypes.create_string_buffer(fake_map(int(kind), rank, int(address), numbers))
        return driver.CUresult(0), SimpleNamespace(getPtr=lambda: ctypes.addressof(self.map))

    def _c_encode(self, out, kind, rank, address, dims, strides, box, ones, *rest):
        self.encoded += 1
        arrays = [
            *(ctypes.c_uint64 * rank).from_address(dims),
            *(ctypes.c_uint64 * (rank - 1)).from_address(strides),
            *(ctypes.c_uint32 * rank).from_address(box),
            *(ctypes.c_uint32 * rank).from_address(ones),
        ]
        ctypes.memmove(out, fake_map(kind, rank, address, [*arrays, *rest]), 128)
        return self.status


def fake_map(kind: int, rank: int, address: int, numbers: list[int]) -> bytes:
    """Return 128 bytes that depend on all that a tensor map holds."""
    text = struct.pack(f"<iIQ{len(numbers)}q", kind, rank, address, *numbers)
    return hashlib.sha512(text).digest() * 2


def width(param) -> int:
    """Return how many bytes the GPU reads of a parameter."""
    if param.kind == "tensor_map":
        return 128
    return 8 if param.kind != "scalar" else ts.numerics.dtypes.dtype_named(param.dtype).storage.bytes


@pytest.fixture(scope="module")
def fake():
    """The one driver that all kernels of this module are loaded by."""
    return FakeDriver()


@pytest.fixture
def gpu(fake, monkeypatch):
    """A machine whose only GPU is the fake one."""
    device = cuda.CudaDevice(Device("cuda", 0), CONTEXT, CONTEXT, "fake", (9, 0), 132, 2**37, 232448)
    monkeypatch.setattr(cuda, "driver", lambda: fake)
    monkeypatch.setattr(cuda, "cuda_device", lambda _index: device)
    monkeypatch.setattr(cuda, "target_of", lambda _index: target_named("sm_90a"))
    monkeypatch.setattr(cuda, "stream_object", lambda stream: stream)
    monkeypatch.setattr(cuda_launch, "driver_address", fake.address)
    loaded = cuda_launch.CudaLauncher._function

    def function(self, cu, entry, shared_bytes):
        made = loaded(self, cu, entry, shared_bytes)
        fake.known[made] = next(launch for launch in self.artifact.launches if launch.entry == entry)
        return made

    monkeypatch.setattr(cuda_launch.CudaLauncher, "_function", function)
    return fake


def array(shape, dtype, address=None, strides=None) -> DeviceArray:
    """Return an array of the fake GPU at an address, by default where no other array lies."""
    if address is None:
        address = 0x1F00_0000_0000 + REGION * next(_REGIONS) + 256 * random.randrange(2**20)
    view = ArrayView(tuple(shape), strides or row_major(tuple(shape)), dtype.storage, Device("cuda", 0), False)
    return DeviceArray.borrow(address, view, None)


def map_kind(param: Parameter) -> int:
    """Return the driver's number for the elements of a tensor map."""
    return tensor_maps.plan(param).constants[cuda_entry.MAP_CONSTANTS["kind"] // layout.WORD]


def both(fake: FakeDriver, kernel: Kernel, *args, **kwargs) -> list[tuple[object, ...]]:
    """Launch through the Python path and the entry; gives what the driver got, the same from both."""
    for _ in range(4):
        fake.launches.clear()
        Kernel.__call__(kernel, *args, **kwargs)
    slow = list(fake.launches)
    fake.launches.clear()
    kernel(*args, **kwargs)
    fast = list(fake.launches)
    assert [launch[0] for launch in slow] == ["python"] * len(slow)
    assert [launch[0] for launch in fast] == ["entry"] * len(fast)
    assert [launch[1:] for launch in fast] == [launch[1:] for launch in slow]
    return fast


@ts.kernel
def scalars(
    x: ts.Tensor["n", ts.f32],
    a: ts.f64,
    b: ts.f32,
    c: ts.f16,
    d: ts.bf16,
    e: ts.i8,
    f: ts.u16,
    g: ts.i32,
    h: ts.i64,
    k: ts.bool_,
    m: ts.u64 = 7,
):
    """Use a scalar of every kind."""
    i = ts.tile.linear_id()
    if i < n:
        if k:
            x[i] = x[i] + a.to(ts.f32) + b + c.to(ts.f32) + d.to(ts.f32)
        else:
            x[i] = (e.to(ts.i64) + f.to(ts.i64) + g.to(ts.i64) + h + m.to(ts.i64)).to(ts.f32)


@ts.kernel
def gemm(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]):
    """Multiply by tiles of a size that goes through tensor maps."""
    for m, n in ts.tile.grid((M, 128), (N, 256)):
        acc = ts.tile.zeros((128, 256), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 256], acc)
        c[m : m + 128, n : n + 256] = acc
    return c


@ts.kernel
def with_residual(a: ts.Tensor["M", "M", ts.f32], b: ts.Tensor["M", "M", ts.f32], c: ts.Tensor["M", "M", ts.f32]):
    """Multiply in tf32, and add an operand as it is."""
    for m, n in ts.tile.grid((M, 128), (M, 128)):
        acc = ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, M, 32):
            acc = ts.tile.mma(a[m : m + 128, k : k + 32], b[n : n + 128, k : k + 32].T, acc, compute=ts.tf32)
        c[m : m + 128, n : n + 128] = acc + a[m : m + 128, n : n + 128]


@ts.kernel
def eight(
    a: ts.Tensor["M", "N", ts.f32],
    b: ts.Tensor["N", ts.f16],
    c: ts.Tensor["M", "N", ts.i8],
    d: ts.Tensor["B*M", ts.i64],
    e: ts.Tensor["B", ts.u8],
    f: ts.Tensor["M", 4, ts.f64],
    g: ts.Tensor["N", "M", ts.bf16],
    h: ts.Tensor["M", "N", ts.f32],
    rows: ts.i32,
):
    """Read eight arrays in a grid whose extent depends on sizes and on a scalar."""
    for m, n in ts.tile.grid((ts.tile.minimum(M, rows), 8), (N, 32)):
        x = a[m : m + 8, n : n + 32] + ts.tile.cast(b[n : n + 32], ts.f32)
        y = ts.tile.cast(c[m : m + 8, n : n + 32], ts.f32)
        z = ts.tile.cast(ts.tile.transpose(g[n : n + 32, m : m + 8]), ts.f32)
        w = ts.tile.cast(d[m : m + 8], ts.f32) + ts.tile.cast(f[m : m + 8, 1], ts.f32)
        h[m : m + 8, n : n + 32] = x + y + z + ts.tile.cast(e[0], ts.f32) + w[:, None]


@ts.kernel.autotune(space=dict(stream_k=[1]))
def shared(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]):
    """Multiply by programs that share out the last tiles."""
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


@pytest.fixture
def nothing_held(monkeypatch):
    """A process that has no workspace."""
    for name, empty in (("_current", {}), ("_lent", []), ("_tables", {})):
        monkeypatch.setattr(workspaces, name, empty)


def workspace_of(launch):
    """Return the workspace that a noted launch was given."""
    record = next(one for one in shared_launches() if one.slot_bytes)
    place = next(place for place, param in enumerate(record.params) if param.kind == "workspace")
    return struct.unpack("<Q", launch[4][place])[0]


def shared_launches():
    """Return the records of the launches of `shared`."""
    return ts.compile(shared, target="sm_90a", dims=dict(M=128, N=64, K=192)).launches


def test_programs_that_share_steps_get_the_workspace_of_their_stream(gpu, nothing_held, monkeypatch):
    work = cuda_launch.CudaLauncher.work
    address = ctypes.cast(gpu.c_stream_of, ctypes.c_void_p).value
    monkeypatch.setattr(cuda_launch.CudaLauncher, "work", lambda self, _stream_of: work(self, address))
    args = array([128, 192], ts.bf16), array([192, 64], ts.bf16), array([128, 64], ts.bf16)
    (launch,) = both(gpu, shared, *args)
    assert launch[2][0] == 132, "all multiprocessors share two tiles"
    first = workspace_of(launch)
    gpu.stream = 0x500
    shared(*args)
    assert gpu.launches[-1][0] == "python", "the entry makes no workspace"
    other = workspaces.workspace(cuda.cuda_device(0), 0x500, 132 * 64 * 64 * 4)
    shared(*args)
    assert gpu.launches[-1][0] == "entry"
    assert gpu.launches[-1][3] == 0x500
    assert workspace_of(gpu.launches[-1]) == other != first
    gpu.capture = (1, 7, 70)
    shared(*args)
    assert gpu.launches[-1][0] == "python", "the entry does not tell captures apart"
    assert gpu.capture == (1, 7, 70), "the capture goes on"
    gpu.capture, gpu.stream = (0, 0, None), 0
    shared(*args)
    assert gpu.launches[-1][0] == "entry"
    assert workspace_of(gpu.launches[-1]) == first


def test_the_entry_knows_the_streams_that_came_last(gpu, nothing_held):
    device = cuda.cuda_device(0)
    made = [workspaces.workspace(device, 0x100 * number, 4096) for number in range(1, 41)]
    assert len(set(made)) == 40
    known = (ctypes.c_int64 * (3 * cuda_entry.WORKSPACES)).from_address(workspaces.known(0))
    assert list(known[0::3]) == [0x100 * number + 1000 for number in range(40, 40 - cuda_entry.WORKSPACES, -1)]
    assert list(known[2::3]) == made[: -cuda_entry.WORKSPACES - 1 : -1]
    assert workspaces.workspace(device, 0x100, 4096) == made[0]
    assert known[2] == made[0]
    assert workspaces.workspace(device, 0x100, 2**20) != made[0], "a larger one is made beside the old one"
    assert known[0:3:2] == [0x100 + 1000, workspaces.workspace(device, 0x100, 2**20)]
    assert sum(word == 0x100 + 1000 for word in known[0::3]) == 1


def test_a_graph_is_lent_a_workspace_until_it_is_gone(gpu, nothing_held):
    device = cuda.cuda_device(0)
    own = workspaces.workspace(device, 0x500, 4096)
    gpu.capture = (1, 7, 70)
    lent = workspaces.workspace(device, 0x500, 4096)
    assert lent == workspaces.workspace(device, 0x500, 4096) != own
    gpu.capture = (1, 8, 80)
    second = workspaces.workspace(device, 0x500, 4096)
    assert second not in (own, lent)
    ctypes.CDLL(None).sem_post(next(one for one in workspaces._lent if one.address == lent).returned)
    gpu.capture = (1, 9, 90)
    assert workspaces.workspace(device, 0x500, 4096) == lent
    gpu.capture = (1, 10, 100)
    assert workspaces.workspace(device, 0x500, 4096) not in (own, lent, second)
    gpu.capture = (0, 0, None)
    assert workspaces.workspace(device, 0x500, 4096) == own


def test_scalars_of_every_kind_have_the_same_bits(gpu):
    rng = random.Random(5)
    for _ in range(20):
        x = array([rng.randrange(1, 5000)], ts.f32)
        wide = rng.uniform(-3e38, 3e38) if rng.random() < 0.5 else rng.gauss(0, 1)
        both(
            gpu,
            scalars,
            x,
            rng.gauss(0, 1) * 10 ** rng.randrange(-300, 300),
            wide,
            rng.gauss(0, 1e4) % 6e4,
            rng.choice([wide, 2, -1.00390625, 1.01171875]),
            rng.randrange(-128, 128),
            rng.randrange(2**16),
            rng.randrange(-(2**31), 2**31),
            rng.randrange(-(2**63), 2**63),
            rng.random() < 0.5,
            *([rng.randrange(2**63)] if rng.random() < 0.5 else []),
        )


def test_eight_arrays_odd_sizes_and_strides(gpu):
    rng = random.Random(6)
    for _ in range(12):
        m, n, b = rng.choice([1, 8, 17, 64, 130]), rng.choice([1, 16, 33, 96]), rng.randrange(1, 4)
        pad = rng.choice([0, 8, 3])
        args = [
            array([m, n], ts.f32, strides=(n + pad, 1)),
            array([n], ts.f16),
            array([m, n], ts.i8, strides=(1, m + pad)),
            array([b * m], ts.i64),
            array([b], ts.u8),
            array([m, 4], ts.f64),
            array([n, m], ts.bf16),
            array([m, n], ts.f32, strides=(n + pad, 1)),
        ]
        both(gpu, eight, *args, rng.randrange(1, 200))


def test_addresses_of_every_alignment(gpu):
    for address in (0x7F0000000000, 0x7F0000000004, 0x7F0000000008, 0x7F000000000C):
        x = array([96], ts.f32, address)
        both(gpu, scalars, x, 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True)


def test_tensor_maps_are_the_same_and_are_remembered(gpu):
    sizes = [(256, 512, 128), (300, 520, 200), (128, 256, 64), (8, 8, 8)]
    for m, n, k in sizes:
        for _ in range(3):
            args = array([m, k], ts.bf16), array([k, n], ts.bf16), array([m, n], ts.bf16)
            (launch,) = both(gpu, gemm, *args)
            made = gpu.encoded
            gemm(*args)
            assert gpu.encoded == made
            assert gpu.launches[-1][1:] == launch[1:]
    assert gpu.encoded > 0
    assert any(len(data) == 128 for data in launch[4])


@pytest.mark.parametrize("axis", [0, 1])
def test_strides_that_run_backwards_need_no_tensor_map(gpu, axis):
    m, n, k = 256, 512, 128
    forwards = array([m, k], ts.bf16), array([k, n], ts.bf16), array([m, n], ts.bf16)
    both(gpu, gemm, *forwards)  # the entry now knows a variant that such arrays must not get
    assert gpu.launches[-1][0] == "entry"
    steps = (-k, 1) if axis == 0 else (k, -1)
    backwards = array([m, k], ts.bf16, strides=steps)
    gpu.launches.clear()
    for _ in range(4):
        gemm(backwards, *forwards[1:])
    assert [launch[0] for launch in gpu.launches] == ["python"] * 4
    params = gpu.known[gpu.launches[-1][1]].params
    assert not [param for param in params if param.kind == "tensor_map" and param.arg == 0]


def test_an_artefact_for_tensor_maps_refuses_strides_that_run_backwards(gpu):
    made = ts.compile(gemm, target="sm_90a", dims=dict(M=256, N=512, K=128))
    args = (
        array([256, 128], ts.bf16, strides=(-128, 1)),
        array([128, 512], ts.bf16),
        array([256, 512], ts.bf16),
    )
    with pytest.raises(CallError, match="a stride divisible by 16 in dimension 0 of argument 'a', got -128") as caught:
        LoadedKernel(made)(*args)
    assert caught.value.code == "artifact-guard"


def test_no_tensor_map_is_made_of_strides_that_run_backwards(gpu):
    param = Parameter("tensor_map", 0, dtype="f32", order=(1, 0), box=(32, 64))
    with pytest.raises(DeviceError, match="strides run backwards") as caught:
        tensor_maps.encode(param, 0x7F0000000000, (64, 64), (-64, 1))
    assert caught.value.code == "tensor-map"
    assert len(tensor_maps.encode(param, 0x7F0000000000, (1, 64), (-64, 1))) == 128  # of one row, none is taken


def test_empty_arrays_have_maps_of_one_zero(gpu):
    cuda.zero_page.cache_clear()
    param = Parameter("tensor_map", 0, dtype="bf16", order=(1, 0), box=(64, 64))
    empty = tensor_maps.encode(param, 0, (0, 128), (128, 1))
    page = cuda.zero_page(0, False)
    assert empty == tensor_maps.encode(param, page, (1, 1), (8, 1))
    cuda.zero_page.cache_clear()


def test_operands_of_tf32_products_have_maps_that_round(gpu):
    x, y = (array([256, 256], ts.f32) for _ in range(2))
    (launch,) = both(gpu, with_residual, x, y, array([256, 256], ts.f32))
    maps = [param for param in gpu.known[launch[1]].params if param.kind == "tensor_map"]
    assert sorted((param.arg, param.dtype) for param in maps) == [(0, "tf32"), (1, "tf32"), (2, "f32")]
    # `CUtensorMapDataType`, cuda.h.
    kinds = {param.dtype: map_kind(param) for param in maps}
    assert kinds == {
        "tf32": int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32),
        "f32": int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
    }


def test_what_the_driver_refuses_is_an_error_of_the_call(gpu):
    x = array([64], ts.f32)
    args = x, 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True
    both(gpu, scalars, *args)
    gpu.status = 700
    for _ in range(2):
        with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS") as caught:
            scalars(*args)
        assert caught.value.code == "cuda-error"
        assert "test_direct_calls_cuda.py" in str(caught.value.location)
    assert gpu.launches[-1][0] == "entry"
    gpu.status = 0
    both(gpu, scalars, *args)


def test_a_map_that_the_driver_refuses_is_a_typed_error(gpu):
    args = array([256, 64], ts.bf16), array([64, 256], ts.bf16), array([256, 256], ts.bf16)
    both(gpu, gemm, *args)
    fresh = array([256, 64], ts.bf16), array([64, 256], ts.bf16), array([256, 256], ts.bf16)
    gpu.status = 1
    before = len(gpu.launches)
    with pytest.raises(DeviceError):  # the Python path says so: it, too, asks the driver for a launch
        gemm(*fresh)
    assert gpu.launches[before:][0][0] == "python"
    gpu.status = 0
    assert both(gpu, gemm, *fresh)


def test_another_context_and_other_arrays_go_through_python(gpu):
    x = array([64], ts.f32)
    rest = 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True
    both(gpu, scalars, x, *rest)
    gpu.context = 0x999
    scalars(x, *rest)
    assert gpu.launches[-1][0] == "python"
    gpu.context = CONTEXT
    scalars(x, *rest)
    assert gpu.launches[-1][0] == "entry"
    elsewhere = DeviceArray((0,), ts.f32, Device("cuda", 0), stream=0x55)
    for _ in range(4):
        scalars(elsewhere, *rest)
        assert not gpu.launches or gpu.launches[-1][0] == "entry"  # the one before: this grid is empty
    assert scalars._direct.last() is None
    scalars(x, *rest)
    assert gpu.launches[-1][0] == "entry"
    scalars(x, *rest, stream=0x77)
    assert gpu.launches[-1][0] == "python"
    assert gpu.launches[-1][3] == 0x77


def test_empty_grids_start_nothing_and_too_large_ones_are_errors(gpu):
    both(gpu, scalars, array([64], ts.f32), 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True)
    gpu.launches.clear()
    for _ in range(6):
        scalars(array([0], ts.f32), 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True)
    assert gpu.launches == []

    huge = array([2**42], ts.f32, 0x7F0000000000, (1,))
    for _ in range(4):
        with pytest.raises(CallError) as caught:
            scalars(huge, 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True)
        assert caught.value.code == "grid-too-large"


def test_the_streams_function_gives_the_stream(gpu, monkeypatch):
    """PyTorch's current stream is asked at every launch; a failure of the question goes through Python."""
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def current(kind, index, out):
        asked.append((kind, index))
        out[0] = 0x4400
        return 0

    address = ctypes.cast(current, ctypes.c_void_p).value
    plain = cuda_launch.CudaLauncher.work
    monkeypatch.setattr(cuda_launch.CudaLauncher, "work", lambda self, _stream_of: plain(self, address))

    @ts.kernel
    def double(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] + x[i]

    x = array([64], ts.f32)
    for _ in range(4):
        double(x)
    assert gpu.launches[-1][0] == "entry"
    assert gpu.launches[-1][3] == 0x4400
    assert asked[-1] == (2, 0)
    assert double.explain().backend == "ptx"


def test_numbers_of_the_driver_are_the_bindings():
    kinds = driver.CUtensorMapDataType
    names = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32"}
    names |= {
        "i64": "INT64",
        "tf32": "TFLOAT32",
        "u16": "UINT16",
        "i16": "UINT16",
        "u32": "UINT32",
        "u64": "UINT64",
    }
    names |= dict.fromkeys(("i8", "u8", "bool", "fp8_e4m3", "fp8_e5m2"), "UINT8")
    for name, theirs in names.items():
        param = Parameter("tensor_map", arg=0, dtype=name, order=(0,), box=(16,))
        kind = map_kind(param)
        assert kind == int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{theirs}")), name
    for width, number in tensor_maps._SWIZZLES.items():
        assert number == int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{width}B"))
    assert int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B) == tensor_maps._PROMOTE_128


def test_the_description_of_a_device_array(gpu):
    x = array([3, 5], ts.bf16, 0x7F0000000040, (8, 1))
    pointer, kind, index, rank, code, bits, lanes, sizes, strides, offset = struct.unpack("<QiiiBBHQQQ", x.description)
    assert (pointer, kind, index, rank, offset) == (0x7F0000000040, 2, 0, 2, 0)
    assert (code, bits, lanes) == (*dlpack.type_code(ts.bf16), 1)
    assert list((ctypes.c_int64 * 2).from_address(sizes)) == [3, 5]
    assert list((ctypes.c_int64 * 2).from_address(strides)) == [8, 1]
    assert DeviceArray((0,), ts.f32, Device("cuda", 0), stream=5).description is None


def test_device_arrays_take_other_dimensions(gpu):
    x = array([4, 6], ts.f32, 0x7F0000000040)
    for given, shape in (((8, -1), (8, 3)), (((2, 12),), (2, 12)), ((-1,), (24,)), (([1, 4, 6],), (1, 4, 6))):
        y = x.reshape(*given)
        assert (y.shape, y.strides, y.dtype, y.pointer) == (shape, row_major(shape), ts.f32, x.pointer)
        assert struct.unpack("<QiiiBBHQQQ", y.description)[3] == len(shape)
    y.used_on(0x55)
    assert 0x55 in x._memory.users  # so that freeing `x` waits for it
    empty = array([0, 6], ts.f32).reshape(3, 0)
    assert empty.shape == (3, 0)
    for wrong in ((5, -1), (4, 5), (-1, -1), (-2, -12)):
        with pytest.raises(CallError, match="wrong-shape"):
            x.reshape(*wrong)
    with pytest.raises(CallError, match="not-contiguous"):
        array([4, 6], ts.f32, strides=(8, 1)).reshape(24)


def test_launches_that_overlap_say_so_to_the_driver(gpu):
    x = array([64], ts.f32)
    (launch,) = both(gpu, scalars, x, 1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, True)
    assert scalars.explain().target == "sm_90a"
    attribute = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert launch[2][-3:] == ("overlaps", int(attribute), 1)
    assert cuda_entry.PROGRAMMATIC_SERIALIZATION == int(attribute)

    @ts.kernel
    def older(y: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            y[i] = y[i] + 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "target_of", lambda _index: target_named("sm_80"))
        (launch,) = both(gpu, older, x)
    assert "overlaps" not in launch[2]
