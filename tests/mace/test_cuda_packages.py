"""The cases of cuda_package_cases.py, on an emulated device and on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg.errors import VerificationError
from mdcg.package import convert_model
from mdcg.package.verification import verify_package

from ..engine.case_runs import run_cases_emulated, run_cases_on_a_device
from .conftest import build_model

CASES = "../mace/cuda_package_cases.py"


def test_emulated() -> None:
    run_cases_emulated(CASES)


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases_on_a_device(CASES)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    """Is an error: nothing falls back to the processor."""
    model = build_model()
    convert_model(model).save(tmp_path / "a.mdcg")
    with pytest.raises(VerificationError, match=r"does not open the package: .*'cuda:99'"):
        verify_package(tmp_path / "a.mdcg", model, device="cuda:99")
