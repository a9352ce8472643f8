"""Compile, cache, load and launch generated text; knows nothing of irreps."""

from .cache import cache_dir, cache_size, clear_cache
from .compiler import (
    CompileStatistics,
    build_host_kernels,
    find_compiler,
    load_host_kernel,
    statistics,
)
from .cuda_build import (
    discard_cuda_kernel,
    load_cuda_kernels,
    start_cuda_kernel,
)
from .nvrtc import find_nvrtc

__all__ = [
    "CompileStatistics",
    "build_host_kernels",
    "cache_dir",
    "cache_size",
    "clear_cache",
    "discard_cuda_kernel",
    "find_compiler",
    "find_nvrtc",
    "load_cuda_kernels",
    "load_host_kernel",
    "start_cuda_kernel",
    "statistics",
]
