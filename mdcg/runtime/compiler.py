"""The host C++ compiler: finding it, running it, loading what it made."""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .cache import KernelCache

__all__ = ["CompileStatistics", "find_compiler", "load_host_kernel", "statistics"]

_log = logging.getLogger("mdcg")

# -O2 with the vectors written out by the generator: -O3 compiles longer and runs no faster.
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-w")

_CANDIDATES = ("c++", "g++", "clang++")


@dataclass
class CompileStatistics:
    """What this process compiled and loaded; read with :func:`statistics`.

    Attributes
    ----------
    compiled, loaded : int
        Kernels compiled here, and kernels loaded in all.
    compile_seconds, load_seconds : float
        Wall time spent on each.
    """

    compiled: int = 0
    loaded: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0


_statistics = CompileStatistics()
_libraries: dict[str, _core.SharedLibrary] = {}
_lock = threading.Lock()


def statistics() -> CompileStatistics:
    """Return the process-wide counters."""
    return _statistics


def find_compiler() -> list[str]:
    """Return the command of the host C++ compiler.

    Raises
    ------
    KernelCompileError
        None was found.
    """
    named = env.compiler()
    if named:
        try:
            command = shlex.split(named)
        except ValueError as error:
            raise KernelCompileError(
                f"MDCG_CXX or CXX is {named!r}, which is not a command ({error}): correct it"
            ) from error
        if shutil.which(command[0]) is None:
            raise KernelCompileError(
                f"the C++ compiler {command[0]!r} named by MDCG_CXX or CXX was not found: "
                "correct the variable or unset it"
            )
        return command
    for candidate in _CANDIDATES:
        if shutil.which(candidate):
            return [candidate]
    raise KernelCompileError(
        "no C++ compiler was found (searched $MDCG_CXX, $CXX, c++, g++, clang++): "
        "install one, for example with 'apt install g++', or set MDCG_CACHE_DIR to a folder "
        "that holds the compiled kernels"
    )


def _compile(source: str, flags: tuple[str, ...], folder: Path) -> None:
    command = find_compiler()
    text, binary = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source)
    start = time.perf_counter()
    result = subprocess.run(
        [*command, *FLAGS, *flags, "-o", str(binary), str(text)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    seconds = time.perf_counter() - start
    if result.returncode != 0 or not binary.is_file():
        kept = folder.parent / f"failed-{folder.name}.cpp"
        kept.write_text(source)
        first = next(
            (line for line in result.stderr.splitlines() if "error" in line),
            result.stderr or f"exit status {result.returncode}",
        )
        raise KernelCompileError(
            f"{' '.join(command)} rejected a generated kernel ({first.strip()}): "
            f"source kept in {kept}; mdcg needs gcc >= 11 or clang >= 12, "
            "set MDCG_CXX to choose another compiler"
        )
    with _lock:
        _statistics.compiled += 1
        _statistics.compile_seconds += seconds
    _log.info("compiled kernel in %.1f s (%s)", seconds, source.partition("\n")[0].lstrip("/ "))


def load_host_kernel(source: str, *, target: str, flags: tuple[str, ...]) -> _core.SharedLibrary:
    """Return the loaded library of a kernel, from memory, from the cache, or compiled now.

    Parameters
    ----------
    source : str
        C++ text.
    target : str
        Name of the instruction set level; a sub-folder of the cache.
    flags : tuple of str
        Compiler options of that level.

    Raises
    ------
    KernelCompileError
        The kernel is not cached and there is no compiler, it rejected the text, or compiling is
        disabled.
    """
    cache = KernelCache(target)
    key = cache.key(source, *FLAGS, *flags)
    with _lock:
        if key in _libraries:
            return _libraries[key]
    if cache.find(key) is None and env.jit_disabled():
        raise KernelCompileError(
            f"kernel {key} is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: "
            "unset the variable or fill the cache on another machine"
        )
    for attempt in (1, 2):
        folder = cache.find(key) or cache.make(key, lambda path: _compile(source, flags, path))
        start = time.perf_counter()
        try:
            library = _core.SharedLibrary(str(folder / "kernel.so"))
        except RuntimeError as error:
            # a file cut short by a full disk: make it again, once
            cache.discard(key)
            if attempt == 2:
                raise KernelCompileError(
                    f"a compiled kernel cannot be loaded ({error}): check that {folder.parent} is "
                    "on a file system that allows execution, or set MDCG_CACHE_DIR"
                ) from error
            continue
        with _lock:
            _statistics.loaded += 1
            _statistics.load_seconds += time.perf_counter() - start
            library = _libraries.setdefault(key, library)
        if env.debug():
            _log.info("kernel %s from %s", key, folder / "kernel.cpp")
        return library
    raise AssertionError("unreachable")
