"""Compile, cache, load and launch generated text; knows nothing of irreps."""

from .cache import KernelCache, cache_dir, cache_size, clear_cache
from .compiler import CompileStatistics, find_compiler, load_host_kernel, statistics
from .nvrtc import find_nvrtc, load_cuda_kernel

__all__ = [
    "CompileStatistics",
    "KernelCache",
    "cache_dir",
    "cache_size",
    "clear_cache",
    "find_compiler",
    "find_nvrtc",
    "load_cuda_kernel",
    "load_host_kernel",
    "statistics",
]
