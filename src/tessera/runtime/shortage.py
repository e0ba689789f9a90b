"""The error for memory of the host that is not there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tessera.errors import ResourceError


def out_of_memory(shape: tuple[int, ...]) -> ResourceError:
    """Return the error for an array of a shape for which there is no memory."""
    return ResourceError(
        f"there is no memory for an array of shape {shape!r:.80}", code="out-of-memory", help="use a smaller array"
    )


@contextmanager
def memory_for(shape: tuple[int, ...]) -> Generator[None]:
    """Turn a lack of memory in a `with` block into the error of an array of a shape.

    Raises:
        ResourceError: `out-of-memory`.
    """
    try:
        yield
    except MemoryError as error:
        raise out_of_memory(shape) from error
