"""What a compilation gives: frozen data that a runtime can launch and a file can hold.

An artefact is data only: JSON and machine code, never anything Python runs on load.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from tessera.errors import TesseraError

FORMAT = 1
"""Version of the file format."""

FLAG_BYTES = 4096
"""Bytes before the slots of a workspace: four for each program."""

_AGAIN = "compile the kernel again"

GridExpr = list[Any] | tuple[Any, ...]
"""How the host computes a size: `["const", 4]`, `["size", arg, axis]`, `["scalar", arg]`, or
`[fn, a, b]` for fn in add, sub, mul, floordiv, ceildiv, mod, minimum, maximum."""


_DAMAGED = "give a file that .save() wrote, or compile the kernel again"


class ArtifactError(TesseraError):
    """A saved artefact cannot be read."""

    default_code = "bad-artifact"


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
    """

    kind: Literal["pointer", "size", "stride", "scalar", "tensor_map", "workspace"]
    arg: int
    axis: int = 0
    align: int = 1
    dtype: str = "i64"
    order: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    slot_bytes: int = 0


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
    grid: tuple[tuple[GridExpr, int], ...]
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

    def most_programs(self, multiprocessors: int) -> int:
        """Return how many programs of a persistent launch a GPU is given at most: one a multiprocessor."""
        return max(multiprocessors // self.cluster, 1) * self.cluster


def evaluate(expr: GridExpr, sizes: Any, scalars: Any) -> int:
    """Compute a grid expression.

    Args:
        expr: the expression.
        sizes: `sizes[arg][axis]` is the size of a tensor argument.
        scalars: `scalars[arg]` is the value of a scalar argument.

    Raises:
        ArtifactError: for an unknown function or a division by zero.
    """
    match expr:
        case ["const", value]:
            return int(value)
        case ["size", arg, axis]:
            return int(sizes[arg][axis])
        case ["scalar", arg]:
            return int(scalars[arg])
        case [fn, left, right]:
            return _apply(fn, evaluate(left, sizes, scalars), evaluate(right, sizes, scalars))
        case _:
            raise ArtifactError(f"{expr!r} is no grid expression", help=_AGAIN)


def _apply(fn: str, a: int, b: int) -> int:
    simple = {"add": a + b, "sub": a - b, "mul": a * b, "minimum": min(a, b), "maximum": max(a, b)}
    if fn in simple:
        return simple[fn]
    if fn not in ("floordiv", "ceildiv", "mod"):
        raise ArtifactError(f"no grid function is called {fn!r}", help=_AGAIN)
    if b == 0:
        raise ArtifactError(
            "a grid extent divides by zero", code="grid-division-by-zero", help="pass a divisor that is not 0"
        )
    return {"floordiv": a // b, "ceildiv": -(-a // b), "mod": a % b}[fn]


def program_count(launch: Launch, sizes: Any, scalars: Any) -> int:
    """Return how many programs `launch` starts for these arguments (0 for an empty grid)."""
    counts = [max(-(-evaluate(extent, sizes, scalars) // block), 0) for extent, block in launch.grid]
    return prod(counts)


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
    """

    name: str
    backend: str
    target: str
    args: tuple[ArgSpec, ...]
    returns: tuple[int, ...]
    launches: tuple[Launch, ...]
    code: bytes = b""
    code_kind: str = ""
    dumps: dict[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])
    reflection: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_bytes(self) -> bytes:
        """Return the artefact as a zip of JSON and blobs."""
        header = {
            "format": FORMAT,
            "name": self.name,
            "backend": self.backend,
            "target": self.target,
            "args": [asdict(arg) for arg in self.args],
            "returns": self.returns,
            "launches": [asdict(launch) for launch in self.launches],
            "code_kind": self.code_kind,
            "reflection": self.reflection,
            "dumps": {
                name: "text" if isinstance(data, str) else "bytes" for name, data in self.dumps.items()
            },
        }
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("header.json", json.dumps(header))
            archive.writestr("code", self.code)
            for name, data in self.dumps.items():
                archive.writestr(f"dumps/{name}", data)
        return out.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the artefact to a file that `ts.load` reads."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """Read an artefact back.

        Raises:
            ArtifactError: `bad-artifact` when the data is damaged or of another format version.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise ArtifactError(f"the artefact is damaged: checksum of {damaged!r}", help=_DAMAGED)
                header = json.loads(archive.read("header.json"))
                if header.get("format") != FORMAT:
                    raise ArtifactError(
                        f"artefact of format {header.get('format')!r}, this Tessera reads {FORMAT}"
                    )
                blobs = {name: archive.read(f"dumps/{name}") for name in header["dumps"]}
                code = archive.read("code")
            return cls._from_header(header, code, blobs)
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError) as error:
            raise ArtifactError(f"the artefact is damaged: {error}", help=_DAMAGED) from error

    @classmethod
    def _from_header(cls, header: dict[str, Any], code: bytes, blobs: dict[str, bytes]) -> Artifact:
        def tuples(record: dict[str, Any]) -> dict[str, Any]:
            lists = {key: tuple(value) for key, value in record.items() if isinstance(value, list)}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return {**record, **lists}

        def launch(record: dict[str, Any]) -> Launch:
            params = tuple(Parameter(**tuples(p)) for p in record.pop("params"))
            grid = tuple((extent, block) for extent, block in record.pop("grid"))
            return Launch(params=params, grid=grid, **record)

        dumps = {
            name: blobs[name].decode() if kind == "text" else blobs[name]
            for name, kind in header["dumps"].items()
        }
        return cls(
            header["name"], header["backend"], header["target"],
            tuple(ArgSpec(**tuples(arg)) for arg in header["args"]),
            tuple(header["returns"]), tuple(launch(record) for record in header["launches"]),
            code, header["code_kind"], dumps, header["reflection"],
        )  # fmt: skip
