"""Exact radial networks on a CUDA device: the cases of cuda_exact_cases.py."""

from __future__ import annotations

import pytest

from .case_runs import at_once_and_late, run_cases_emulated, run_cases_on_a_device

CASES = "cuda_exact_cases.py"


@at_once_and_late
def test_on_an_emulated_device(late: str) -> None:
    run_cases_emulated(CASES, EMULATED_CUDA_LATE=late)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
