"""Calculators and converted checkpoints on devices, emulated and real, each in a new process."""

from __future__ import annotations

import pytest

from ..engine.case_runs import run_cases_emulated, run_cases_on_a_device

CALCULATORS = "cuda_calculator_cases.py"
PACKAGES = "../calculators/cuda_package_cases.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calculators_on_emulated_devices() -> None:
    """Work is done when somebody waits for it; test_cuda_cases.py has steps that are at once."""
    settings = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_CUDA_LATE": "1", "MDCG_TEST_EMULATED": "1"}
    # lists of so many neighbours take minutes there, and cuda_list_cases.py has them
    options = ("-k", "not too_many_neighbours")
    files = (
        CALCULATORS,
        *(f"../calculators/test_{name}.py" for name in ("contract", "heat_flux", "sequences")),
    )
    run_cases_emulated(*files, options=options, **settings)


@pytest.mark.slow
def test_packages_on_an_emulated_device() -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    run_cases_emulated(PACKAGES)


@pytest.mark.gpu
@pytest.mark.parametrize("cases", [CALCULATORS, PACKAGES])
def test_on_a_device(cases: str) -> None:
    """The contract itself runs on a device without a further process."""
    run_cases_on_a_device(cases)
