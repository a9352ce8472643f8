"""Where results may be written, and writing them whole or not at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ._common import UsageError

__all__ = [
    "CONVERTED",
    "PACKAGE",
    "check_output",
    "check_package",
    "file_sha256",
    "is_package",
    "report_path",
    "staged",
]

SUFFIXES = (".model", ".pt")
PACKAGE = ".nequip.zip"
CONVERTED = ".mdcg"


def is_package(path: Path) -> bool:
    """Whether a file begins as safetensors files do, which .mdcg packages are."""
    with path.open("rb") as file:
        start = file.read(9)
    # the length of a JSON text, and its first character
    return (start[8:] == b"{" and not any(start[5:8])) or path.suffix == CONVERTED


def report_path(output: Path) -> Path:
    """Return where the report of an output file goes."""
    return output.with_name(output.name + ".report.json")


def check_output(source: Path, output: Path, *, force: bool) -> None:
    """Refuse outputs that cannot be written or would overwrite something.

    Raises
    ------
    UsageError
        With one sentence that says what to do.
    """
    if output.suffix in (".ckpt", ".pth", ".pt2"):
        raise UsageError(
            f"{output}: mdcg-patch writes .mdcg, .model or .pt files, and .nequip.zip from "
            "packages; nequip-train and nequip-compile take the modifier enable_mdcg instead"
        )
    if output.suffix not in (*SUFFIXES, CONVERTED) and not output.name.endswith(PACKAGE):
        raise UsageError(
            f"{output} has the suffix {output.suffix!r}, expected .mdcg, .model or .pt "
            "(.nequip.zip if the input is a NequIP package)"
        )
    if output.is_dir():
        raise UsageError(f"{output} is a folder, expected a file name")
    if not output.parent.is_dir():
        raise UsageError(f"the folder {output.parent} does not exist: make it first")
    for target in (output, report_path(output)):
        if not os.path.lexists(target):
            continue
        if target.exists() and target.samefile(source):
            raise UsageError(
                f"{target} is the input file, which is never overwritten: name another"
            )
        if not force:
            raise UsageError(f"{target} exists already: name another output or use --force")
        if target.exists() and not target.is_file():  # a device, a pipe
            raise UsageError(f"{target} is no file, expected the name of a file: name another one")


def check_package(source: Path, output: Path, *, package: bool) -> None:
    """Refuse a package as output of something else, and the other way round.

    Raises
    ------
    UsageError
        With one sentence that says what to do.
    """
    if package and not output.name.endswith(PACKAGE):
        raise UsageError(
            f"{source} is a NequIP package, whose classes are inside it: name the output "
            "*.nequip.zip"
        )
    if not package and output.name.endswith(PACKAGE):
        raise UsageError(
            f"{source} is no NequIP package: name the output *.pt, or make a package of it with "
            "nequip-package first"
        )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def staged(*targets: Path, suffix: str = ".tmp", keep: bool = True) -> Iterator[list[Path]]:
    """Yield temporary files beside the targets and move them there unless something raised.

    Parameters
    ----------
    *targets : Path
    suffix : str
        End of the temporary names, for readers that look at it.
    keep : bool
        False: the files are removed at the end.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    mark = uuid.uuid4().hex[:12]
    temporary = [target.with_name(f".{target.name}.{mark}{suffix}") for target in targets]
    try:
        for path in temporary:
            try:
                # O_EXCL: nobody else's file; 0o666: the user's umask decides
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except OSError as error:
                raise UsageError(f"cannot write in {path.parent}: {error.strerror}") from error
        yield temporary
        if not keep:
            return
        for path in temporary:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        for path, target in zip(temporary, targets, strict=True):
            path.replace(target)
    finally:
        for path in temporary:
            with suppress(FileNotFoundError):
                path.unlink()
