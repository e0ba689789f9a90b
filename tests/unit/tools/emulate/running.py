"""Runs a few instructions of PTX for the threads of one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.tools.emulate.access import marked
from tessera.tools.emulate.calls import inlined
from tessera.tools.emulate.launch import MULTIPROCESSORS
from tessera.tools.emulate.machine import Grid, Machine
from tessera.tools.emulate.memory import Device
from tessera.tools.emulate.parse import parse
from tessera.tools.emulate.values import step_of

assert MULTIPROCESSORS > 1  # importing it registers the instructions

ENTRY = """
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 buffer[];
{functions}
.visible .entry kernel({params})
{{
    .reg .pred %p<9>;
    .reg .b16 %h<40>;
    .reg .b32 %r<40>;
    .reg .b64 %d<60>;
    mov.u32 %r0, %tid.x;
    {loads}
    {body}
    ret;
}}
"""


def run(
    body: str,
    inputs: Sequence[Any] = (),
    outputs: Mapping[str, Any] | None = None,
    threads: int = 32,
    shared: int = 4096,
    programs: int = 1,
    cluster: int = 1,
    functions: str = "",
) -> list[Any]:
    """Run a body for each thread; element `tid` of input n is in a register, that of an output is stored from one.

    Args:
        body: instructions.
        inputs: arrays of 2-, 4- or 8-byte elements; thread t finds its own in `%h1`, `%r1` or `%d1`, then 2 and so on.
        outputs: register names, and the NumPy type of what they hold.
        threads: of the program.
        shared: bytes of the array `buffer`.
        programs: the size of the grid; each has the same inputs and outputs.
        cluster: programs of a cluster.
        functions: definitions before the entry.

    Returns:
        What each output register holds at the end, by thread of the last program.
    """
    outputs = outputs or {}
    device, params, loads, stores = Device(), list[bytes](), list[str](), list[str]()
    arrays = [np.ascontiguousarray(array) for array in inputs]
    arrays += [np.zeros(threads, dtype) for dtype in outputs.values()]
    for number, array in enumerate(arrays):
        raw = array.view(np.uint8).reshape(-1)
        params.append(device.add(raw, np.ones(len(raw), bool)).to_bytes(8, "little"))
        size = array.itemsize
        loads.append(
            f"ld.param.b64 %d{30 + number}, [p{number}]; mad.wide.u32 %d{30 + number}, %r0, {size}, %d{30 + number};"
        )
        if number < len(inputs):
            name = {2: "h", 4: "r", 8: "d"}[size]
            loads.append(f"ld.global.b{8 * size} %{name}{number + 1}, [%d{30 + number}];")
    for number, (register, dtype) in enumerate(outputs.items()):
        stores.append(f"st.global.b{8 * np.dtype(dtype).itemsize} [%d{30 + len(inputs) + number}], {register};")
    names = ", ".join(f".param .u64 p{number}" for number in range(len(params)))
    text = ENTRY.format(
        functions=functions, params=names, loads="\n    ".join(loads), body=body + "\n    " + "\n    ".join(stores)
    )
    module = parse(text)
    entry = inlined(module.entries["kernel"], module.functions)
    device.build()
    grid = Grid(programs, 0, programs, threads, cluster, shared)
    with np.errstate(all="ignore"):
        machine = Machine(module, entry, grid, device, params, {}, 10**8)
        machine.run([step_of(one) for one in marked(entry.code)])
    return [device.back(len(inputs) + number).view(dtype).copy() for number, dtype in enumerate(outputs.values())]
