"""Gets kernels for devices from memory, from the cache, or from a compiler.

NVRTC compiles on the thread that calls it, without Python's lock, so with enough cores several
programs take as long as the longest one. hiprtc, for AMD's devices, compiles one after the other.
An error on such a thread is raised by the call that asks for the kernel.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from .. import _core
from ..env import usable_cores
from ..errors import KernelCompileError
from . import hiprtc
from .cache import announce_compilation, find_or_compile
from .compiler import count_compiled, count_loaded
from .nvrtc import FLAGS, compile_cuda, nvrtc_for

_BINARY = "kernel.cubin"  # for AMD, a code object

Key = tuple[str, str]  # architecture, content key


def _is_hip(target: str) -> bool:
    return target.startswith("gfx")


def _key(source: str, target: str) -> str:
    if _is_hip(target):
        return _core.KernelCache.key(hiprtc.hip_text(source), *hiprtc.FLAGS)
    return _core.KernelCache.key(source, *FLAGS)


class _Builds:
    """Kernels that this process has loaded or is compiling; a forked child starts with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turns = threading.BoundedSemaphore(usable_cores())
        # hiprtc compiles one at a time; those that wait here give up when the process ends
        self.hip_turns = threading.BoundedSemaphore(1)
        self.futures: dict[Key, Future[bytes]] = {}

    def start(self, source: str, target: str) -> Future[bytes]:
        key = (target, _key(source, target))
        with self.lock:
            found = self.futures.get(key)
            # a failure is not kept: its cause may be gone
            if found is not None and not (found.done() and found.exception() is not None):
                return found
            future: Future[bytes] = Future()
            self.futures[key] = future
        # not a daemon: a process must not end while the compiler runs in it
        thread = threading.Thread(
            target=self._run, args=(future, source, key), name=f"mdcg-nvrtc-{key[1][:8]}"
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads: compile here, or others would wait forever
            self._run(future, source, key)
        return future

    def _run(self, future: Future[bytes], source: str, key: Key) -> None:
        try:
            with self.hip_turns if _is_hip(key[0]) else self.turns:
                if not threading.main_thread().is_alive():
                    raise KernelCompileError(
                        f"kernel {key[1]} was not compiled, because the process is ending"
                    )
                cubin = _load(source, *key)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(cubin)


def _reset() -> None:
    global _builds
    _builds = _Builds()


_builds = _Builds()
os.register_at_fork(after_in_child=_reset)


def _build(source: str, target: str, folder: Path) -> None:
    if _is_hip(target):
        hiprtc.hiprtc_for(target)
    else:
        nvrtc_for(target)
    announce_compilation("kernels")
    (folder / "kernel.cu").write_text(source)
    start = time.perf_counter()
    if _is_hip(target):
        cubin = hiprtc.compile_hip(source, target)
    else:
        cubin, _ = compile_cuda(source, target)
    (folder / _BINARY).write_bytes(cubin)
    count_compiled(source, target, time.perf_counter() - start)


def _load(source: str, target: str, key: str) -> bytes:
    cache = _core.KernelCache(target, _BINARY)
    kernel = find_or_compile(cache, key, lambda folder: _build(source, target, folder))
    count_loaded(f"{kernel.folder}/kernel.cu")
    return kernel.binary


def start_cuda_kernel(source: str, target: str) -> Future[bytes]:
    """Begin loading or compiling a kernel on a thread, without waiting, if it has not begun.

    The target is an architecture such as ``"sm_90"`` or ``"gfx90a"``. The result is the machine
    code.
    """
    return _builds.start(source, target)


def load_cuda_kernels(sources: Sequence[str], target: str) -> list[bytes]:
    """Return the machine code of several kernels. NVRTC compiles missing ones at the same time."""
    longest_first = sorted(set(sources), key=len, reverse=True)
    started = {source: start_cuda_kernel(source, target) for source in longest_first}
    return [started[source].result() for source in sources]


def discard_cuda_kernel(source: str, target: str) -> None:
    """Forget a kernel that the driver refused, in memory and on disk."""
    key = _key(source, target)
    with _builds.lock:
        _builds.futures.pop((target, key), None)
    _core.KernelCache(target, _BINARY).discard(key)
