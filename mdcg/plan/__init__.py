"""How a problem is computed: a description of the device and a printable, overridable plan."""

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
