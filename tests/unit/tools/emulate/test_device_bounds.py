"""Which bytes of device memory an emulated access may touch."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.memory import Device


@pytest.mark.parametrize("first", [0, 3, 8, 13])
@pytest.mark.parametrize("last", [17, 24, 25, 31])
def test_an_access_of_what_holds_elements_has_one_of_their_bytes(first: int, last: int) -> None:
    allowed = np.zeros(48, bool)
    allowed[first:last] = True
    device = Device()
    start = device.add(np.zeros(48, np.uint8), allowed)
    device.build()
    for width in (4, 8, 16):
        for at in range(0, 48, width):
            touched = allowed[at : at + width]
            for partly, fine in ((True, touched.any()), (False, touched.all())):
                address = np.array([start + at], np.uint64)
                if fine:
                    assert len(device.offsets(address, width, partly)) == 1
                else:
                    with pytest.raises(Fault, match="outside"):
                        device.offsets(address, width, partly)
