"""A device that does not exist."""

import tessera as ts


def call():
    ts.empty((4,), ts.f32, device="tpu")
