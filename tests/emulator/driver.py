"""The driver's functions by their names, for programs on a device that is emulated or real."""

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
        """Return the address of a copy."""
        array = np.ascontiguousarray(array)
        memory = self.allocate(max(1, array.nbytes))
        self.write(memory, array)
        return memory

    def write(self, memory: ctypes.c_void_p, array: Array) -> None:
        size = ctypes.c_size_t(array.nbytes)
        self.cuMemcpyHtoDAsync_v2(memory, array.ctypes.data_as(ctypes.c_void_p), size, None)
        self.cuStreamSynchronize(None)

    def fetch(self, memory: ctypes.c_void_p, like: Array) -> Array:
        """Copy memory of the device to an array like another one."""
        result = np.empty_like(like)
        size = ctypes.c_size_t(result.nbytes)
        self.cuMemcpyDtoHAsync_v2(result.ctypes.data_as(ctypes.c_void_p), memory, size, None)
        self.cuStreamSynchronize(None)
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
        blocks: int,
        threads: int,
        *arguments: Any,
        shared: int = 0,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Launch a kernel; arguments are ctypes values."""
        function = self.driver.made("cuModuleGetFunction", self.module, name.encode())
        if shared > 48 * 1024:
            self.driver.cuFuncSetAttribute(function, 8, shared)
        sizes = blocks, 1, 1, threads, 1, 1
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in arguments)
        )
        self.driver.cuLaunchKernel(function, *sizes, shared, stream, pointers, None)
