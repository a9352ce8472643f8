"""The cache for users: its folder, what it holds, and log messages.

``csrc/core/kernel_cache.cpp`` finds, checks and makes the kernels, for Python and for the engine.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from .. import _core
from .._version import __version__
from ..errors import KernelCompileError, OutputError

_log = logging.getLogger("mdcg")
_core.set_notice(lambda sentence: _log.warning("%s", sentence))
_logged: set[str] = set()
_logged_lock = threading.Lock()


# A name of MACE or SevenNet, or of nequip.net; the names of files have a suffix, or a folder.
_NAME = re.compile(r"[\w-]{1,99}|(nequip\.net:)?[\w-]+/[\w-]+:[\w.-]+")


def is_name(model: object) -> bool:
    """Return whether a model is given by the name of a published one, and not by its file."""
    return isinstance(model, str) and bool(_NAME.fullmatch(model)) and not Path(model).exists()


def cache_dir() -> Path:
    """Return the folder of this version's kernels (it need not exist)."""
    return Path(_core.kernel_cache_root()) / __version__


def models_dir() -> Path:
    """Return the folder of packages that this version has converted (it need not exist)."""
    return cache_dir() / "models"


def cached_models() -> list[Path]:
    """Return the packages in the cache."""
    return sorted(models_dir().glob("*.mdcg"))


def cache_size() -> tuple[int, int]:
    """Return number of cached kernels and their bytes on disk."""
    files = [p for p in cache_dir().glob("*/*/*") if p.is_file()]
    return sum(p.name == "kernel.sha256" for p in files), sum(p.stat().st_size for p in files)


def clear_cache() -> None:
    """Delete the kernels and packages of this version; processes that loaded them keep running."""
    while cache_dir().exists():
        try:
            shutil.rmtree(cache_dir())
        except FileNotFoundError:  # another process moved or deleted a part
            continue
        except OSError as error:
            raise OutputError(
                f"the kernel cache {cache_dir()} cannot be deleted ({error.strerror}: "
                f"{error.filename}): run the command as the user that it belongs to"
            ) from error


def why_not_kept() -> str:
    """Return why new kernels are not kept in the cache, or an empty string if they are."""
    return _core.KernelCache.why_not_kept()


def log_cache_warning() -> None:
    """Log why the cache is not used, if it is not, once per process."""
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
    warn_once(f"mdcg is compiling {what}, which takes some seconds, and up to a minute or two{use}")


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    with _logged_lock:
        if not text or text in _logged:
            return
        _logged.add(text)
    _log.warning("%s", text)


def find_or_compile(
    cache: _core.KernelCache,
    key: str,
    build: Callable[[Path], object],
    stop: _core.StopFlag | None = None,
) -> _core.CachedKernel:
    """Return a cached kernel, or let ``build(empty_folder)`` compile it."""
    found = cache.find(key)
    log_cache_warning()
    if found is None and _core.jit_disabled():
        raise KernelCompileError(
            f"kernel {key} is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: "
            "unset the variable, or run the same calculation once where compiling is allowed, "
            "with the same MDCG_CACHE_DIR"
        )
    return found or cache.make(key, build, stop)
