"""Predicted times, beside what data sheets say of an H100: 3.35 TB/s, 989 TFLOP/s in 16 bits, 67 in f32."""

import pytest

from tessera.target.predicted import seconds
from tessera.target.registry import target_named


@pytest.mark.parametrize(
    ("work", "at_peak"),
    [
        ({"moved": 10**10}, 10**10 / 3.35e12),
        ({"moved": 0, "products": 10**13, "element_bytes": 2}, 2e13 / 989e12),
        ({"moved": 0, "operations": 10**13}, 10**13 / 33.5e12),
    ],
)
def test_large_work_takes_what_its_unit_needs(work, at_peak):
    record = target_named("sm_90a")
    assert at_peak * 0.6 < seconds(record, **work) < at_peak * 2.2
    assert seconds(record, 0) == record.machine.launch


@pytest.mark.parametrize("target", ["sm_90a", "x86-64-v4", "aarch64"])
def test_more_work_takes_no_less(target):
    record = target_named(target)
    times = [seconds(record, moved, operations, products) for moved, operations, products in ((0, 0, 0), (9**9, 0, 0))]
    assert 0 < times[0] < times[1]
    assert times[1] <= seconds(record, 9**9, 9**12) <= seconds(record, 9**9, 9**12, 9**14)
