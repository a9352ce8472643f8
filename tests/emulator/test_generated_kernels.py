"""Generated CUDA kernels on the emulated device: the cases of kernel_cases.py and of packages."""

from __future__ import annotations

from ..engine.case_runs import run_cases_emulated


def test_kernels_of_operators() -> None:
    run_cases_emulated("../emulator/kernel_cases.py")


def test_kernels_of_packages() -> None:
    run_cases_emulated("../package/cuda_kernel_cases.py")
