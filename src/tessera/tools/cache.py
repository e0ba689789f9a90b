"""`tessera cache`: what the disk cache holds."""

from __future__ import annotations

import time

import click
from rich.table import Table

from tessera.driver.cache import CacheEntry, DiskCache, default_path, disk_cache, size_limit
from tessera.errors import CallError
from tessera.tools.console import console


def _opened() -> DiskCache:
    found = disk_cache()
    if found is None:
        raise CallError(
            f"the kernel cache {default_path()} is not in use",
            code="no-cache",
            help="tessera doctor says why; TESSERA_CACHE_DIR and TESSERA_CACHE_SIZE_MB set it",
        )
    return found


def _entries() -> list[CacheEntry]:
    return sorted(_opened().entries(), key=lambda entry: -entry.used)


@click.group(invoke_without_command=True)
@click.pass_context
def cache(context: click.Context) -> None:
    """Show the cache of compiled kernels; the subcommands look into it and empty it."""
    if context.invoked_subcommand is None:
        entries = _entries()
        used = sum(entry.size for entry in entries)
        click.echo(f"{default_path()}: {len(entries)} kernels, {used / 2**20:.1f} of {size_limit() / 2**20:.0f} MB")


@cache.command()
def path() -> None:
    """Print where the cache is (TESSERA_CACHE_DIR sets it)."""
    click.echo(str(default_path()))


@cache.command()
def size() -> None:
    """Print how many bytes the cached kernels take."""
    click.echo(str(sum(entry.size for entry in _entries())))


@cache.command(name="list")
def list_() -> None:
    """List the cached kernels, the last used first."""
    table = Table("kernel", "target", "bytes", "last used", "file", box=None)
    disk = _opened()
    for entry in _entries():
        artifact = disk.artifact_at(entry)
        name, target = ("(corrupt)", "") if artifact is None else (artifact.name, artifact.target)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        table.add_row(name, target, str(entry.size), when, f"{entry.path.parent.name[:12]}…/{entry.path.name}")
    console().print(table)


@cache.command()
def clear() -> None:
    """Remove all cached kernels, and all else in the cache."""
    click.echo(f"removed {_opened().clear()} kernels")
