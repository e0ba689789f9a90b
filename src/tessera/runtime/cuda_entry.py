"""What the compiled entry's launches on NVIDIA GPUs read: words and structs, shared by who writes and who reads them.

Source: CUDA Driver API, `CUlaunchConfig`, `CUlaunchAttribute`.
"""

from __future__ import annotations

from typing import Final

from tessera.entry.layout import WORD, words

OWN: Final = words(
    "context",
    "current_context",
    "launch_kernel",
    "launch_with",
    "stream_of",
    "device",
    "encode",
    "workspaces",
    "is_capturing",
    "stream_id",
)
"""Words of a record: the GPU's context and number, functions of the driver, the DLPack function that gives the current
stream (0 for the default stream), and a table of `WORKSPACES` workspaces."""

WORKSPACE: Final = words("stream", "slots_bytes", "address")
WORKSPACE_BYTES: Final = WORD * len(WORKSPACE)
WORKSPACES: Final = 16
"""Workspaces of a GPU that the entry knows: those of the streams that came last."""

GRID_LIMIT: Final = 2**31 - 1
"""Most programs of a launch."""
DLPACK_KIND: Final = 2
"""DLPack's `kDLCUDA`, the first of the platform's kinds."""

MAP_CONSTANTS: Final = words("kind", "interleave", "swizzle", "promotion", "fill")
"""What no call changes of a tensor map: `CUtensorMapDataType` and so on."""

# The one attribute is of launches that may begin while the one before still runs.
CONFIG: Final = {"grid": 0, "block": 12, "shared": 24, "stream": 32, "attributes": 40, "count": 48}
CONFIG_WORDS: Final = 7
ATTRIBUTE: Final = {"id": 0, "value": 8}
ATTRIBUTE_WORDS: Final = 9
PROGRAMMATIC_SERIALIZATION: Final = 6

WALK: Final = words(
    "context",
    "current_context",
    "launch_kernel",
    "launch_with",
    "patch_count",
    "patches",
    "start_count",
    "starts",
)
"""A table of launches: addresses are put where patches say, then all starts are made."""
START: Final = words("function", "grid", "threads", "shared", "params", "config")
"""One start; `config` is the address of its `CUlaunchConfig` where it may begin before the one before has ended."""
START_BYTES: Final = WORD * len(START)
OTHER_CONTEXT: Final = -1
"""What walking a table gives where another GPU's context is current: nothing has happened."""
