"""Packages on CUDA devices: the cases of cuda_cases.py, on an emulated device and on a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "tests" / "emulator"


def run_cases(environment: dict[str, str], *options: str) -> None:
    """Run the cases in a process of their own: a driver is opened once and for all."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("cuda_cases.py"))],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.gpu
def test_on_a_device() -> None:
    run_cases({})
