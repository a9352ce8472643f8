"""``python -m mdcg bench startup``: what importing mdcg and opening a package take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import MdcgError
from .report import format_table

__all__ = ["measure", "table"]

# In a process of its own: modules and kernels are loaded only once.
_CODE = """
import json, sys
from time import perf_counter
start = perf_counter()
import mdcg
imported = perf_counter()
from mdcg import _core
core = perf_counter()
model = _core.Model(sys.argv[1])
opened = perf_counter()
model.prepare()
ready = perf_counter()
names = ("import", "core", "open", "kernels")
times = (imported - start, core - imported, opened - core, ready - opened)
found = dict(zip(names, times), torch="torch" in sys.modules, summary=model.summary())
print(json.dumps(found))
"""


def measure(package: Path, repeats: int) -> dict[str, Any]:
    """Time fresh processes that open a package.

    Parameters
    ----------
    package : Path
        An ``.mdcg`` file.
    repeats : int
        Processes that find its kernels in the cache. One more has an empty cache.

    Returns
    -------
    dict
        ``cold`` and ``cached``: seconds for ``import`` (of mdcg), ``core`` (its compiled module),
        ``open`` (reading and checking the package) and ``kernels`` (compiling or loading them); of
        ``cached`` medians. ``torch``: whether torch was imported. ``summary``: what runs.

    Raises
    ------
    MdcgError
        A process failed.
    """
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as cache:
        environment = os.environ | {"MDCG_CACHE_DIR": cache}
        cold = _run(package, environment)
        cached = [_run(package, environment) for _ in range(repeats)]
    parts = ("import", "core", "open", "kernels")
    return {
        "package": str(package),
        "repeats": repeats,
        "cold": {part: cold[part] for part in parts},
        "cached": {part: median(each[part] for each in cached) for part in parts},
        "torch": any(each["torch"] for each in (cold, *cached)),
        "summary": cached[-1]["summary"],
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the times as text, in milliseconds."""
    columns = ("kernel cache", "import mdcg", "its core", "open", "kernels", "open + kernels")
    lines = []
    for kind, name in (("cold", "empty"), ("cached", f"full, median of {result['repeats']}")):
        part = result[kind]
        times = [part[key] for key in ("import", "core", "open", "kernels")]
        times.append(part["open"] + part["kernels"])
        lines.append([name, *(f"{1e3 * seconds:.1f}" for seconds in times)])
    note = "torch was imported" if result["torch"] else "without torch"
    return f"{format_table(columns, lines)}\nmilliseconds, {note}; {result['summary']}"


def _run(package: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(package)],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise MdcgError(f"opening {package} failed: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
