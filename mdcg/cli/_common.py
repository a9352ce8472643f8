"""Shared by all commands: execution, exit codes, streams, log and checks of arguments."""

from __future__ import annotations

import argparse
import errno
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from ..errors import MdcgError, installation, printable, shown

OK = 0
USAGE = 2  # argparse exits with it too
_FULL = (errno.ENOSPC, errno.EDQUOT)


class UsageError(Exception):
    """Arguments that contradict each other, or a missing file."""


class RunError(MdcgError):
    """A run ended early: no energy could be computed, or a structure is not relaxed yet."""

    exit_code = 1


def names(text: str) -> tuple[str, ...]:
    """Split an argument at commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def exit_code(error: Exception) -> int | None:
    """Return the exit code for an expected error, or None if it is a bug."""
    if isinstance(error, UsageError) or _is_refusal_of_system(error):
        return USAGE
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return 5
    return error.exit_code if isinstance(error, MdcgError) else None


def sentence(error: Exception) -> str:
    """Return the message of an expected error."""
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MdcgError):
        return f"the package {error.name!r} is not installed: {installation(error.name)}"
    if isinstance(error, OSError) and _is_refusal_of_system(error):
        if error.errno not in _FULL:
            return printable(f"{os.fsdecode(error.filename)}: {error.strerror}")
        where = error.filename or "standard output, a temporary file or the kernel cache"
        return printable(f"cannot write {where}: {error.strerror}")
    return printable(str(error))


class _Shown:
    """A stream that escapes characters which a terminal acts on or cannot show."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"  # some terminals cannot show Å
        start = "\r" if text.startswith("\r") else ""  # progress, which no name begins
        text = start + shown(text[len(start) :])
        return self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


@contextmanager
def terminal() -> Iterator[None]:
    """Escape characters of the standard streams that a terminal acts on.

    Names in a file come from the author of the file.

    A stream that the caller has closed is opened again, on the null device. Otherwise a file that
    the command opens would get its number.
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


@terminal()
def execute(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse arguments and run the command that they name; return its exit code.

    A command sets these defaults of its parser: ``run``, a function of the parsed arguments that
    returns an exit code or None; and optionally ``program``, the start of messages, and
    ``if_stopped``, the end of the message after a signal. An expected error is printed as one
    sentence. It is no error if a reader closes the pipe early, as in
    ``mdcg-patch FILE --info | head -1``.
    """
    options = argparse.Namespace()
    try:
        with terminable():
            parser.parse_args(argv, options)
            code = options.run(options)
        _flush()
        return code or OK
    except BrokenPipeError:
        return OK
    except Exception as error:
        found = exit_code(error)
        if found is None:
            raise
        with suppress(BrokenPipeError):
            print(f"{getattr(options, 'program', 'mdcg')}: {sentence(error)}", file=sys.stderr)
        return found
    except KeyboardInterrupt as stop:
        number = int(stop.args[0]) if stop.args else int(signal.SIGINT)
        program, end = getattr(options, "program", "mdcg"), getattr(options, "if_stopped", "")
        print(f"{program}: stopped by {signal.Signals(number).name}{end}", file=sys.stderr)
        return 128 + number
    finally:
        with suppress(OSError):
            _flush()


def _flush() -> None:
    """Write what was printed. If that is impossible, drop it and raise the error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _is_refusal_of_system(error: Exception) -> bool:
    """Whether the system refused a file, because it is missing or the disk is full, for example."""
    if not isinstance(error, OSError) or isinstance(error, MdcgError):
        return False
    return error.errno in _FULL or bool(error.strerror and error.filename)


def require_file(path: Path) -> None:
    """Raise UsageError unless the path is a file that can be read."""
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if not path.is_file():
        raise UsageError(f"{path} is not a file: give the file itself")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read: check its permissions")


def require_package(path: Path) -> None:
    """Raise UsageError unless the path is a file that looks like a package."""
    from ..package.file import is_package

    if not path.exists():
        raise UsageError(f"{path} does not exist: convert one, mdcg convert IN -o OUT.mdcg")
    require_file(path)
    if not is_package(path):
        raise UsageError(
            f"{path} is not a package: convert a checkpoint first, mdcg convert {path} -o OUT.mdcg"
        )


def positive(text: str) -> float:
    """Parse a positive number."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")


def positive_integer(text: str) -> int:
    """Parse a positive whole number."""
    with suppress(ValueError):
        if int(text) > 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt with their number, like Ctrl-C.

    Temporary files are then removed, and compilers are stopped.
    """

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise KeyboardInterrupt(number)

    in_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
    handled = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if in_main and signal.getsignal(number) is signal.SIG_DFL  # nohup ignores SIGHUP
    ]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@dataclass
class Stop:
    """The signal that has asked a long job to stop, or 0."""

    number: int = 0


@contextmanager
def stop_after_step() -> Iterator[Stop]:
    """Note Ctrl-C, SIGTERM and SIGHUP, so that a job ends between two steps; raise at the end.

    A second signal raises KeyboardInterrupt at once.
    """
    stop, before = Stop(), {}

    def note(number: int, frame: object) -> None:
        if stop.number:
            raise KeyboardInterrupt(number)
        stop.number = number

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as of nohup
                before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.number:
        raise KeyboardInterrupt(stop.number)


class _PlainProgress:
    """What stands in for tqdm where that is not installed: a line on terminals."""

    def __init__(self, total: int, unit: str, file: TextIO) -> None:
        self._total, self._unit, self._file = total, unit, file
        self._done, self._text, self._shown = 0, "", 0.0

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self._text = text

    def update(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if self._file.isatty() and (now - self._shown > 0.2 or self._done == self._total):
            self._shown = now
            line = f"{self._done}/{self._total} {self._unit}s, {self._text}"
            print(f"\r{line:78.78}", end="", file=self._file, flush=True)

    def close(self) -> None:
        if self._shown:
            print(file=self._file)


def progress_bar(total: int, unit: str) -> Any:
    """Return a progress bar on standard error, which shows nothing where that is no terminal."""
    try:
        from tqdm import tqdm
    except ImportError:  # it comes with mace-torch and nequip
        return _PlainProgress(total, unit, sys.stderr)
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=None, dynamic_ncols=True)


@contextmanager
def heavy_work(level: int) -> Iterator[None]:
    """Send the log, and the output of other packages, to stderr."""
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
