"""Error messages when the driver, NVRTC or memory fails; fake libraries produce the failures."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mdcg.errors import KernelCompileError
from mdcg.runtime.compiler import find_compiler
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..processes import printed_by

pytestmark = pytest.mark.compiler(whole=True)

# A driver with one device of compute capability 9.0. $FAKE names the function that fails and its
# status; load counts how often code was loaded.
DRIVER = r"""
#include <cstdlib>
#include <cstring>
#include <string>
static int status(const char* name) {
    const char* fails = std::getenv("FAKE");
    const std::size_t n = std::strlen(name);
    if (fails == nullptr || std::strncmp(fails, name, n) != 0 || fails[n] != '=') return 0;
    return std::atoi(fails + n + 1);
}
static int context, module, function;
extern "C" {
int cuInit(unsigned) { return status("cuInit"); }
int cuGetErrorString(int code, const char** text) {
    static std::string kept;
    kept = "words for " + std::to_string(code);
    *text = kept.c_str();
    return 0;
}
int cuGetErrorName(int, const char** text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuDriverGetVersion(int* version) {
    *version = 12080;
    return status("cuDriverGetVersion");
}
int cuDeviceGet(int* handle, int device) { *handle = 0; return device == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int* value, int which, int) { *value = which == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int) { *c = &context; return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** m, const void*) { *m = &module; return status("cuModuleLoadData"); }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** f, void*, const char*) {
    *f = &function;
    return status("cuModuleGetFunction");
}
int cuFuncSetAttribute(void*, int, int) { return status("cuFuncSetAttribute"); }
int cuFuncGetAttribute(int* v, int, void*) { *v = 0; return 0; }
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) { return status("cuLaunchKernel"); }
}
"""

# An NVRTC that knows sm_70 to sm_80 and cannot compile.
NVRTC = r"""
#include <cstring>
static const char kLog[] = "nvrtc: error: failed to open libnvrtc-builtins.so.12.0.\n";
extern "C" {
int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* n) { *n = 3; return 0; }
int nvrtcGetSupportedArchs(int* a) { a[0] = 70; a[1] = 75; a[2] = 80; return 0; }
const char* nvrtcGetErrorString(int) { return "words"; }
int nvrtcCreateProgram(void** p, const char*, const char*, int, const char* const*,
                       const char* const*) { *p = p; return 0; }
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 7; }
int nvrtcGetProgramLogSize(void*, std::size_t* n) { *n = sizeof kLog; return 0; }
int nvrtcGetProgramLog(void*, char* log) { std::memcpy(log, kLog, sizeof kLog); return 0; }
}
"""

# Counts how often a function that a driver lacks is looked up.
LOOKUPS = r"""
#include <dlfcn.h>
#include <cstring>
#include <initializer_list>
static int count;
extern "C" int count_of_lookups() { return count; }
extern "C" void* dlsym(void* library, const char* name) noexcept {
    using Find = void* (*)(void*, const char*);
    static Find find = nullptr;
    for (const char* version : {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"})
        if (find == nullptr) find = reinterpret_cast<Find>(dlvsym(RTLD_NEXT, "dlsym", version));
    if (std::strcmp(name, "cuLaunchKernelEx") == 0) ++count;
    return find(library, name);
}
"""

PROLOGUE = """
import ctypes, json, os
from mdcg import _core
from mdcg.errors import MdcgError
from mdcg.ops import kernels
from mdcg.runtime import cuda_build
from mdcg.runtime.nvrtc import find_nvrtc
compiled = []
def compile_cuda(source, target):
    compiled.append(source)
    return b"code", ""
cuda_build.compile_cuda = compile_cuda
kernels.current_stream = lambda index: 0
def attempt(action):
    try:
        action()
    except MdcgError as error:
        return [type(error).__name__, str(error)]
    return None
def load(target="sm_90"):
    program = kernels.CudaProgram(0, target, ["// " + target])
    program.launch(program.function(0, "f", 65536), (1, 32, 65536), [0])
def launch_early(times):
    program = kernels.CudaProgram(0, "sm_90", ["// early"])
    function = program.function(0, "f", 0)
    for _ in range(times):
        program.launch(function, (1, 32, 0), [0], early=True)
    return ctypes.CDLL(None).count_of_lookups()
def version():
    try:
        return _core.cuda_driver_version()
    except _core.CudaError as error:
        return str(error)
def with_fault(fault, action):
    os.environ["FAKE"] = fault
    try:
        return version() if action is version else attempt(action)
    finally:
        del os.environ["FAKE"]
"""


def library(source: str, path: Path) -> Path:
    text = path.with_suffix(".cpp")
    text.write_text(source)
    command = [*find_compiler(), "-std=c++17", "-shared", "-fPIC", "-o", str(path), str(text)]
    subprocess.run(command, check=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    library(DRIVER, folder / "libcuda.so.1")
    return folder


def run(script: str, folder: Path, tmp_path: Path, **variables: str) -> object:
    """Run a script in a process whose CUDA driver is the one in the folder."""
    places = {"LD_LIBRARY_PATH": str(folder), "MDCG_CACHE_DIR": str(tmp_path)}
    code = f"{PROLOGUE}\nprint(json.dumps({script}))"
    return json.loads(printed_by(code, **{**places, **variables}))


def one_sentence(found: object, kind: str, *parts: str) -> None:
    assert isinstance(found, list)
    name, message = found
    assert name == kind
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_a_function_that_is_missing_is_looked_up_once(
    driver: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("lookups are counted by means of glibc")
    preload = library(LOOKUPS, tmp_path_factory.mktemp("lookups") / "lookups.so")
    assert run("launch_early(3)", driver, tmp_path, LD_PRELOAD=str(preload)) == 1


def test_a_version_that_the_driver_does_not_tell(driver: Path, tmp_path: Path) -> None:
    script = "[with_fault('cuDriverGetVersion=999', version), version()]"
    error = "cuDriverGetVersion failed: words for 999, CUDA_ERROR_FAKE"
    assert run(script, driver, tmp_path) == [error, 12080]


def test_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("")  # hides an installed driver
    found = run("attempt(lambda: kernels.cuda_device(0))", tmp_path, tmp_path / "cache")
    one_sentence(found, "DeviceError", "CUDA device 0", "libcuda.so.1", "install the NVIDIA driver")


def test_a_driver_that_does_not_start(driver: Path, tmp_path: Path) -> None:
    action = "attempt(lambda: kernels.cuda_device(0))"
    one_sentence(
        run(action, driver, tmp_path, FAKE="cuInit=100"),
        "DeviceError",
        "cuInit failed: words for 100, CUDA_ERROR_FAKE",
        "nvidia-smi lists",
    )
    one_sentence(
        run(action, driver, tmp_path, FAKE="cuInit=803"), "DeviceError", "update the NVIDIA driver"
    )


def test_devices_code_and_memory(driver: Path, tmp_path: Path) -> None:
    faults = {
        "no fault": "attempt(load)",
        "no such device": "attempt(lambda: kernels.cuda_device(3))",
        "old driver": "with_fault('cuModuleLoadData=222', load)",
        "tries": "compiled.count('// sm_90')",
        "newer code": "with_fault('cuModuleLoadData=209', load)",
        "other card": "with_fault('cuModuleLoadData=209', lambda: load('sm_80'))",
        "other card's tries": "compiled.count('// sm_80')",
        "no memory for code": "with_fault('cuModuleLoadData=2', load)",
        "no memory for a launch": "with_fault('cuLaunchKernel=2', load)",
        "too large a block": "with_fault('cuLaunchKernel=701', load)",
        "too much shared memory": "with_fault('cuFuncSetAttribute=1', load)",
        "earlier fault": "with_fault('cuLaunchKernel=700', load)",
        "no such kernel": "with_fault('cuModuleGetFunction=500', load)",
        "tries until then": "compiled.count('// sm_90')",
        "afterwards": "attempt(load)",
    }
    script = "{" + ", ".join(f"{name!r}: {action}" for name, action in faults.items()) + "}"
    found = run(script, driver, tmp_path)
    assert isinstance(found, dict)
    assert found["no fault"] is None
    assert found["afterwards"] is None
    error = "DeviceError"
    one_sentence(found["no such device"], error, "CUDA device 3 cannot be used", "nvidia-smi lists")
    for name in ("old driver", "newer code"):
        one_sentence(
            found[name],
            error,
            "a kernel for sm_90 cannot be loaded on CUDA device 0",
            "for CUDA 12.8, is older than the NVRTC",
            "update the driver",
            "nvidia-cuda-nvrtc-cu12",
        )
    assert found["tries"] == 2  # refused code is removed from the cache and compiled again
    one_sentence(found["other card"], error, "sm_80", "give a plan for this device, or none")
    assert found["other card's tries"] == 1
    one_sentence(
        found["no memory for code"], error, "no memory left when a kernel was loaded", "smaller"
    )
    one_sentence(found["no memory for a launch"], error, "no memory left when a kernel was started")
    one_sentence(found["too large a block"], error, "give a plan with fewer warps")
    one_sentence(found["too much shared memory"], error, "give a plan for this device, or none")
    one_sentence(found["earlier fault"], error, "CUDA_LAUNCH_BLOCKING=1")
    one_sentence(found["no such kernel"], error, "a kernel for sm_90 cannot be loaded")
    assert found["tries until then"] == 4  # code of another program is compiled again, too


def test_cached_code_is_kept_where_it_cannot_be_made_again(driver: Path, tmp_path: Path) -> None:
    script = """[
        attempt(load),
        cuda_build._reset(),
        os.environ.update(MDCG_DISABLE_JIT="1"),
        with_fault("cuModuleLoadData=222", load),
        attempt(load),
        len(compiled),
    ]"""
    first, *_, refused, again, compiled = run(script, driver, tmp_path)  # type: ignore[misc]
    assert first is None
    one_sentence(refused, "DeviceError", "update the driver")
    assert again is None
    assert compiled == 1


# -- NVRTC ----------------------------------------------------------------------------------------


@pytest.fixture
def another_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the file in which NVRTC is searched."""

    def name(path: str) -> None:
        monkeypatch.setenv("MDCG_NVRTC_LIB", path)
        find_nvrtc.cache_clear()

    yield name
    find_nvrtc.cache_clear()


@pytest.fixture(scope="module")
def old_nvrtc(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library(NVRTC, tmp_path_factory.mktemp("nvrtc") / "libnvrtc.so.12"))


def test_an_nvrtc_that_is_too_old_for_the_card(
    another_nvrtc: Callable[[str], None], old_nvrtc: str
) -> None:
    another_nvrtc(old_nvrtc)
    with pytest.raises(
        KernelCompileError,
        match=r"^NVRTC 12\.0 \(.*\) is too old for this card: it does not compile for sm_90, only "
        r"for sm_70, sm_75, sm_80; install .*--upgrade nvidia-cuda-nvrtc'",
    ):
        compile_cuda("", "sm_90")


def test_an_nvrtc_that_is_too_new_for_the_card(
    another_nvrtc: Callable[[str], None], old_nvrtc: str
) -> None:
    another_nvrtc(old_nvrtc)
    with pytest.raises(KernelCompileError, match=r"too new for this card.*nvidia-cuda-nvrtc-cu12'"):
        compile_cuda("", "sm_60")


def test_an_nvrtc_without_its_second_file(
    another_nvrtc: Callable[[str], None], old_nvrtc: str
) -> None:
    another_nvrtc(old_nvrtc)
    with pytest.raises(KernelCompileError, match=r"lacks its libnvrtc-builtins.*pip install"):
        compile_cuda("", "sm_80")


def test_the_nvrtc_named_is_missing(another_nvrtc: Callable[[str], None]) -> None:
    another_nvrtc("/nonexistent/libnvrtc.so")
    with pytest.raises(KernelCompileError, match=r"MDCG_NVRTC_LIB cannot be used.*correct"):
        find_nvrtc()


def test_no_nvrtc_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdcg.runtime.nvrtc._candidates", lambda: iter(()))
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(KernelCompileError, match="pip install nvidia-cuda-nvrtc"):
            find_nvrtc()
    finally:
        find_nvrtc.cache_clear()


def test_an_nvrtc_that_suits_the_driver_is_chosen(driver: Path, tmp_path: Path) -> None:
    """Of several NVRTC versions, the one that the driver (CUDA 12.8) supports is chosen."""
    folder = tmp_path / "lib64"
    folder.mkdir()
    library(NVRTC, folder / "libnvrtc.so.12")
    library(NVRTC.replace("*major = 12", "*major = 13"), folder / "libnvrtc.so.13")
    found = run("find_nvrtc()[1]", driver, tmp_path, CUDA_HOME=str(tmp_path))
    assert found == str(folder / "libnvrtc.so.12")
    (folder / "libnvrtc.so.12").unlink()
    newer = run("find_nvrtc()[1]", driver, tmp_path, CUDA_HOME=str(tmp_path))
    assert "libnvrtc.so.13" in str(newer)  # the only one; the driver's error says what to do


def test_a_library_that_is_no_nvrtc(another_nvrtc: Callable[[str], None], driver: Path) -> None:
    another_nvrtc(str(driver / "libcuda.so.1"))
    with pytest.raises(
        KernelCompileError, match=r"MDCG_NVRTC_LIB cannot be used \(.*undefined symbol"
    ):
        find_nvrtc()


def test_text_that_nvrtc_rejects() -> None:
    with pytest.raises(KernelCompileError, match=r"rejected a generated kernel .*report it"):
        compile_cuda("this is no CUDA", "sm_90")
