"""The host C++ compiler: finding it, compiling kernels with it, and loading them."""

from __future__ import annotations

import logging
import shlex
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .cache import announce_compilation, find_or_compile

_log = logging.getLogger("mdcg")

# Without exceptions and further libraries, kernels load wherever the engine does.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast"),
    *("-fno-exceptions", "-fno-rtti", "-Wl,--as-needed", "-w"),
)

_BINARY = "kernel.so"

_CANDIDATES = ("c++", "g++", "clang++")


@dataclass
class CompileStatistics:
    """Counts of what this process compiled and loaded; see :func:`statistics`."""

    compiled: int = 0  # kernels that were compiled
    loaded: int = 0  # kernels that were loaded, from the cache too


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
    name = source.partition("\n")[0].removeprefix("// ")
    _log.info("compiled kernel for %s in %.1f s (%s)", target, seconds, name)


def count_loaded(source: str) -> None:
    """Count a kernel that was loaded, and log where its text is if ``MDCG_DEBUG`` is set."""
    with _lock:
        _statistics.loaded += 1
    if env.debug():
        _log.info("loaded the kernel of %s", source)


def find_compiler() -> list[str]:
    """Return the command of the host C++ compiler."""
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
    announce_compilation("kernels")
    text, binary = folder / "kernel.cpp", folder / _BINARY
    text.write_text(source)
    start = time.perf_counter()
    status, messages = _core.run_compiler([*command, *FLAGS, *flags, "-o", str(binary), str(text)])
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
    """Return the libraries of texts. Missing ones are compiled at the same time, on all cores.

    `flags` are the compiler options of the target. With `again`, cached libraries are compiled
    again. If one text is rejected, the other compilers are stopped.
    """
    cache = _core.KernelCache(target, _BINARY)
    keys = {source: cache.key(source, *FLAGS, *flags) for source in sources}
    if again:
        for key in keys.values():
            cache.discard(key)
    stop = _core.StopFlag()

    def build(source: str) -> bytes:
        return find_or_compile(cache, keys[source], partial(_compile, source, flags), stop).binary

    longest_first = sorted(keys, key=len, reverse=True)
    with ThreadPoolExecutor(env.usable_cores()) as pool:
        try:
            made = dict(zip(longest_first, pool.map(build, longest_first), strict=True))
        except BaseException:
            stop.set()
            raise
    return [made[source] for source in sources]


def load_host_kernel(
    source: str, *, target: str, flags: tuple[str, ...], symbols: tuple[str, ...] = ()
) -> _core.SharedLibrary:
    """Return the loaded library of a kernel, from memory, from the cache, or compiled now.

    The target names an instruction set level, and `flags` are its compiler options. The library
    must have the functions `symbols`.
    """
    cache = _core.KernelCache(target, _BINARY)
    key = cache.key(source, *FLAGS, *flags)
    with _lock:
        if key in _libraries:
            return _libraries[key]
    for attempt in (1, 2):
        kernel = find_or_compile(cache, key, partial(_compile, source, flags))
        try:
            library = kernel.load()
            for name in symbols:
                library.symbol(name)
        except RuntimeError as error:
            # another compiler or a full disk has left a bad file: make it again, once
            cache.discard(key)
            if attempt == 2:
                raise KernelCompileError(
                    f"a compiled kernel cannot be loaded ({error}): check that {kernel.folder} is "
                    "on a file system that allows execution, or set MDCG_CACHE_DIR or MDCG_CXX"
                ) from error
            continue
        count_loaded(f"{kernel.folder}/kernel.cpp")
        with _lock:
            return _libraries.setdefault(key, library)
    raise AssertionError("unreachable")
