"""Generated CUDA kernels in the engine: the cases of cuda_kernel_cases.py."""

from __future__ import annotations

import pytest

from .case_runs import run_cases_emulated, run_cases_on_a_device


def test_emulated() -> None:
    run_cases_emulated("cuda_kernel_cases.py")


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device("cuda_kernel_cases.py")
