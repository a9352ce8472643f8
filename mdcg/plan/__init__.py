"""How a problem is computed on a device: tile sizes and other choices for its kernels."""

from .device import CudaDevice, CudaPlan, CudaTile, CudaUvwTile, plan_cuda
from .host import LEVELS, EnginePlan, HostDevice, HostPlan, plan_host

__all__ = [
    "LEVELS",
    "CudaDevice",
    "CudaPlan",
    "CudaTile",
    "CudaUvwTile",
    "EnginePlan",
    "HostDevice",
    "HostPlan",
    "plan_cuda",
    "plan_host",
]
