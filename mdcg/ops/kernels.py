"""Loaded kernels of one problem, for CPUs and CUDA devices, and errors of the driver."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

import torch

from .. import _core
from ..codegen import CudaKernel, HostKernel, KernelSpec
from ..errors import DeviceError
from ..plan import LEVELS, CudaDevice, HostDevice
from ..runtime.compiler import load_host_kernel
from ..runtime.cuda_build import discard_cuda_kernel, load_cuda_kernels

Tensors = dict[str, torch.Tensor]
Names = tuple[str, ...]
Spec = TypeVar("Spec")
Loaded = TypeVar("Loaded")

#: Cached, because making and checking a KernelSpec takes microseconds.
kernel_spec = lru_cache(maxsize=256)(KernelSpec)


class Kernels(Generic[Spec, Loaded]):
    """Loaded kernels of one problem under one plan, by their ``Spec``.

    Subclasses have a method ``run`` for the passes. It takes the kind of the pass, as in ``Spec``;
    the operands by name, with ``g`` except in a forward pass; the cotangents of a double backward,
    by the name of their operand; and the names of the wanted gradients. It returns results by name:
    "out", or the gradients.
    """

    def __init__(self) -> None:
        self._loaded: dict[Spec, Loaded] = {}
        self._lock = threading.Lock()

    def _make(self, spec: Spec) -> Loaded:
        """Compile a kernel, or take it from the cache on disk."""
        raise NotImplementedError

    def load(self, spec: Spec) -> Loaded:
        """Return a kernel, compiling it if no cache holds it."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        made = self._make(spec)
        with self._lock:
            return self._loaded.setdefault(spec, made)


@lru_cache(maxsize=1)
def host_device() -> HostDevice:
    """Return the description of this machine's CPU."""
    level = _core.instruction_set_level()
    return HostDevice(level=level, l2_bytes=_core.l2_cache_bytes() or HostDevice.l2_bytes)


class HostProgram:
    """A loaded library of a CPU kernel, which is the first of the functions `names`."""

    def __init__(self, kernel: HostKernel, level: str, names: Sequence[str]) -> None:
        self.kernel = kernel
        march = LEVELS[level][0]
        self._library = load_host_kernel(
            kernel.source, target=level, flags=(march,) if march else (), symbols=tuple(names)
        )
        # addresses, valid while this object exists
        self.functions = {name: self._library.symbol(name) for name in names}
        self._run = self.functions[names[0]]

    def run(self, values: dict[str, int], tasks: int, round_ptr: int = 0) -> None:
        """Run the kernel on all threads; `values` has its arguments, and may have others.

        If `round_ptr`, the address of rounds of tasks, is not 0, `tasks` is the number of rounds.
        They run one after the other.
        """
        arguments = [values[name] for name in self.kernel.arguments]
        threads, scratch = torch.get_num_threads(), self.kernel.scratch_bytes
        if round_ptr:
            _core.launch_rounds(self._run, arguments, round_ptr, tasks, threads, scratch)
        else:
            _core.launch(self._run, arguments, tasks, threads, scratch)

    def call(self, name: str, arguments: list[int], tasks: int) -> None:
        """Run another function on all threads."""
        _core.launch(self.functions[name], arguments, tasks, torch.get_num_threads(), 0)


# CUresult
_INVALID_VALUE = 1
_OUT_OF_MEMORY = 2
_NO_SUCH_DEVICE = (100, 101)
_NO_BINARY = 209
# The driver cannot read the machine code or PTX, or the file is damaged.
_UNREADABLE = (200, 209, 218, 222)
_NOT_FOUND = 500
_OUT_OF_RESOURCES = 701


def _code(error: RuntimeError) -> int | None:
    """Return the driver's error code, or None if the driver is missing."""
    return error.code if isinstance(error, _core.CudaError) else None


def torch_has_cuda() -> bool:
    """Return whether torch finds a CUDA device; its build for ROCm calls AMD's devices so, too."""
    return torch.version.cuda is not None and torch.cuda.is_available()


@lru_cache(maxsize=64)
def cuda_device(index: int) -> CudaDevice:
    """Return the description of a CUDA device; DeviceError says why it cannot be used."""
    if torch.version.hip is not None:
        raise DeviceError(
            f"torch {torch.__version__} is built for ROCm, and patched models have no kernels for "
            "AMD's devices: move the tensors to the CPU, or convert the model to a package"
        )
    try:
        return CudaDevice(_core.cuda_compute_capability(index))
    except RuntimeError as error:
        code = _code(error)
        if code is None:
            action = "install the NVIDIA driver"
        elif code in _NO_SUCH_DEVICE:
            action = "choose a device that nvidia-smi lists and CUDA_VISIBLE_DEVICES includes"
        else:
            action = "run nvidia-smi, and update the NVIDIA driver if it fails"
        raise DeviceError(
            f"CUDA device {index} cannot be used ({error}): {action}, or move the tensors to the "
            "CPU"
        ) from error


def current_stream(index: int) -> int:
    """Return the address of torch's current stream on a device, without making a Stream object."""
    return cast(Any, torch)._C._cuda_getCurrentRawStream(index)


