"""``mdcg bench startup``: times of importing mdcg and opening a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import MdcgError
from .report import numbers_table

_PARTS = ("import", "core", "open", "kernels")
# Runs in a fresh process, because modules and kernels are loaded only once.
_CODE = """
import json, sys
from time import perf_counter
times = [perf_counter()]
import mdcg
times.append(perf_counter())
from mdcg import _core
times.append(perf_counter())
model = _core.Model(sys.argv[1])
times.append(perf_counter())
model.prepare()
times.append(perf_counter())
print(json.dumps([times, "torch" in sys.modules, model.summary()]))
"""


def measure(package: Path, repeats: int) -> dict[str, Any]:
    """Time fresh processes that open a package: one with an empty cache of kernels, then others.

    Returns ``cold`` and ``cached``: seconds for ``import`` (of mdcg), ``core`` (its compiled
    module), ``open`` (reading and checking the package) and ``kernels`` (compiling or loading
    them). The numbers of ``cached`` are medians. ``torch`` is whether torch was imported,
    ``summary`` describes the kernels.
    """
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as cache:
        runs = [_run(package, os.environ | {"MDCG_CACHE_DIR": cache}) for _ in range(repeats + 1)]
    cold, *cached = [
        dict(zip(_PARTS, (b - a for a, b in pairwise(times)), strict=True)) for times, *_ in runs
    ]
    return {
        "package": str(package),
        "repeats": repeats,
        "cold": cold,
        "cached": {part: median(each[part] for each in cached) for part in _PARTS},
        "torch": any(torch for _, torch, _ in runs),
        "summary": runs[-1][2],
    }


def _run(package: Path, environment: Mapping[str, str]) -> Any:
    command = [sys.executable, "-c", _CODE, str(package)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise MdcgError(f"opening {package} failed: {lines[-1]}")
    return json.loads(done.stdout)


def table(result: Mapping[str, Any]) -> str:
    """Return the times as text, in milliseconds."""
    columns = ("kernel cache", "import mdcg", "its core", "open", "kernels", "open + kernels")
    lines = []
    for kind, name in (("cold", "empty"), ("cached", f"full, median of {result['repeats']}")):
        part = result[kind]
        times = [*(part[key] for key in _PARTS), part["open"] + part["kernels"]]
        lines.append([name, *(f"{1e3 * seconds:.1f}" for seconds in times)])
    note = "torch was imported" if result["torch"] else "without torch"
    return f"{numbers_table(columns, lines)}\nmilliseconds, {note}; {result['summary']}"
