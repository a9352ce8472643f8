"""Fixed kernels of the CUDA engine: their text compiles, and its numbers are those of NumPy."""

from __future__ import annotations

import pytest

from mdcg.errors import KernelCompileError
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

from ..core.test_cuda_resources import resources_of
from .case_runs import run_cases_emulated, run_cases_on_a_device
from .cuda_device import texts

CASES = "cuda_text_cases.py"


@pytest.mark.parametrize(
    ("dtype", "name", "target"),
    [
        (dtype, name, target)
        for dtype in ("float32", "float64")
        for name in texts(dtype)
        # only Hopper GPUs have these instructions
        for target in (["sm_90"] if name == "gemm_warpgroup" else ["sm_80", "sm_90", "sm_100"])
    ],
)
def test_compiles(name: str, target: str, dtype: str) -> None:
    try:
        nvrtc, _ = find_nvrtc()
    except KernelCompileError as error:
        pytest.skip(str(error))
    if int(target[3:]) not in nvrtc.architectures:
        pytest.skip(f"this NVRTC does not compile for {target}")
    cubin, _ = compile_cuda(texts(dtype)[name], target)
    assert cubin


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_over_waves_stay_in_registers(dtype: str) -> None:
    """Blocks of both sweeps fit beside others on a multiprocessor, and spill nothing."""
    try:
        find_nvrtc()
    except KernelCompileError as error:
        pytest.skip(str(error))
    found = {}
    for name in ("ewald", "particle_mesh"):
        _, log = compile_cuda(texts(dtype)[name], "sm_90", "--ptxas-options=-v")
        found |= resources_of(log)
    limits = {"float32": 128, "float64": 255}
    for name in ("wave_sums", "wave_fields", "transform", "transform_charges"):
        assert found[name].local_bytes == 0, f"{name}: {found[name]}"
        assert found[name].registers <= limits[dtype], f"{name}: {found[name]}"


@pytest.mark.slow
def test_on_an_emulated_device() -> None:
    run_cases_emulated(CASES)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
