"""The result of a compilation: frozen data that a runtime can launch and a file can hold.

An artefact is data only: JSON and machine code, never anything Python runs on load.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

from tessera.data import dataclass
from tessera.errors import CallError, LanguageError
from tessera.numerics.dtypes import BY_NAME
from tessera.numerics.profiles import DEFAULT, Profile
from tessera.target.assumptions import place_of
from tessera.target.container import pack, unpack
from tessera.target.dims import Dim
from tessera.target.extents import Extent, evaluate, extent_of, leaves
from tessera.target.registry import family
from tessera.target.schema import (
    Check,
    anything,
    flag,
    many,
    one_of,
    pair,
    record,
    table,
    text,
    whole,
    wrong,
)

if TYPE_CHECKING:
    from pathlib import Path

REREADS_BITS = 8
"""Of the decision `rereads`, for each argument: dimensions of a grid."""
FLAG_BYTES = 4096
"""Bytes before the slots of a workspace: four for each program."""
FILLING_THREADS = 1024
"""Threads that keep a multiprocessor busy."""
MOST_PARTS = 256
"""Programs that share a tile at most: its last program waits for all of them."""

MOST_MAPPED = (1 << 31) - (1 << 16)
"""Largest size of a dimension that a tensor map has: the places in a box that starts there have 31 bits."""

MOST_STRIDE_BYTES = 1 << 40
"""Strides in a tensor map are smaller (CUDA Driver API, `cuTensorMapEncodeTiled`)."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One machine-level parameter of an entry point.

    Args:
        kind: `pointer` (base address of argument `arg`), `size` or `stride` (of its dimension `axis`; strides in
            elements), `scalar` (the argument itself), `tensor_map` (a 128-byte descriptor of the argument for the
            copy engine; the host encodes it) or `workspace` (the address of device memory that belongs to the
            stream, see `Launch.slot_bytes`; its `arg` is -1).
        arg: position of the kernel argument it comes from.
        axis: dimension, for sizes and strides.
        align: known alignment of a pointer, in bytes.
        dtype: dtype of a scalar or of the elements; for a tensor map, what they are copied as: `tf32` rounds f32.
        order: for a tensor map, the argument's dimensions from the contiguous one on.
        box: for a tensor map, the elements one copy moves along each of them.
        slot_bytes: for a workspace, the bytes of each program's slot.
        parts: for a workspace, how many programs may share a tile's loop, each tile that of as many; 0 where programs
            share out the steps of all tiles, 1 where the grid counts each tile as often as programs share it.
        sharing: for such a workspace, how many programs share tiles at most.
    """

    kind: Literal["pointer", "size", "stride", "scalar", "tensor_map", "workspace"]
    arg: int
    axis: int = 0
    align: int = 1
    dtype: str = "i64"
    order: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    slot_bytes: int = 0
    parts: int = 0
    sharing: int = 0


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """What one argument of a compiled kernel must be.

    Args:
        name: parameter name.
        kind: `tensor` or `scalar`.
        dtype: name of the dtype.
        dims: for a tensor, the text of each dimension (`"M"`, `"B*H"`, `"128"`).
        sizes: size each dimension was fixed to, -1 where free.
        strides: stride each dimension was fixed to in elements, -1 where free.
        align: bytes that divide the base address.
        stride_div: number that divides each stride.
        dim_div: number that divides each size.
        written: whether the kernel stores to it.
    """

    name: str
    kind: Literal["tensor", "scalar"]
    dtype: str
    dims: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    stride_div: tuple[int, ...] = ()
    dim_div: tuple[int, ...] = ()
    written: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One entry point and how it is started; a kernel with several grids has several.

    On a CPU `params` has two more entries after the parameters: the worker's scratch memory (64-byte aligned,
    `scratch_bytes` long) and an i64 error word. It stays 0, or becomes 1 + the position of the failed assertion in
    `reflection["asserts"]`, a list of `{"message": …, "location": …}`.

    Args:
        entry: symbol name.
        params: parameters in order. On a CPU the entry is `void entry(void** params, i64 first, i64 last)`, which
            runs programs first..last-1; each `params[i]` points at the value.
        grid: extent and block size of each grid dimension; programs = product of ceil(extent / block).
        threads: threads of a program (GPU).
        shared_bytes: dynamic shared memory of a program (GPU).
        scratch_bytes: scratch memory one worker needs (CPU), 0 when on its stack.
        persistent: whether a program takes further tiles: at most one a multiprocessor is started.
        cluster: programs that run at the same time, in each other's reach; the number of programs is a multiple.
        overlaps: whether programs wait, before they touch memory, for the launch before: then they may start earlier.
    """

    entry: str
    params: tuple[Parameter, ...]
    grid: tuple[tuple[Extent, int], ...]
    threads: int = 1
    shared_bytes: int = 0
    scratch_bytes: int = 0
    persistent: bool = False
    overlaps: bool = False
    cluster: int = 1

    @property
    def slot_bytes(self) -> int:
        """Bytes of device memory that each program hands partial sums on in, 0 where none does.

        Such a launch shares its work out over all programs that a GPU runs at once, however few tiles there are. Its
        workspace begins with `FLAG_BYTES` of flags, which are 0 before a launch and after it; a slot for each program
        follows.
        """
        return next((param.slot_bytes for param in self.params if param.kind == "workspace"), 0)

    @property
    def parts(self) -> int:
        """Most programs that share each tile where the grid alone does not fill a GPU, 0 where none ever do."""
        return next((param.parts for param in self.params if param.kind == "workspace"), 0)

    def most_programs(self, multiprocessors: int) -> int:
        """Return how many programs fill a GPU: of a persistent launch, one a multiprocessor.

        Where programs share tiles, these are as many as the launch says, or as have `FILLING_THREADS`, and flags.
        """
        sharing = next((param.sharing for param in self.params if param.sharing), 0)
        if sharing:
            return sharing
        if self.parts:
            return min(max(FILLING_THREADS // self.threads, 1) * multiprocessors, FLAG_BYTES // 4)
        return max(multiprocessors // self.cluster, 1) * self.cluster

    def started(self, programs: int, multiprocessors: int) -> int:
        """Return how many programs are started for a grid of `programs`."""
        most = self.most_programs(multiprocessors)
        if self.parts and programs:
            return programs * min(max(most // programs, 1), self.parts)
        if not self.persistent:
            return programs
        return most if self.slot_bytes and programs else min(programs, most)


MOST_PROGRAMS = 2**63 - 1


def program_count(launch: Launch, sizes: Any, scalars: Any, strides: Any = ()) -> int:
    """Return how many programs `launch` starts for these arguments (0 for an empty grid).

    Raises:
        ArtifactError: as `evaluate`.
        CallError: `grid-too-large`.
    """
    counts = [max(-(-evaluate(extent, sizes, scalars, strides) // block), 0) for extent, block in launch.grid]
    programs = prod(counts)
    if programs > MOST_PROGRAMS:
        raise CallError(
            f"the grid {' x '.join(map(str, counts))} has {programs} programs",
            code="grid-too-large",
            help=f"a launch has at most {MOST_PROGRAMS}; use larger tiles",
        )
    return programs


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel.

    Args:
        name: the kernel's name.
        backend: `cpu`, `ptx`, `rocm` or `level_zero`.
        target: name of the target record it was compiled for.
        args: what each argument must be, in order.
        returns: positions of the arguments the kernel returns.
        launches: entry points in the order they run.
        code: machine code (cubin, ELF object); empty when `code_kind` is empty.
        code_kind: `cubin`, `object` or an empty string.
        dumps: text or bytes of the stages asked for.
        reflection: facts about the code, JSON-serialisable.
        requires: for CPU code, the architecture and the features (LLVM's names) that a CPU must have to run it.
    """

    name: str
    backend: str
    target: str
    args: tuple[ArgSpec, ...]
    returns: tuple[int, ...]
    launches: tuple[Launch, ...]
    code: bytes = field(default=b"", repr=False)
    code_kind: str = ""
    dumps: dict[str, str | bytes] = field(default_factory=dict[str, "str | bytes"], repr=False)
    reflection: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    requires: tuple[str, ...] = ()

    @property
    def profile(self) -> Profile:
        """The numerics profile that it was compiled under."""
        return self.reflection.get("profile", DEFAULT)

    @property
    def assumptions(self) -> Sequence[dict[str, Any]]:
        """What must hold of a call: `{"condition": an extent that is not 0, "location": …}`."""
        return self.reflection.get("assumptions", ())

    def to_bytes(self) -> bytes:
        """Return the artefact as a file's contents; docs/artefacts.md says what is in it."""
        kinds = [[name, "text" if isinstance(data, str) else "bytes"] for name, data in self.dumps.items()]
        header = {**self.header(), "code_kind": self.code_kind, "dumps": kinds}
        dumps = [data.encode() if isinstance(data, str) else data for data in self.dumps.values()]
        return pack(header, [self.code, *dumps])

    def header(self) -> dict[str, Any]:
        """Return what is known of the kernel beside its code and texts, JSON-serialisable."""
        return {
            "name": self.name,
            "backend": self.backend,
            "target": self.target,
            "args": [asdict(arg) for arg in self.args],
            "returns": self.returns,
            "launches": [asdict(launch) for launch in self.launches],
            "requires": self.requires,
            "reflection": self.reflection,
        }

    def save(self, path: str | Path) -> None:
        """Write the artefact to a file that `ts.load` reads; one that is there is replaced whole, or left as it is.

        So it is for any number of threads and processes that write one file. What a link names is written in place.

        Raises:
            OSError: the file cannot be written.
        """
        from pathlib import Path

        data, goal = self.to_bytes(), Path(path)
        if goal.is_symlink() or (goal.exists() and not goal.is_file()):
            goal.write_bytes(data)
            return
        part = goal.with_name(f"{os.urandom(8).hex()}.part")
        file = part.open("xb")
        try:
            with file:
                file.write(data)
            part.replace(goal)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """Read an artefact back.

        Raises:
            ArtifactError: `bad-artifact` when the data is damaged, says what no compiler writes, or is of another
                format version.
        """
        header, blobs = unpack(data)
        artifact = _ARTIFACT("the header", header)
        names = list(artifact.dumps.items())
        if len(blobs) != 1 + len(names):
            raise wrong("the header", f"names {len(names)} dumps, and {len(blobs) - 1} follow")
        dumps: dict[str, str | bytes] = {}
        for (name, kind), blob in zip(names, blobs[1:], strict=True):
            try:
                dumps[name] = blob.decode() if kind == "text" else blob
            except UnicodeDecodeError:
                raise wrong(f"the dump {name!r}", "is not text") from None
        artifact = replace(artifact, code=blobs[0], dumps=dumps)
        check_together(artifact)
        return artifact


# The schema of the header. Every field is checked, and that fields agree with each other.

_POWERS = tuple(1 << bit for bit in range(17))
_ANY = whole(-(2**63))
_DTYPE = one_of(*BY_NAME)


def _dim(where: str, value: Any) -> str:
    try:
        return str(Dim.parse(text(where, value)))
    except LanguageError:
        raise wrong(where, f"is {value!r:.60}, no dimension") from None


def _align(where: str, value: Any) -> int:
    if whole(1)(where, value) not in _POWERS:
        raise wrong(where, f"is {value}, no alignment")
    return value


def _dumps(where: str, value: Any) -> dict[str, str]:
    return dict(many(pair(text, one_of("text", "bytes")))(where, value))


_KNOWN_FACTS: dict[str, Check] = {
    "config": table(anything),
    "profile": one_of(*get_args(Profile)),
    "fixed_dims": table(whole(0)),
    "schedule": table(anything),
    "asserts": many(record(dict, {"message": text, "location": anything})),
    "assumptions": many(record(dict, {"condition": extent_of, "location": place_of})),
    "emulations": many(anything),
    "fallbacks": many(anything),
}
"""The facts that the runtime looks at."""


def _reflection(where: str, value: Any) -> dict[str, Any]:
    found = table(anything)(where, value)
    for name, check in _KNOWN_FACTS.items():
        if name in found:
            check(f"{where}.{name}", found[name])
    return found


_ARG = record(
    ArgSpec,
    {
        "name": text,
        "kind": one_of("tensor", "scalar"),
        "dtype": _DTYPE,
        "dims": many(_dim),
        "sizes": many(whole(-1)),
        "strides": many(_ANY),
        "align": _align,
        "stride_div": many(whole(1)),
        "dim_div": many(whole(1)),
        "written": flag,
    },
)
PARAMETER = record(
    Parameter,
    {
        "kind": one_of("pointer", "size", "stride", "scalar", "tensor_map", "workspace"),
        "arg": whole(-1),
        "axis": whole(0),
        "align": _align,
        "dtype": one_of(*BY_NAME, "index"),
        "order": many(whole(0)),
        "box": many(whole(1)),
        "slot_bytes": whole(0),
        "parts": whole(0, MOST_PARTS),
        "sharing": whole(0, FLAG_BYTES // 4),
    },
)
GRID = many(pair(extent_of, whole(1)))
"""Checks of a launch's parameters and its grid, from JSON."""

_LAUNCH = record(
    Launch,
    {
        "entry": text,
        "params": many(PARAMETER),
        "grid": GRID,
        "threads": whole(1, 1024),
        "shared_bytes": whole(0, 1 << 20),
        "scratch_bytes": whole(0, 1 << 40),
        "persistent": flag,
        "overlaps": flag,
        "cluster": whole(1, 16),
    },
)
HEADER: dict[str, Check] = {
    "name": text,
    "backend": text,
    "target": text,
    "args": many(_ARG),
    "returns": many(whole(0)),
    "launches": many(_LAUNCH),
    "requires": many(text),
    "reflection": _reflection,
}
"""What `Artifact.header` has, with the check of each."""

_ARTIFACT = record(Artifact, {**HEADER, "code_kind": text, "dumps": _dumps})


def _check_platform(artifact: Artifact) -> None:
    """Check that a platform that is there makes such artefacts."""
    platform = family(artifact.backend)
    if platform is None:
        raise wrong("backend", f"is {artifact.backend!r:.60}, which is unknown")
    if artifact.target not in platform.targets:
        raise wrong("target", f"is {artifact.target!r:.60}, none of {', '.join(platform.targets)}")
    if artifact.code_kind not in platform.code_kinds:
        raise wrong("code_kind", f"is {artifact.code_kind!r:.60} for the backend {artifact.backend}")


def check_together(artifact: Artifact) -> None:
    """Check that the parts of an artefact agree.

    Raises:
        ArtifactError: `bad-artifact`.
    """
    _check_platform(artifact)
    for number, arg in enumerate(artifact.args):
        lengths = {len(arg.dims), len(arg.sizes), len(arg.strides), len(arg.stride_div), len(arg.dim_div)}
        if len(lengths) > 1 or (arg.kind == "scalar" and arg.dims):
            raise wrong(f"args[{number}]", "does not say the same of each dimension")
    names = [arg.name for arg in artifact.args]
    if len({*names}) < len(names) or len({*artifact.returns}) < len(artifact.returns):
        raise wrong("args", "or returns hold one twice")
    for place in artifact.returns:
        _argument(artifact, "returns", place, "tensor")
    for launch in artifact.launches:
        for param in launch.params:
            _check_parameter(artifact, f"a parameter of {launch.entry}", param)
        for extent, _ in launch.grid:
            _check_extent(artifact, f"the grid of {launch.entry}", extent)
    for one in artifact.assumptions:
        _check_extent(artifact, "an assumption", one["condition"])
    if artifact.code_kind == "object" and not artifact.requires:
        raise wrong("requires", "does not say what CPU the code is for")


def _argument(artifact: Artifact, where: str, place: int, kind: str, axis: int | None = None) -> None:
    """Check that an argument exists, is of a kind, and has a dimension."""
    if not 0 <= place < len(artifact.args) or artifact.args[place].kind != kind:
        raise wrong(where, f"is of argument {place}, which is not a {kind}")
    if axis is not None and axis >= len(artifact.args[place].dims):
        raise wrong(where, f"is of dimension {axis} of argument {place}, which it does not have")


def _check_parameter(artifact: Artifact, where: str, param: Parameter) -> None:
    if param.kind == "workspace":
        if param.arg != -1 or not param.slot_bytes:
            raise wrong(where, "is a workspace of nothing")
        return
    axis = param.axis if param.kind in ("size", "stride") else None
    _argument(artifact, where, param.arg, "scalar" if param.kind == "scalar" else "tensor", axis)
    axes = list(range(len(artifact.args[param.arg].dims)))
    if param.kind == "tensor_map" and (sorted(param.order) != axes or len(param.box) != len(axes)):
        raise wrong(where, "does not describe its tensor")


def _check_extent(artifact: Artifact, where: str, extent: Extent) -> None:
    for kind, arg, *axis in leaves(extent):
        _argument(artifact, where, arg, "scalar" if kind == "scalar" else "tensor", *axis)
