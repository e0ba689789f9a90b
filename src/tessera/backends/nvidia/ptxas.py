"""Assembles whole programs with `ptxas`.

nvJitLink compiles PTX as a part of a program that may have others, and then ignores `setmaxnreg`, by which the warps
of one role hand registers to another (its note C7504): every thread gets an even share, which is too few for two
products at once. `ptxas` compiles the same text as a whole program.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from tessera.errors import CompilerFault, ResourceError, TesseraError
from tessera.target.records import TargetRecord


def assemble(tool: Path, ptx: str, target: TargetRecord) -> tuple[bytes, str]:
    """Return the cubin of a PTX text and the assembler's report.

    Raises:
        ResourceError: `too-many-arguments`.
        CompilerFault: the assembler rejects the PTX, or cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [str(tool), f"-arch={target.name}", "-O3", "-v", "-o", str(cubin), str(source)]
        try:
            done = subprocess.run([*command, *several_at_once(ptx)], capture_output=True, text=True, check=False)
            if done.returncode and "split-compile" in done.stderr:  # an older one of the search path
                done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CompilerFault(f"{tool} cannot be run: {error}", code="invalid-ptx") from error
        if done.returncode:
            raise rejected(done.stderr.strip())
        return cubin.read_bytes(), done.stderr


def rejected(report: str) -> TesseraError:
    """Return the error for PTX that an assembler refuses with a report."""
    found = re.search(r"too much parameter space \(0x(\w+) bytes, 0x(\w+) max\)", report)
    if found is None:
        return CompilerFault(f"the assembler rejects the generated PTX: {report}", code="invalid-ptx")
    needed, most = (int(number, 16) for number in found.groups())
    return ResourceError(
        f"the kernel's arguments take {needed} bytes, a launch passes {most}",
        code="too-many-arguments",
        help="pass several numbers as one tensor, and tensors of one shape as one of a further dimension",
    )


def several_at_once(ptx: str) -> list[str]:
    """Return the option by which assemblers take as many kernels at once as the machine has cores, code unchanged."""
    return ["-split-compile=0"] if ptx.count("\n.visible .entry ") > 1 else []
