"""The cases of cuda_package_cases.py, on an emulated device and on a real one."""

from __future__ import annotations

import pytest

from ..engine.case_runs import run_cases_emulated, run_cases_on_a_device

CASES = "../nequip/cuda_package_cases.py"


def test_emulated() -> None:
    run_cases_emulated(CASES)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
