"""The host C++ compiler: finding it, running it, loading what it made."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .cache import KernelCache, announce_compilation

__all__ = [
    "CompileStatistics",
    "build_host_kernels",
    "find_compiler",
    "load_host_kernel",
    "statistics",
    "usable_cores",
]

_log = logging.getLogger("mdcg")

# No exceptions and no libraries that are not needed: a kernel loads wherever the engine does.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast"),
    *("-fno-exceptions", "-fno-rtti", "-Wl,--as-needed", "-w"),
)

_CANDIDATES = ("c++", "g++", "clang++")


@dataclass
class CompileStatistics:
    """What this process compiled and loaded; read with :func:`statistics`."""

    compiled: int = 0  # kernels compiled here
    loaded: int = 0  # kernels loaded in all
    compile_seconds: float = 0.0  # wall time
    load_seconds: float = 0.0


_statistics = CompileStatistics()
_libraries: dict[str, _core.SharedLibrary] = {}
_lock = threading.Lock()


def statistics() -> CompileStatistics:
    """Return the process-wide counters."""
    return _statistics


def count_compiled(source: str, target: str, seconds: float) -> None:
    """Count and log a kernel that was compiled; the first line of its text says what it is."""
    with _lock:
        _statistics.compiled += 1
        _statistics.compile_seconds += seconds
    name = source.partition("\n")[0].removeprefix("// ")
    _log.info("compiled kernel for %s in %.1f s (%s)", target, seconds, name)


def count_loaded(source: str, seconds: float) -> None:
    """Count a kernel that was loaded, and log where its text is if ``MDCG_DEBUG`` is set."""
    with _lock:
        _statistics.loaded += 1
        _statistics.load_seconds += seconds
    if env.debug():
        _log.info("loaded the kernel of %s", source)


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


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_compiler(command: list[str], stop: _core.StopFlag | None = None) -> tuple[int, str]:
    """Run a compiler to its end, or to an interruption, which ends it.

    Returns its exit status and its messages. When `stop` is set, it ends, too; for threads, which
    no signal interrupts.

    Raises
    ------
    KernelCompileError
        It cannot be started, it was stopped, or it took longer than ``MDCG_COMPILE_TIMEOUT``.
    """
    try:
        status, messages = _core.run_process(command, env.compile_timeout(), stop)
    except RuntimeError as error:
        advice = "set MDCG_CXX to choose another one"
        if "did not end" in str(error):
            advice += ", or MDCG_COMPILE_TIMEOUT to more seconds"
        raise KernelCompileError(f"the C++ compiler {command[0]} {error}: {advice}") from None
    return status, messages.decode(errors="replace")


def _compile(
    source: str, flags: tuple[str, ...], stop: _core.StopFlag | None, folder: Path
) -> None:
    command = find_compiler()
    announce_compilation("kernels")
    text, binary = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source)
    start = time.perf_counter()
    status, messages = run_compiler([*command, *FLAGS, *flags, "-o", str(binary), str(text)], stop)
    seconds = time.perf_counter() - start
    if status != 0 or not binary.is_file():
        kept = folder.parent / f"failed-{Path(folder.stem).stem}.cpp"
        kept.write_text(source)
        lines = [line.strip() for line in messages.replace(f"{folder}/", "").splitlines()]
        first = next((line for line in lines if "error" in line), " | ".join(lines[:3]))
        raise KernelCompileError(
            f"{' '.join(command)} rejected a generated kernel "
            f"({first or f'exit status {status}'}): "
            f"source kept in {kept}; mdcg needs gcc >= 11 or clang >= 12, "
            "set MDCG_CXX to choose another compiler"
        )
    count_compiled(source, "the CPU", seconds)


def build_host_kernels(
    sources: Sequence[str], *, target: str, flags: tuple[str, ...], again: bool = False
) -> list[bytes]:
    """Return the libraries of texts, as many compiled side by side as there are cores.

    The target is a sub-folder of the cache, and the flags are its compiler options. With `again`,
    libraries of the cache are compiled again.

    Raises
    ------
    KernelCompileError
        See :func:`load_host_kernel`; the others are stopped then.
    """
    cache = KernelCache(target)
    keys = {source: cache.key(source, *FLAGS, *flags) for source in sources}
    if again:
        for key in keys.values():
            cache.discard(key)
    stop = _core.StopFlag()
    longest_first = sorted(keys, key=len, reverse=True)
    with ThreadPoolExecutor(usable_cores()) as pool:
        made = {
            source: pool.submit(
                cache.find_or_compile,
                keys[source],
                partial(_compile, source, flags, stop),
                stop=stop,
            )
            for source in longest_first
        }
        try:
            for future in as_completed(made.values()):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [made[source].result().binary for source in sources]


def load_host_kernel(
    source: str, *, target: str, flags: tuple[str, ...], symbols: tuple[str, ...] = ()
) -> _core.SharedLibrary:
    """Return the loaded library of a kernel, from memory, from the cache, or compiled now.

    The target names an instruction set level, is a sub-folder of the cache, and has these compiler
    flags. The library must have the functions `symbols`.

    Raises
    ------
    KernelCompileError
        The kernel is not cached and there is no compiler, it rejected the text, what it made cannot
        be loaded, or compiling is disabled.
    """
    cache = KernelCache(target)
    key = cache.key(source, *FLAGS, *flags)
    with _lock:
        if key in _libraries:
            return _libraries[key]
    for attempt in (1, 2):
        kernel = cache.find_or_compile(key, partial(_compile, source, flags, None))
        start = time.perf_counter()
        try:
            library = kernel.load()
            for name in symbols:
                library.symbol(name)
        except RuntimeError as error:
            # a file that another compiler or a full disk has left: make it again, once
            cache.discard(key)
            if attempt == 2:
                raise KernelCompileError(
                    f"a compiled kernel cannot be loaded ({error}): check that {kernel.folder} is "
                    "on a file system that allows execution, or set MDCG_CACHE_DIR or MDCG_CXX"
                ) from error
            continue
        count_loaded(f"{kernel.folder}/kernel.cpp", time.perf_counter() - start)
        with _lock:
            return _libraries.setdefault(key, library)
    raise AssertionError("unreachable")
