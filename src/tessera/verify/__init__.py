"""Barrier safety: what a kernel does with shared buffers by hand is checked when it is compiled.

A program's accesses to shared buffers depend on few things: loops, branches and numbers of stages. So the check runs
that part of a kernel alone (`skeleton`), one program for some sizes of the arguments (`samples`), with the rules that
the interpreter has for shared memory (`buffers`) and no data. What it refuses races on those sizes for certain. What
depends on data takes several drawn values; a stage that depends on data is left to the interpreter.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.walking import ops_in
from tessera.verify import steps as steps
from tessera.verify.run import run_samples

__all__ = ["check_shared"]


def check_shared(module: ModuleOp) -> None:
    """Check the shared buffers of every kernel of a TIR-H module, as the frontend makes it.

    Raises:
        LanguageError: `race` or `uninitialized-read`, with the lines of both accesses and what to insert.
    """
    for kernel in module.ops:
        if isinstance(kernel, KernelOp) and any(isinstance(op, AllocSharedOp) for op in ops_in(kernel)):
            run_samples(kernel)
