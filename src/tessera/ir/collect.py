"""Builds a dialect from the files of a folder, so that a new op is one new file and no list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from xdsl.context import Context
from xdsl.ir import Attribute, Dialect, Operation


def _modules(package: str) -> Iterator[str]:
    found = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(found.__path__), key=lambda module: module.name):
        yield f"{package}.{info.name}"


def _named(cls: type, base: type, prefix: str) -> bool:
    name = cls.__dict__.get("name")
    return issubclass(cls, base) and isinstance(name, str) and name.startswith(prefix)


def dialect_of(name: str, package: str, extra: tuple[str, ...] = ()) -> Dialect:
    """Return the dialect `name` of all ops and attributes defined in `package` (and the `extra` modules)."""
    ops: list[type[Operation]] = []
    attrs: list[type[Attribute]] = []
    for module_name in (*_modules(package), *extra):
        for cls in vars(importlib.import_module(module_name)).values():
            if not isinstance(cls, type) or cls.__module__ != module_name:
                continue
            if _named(cls, Operation, name + "."):
                ops.append(cls)
            elif _named(cls, Attribute, name + "."):
                attrs.append(cls)
    return Dialect(name, ops, attrs)


def new_context() -> Context:
    """Return an xDSL context with every dialect Tessera's IRs are made of."""
    from xdsl.dialects.builtin import Builtin
    from xdsl.dialects.scf import Scf

    from tessera.ir.graph import graph_dialect
    from tessera.ir.target import target_dialect
    from tessera.ir.tile import tile_dialect

    context = Context()
    for dialect in (Builtin, Scf, graph_dialect(), tile_dialect(), target_dialect()):
        context.load_dialect(dialect)
    return context
