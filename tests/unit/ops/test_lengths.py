"""Rows of ever new lengths: kernels are compiled for some, then one takes all."""

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops import lengths
from tessera.ops.loss import class_steps
from tessera.ops.softmaxes import kernels, steps

MANY = range(33, 33 + 2 * lengths.MOST)


@pytest.fixture(autouse=True)
def _new(monkeypatch):
    for module, name in ((steps, "_FORWARD_LENGTHS"), (steps, "_BACKWARD_LENGTHS"), (class_steps, "_LENGTHS")):
        monkeypatch.setattr(module, name, lengths.Lengths())
    monkeypatch.setattr(lengths, "MOST", 3)


def test_a_decoder_compiles_a_few_kernels():
    rng, ran = np.random.default_rng(0), []
    for count in (*MANY, 34, 5000, 33):
        x, g = (rng.standard_normal((3, count), np.float32) for _ in range(2))
        exact = op.softmax.reference(x)
        found, masked = op.softmax(x), op.softmax(x[None], causal=True)[0]
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(masked, op.softmax.reference(x, causal=True), rtol=1e-5, atol=1e-7)
        (slope,) = op.softmax.backward(g, x).values()
        slope_exact = (g - (g * exact).sum(1, keepdims=True)) * exact
        np.testing.assert_allclose(slope, slope_exact, rtol=1e-4, atol=1e-6)
        ran.append(steps.LAST["softmax"] is kernels.rows)
    assert ran == [True] * 3 + [False] * (len(MANY) - 3) + [True, False, True]


def test_losses_of_ever_more_classes():
    rng = np.random.default_rng(1)
    for count in MANY:
        x, target = rng.standard_normal((4, count), np.float32), rng.integers(0, count, 4)
        for smoothing in (0.0, 0.1):
            found = op.loss.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
            exact = op.loss.cross_entropy.reference(x, target, reduction="none", label_smoothing=smoothing)
            np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize("profile", ["deterministic", "strict"])
def test_bits_do_not_depend_on_what_was_before(profile):
    known = lengths.Lengths()
    with ts.numerics.profile(profile):
        assert not any(known.are_many_before(count) for count in MANY)


@pytest.mark.parametrize(("length", "size"), [(1, 128), (128, 128), (129, 256), (4097, 4096), (1 << 20, 4096)])
def test_pieces_are_powers_of_two(length, size):
    assert lengths.piece(length) == size
