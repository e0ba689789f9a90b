"""Derivatives by differences, in float64."""

import numpy as np


def differences(function, given, number, step=1e-6):
    """Return the gradient of a function, which gives one number, by one of its arguments."""
    found = np.zeros_like(given[number])
    for at in np.ndindex(found.shape):
        sides = []
        for apart in (step, -step):
            moved = [np.array(one) for one in given]
            moved[number][at] += apart
            sides.append(float(function(*moved)))
        found[at] = (sides[0] - sides[1]) / (2 * step)
    return found


def assert_gradients(gradient, function, given, numbers, tolerance=1e-6):
    """Check gradients of a function by some of its arguments."""
    for number, one in zip(numbers, gradient, strict=True):
        wanted = differences(function, given, number)
        assert one.shape == wanted.shape
        assert np.abs(np.asarray(one) - wanted).max(initial=0) < tolerance * (1 + np.abs(wanted).max(initial=0))
