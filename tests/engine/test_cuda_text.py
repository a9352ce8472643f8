"""Fixed kernels of the CUDA engine: their text compiles, and its numbers are those of NumPy."""

from __future__ import annotations

import pytest

from mdcg.errors import KernelCompileError
from mdcg.runtime.nvrtc import compile_cuda, find_nvrtc

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


@pytest.mark.slow
def test_on_an_emulated_device() -> None:
    run_cases_emulated(CASES)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
