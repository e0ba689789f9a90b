"""Identity of the host's CPU, for cache keys."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache

from tessera.digest import sha256


@cache
def host_identity() -> str:
    """Return what decides the code that is generated for this CPU."""
    try:
        with open("/proc/cpuinfo", "rb") as file:  # the first CPU's entry: the kernel writes the file as it is read
            first = file.read(8192).split(b"\n\n", 1)[0]
    except OSError:
        first = platform.processor().encode()
    # The clock and the bogus speed change from one reading to the next.
    stable = [line for line in first.splitlines() if b"MHz" not in line and b"ogo" not in line]
    for index in range(4):  # the first and second data caches, which decide blocks, are among them
        with suppress(OSError), open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size", "rb") as file:
            stable.append(file.read())
    return f"{platform.machine()}-{sha256(b'|'.join(stable)).hexdigest()[:16]}"
