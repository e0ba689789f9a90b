"""An element that is named where it is used, `q[i]`, is what `ts.tile.load(q[i])` is: its value and its dtype."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tessera.driver.pipeline import CANONICALIZE
from tessera.ir.passes import PassRunner
from tests.unit.frontend.support import built

HEAD = """import tessera as ts

t = ts.tile


@ts.function
def plus(a, b=2):
    return a + b


def kernel(
    q: ts.Tensor["n", ts.i32],
    f: ts.Tensor["n", ts.f64],
    h: ts.Tensor["n", ts.bf16],
    u: ts.Tensor["n", ts.u8],
    c: ts.Tensor["n", ts.bool_],
    y: ts.Tensor["n", ts.f64],
    z: ts.Tensor["n", ts.i64],
):
    for i in t.grid((n, 8)):
"""
ELEMENTS = {"Q": "q[i]", "F": "f[i]", "H": "h[i]", "U": "u[i]", "C": "c[i]"}
VALUES = """
t.full((8,), Q) | t.full((8,), F) | t.full((8,), H) | t.full((8,), U) | t.full((8,), C) | t.full_like(f[i : i + 8], Q)
t.broadcast_to(Q, (8,)) | t.roll(z[i : i + 8], U) | t.take(z[i : i + 8], Q) | z[i : i + 8][Q % 4] | z[Q] | z[Q : Q + 8]
t.take(z[i : i + 8], z[i : i + 8], fill=Q) | t.load(f[i : i + 8], fill=H) | t.stack((t.full((8,), Q), z[i : i + 8]))[0]
-U | ~U | abs(Q) | min(Q, U) | max(3, U) | divmod(Q, 3)[0] | Q / U | Q % U | F // 2 | Q << U | F**2 | F**F | 2.0**F
Q < U < 3 | not C | F or H | U and Q | Q or 128 | Q if C else U | 3 if C else U | plus(F) | plus(F, H)
t.where(C, F, 1) | t.where(C, 1, 2) | t.where(c[i : i + 8], U, Q) | t.clamp(f[i : i + 8], F, H) | t.sign(U) | t.exp(Q)
t.fma(F, H, 1) | t.elu(F, F) | t.leaky_relu(f[i : i + 8], H) | t.swiglu(F, F) | t.copysign(1, F) | t.hypot(F, 3)
t.mulhi(Q, Q) | t.popcount(U) | t.rotl(u[i : i + 8], Q) | t.byte_perm(Q, Q, Q) | t.bitcast(F, ts.i64) | F.to(ts.f16)
t.rand(Q, z[i : i + 8]) | t.randint(Q, z[i : i + 8], U, Q) | t.dropout(f[i : i + 8], F, Q, z[i : i + 8]) | ts.cdiv(Q, 3)
t.atomic_add(z[0:8], U) | t.atomic_compare_exchange(z[0:8], U, Q) | t.causal_mask(t.zeros((8, 8)), Q, U, F)[0]
t.combine_moments(1.0, F, F, 1.0, H, F)[1] | t.jvp(plus, (F, H), (1.0, F))[1] | t.pipeline.swap(Q)
t.inline_asm(F, meaning=plus, ptx="add.f64 $0, $1, 2.0;")
"""
STATEMENTS = (
    "for k in t.range(U, Q, U): z[k] = k",
    "while C: break",
    "if Q > U: z[i] = 1",
    "assert C, 'x'",
    "print(Q, f'{U}', F)",
    "z[Q + t.arange(8)] = H",
    "z[i : i + 8] += Q",
    "acc = F\nfor k in t.range(3): acc = acc + H\ny[i] = acc",
    "acc = 0\nfor k in t.range(3): acc = U\nz[i] = acc",
    "a, b = (F, Q)\nf[i] = 0\ny[i] = a",
    "for k, v in enumerate((F, H)): y[i + k] = v",
    "a = F if C else 0\ny[i] = a",
    "if C: a = U\nelse: a = 3\nz[i] = a",
    "s = t.alloc_shared((4, 8), ts.f32)\ns[Q % 4] = t.full((8,), F)\nt.barrier()\ny[i : i + 8] = s[Q % 4]",
)
CASES = [
    *(f"y[i : i + 8] = {value.strip()}" for line in VALUES.strip().split("\n") for value in line.split(" | ")),
    *STATEMENTS,
]


def operations(body: str, form: str, folder: Path) -> list[str]:
    """Return the canonical ops of a kernel, in no order: which of two elements is read first decides nothing here."""
    text = re.sub(r"(?<![\w.'])[QFHUC](?!\w)", lambda found: form.format(ELEMENTS[found.group()]), body)
    path = folder / "elements.py"
    path.write_text(HEAD + "".join(f"        {line}\n" for line in text.split("\n")))
    spec = importlib.util.spec_from_file_location("elements", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tiles = built(module.kernel).module
    PassRunner().run(tiles, "canonicalize", CANONICALIZE)
    return sorted(re.sub(r"%\w+", "%", line) for line in str(tiles).splitlines())


@pytest.mark.parametrize("body", CASES)
def test_an_element_in_place_is_that_element(body: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("named", "loaded")]
    for folder in folders:
        folder.mkdir()
    named, loaded = (operations(body, form, at) for form, at in zip(("{}", "t.load({})"), folders, strict=True))
    assert named == loaded
