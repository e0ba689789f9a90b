"""A file that does not exist."""

import tessera as ts


def call():
    ts.load("/nonexistent/kernel.tessera")
