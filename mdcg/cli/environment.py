"""``python -m mdcg env``: a fact that cannot be determined is reported as such and never raises."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

from .. import env
from .._version import __version__
from ..errors import installed_version

_PACKAGES = (
    *("torch", "numpy", "ase", "e3nn", "mace-torch", "nequip"),
    *("cuequivariance-torch", "openequivariance", "matplotlib"),
)
_CPU_FEATURES = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512vl",
    "avx512_bf16",
    "amx_tile",
)
_FOREIGN_VARIABLES = (
    *("CXX", "OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "XDG_CACHE_HOME"),
    *("CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_"),
)
_TIMEOUT_S = 10.0


def collect() -> dict[str, Any]:
    """Return the report as plain dicts, lists, strings and numbers."""
    return {
        "mdcg": {
            "version": __version__,
            "folder": str(Path(__file__).resolve().parent.parent),
            "compiled core": _try(_core),
        },
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": {
            "system": _try(platform.platform),
            "libc": _try(lambda: " ".join(platform.libc_ver())),
        },
        "packages": {name: installed_version(name) or "not installed" for name in _PACKAGES},
        "cpu": {
            "model": _try(lambda: _cpu_info().get("model name", platform.processor() or "unknown")),
            "cores usable": _try(lambda: len(os.sched_getaffinity(0))),
            "features": _try(_cpu_features),
            "instruction set used": _try(_instruction_set),
        },
        "compiler": _try(_compiler),
        "gpu": {
            "devices": _try(_gpus),
            "kernels run on": _try(_gpu_targets),
            "NVRTC": _try(_nvrtc),
        },
        "kernel cache": _try(_cache),
        "variables": {
            **{
                v.name: os.environ.get(v.name, f"unset (default: {v.default})")
                for v in env.VARIABLES
            },
            **{name: os.environ[name] for name in _FOREIGN_VARIABLES if name in os.environ},
        },
    }


def show(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines: list[str] = []
    for section, content in report.items():
        if not isinstance(content, dict):
            lines.append(f"{section}: {content}")
            continue
        lines.append(f"{section}:")
        width = max(len(str(key)) for key in content)
        lines += [f"  {str(key).ljust(width)}  {_inline(value)}" for key, value in content.items()]
    return "\n".join(lines)


def _inline(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _try(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _core() -> str:
    found = util.find_spec("mdcg._core")
    if found is None or found.origin is None:
        return "missing: install mdcg with pip"
    from .. import _core

    return str(_core.__file__)


def _instruction_set() -> str:
    from .. import _core

    return str(_core.instruction_set_level())


def _cpu_info() -> dict[str, str]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_features() -> list[str]:
    flags = set(_cpu_info().get("flags", "").split())
    return [name for name in _CPU_FEATURES if name in flags]


def _compiler() -> dict[str, str]:
    named = env.compiler()
    candidates = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        path = shutil.which(command[0])
        if path:
            return {
                "command": shlex.join([path, *command[1:]]),
                "version": _try(partial(_ask, path)),
            }
    return {"command": f"none found (searched {', '.join(shlex.join(c) for c in candidates)})"}


def _ask(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return done.stdout.splitlines()[0]


def _gpus() -> list[str] | str:
    """Return name, memory and driver of every NVIDIA device, from nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (nvidia-smi is not on the path)"
    done = subprocess.run(
        [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        return f"none ({(done.stdout + done.stderr).strip()})"
    names = ("", "memory ", "driver ")
    return [
        ", ".join(name + value.strip() for name, value in zip(names, line.split(","), strict=False))
        for line in done.stdout.splitlines()
    ]


def _gpu_targets() -> list[str] | str:
    """Return the architecture of every device that the driver gives to this process."""
    from .. import _core

    found: list[str] = []
    while True:
        try:
            found.append(f"sm_{_core.cuda_compute_capability(len(found))}")
        except RuntimeError as error:
            return found or f"none ({error})"


def _nvrtc() -> str:
    from ..errors import KernelCompileError
    from ..runtime.nvrtc import find_nvrtc

    try:
        library, path = find_nvrtc()
    except KernelCompileError as error:
        return f"none ({error})"
    version = ".".join(map(str, library.version))
    known = library.architectures
    return f"{version}, {path}, for sm_{min(known)} to sm_{max(known)}"


def _cache() -> dict[str, Any]:
    from ..runtime.cache import cache_dir, cache_size, why_not_kept

    kernels, size = cache_size()
    reason = why_not_kept()  # tries what compiling does, which makes the folder
    return {
        "folder": str(cache_dir()),
        "writable": not reason,
        **({"warning": reason} if reason else {}),
        "kernels": kernels,
        "size": f"{size / 1e6:.1f} MB",
    }
