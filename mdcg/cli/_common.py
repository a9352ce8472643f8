"""What the commands share: exit codes, logging to stderr, errors as sentences."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from ..errors import (
    CheckpointError,
    DeviceError,
    KernelCompileError,
    MdcgError,
    MissingDependencyError,
    UnsupportedProblemError,
    VerificationError,
)

__all__ = ["OK", "USAGE", "UsageError", "exit_code", "heavy_work", "sentence"]

OK = 0
USAGE = 2  # what argparse exits with, too
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (VerificationError, 3),
    (MissingDependencyError, 5),
    (DeviceError, 5),
    (KernelCompileError, 5),
    (CheckpointError, 4),
    (UnsupportedProblemError, 4),
    (MdcgError, 4),
)


class UsageError(Exception):
    """Arguments that do not go together, or a file that is not there."""


def exit_code(error: Exception) -> int | None:
    """Return the exit code for an expected error, None for one that is a bug."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return 5
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def sentence(error: Exception) -> str:
    """Return the message of an expected error."""
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return f"the package {error.name!r} is not installed: pip install 'mdcg[mace]'"
    return str(error)


@contextmanager
def heavy_work(level: int) -> Iterator[None]:
    """Send the log, and whatever other packages print, to stderr."""
    logger = logging.getLogger("mdcg")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("mdcg: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            if level > logging.DEBUG:
                warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
