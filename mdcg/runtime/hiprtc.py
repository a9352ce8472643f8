"""hiprtc, AMD's run-time compiler: finding it, compiling with it."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .nvrtc import RuntimeCompiler

FLAGS = ("-std=c++17", "-w")

#: First line of programs that run with a wavefront for each warp, see csrc/kernels/hip.cuh.
WAVEFRONT_PER_WARP = "#define MDCG_WAVEFRONT_PER_WARP 1\n"

_INSTALL = "install ROCm's hiprtc, or set MDCG_HIPRTC_LIB to its file"


class Hiprtc(RuntimeCompiler):
    """AMD's run-time compiler."""

    _PREFIX, _CODE = "hiprtc", "Code"

    def _architectures(self) -> list[int]:
        return _known_architectures()  # 0x90a for "gfx90a"


def _known_architectures() -> list[int]:
    """Return those of comgr, which hiprtc calls: in ROCm 5.2 others end the process.

    The list is empty where comgr is not found.
    """
    for suffix in (".so.3", ".so.2", ".so"):
        try:
            library = ctypes.CDLL(f"libamd_comgr{suffix}")
        except OSError:
            continue
        count, name = ctypes.c_size_t(), ctypes.c_char_p()
        if library.amd_comgr_get_isa_count(ctypes.byref(count)):
            break
        found = []
        for number in range(count.value):
            library.amd_comgr_get_isa_name(ctypes.c_size_t(number), ctypes.byref(name))
            # others are names such as gfx9-generic and gfx1250-strict
            if match := re.fullmatch(rb".*--gfx([0-9a-f]+)(:.*)?", name.value or b""):
                found.append(int(match[1], 16))
        return found
    return []


def _candidates() -> list[str]:
    """Return files and sonames to try, best first."""
    named = env.hiprtc_library()
    if named:
        return [named]
    # the same order as of libamdhip64 in csrc/core/cuda_device.cpp
    folders = [folder for folder in (env.rocm_home(), Path("/opt/rocm")) if folder is not None]
    names = [f"libhiprtc.so{suffix}" for suffix in (".7", ".6", ".5", "")]
    return [
        *(str(folder / "lib" / name) for folder in folders for name in names),
        *names,
        "libamdhip64.so.5",  # of Debian, which has the functions, too
    ]


@lru_cache(maxsize=1)
def find_hiprtc() -> tuple[Hiprtc, str]:
    """Return the hiprtc library and where it was found."""
    reason = ""
    for path in _candidates():
        try:
            return Hiprtc(path), path
        except (OSError, AttributeError, RuntimeError) as error:
            reason = reason or str(error)
    if env.hiprtc_library():
        raise KernelCompileError(
            f"the hiprtc library named by MDCG_HIPRTC_LIB cannot be used ({reason}): "
            "correct the variable or unset it"
        )
    raise KernelCompileError(
        "hiprtc, which compiles kernels for AMD's GPUs, was not found (searched $MDCG_HIPRTC_LIB, "
        f"$ROCM_PATH, /opt/rocm, the loader's path): {_INSTALL}"
    )


def hip_text(source: str) -> str:
    """Return the text that hiprtc compiles: csrc/kernels/hip.cuh stands before the program."""
    first = WAVEFRONT_PER_WARP if source.startswith(WAVEFRONT_PER_WARP) else ""
    return first + _core.kernel_source("hip.cuh") + source.removeprefix(first)


def hiprtc_for(target: str) -> tuple[Hiprtc, str]:
    """Return hiprtc and its name; it must compile for the target, such as ``"gfx90a"``."""
    hiprtc, path = find_hiprtc()
    name = f"hiprtc {'.'.join(map(str, hiprtc.version))} ({path})"
    known = hiprtc.architectures
    if known and int(target.removeprefix("gfx"), 16) not in known:
        raise KernelCompileError(
            f"{name} does not compile for {target}, only for "
            f"{', '.join(f'gfx{number:x}' for number in known)}: install a later ROCm, or set "
            "MDCG_HIPRTC_LIB to its file"
        )
    return hiprtc, name


def compile_hip(source: str, target: str) -> bytes:
    """Compile the text of a CUDA program for a target such as ``"gfx90a"``; return the code."""
    hiprtc, name = hiprtc_for(target)
    options = [f"--offload-arch={target}", *FLAGS]
    accepted, code, log = hiprtc.compile(hip_text(source), "kernel.hip", options)
    if not accepted:
        first = next((line for line in log.splitlines() if "error" in line), log)
        raise KernelCompileError(
            f"{name} rejected a generated kernel for {target} ({first.strip()}): this "
            "is a fault of mdcg, please report it with the version"
        )
    return code
