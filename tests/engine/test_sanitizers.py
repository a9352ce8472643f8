"""The engine under the address, undefined-behaviour and thread sanitizers, driven from C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_program import two_layers

SCRIPT = Path(__file__).resolve().parents[1] / "sanitize.sh"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_clean(tmp_path: Path, kind: str) -> None:
    """No sanitizer reports an error; the first build takes minutes, and objects are kept."""
    for dtype in ("float64", "float32"):
        two_layers(dtype).package().save(tmp_path / f"{dtype}.mdcg")
        done = subprocess.run(
            ["bash", SCRIPT, kind, tmp_path / f"{dtype}.mdcg"],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        assert done.stdout.endswith("ok\n")
