"""The `tessera` command."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TesseraError as error:
            # Without its traceback, in which the command line's own frames would pass for the user's program.
            click.echo(str(error.with_traceback(None)), err=True)
            ctx.exit(1)
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            click.echo(f"error[file]: {error}", err=True)
            ctx.exit(1)
        except UnicodeDecodeError as error:
            click.echo(f"error[file]: the file holds no text: {error}", err=True)
            ctx.exit(1)


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
