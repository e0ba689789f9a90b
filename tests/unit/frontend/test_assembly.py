"""`ts.tile.inline_asm`: what is refused, what an assembler says, and where the meaning takes its place."""

import re

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built


@ts.function
def twice(x):
    return x + x


@ts.function
def both(x, y):
    return x + y


def _kernel(**given):
    args = given.pop("count", 1)
    meaning = given.pop("meaning", twice)
    ptx, x86_64, effects = (given.get(name) for name in ("ptx", "x86_64", "effects"))
    effects = effects or "none"

    @ts.kernel
    def kernel(x: ts.Tensor["N", ts.f32], y: ts.Tensor["N", ts.f32]):
        for i in ts.tile.grid((N, 32)):
            tile = x[i : i + 32]
            if args == 1:
                y[i : i + 32] = ts.tile.inline_asm(tile, meaning=meaning, ptx=ptx, x86_64=x86_64, effects=effects)
            else:
                ts.tile.inline_asm(i, ptx=ptx, x86_64=x86_64, effects=effects)
                y[i : i + 32] = tile

    return kernel


@ts.function
def told(x):
    print("seen")
    return x


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ptx": "add.f32 $0, $1, $2;"}, r"the text for ptx names the operands \$0, \$1, \$2"),
        ({"ptx": "mov.b32 $1, $1;"}, r"the text for ptx names the operands \$1"),
        ({"x86_64": 3}, "the text for x86_64 is 3"),
        ({"ptx": "mov.b32 $0, $1;", "meaning": None}, "the meaning is None"),
        ({"ptx": "mov.b32 $0, $1;", "effects": "memory"}, "the effects"),
        ({"ptx": "mov.b32 $0, $1;", "effects": "io", "count": 0}, "names the operands"),
        ({"ptx": "membar.cta;", "effects": "io"}, "has no meaning in the language"),
        ({"ptx": "mov.b32 $0, $1;", "meaning": told}, "the meaning told stores, updates or prints"),
    ],
)
def test_what_makes_no_sense_is_refused(given, text):
    with pytest.raises(ts.LanguageError, match=text) as caught:
        built(_kernel(**given).__wrapped__)
    assert caught.value.code == "bad-assembly"
    assert caught.value.location is not None


def test_registers_hold_no_bytes():
    def kernel(x: ts.Tensor["N", ts.i8], y: ts.Tensor["N", ts.i8]):
        for i in ts.tile.grid((N, 32)):
            y[i : i + 32] = ts.tile.inline_asm(x[i : i + 32], meaning=twice, ptx="add.s16 $0, $1, $1;")

    with pytest.raises(ts.TypeMismatchError, match="8 bits an element"):
        built(kernel)


def test_what_acts_takes_scalars_outside_of_masks():
    def of_a_tile(x: ts.Tensor["N", ts.f32]):
        for i in ts.tile.grid((N, 32)):
            ts.tile.inline_asm(x[i : i + 32], ptx="prefetch.global.L2 [$1];", effects="io")

    def under_a_mask(x: ts.Tensor["N", ts.f32]):
        for i in ts.tile.grid((N, 32)):
            if x[i : i + 32] > 0:
                ts.tile.inline_asm(i, ptx="nanosleep.u32 8;", effects="io")

    with pytest.raises(ts.TypeMismatchError, match="takes scalars"):
        built(of_a_tile)
    with pytest.raises(ts.LanguageError, match="on a tile"):
        built(under_a_mask)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_what_an_assembler_refuses_is_the_users_error(target):
    kernel = _kernel(ptx="ad.f32 $0, $1, $1;", x86_64="adss $1, $0")
    if target == "cpu" and "x86_64" not in ts.compile(twice_of_rows, target="cpu").requires:
        pytest.skip("no x86-64 CPU")
    with pytest.raises(ts.LanguageError, match=r"instruction.*'ads?s?'") as caught:
        ts.compile(kernel, target=target)
    assert caught.value.code == "bad-assembly"
    assert "ts.tile.inline_asm(tile" in str(caught.value)


@ts.kernel
def twice_of_rows(x: ts.Tensor["N", ts.f32], y: ts.Tensor["N", ts.f32]):
    for i in ts.tile.grid((N, 32)):
        y[i : i + 32] = ts.tile.inline_asm(
            x[i : i + 32], meaning=twice, ptx="fma.rn.f32 $0, $1, 0f40000000, 0f00000000;"
        )


def test_the_meaning_is_computed_where_there_is_no_text_and_goes_where_there_is_one():
    x = np.arange(70, dtype=np.float32)
    y = np.zeros_like(x)
    twice_of_rows(x, y)
    assert (y == 2 * x).all()
    ptx = ts.compile(twice_of_rows, target="sm_90a", dump=["ptx"]).dumps["ptx"]
    assert re.search(r"fma\.rn\.f32 %[fr]\d+, %[fr]\d+, 0f40000000, 0f00000000;", ptx)
    assert "add.rn.f32" not in ptx


def test_dumps_are_continued(tmp_path):
    whole = ts.compile(twice_of_rows, target="sm_90a", dump=["tirh", "tirt", "ptx"])
    for level in ("tirh", "tirt"):
        file = tmp_path / f"twice.{level}.mlir"
        file.write_text(whole.dumps[level])
        assert ts.compile(str(file), dump=["ptx"]).dumps["ptx"] == whole.dumps["ptx"]
