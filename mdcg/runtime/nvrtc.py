"""NVRTC: finding it, compiling with it, keeping the machine code in the kernel cache."""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .. import _core, env
from ..errors import KernelCompileError
from .cache import KernelCache
from .compiler import statistics

__all__ = ["compile_cuda", "find_nvrtc", "load_cuda_kernel"]

_log = logging.getLogger("mdcg")

# Default arithmetic: no fast-math, multiplications and additions contracted as C compilers do.
FLAGS = ("--std=c++17", "-default-device", "--disable-warnings")

_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")

_INSTALL = "install it with 'pip install nvidia-cuda-nvrtc', or set MDCG_NVRTC_LIB to its file"

_lock = threading.Lock()
_cubins: dict[tuple[str, str], bytes] = {}


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
def find_nvrtc() -> tuple[_core.Nvrtc, str]:
    """Return the NVRTC library and where it was found.

    Raises
    ------
    KernelCompileError
        There is none, or the one named by ``MDCG_NVRTC_LIB`` cannot be loaded.
    """
    reason = ""
    for path in _candidates():
        try:
            return _core.Nvrtc(path), path
        except RuntimeError as error:
            reason = reason or str(error)
    if env.nvrtc_library():
        raise KernelCompileError(
            f"the NVRTC library named by MDCG_NVRTC_LIB cannot be used ({reason}): "
            "correct the variable or unset it"
        )
    raise KernelCompileError(
        "NVRTC, which compiles CUDA kernels, was not found (searched $MDCG_NVRTC_LIB, the pip "
        f"packages nvidia-cuda-nvrtc and torch, $CUDA_HOME, the loader's path): {_INSTALL}"
    )


def compile_cuda(source: str, target: str) -> tuple[bytes, str]:
    """Compile CUDA text to machine code.

    Parameters
    ----------
    source : str
    target : str
        Architecture, such as ``"sm_90"``.

    Returns
    -------
    cubin : bytes
    log : str
        NVRTC's own words.

    Raises
    ------
    KernelCompileError
        NVRTC is missing, too old for the architecture, or rejected the text.
    """
    nvrtc, path = find_nvrtc()
    version = ".".join(map(str, nvrtc.version))
    if int(target.removeprefix("sm_")) not in nvrtc.architectures:
        known = ", ".join(f"sm_{number}" for number in nvrtc.architectures)
        raise KernelCompileError(
            f"NVRTC {version} ({path}) does not compile for {target}, only for {known}: install "
            "another version, for example with 'pip install --upgrade nvidia-cuda-nvrtc'"
        )
    accepted, cubin, log = nvrtc.compile(
        source, "kernel.cu", [f"--gpu-architecture={target}", *FLAGS]
    )
    if not accepted:
        first = next((line for line in log.splitlines() if "error" in line), log)
        raise KernelCompileError(
            f"NVRTC {version} rejected a generated kernel ({first.strip()}): this is a fault of "
            "mdcg, please report it with the version"
        )
    return cubin, log


def _build(source: str, target: str, folder: Path) -> None:
    (folder / "kernel.cu").write_text(source)
    start = time.perf_counter()
    cubin, _ = compile_cuda(source, target)
    (folder / "kernel.cubin").write_bytes(cubin)
    seconds = time.perf_counter() - start
    with _lock:
        statistics().compiled += 1
        statistics().compile_seconds += seconds
    name = re.sub(r"^// ", "", source.partition("\n")[0])
    _log.info("compiled kernel for %s in %.1f s (%s)", target, seconds, name)


def load_cuda_kernel(source: str, target: str) -> bytes:
    """Return the machine code of a kernel, from memory, from the cache, or compiled now.

    Parameters
    ----------
    source : str
        CUDA text.
    target : str
        Architecture, such as ``"sm_90"``; a sub-folder of the cache.

    Raises
    ------
    KernelCompileError
        The kernel is not cached and cannot be compiled.
    """
    cache = KernelCache(target, "kernel.cubin")
    key = cache.key(source, *FLAGS)
    with _lock:
        if (target, key) in _cubins:
            return _cubins[target, key]
    if cache.find(key) is None and env.jit_disabled():
        raise KernelCompileError(
            f"kernel {key} is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: "
            "unset the variable or fill the cache on another machine"
        )
    folder = cache.make(key, lambda path: _build(source, target, path))
    start = time.perf_counter()
    cubin = (folder / "kernel.cubin").read_bytes()
    with _lock:
        statistics().loaded += 1
        statistics().load_seconds += time.perf_counter() - start
        _cubins[target, key] = cubin
    if env.debug():
        _log.info("kernel %s from %s", key, folder / "kernel.cu")
    return cubin
