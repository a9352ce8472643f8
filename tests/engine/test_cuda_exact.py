"""Exact radial networks on a CUDA device: the cases of cuda_exact_cases.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..emulator.emulator import run_emulated

CASES = str(Path(__file__).with_name("cuda_exact_cases.py"))
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", CASES)


def test_on_an_emulated_device() -> None:
    done = run_emulated(*PYTEST)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.gpu
def test_on_a_device() -> None:
    done = subprocess.run([sys.executable, *PYTEST], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
