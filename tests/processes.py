"""Python in processes of their own, which may crash, hang or be limited."""

from __future__ import annotations

import os
import subprocess
import sys


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
