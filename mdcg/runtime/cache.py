"""Compiled kernels on disk: content key, lock, atomic rename, read-only folders.

Layout: ``<root>/<version>/<target>/<key>/`` holds ``kernel.cpp`` beside ``kernel.so``, or
``kernel.cu`` beside ``kernel.cubin``, so that a user can send both. The key depends on text and
flags alone: a cached kernel loads on a machine without a compiler.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from .. import env
from .._version import __version__

__all__ = ["KernelCache", "cache_dir", "cache_size", "clear_cache"]

# What a folder of the cache holds one of.
BINARIES = ("kernel.so", "kernel.cubin", "mdcgplugin.so")

_log = logging.getLogger("mdcg")
_private: Path | None = None
_private_lock = threading.Lock()


def cache_dir() -> Path:
    """Return the folder of this version's kernels (it need not exist)."""
    return env.cache_root() / __version__


def cache_size() -> tuple[int, int]:
    """Return number of cached kernels and their bytes on disk."""
    files = [p for p in cache_dir().glob("*/*/*") if p.is_file()]
    return sum(p.name in BINARIES for p in files), sum(p.stat().st_size for p in files)


def clear_cache() -> None:
    """Delete the kernels of this version; processes that loaded them keep running."""
    shutil.rmtree(cache_dir(), ignore_errors=True)


def _private_dir() -> Path:
    """Return a folder of this process, for when the cache cannot be written."""
    global _private
    with _private_lock:
        if _private is None:
            _private = Path(tempfile.mkdtemp(prefix="mdcg-"))
            atexit.register(shutil.rmtree, _private, ignore_errors=True)
            _log.warning(
                "kernel cache %s cannot be written: kernels are compiled again in every process; "
                "set MDCG_CACHE_DIR to a writable folder",
                cache_dir(),
            )
        return _private


def _digest(binary: Path) -> str:
    return hashlib.sha256(binary.read_bytes()).hexdigest()


def _flush(folder: Path) -> None:
    """Bring files to the disk, so that a crash cannot leave the name without the content."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _is_whole(binary: Path) -> bool:
    """Return whether a kernel is as it was made: loading a file cut short can kill the process."""
    try:
        return binary.with_name("kernel.sha256").read_text() == _digest(binary)
    except OSError:
        return False


class KernelCache:
    """Finds or makes the folder of one kernel.

    Parameters
    ----------
    target : str
        Sub-folder, such as ``"x86-64-v4"`` or ``"sm_90"``.
    binary : str
        File that makes a folder complete, one of ``BINARIES``.
    """

    def __init__(self, target: str, binary: str = BINARIES[0]) -> None:
        self.target = target
        self.binary = binary

    def key(self, *texts: str) -> str:
        """Return the content key of a kernel: 32 hexadecimal digits."""
        digest = hashlib.sha256()
        for text in texts:
            digest.update(text.encode())
            digest.update(b"\0")
        return digest.hexdigest()[:32]

    def find(self, key: str) -> Path | None:
        """Return the folder of a kernel that is there, or None."""
        roots = [cache_dir()] + ([_private] if _private is not None else [])
        for root in roots:
            folder = root / self.target / key
            if _is_whole(folder / self.binary):
                return folder
        return None

    def discard(self, key: str) -> None:
        """Remove a kernel that proved unusable."""
        folder = self.find(key)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def make(self, key: str, build: Callable[[Path], None]) -> Path:
        """Return the kernel's folder, calling ``build(empty_folder)`` if nobody has made it.

        Processes that ask at once build it once; the folder appears whole or not at all.
        """
        with self._lock(key) as root:
            found = self.find(key)
            if found is not None:
                return found
            temporary = root / "tmp" / uuid.uuid4().hex
            temporary.mkdir(parents=True)
            try:
                build(temporary)
                (temporary / "kernel.sha256").write_text(_digest(temporary / self.binary))
                _flush(temporary)
                final = root / self.target / key
                final.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(final, ignore_errors=True)  # what find() did not accept
                try:
                    temporary.rename(final)
                except OSError:
                    # a process that could not see our lock (another host) was faster
                    if not _is_whole(final / self.binary):
                        raise
                return final
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[Path]:
        root = cache_dir()
        try:
            (root / "locks").mkdir(parents=True, exist_ok=True)
            probe = root / "locks" / f".{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError:
            root = _private_dir()
            (root / "locks").mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / "locks" / f"{self.target}-{key}.lock", mode=0o666)
        # file systems without locks: kernels are moved into place whole, so two may make one
        with suppress(OSError, NotImplementedError):
            lock.acquire()
        try:
            yield root
        finally:
            lock.release()
