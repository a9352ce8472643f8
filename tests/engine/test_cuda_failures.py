"""What drivers and devices refuse or lack: one sentence each, and the next step works."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import pytest

from mdcg import _core

from ..emulator.emulator import emulator_libraries, run_emulated
from .case_runs import run_cases_emulated, run_cases_on_a_device
from .cuda_cases import saved
from .test_budget import all_paths
from .test_program import two_layers

START = """
import os, json, numpy as np
from mdcg import _core
def failure(function, *arguments):
    try:
        function(*arguments)
    except _core.EngineError as error:
        print(error.kind, error)
    else:
        print("none")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return saved(two_layers().package(), tmp_path / "p.mdcg")


def said(code: str, **changes: str) -> list[str]:
    done = run_emulated("-c", START + code, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


# -- kernels that are not generated ---------------------------------------------------------------


def test_kernels_that_would_occupy_a_compiler(tmp_path: Path) -> None:
    path = all_paths(9).package.write(tmp_path / "p.mdcg")
    (line,) = said(f"failure(lambda: _core.Model({path!r}, device='cuda'))")
    assert line.startswith(f"3 {path}: kernels are generated for up to 4 million characters")
    assert line.endswith(' million, so it runs on CPUs only: use device "cpu"')


# -- memory of the host ----------------------------------------------------------------------------


def test_no_page_locked_memory(package: Path) -> None:
    """After page-locked memory ran out, systems that fit are evaluated."""
    code = f"""
model = _core.Model({str(package)!r}, device="cuda")
def step(nodes):
    where = np.stack(np.meshgrid(*[np.arange(nodes) * 2.5] * 3), -1).reshape(-1, 3)
    return model.evaluate(where, np.zeros(len(where)))["energy"]
small = step(2)
os.environ["EMULATED_CUDA_PINNED"] = "20000"
for _ in range(2):
    failure(step, 8)
    print(step(2) == small)
del os.environ["EMULATED_CUDA_PINNED"]
print(step(8) != 0)
"""
    lines = said(code)
    assert lines[1::2] == ["True", "True"]
    assert lines[4] == "True"
    for line in lines[:4:2]:
        assert line == (
            "5 out of page-locked host memory: the driver does not give 1 MiB for copies from and "
            "to device cuda:0: evaluate a smaller system, or run fewer processes on this machine"
        )


def test_short_page_locked_memory_is_not_reserved(package: Path) -> None:
    """If page-locked memory is short, no room is reserved for later lists."""
    code = f"""
def step(model, nodes):
    at = 1.3 * np.arange(3 * nodes).reshape(-1, 3)
    return model.evaluate(at, np.zeros(nodes))["energy"]
def least():
    for most in range(600 * 8 * (3 + 1 + 3 + 9), 100000, 500):  # positions and results, and a bit
        os.environ["EMULATED_CUDA_PINNED"] = str(most)
        try:
            return most, step(_core.Model({str(package)!r}, device="cuda"), 600)
        except _core.EngineError:
            pass
most, want = least()
del os.environ["EMULATED_CUDA_PINNED"]
model = _core.Model({str(package)!r}, device="cuda")
step(model, 500)
os.environ["EMULATED_CUDA_PINNED"] = str(most)
print(step(model, 600) == want)
failure(step, model, 700)
"""
    same, line = said(code)
    assert same == "True"
    assert line.startswith("5 out of page-locked host memory")


# -- captured steps --------------------------------------------------------------------------------


@pytest.mark.slow
def test_calculators_and_exchanges_emulated() -> None:
    settings = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_CUDA_LATE": "1"}
    run_cases_emulated("cuda_failure_cases.py", "cuda_exchange_cases.py", **settings)


@pytest.mark.gpu
def test_exchanges_on_a_device() -> None:
    run_cases_on_a_device("cuda_exchange_cases.py")


# -- devices ---------------------------------------------------------------------------------------


def test_no_device(package: Path) -> None:
    code = f"""
for device in ("cuda", "cuda:1"):
    failure(lambda: _core.Model({str(package)!r}, device=device))
print(_core.Model({str(package)!r}).evaluate(np.zeros((1, 3)), np.zeros(1))["energy"] != 0)
"""
    none = said(code, EMULATED_CUDA_DEVICES="0")
    assert [line[:2] for line in none[:2]] == ["9 ", "9 "]
    assert all("device is 'cuda" in line and "device cpu" in line for line in none[:2])
    assert none[2] == "True"
    one = said(code, EMULATED_CUDA_DEVICES="1")
    sentence = "9 device is 'cuda:1', and there is one, cuda:0: choose another one, or device cpu"
    assert one[:2] == ["none", sentence]


def test_no_driver(package: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(_core.EngineError, match="device is 'cuda', and there is no CUDA driv"):
            _core.Model(str(package), device="cuda")
    else:
        pytest.skip("this machine has a CUDA driver")


@pytest.mark.parametrize(
    ("capability", "sentence"),
    [
        (
            "61",
            "3 the device has compute capability 6.1, CUDA kernels need 8.0",
        ),
        ("130", "4 NVRTC .*is too old for this card: it does not compile for sm_130, only for"),
    ],
)
def test_cards_that_are_too_old_or_too_new(package: Path, capability: str, sentence: str) -> None:
    code = f"failure(_core.Model({str(package)!r}, device='cuda').prepare)"
    (line,) = said(code, EMULATED_CUDA_CAPABILITY=capability)
    assert re.match(sentence.replace("(", "[(]").replace(")", "[)]"), line), line


# -- drivers ---------------------------------------------------------------------------------------


def without(function: str, folder: Path) -> str:
    """Return a folder with an emulated driver that lacks a function."""
    driver = emulator_libraries() / "libcuda.so.1"
    name = b"\0" + function.encode() + b"\0"
    found = driver.read_bytes()
    assert name in found
    folder.mkdir()
    (folder / driver.name).write_bytes(found.replace(name, b"\0un" + name[3:]))
    shutil.copymode(driver, folder / driver.name)
    return str(folder)


def missing(function: str, version: str) -> str:
    return (
        f"NVIDIA's driver, for CUDA {version}, has no function {function}, which mdcg needs: "
        "update the driver, or use device cpu"
    )


@pytest.mark.parametrize(
    ("function", "version"),
    [("cuInit", "11.0"), ("cuCtxPopCurrent_v2", "11.0"), ("cuStreamBeginCapture_v2", "13.0")],
)
def test_a_driver_that_is_too_old(
    package: Path, tmp_path: Path, function: str, version: str
) -> None:
    """A driver without a needed function is named with the version that has it."""
    code = f"""
where = np.random.default_rng(0).uniform(0, 3, (5, 3))
def run():
    model = _core.Model({str(package)!r}, device="cuda")
    for _ in range(2):
        model.evaluate(where, np.zeros(5))
for _ in range(2):
    failure(run)
print(_core.Model({str(package)!r}).evaluate(where, np.zeros(5))["energy"] != 0)
"""
    path = without(function, tmp_path / "driver")
    number = version.replace(".", "0") + "0"
    lines = said(code, LD_LIBRARY_PATH=path, EMULATED_CUDA_VERSION=number)
    want = missing(function, version)
    if function == "cuInit":
        want = "device is 'cuda', and " + want
    want = "9 " + want
    assert lines == [want, want, "True"]


def test_the_c_interface_and_a_driver_that_is_too_old(tmp_path: Path) -> None:
    code = """
import ctypes, mdcg
lib = ctypes.CDLL(os.path.dirname(mdcg.__file__) + "/libmdcg.so")
lib.mdcg_last_error.restype = ctypes.c_char_p
device = (ctypes.c_size_t * 4)(32)
print(lib.mdcg_find_device(b"cuda", device), lib.mdcg_last_error().decode())
"""
    path = without("cuDeviceGetUuid_v2", tmp_path / "driver")
    lines = said(code, LD_LIBRARY_PATH=path, EMULATED_CUDA_VERSION="11000")
    assert lines == ["9 " + missing("cuDeviceGetUuid_v2", "11.0")]


def test_a_driver_older_than_nvrtc(package: Path, tmp_path: Path) -> None:
    """The error names both versions; nothing is compiled again."""
    code = f"""
model = _core.Model({str(package)!r}, device="cuda")
for _ in range(2):
    failure(model.prepare)
print(_core.Model({str(package)!r}, kernels="generic").evaluate(np.zeros((1, 3)), np.zeros(1)) != 0)
"""
    code = code.replace(" != 0)", '["energy"] != 0)')
    cache = str(tmp_path / "cache")
    *lines, last = said(code, EMULATED_CUDA_VERSION="12040", MDCG_CACHE_DIR=cache)
    assert last == "True"
    for line in lines:
        assert line == (
            "9 NVIDIA's driver, for CUDA 12.4, cannot load machine code for sm_90 that NVRTC 13.0 "
            "made (cuModuleLoadData failed: device kernel image is invalid, "
            "CUDA_ERROR_INVALID_IMAGE): update the driver, or install an NVRTC of its version with "
            "'pip install nvidia-cuda-nvrtc-cu12==12.4.*', set MDCG_NVRTC_LIB to its file and run "
            "'python -m mdcg cache clear'"
        )
    # With an up-to-date driver, the same files of the cache are used.
    again = said(code.replace("failure(model.prepare)", "model.prepare()"), MDCG_CACHE_DIR=cache)
    assert again == ["True"]


# -- launches --------------------------------------------------------------------------------------


def test_too_many_blocks() -> None:
    """Launches with more blocks than a grid has are refused, without truncation to 32 bits."""
    code = """
from mdcg.runtime.nvrtc import compile_cuda
cubin, _ = compile_cuda('extern "C" __global__ void k(long long n) {}', "sm_90")
module = _core.CudaModule(0, cubin)
function = module.function("k", 0)
module.launch(function, 1, 32, 0, 0, [1])
for blocks in (2**31, 2**32 + 1):
    for early in (False, True):
        try:
            module.launch(function, blocks, 32, 0, 0, [1], early)
        except _core.CudaError as error:
            print(error.code, error)
"""
    for line, blocks in zip(said(code), [2**31, 2**31, 2**32 + 1, 2**32 + 1], strict=True):
        assert line.startswith("1 cuLaunchKernel")
        assert line.endswith(
            f" takes {blocks} blocks, and a grid has at most 2147483647: evaluate a smaller "
            "system, or use more devices"
        )
