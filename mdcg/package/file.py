"""Files of packages: safetensors with the manifest and a SHA-256 in the metadata.

The digest is of the manifest's text (UTF-8) followed by all bytes after the header. It shows what
was altered or damaged after the file was written, and vouches for nobody. Reading the manifest
needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PackageError
from .limits import MAX_DEPTH, MAX_HEADER_BYTES

__all__ = ["FORMAT", "encode", "read_header", "read_tensors", "write_file"]

#: Version of the manifest that is written; newer ones are refused.
FORMAT = 1

KEY = "mdcg"
DIGEST = "sha256"
_BYTES = {"F64": 8, "F32": 4, "I32": 4, "U8": 1}
_NAMES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint8": "U8"}
_COPY = "copy it again, or convert the checkpoint again"


def encode(manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a package; equal arguments give equal bytes.

    Parameters
    ----------
    manifest : mapping
        Plain JSON values.
    tensors : mapping of str to array
        float64, float32, int32 or uint8.
    """
    from safetensors.numpy import save

    for name, tensor in tensors.items():
        if tensor.dtype.name not in _NAMES:
            raise TypeError(f"tensor {name!r} is {tensor.dtype}, expected one of {list(_NAMES)}")
    text = json.dumps(
        manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    data = memoryview(save(ordered, metadata={KEY: text}))
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    digest = hashlib.sha256(text.encode())
    digest.update(data[start:])
    # in this order: safetensors writes several keys in any
    header["__metadata__"] = {KEY: text, DIGEST: digest.hexdigest()}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)  # tensors stay aligned
    return b"".join((len(raw).to_bytes(8, "little"), raw, data[start:]))


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    PackageError
        There is something else than a file of that name, such as a device or a folder.
    """
    if path.exists() and not path.is_file():  # root would put the file in the place of a device
        raise PackageError(
            f"{path} is no file, expected the name of a file to write: name another one"
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]:
    """Return manifest, and type and shape of every tensor, of a package whose digest is right.

    Raises
    ------
    PackageError
        The file is missing, damaged, altered, of another kind or of a newer version.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
        raise PackageError(f"{path} is no file, expected a .mdcg package")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise PackageError(
                    f"{path} is no .mdcg package, or it is truncated ({size} bytes): {_COPY}"
                )
            text = file.read(length)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header = _parse(text.decode("utf-8"))
        metadata = header.pop("__metadata__", None) or {}
        tensors = _tensors(header, size - 8 - length)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackageError(f"{path} has a damaged header ({str(error)[:100]}): {_COPY}") from error
    if not isinstance(metadata, dict) or KEY not in metadata:
        raise PackageError(
            f"{path} is a safetensors file without an mdcg manifest: give a package that "
            "mdcg-patch has written"
        )
    manifest = _manifest(path, metadata[KEY])
    _check_digest(path, metadata, 8 + length)
    return manifest, tensors


def _parse(text: str) -> Any:
    """Parse JSON as the engine does: no NaN, no halves of characters, not nested without end."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number in JSON")

    value = json.loads(text, parse_constant=refuse)
    if _too_deep(value):
        raise ValueError(f"it nests more than {MAX_DEPTH} lists or objects")
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _too_deep(value: Any) -> bool:
    containers, depth = [value], 0
    while containers:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        inner = (each.values() if isinstance(each, dict) else each for each in containers)
        containers = [v for values in inner for v in values if isinstance(v, (dict, list))]
    return False


def _check_digest(path: Path, metadata: Mapping[str, Any], start: int) -> None:
    if DIGEST not in metadata:
        raise PackageError(
            f"{path} has no SHA-256 of what it holds, which every package has: convert the "
            "checkpoint again"
        )
    digest = hashlib.sha256(metadata[KEY].encode())
    try:
        with path.open("rb") as file:
            file.seek(start)
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    if digest.hexdigest() != metadata[DIGEST]:
        raise PackageError(
            f"{path} was altered or damaged after it was written (its SHA-256 differs): {_COPY}"
        )


def _tensors(header: Any, room: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    spans = []
    for name, entry in header.items():
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in _BYTES:
            raise ValueError(f"tensor {name!r} is of type {dtype}")
        count = _BYTES[dtype]
        for length in shape:
            if type(length) is not int or not 0 <= length <= room:
                raise ValueError(f"tensor {name!r} has shape {shape}")
            count *= length
        if type(begin) is not int or end - begin != count:
            raise ValueError(f"tensor {name!r} has {end - begin} bytes, expected {count}")
        spans.append((begin, end))
        found[name] = (dtype, tuple(shape))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise ValueError(f"tensors leave a gap or overlap at byte {at}")
        at = end
    if at != room:
        raise ValueError(f"tensors take {at} bytes and the file has {room}: it is truncated")
    return found


def _manifest(path: Path, text: Any) -> dict[str, Any]:
    try:
        manifest = _parse(text)
        version = manifest["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PackageError(f"{path} has a damaged manifest: {_COPY}") from error
    if type(version) is not int or version < 1:
        raise PackageError(f"{path} has format {version!r}, expected a number: {_COPY}")
    if version > FORMAT:
        raise PackageError(
            f"{path} has format {version}, and this version of mdcg reads up to {FORMAT}: "
            "update mdcg, or convert the checkpoint again"
        )
    return dict(manifest)


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return all tensors of a package.

    Raises
    ------
    PackageError
        The file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{path} is damaged ({str(error)[:100]}): {_COPY}") from error
