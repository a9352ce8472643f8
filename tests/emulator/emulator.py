"""CUDA without a device: a driver and an NVRTC that run kernels on the host, for tests.

See ``README.md`` in this folder for what is emulated.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import pytest
from filelock import FileLock

_SOURCES = Path(__file__).parent
_DRIVER = (
    "fake_cuda.cpp",
    "fake_hip.cpp",
    "fake_memory.cpp",
    "fake_ipc.cpp",
    "fake_streams.cpp",
    "fibers.cpp",
)
_NVRTC = ("fake_nvrtc.cpp", "translate.cpp")
_FLAGS = ("-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")
# HIP's names call CUDA's in the same library, also where a test has renamed one in the file.
_FLAGS += ("-Wl,-Bsymbolic",)
# faults of kernels end with a long jump, which fortified headers refuse
_FLAGS += ("-U_FORTIFY_SOURCE",)
# AMD's libraries; the folder is found as $ROCM_PATH/lib
_LINKS = {"libamdhip64.so.6": "libcuda.so.1", "libhiprtc.so": "libnvrtc.so", "lib": "."}


def _root() -> Path:
    for variable in ("MDCG_TEST_CACHE", "MDCG_CACHE_DIR"):
        if named := os.environ.get(variable):
            return Path(named)
    return Path(tempfile.gettempdir()) / f"mdcg-tests-{os.getuid()}"


def built(
    name: str, settings: Iterable[str], sources: Iterable[Path], build: Callable[[Path], None]
) -> Path:
    """Return the folder that ``build`` fills, once for its settings and the content of sources.

    It stays in the cache of kernels for later runs.
    """
    digest = hashlib.sha256(" ".join(settings).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = _root() / f"{name}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                made = Path(temporary) / "made"
                made.mkdir()
                build(made)
                made.replace(folder)
    return folder


@lru_cache(maxsize=1)
def emulator_libraries() -> Path:
    """Return the folder of libcuda.so.1 and libnvrtc.so, built if a source has changed."""
    files = sorted(p for p in _SOURCES.iterdir() if p.suffix in (".cpp", ".hpp"))
    return built("emulator", (*_FLAGS, *_LINKS), files, _build)


def _build(folder: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the emulator of CUDA needs g++")
    builds = []
    for name, sources in (("libcuda.so.1", _DRIVER), ("libnvrtc.so", _NVRTC)):
        paths = [str(_SOURCES / source) for source in sources]
        command = [compiler, *_FLAGS, *paths, "-o", str(folder / name), "-ldl"]
        builds.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for build in builds:
        _, messages = build.communicate()
        assert build.returncode == 0, messages
    for name, target in _LINKS.items():
        (folder / name).symlink_to(target)
    for header in _SOURCES.glob("*.hpp"):  # for the compilation of kernels
        shutil.copy(header, folder)
    assert ctypes.CDLL(str(folder / "libnvrtc.so")).emulated_nvrtc_precompile() == 0


def emulator_environment(**changes: str) -> dict[str, str]:
    """Return the variables of a process in which CUDA is emulated.

    Parameters
    ----------
    **changes : str
        Further variables, such as ``EMULATED_CUDA_MEMORY``.
    """
    libraries = emulator_libraries()
    paths = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MDCG_TEST_CACHE": str(_root()),
        "PYTHONPATH": os.pathsep.join([str(_SOURCES), *sys.path]),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        "MDCG_NVRTC_LIB": str(libraries / "libnvrtc.so"),
        "ROCM_PATH": str(libraries),
        "MDCG_HIPRTC_LIB": str(libraries / "libhiprtc.so"),
        # a separate cache, because real devices cannot run these kernels
        "MDCG_CACHE_DIR": str(libraries / "kernels"),
        **changes,
    }


def run_emulated(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in :func:`emulator_environment`."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=emulator_environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        os.execve(sys.executable, [sys.executable, *sys.argv[1:]], emulator_environment())
    values = emulator_environment()
    for variable in ("LD_LIBRARY_PATH", "MDCG_NVRTC_LIB", "MDCG_CACHE_DIR"):
        print(f"export {variable}={values[variable]}")
