"""Extents against NumPy's integers, and what files may say."""

import random

import numpy as np
import pytest

from tessera.errors import CallError, Frame, Location
from tessera.target.assumptions import check_assumption, location_of_record, place_of, recorded
from tessera.target.extents import evaluate, extent_of, leaves
from tessera.target.schema import ArtifactError


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_cuts_are_those_of_fixed_width_integers(bits):
    rng = random.Random(bits)
    for value in (0, 1, -1, 2 ** (bits - 1), -(2 ** (bits - 1)), *(rng.randrange(-(2**62), 2**62) for _ in range(50))):
        word = np.array([value % 2**64], np.uint64)
        low = word.view(np.uint8)[: bits // 8] if np.little_endian else None
        for fn, kind in (("signed", "i"), ("unsigned", "u")):
            wanted = int(low.view(f"<{kind}{bits // 8}")[0])
            if -(2**63) <= value < 2**63:
                assert evaluate([fn, ["const", value], ["const", bits]], [], []) == wanted


def test_what_64_bits_do_not_hold_is_an_error():
    far = ["mul", ["scalar", 0], ["const", 4]]
    assert evaluate(far, [], [2**61 - 1]) == 2**63 - 4
    for extent in (far, ["floordiv", far, ["const", 1000]]):
        with pytest.raises(ArtifactError) as caught:
            evaluate(extent, [], [2**61])
        assert caught.value.code == "grid-too-large"
    with pytest.raises(ArtifactError) as caught:
        evaluate(["mod", ["scalar", 0], ["scalar", 1]], [], [5, 0])
    assert caught.value.code == "grid-division-by-zero"
    with pytest.raises(ArtifactError):
        evaluate(["power", ["const", 2], ["const", 3]], [], [])


def test_leaves_are_sizes_strides_and_scalars():
    extent = ["add", ["size", 0, 1], ["mul", ["scalar", 2], ["stride", 0, 0]]]
    assert list(leaves(extent)) == [["size", 0, 1], ["scalar", 2], ["stride", 0, 0]]
    assert evaluate(extent, [(3, 5)], {2: 2}, [(8, 1)]) == 21


@pytest.mark.parametrize(
    "value",
    [
        ["const"],
        ["size", -1, 0],
        ["scalar", "k"],
        ["power", ["const", 1], ["const", 2]],
        ["signed", ["const", 1], ["const", 65]],
        ["signed", ["const", 1], ["const", 0]],
        ["unsigned", ["const", 1], ["scalar", 0]],
        ["add", ["const", 1]],
        "M",
    ],
)
def test_files_hold_nothing_else(value):
    with pytest.raises(ArtifactError):
        extent_of("the grid", value)


def test_places_are_read_as_they_were_written():
    location = Location(Frame("kernel.py", 7, 5, 30, "kernel"))
    assert location_of_record(place_of("a place", recorded(location))) == location
    assert location_of_record(place_of("a place", recorded(None))) is None
    for value in (["kernel.py"], [7, 7, 7, 7, 7], ["kernel.py", 0, 0, 0, "kernel"], 3):
        with pytest.raises(ArtifactError):
            place_of("a place", value)


def test_what_does_not_hold_is_named():
    condition = [
        "minimum",
        ["eq", ["mod", ["size", 0, 1], ["const", 8]], ["const", 0]],
        ["lt", ["scalar", 1], ["const", 4]],
    ]
    names = [("x", ("M", "N")), ("k", ())]
    check_assumption("kernel", condition, None, names, [(3, 16), None], {1: 3})
    for sizes, k, said in (((3, 15), 3, "N = 15, k = 3"), ((3, 16), 4, "N = 16, k = 4")):
        with pytest.raises(CallError, match=f"kernel assumes what does not hold for {said}"):
            check_assumption("kernel", condition, None, names, [sizes, None], {1: k})
