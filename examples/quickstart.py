"""Run saxpy, GEMM, softmax and flash attention on the CPU, each against a float64 reference, and print a table.

Exits with status 1 when a result is outside its tolerance.
"""

import platform
import time

import flash_attention
import gemm
import saxpy
import softmax
from harness import Case, Place
from rich import box
from rich.console import Console
from rich.table import Table

import tessera as ts


def cases() -> list[Case]:
    """Return the calls, on sizes that no block size divides."""
    f32, bf16 = Place("cpu", ts.f32), Place("cpu", ts.bf16)
    return [
        saxpy.case(f32, 1_000_003),
        gemm.case(f32, 500, 333, 777),
        gemm.case(bf16, 500, 333, 777),
        softmax.case(f32, 1000, 777),
        softmax.case(bf16, 1000, 777),
        flash_attention.case(f32, 4, 333, 64, is_causal=True),
        flash_attention.case(bf16, 4, 333, 64, is_causal=False),
    ]


def main() -> int:
    """Run everything; returns the exit status."""
    start = time.perf_counter()
    table = Table("kernel", "error", "allowed", "first call", "then", "", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    failures = 0
    for case in cases():
        error, first = case.run()
        good = error <= case.tolerance
        failures += not good
        table.add_row(
            case.name,
            f"{error:.1e}",
            f"{case.tolerance:.1e}",
            f"{1e3 * first:.0f} ms",
            f"{1e3 * case.seconds():.3f} ms",
            "[green]ok[/]" if good else "[red]WRONG[/]",
        )
    console = Console()
    console.print(f"Tessera {ts.__version__} on the CPU ({platform.machine()}), against NumPy in float64")
    console.print(table)
    console.print("Errors are over the largest expected value; a first call compiles or loads.")
    seconds = time.perf_counter() - start
    verdict = "All results are right" if not failures else f"{failures} of {table.row_count} results are wrong"
    console.print(f"{verdict}; {seconds:.1f} s in all.")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
