"""Layers on nodes on a CUDA device: the cases of cuda_node_cases.py."""

from __future__ import annotations

import pytest

from .case_runs import run_cases_emulated, run_cases_on_a_device

CASES = "cuda_node_cases.py"


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["linear", "contraction", "gate", "not (linear or con or gate)"])
def test_on_an_emulated_device(layer: str) -> None:
    run_cases_emulated(CASES, options=("-k", layer))


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)
