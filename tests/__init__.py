"""Tests of Tessera: a package, so that `from tests.<helper> import ...` finds these and no other `tests`."""
