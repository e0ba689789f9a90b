"""Compiled variants of a kernel: one entry per specialisation, one variant per set of fixed sizes.

Look-up goes memory, disk, compiler. The key never holds sizes: which sizes a compilation fixes is known only
afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tessera.data import dataclass
from tessera.digest import sha256
from tessera.driver.agreement import Agreement
from tessera.driver.binding import dim_texts
from tessera.driver.cache import DiskCache, disk_cache
from tessera.errors import LanguageError, ResourceError
from tessera.frontend.exact import exact
from tessera.frontend.generated import Generated
from tessera.frontend.reads import Reads
from tessera.frontend.signature import MISSING, Signature
from tessera.frontend.specialize import Specialization
from tessera.runtime.device import Device
from tessera.runtime.platforms import platform_of, platforms
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from tessera.frontend.build import BuiltKernel

Space = tuple[tuple[str, tuple[object, ...]], ...]
"""Values of each tunable, in the order they are tried."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where code is to run.

    Args:
        backend: name of the platform's backend.
        identity: what decides the generated code, for keys; found without loading a compiler.
        record: gives the target's record.
    """

    backend: str
    identity: str
    record: Callable[[], TargetRecord]


def destination_of(device: Device) -> Destination:
    """Return what to compile for so that code runs on a device."""
    platform = platform_of(device)
    return Destination(platform.name, platform.device_identity(device), lambda: platform.device_target(device))


@dataclass(slots=True)
class Variant:
    """One compiled form of a kernel.

    Args:
        fixed: sizes that are constants in it, by dimension.
        artifact: the code.
        origin: `compiled` or `disk cache`.
        rejected: tuning points tried before, with the reason each failed.
        launchers: the code loaded on devices.
    """

    fixed: dict[str, int]
    artifact: Artifact
    origin: str
    rejected: tuple[tuple[dict[str, object], str], ...] = ()
    launchers: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def fits(self, sizes: Mapping[str, int | None]) -> bool:
        """Return whether the sizes of a call are those it was compiled for."""
        return all(sizes.get(text) == size for text, size in self.fixed.items())

    @property
    def config(self) -> dict[str, object]:
        """The tuning point."""
        return dict(self.artifact.reflection.get("config", {}))


def points(space: Space) -> Iterator[dict[str, object]]:
    """Yield the tuning points of a space in order; one empty point when there is no space."""
    for values in product(*(values for _, values in space)):
        yield dict(zip((name for name, _ in space), values, strict=True))


def without_sizes(spec: Specialization) -> Hashable:
    """Return a key for a specialisation: constants count by type and value, sizes not at all."""
    facts = tuple(replace(fact, sizes=()) for fact in spec.args)
    return replace(spec, args=facts, constexprs=(), config=()), exact(spec.constexprs), exact(spec.config)


def _facts_text(spec: Specialization) -> str:
    """Return all of a specialisation but its sizes and constants."""
    return repr(replace(spec, args=tuple(replace(fact, sizes=()) for fact in spec.args), constexprs=(), config=()))


def _unseen(spec: Specialization) -> Specialization:
    """Return a specialisation as if no array were another one."""
    return spec.seen_aliases([False] * len(spec.args))


def _seen(spec: Specialization, plain: Variant) -> Specialization:
    """Return a specialisation with the aliases that count, by what the code for other arrays writes."""
    return spec.seen_aliases([arg.written for arg in plain.artifact.args])


def _key_with(start: str, reads: Reads) -> str:
    return sha256(f"{start}\0{reads.digest()}".encode()).hexdigest()


@dataclass(slots=True, eq=False)
class Wanted:
    """Code that is not there yet.

    Args:
        kind: what tells it from other code, but sizes that may be fixed in it.
        sizes: size of every dimension text.
        find: finds or compiles it.
        found: the code, once it is there.
    """

    kind: Hashable
    sizes: Mapping[str, int | None]
    find: Callable[[], Variant]
    found: Variant | None = None

    def key(self, names: Collection[str] | None = None) -> Hashable:
        """Return what tells it from other code, of sizes those that are named, or all."""
        return self.kind, tuple((name, size) for name, size in self.sizes.items() if names is None or name in names)


@dataclass(frozen=True, slots=True, eq=False)
class _Missing:
    """A variant that is neither in memory nor on disk.

    Args:
        reads: what is read of the program.
        cache: where it is to be kept, None where it cannot be.
        start: the part of its key that is known before the front end has run.
    """

    reads: Reads
    cache: DiskCache | None = None
    start: str = ""


class Variants:
    """All compiled variants of one kernel.

    Args:
        signature: the kernel's parameters.
        space: its tuning space.
        agreement: what other kernels of the same function have read.
    """

    def __init__(self, signature: Signature, space: Space, agreement: Agreement | None = None) -> None:
        self._signature = signature
        self._space = space
        self._texts = dim_texts(signature)
        self._entries: dict[tuple[Hashable, str], list[Variant]] = {}
        self._agreement = Agreement() if agreement is None else agreement

    def find(self, spec: Specialization, sizes: Mapping[str, int | None], destination: Destination) -> Variant:
        """Return a variant that fits, compiled if need be.

        Args:
            spec: facts of the call; constexprs left to the tuner are `MISSING`.
            sizes: size of every dimension text.
            destination: where it is to run.

        Raises:
            TesseraError: what the compiler says.
        """
        if spec.has_aliases:
            spec = _seen(spec, self._find(_unseen(spec), sizes, destination))
        return self._find(spec, sizes, destination)

    def wanted(self, spec: Specialization, sizes: Mapping[str, int | None], destination: Destination) -> Wanted | None:
        """Return what `find` would have to compile, None where it would not.

        Args:
            spec: as for `find`, like the others.
            sizes: size of every dimension text.
            destination: where it is to run.
        """
        known = self._known(_unseen(spec) if spec.has_aliases else spec, sizes, destination)
        if spec.has_aliases and isinstance(known, Variant):
            known = self._known(_seen(spec, known), sizes, destination)
        if isinstance(known, Variant):
            return None
        record = destination.record()  # here, where the device may be asked
        there = replace(destination, record=lambda: record)
        kind = self, without_sizes(spec), destination.identity
        return Wanted(kind, sizes, lambda: self.find(spec, sizes, there))

    def _find(self, spec: Specialization, sizes: Mapping[str, int | None], destination: Destination) -> Variant:
        found = self._known(spec, sizes, destination)
        if isinstance(found, Variant):
            return found
        variant = self._made(spec, sizes, destination, found)
        if found.cache is not None and found.reads.complete:
            found.cache.store_paths(found.start, found.reads.paths)
            fixed = {self._texts.index(text): size for text, size in variant.fixed.items()}
            found.cache.store(_key_with(found.start, found.reads), fixed, variant.artifact)
        return self._kept(variant, found.reads, spec, destination)

    def _entry(self, spec: Specialization, destination: Destination) -> list[Variant]:
        return self._entries.setdefault((without_sizes(spec), destination.identity), [])

    def _kept(self, variant: Variant, reads: Reads, spec: Specialization, destination: Destination) -> Variant:
        """Return a variant that is kept in memory."""
        self._agreement.check(self._signature.name, reads)
        self._entry(spec, destination).append(variant)
        return variant

    def _known(
        self, spec: Specialization, sizes: Mapping[str, int | None], destination: Destination
    ) -> Variant | _Missing:
        """Return a variant that is in memory or on disk."""
        for variant in self._entry(spec, destination):
            if variant.fits(sizes):
                return variant
        reads = self._reads(spec)
        # Dumps of every pass are asked for: then the passes must run.
        disk = None if os.environ.get("TESSERA_DUMP_DIR") else disk_cache()
        if disk is None or not reads.complete:
            return _Missing(reads)
        start = self._key(spec, destination, disk.compiler_hash(), reads.roots)
        places = [sizes.get(text) for text in self._texts]
        for paths in disk.paths(start):
            reads.follow(paths)
            found = disk.find(_key_with(start, reads), places)
            if found is not None and self._is_own(found[1], destination) and self._runs_here(found[1]):
                fixed = {self._texts[place]: size for place, size in found[0].items()}
                return self._kept(Variant(fixed, found[1], "disk cache"), reads, spec, destination)
            reads = self._reads(spec)
        return _Missing(reads, disk, start)

    def _is_own(self, artifact: Artifact, destination: Destination) -> bool:
        """Return whether an artefact is this kernel's: its name and arguments are checked besides its key."""
        own = [param.name for param in self._signature.runtime_params]
        same = artifact.name == self._signature.name and artifact.backend == destination.backend
        return same and own == [spec.name for spec in artifact.args]

    @staticmethod
    def _runs_here(artifact: Artifact) -> bool:
        return any(one.name == artifact.backend and one.runs_here(artifact) for one in platforms())

    def _reads(self, spec: Specialization) -> Reads:
        """Return a record of what is read of the program, which holds the kernel's own parts already."""
        signature = self._signature
        return Reads(
            {
                "kernel": signature.function,
                "parameters": signature.params,
                "returns": signature.returns,
                "structures": signature.structures,
                "constants": spec.constexprs,
                "config": spec.config,
                "space": self._space,
            }
        )

    def _key(self, spec: Specialization, destination: Destination, compiler: str, roots: str) -> str:
        """Return the part of a key that is known before the front end has run."""
        parts = [compiler, destination.backend, destination.identity, roots, _facts_text(spec)]
        return sha256("\0".join(parts).encode()).hexdigest()

    def _made(
        self, spec: Specialization, sizes: Mapping[str, int | None], destination: Destination, missing: _Missing
    ) -> Variant:
        """Return a variant that is compiled, or that has the code of another kernel of the same TIR-H."""
        disk, signature = missing.cache, self._signature
        if disk is None or spec.debug or self._space or not isinstance(signature.function, Generated):
            return self._compile(spec, destination.record(), missing.reads)
        built = build_point(signature, spec, {}, missing.reads)
        key = alike_key(built, spec, destination, disk.compiler_hash())
        first = disk.find_blob(key)
        found = None if first is None else disk.find(first.decode(), [sizes.get(text) for text in self._texts])
        if found is not None and self._runs_here(found[1]):
            return Variant(built.fixed_dims, replace(found[1], name=signature.name), "disk cache")
        artifact = compile_built(built, spec, {}, destination.record(), ())
        disk.store_blob(key, _key_with(missing.start, missing.reads).encode())
        return Variant(built.fixed_dims, artifact, "compiled")

    def _compile(self, spec: Specialization, target: TargetRecord, reads: Reads) -> Variant:
        """Compile the first tuning point whose resources the target has."""
        if not self._space:
            return Variant(*compile_point(self._signature, spec, {}, target, (), reads), "compiled")
        rejected: list[tuple[dict[str, object], ResourceError]] = []
        for point in points(self._space):
            try:
                fixed, artifact = compile_point(self._signature, spec, point, target, (), reads)
            except ResourceError as error:
                rejected.append((point, error))
                continue
            reasons = tuple((point, error.message) for point, error in rejected)
            return Variant(fixed, artifact, "compiled", reasons)
        point, last = rejected[-1]
        raise ResourceError(
            f"none of the {len(rejected)} tuning points of {self._signature.name} fits {target.name}; "
            f"the last one, {point}: {last.message}",
            code="no-valid-point",
            location=last.location,
            help=last.help,
        )


