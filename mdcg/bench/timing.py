"""Interleaved timing and peak memory of functions in this process."""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ..errors import DeviceError
from .gpu import CudaClock, SynchronizedClock, cuda_peak_bytes, require_cuda

__all__ = [
    "Clock",
    "Peak",
    "Timing",
    "clock_for",
    "interleave",
    "peak_memory",
    "stopwatch",
]

_log = logging.getLogger("mdcg.bench")

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Clock(Protocol):
    """Runs something a number of times and says how long that took."""

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean seconds of one call."""


class HostClock:
    """Wall clock of the host."""

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean seconds of one call; results are freed outside of the timed span."""
        result: object = None
        start = perf_counter()
        for _ in range(times):
            result = run()
        elapsed = perf_counter() - start
        del result
        return elapsed / times


def clock_for(device: str, *, synchronized: bool = False) -> Clock:
    """Return the clock of a device.

    Parameters
    ----------
    device : {"cpu", "cuda"}
    synchronized : bool
        The host's clock for a CUDA device too: what it measures need not be torch's.

    Raises
    ------
    DeviceError
        Nothing can be timed there.
    """
    if device == "cpu":
        return HostClock()
    if device == "cuda":
        require_cuda()
        return SynchronizedClock() if synchronized else CudaClock()
    raise DeviceError(f"device is {device!r}, expected cpu or cuda")


@dataclass(frozen=True)
class Timing:
    """Samples of one implementation, in seconds."""

    median: float
    quartile1: float
    quartile3: float
    minimum: float
    maximum: float
    samples: int
    calls_per_sample: int

    @classmethod
    def of(cls, samples: list[float], calls_per_sample: int) -> Timing:
        """Summarise samples."""
        low, middle, high = (float(q) for q in np.percentile(samples, [25, 50, 75]))
        return cls(middle, low, high, min(samples), max(samples), len(samples), calls_per_sample)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def interleave(
    runs: Mapping[str, Callable[[], object]],
    clock: Clock,
    *,
    repeats: int = 10,
    warmup: int = 3,
    sample_seconds: float = 0.02,
) -> dict[str, Timing]:
    """Time several functions side by side: A B C, A B C, ….

    Whatever disturbs the machine for a while then disturbs all of them. A sample of a function that
    takes less than `sample_seconds` is the mean of several calls.

    Parameters
    ----------
    runs : mapping of str to callable
        What to time, by name.
    clock : Clock
        From :func:`clock_for`.
    repeats : int
        Samples per function.
    warmup : int
        Calls before the first sample (TorchScript specialises during the first three).
    sample_seconds : float
        Length of a sample, about, or of one call if that is longer.
    """
    calls: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(max(warmup - 2, 0)):
            run()
        once = min(clock.seconds(run, 1) for _ in range(2))
        calls[name] = min(1000, max(1, math.ceil(sample_seconds / max(once, 1e-9))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, run in runs.items():
                samples[name].append(clock.seconds(run, calls[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: Timing.of(samples[name], calls[name]) for name in runs}


@contextmanager
def stopwatch(spent: MutableMapping[str, float], name: str) -> Iterator[None]:
    """Add up, and log, where the benchmark's own time goes: mostly compilers of several packages.

    Parameters
    ----------
    spent : mutable mapping of str to float
        Seconds by name.
    name : str
        What is done in this block.
    """
    start = perf_counter()
    yield
    seconds = perf_counter() - start
    spent[name] = spent.get(name, 0.0) + seconds
    _log.info("%6.1f s  %s", seconds, name)


@dataclass(frozen=True)
class Peak:
    """Highest resident memory of the process, or memory on the device, above a baseline.

    Parameters
    ----------
    extra_bytes : int
        Above what was resident before the measured calls.
    method : str
        ``"VmHWM"`` (Linux, reset before the calls), ``"ru_maxrss"`` (highest value of the process
        so far: 0 where the calls needed no more than the preparation did), or ``"cuda"`` (torch's
        own count of the memory in tensors on the device).
    """

    extra_bytes: int
    method: str


def peak_memory(run: Callable[[], object], repeats: int = 3, device: str = "cpu") -> Peak:
    """Run something and return the peak of resident or device memory above the present value."""
    if device == "cuda":
        return Peak(cuda_peak_bytes(run), "cuda")
    gc.collect()
    _trim()
    reset = _reset_high_water()
    before = _status_bytes("VmRSS")
    for _ in range(repeats):
        run()
    if reset and before is not None:
        after = _status_bytes("VmHWM")
        if after is not None:
            return Peak(max(0, after - before), "VmHWM")
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    highest *= 1 if sys.platform == "darwin" else 1024
    return Peak(max(0, highest - (before or 0)), "ru_maxrss")


def _trim() -> None:
    """Give freed heap pages back, so that they do not hide in the baseline (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_high_water() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int | None:
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
