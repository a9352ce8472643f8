"""Packages: a model that runs without its framework, and the file that holds it.

Files are safetensors with the manifest and a SHA-256 in the metadata. The digest covers the text of
the manifest, the index of the tensors and all bytes after the header. It shows whether the file was
altered or damaged after it was written, but not who wrote it. The engine reads and checks packages
(``csrc/engine/package/package.cpp``).
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

from .. import _core
from ..errors import MdcgError, OutputError, PackageError

#: Versions of the manifest. The later one is written where readers of format 3 would evaluate
#: another model in silence: with an input that has no default, or one that is no whole number, and
#: with harmonics of vectors that are not normalised.
FORMAT = 3
LATER_FORMAT = 4

SUFFIX = ".mdcg"
KEY = "mdcg"
DIGEST = "sha256"
_TYPES = ("float64", "float32", "int32", "uint8")


def is_package(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a package, judged by its name or its first bytes."""
    if os.fspath(path).endswith(SUFFIX):
        return True
    if not Path(path).is_file():  # opening a pipe would wait for a writer
        return False
    try:
        with Path(path).open("rb") as file:
            start = file.read(9)
    except OSError:
        return False
    # safetensors: length of the header, and a header that is JSON; checkpoints are zip or pickle
    return len(start) == 9 and start[8:9] == b"{" and start[5:8] == b"\0\0\0"


def encode(
    manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], key: str = KEY
) -> bytes:
    """Return the bytes of a package; equal arguments give equal bytes.

    The manifest's key in the metadata identifies the kind of file.
    """
    from safetensors.numpy import save

    for name, tensor in tensors.items():
        if tensor.dtype.name not in _TYPES:
            raise TypeError(f"tensor {name!r} is {tensor.dtype}, expected one of {list(_TYPES)}")
    text = json.dumps(
        manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    data = memoryview(save(ordered, metadata={key: text}))
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    del header["__metadata__"]
    digest = hashlib.sha256(text.encode())
    if key != KEY or manifest.get("format") != 1:  # the digest of format 1 leaves the index out
        digest.update(b"\0" + _index(header))
    digest.update(data[start:])
    # The order of the keys is fixed here, because safetensors writes several keys in any order.
    header = {"__metadata__": {key: text, DIGEST: digest.hexdigest()}, **header}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)  # tensors stay aligned
    return b"".join((len(raw).to_bytes(8, "little"), raw, data[start:]))


def _index(tensors: Mapping[str, Any]) -> bytes:
    """Return the text of the index of tensors that the digest covers, as the engine writes it."""
    lines = []
    for name, entry in sorted(tensors.items()):
        shape = "".join(f"{length}," for length in entry["shape"])
        begin, end = entry["data_offsets"]
        lines.append(f"{name}\0{entry['dtype']}\0{shape} {begin},{end}\n")
    return "".join(lines).encode()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    if path.exists() and not path.is_file():  # root could replace a device by the file
        raise PackageError(
            f"{path} is not a regular file, expected the name of a file to write: name another one"
        )
    with staged(path, overwrite=True) as (temporary,):
        write_synced(temporary, data)


