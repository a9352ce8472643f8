"""Runs cases on CUDA devices in a subprocess, because a process opens only one driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..emulator.emulator import emulator_environment


def run_cases(environment: dict[str, str], *files: str, options: tuple[str, ...] = ()) -> None:
    """Run files of this folder with further options of pytest.

    All must pass, none be skipped.
    """
    cases = [str(Path(__file__).parent / file) for file in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *cases],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def run_cases_emulated(*files: str, options: tuple[str, ...] = (), **changes: str) -> None:
    """Run files on emulated devices; for ``changes`` see :func:`emulator_environment`."""
    run_cases(emulator_environment(**changes), *files, options=options)


def run_cases_on_a_device(*files: str) -> None:
    """Run files on real devices."""
    run_cases(dict(os.environ), *files)