def specialize_at(signature: Signature, spec: Specialization, point: Mapping[str, object]) -> Specialization:
    """Return the specialisation at a tuning point: open constexprs filled in, all of it seen by `context()`.

    Raises:
        LanguageError: `no-tuned-value` when a constexpr is left without a value.
    """
    constexprs = tuple((name, point.get(name, value) if value is MISSING else value) for name, value in spec.constexprs)
    missing = [name for name, value in constexprs if value is MISSING]
    if missing:
        raise LanguageError(
            f"constexpr {missing[0]!r} of {signature.name} has no value",
            code="no-tuned-value",
            help="pass it, or give it values in the tuning space",
        )
    return replace(spec, constexprs=constexprs, config=(*spec.config, *point.items()))


def compile_point(
    signature: Signature,
    spec: Specialization,
    point: Mapping[str, object],
    target: TargetRecord,
    dump: Sequence[str],
    reads: Reads | None = None,
) -> tuple[dict[str, int], Artifact]:
    """Compile one tuning point; gives the sizes fixed in it and the artefact.

    Args:
        signature: the kernel's parameters.
        spec: facts of the call.
        point: the tuning point.
        target: what to compile for.
        dump: stages to keep.
        reads: records what is read of the surrounding program.
    """
    full = specialize_at(signature, spec, point)
    built = build_point(signature, full, point, reads)
    return built.fixed_dims, compile_built(built, full, point, target, dump)


