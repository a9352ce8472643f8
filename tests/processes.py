"""Python in processes of their own, which may crash, hang or be limited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CORE = str(Path(__file__).parent / "core")


def printed_by(code: str, *arguments: object, **environment: str | None) -> str:
    """Return what code prints; the process must end well. None removes a variable."""
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr or f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def child_environment(**changes: str | None) -> dict[str, str]:
    """Return an environment in which children can ``import helpers``; None removes a variable."""
    values = {**os.environ, "OMP_NUM_THREADS": "1"}
    values["PYTHONPATH"] = os.pathsep.join([CORE, *sys.path])
    for name, value in changes.items():
        values.pop(name, None)
        if value is not None:
            values[name] = value
    return values


def run_python(code: str, *arguments: str, **variables: str | None) -> str:
    """Return what code prints in a process that can ``import helpers``."""
    path = os.pathsep.join([CORE, *sys.path])
    return printed_by(code, *arguments, **{"OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables})


def printed_everywhere(code: str) -> str:
    """Return what code prints, the same with any seed of hashes and on any kind of processor."""
    printed = {
        run_python(code, PYTHONHASHSEED=seed, OPENBLAS_CORETYPE=processor).strip()
        for seed, processor in (("0", None), ("1", "Prescott"), ("2", "Haswell"))
    }
    assert len(printed) == 1
    return printed.pop()
