"""Compiled kernels on disk: content key, lock, atomic rename, folders that cannot be used.

Layout: ``<root>/<version>/<target>/<key>/`` holds ``kernel.cpp`` beside ``kernel.so``, or
``kernel.cu`` beside ``kernel.cubin``, so that a user can send both. The key depends on text and
flags alone: a cached kernel loads on a machine without a compiler. Which files are read is decided
in ``csrc/core/kernel_cache.cpp``, for Python and for the engine; only this module writes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .. import _core, env
from .._version import __version__
from ..errors import KernelCompileError, OutputError

__all__ = [
    "KernelCache",
    "announce_compilation",
    "cache_dir",
    "cache_size",
    "clear_cache",
    "log_cache_warning",
    "warn_once",
    "why_not_kept",
]

# Each cache entry holds exactly one of these files.
BINARIES = ("kernel.so", "kernel.cubin", "mdcgplugin.so", "package.mdcg-kernels")

_DAY = 24 * 60 * 60

_log = logging.getLogger("mdcg")
_core.set_notice(lambda sentence: _log.warning("%s", sentence))
_logged: set[str] = set()
_logged_lock = threading.Lock()


def cache_dir() -> Path:
    """Return the folder of this version's kernels (it need not exist)."""
    return Path(_core.kernel_cache_root()) / __version__


def cache_size() -> tuple[int, int]:
    """Return number of cached kernels and their bytes on disk."""
    files = [p for p in cache_dir().glob("*/*/*") if p.is_file()]
    return sum(p.name in BINARIES for p in files), sum(p.stat().st_size for p in files)


def clear_cache() -> None:
    """Delete the kernels of this version; processes that loaded them keep running.

    Raises
    ------
    OutputError
        A file or folder cannot be deleted.
    """
    while cache_dir().exists():
        try:
            shutil.rmtree(cache_dir())
        except FileNotFoundError:  # another process moved or deleted a part: the rest remains
            continue
        except OSError as error:
            raise OutputError(
                f"the kernel cache {cache_dir()} cannot be deleted ({error.strerror}: "
                f"{error.filename}): run the command as the user that it belongs to"
            ) from error


def why_not_kept() -> str:
    """Return why new kernels are not kept in the cache, or nothing where they are."""
    # "tmp" is no target: its folder is there in any case
    try:
        folder = _core.KernelCache("tmp", BINARIES[0]).writable_folder()
    except RuntimeError as error:  # the folder of temporary files cannot be written either
        return str(error)
    return "" if folder == str(cache_dir()) else _core.KernelCache.warning()


def log_cache_warning() -> None:
    """Log once per process why the cache is not used, if it is not."""
    warn_once(_core.KernelCache.warning())


def announce_compilation(what: str) -> None:
    """Warn once that kernels are being compiled, because that takes long."""
    kept = not why_not_kept()
    log_cache_warning()
    use = (
        f"; it does so once and keeps the result in {cache_dir()}"
        if kept
        else "; they are not kept, see the warning above"
    )
    warn_once(f"mdcg is compiling {what}, which takes a while{use}")


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    with _logged_lock:
        if not text or text in _logged:
            return
        _logged.add(text)
    _log.warning("%s", text)


