"""NequIP's own tests pass on models that mdcg has patched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("upstream_suite.py")
# Numeric Jacobians of partial forces would double the time and test the same layers. Each model is
# run in one precision; preset-like in float32 also fails unpatched: its forces are nearly zero.
CHOICE = "((float64 and (cutoffs or preset-like)) or (float32 and unequal)) and not partial"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_upstream_suite(tmp_path: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-k", CHOICE]
    settings = tmp_path / "pytest.ini"  # instead of this project's settings
    settings.write_text("[pytest]\n")
    options += ["-c", str(settings), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(SUITE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 45
