"""Parsing text that may be wrong in any way."""

from __future__ import annotations

import contextlib
import random

import pytest

from tessera.errors import Frame, VerifyError
from tessera.ir.locations import location_of
from tessera.ir.text import check, parse_module, text_of
from tests.unit.ir import samples


def test_ops_without_a_location_get_their_place_in_the_text() -> None:
    module = parse_module("\n  %0 = tessera_tile.constant 1 : i32\n", "x.mlir")
    assert location_of(next(iter(module.ops))).frame == Frame("x.mlir", 2, 3)


def test_a_given_location_stays() -> None:
    module = parse_module('%0 = tessera_tile.constant 1 : i32 loc("gemm.py":12:11)')
    assert location_of(next(iter(module.ops))).frame == Frame("gemm.py", 12, 11)


def test_the_message_shows_the_line(tmp_path) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text("builtin.module {\n  tessera_tile.nosuch\n}\n")
    with pytest.raises(VerifyError) as caught:
        parse_module(path.read_text(), str(path))
    assert "bad.mlir:2:" in str(caught.value)
    assert "    " + "  tessera_tile.nosuch" in str(caught.value)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_text_is_refused_or_parsed_never_a_crash(seed: int) -> None:
    rng = random.Random(seed)
    text = text_of(samples.tile_module())
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(len(text)), rng.randrange(12)
        junk = rng.choice(["", "", "%0", "-1", "x", '"', "{", "}", ">", "[64", "f64", "\0", "\u00fc", "1e999", "0x"])
        text = text[:at] + junk + text[at + length :]
    with contextlib.suppress(VerifyError):
        parse_module(text)


def test_a_string_without_an_end_takes_no_time() -> None:
    with pytest.raises(VerifyError):
        parse_module('tessera_tile.print "' + "a" * 100_000)


def test_values_of_a_branch_are_not_visible_outside() -> None:
    with pytest.raises(VerifyError):
        parse_module(
            """
            %c = tessera_tile.constant true
            scf.if %c {
              %x = tessera_tile.constant 1 : i32
            }
            %y = tessera_tile.elementwise "neg"(%x) : (i32) -> i32
            """
        )


def test_check_accepts_what_is_right() -> None:
    check(samples.tile_module())
    check(samples.target_module())