def _load_error(error: RuntimeError, index: int, target: str) -> DeviceError:
    code = _code(error)
    what = f"a kernel for {target} cannot be loaded on CUDA device {index} ({error})"
    other_device = cuda_device(index).target != target
    if code == _OUT_OF_MEMORY:
        return _out_of_memory(error, index, "a kernel was loaded")
    if code in _UNREADABLE and not (code == _NO_BINARY and other_device):
        major, minor = divmod(_core.cuda_driver_version() // 10, 100)
        return DeviceError(
            f"{what}: the NVIDIA driver, for CUDA {major}.{minor}, is older than the NVRTC that "
            "made it; update the driver, or install an NVRTC of the driver's version with "
            f"'pip install nvidia-cuda-nvrtc=={major}.*' (nvidia-cuda-nvrtc-cu12 for CUDA 12)"
        )
    return DeviceError(f"{what}: give a plan for this device, or none")


def _out_of_memory(error: RuntimeError, index: int, when: str) -> DeviceError:
    return DeviceError(
        f"CUDA device {index} had no memory left when {when} ({error}): take a smaller system or "
        "batch, or end other programs that nvidia-smi lists"
    )


def _launch_error(error: RuntimeError, index: int) -> DeviceError:
    code = _code(error)
    if code == _OUT_OF_MEMORY:
        return _out_of_memory(error, index, "a kernel was started")
    if code in (_INVALID_VALUE, _OUT_OF_RESOURCES):
        action = "give a plan with fewer warps, rows or edges per batch, or none"
    else:
        action = "the fault may lie in an earlier kernel; run with CUDA_LAUNCH_BLOCKING=1 to see"
    return DeviceError(f"a kernel cannot be started on CUDA device {index} ({error}): {action}")


class CudaProgram:
    """Kernels of one or more programs, loaded on torch's device `index`.

    Programs that no cache contains are compiled at the same time. KernelCompileError says that one
    cannot be compiled, DeviceError that the driver does not accept the machine code.
    """

    def __init__(self, index: int, target: str, sources: Sequence[str]) -> None:
        self.index = index
        self.target = target
        self._sources = list(sources)
        self._modules = [
            self._module(source, cubin)
            for source, cubin in zip(sources, load_cuda_kernels(sources, target), strict=True)
        ]
        self._replaced: list[_core.CudaModule] = []  # their functions may be in use

    def _module(self, source: str, cubin: bytes) -> _core.CudaModule:
        try:
            return _core.CudaModule(self.index, cubin)
        except RuntimeError as error:
            own_target = cuda_device(self.index).target == self.target
            if _code(error) not in _UNREADABLE or not own_target or _core.jit_disabled():
                raise _load_error(error, self.index, self.target) from error
        # the machine code is damaged, or another NVRTC made it
        return self._make_again(source)

    def _make_again(self, source: str) -> _core.CudaModule:
        discard_cuda_kernel(source, self.target)
        (cubin,) = load_cuda_kernels([source], self.target)
        try:
            return _core.CudaModule(self.index, cubin)
        except RuntimeError as error:
            raise _load_error(error, self.index, self.target) from error

    def function(self, number: int, name: str, shared_bytes: int) -> int:
        """Return the address of a kernel of program ``number``, for :meth:`launch`."""
        for again in (False, True):
            try:
                return self._modules[number].function(name, shared_bytes)
            except RuntimeError as error:
                if again or _code(error) != _NOT_FOUND or _core.jit_disabled():
                    raise _load_error(error, self.index, self.target) from error
            # the cache contained another program under this name
            self._replaced.append(self._modules[number])
            self._modules[number] = self._make_again(self._sources[number])
        raise AssertionError("unreachable")

    def launch(
        self,
        function: int,
        shape: tuple[int, int, int],
        arguments: Sequence[int],
        *,
        early: bool = False,
    ) -> None:
        """Enqueue a kernel of any of the programs; see ``_core.CudaModule.launch``.

        The shape is blocks, threads and bytes of shared memory. An `early` kernel may start before
        the previous kernel has ended, and contains the instruction that waits for it. DeviceError
        says why no kernel was started.
        """
        stream = current_stream(self.index)
        try:
            self._modules[0].launch(function, *shape, stream, arguments, early)
        except RuntimeError as error:
            raise _launch_error(error, self.index) from error


class CudaPass:
    """The loaded kernels of one pass."""

    def __init__(self, index: int, target: str, kernel: CudaKernel) -> None:
        self.kernel = kernel
        # the programs of the kernels, then the program that copies node rows, if there is one
        self.program = CudaProgram(index, target, kernel.sources)
        self._functions = [
            self.program.function(number if kernel.programs else 0, entry.name, entry.shared_bytes)
            for number, entry in enumerate(kernel.entries)
        ]

    def launch(self, rows: int, values: Mapping[str, int], *, overlap: bool = False) -> None:
        """Enqueue all kernels for a number of rows; arguments without a value are null."""
        arguments = [values.get(name, 0) for name in self.kernel.arguments]
        for entry, function in zip(self.kernel.entries, self._functions, strict=True):
            shape = -(-rows // entry.rows), entry.threads, entry.shared_bytes
            self.program.launch(function, shape, arguments, early=entry.early and overlap)