@contextmanager
def staged(*targets: Path, overwrite: bool, suffix: str = ".tmp") -> Iterator[list[Path]]:
    """Yield temporary files beside the targets, and move all of them there at the end.

    If something raises, nothing is written. If a target is a link, the file that it names is
    written. Without `overwrite`, targets must not exist at the end. The temporary names end in
    `suffix`, which readers may depend on.
    """
    mark = uuid.uuid4().hex[:12]
    targets = tuple(Path(os.path.realpath(target)) for target in targets)
    # The target's name is no part of them, because it may have the maximal length of a name.
    temporary = [target.with_name(f".{mark}-{n}{suffix}") for n, target in enumerate(targets)]
    unfinished = list(temporary)
    try:
        for path in temporary:
            with _writing(path):
                _create(path)
        yield temporary
        for path, target in zip(temporary, targets, strict=True):
            with _writing(target):
                if not overwrite:
                    _create(target)  # empty, and replaced in the next step
                    unfinished.append(target)
                path.replace(target)
        unfinished = temporary
    finally:
        for path in unfinished:
            with suppress(OSError):  # must not hide the first error
                path.unlink()


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a file and wait until it is on the disk."""
    with _writing(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _create(path: Path) -> None:
    # O_EXCL: fails if the file exists. 0o666: the user's umask decides.
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


@contextmanager
def engine_checks(refused: type[MdcgError] = PackageError, what: str = "") -> Iterator[None]:
    """Raise `refused`, with `what` and the engine's sentence, in place of an engine error."""
    try:
        yield
    except _core.EngineError as error:
        raise refused(f"{what}{error}") from error


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the manifest and tensors of a package, which the engine reads and checks.

    Entries about kernels, which exist in files of format 1, are left out.
    """
    with engine_checks():
        manifest, tensors = _core.read_package(str(path))
    return json.loads(manifest), tensors


def _lowest_format(manifest: Mapping[str, Any]) -> int:
    """Return the first version of the format that reads a manifest as it is meant."""
    fixed = all(isinstance(given.get("default"), int) for given in manifest.get("inputs", ()))
    solid = any("harmonics" in layer for layer in manifest["layers"])
    return FORMAT if fixed and not solid else LATER_FORMAT


class Package:
    """A converted model.

    Parameters
    ----------
    manifest : mapping
        Described in ``FORMAT.md`` in this folder. If its field ``format`` is absent, it becomes the
        lowest version that can be read as this package is meant.
    tensors : mapping of str to array

    Examples
    --------
    >>> package = Package.open("water.mdcg")            # doctest: +SKIP
    >>> package.type_names, package.r_max               # doctest: +SKIP
    (['H', 'O'], 4.0)
    """

    def __init__(self, manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.manifest: dict[str, Any] = dict(manifest)
        if "format" not in self.manifest:  # a file says its own, and may be damaged
            self.manifest["format"] = _lowest_format(manifest)
        self.tensors: dict[str, NDArray[Any]] = dict(tensors)

    @classmethod
    def open(cls, path: str | Path) -> Package:
        """Read and check a file; nothing in it is executed.

        Raises
        ------
        PackageError
            The file is missing, damaged or of a newer version; the message is one sentence.
        """
        return cls(*read_file(Path(path)))

    def check(self) -> None:
        """Let the engine check the network, and that all tensors exist and are finite.

        Raises
        ------
        PackageError
        """
        with engine_checks():
            _core.check_package_bytes(self.to_bytes(), "the package")

    def to_bytes(self) -> bytes:
        """Return the file's contents; equal packages give equal bytes."""
        return encode(self.manifest, self.tensors)

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        write_file(Path(path), self.to_bytes())

    @property
    def type_names(self) -> list[str]:
        """Chemical symbols, or names of types, in the order of their numbers."""
        return list(self.manifest["type_names"])

    @property
    def atomic_numbers(self) -> list[int] | None:
        """Atomic number of each type, None if the types are not elements."""
        numbers = self.manifest.get("atomic_numbers")
        return None if numbers is None else list(numbers)

    @property
    def r_max(self) -> float:
        """Cutoff in Å."""
        return float(self.manifest["r_max"])

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``: type of weights and features."""
        return str(self.manifest["dtype"])

    @property
    def head(self) -> str | None:
        """The head that was converted."""
        return self.manifest.get("head")

    @property
    def dispersion(self) -> str | None:
        """Functional of the D3 dispersion in the package, or None."""
        found = self.manifest.get("dispersion")
        return None if found is None else str(found["functional"])

    @property
    def has_energies(self) -> bool:
        """Whether the network gives energies and forces."""
        return any(layer["type"] in ("energy", "pair_energy") for layer in self.layers)

    @property
    def has_dipoles(self) -> bool:
        """Whether the last descriptors of an atom are its dipole."""
        return "dipoles" in self.manifest

    @property
    def has_charges(self) -> bool:
        """Whether the last descriptor of an atom is its charge."""
        return "charges" in self.manifest

    @property
    def is_long_range(self) -> bool:
        """Whether a part of the energy is a sum over all atoms."""
        sums = ("ewald", "reciprocal_energy")
        return any(layer["type"] in sums for layer in self.layers)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Numbers that the model reads once for each system, as ``FORMAT.md`` describes them."""
        return list(self.manifest.get("inputs") or ())

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Layers in the order of evaluation."""
        return list(self.manifest["layers"])

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor by name."""
        return self.tensors[name]
