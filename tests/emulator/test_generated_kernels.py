"""Generated CUDA kernels on the emulated device: the cases of kernel_cases.py."""

from __future__ import annotations

import pytest

from ..engine.case_runs import run_cases_emulated


@pytest.mark.slow
def test_kernels_of_operators() -> None:
    run_cases_emulated("../emulator/kernel_cases.py")
