"""Fences between what threads do in shared memory and what other units do there."""

import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.proxies import Proxies

PLACES = np.arange(64)
FIRST, SECOND = np.arange(32), np.arange(32, 64)


def touched(writes: bool) -> Proxies:
    proxies = Proxies(256, 96)
    proxies.touch(PLACES.reshape(32, 2), FIRST, writes)
    return proxies


def test_a_fence_before_an_arrival_orders_what_another_warp_starts() -> None:
    proxies = touched(False)
    proxies.fence(FIRST)
    proxies.tell("ring", FIRST[:1])
    proxies.hear("ring", SECOND[:1])
    proxies.check(PLACES, 32, True)


def test_a_fence_behind_an_arrival_does_not() -> None:
    proxies = touched(False)
    proxies.tell("ring", FIRST[:1])
    proxies.fence(FIRST)
    proxies.hear("ring", SECOND[:1])
    with pytest.raises(Fault, match="has read"):
        proxies.check(PLACES, 32, True)


def test_a_fence_of_the_thread_that_starts_the_access_does() -> None:
    proxies = touched(True)
    with pytest.raises(Fault, match="has written"):
        proxies.check(PLACES, 32, False)
    proxies.fence(SECOND)
    proxies.check(PLACES, 32, False)
    proxies.touch(PLACES.reshape(32, 2), FIRST, True)
    with pytest.raises(Fault):
        proxies.check(PLACES, 32, True)


def test_reads_need_no_fence_before_reads_and_other_bytes_none_at_all() -> None:
    proxies = touched(False)
    proxies.check(PLACES, 32, False)
    proxies.check(PLACES + 64, 32, True)


def test_what_one_warp_knows_goes_on_to_those_it_tells() -> None:
    proxies = touched(True)
    proxies.fence(FIRST)
    for at, (old, new) in enumerate(((FIRST, SECOND), (SECOND, np.arange(64, 96)))):
        proxies.tell(at, old)
        proxies.hear(at, new)
    proxies.check(PLACES, 64, False)
