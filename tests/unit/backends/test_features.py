"""Code for a CPU runs on one that has all it needs, and is refused by name on one that has not."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu import features, host_target, missing_features
from tessera.backends.cpu.features import required_features
from tessera.driver.loaded import LoadedKernel
from tessera.runtime import host
from tessera.target.artifact import Artifact
from tessera.target.cpus import CPU_TARGETS
from tessera.target.registry import target_named


@ts.kernel
def doubled(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        x[i : i + 16] = x[i : i + 16] * 2.0


def test_this_machine_has_what_its_own_code_requires():
    required = required_features(host_target())
    assert missing_features(required) == []
    assert required[0] in ("x86_64", "aarch64")


@pytest.mark.parametrize("target", CPU_TARGETS)
def test_a_target_requires_all_that_its_record_has(target):
    record = target_named(target)
    needed = {name for name in record.features if record.triple.startswith("x86") or name not in ("fma", "f16c")}
    assert needed <= {*required_features(record)}


@pytest.mark.parametrize("target", CPU_TARGETS)
def test_code_for_a_target_runs_or_is_refused(target):
    artifact = ts.compile(doubled, target=target)
    kernel = LoadedKernel(Artifact.from_bytes(artifact.to_bytes()))
    x = np.ones(33, np.float32)
    if missing_features(artifact.requires):
        with pytest.raises(ts.TesseraError) as caught:
            kernel(x)
        assert caught.value.code == "wrong-cpu"
    else:
        kernel(x)
        np.testing.assert_array_equal(x, np.full(33, 2, np.float32))


def test_matrix_units_count_only_with_leave_to_use_them(monkeypatch):
    monkeypatch.setattr(features, "matrix_unit_granted", lambda: False)
    present = features._present.__wrapped__()
    assert not any(name.startswith("amx-") for name in present)


def test_each_missing_feature_is_named(monkeypatch):
    present = features._present()
    monkeypatch.setattr(features, "_present", lambda: present - {"avx2", "neon", "sse2", "fp-armv8"})
    monkeypatch.setattr(host, "surely_has", lambda _: False)
    kernel = LoadedKernel(ts.compile(doubled, target="x86-64"))
    with pytest.raises(ts.TesseraError, match="sse2") as caught:
        kernel(np.ones(16, np.float32))
    assert caught.value.code == "wrong-cpu"
