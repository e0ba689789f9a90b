"""Memory of large arrays: reused, bounded, given back, never shared by two arrays alive at once."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import tessera as ts
from tessera.errors import CallError, ResourceError
from tessera.runtime import host_cache as module
from tessera.runtime.host_cache import LEAST_BYTES, HostCache, limit_bytes, size_class

MIB = 1 << 20


@pytest.fixture
def cache(monkeypatch):
    monkeypatch.setattr(module, "memory_is_short", lambda: False)
    made = HostCache(64 * MIB)
    monkeypatch.setattr(module, "_cache", made)
    return made


def address(array):
    return array.ctypes.data


def test_memory_of_a_dead_array_is_used_again(cache):
    first = ts.empty((1024, 1024))
    where = address(first)
    assert where % 64 == 0
    view = first[3:, ::2]
    del first
    assert cache.cached_bytes == 0, "a view keeps the memory"
    del view
    assert cache.cached_bytes == 4 * MIB
    again = ts.empty((900, 1024))  # another class of sizes
    other = ts.empty((1024, 1024))
    assert address(other) == where
    assert address(again) != where
    assert cache.cached_bytes == 0


def test_arrays_alive_at_once_never_share(cache):
    rng = np.random.default_rng(0)
    alive: list[tuple[np.ndarray, int]] = []
    for number in range(200):
        if alive and rng.random() < 0.5:
            array, value = alive.pop(int(rng.integers(len(alive))))
            assert (array == value).all()
            del array
        array = ts.empty(int(rng.integers(LEAST_BYTES // 4, LEAST_BYTES)))
        array.fill(number)
        alive.append((array, number))
    assert all((array == value).all() for array, value in alive)
    assert cache.cached_bytes <= cache.limit


def test_the_cache_is_bounded_and_the_oldest_goes_first(cache):
    arrays = [ts.empty(8 * MIB // 4) for _ in range(12)]
    places = [address(array) for array in arrays]
    while arrays:
        arrays.pop(0)
    assert cache.cached_bytes == 64 * MIB
    kept = {address(array) for array in [ts.empty(8 * MIB // 4) for _ in range(8)]}
    assert kept == set(places[4:])
    cache.trim()
    assert cache.cached_bytes == 0


def test_it_is_emptied_when_memory_is_short(cache, monkeypatch):
    ts.empty(MIB)
    assert cache.cached_bytes == 4 * MIB
    monkeypatch.setattr(module, "memory_is_short", lambda: True)
    monkeypatch.setattr(cache, "_looked", -1e9)
    assert cache.cached_bytes == 0
    assert module.memory_is_short is not None


def test_an_allocation_that_fails_is_tried_again_without_the_cache(cache, monkeypatch):
    ts.empty(MIB)
    plain, tried = module._mapped, []

    def once(size):
        tried.append(size)
        if len(tried) == 1:
            raise OSError(12, "no memory")
        return plain(size)

    monkeypatch.setattr(module, "_mapped", once)
    assert ts.empty(4 * MIB).size == 4 * MIB
    assert len(tried) == 2
    monkeypatch.setattr(module, "_mapped", lambda size: (_ for _ in ()).throw(OSError(12, "no memory")))
    cache.trim()
    with pytest.raises(ResourceError):
        ts.empty(2 * MIB)


def test_many_threads(cache):
    wrong = []

    def work(number):
        for step in range(100):
            array = ts.full(LEAST_BYTES // 4, number * 1000 + step)
            if not (array == number * 1000 + step).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert cache.cached_bytes <= 8 * size_class(LEAST_BYTES)  # one that dies and one being made, for each


@pytest.mark.parametrize("size", [LEAST_BYTES, LEAST_BYTES + 1, 3 * MIB, 5 * MIB + 123, 1 << 30])
def test_sizes_waste_little(size):
    assert size <= size_class(size) <= size + size // 8 + 4096
    assert size_class(size_class(size)) == size_class(size)


def test_the_limit_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TESSERA_CPU_CACHE_MB", "3")
    assert limit_bytes() == 3 * MIB
    monkeypatch.delenv("TESSERA_CPU_CACHE_MB")
    assert 0 < limit_bytes() <= 1 << 30
    for wrong in ("-1", "many", "1.5"):
        monkeypatch.setenv("TESSERA_CPU_CACHE_MB", wrong)
        with pytest.raises(CallError) as caught:
            limit_bytes()
        assert caught.value.code == "bad-environment"


def test_without_a_cache_arrays_are_numpys(monkeypatch):
    monkeypatch.setattr(module, "_cache", HostCache(0))
    array = ts.zeros((512, 512))
    assert isinstance(array.base, np.ndarray)
    assert (array == 0).all()


def test_it_says_whether_memory_is_short():
    assert module.memory_is_short() in (False, True)


def test_an_array_that_lives_until_the_end_dies_quietly():
    """The interpreter takes modules apart before it lets go of what they hold: nothing may be imported then."""
    program = (
        "import tessera as ts\n"
        "from tessera.runtime import host_cache\n"
        "host_cache.memory_is_short = lambda: __import__('this_is_no_module')\n"
        "array = ts.empty((1024, 1024))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr == ""
