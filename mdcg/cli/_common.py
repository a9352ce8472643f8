"""What the commands share: streams, exit codes, logging to stderr, errors as sentences."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from ..errors import (
    CheckpointError,
    DeviceError,
    KernelCompileError,
    MdcgError,
    MissingDependencyError,
    OutputError,
    UnsupportedProblemError,
    VerificationError,
    installation,
    printable,
    shown,
)

OK = 0
USAGE = 2  # what argparse exits with, too
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (OutputError, USAGE),
    (VerificationError, 3),
    (MissingDependencyError, 5),
    (DeviceError, 5),
    (KernelCompileError, 5),
    (CheckpointError, 4),
    (UnsupportedProblemError, 4),
    (MdcgError, 4),
)


class UsageError(Exception):
    """Arguments that do not go together, or a missing file."""


def names(text: str) -> tuple[str, ...]:
    """Split an argument at commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def exit_code(error: Exception) -> int | None:
    """Return the exit code for an expected error, None for one that is a bug."""
    if isinstance(error, UsageError) or _is_full_disk(error):
        return USAGE
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return 5
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def sentence(error: Exception) -> str:
    """Return the message of an expected error."""
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return f"the package {error.name!r} is not installed: {installation(error.name)}"
    if _is_full_disk(error) and isinstance(error, OSError):
        where = error.filename or "a temporary file or the kernel cache"
        return printable(f"cannot write {where}: {error.strerror}; nothing was written")
    return printable(str(error))


class _Shown:
    """A stream to a terminal, which gets no character that it acts on or cannot show."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"  # some terminals cannot show Å
        return self._stream.write(shown(text).encode(encoding, "replace").decode(encoding))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


@contextmanager
def terminal() -> Iterator[None]:
    """Give a command streams for all that it prints, in whatever way.

    Names of files, heads and types come from others. A stream that the caller has closed is opened
    again, to nothing: otherwise files that the command opens would take its place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nothing:
        sys.stdout, sys.stderr = (cast("TextIO", _Shown(each or nothing)) for each in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def guarded(program: str, work: Callable[[], int]) -> int:
    """Return the exit code of a command; an expected error is printed as one sentence."""
    try:
        return work()
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"{program}: {sentence(error)}", file=sys.stderr)
        return code


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt with their number, like Ctrl-C.

    Temporary files are then removed, and compilers are stopped.
    """

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise KeyboardInterrupt(number)

    handled = []
    if (
        threading.current_thread() is threading.main_thread()
    ):  # only the main thread may set handlers
        handled = [
            number
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_DFL  # nohup ignores SIGHUP
        ]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


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
