"""Environment variables of mdcg, which are read only here, when needed; the processor."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variable:
    """One environment variable: name, default shown to users, meaning."""

    name: str
    default: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "MDCG_CACHE_DIR",
        "$XDG_CACHE_HOME/mdcg or ~/.cache/mdcg",
        "Folder of compiled kernels and converted models.",
    ),
    Variable(
        "MDCG_CXX", "$CXX, then c++, g++, clang++", "Host C++ compiler for generated kernels."
    ),
    Variable(
        "MDCG_COMPILE_TIMEOUT",
        "600",
        "Time limit in seconds for one run of the host C++ compiler, and for waiting for another "
        "process that makes the same kernels.",
    ),
    Variable(
        "MDCG_NVRTC_LIB",
        "pip packages, then $CUDA_HOME, then the loader's path",
        "File of the NVRTC library that compiles CUDA kernels.",
    ),
    Variable(
        "MDCG_HIPRTC_LIB",
        "$ROCM_PATH, then /opt/rocm, then the loader's path",
        "File of the hiprtc library that compiles kernels for AMD's GPUs.",
    ),
    Variable(
        "MDCG_PYTHON",
        "the one of this process, then that of the environment with libmdcg.so",
        "Python that the engine starts to make kernels which are missing.",
    ),
    Variable(
        "MDCG_LIBRARY",
        "that of the mdcg that compiled the plugin, then beside the plugin",
        "File of libmdcg.so that pair_style mdcg opens.",
    ),
    Variable(
        "MDCG_DISABLE_JIT", "0", "1: never compile; a kernel that is not in the cache is an error."
    ),
    Variable("MDCG_DEBUG", "0", "1: log plan and source path of every kernel at INFO."),
)


def compiler() -> str | None:
    """Return the compiler named by ``MDCG_CXX`` or ``CXX``, or None."""
    named = os.environ.get("MDCG_CXX") or os.environ.get("CXX") or ""
    return named.strip() or None


def threads() -> int | None:
    """Return the number of threads that ``OMP_NUM_THREADS`` asks for, or None."""
    # the variable may be a list, with a number for each level of nested threads
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(named) if named.isascii() and named.isdigit() and int(named) > 0 else None


def nvrtc_library() -> str | None:
    """Return the NVRTC library named by ``MDCG_NVRTC_LIB``, or None."""
    return os.environ.get("MDCG_NVRTC_LIB") or None


def hiprtc_library() -> str | None:
    """Return the hiprtc library named by ``MDCG_HIPRTC_LIB``, or None."""
    return os.environ.get("MDCG_HIPRTC_LIB") or None


def rocm_home() -> Path | None:
    """Return the ROCm installation named by ``ROCM_PATH``, or None."""
    named = os.environ.get("ROCM_PATH")
    return Path(named) if named else None


def cuda_home() -> Path | None:
    """Return the CUDA toolkit named by ``CUDA_HOME`` or ``CUDA_PATH``, or None."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named) if named else None


def debug() -> bool:
    """Return whether ``MDCG_DEBUG`` is on."""
    text = os.environ.get("MDCG_DEBUG", "").strip().lower()
    return text not in ("", "0", "false", "no", "off")


def cpu_name() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
