"""Choosing backends, and what they can do."""

from __future__ import annotations

import sys

import pytest

from tessera.errors import CallError, DeviceError, TargetError
from tessera.runtime import backend, cuda
from tessera.runtime.backend import backend_for, capabilities, devices, select_backend, selected_backend
from tessera.runtime.device import CPU, Device, as_device


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch):
    monkeypatch.setattr(backend, "_choice", backend._Choice())
    monkeypatch.delenv("TESSERA_BACKEND", raising=False)


@pytest.fixture
def _no_gpu(monkeypatch):
    def missing():
        raise DeviceError("no usable NVIDIA driver", code="no-driver")

    monkeypatch.setattr(cuda, "driver", missing)
    cuda.cuda_device.cache_clear()


def test_arrays_decide_until_somebody_chooses():
    assert selected_backend() is None
    assert backend_for(CPU) == "cpu"
    assert backend_for(Device("cuda", 0)) == "ptx"


def test_a_choice_makes_other_arrays_an_error():
    select_backend("cpu")
    assert backend_for(CPU) == "cpu"
    with pytest.raises(CallError) as caught:
        backend_for(Device("cuda", 0))
    assert caught.value.code == "wrong-device"


def test_numpy_arrays_under_ptx_say_how_to_copy(monkeypatch):
    monkeypatch.setattr(backend._choice, "name", "ptx")
    with pytest.raises(CallError, match=r"asarray\(array, device=\"cuda\"\)"):
        backend_for(CPU)


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("TESSERA_BACKEND", "cpu")
    assert selected_backend() == "cpu"


@pytest.mark.parametrize("name", ["rocm", "level_zero"])
def test_backends_that_come_later_say_so(name, monkeypatch):
    with pytest.raises(TargetError) as caught:
        select_backend(name)
    assert caught.value.code == "unsupported-backend"
    monkeypatch.setenv("TESSERA_BACKEND", name)
    with pytest.raises(TargetError, match="TESSERA_BACKEND"):
        selected_backend()
    with pytest.raises(TargetError):
        capabilities(name)


def test_an_unknown_backend_lists_the_known():
    with pytest.raises(TargetError, match="cpu, ptx, rocm, level_zero"):
        select_backend("cuda")


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_gpu_ptx_is_an_error_and_the_cpu_is_found():
    with pytest.raises(DeviceError) as caught:
        select_backend("ptx")
    assert caught.value.code == "no-driver"
    assert selected_backend() is None
    assert [info.backend for info in devices()] == ["cpu"]
    caps = capabilities()
    assert (caps["backend"], caps["warp_size"], caps["cp_async"]) == ("cpu", 1, False)
    assert caps["tensorcore"]["fp8_e4m3"] is False
    with pytest.raises(DeviceError):
        capabilities("ptx")


def test_missing_bindings_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    cuda.driver.cache_clear()
    try:
        with pytest.raises(TargetError) as caught:
            cuda.driver()
    finally:
        cuda.driver.cache_clear()
    assert caught.value.code == "missing-extra"
    assert caught.value.help == 'pip install "tessera[gpu-cuda]"'


def test_streams_of_every_library():
    class Torch:
        cuda_stream = 5

    class CuPy:
        ptr = 6

    class Core:
        def __cuda_stream__(self):
            return (0, 7)

    assert [cuda.stream_address(stream) for stream in (4, Torch(), CuPy(), Core())] == [4, 5, 6, 7]
    with pytest.raises(CallError) as caught:
        cuda.stream_address("main")
    assert caught.value.code == "bad-stream"


@pytest.mark.parametrize(("text", "device"), [("cpu", CPU), ("cuda", Device("cuda", 0)), ("cuda:3", Device("cuda", 3))])
def test_device_names(text, device):
    assert as_device(text) == device
    assert as_device(device) is device
    assert as_device(str(device)) == device


@pytest.mark.parametrize("text", ["cuda:", "cuda:-1", "gpu", "", "cpu:1"])
def test_wrong_device_names(text):
    with pytest.raises(TargetError) as caught:
        as_device(text)
    assert caught.value.code == "unknown-device"


@pytest.mark.parametrize(
    ("capability", "target"),
    [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((10, 3), "sm_100"), ((7, 5), "sm_75"), ((12, 1), "sm_120")],
)
def test_the_target_of_a_gpu(capability, target, monkeypatch):
    info = cuda.CudaDevice(Device("cuda", 0), None, 0, "GPU", capability, 1, 1, 1)
    monkeypatch.setattr(cuda, "cuda_device", lambda index: info)
    cuda.target_of.cache_clear()
    try:
        assert cuda.target_of(0).name == target
    finally:
        cuda.target_of.cache_clear()
