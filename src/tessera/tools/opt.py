"""`tessera opt`: runs passes on a textual IR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TextIO

import click

from tessera.driver.compile import target_record
from tessera.driver.levels import text_at
from tessera.ir.passes import Pass, PassRunner, pass_of, passes_in
from tessera.ir.text import text_of
from tessera.tools.texts import module_of

_PACKAGES = ("tessera.canonicalize", "tessera.schedule")


@cache
def registered_passes() -> dict[str, type[Pass]]:
    """Return every pass that can be named, by `<stage>-<pass>`."""
    return {name: cls for package in _PACKAGES for name, cls in passes_in(package).items()}


def opt_text(
    text: str,
    passes: Sequence[str],
    *,
    file: str = "<input>",
    locations: bool = False,
    dump: Path | None = None,
    to: str | None = None,
    target: str | None = None,
) -> str:
    """Run passes on the textual form of a module, then the compiler if asked to, and return the result's.

    Args:
        text: the module.
        passes: names with options, such as `warp-specialize{stages=3}`, in order.
        file: the text's name in messages.
        locations: whether the result shows each op's location.
        dump: folder for the result of each pass.
        to: the level to go on to from there: `tirh` (scheduled), `tirt`, `ll`, `ptx` or `asm`.
        target: what to go on for; by default what the text says.

    Raises:
        VerifyError: the text does not parse or verify; has the place.
        CallError: `unknown-pass`, `unknown-option`, `bad-option`; with `to` as `ts.compile` of a dump.
        TargetError: `unknown-target`.
        LanguageError: `bad-knob`.
    """
    module = module_of(text, file)
    runner = PassRunner(dump, verify="pass")
    for stage, step in [pass_of(name, registered_passes()) for name in passes]:
        runner.run(module, stage, [step])
    if to is not None:
        return text_at(module, file, None if target is None else target_record(target), to)
    return text_of(module, locations=locations)


@click.command()
@click.argument("source", type=click.File("r"), default="-")
@click.option(
    "--pass",
    "-p",
    "passes",
    multiple=True,
    help="A pass to run, such as dead-code or 'split-k{split_k=2}'; several run in order.",
)
@click.option("--list", "listing", is_flag=True, help="List the passes and stop.")
@click.option("--locations", is_flag=True, help="Print the source location of each op.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for the result of each pass.")
@click.option("--to", metavar="LEVEL", help="Compile on to tirh (scheduled), tirt, ll, ptx or asm.")
@click.option("--target", "-t", help="What --to compiles for: cpu, sm_90a, …  [default: what SOURCE says]")
@click.option("--output", "-o", type=click.File("w"), default="-", help="Where the result goes.")
def opt(
    source: TextIO,
    passes: tuple[str, ...],
    listing: bool,
    locations: bool,
    dump: Path | None,
    to: str | None,
    target: str | None,
    output: TextIO,
) -> None:
    """Run passes on the textual IR in SOURCE (`-` for standard input) and print the result.

    With --to the compiler goes on from there, after the pass that SOURCE says was the last.
    """
    if listing:
        for name, cls in sorted(registered_passes().items()):
            summary = (cls.__doc__ or "").split("\n")[0]
            options = f" Options: {', '.join(cls.option_names())}." if cls.option_names() else ""
            output.write(f"{name:40} {summary}{options}\n")
        return
    output.write(
        opt_text(source.read(), passes, file=source.name, locations=locations, dump=dump, to=to, target=target)
    )
