"""An artefact's file: what was saved comes back, and anything else is an `ArtifactError`, whatever was done to it."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

import tessera as ts
from tessera.target.artifact import ArgSpec, Artifact, Launch, Parameter
from tessera.target.container import _DIGEST, _START, pack, unpack
from tessera.target.schema import ArtifactError


@ts.kernel
def two_grids(x: ts.Tensor["n", 64, ts.f32], y: ts.Tensor["n", 64, ts.f32], count: ts.i64, alpha: ts.f32):
    for i, j in ts.tile.grid((n, 8), (count, 64)):
        y[i : i + 8, j : j + 64] = x[i : i + 8, j : j + 64] * alpha
    for i in ts.tile.grid(((n + count) // 2, 8)):
        y[i : i + 8, 0:64] = y[i : i + 8, 0:64] + 1.0
    return y


GPU = Artifact(
    "gemm",
    "ptx",
    "sm_90a",
    (
        ArgSpec("a", "tensor", "bf16", ("M", "K"), (-1, 128), (-1, 1), 16, (8, 1), (16, 16)),
        ArgSpec("c", "tensor", "f32", ("B*M", "2*N"), (-1, -1), (-1, 1), 16, (8, 1), (16, 16), written=True),
        ArgSpec("alpha", "scalar", "f32"),
        ArgSpec("rows", "scalar", "i64"),
    ),
    (1,),
    (
        Launch(
            "gemm",
            (
                Parameter("tensor_map", 0, order=(1, 0), box=(64, 128), dtype="bf16"),
                Parameter("pointer", 1, align=16, dtype="f32"),
                Parameter("stride", 1, 0),
                Parameter("size", 0, 1),
                Parameter("scalar", 2, dtype="f32"),
                Parameter("workspace", -1, slot_bytes=65536),
            ),
            ((["minimum", ["size", 0, 0], ["ceildiv", ["scalar", 3], ["const", 2]]], 128),),
            threads=384,
            shared_bytes=200000,
            persistent=True,
            overlaps=True,
            cluster=2,
        ),
    ),
    b"\x7fELF cubin",
    "cubin",
    {"ptx": ".version 8.4 é", "cubin": b"\0\xff"},
    {"config": {"BM": 128}, "schedule": {"stages": 4}, "asserts": [{"message": "m", "location": None}], "debug": False},
)


@pytest.fixture(scope="module")
def corpus() -> list[Artifact]:
    return [ts.compile(two_grids, dump=["tirh"]), GPU]


def test_what_is_saved_comes_back(corpus):
    for artifact in corpus:
        again = Artifact.from_bytes(artifact.to_bytes())
        assert again.to_bytes() == artifact.to_bytes()
        assert again.dumps == artifact.dumps
        assert (again.args, again.returns, again.requires) == (
            artifact.args,
            artifact.returns,
            artifact.requires,
        )
        assert [one.params for one in again.launches] == [one.params for one in artifact.launches]


def test_every_change_of_a_byte_is_found(corpus):
    source = random.Random(7)
    for artifact in corpus:
        good = artifact.to_bytes()
        for _ in range(400):
            bad = bytearray(good)
            at = source.randrange(len(bad))
            match source.randrange(5):
                case 0:
                    bad[at] ^= 1 << source.randrange(8)
                case 1:
                    del bad[at : at + source.choice((1, 2, 100))]
                case 2:
                    bad[at:at] = source.randbytes(source.choice((1, 8)))
                case 3:
                    bad = bad[:at]
                case _:
                    other = source.randrange(len(bad))
                    bad[at : at + 8] = bad[other : other + 8]
            if bytes(bad) != good:
                with pytest.raises(ArtifactError):
                    Artifact.from_bytes(bytes(bad))


@pytest.mark.parametrize(
    "data", [b"", b"PK\3\4 zip", b"tessera-artifact 1\n", b"tessera-artifact 99\nx", b"\x7fELF" * 20]
)
def test_other_files_are_refused(data):
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(data)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in JSON."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in items:
        found += places(part, (*path, name))
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def resealed(header: dict[str, Any], blobs: list[bytes]) -> bytes:
    """Return a file with a right checksum, as one who edits a header with care would make it."""
    return pack(header, blobs)


DEEP: list[Any] = ["const", 1]
for _ in range(500):
    DEEP = ["add", DEEP, ["const", 1]]
OTHERS: list[Any] = [None, "", "text", -2, 2**80, 1.5, float("nan"), True, [], [[]], {}, {"x": 1}, DEEP]


def loose(path: tuple[Any, ...]) -> bool:
    """Return whether a place holds facts for people."""
    return "reflection" in path[:1] and path[1:2] not in [
        ("config",),
        ("fixed_dims",),
        ("asserts",),
        ("schedule",),
    ]


def test_a_header_with_a_right_checksum_is_checked_field_by_field(corpus):
    """Either the error, or an artefact whose fields all have their declared types."""
    source = random.Random(3)
    refused = accepted = 0
    for artifact in corpus:
        header, blobs = unpack(artifact.to_bytes())
        for path in places(header)[1:]:
            original = at(header, path)
            for other in source.sample([*OTHERS, "drop"], 3):
                changed = copy.deepcopy(header)
                holder = at(changed, path[:-1])
                if other == "drop":
                    del holder[path[-1]]
                else:
                    holder[path[-1]] = other
                try:
                    found = Artifact.from_bytes(resealed(changed, blobs))
                except ArtifactError:
                    refused += 1
                    continue
                accepted += 1
                assert_typed(found)
                dropped_field = other == "drop" and isinstance(holder, dict)
                assert loose(path) or not dropped_field or path[0] == "reflection", path
                if other != "drop" and type(other) is not type(original) and not loose(path):
                    assert path[0] == "reflection", (path, other)
    assert refused > 300
    assert accepted < refused


def assert_typed(artifact: Artifact) -> None:
    """Check that every field has the type that its declaration says."""

    def check(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                check(part)
        elif is_dataclass(value) and not isinstance(value, type):
            for one in fields(value):
                part = getattr(value, one.name)
                kinds = {"str": str, "int": int, "bool": bool, "bytes": bytes}
                kind = kinds.get(str(one.type), tuple if "tuple" in str(one.type) else None)
                assert kind is None or type(part) is kind, (one.name, part)
                check(part)

    check(artifact)


def edited(change: Any) -> bytes:
    header, blobs = unpack(GPU.to_bytes())
    change(header)
    return resealed(header, blobs)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(target="sm_1"),
        lambda h: h.update(backend="cpu"),
        lambda h: h.update(code_kind="object"),
        lambda h: h.update(returns=[2]),
        lambda h: h.update(returns=[1, 1]),
        lambda h: h["args"].pop(),
        lambda h: h["args"].reverse(),
        lambda h: h["args"][0].update(name="c"),
        lambda h: h["args"][0].update(kind="scalar"),
        lambda h: h["args"][0].update(dims=["M"]),
        lambda h: h["args"][0].update(dims=["M", "K-"]),
        lambda h: h["args"][0].update(dtype="bf17"),
        lambda h: h["args"][0].update(align=12),
        lambda h: h["launches"][0]["params"][0].update(order=[0, 0]),
        lambda h: h["launches"][0]["params"][0].update(box=[64]),
        lambda h: h["launches"][0]["params"][1].update(arg=2),
        lambda h: h["launches"][0]["params"][2].update(axis=2),
        lambda h: h["launches"][0]["params"][4].update(arg=0),
        lambda h: h["launches"][0]["params"][5].update(slot_bytes=0),
        lambda h: h["launches"][0].update(grid=[[["size", 0, 2], 1]]),
        lambda h: h["launches"][0].update(grid=[[["scalar", 0], 1]]),
        lambda h: h["launches"][0].update(grid=[[["power", ["const", 1], ["const", 2]], 1]]),
        lambda h: h["launches"][0].update(grid=[[["const", 1], 0]]),
        lambda h: h["launches"][0].update(threads=0),
        lambda h: h["launches"][0].update(cluster=64),
        lambda h: h.update(more=1),
        lambda h: h["dumps"].pop(),
    ],
)
def test_parts_that_do_not_agree_are_refused(change):
    with pytest.raises(ArtifactError) as caught:
        Artifact.from_bytes(edited(change))
    assert caught.value.help


def test_code_for_a_cpu_says_which():
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(Artifact("k", "cpu", "cpu", (), (), (), b"code", "object").to_bytes())


def test_a_header_that_is_no_header():
    for text in (
        b"[]",
        b"1",
        b'{"blobs": 1}',
        b'{"blobs": [true]}',
        b"[" * 100_000,
        b"\xff",
        b'{"blobs": [99]}',
        b"{}",
    ):
        body = len(text).to_bytes(8, "little") + text
        with pytest.raises(ArtifactError):
            Artifact.from_bytes(_START + hashlib.sha256(body).digest() + body)
    body = (2**63).to_bytes(8, "little") + json.dumps({"blobs": []}).encode()
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(_START + hashlib.sha256(body).digest() + body)
    assert len(GPU.to_bytes()) > len(_START) + _DIGEST


def test_texts_that_are_none_are_refused():
    header, blobs = unpack(replace(GPU, dumps={"ptx": "text"}).to_bytes())
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(resealed(header, [blobs[0], b"\xff\xfe"]))
