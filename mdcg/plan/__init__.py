"""How a problem is computed: a description of the device and a printable, overridable plan."""

from .device import CudaDevice, CudaPlan, CudaTile, plan_cuda
from .host import LEVELS, HostDevice, HostPlan, plan_host

__all__ = [
    "LEVELS",
    "CudaDevice",
    "CudaPlan",
    "CudaTile",
    "HostDevice",
    "HostPlan",
    "plan_cuda",
    "plan_host",
]
