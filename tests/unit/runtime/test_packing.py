"""Where parameter blocks hold what the launch adds to the arguments."""

from __future__ import annotations

import ctypes
from typing import Any

from tessera.runtime.packing import Packing
from tessera.target.artifact import ArgSpec, Artifact, Launch, Parameter

PARAMS = (Parameter("stride", 0), Parameter("workspace", -1, slot_bytes=256), Parameter("pointer", 0))


def artifact(*params: Parameter) -> Artifact:
    spec = ArgSpec("x", "tensor", "f32", ("N",), (-1,), (-1,), stride_div=(1,), dim_div=(1,))
    return Artifact("k", "ptx", "sm_90a", (spec,), (), (Launch("k", params, ((["const", 1], 1),)),))


def read(addresses: int, place: int) -> Any:
    pointer = ctypes.c_void_p.from_address(addresses + 8 * place).value
    assert pointer is not None
    return ctypes.c_int64.from_address(pointer).value


def test_the_workspace_is_put_into_the_block_of_every_launch() -> None:
    packing = Packing(artifact(*PARAMS), [((10,), (3,))])
    for address in (0x7000, 0x9000):
        block = packing.fill([0x1000], [])
        block.put_workspace(address)
        assert [read(block.addresses[0], place) for place in range(3)] == [3, address, 0x1000]
        packing.release(block)


def test_the_slots_of_a_launch_are_known_from_its_record() -> None:
    (launch,) = Artifact.from_bytes(artifact(*PARAMS).to_bytes()).launches
    assert launch.params == PARAMS
    assert launch.slot_bytes == 256
    (plain,) = artifact(PARAMS[2]).launches
    assert plain.slot_bytes == 0
