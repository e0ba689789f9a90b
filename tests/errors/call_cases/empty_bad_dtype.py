"""A NumPy type where a dtype is expected."""

import numpy as np

import tessera as ts


def call():
    ts.empty(3, np.float32)
