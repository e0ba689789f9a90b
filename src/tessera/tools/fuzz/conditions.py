"""What holds in a process while a program is compiled and run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tessera.driver.settings import settings
from tessera.numerics.profiles import profile
from tessera.tools.fuzz import tree


@contextmanager
def conditions(program: tree.Program) -> Generator[None]:
    """Compile and run under a program's numerics profile, and with its asserts if it has them."""
    switches = settings()
    before, switches.debug = switches.debug, switches.debug or program.asserts
    try:
        with profile(program.profile):  # pyright: ignore[reportArgumentType]
            yield
    finally:
        switches.debug = before
