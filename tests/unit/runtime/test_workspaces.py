"""Workspaces under capture: which calls are made and in which order, by a driver that knows what a capture forbids.

The semaphore that tells when a graph has given its workspace back is a real one; graphs need a GPU (tests/device).
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.entry.host import function_address
from tessera.errors import DeviceError
from tessera.runtime import cuda, workspaces
from tessera.runtime.device import Device
from tessera.runtime.workspaces import _SEMAPHORE_BYTES, _is_posted

GPU: Any = SimpleNamespace(device=Device("cuda", 0))
OWN, SIDE = 0x500, 0x900
GIVEN = ["cuMemAlloc", "cuStreamCreate", "cuMemsetD32Async", "cuStreamSynchronize", "cuStreamDestroy"]
LENT = ["cuUserObjectCreate", "cuGraphRetainUserObject"]


class FakeDriver:
    """Notes calls; one that a capture forbids is refused and ends the capture.

    Args:
        names: the driver's enumerations.
        status: of the stream `OWN`.
        beside: whether some thread captures.
    """

    def __init__(self, names: Any, status: int, beside: bool) -> None:
        self.names, self.status, self.beside = names, status, beside or status == 1
        self.mode = names.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self.calls: list[str] = []
        self.memory, self.full, self.cleared = 0x1000, False, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.names, name)

    def _made(self, name: str, *values: Any, unsafe: bool = False, never: bool = False) -> Any:
        self.calls.append(name)
        relaxed = self.mode == self.names.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        if never or (unsafe and self.beside and not relaxed):
            self.status = 2
            return self.names.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, *values
        return self.names.CUresult.CUDA_SUCCESS, *values

    def cuGetErrorString(self, _status: Any) -> Any:
        return self.names.CUresult.CUDA_SUCCESS, b""

    def cuStreamGetCaptureInfo(self, stream: int) -> Any:
        assert stream == OWN
        found = (7, 70) if self.status == 1 else (0, None)
        status = self.names.CUstreamCaptureStatus(self.status)
        return self._made("cuStreamGetCaptureInfo", status, *found, [], [], 0)

    def cuStreamGetId(self, stream: int) -> Any:
        return self._made("cuStreamGetId", stream + 1000, never=self.status != 0)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before, self.mode = self.mode, mode
        return self._made(mode.name.removeprefix("CU_STREAM_CAPTURE_MODE_"), before)

    def cuMemAlloc(self, size: int) -> Any:
        if self.full:
            return self.names.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        self.memory += size
        return self._made("cuMemAlloc", self.memory - size, unsafe=True)

    def cuStreamCreate(self, flags: Any) -> Any:
        assert flags == self.names.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._made("cuStreamCreate", SIDE, unsafe=True)

    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> Any:
        assert stream == SIDE, "what a graph does again would clear the flags again"
        self.cleared.append((address, value, count))
        return self._made("cuMemsetD32Async")

    def cuStreamSynchronize(self, stream: int) -> Any:
        assert stream == SIDE
        return self._made("cuStreamSynchronize", unsafe=True)

    def cuStreamDestroy(self, stream: int) -> Any:
        assert stream == SIDE
        return self._made("cuStreamDestroy", unsafe=True)

    def cuUserObjectCreate(self, pointer: int, _post: Any, count: int, _flags: int) -> Any:
        return self._made("cuUserObjectCreate", pointer)

    def cuGraphRetainUserObject(self, graph: int, _token: int, _count: int, _flags: int) -> Any:
        assert graph == 70
        return self._made("cuGraphRetainUserObject")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a driver with one stream in some state of capture, and no workspace yet."""
    names = pytest.importorskip("cuda.bindings.driver")
    for name, empty in (("_current", {}), ("_lent", []), ("_tables", {})):
        monkeypatch.setattr(workspaces, name, empty)
    monkeypatch.setattr(cuda, "stream_object", lambda stream: stream)

    def made(status: int = 0, beside: bool = False) -> FakeDriver:
        fake = FakeDriver(names, status, beside)
        monkeypatch.setattr(cuda, "driver", lambda: fake)
        return fake

    return made


def test_a_capture_is_asked_for_before_anything_that_would_end_it(machine: Any) -> None:
    fake = machine(status=1)
    address = workspaces.workspace(GPU, OWN, 4096)
    assert fake.calls == ["cuStreamGetCaptureInfo", "RELAXED", *GIVEN, *LENT, "GLOBAL"]
    assert fake.status == 1
    assert fake.cleared == [(address, 0, workspaces.FLAG_BYTES // 4)]
    fake.calls.clear()
    assert workspaces.workspace(GPU, OWN, 4096) == address
    assert fake.calls == ["cuStreamGetCaptureInfo"]
    assert not any(workspaces._table(0)), "the compiled entry is not told of it"


@pytest.mark.parametrize("beside", [False, True])
def test_a_stream_goes_by_its_number(machine: Any, beside: bool) -> None:
    fake = machine(beside=beside)
    address = workspaces.workspace(GPU, OWN, 4096)
    assert fake.calls == ["cuStreamGetCaptureInfo", "cuStreamGetId", "RELAXED", *GIVEN, "GLOBAL"]
    fake.calls.clear()
    assert workspaces.workspace(GPU, OWN, 4096) == address
    assert fake.calls == ["cuStreamGetCaptureInfo", "cuStreamGetId"]
    assert list(workspaces._table(0))[::2][:2] == [OWN + 1000, address]


def test_the_default_stream_is_not_asked(machine: Any) -> None:
    fake = machine()
    workspaces.workspace(GPU, 0, 4096)
    assert fake.calls == ["RELAXED", *GIVEN, "GLOBAL"]


def test_a_capture_that_has_ended_in_failure_is_an_error(machine: Any) -> None:
    fake = machine(status=2)
    with pytest.raises(DeviceError, match="STREAM_CAPTURE_INVALIDATED"):
        workspaces.workspace(GPU, OWN, 4096)
    assert fake.calls == ["cuStreamGetCaptureInfo"]


def test_the_threads_mode_comes_back_after_a_failure(machine: Any) -> None:
    fake = machine(status=1)
    fake.full = True
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        workspaces.workspace(GPU, OWN, 4096)
    assert fake.calls == ["cuStreamGetCaptureInfo", "RELAXED", "GLOBAL"]
    assert not workspaces._current


def test_a_native_call_posts_the_semaphore() -> None:
    library = ctypes.CDLL(None)
    semaphore = (ctypes.c_char * _SEMAPHORE_BYTES)()
    library.sem_init(semaphore, 0, 0)
    assert not _is_posted(semaphore)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function_address(library, "sem_post"))(ctypes.addressof(semaphore))
    assert _is_posted(semaphore)
