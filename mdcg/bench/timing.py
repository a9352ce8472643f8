"""Interleaved timing and peak memory of functions in this process; torch is used if loaded."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

Run: TypeAlias = Callable[[], object]
#: Calls a function a number of times and returns the mean seconds of one call.
Clock: TypeAlias = Callable[[Run, int], float]

# On an idle machine, quartiles differ by a few percent.
_SCATTER = 1.5
_WARMUP = 3  # TorchScript specialises its code during the first three calls
# M_MMAP_MAX: never use mmap; M_TRIM_THRESHOLD: never return memory; M_TOP_PAD: grow in steps.
_HEAP = ((-4, 0), (-1, -1), (-2, 2**28))
_LIBC = ctypes.CDLL(None)


def torch_cuda() -> Any:
    """Return ``torch.cuda`` if torch is loaded and has a device, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def clock_for(device: str) -> Clock:
    """Return a clock; for a CUDA device that torch uses, it waits for each call."""
    cuda = torch_cuda() if device == "cuda" else None
    wait = (lambda: None) if cuda is None else cuda.synchronize

    def seconds(run: Run, times: int) -> float:
        result: object = None
        wait()
        start = perf_counter()
        for _ in range(times):
            result = run()
            wait()
        elapsed = perf_counter() - start
        del result  # results are freed outside of the timed span
        return elapsed / times

    return seconds


def interleave(
    runs: Mapping[str, Run], clock: Clock, *, repeats: int = 10, sample_seconds: float = 0.02
) -> dict[str, dict[str, Any]]:
    """Time several functions, interleaved: A B C, A B C, ….

    A disturbance of the machine then affects all of them. A sample of a function that takes less
    than `sample_seconds` is the mean of several calls. The result has ``median``, ``quartile1`` and
    ``quartile3`` in seconds for each name, and the numbers of ``samples`` and calls.
    """
    calls: dict[str, int] = {}
    for name, run in runs.items():
        once = [clock(run, 1) for _ in range(_WARMUP)][-1]
        calls[name] = min(1000, max(1, math.ceil(sample_seconds / max(once, 1e-9))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, run in runs.items():
                samples[name].append(clock(run, calls[name]))
    finally:
        if collecting:
            gc.enable()
    found: dict[str, dict[str, Any]] = {}
    for name, times in samples.items():
        low, middle, high = (float(q) for q in np.percentile(times, [25, 50, 75]))
        found[name] = {"median": middle, "quartile1": low, "quartile3": high}
        found[name] |= {"samples": repeats, "calls_per_sample": calls[name]}
    return found


def scatters(seconds: Mapping[str, Any]) -> bool:
    """Return whether the quartiles of samples are too far apart for a ratio to have a meaning."""
    return bool(seconds["quartile3"] > _SCATTER * seconds["quartile1"])


def ratio(seconds: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the ratio of two medians, or None if samples of one of them scatter."""
    if scatters(seconds) or scatters(other):
        return None
    return float(seconds["median"] / other["median"])


def keep_heap() -> None:
    """Let glibc keep the memory of large temporaries of a step for the next step.

    Without it glibc maps and unmaps them every time, and page faults make the step of an e3nn model
    1.3 to 2.4 times as long.
    """
    for option, value in _HEAP if hasattr(_LIBC, "mallopt") else ():
        _LIBC.mallopt(option, value)


def release_memory() -> None:
    """Release cached memory for the next implementation."""
    gc.collect()
    if (cuda := torch_cuda()) is not None:
        cuda.empty_cache()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def free_bytes() -> int:
    """Return the free bytes of the CUDA device, or 0 without torch."""
    cuda = torch_cuda()
    return 0 if cuda is None else int(cuda.mem_get_info()[0])


def total_bytes(device: str) -> int:
    """Return the bytes of memory of the CUDA device, or of the machine."""
    cuda = torch_cuda() if device == "cuda" else None
    if cuda is not None:
        return int(cuda.mem_get_info()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_bytes(run: Run, device: str, inputs: int) -> int | None:
    """Return the bytes of inputs, plus the largest memory that a call adds to them.

    This is resident memory of the process on a CPU, and memory of torch's allocator on a CUDA
    device. None: the system does not report it.
    """
    release_memory()
    cuda = torch_cuda()
    if device == "cuda" and cuda is not None:
        cuda.reset_peak_memory_stats()
        before = int(cuda.memory_allocated())
        run()
        cuda.synchronize()
        return inputs + int(cuda.max_memory_allocated()) - before
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status_bytes("VmRSS")
        for _ in range(3):
            run()
        return inputs + max(0, _status_bytes("VmHWM") - before)
    except OSError:
        return None


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
