"""`tessera compile`: a kernel from a file to an artefact, with dumps of its stages."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tessera.driver.binding import check_names
from tessera.driver.compile import DUMPS
from tessera.driver.compile import compile as compile_kernel
from tessera.errors import CallError
from tessera.target.artifact import Artifact
from tessera.tools.loading import find_kernel

_MOST_DIGITS = 19
"""Digits of a size; Python reads only some thousands."""


def _assignments(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Read `M=4096,N=128`, given any number of times."""
    found: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip():
            raise CallError(
                f"{option}: {part!r} is not an assignment", code="bad-option", help=f"write {option} M=4096,N=128"
            )
        found[name.strip()] = value.strip()
    return found


def _dims(texts: tuple[str, ...]) -> dict[str, int]:
    found = _assignments("--dims", texts)
    for name, value in found.items():
        if not value.isdecimal() or len(value) > _MOST_DIGITS:
            raise CallError(
                f"--dims: {name} is {value!r:.80}, which is not a size",
                code="bad-option",
                help="write --dims M=4096",
            )
    return {name: int(value) for name, value in found.items()}


def _constant(text: str) -> object:
    """Read a constexpr's value: a JSON number, `true`, `false`, `None`, or else a string."""
    if text == "None":
        return None
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except (json.JSONDecodeError, RecursionError):
        return text
    except ValueError as error:
        raise CallError(
            f"--const: {text:.80} is no number: {error}", code="bad-option", help="write --const NAME=8"
        ) from error
    return value if isinstance(value, int | float | str) else text


@click.command(name="compile")
@click.argument("kernel", metavar="FILE.py:KERNEL|DUMP")
@click.option("--target", "-t", help="What to compile for: cpu, sm_90a, …  [default: this machine, or what DUMP says]")
@click.option("--dims", "-d", multiple=True, metavar="M=4096,…", help="Sizes of dimension names.")
@click.option(
    "--const",
    "-c",
    multiple=True,
    metavar="BM=64,…",
    help="Values of constexprs and tunables; T=bf16 for a dtype variable, x=None for a tensor that is missing.",
)
@click.option("--dump", multiple=True, metavar="STAGE,…", help=f"Stages to keep: {', '.join(DUMPS)}.")
@click.option("--out", "-o", type=click.Path(file_okay=False, path_type=Path), help="Folder for artefact and dumps.")
def compile(
    kernel: str,
    target: str | None,
    dims: tuple[str, ...],
    const: tuple[str, ...],
    dump: tuple[str, ...],
    out: Path | None,
) -> None:
    """Compile KERNEL of FILE.py, or go on from DUMP, without running it; no device is needed.

    DUMP is the text of any level (tirh, tirt, ll, ptx) as this command or ts.compile gives it, edited or not.
    Without --out, dumps are printed. With it, the folder gets KERNEL.tessera (what ts.load reads), a file for
    each dump, and KERNEL.json: the facts about the code.

    \b
    tessera compile gemm.py:gemm --target sm_90a --dims M=4096,N=4096,K=4096 --dump ptx,tirt -o build
    tessera compile build/gemm.tirt -o build
    """  # noqa: D301 - click wants the backspace character itself
    stages = [stage.strip() for text in dump for stage in text.split(",") if stage.strip()]
    constants = {name: _constant(value) for name, value in _assignments("--const", const).items()}
    check_names(kernel, constants)
    source = Path(kernel) if _is_dump(kernel) else find_kernel(kernel)
    artifact = compile_kernel(source, target=target, dump=stages, dims=_dims(dims) or None, strides=None, **constants)
    if out is None:
        _print(artifact)
    else:
        _write(artifact, out)


def _is_dump(text: str) -> bool:
    """Return whether an argument names a text of some level and no kernel of a Python file."""
    return Path(text).suffix.removeprefix(".") in ("mlir", *DUMPS)


def _print(artifact: Artifact) -> None:
    for stage, data in artifact.dumps.items():
        if isinstance(data, bytes):
            raise CallError(f"the dump {stage!r} is binary", code="bad-option", help="write it to a folder with --out")
        if len(artifact.dumps) > 1:
            click.echo(f"// ---- {stage}")
        click.echo(data)
    click.echo(f"{_summary(artifact)}", err=True)


def _write(artifact: Artifact, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        artifact.save(folder / f"{artifact.name}.tessera")
        (folder / f"{artifact.name}.json").write_text(
            json.dumps(artifact.reflection, indent=2) + "\n", encoding="utf-8"
        )
        for stage, data in artifact.dumps.items():
            content = data.encode() if isinstance(data, str) else data
            (folder / f"{artifact.name}.{stage}").write_bytes(content)
    except OSError as error:
        raise CallError(
            f"{folder} cannot be written: {error.strerror}",
            code="no-such-file",
            help="name a folder that you may write to",
        ) from error
    click.echo(f"{_summary(artifact)}: {folder / f'{artifact.name}.tessera'}")


def _summary(artifact: Artifact) -> str:
    kind = artifact.code_kind or "no machine code"
    return f"{artifact.name} for {artifact.target}: {kind}, {len(artifact.code)} bytes"
