"""NVRTC, NVIDIA's run-time compiler: finding it, compiling with it."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import _core, env
from ..errors import KernelCompileError

# The arithmetic is the default: no fast-math, but contraction to fused multiply-add.
FLAGS = ("--std=c++17", "-default-device", "--disable-warnings")

_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")

_INSTALL = "install it with 'pip install nvidia-cuda-nvrtc', or set MDCG_NVRTC_LIB to its file"


class RuntimeCompiler:
    """NVRTC or hiprtc, whose functions differ in names alone; opened by path, never unloaded."""

    _COMPILATION_ERROR = 6  # in nvrtcResult; the log says why
    _PREFIX: str
    _CODE: str

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._function("GetErrorString").restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self.architectures = self._architectures()  # 90 for "sm_90"

    def _architectures(self) -> list[int]:
        raise NotImplementedError

    def _function(self, name: str) -> Any:
        return getattr(self._library, self._PREFIX + name)

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, self._function(name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status != 0:
            text = self._function("GetErrorString")(status).decode()
            raise RuntimeError(f"{self._PREFIX}{name} failed: {text}")

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        value = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, value)
        return value.raw

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bool, bytes, str]:
        """Return success, machine code and log."""
        program = ctypes.c_void_p()
        self._call(
            "CreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            0,
            None,
            None,
        )
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = int(self._function("CompileProgram")(program, len(options), words))
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status != self._COMPILATION_ERROR and not log:
                self._check("CompileProgram", status)
            return status == 0, self._bytes(program, self._CODE) if status == 0 else b"", log
        finally:
            self._function("DestroyProgram")(ctypes.byref(program))


class Nvrtc(RuntimeCompiler):
    """NVIDIA's run-time compiler."""

    _PREFIX, _CODE = "nvrtc", "CUBIN"

    def _architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", known)
        return list(known)


def _candidates() -> Iterator[str]:
    """Yield files and sonames to try, best first."""
    named = env.nvrtc_library()
    if named:
        yield named
        return
    folders: list[Path] = []
    for package, inside in (("nvidia", ("cu*/lib", "cuda_nvrtc/lib")), ("torch", ("lib",))):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec is not None else []:
            for pattern in inside:
                folders += sorted(Path(root).glob(pattern), reverse=True)
    home = env.cuda_home()
    if home is not None:
        folders += [home / "lib64", home / "lib"]
    for folder in folders:
        files = [p for p in folder.glob("libnvrtc*.so*") if "builtins" not in p.name]
        yield from (str(p) for p in sorted(files, reverse=True))
    yield from _SONAMES


@lru_cache(maxsize=1)
def find_nvrtc() -> tuple[Nvrtc, str]:
    """Return the NVRTC library and where it was found.

    Of several, this is the first that is not of a later CUDA than the driver, which would not load
    its machine code.
    """
    reason = ""
    first = None
    driver = _core.cuda_available_version() // 1000
    for path in _candidates():
        try:
            found = Nvrtc(path), path
        except (OSError, AttributeError, RuntimeError) as error:
            reason = reason or str(error)
            continue
        if not driver or found[0].version[0] <= driver:
            return found
        first = first or found
    if first is not None:
        return first
    if env.nvrtc_library():
        raise KernelCompileError(
            f"the NVRTC library named by MDCG_NVRTC_LIB cannot be used ({reason}): "
            "correct the variable or unset it"
        )
    raise KernelCompileError(
        "NVRTC, which compiles CUDA kernels, was not found (searched $MDCG_NVRTC_LIB, the pip "
        f"packages nvidia-cuda-nvrtc and torch, $CUDA_HOME, the loader's path): {_INSTALL}"
    )


def nvrtc_for(target: str) -> tuple[Nvrtc, str]:
    """Return NVRTC and its name; it must compile for the target, such as ``"sm_90"``."""
    nvrtc, path = find_nvrtc()
    name = f"NVRTC {'.'.join(map(str, nvrtc.version))} ({path})"
    wanted = int(target.removeprefix("sm_"))
    if wanted not in nvrtc.architectures:
        known = ", ".join(f"sm_{number}" for number in nvrtc.architectures)
        age, package = "old", "--upgrade nvidia-cuda-nvrtc"
        if wanted < min(nvrtc.architectures, default=0):
            age, package = "new", "nvidia-cuda-nvrtc-cu12"
        raise KernelCompileError(
            f"{name} is too {age} for this card: it does not compile for "
            f"{target}, only for {known}; install another with 'pip install {package}', or set "
            "MDCG_NVRTC_LIB to its file"
        )
    return nvrtc, name


def compile_cuda(source: str, target: str, *options: str) -> tuple[bytes, str]:
    """Compile CUDA text; return the machine code and what NVRTC printed.

    Further options must change only what NVRTC prints.
    """
    nvrtc, name = nvrtc_for(target)
    # Some instructions of Hopper chips need this name; there are no other chips of generation 9.
    architecture = "sm_90a" if target == "sm_90" else target
    accepted, cubin, log = nvrtc.compile(
        source, "kernel.cu", [f"--gpu-architecture={architecture}", *FLAGS, *options]
    )
    if not accepted:
        if "libnvrtc-builtins" in log:
            raise KernelCompileError(
                f"{name} lacks its libnvrtc-builtins, which must be in the same folder: {_INSTALL}"
            )
        first = next((line for line in log.splitlines() if "error" in line), log)
        raise KernelCompileError(
            f"{name} rejected a generated kernel ({first.strip()}): this is a fault of "
            "mdcg, please report it with the version"
        )
    return cubin, log
