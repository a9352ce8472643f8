"""Clock, peak memory and kernel times on a CUDA device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DeviceError

__all__ = [
    "CudaClock",
    "KernelTime",
    "cuda_peak_bytes",
    "device_name",
    "kernel_times",
    "release_memory",
    "require_cuda",
]


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


def kernel_times(run: Callable[[], object], repeats: int = 3) -> list[KernelTime]:
    """Return what kernels, copies and fills took on the device, longest first.

    Their sum has no launch overhead in it, unlike the time between two events.

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
    found = [
        KernelTime(event.key, event.count / repeats, event.self_device_time_total * 1e-6 / repeats)
        for event in recorded.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(found, key=lambda kernel: -kernel.seconds)
