"""A dtype with a number as its rule."""

import tessera as ts


def call():
    ts.f32 @ 5
