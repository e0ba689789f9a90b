"""Options of a helper."""

import tessera as ts


def call():
    @ts.function(noinline=True)
    def twice(x):
        return 2 * x
