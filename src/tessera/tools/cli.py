"""The `tessera` command."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

import tessera
from tessera.errors import TesseraError

_COMMANDS = {
    "doctor": "tessera.tools.doctor",
    "compile": "tessera.tools.compile",
    "opt": "tessera.tools.opt",
    "run": "tessera.tools.run",
    "cache": "tessera.tools.cache",
    "fuzz": "tessera.tools.fuzz.command",
}
"""The module of each command, which defines a click command of the same name. Loaded when it is asked for."""


class _Commands(click.Group):
    """Loads commands lazily, and prints every Tessera error as its text."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, module in _COMMANDS.items() if importlib.util.find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line, which click itself ends quietly where a pipe is closed."""
        try:
            if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
                raise OSError("standard output is closed")
            return super().main(*args, **options)
        except TesseraError as error:
            # Without its traceback, in which the command line's own frames would pass for the user's program.
            _fail(str(error.with_traceback(None)))
        except UnicodeDecodeError as error:
            _fail(f"error[file]: the file holds no text: {error}")
        except UnicodeEncodeError as error:
            _fail(f"error[file]: a text cannot be written: {error}")
        except OSError as error:
            _fail(f"error[file]: {error}")


def _fail(message: str) -> NoReturn:
    """End the process with a message; what could not be written to standard output is not tried again."""
    click.echo(message, err=True)
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        sys.exit(1)
    # Python writes what is left at its end, and would complain.
    sys.stdout = None
    sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tessera.__version__, "-V", "--version", prog_name="tessera")
def main() -> None:
    """Compile kernels over tiles for CPUs and GPUs, look at every stage, and see what works on this machine.

    \b
    tessera doctor                               what works here, and what mends the rest
    tessera compile gemm.py:gemm --target sm_90a --dump ptx
    tessera compile build/gemm.tirt -o edited    go on from a dump, edited or not
    tessera cache list
    tessera fuzz --minutes 5                     random programs against their meaning
    """  # noqa: D301 - click wants the backspace character itself


if __name__ == "__main__":
    sys.exit(main())
