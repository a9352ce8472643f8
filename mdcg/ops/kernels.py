"""Kernels of one problem under one plan, loaded when first used, for CPUs and CUDA devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import torch

from .. import _core
from ..codegen import HostKernel, KernelSpec
from ..plan import LEVELS, HostDevice
from ..runtime import load_host_kernel

__all__ = ["HostProgram", "Kernels", "Names", "Tensors", "host_device", "kernel_spec"]

Tensors = dict[str, torch.Tensor]
Names = tuple[str, ...]
Spec = TypeVar("Spec")
Loaded = TypeVar("Loaded")

#: Making and checking a description takes microseconds at every call.
kernel_spec = lru_cache(maxsize=256)(KernelSpec)


class Kernels(Generic[Spec, Loaded]):
    """Loaded kernels of one problem under one plan, by their description.

    Subclasses have a method ``run`` for the passes. It takes the kind of the pass, as the
    description has it; the operands by name, with ``g`` except for the value; the cotangents that a
    double backward has, by the name of their operand; and the names of the gradients that are
    wanted. It returns results by name: "out", or the gradients.
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
    """A CPU kernel in memory; the first of the `names` of functions is the kernel itself."""

    def __init__(self, kernel: HostKernel, level: str, names: Sequence[str]) -> None:
        self.kernel = kernel
        march = LEVELS[level][0]
        self._library = load_host_kernel(
            kernel.source, target=level, flags=(march,) if march else (), symbols=tuple(names)
        )
        # addresses, valid as long as this object
        self.functions = {name: self._library.symbol(name) for name in names}
        self._run = self.functions[names[0]]

    def run(self, values: dict[str, int], tasks: int, round_ptr: int = 0) -> None:
        """Run the kernel on all threads; `values` has at least its arguments.

        With the address of rounds of tasks, `tasks` of them run one after the other.
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
