"""How a problem is computed: a description of the device and a printable, overridable plan."""

from .host import LEVELS, HostDevice, HostPlan, plan_host

__all__ = ["LEVELS", "HostDevice", "HostPlan", "plan_host"]
