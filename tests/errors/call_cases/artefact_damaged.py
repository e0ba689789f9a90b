"""A file that is no artefact."""

import tessera as ts


def call():
    ts.load(__file__)
