"""Masked loads whose other lanes hold what is used again: LLVM 22 reads freed memory where it moves instructions.

The code is made in a worker, which alone ends where LLVM does.
"""

import pytest

import tessera as ts
from tessera.backends.cpu.compile import resume_cpu
from tessera.driver.settings import settings
from tessera.target.registry import target_named

WIDTHS = (2, 4, 8, 16, 32, 64, 17, 33)
ELEMENTS = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "half": "f16", "float": "f32", "double": "f64"}
FORMS = {
    "load": "%x = call {v} @llvm.masked.load.v{n}{suffix}.p0(ptr align 1 %at, <{n} x i1> %mask, {v} %old)",
    "select": "%read = load {v}, ptr %at, align 1\n  %x = select <{n} x i1> %mask, {v} %read, {v} %old",
    "broadcast": """%one = load {e}, ptr %at, align 1
  %lane = insertelement {v} poison, {e} %one, i64 0
  %all = shufflevector {v} %lane, {v} poison, <{n} x i32> zeroinitializer
  %x = select <{n} x i1> %mask, {v} %all, {v} %old""",
}
"""How lanes that a mask names are read into `%x`; the others are those of `%old`."""

# The index `%j` is used last by the load on one path and by the difference on the other, where the sum is the first
# instruction that LLVM replaces after the load.
FUNCTION = """
declare {v} @llvm.masked.load.v{n}{suffix}.p0(ptr, <{n} x i1>, {v})

define {v} @of_{n}_{suffix}(ptr %p, ptr %q, ptr %held, i64 %i, i64 %k, i64 %o, i1 %c) {{
  %old = load {v}, ptr %held
  %mask = load <{n} x i1>, ptr %q
  %j = xor i64 %i, 77
  br i1 %c, label %reads, label %counts
reads:
  %at = getelementptr {e}, ptr %p, i64 %j
  {form}
  store {v} %x, ptr %q, align 1
  br label %end
counts:
  %sum = add i64 %o, %k
  %difference = sub i64 %j, %k
  %both = and i64 %difference, %sum
  br label %end
end:
  %r = phi i64 [ 0, %reads ], [ %both, %counts ]
  store i64 %r, ptr %p
  store i64 %o, ptr %q
  ret {v} %old
}}
"""


def functions(form: str) -> str:
    """Return a module with a function for each type of elements and each width."""
    texts: list[str] = []
    for element, suffix in ELEMENTS.items():
        for n in WIDTHS:
            names = {"n": n, "e": element, "v": f"<{n} x {element}>", "suffix": suffix}
            texts.append(FUNCTION.format(form=FORMS[form].format(**names), **names))
    return "\n".join(texts)


@pytest.mark.parametrize("target", ["x86-64-v4", "sapphirerapids"])
@pytest.mark.parametrize("form", FORMS)
def test_lanes_that_are_kept_may_be_used_again(form: str, target: str):
    assert resume_cpu(functions(form), target_named(target), ()).code


@pytest.mark.parametrize("width", [17, 33])
@pytest.mark.parametrize("dtype", [ts.u8, ts.i16, ts.f16, ts.f32], ids=str)
def test_filled_loads_are_rolled(dtype: ts.DType, width: int, monkeypatch: pytest.MonkeyPatch):
    def rolled(x: ts.Tensor["k", "m", dtype], z: int):
        for i in ts.tile.grid((m, 1)):
            tile = ts.tile.load(x[0 - i : 0 - i + width, z], fill=2)
            assert ts.tile.roll(tile, width + 7).to(ts.bool_), "not zero"

    monkeypatch.setattr(settings(), "debug", True)
    assert ts.compile(ts.kernel(rolled), target="x86-64-v4", dims={"m": 1}).code
