"""Clock, peak memory and kernel times on a CUDA device."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from ..errors import DeviceError

__all__ = [
    "CudaClock",
    "DeviceTimes",
    "KernelTime",
    "SynchronizedClock",
    "covered",
    "cuda_peak_bytes",
    "device_name",
    "device_times",
    "free_memory",
    "release_memory",
    "require_cuda",
]


# Kernels listed per row; the rest is in their sums.
_LISTED_KERNELS = 16


def require_cuda() -> None:
    """Check that torch can use a CUDA device.

    Raises
    ------
    DeviceError
        It cannot.
    """
    import torch

    if torch.cuda.is_available():
        return
    why = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
    raise DeviceError(
        f"device is 'cuda', but torch {torch.__version__} {why}: use --device cpu, or see "
        "python -m mdcg env"
    )


def device_name() -> str:
    """Return the name of the device that is measured."""
    import torch

    return str(torch.cuda.get_device_name())


class CudaClock:
    """Events on the current stream, before the first call and after the last."""

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean seconds of one call; the device is idle when the first one starts."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / times


class SynchronizedClock:
    """Wall clock around calls that are waited for, one by one, as dynamics on the host does."""

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean seconds of one call."""
        import torch

        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(times):
            run()
            torch.cuda.synchronize()
        return (perf_counter() - start) / times


def free_memory() -> int:
    """Return the bytes of the device that nobody has, by its driver."""
    import torch

    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def cuda_peak_bytes(run: Callable[[], object]) -> int:
    """Return the highest memory in tensors during a call, above that before it."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def release_memory() -> None:
    """Give cached memory back, so that the next implementation can have it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class KernelTime:
    """What one kernel took of a call.

    Parameters
    ----------
    name : str
    launches : float
        Per call.
    seconds : float
        On the device, per call, all launches together.
    """

    name: str
    launches: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class DeviceTimes:
    """What a call does on the device.

    Parameters
    ----------
    busy_seconds : float
        Per call, while something runs: kernels may overlap, and pauses are left out.
    kernels : tuple of KernelTime
        Longest first.
    """

    busy_seconds: float
    kernels: tuple[KernelTime, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a row of the report."""
        return {
            "kernel_seconds": self.busy_seconds,
            "launches": sum(kernel.launches for kernel in self.kernels),
            "kernels": [kernel.as_dict() for kernel in self.kernels[:_LISTED_KERNELS]],
        }


def device_times(run: Callable[[], object], repeats: int = 3) -> DeviceTimes:
    """Return what kernels, copies and fills took on the device.

    To be called when everything has been timed: once a profiler has run, launches of the process
    take longer.

    Parameters
    ----------
    run : callable
        Called before, so that nothing is compiled now.
    repeats : int
        Calls to average over.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    spans = []
    found: dict[str, list[float]] = {}
    for event in recorded.events() or ():
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            start, end = event.time_range.start, event.time_range.end
            spans.append((start, end))
            found.setdefault(event.name, []).append(end - start)
    kernels = [
        KernelTime(name, len(times) / repeats, sum(times) * 1e-6 / repeats)
        for name, times in found.items()
        if sum(times) > 0
    ]
    kernels.sort(key=lambda kernel: -kernel.seconds)
    return DeviceTimes(covered(spans) * 1e-6 / repeats, tuple(kernels))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
