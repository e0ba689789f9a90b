"""Groups of copies by hand, in the words of pipelines.

    slot = 0
    for k in ts.tile.range(0, K, 64):
        ts.tile.pipeline.begin()
        ts.tile.async_copy_2d(a[slot], A[m:m+64, k:k+64])
        ts.tile.pipeline.commit()
        ts.tile.pipeline.wait(slot)
        acc = ts.tile.mma(a[slot], b, acc)
        slot = ts.tile.pipeline.swap(slot, 2)

Source: `pipeline.begin`, `async_copy`, `commit`, `wait(slot)`, compute, `swap(slot)` of ThunderKittens' kernels.
"""

from __future__ import annotations

from typing import Any

from tessera.frontend.tile.stub import tile_function

__all__ = ["begin", "commit", "swap", "wait"]


@tile_function
def begin() -> None:
    """Begin a group of copies: those until `commit` are waited for together.

    Raises:
        LanguageError: `open-group` where copies have been started that belong to no group yet.
    """
    ...


@tile_function
def commit() -> None:
    """End a group of copies, as `ts.tile.commit_group` does."""
    ...


@tile_function
def wait(slot: Any = None, pending: int = 0) -> None:
    """Wait for copies, and for every lane of the program: what they fill may be read.

    Args:
        slot: the stage that is read next, for the reader of the program; the groups decide what is waited for.
        pending: compile-time number of the newest groups that may stay in flight, which fill other stages.

    Raises:
        LanguageError: `not-static`, or `bad-argument` for a negative number.
    """
    ...


@tile_function
def swap(slot: Any, stages: int = 2) -> Any:
    """Wait until every lane of the program has read a stage, and return the next one.

    Args:
        slot: the stage that has been read, an integer.
        stages: compile-time number of stages.

    Returns:
        `(slot + 1) % stages`.

    Raises:
        LanguageError: `not-static`, or `bad-argument` for less than one stage.
    """
    ...