class KernelCache:
    """Finds or makes one kernel.

    The target is a sub-folder, such as ``"x86-64-v4"`` or ``"sm_90"``. The file `binary` of
    ``BINARIES`` makes a folder complete.
    """

    def __init__(self, target: str, binary: str = BINARIES[0]) -> None:
        self.target, self.binary = target, binary
        self._files = _core.KernelCache(target, binary)

    @staticmethod
    def key(*texts: str) -> str:
        """Return the content key of a kernel: 32 hexadecimal digits."""
        digest = hashlib.sha256(b"".join(text.encode() + b"\0" for text in texts))
        return digest.hexdigest()[:32]

    def find(self, key: str) -> _core.CachedKernel | None:
        """Return a complete kernel that no other user could have written; None without one."""
        found = self._files.find(key)
        log_cache_warning()
        return found

    def find_or_compile(
        self,
        key: str,
        build: Callable[[Path], object],
        *,
        stop: _core.StopFlag | None = None,
    ) -> _core.CachedKernel:
        """Return a cached kernel, or compile it unless ``MDCG_DISABLE_JIT`` forbids that.

        Raises
        ------
        KernelCompileError
            See :meth:`make`; or the kernel is missing and must not be compiled.
        """
        found = self.find(key)
        if found is None and env.jit_disabled():
            raise KernelCompileError(
                f"kernel {key} is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: "
                "unset the variable, or run the same calculation once where compiling is allowed, "
                "with the same MDCG_CACHE_DIR"
            )
        return found or self.make(key, build, stop=stop)

    def discard(self, key: str) -> None:
        """Remove a kernel that proved unusable."""
        found = self.find(key)
        if found is not None:
            self._files.discard(found.folder)

    def make(
        self,
        key: str,
        build: Callable[[Path], object],
        *,
        stop: _core.StopFlag | None = None,
    ) -> _core.CachedKernel:
        """Return the kernel, calling ``build(empty_folder)`` if no other process has made it.

        Processes that ask at once build it once; the folder appears whole or not at all.

        Raises
        ------
        KernelCompileError
            The folder cannot be written, or `stop` was set while another process built it.
        """
        try:
            with self._lock(key, stop) as folder:
                found = self.find(key)
                return found or self._make(Path(folder), key, build)
        except KernelCompileError:
            raise
        except RuntimeError as error:
            raise KernelCompileError(str(error)) from error

    def _make(self, root: Path, key: str, build: Callable[[Path], object]) -> _core.CachedKernel:
        name = f"{self.target}-{key}.{_core.host_name()}.{uuid.uuid4().hex}"
        temporary, final = root / "tmp" / name, root / self.target / key
        try:
            temporary.mkdir(mode=0o700)
            build(temporary)
            digest = hashlib.sha256((temporary / self.binary).read_bytes())
            (temporary / "kernel.sha256").write_text(digest.hexdigest())
            _seal(temporary)
            _remove(final)  # what find() did not accept
            with suppress(OSError):  # a process of another host may have been faster
                temporary.rename(final)
            found = self.find(key)
        except OSError as error:
            raise KernelCompileError(
                f"the kernel cache {root} cannot be written ({error.strerror}): is the disk full? "
                "Set MDCG_CACHE_DIR to a folder with space"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if found is None:
            raise KernelCompileError(
                f"the compiler wrote an incomplete {self.binary} to {root}: is the disk full? "
                "Set MDCG_CACHE_DIR to a folder with space"
            )
        return found

    @contextmanager
    def _lock(self, key: str, stop: _core.StopFlag | None) -> Iterator[str]:
        folder = self._files.writable_folder()
        log_cache_warning()
        lock = _core.FileLock(self._files.lock_file(folder, key), stop)
        try:
            if lock.held:
                with suppress(OSError):
                    self._remove_leftovers(Path(folder), f"{self.target}-{key}")
            yield folder
        finally:
            lock.release()

    @staticmethod
    def _remove_leftovers(root: Path, locked: str) -> None:
        """Remove temporary folders of killed processes.

        Locks that other processes hold show which folders are in use; those of other hosts need not
        be seen here.
        """
        for folder in (root / "tmp").iterdir():
            if folder.is_symlink() or not folder.is_dir():
                continue
            name, _, host = folder.stem.rpartition(".")
            with suppress(OSError):
                dead = time.time() - folder.lstat().st_mtime > _DAY
                if host == _core.host_name():
                    dead = dead or name == locked or _is_free(root / "locks" / f"{name}.lock")
                if dead:
                    shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock: Path) -> bool:
    """Return whether no process holds a lock; without its file nothing can be held."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file open, too
        return True
    finally:
        os.close(file)


def _seal(folder: Path) -> None:
    """Let only this user read and write the files, and put them on the disk.

    After a crash their names are not there without their content.
    """
    for path in folder.iterdir():
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(file, 0o600)
            os.fsync(file)
        finally:
            os.close(file)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
