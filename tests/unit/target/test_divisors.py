"""The classes of sizes and strides."""

import pytest

from tessera.target.divisors import class_of, classes, masks


@pytest.mark.parametrize(
    ("value", "element_bytes", "found"),
    [(32, 4, 16), (20, 4, 4), (6, 4, 2), (7, 4, 1), (24, 2, 8), (20, 2, 4), (50, 2, 2), (0, 4, 16), (8, 1, 8)],
)
def test_a_class_is_an_access(value: int, element_bytes: int, found: int) -> None:
    assert class_of(value, element_bytes) == found


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_masks_tell_the_classes_apart(element_bytes: int) -> None:
    for value in (*range(70), 1 << 40, -16, -6):
        fits = []
        for each in classes(element_bytes):
            zero, some = masks(each, element_bytes)
            if value & zero == 0 and (some == 0 or value & some != 0):
                fits.append(each)
        assert fits == [class_of(value, element_bytes)]
