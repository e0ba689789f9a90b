"""The CUDA runtime on a real GPU: arrays, streams, launches, errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import runtime
from tessera.driver.kernel import kernel as kernel_decorator
from tessera.driver.settings import settings
from tessera.errors import CallError, DeviceError
from tessera.runtime import backend, cuda
from tessera.runtime.cuda_array import DeviceArray
from tessera.runtime.device import Device

pytestmark = pytest.mark.device

DTYPES = [
    "f64",
    "f32",
    "f16",
    "bf16",
    "fp8_e4m3",
    "fp8_e5m2",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u32",
    "u64",
    "bool",
]


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32 = 2.0):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@ts.kernel
def scale(x: ts.Tensor["M", "N", ts.bf16], by: ts.f32, shift: ts.i32):
    for m, k in ts.tile.grid((M, 8), (N, 16)):
        x[m : m + 8, k : k + 16] = ts.tile.cast(
            ts.tile.cast(x[m : m + 8, k : k + 16], ts.f32) * by + ts.tile.cast(shift, ts.f32), ts.bf16
        )
    return x


def code_of(call):
    with pytest.raises(CallError) as caught:
        call()
    return caught.value.code


def test_the_device_is_described():
    caps = runtime.capabilities("ptx")
    assert caps["backend"] == "ptx"
    assert caps["warp_size"] == 32
    assert caps["shared_bytes_per_block"] >= 48 * 1024
    info = next(info for info in runtime.devices() if info.backend == "ptx")
    assert info.device == Device("cuda", 0)
    assert info.target == caps["target"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_round_trip_keeps_every_bit(dtype):
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 4096, dtype=np.uint8)
    host = bits.view(ts.empty(1, dtype).dtype).reshape(16, -1)
    device = ts.asarray(host, device="cuda")
    assert isinstance(device, DeviceArray)
    assert (device.shape, device.dtype.name) == (host.shape, dtype)
    np.testing.assert_array_equal(device.numpy().view(np.uint8), host.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill(dtype):
    host = ts.full((5, 7), 1, dtype, device="cuda").numpy()
    np.testing.assert_array_equal(host.astype(np.float64), np.ones((5, 7)))
    assert not ts.zeros(9, dtype, device="cuda").numpy().astype(np.float64).any()


def test_empty_arrays():
    assert ts.empty((0, 4), device="cuda").numpy().shape == (0, 4)
    assert saxpy(ts.empty(0, device="cuda"), ts.empty(0, device="cuda")).size == 0


@pytest.mark.parametrize("count", [1, 7, 1000, 4097, 1_000_003])
def test_a_launch_on_own_arrays(count):
    x = np.arange(count, dtype=np.float32) % 1000
    device_x, device_y = ts.asarray(x, device="cuda"), ts.ones(count, device="cuda")
    assert saxpy(device_x, device_y, 0.5) is device_y
    np.testing.assert_array_equal(device_y.numpy(), np.float32(0.5) * x + 1)
    ran = saxpy.explain()
    assert (ran.backend, ran.device) == ("ptx", "cuda:0")
    assert ran.target == runtime.capabilities("ptx")["target"]


def test_scalars_and_two_dimensions():
    x = np.random.default_rng(1).standard_normal((33, 50)).astype(ml_dtypes.bfloat16)
    device = ts.asarray(x, device="cuda")
    scale(device, 0.5, -3)
    wanted = (x.astype(np.float32) * np.float32(0.5) - 3).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(device.numpy(), wanted)


def test_mixed_devices_and_host_arrays_under_ptx(monkeypatch):
    host = np.ones(8, np.float32)
    assert code_of(lambda: saxpy(host, ts.ones(8, device="cuda"))) == "wrong-device"
    monkeypatch.setattr(backend._choice, "name", None)
    runtime.select_backend("ptx")
    assert code_of(lambda: saxpy(host, host.copy())) == "wrong-device"
    assert isinstance(ts.empty(3), DeviceArray)
    assert ts.compile(saxpy).backend == "ptx"


def test_a_missing_device_is_an_error():
    with pytest.raises(DeviceError) as caught:
        ts.empty(3, device="cuda:99")
    assert caught.value.code == "no-device"


def test_too_much_memory_is_an_error_and_leaves_the_device_usable():
    with pytest.raises(DeviceError) as caught:
        ts.empty(1 << 50, "u8", device="cuda")
    assert caught.value.code == "out-of-memory"
    assert ts.ones(3, device="cuda").numpy().sum() == 3


def test_freed_memory_is_used_again():
    for _ in range(200):
        array = ts.empty(1 << 28, "u8", device="cuda")  # 50 GB if nothing were freed
        array.fill(1)
        del array
    gc.collect()


def test_an_artefact_runs_from_a_file(tmp_path):
    path = tmp_path / "saxpy.tessera"
    ts.compile(saxpy, target=runtime.capabilities("ptx")["target"]).save(path)
    x, y = ts.ones(1000, device="cuda"), ts.ones(1000, device="cuda")
    assert ts.load(path)(x, y, 4.0) is y
    assert (y.numpy() == 5).all()


def test_the_interpreter_copies_out_and_in(monkeypatch):
    monkeypatch.setattr(settings(), "interpret", True)
    kernel = kernel_decorator(saxpy.__wrapped__)
    x, y = ts.ones(100, device="cuda"), ts.ones(100, device="cuda")
    kernel(x, y, 4.0)
    assert kernel.explain().backend == "interp"
    assert (y.numpy() == 5).all()


CHECKED = """
import tessera as ts
from tessera.errors import DeviceError

