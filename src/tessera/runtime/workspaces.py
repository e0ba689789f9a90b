"""Device memory in which the programs of a launch hand partial sums on.

What runs on one stream runs in order, so that all its launches share one workspace, made at the first launch that wants
it or wants more of it, and kept. A graph may be replayed anywhere beside the stream that captured it: each capture is
lent workspaces of its own, one for each stream that takes part, until the graph and all that was made of it are gone.
One graph that is instantiated twice must not run twice at once.

Every launch leaves the flags as it finds them, 0 (see `target.artifact.Launch.slot_bytes`): nothing is cleared again.

The compiled entry finds the workspaces of streams in a table (`known`); what is captured it leaves to Python.

Source: CUDA driver API, "Stream Management" (cuStreamGetCaptureInfo, cuThreadExchangeStreamCaptureMode), "Graph
Management" (cuGraphRetainUserObject).
"""

from __future__ import annotations

import ctypes
from threading import Lock
from typing import Any

from tessera.data import dataclass
from tessera.entry.host import function_address
from tessera.runtime import cuda
from tessera.runtime.cuda_entry import WORKSPACE, WORKSPACES
from tessera.target.artifact import FLAG_BYTES

_SEMAPHORE_BYTES = 64
"""At least a `sem_t`."""


@dataclass(eq=False, slots=True)
class _Held:
    """A workspace, and the semaphore that is posted when its graph is gone; None for those of streams."""

    device: int
    address: int
    size: int
    returned: Any = None


@dataclass(frozen=True, slots=True)
class _Name:
    """What a workspace goes by on its device.

    `stream` is the stream's number, as an address may return after its stream's end; for what is captured it is the
    address, as nothing else may be asked for, and `capture` the number of the capture. Streams that take part in a
    capture are to live as long as that.
    """

    stream: int = 0
    capture: int | None = None


_lock = Lock()
_current: dict[tuple[int, _Name], _Held] = {}
"""By device and name."""
_lent: list[_Held] = []
_tables: dict[int, Any] = {}
"""By device, what the compiled entry reads, and the words of all entries."""


def known(device: int) -> int:
    """Return the address of the table of a GPU's workspaces: `WORKSPACES` entries of `WORKSPACE`."""
    return ctypes.addressof(_table(device))


def _table(device: int) -> Any:
    if device not in _tables:
        _tables[device] = (ctypes.c_int64 * (len(WORKSPACE) * WORKSPACES))()
    return _tables[device]


def _publish(device: int, stream: int, held: _Held) -> None:
    """Put a stream's workspace at the head of the table, in the place of the stream's old one or of the last."""
    table, width = _table(device), len(WORKSPACE)
    rows = [tuple(table[start : start + width]) for start in range(0, len(table), width)]
    fresh = (stream, held.size - FLAG_BYTES, held.address)
    if rows[0] == fresh:
        return
    others = [row for row in rows if row[0] != stream and row[1]][: WORKSPACES - 1]
    words = [word for row in (fresh, *others) for word in row]
    table[:] = words + [0] * (len(table) - len(words))  # at once, for who holds the GIL


def workspace(device: cuda.CudaDevice, stream: int, slots_bytes: int) -> int:
    """Return the address of a stream's workspace; the device's context is current.

    Args:
        device: the GPU.
        stream: the stream's address.
        slots_bytes: bytes of all slots, besides the flags.

    Raises:
        DeviceError: `cuda-error` when there is no memory left.
    """
    cu = cuda.driver()
    name, graph = _asked(cu, stream) if stream else (_Name(), None)  # the default stream cannot be captured
    index, wanted = device.device.index, FLAG_BYTES + slots_bytes
    with _lock:
        held = _current.get((index, name))
        if held is None or held.size < wanted:
            # Launches under way may still use the one before, which therefore stays.
            held = _current[index, name] = _made(cu, index, wanted, graph)
        if name.capture is None:
            _publish(index, name.stream, held)
    return held.address


def _asked(cu: Any, stream: int) -> tuple[_Name, Any]:
    """Return what a stream's workspace goes by, and the graph that it is captured into, if any.

    What a capture forbids also ends it, so that the status is asked for first: `cuStreamGetId` is forbidden.
    """
    queue = cuda.stream_object(stream)
    status, capture, graph, *_ = cuda.check(cu.cuStreamGetCaptureInfo(queue))
    known = cu.CUstreamCaptureStatus
    if int(status) == int(known.CU_STREAM_CAPTURE_STATUS_ACTIVE):
        return _Name(stream, int(capture)), graph
    if int(status) == int(known.CU_STREAM_CAPTURE_STATUS_INVALIDATED):  # there is no graph any more
        cuda.check((cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,))
    return _Name(int(cuda.check(cu.cuStreamGetId(queue)))), None


def _made(cu: Any, device: int, wanted: int, graph: Any) -> _Held:
    """Return a workspace of at least so many bytes, without a trace in the graph that is being captured, if any.

    Allocations and waits are forbidden to a thread that captures, or beside one that does in the mode "global", until
    the thread's own mode is "relaxed". A graph that is being captured may be given user objects at any time.
    """
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = cuda.check(cu.cuThreadExchangeStreamCaptureMode(mode))
    try:
        held = _given_back(device, wanted) if graph is not None else None
        if held is None:
            size = 1 << (wanted - 1).bit_length()
            held = _Held(device, _allocated(cu, size), size)
        if graph is not None:
            _lend(cu, held, graph)
    finally:
        cuda.check(cu.cuThreadExchangeStreamCaptureMode(before))
    return held


def _allocated(cu: Any, size: int) -> int:
    """Return the address of new memory whose flags are 0: set on a stream of its own, which no capture takes in."""
    address = cuda.check(cu.cuMemAlloc(size))
    side = cuda.check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    cuda.check(cu.cuMemsetD32Async(address, 0, FLAG_BYTES // 4, side))
    cuda.check(cu.cuStreamSynchronize(side))
    cuda.check(cu.cuStreamDestroy(side))
    return int(address)


def _lend(cu: Any, held: _Held, graph: Any) -> None:
    """Let a graph keep a workspace; the driver posts the semaphore, for which it needs no Python, once it is gone."""
    library = ctypes.CDLL(None)
    held.returned = (ctypes.c_char * _SEMAPHORE_BYTES)()
    library.sem_init(held.returned, 0, 0)
    no_wait = cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    post = cu.CUhostFn(function_address(library, "sem_post"))
    token = cuda.check(cu.cuUserObjectCreate(ctypes.addressof(held.returned), post, 1, int(no_wait)))
    move = cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
    cuda.check(cu.cuGraphRetainUserObject(graph, token, 1, int(move)))
    _lent.append(held)


def _given_back(device: int, wanted: int) -> _Held | None:
    """Return a large enough workspace whose graph is gone."""
    for held in _lent:
        if held.device == device and held.size >= wanted and _is_posted(held.returned):
            _lent.remove(held)
            for key in [key for key, one in _current.items() if one is held]:
                del _current[key]
            return held
    return None


def _is_posted(semaphore: Any) -> bool:
    value = ctypes.c_int()
    ctypes.CDLL(None).sem_getvalue(semaphore, ctypes.byref(value))
    return value.value > 0
