"""Warp roles with registers of their own: what `ptxas` makes of them, and what is left without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera.backends.nvidia.ptxas import assemble
from tessera.errors import CompilerFault
from tessera.runtime import toolkit
from tessera.target.registry import target_named

SIZES = {"M": 4096, "N": 4096, "K": 4096}


def dequantised(
    a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]
) -> None:
    for m, n in ts.tile.grid((M, 128), (N, 256)):
        acc = ts.tile.zeros((128, 256), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64].to(ts.bf16), b[k : k + 64, n : n + 256], acc)
        c[m : m + 128, n : n + 256] = acc


def facts() -> dict[str, Any]:
    (found,) = ts.compile(ts.kernel(dequantised), target="sm_90a", dims=SIZES).reflection["kernels"].values()
    return found


@pytest.mark.skipif(toolkit.ptxas() is None, reason="no ptxas on this machine")
def test_consumers_get_the_registers_that_the_producer_hands_over() -> None:
    assert facts()["spill_store_bytes"] == 0, "240 registers hold what 168 do not"


def test_without_ptxas_the_kernel_is_assembled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "ptxas", lambda: None)
    assert facts()["spill_store_bytes"] > 0, "an even share is 168 registers"


@pytest.mark.skipif(toolkit.ptxas() is None, reason="no ptxas on this machine")
def test_what_ptxas_rejects_is_a_fault_with_its_words() -> None:
    tool = toolkit.ptxas()
    assert tool is not None
    with pytest.raises(CompilerFault, match="line 1") as caught:
        assemble(tool, "no such instruction;", target_named("sm_90a"))
    assert caught.value.code == "invalid-ptx"


def test_a_tool_that_cannot_run_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(CompilerFault, match="cannot be run") as caught:
        assemble(tmp_path / "ptxas", "", target_named("sm_90a"))
    assert caught.value.code == "invalid-ptx"


ENTRY = "\n.visible .entry kernel_{}()\n{{\n\tret;\n}}\n"


@pytest.mark.parametrize("knows", [True, False])
def test_several_kernels_are_assembled_at_once_where_the_tool_can(tmp_path: Path, knows: bool) -> None:
    tool, log = tmp_path / "ptxas", tmp_path / "log"
    refuse = (
        "" if knows else 'case "$*" in *split-compile*) echo "Unknown option \'split-compile\'" >&2; exit 255;; esac'
    )
    tool.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n{refuse}\nwhile [ "$1" != -o ]; do shift; done; echo code > "$2"\n'
    )
    tool.chmod(0o755)
    code, _ = assemble(tool, "".join(map(ENTRY.format, range(2))), target_named("sm_90a"))
    assert code == b"code\n"
    assert ["-split-compile=0" in call for call in log.read_text().splitlines()] == ([True] if knows else [True, False])
    assemble(tool, ENTRY.format(0), target_named("sm_90a"))
    assert "split-compile" not in log.read_text().splitlines()[-1], "one kernel has nothing to share out"
