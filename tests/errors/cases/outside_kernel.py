"""A tile function outside a kernel."""

import tessera as ts

mask = ts.tile.arange(8)
