"""Files of packages: safetensors with the manifest and a SHA-256 in the metadata.

The digest covers the text of the manifest, the index of the tensors and all bytes after the header.
It shows what was altered or damaged after the file was written; it does not show who wrote it.
Reading the manifest needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OutputError, PackageError, printable, printable_values

__all__ = [
    "FORMAT",
    "encode",
    "read_header",
    "read_tensors",
    "staged",
    "write_file",
    "write_synced",
]

#: Version of the manifest that is written; newer ones are refused.
FORMAT = 2

#: As in ``csrc/engine/limits.hpp``: bytes of a header, which safetensors limits, and nested JSON.
MAX_HEADER_BYTES = 100_000_000
MAX_DEPTH = 64

KEY = "mdcg"
DIGEST = "sha256"
_BYTES = {"F64": 8, "F32": 4, "I32": 4, "U8": 1}
# What files of format 1 had beside the model: text and machine code of kernels.
_KERNELS = ("kernels", "cuda_kernels", "cuda_binaries")
_NAMES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint8": "U8"}
_COPY = "copy it again, or convert the checkpoint again"


def encode(
    manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], key: str = KEY
) -> bytes:
    """Return the bytes of a package; equal arguments give equal bytes.

    Parameters
    ----------
    manifest : mapping
        Plain JSON values.
    tensors : mapping of str to array
        float64, float32, int32 or uint8.
    key : str
        Of the manifest in the metadata, which tells what kind of file it is.
    """
    from safetensors.numpy import save

    for name, tensor in tensors.items():
        if tensor.dtype.name not in _NAMES:
            raise TypeError(f"tensor {name!r} is {tensor.dtype}, expected one of {list(_NAMES)}")
    text = json.dumps(
        manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    data = memoryview(save(ordered, metadata={key: text}))
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    del header["__metadata__"]
    digest = hashlib.sha256(text.encode() + b"\0" + _index(header))
    digest.update(data[start:])
    # in this order: safetensors writes several keys in any
    header = {"__metadata__": {key: text, DIGEST: digest.hexdigest()}, **header}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)  # tensors stay aligned
    return b"".join((len(raw).to_bytes(8, "little"), raw, data[start:]))


def _index(tensors: Mapping[str, Any]) -> bytes:
    """Return what the digest covers of the index of tensors; the engine has the same."""
    lines = (
        f"{name}\0{entry['dtype']}\0{''.join(f'{n},' for n in entry['shape'])} {{}},{{}}\n".format(
            *entry["data_offsets"]
        )
        for name, entry in sorted(tensors.items())
    )
    return "".join(lines).encode()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    PackageError
        There is something else than a file of that name, such as a device or a folder.
    OutputError
        The folder cannot be written, or no space is left.
    """
    if path.exists() and not path.is_file():  # root would put the file in the place of a device
        raise PackageError(
            f"{path} is no file, expected the name of a file to write: name another one"
        )
    with staged(path, overwrite=True) as (temporary,):
        write_synced(temporary, data)


@contextmanager
def staged(*targets: Path, overwrite: bool, suffix: str = ".tmp") -> Iterator[list[Path]]:
    """Yield temporary files beside the targets and move all of them there unless something raised.

    Parameters
    ----------
    *targets : Path
    overwrite : bool
        Whether targets that exist at the end are replaced; otherwise nothing is written.
    suffix : str
        End of the temporary names, for readers that look at it.

    Raises
    ------
    OutputError
        The folder cannot be written, or a target exists. No temporary file is left then.
    """
    mark = uuid.uuid4().hex[:12]
    temporary = [target.with_name(f".{target.name}.{mark}{suffix}") for target in targets]
    unfinished = list(temporary)
    try:
        for path in temporary:
            with _writing(path):
                _create(path)
        yield temporary
        for path, target in zip(temporary, targets, strict=True):
            with _writing(target):
                if not overwrite:
                    _create(target)  # which is replaced in the next step
                    unfinished.append(target)
                path.replace(target)
        unfinished = temporary
    finally:
        for path in unfinished:
            with suppress(FileNotFoundError):
                path.unlink()


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a file to the disk.

    Raises
    ------
    OutputError
        The folder cannot be written, or no space is left.
    """
    with _writing(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _create(path: Path) -> None:
    # O_EXCL: no file of another process; 0o666: the user's umask decides
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise OutputError(
            f"{path} was written by another process in the meantime: name another output or use "
            "--force"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot write in {path.parent}: {error.strerror}; nothing was written"
        ) from error


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]:
    """Return manifest, and type and shape of every tensor, of a package whose digest is right.

    What files of format 1 say of kernels is left out.

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
        index = _index(header)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackageError(f"{path} has a damaged header ({str(error)[:100]}): {_COPY}") from error
    if not isinstance(metadata, dict) or KEY not in metadata:
        raise PackageError(
            f"{path} is a safetensors file without an mdcg manifest: give a package that "
            "mdcg-patch has written"
        )
    manifest = _manifest(path, metadata[KEY])
    old = manifest["format"] == 1
    _check_digest(path, metadata, b"" if old else b"\0" + index, 8 + length)
    numbers = {name: entry for name, entry in tensors.items() if entry[0] != "U8"}
    if not old and len(numbers) < len(tensors):
        raise PackageError(f"{path} has tensors of bytes, expected numbers alone: {_COPY}")
    if old:
        _forget_kernels(manifest)
    return manifest, numbers


def _forget_kernels(manifest: dict[str, Any]) -> None:
    """Remove what a manifest of format 1 says of kernels."""
    for name in _KERNELS:
        manifest.pop(name, None)
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict):
            layer.pop("kernel", None)


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


def _check_digest(path: Path, metadata: Mapping[str, Any], index: bytes, start: int) -> None:
    if DIGEST not in metadata:
        raise PackageError(
            f"{path} has no SHA-256 of what it holds, which every package has: convert the "
            "checkpoint again"
        )
    digest = hashlib.sha256(metadata[KEY].encode() + index)
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
        found[printable(name)] = (dtype, tuple(shape))
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
    found: dict[str, Any] = printable_values(dict(manifest))
    return found


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return all tensors of a package, which are numbers.

    Raises
    ------
    PackageError
        The file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return {
            printable(name): tensor
            for name, tensor in load_file(path).items()
            if tensor.dtype != np.uint8
        }
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{path} is damaged ({str(error)[:100]}): {_COPY}") from error
