"""The file of an artefact: a checksum over everything, a header of JSON, and the machine code and texts behind it."""

from __future__ import annotations

import json
from typing import Any, cast

from tessera.digest import sha256
from tessera.target.schema import DAMAGED, ArtifactError

FORMAT = 2
"""Version of the file format."""

_MAGIC = b"tessera-artifact "
_START = _MAGIC + f"{FORMAT}\n".encode()
_DIGEST = sha256().digest_size
_LENGTH = 8


def pack(header: dict[str, Any], blobs: list[bytes]) -> bytes:
    """Return the bytes of a file."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    data = b"".join((len(text).to_bytes(_LENGTH, "little"), text, *blobs))
    return _START + sha256(data).digest() + data


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the blobs of a file.

    Raises:
        ArtifactError: `bad-artifact` when it is damaged or of another version.
    """
    if not data.startswith(_START):
        raise _no_artifact(data)
    body = memoryview(data)[len(_START) + _DIGEST :]
    if sha256(body).digest() != data[len(_START) : len(_START) + _DIGEST]:
        raise _damaged("its checksum is wrong")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    try:
        header: Any = json.loads(bytes(body[_LENGTH:end]))
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its header is not JSON: {error}") from error
    return _split(header, bytes(body[end:]))


def _split(header: Any, rest: bytes) -> tuple[dict[str, Any], list[bytes]]:
    sizes: Any = cast("dict[str, Any]", header).pop("blobs", None) if isinstance(header, dict) else None
    if type(sizes) is not list or not all(type(size) is int and size >= 0 for size in cast("list[Any]", sizes)):
        raise _damaged("its header does not say what follows")
    blobs: list[bytes] = []
    for size in cast("list[int]", sizes):
        blobs.append(rest[:size])
        rest = rest[size:]
        if len(blobs[-1]) != size:
            raise _damaged("it is cut off")
    if rest:
        raise _damaged("something follows its end")
    return cast("dict[str, Any]", header), blobs


def _damaged(why: str) -> ArtifactError:
    return ArtifactError(f"the artefact is damaged: {why}", help=DAMAGED)


def _no_artifact(data: bytes) -> ArtifactError:
    if data.startswith((b"PK\3\4", _MAGIC)):
        found = "1" if data.startswith(b"PK") else data[len(_MAGIC) :].split(b"\n", 1)[0][:20].decode(errors="replace")
        message = f"an artefact of format {found}, this Tessera reads {FORMAT}"
        return ArtifactError(message, help="compile the kernel again")
    return _damaged("it does not begin as one")
