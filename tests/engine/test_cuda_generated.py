"""Generated CUDA kernels in the engine: the cases of cuda_kernel_cases.py."""

from __future__ import annotations

import os

import pytest

from ..emulator.emulator import emulator_environment
from .test_cuda_engine import run_cases


def test_emulated() -> None:
    run_cases(emulator_environment(), "cuda_kernel_cases.py")


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases(dict(os.environ), "cuda_kernel_cases.py")