def build_point(
    signature: Signature, spec: Specialization, point: Mapping[str, object], reads: Reads | None
) -> BuiltKernel:
    """Return the TIR-H of one tuning point.

    Args:
        signature: the kernel's parameters.
        spec: as `specialize_at` gives it.
        point: the tuning point.
        reads: records what is read of the surrounding program.
    """
    # Here, not at the top: `import tessera` and cache hits must not load the compiler.
    from tessera.ir.imports import import_xdsl

    import_xdsl()
    from tessera.frontend.build import build_kernel

    built = build_kernel(signature, spec, reads)
    if point:
        _check_names(signature, point, built.tunables_read)
    return built


def compile_built(
    built: BuiltKernel,
    spec: Specialization,
    point: Mapping[str, object],
    target: TargetRecord,
    dump: Sequence[str],
) -> Artifact:
    """Return the artefact of TIR-H; the arguments are those of `build_point` and `compile_point`."""
    from tessera.driver.pipeline import compile_kernel

    facts = {
        "config": {
            name: value if isinstance(value, int | float | str | bool) else repr(value) for name, value in point.items()
        },
        "profile": spec.profile,
        "debug": spec.debug,
        "fixed_dims": built.fixed_dims,
    }
    return compile_kernel(built, target, dump, dict(spec.config), facts)


def alike_key(built: BuiltKernel, spec: Specialization, destination: Destination, compiler: str) -> str:
    """Return what kernels share whose code differs in its name at most, as the groups of two layers may."""
    from tessera.ir.text import text_of

    (kernel,) = built.module.ops
    name: Any = kernel.properties["sym_name"]
    text = text_of(built.module).replace(f"@{name.data} ", "@ ", 1)
    parts = [compiler, destination.backend, destination.identity, repr(spec.config), repr(built.fixed_dims), text]
    return sha256("\0".join(parts).encode()).hexdigest()


def _check_names(signature: Signature, point: Mapping[str, object], read: frozenset[str]) -> None:
    """Refuse a name of a tuning point that the kernel does not read and that looks like a knob's.

    Raises:
        LanguageError: `unknown-knob`.
    """
    from tessera.schedule.knobs import is_like_a_knob, unknown_knob

    own = {param.name for param in signature.params} | read | set(signature.function.__code__.co_names)
    for name in point:
        if name not in own and is_like_a_knob(name):
            raise unknown_knob(name)
