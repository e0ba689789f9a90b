"""A class as a kernel."""

import tessera as ts


@ts.kernel
class Kernel:
    pass
