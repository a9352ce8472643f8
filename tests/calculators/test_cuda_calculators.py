"""Calculators and converted checkpoints on devices, emulated and real, each in a new process."""

from __future__ import annotations

import pytest

from ..engine.case_runs import run_cases_emulated, run_cases_on_a_device

CALCULATORS = "cuda_calculator_cases.py"
PACKAGES = "../calculators/cuda_package_cases.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calculators_on_emulated_devices() -> None:
    """The contract holds on emulated devices that work only when the program waits for them."""
    settings = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_CUDA_LATE": "1", "MDCG_TEST_EMULATED": "1"}
    # cuda_list_cases.py tests lists of so many neighbours, which take minutes here.
    options = ("-k", "not too_many_neighbours")
    files = (
        CALCULATORS,
        *(f"../calculators/test_{name}.py" for name in ("contract", "heat_flux", "sequences")),
    )
    run_cases_emulated(*files, options=options, **settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_packages_on_an_emulated_device() -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    run_cases_emulated(PACKAGES)


@pytest.mark.gpu
@pytest.mark.parametrize("cases", [CALCULATORS, PACKAGES])
def test_on_a_device(cases: str) -> None:
    """Cases that need a separate process pass on a real device; the contract needs none."""
    run_cases_on_a_device(cases)
