"""``mdcg env``: facts about the machine for a report of a problem."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import env
from .._version import __version__
from ..errors import KernelCompileError, MissingDependencyError, installed_version

_PACKAGES = (
    *("torch", "numpy", "ase", "e3nn", "mace-torch", "nequip", "sevenn", "nequix"),
    *("cuequivariance-torch", "openequivariance", "matplotlib"),
)
_FOREIGN_VARIABLES = (
    *("CXX", "OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "XDG_CACHE_HOME"),
    *("CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ROCM_PATH"),
)
_TIMEOUT_S = 10.0


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "env",
        help="versions, compiler, CPU, GPUs, kernel cache and environment variables",
        description="Show versions and settings that mdcg finds on this machine.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the report."""
    report = collect()
    print(json.dumps(report, indent=2, ensure_ascii=False) if options.json else show(report))


def collect() -> dict[str, Any]:
    """Return the report as plain dicts, lists, strings and numbers.

    A fact that cannot be determined is reported as unknown, and raises no error.
    """
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
            "model": _try(env.cpu_name),
            "cores usable": _try(env.usable_cores),
            "instruction set used": _try(_instruction_set),
        },
        "compiler": _try(_compiler),
        "gpu": {
            "devices": _try(lambda: _gpus("cuda")),
            "driver": _try(_driver),
            "NVRTC": _try(_nvrtc),
            "AMD devices": _try(lambda: _gpus("hip")),
            "AMD driver": _try(_hip_driver),
            "hiprtc": _try(_hiprtc),
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
        for key, value in content.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            lines.append(f"  {str(key).ljust(width)}  {text}")
    return "\n".join(lines)


def _try(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except MissingDependencyError:  # `_core` below reports how to get it
        return "unknown (the compiled core is missing)"
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _core() -> str:
    try:
        from .. import _core
    except MissingDependencyError as error:
        return f"missing: {error}"
    return str(_core.__file__)


def _instruction_set() -> str:
    from .. import _core

    return str(_core.instruction_set_level())


def _compiler() -> dict[str, str]:
    from ..runtime.compiler import find_compiler

    try:
        command = find_compiler()
    except KernelCompileError as error:
        return {"command": f"none ({error})"}
    command[0] = shutil.which(command[0]) or command[0]
    return {"command": shlex.join(command), "version": _try(lambda: _version_of(command[0]))}


def _version_of(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return done.stdout.splitlines()[0]


def _gpus(kind: str) -> list[str] | str:
    """Return architecture and name of every device that a driver gives to this process."""
    from .. import _core

    found: list[str] = []
    while True:
        try:
            number = _core.parse_device(f"{kind}:{len(found)}")
        except RuntimeError as error:
            return found or f"none ({error})"
        try:
            found.append(f"{_core.device_target(number)} {_core.device_name(number)}")
        except RuntimeError as error:
            found.append(f"{kind}:{len(found)} cannot be used ({error})")


def _driver() -> str:
    from .. import _core

    major, minor = divmod(_core.cuda_available_version() // 10, 100)
    return f"for CUDA {major}.{minor}" if major else "none"


def _hip_driver() -> str:
    from .. import _core

    major, minor = divmod(_core.hip_available_version() // 10, 100)
    return f"for HIP {major}.{minor}" if major else "none"


def _hiprtc() -> str:
    from ..runtime.hiprtc import find_hiprtc

    try:
        library, path = find_hiprtc()
    except KernelCompileError as error:
        return f"none ({error})"
    return f"{'.'.join(map(str, library.version))}, {path}"


def _nvrtc() -> str:
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

    count, size = cache_size()
    reason = why_not_kept()  # makes the folder, like a compilation
    return {
        "folder": str(cache_dir()),
        "writable": not reason,
        **({"warning": reason} if reason else {}),
        "compiled files": count,
        "size": f"{size / 1e6:.1f} MB",
    }
