"""Environment variables of mdcg, read when they are needed and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "VARIABLES",
    "Variable",
    "cache_root",
    "compiler",
    "cuda_home",
    "debug",
    "jit_disabled",
    "nvrtc_library",
]


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
        "Folder of compiled kernels.",
    ),
    Variable(
        "MDCG_CXX",
        "$CXX, then c++, g++, clang++",
        "Host C++ compiler for generated kernels.",
    ),
    Variable(
        "MDCG_NVRTC_LIB",
        "pip packages, then $CUDA_HOME, then the loader's path",
        "File of the NVRTC library that compiles CUDA kernels.",
    ),
    Variable(
        "MDCG_LIBRARY",
        "that of the mdcg that compiled the plugin, then beside the plugin",
        "File of libmdcg.so that pair_style mdcg opens.",
    ),
    Variable(
        "MDCG_DISABLE_JIT",
        "0",
        "1: a kernel that is not in the cache is an error instead of being compiled.",
    ),
    Variable(
        "MDCG_DEBUG",
        "0",
        "1: log plan and source path of every kernel at INFO.",
    ),
)


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def cache_root() -> Path:
    """Return the folder below which kernels are cached (it need not exist)."""
    explicit = os.environ.get("MDCG_CACHE_DIR")
    if explicit:
        return Path(os.path.expanduser(explicit))
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "mdcg"
    # expanduser leaves "~" in place where no home is known; such a relative folder must not be made
    home = os.path.expanduser("~")
    base = Path(home) / ".cache" if home != "~" else Path("/nonexistent")
    return base / "mdcg"


def compiler() -> str | None:
    """Return the compiler named by ``MDCG_CXX`` or ``CXX``, or None."""
    named = os.environ.get("MDCG_CXX") or os.environ.get("CXX") or ""
    return named.strip() or None


def nvrtc_library() -> str | None:
    """Return the NVRTC library named by ``MDCG_NVRTC_LIB``, or None."""
    return os.environ.get("MDCG_NVRTC_LIB") or None


def cuda_home() -> Path | None:
    """Return the CUDA toolkit named by ``CUDA_HOME`` or ``CUDA_PATH``, or None."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named) if named else None


def debug() -> bool:
    """Return whether ``MDCG_DEBUG`` is on."""
    return _flag("MDCG_DEBUG")


def jit_disabled() -> bool:
    """Return whether ``MDCG_DISABLE_JIT`` is on."""
    return _flag("MDCG_DISABLE_JIT")
