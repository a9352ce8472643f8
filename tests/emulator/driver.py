"""Calls functions of the CUDA driver by name, in programs that run with the emulator."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from mdcg.runtime.cuda_build import load_cuda_kernels

__all__ = ["CudaStatus", "Driver", "Kernels"]

Array = np.ndarray[Any, Any]


class CudaStatus(Exception):  # noqa: N818 (it is what CUDA calls a result)
    """The error that a function of the driver returned."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name}: {status}")
        self.status = status


class Driver:
    """``driver.cuMemAlloc_v2(...)`` calls that function, and raises `CudaStatus` for an error."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.cuInit(0)
        context = ctypes.c_void_p()
        self.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuCtxPushCurrent_v2(context)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                raise CudaStatus(name, status)

        return call

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Return the handle or address that a function makes."""
        handle = ctypes.c_void_p()
        getattr(self, name)(ctypes.byref(handle), *arguments)
        return handle

    def allocate(self, count: int) -> ctypes.c_void_p:
        return self.made("cuMemAlloc_v2", ctypes.c_size_t(count))

    def on_device(self, array: Array) -> ctypes.c_void_p:
        """Copy an array to the device; return the address."""
        memory = self.allocate(array.nbytes)
        size = ctypes.c_size_t(array.nbytes)
        self.cuMemcpyHtoD_v2(memory, array.ctypes.data_as(ctypes.c_void_p), size)
        return memory

    def fetch(self, memory: ctypes.c_void_p, like: Array) -> Array:
        """Copy memory of the device to an array like another one."""
        result = np.empty_like(like)
        size = ctypes.c_size_t(result.nbytes)
        self.cuMemcpyDtoH_v2(result.ctypes.data_as(ctypes.c_void_p), memory, size)
        return result


class Kernels:
    """The compiled kernels of a text."""

    def __init__(self, driver: Driver, source: str) -> None:
        self.driver = driver
        (cubin,) = load_cuda_kernels([source], "sm_90")
        self.module = driver.made("cuModuleLoadData", cubin)

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int] | int,
        block: tuple[int, int, int] | int,
        *arguments: Any,
        shared: int = 0,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Launch a kernel; arguments are ctypes values."""
        function = self.driver.made("cuModuleGetFunction", self.module, name.encode())
        if shared > 48 * 1024:
            self.driver.cuFuncSetAttribute(function, 8, shared)
        sizes = [*((grid, 1, 1) if isinstance(grid, int) else grid)]
        sizes += (block, 1, 1) if isinstance(block, int) else block
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in arguments)
        )
        self.driver.cuLaunchKernel(function, *sizes, shared, stream, pointers, None)
