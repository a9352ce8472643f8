"""Fused convolutions on a CUDA device: the cases of cuda_table_cases.py."""

from __future__ import annotations

import pytest

from .case_runs import run_cases_emulated, run_cases_on_a_device

CASES = "cuda_table_cases.py"


def test_on_an_emulated_device() -> None:
    run_cases_emulated(CASES)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