@ts.kernel
def checked(x: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i < n:
        v = x[i]
        assert v >= 0.0, "negative input"
        x[i] = v

checked(ts.ones(100, device="cuda"))
try:
    checked(ts.full(100, -1, device="cuda"))
except DeviceError as error:
    print("code", error.code)
"""


@pytest.mark.bare
def test_a_failed_assertion_is_an_error_of_the_call(tmp_path):
    path = tmp_path / "checked.py"  # a process of its own: a trap makes its context unusable
    path.write_text(CHECKED, encoding="utf-8")
    environment = {**os.environ, "TESSERA_DEBUG": "1"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment)
    assert "code device-assert" in done.stdout, done.stderr
    assert "negative input" in done.stdout


# PyTorch
@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return found


def test_torch_tensors_pass_and_come_back(torch):
    x, y = torch.arange(1000, device="cuda", dtype=torch.float32), torch.ones(1000, device="cuda")
    assert saxpy(x, y) is y
    assert torch.equal(y, 2 * x + 1)


@pytest.mark.parametrize("view", [lambda a: a[::2], lambda a: a[3:], lambda a: a[5:6]])
def test_torch_views(torch, view):
    x, y = torch.arange(1000, device="cuda", dtype=torch.float32), torch.ones(1000, device="cuda")
    wanted = y.clone()
    view(wanted).copy_(3 * view(x) + 1)
    saxpy(view(x), view(y), 3.0)
    assert torch.equal(y, wanted)


def test_torch_on_the_cpu(torch):
    x, y = torch.arange(1000, dtype=torch.float32), torch.ones(1000)
    assert saxpy(x, y) is y
    assert saxpy.explain().backend == "cpu"
    assert torch.equal(y, 2 * x + 1)


def test_a_negated_view_and_a_sparse_tensor_are_errors(torch):
    z = torch.ones(8, dtype=torch.complex64, device="cuda").conj().imag
    assert z.is_neg()
    assert code_of(lambda: saxpy(z, torch.ones(8, device="cuda"))) == "not-an-array"
    sparse = torch.ones(8, device="cuda").to_sparse()
    assert code_of(lambda: saxpy(sparse, torch.ones(8, device="cuda"))) == "not-an-array"


def test_the_current_stream_is_respected(torch):
    stream = torch.cuda.Stream()
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s: anything not ordered behind it would read zeros
        y.add_(1.0)
        saxpy(x, y, 1.0)
        y.mul_(2.0)
    stream.synchronize()
    assert (y == 4).all()


@pytest.mark.parametrize("spelled", [lambda s: s, lambda s: s.cuda_stream])
def test_an_explicit_stream(torch, spelled):
    stream = torch.cuda.Stream()
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y.add_(1.0)
    saxpy(x, y, 1.0, stream=spelled(stream))
    stream.synchronize()
    assert (y == 2).all()


def test_own_arrays_are_ordered_across_streams(torch):
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        y = ts.ones(1 << 20, device="cuda")
        saxpy(x, y, 1.0)  # on torch's stream, which waits for the fill on the default stream
    assert (y.numpy() == 2).all()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        saxpy(x, y, 1.0)
    del y  # the memory is given back behind the launch
    other = ts.zeros(1 << 20, device="cuda")
    stream.synchronize()
    assert (other.numpy() == 0).all()


def test_dlpack_to_and_from_torch(torch):
    own = ts.asarray(np.arange(12, dtype=np.float32).reshape(3, 4), device="cuda")
    tensor = torch.from_dlpack(own)
    assert tensor.data_ptr() == own.pointer
    tensor += 1
    torch.cuda.synchronize()
    np.testing.assert_array_equal(own.numpy(), np.arange(12, dtype=np.float32).reshape(3, 4) + 1)
    del own
    gc.collect()
    assert tensor.sum().item() == 78
    borrowed = runtime.from_dlpack(tensor.t())
    assert (borrowed.pointer, borrowed.strides) == (tensor.data_ptr(), (1, 4))
    np.testing.assert_array_equal(borrowed.numpy(), tensor.t().cpu().numpy())
    np.testing.assert_array_equal(runtime.to_numpy(tensor[:, ::2]), tensor[:, ::2].cpu().numpy())


def test_torch_reads_the_cuda_interface(torch):
    own = ts.ones((4, 5), device="cuda")
    assert torch.as_tensor(own, device="cuda").data_ptr() == own.pointer


def test_the_current_device_of_torch_is_left_alone(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(1):
        x, y = torch.ones(100, device="cuda:0"), torch.ones(100, device="cuda:0")
        saxpy(x, y)
        assert torch.cuda.current_device() == 1
        a, b = torch.ones(100, device="cuda:1"), torch.ones(100, device="cuda:1")
        saxpy(a, b)
    torch.cuda.synchronize(0)
    assert (y == 3).all()
    assert (b == 3).all()


def test_kernels_are_captured_in_cuda_graphs(torch):
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    saxpy(x, y, 1.0)  # compiled and loaded before the capture
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        saxpy(x, y, 1.0)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (y == 3).all()


@pytest.mark.bare
def test_launch_overhead(torch, record_property):
    x, y = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
    own_x, own_y = ts.ones(64, device="cuda"), ts.ones(64, device="cuda")
    for name, a, b in (("torch", x, y), ("own", own_x, own_y)):
        for _ in range(10):
            saxpy(a, b, 1.0)
        best = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                saxpy(a, b, 1.0)
            best = min(best, (time.perf_counter() - start) / 200)
        record_property(f"launch_us_{name}", round(best * 1e6, 2))
        print(f"launch of 2 {name} arrays: {best * 1e6:.2f} us")
        assert best < 50e-6


def test_errors_of_the_driver_have_their_name():
    cu = cuda.driver()
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        cuda.check(cu.cuMemcpyHtoD(0, 0, 16))
    assert caught.value.code == "cuda-error"
