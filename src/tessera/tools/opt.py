"""`tessera opt`: runs passes on a textual IR."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TextIO

import click

from tessera.errors import CallError
from tessera.ir.passes import Pass, PassRunner, passes_in
from tessera.ir.text import parse_module, text_of

_PACKAGES = ("tessera.canonicalize", "tessera.schedule")


@cache
def registered_passes() -> dict[str, type[Pass]]:
    """Return every pass that can be named, by `<stage>-<pass>`."""
    return {name: cls for package in _PACKAGES for name, cls in passes_in(package).items()}


def pass_named(name: str) -> tuple[str, Pass]:
    """Return the stage and the pass called `name`, with or without its stage.

    Raises:
        CallError: `unknown-pass`, with the nearest names.
    """
    known = registered_passes()
    for full, cls in known.items():
        if name in (full, cls.name):
            return full.removesuffix(f"-{cls.name}"), cls()
    near = difflib.get_close_matches(name, known, cutoff=0.4) or sorted(known)
    raise CallError(f"no pass is called {name!r}", code="unknown-pass", help=f"one of {', '.join(near)}")


def opt_text(
    text: str,
    passes: Sequence[str],
    *,
    file: str = "<input>",
    locations: bool = False,
    dump: Path | None = None,
) -> str:
    """Run passes on the textual form of a module and return the result's.

    Args:
        text: the module.
        passes: names, in order.
        file: the text's name in messages.
        locations: whether the result shows each op's location.
        dump: folder for the result of each pass.

    Raises:
        VerifyError: the text does not parse or verify; has the place.
        CallError: `unknown-pass`.
    """
    module = parse_module(text, file)
    runner = PassRunner(dump, verify="pass")
    for stage, step in [pass_named(name) for name in passes]:
        runner.run(module, stage, [step])
    return text_of(module, locations=locations)


@click.command()
@click.argument("source", type=click.File("r"), default="-")
@click.option(
    "--pass", "-p", "passes", multiple=True, help="A pass to run; may be given several times, in order."
)
@click.option("--list", "listing", is_flag=True, help="List the passes and stop.")
@click.option("--locations", is_flag=True, help="Print the source location of each op.")
@click.option("--dump", type=click.Path(path_type=Path), help="Folder for the result of each pass.")
@click.option("--output", "-o", type=click.File("w"), default="-", help="Where the result goes.")
def opt(
    source: TextIO, passes: tuple[str, ...], listing: bool, locations: bool, dump: Path | None, output: TextIO
) -> None:
    """Run passes on the textual IR in SOURCE (`-` for standard input) and print the result."""
    if listing:
        for name, cls in sorted(registered_passes().items()):
            summary = (cls.__doc__ or "").split("\n")[0]
            output.write(f"{name:40} {summary}\n")
        return
    output.write(opt_text(source.read(), passes, file=source.name, locations=locations, dump=dump))
