"""hiprtc, AMD's run-time compiler: finding it, compiling with it."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .nvrtc import RuntimeCompiler

FLAGS = ("-std=c++17", "-w")

#: First line of programs that run with a wavefront for each warp, see csrc/kernels/hip.cuh.
WAVEFRONT_PER_WARP = "#define MDCG_WAVEFRONT_PER_WARP 1\n"

_INSTALL = "install ROCm's hiprtc, or set MDCG_HIPRTC_LIB to its file"


# Threads take turns: in ROCm 5.2 two that start the library at once end the process, and a program
# that is compiled beside another one may lose its options. A process that is forked during a
# compilation may find the library locked.
_exclusive = threading.Lock()


def _reset() -> None:
    global _exclusive
    _exclusive = threading.Lock()


os.register_at_fork(after_in_child=_reset)


class Hiprtc(RuntimeCompiler):
    """AMD's run-time compiler."""

    _PREFIX, _CODE = "hiprtc", "Code"

    def __init__(self, path: str) -> None:
        self._folder = str(Path(path).parent) if "/" in path else ""
        with _exclusive:
            super().__init__(path)

    def _architectures(self) -> list[int]:
        return _known_architectures(self._folder)  # 0x90a for "gfx90a"

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bool, bytes, str]:
        """Return success, machine code and log."""
        with _exclusive:
            return super().compile(source, name, options)


def _known_architectures(folder: str = "") -> list[int]:
    """Return those of comgr, which hiprtc calls: in ROCm 5.2 others end the process.

    Later versions of hiprtc open comgr at the first program only, from their own folder. The list
    is empty where comgr is not found.
    """
    names = [f"libamd_comgr{suffix}" for suffix in (".so.3", ".so.2", ".so")]
    for path in (*(f"{folder}/{name}" for name in names if folder), *names):
        try:
            library = ctypes.CDLL(path)
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
