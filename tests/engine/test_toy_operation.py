"""A new operation: the cases of toy_operation_cases.py."""

from __future__ import annotations

from .case_runs import run_cases_emulated


def test_on_cpu_and_emulated_device() -> None:
    run_cases_emulated("toy_operation_cases.py")
