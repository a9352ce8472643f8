"""Runs a job in a process of its own, whose allocator and threads are set before it starts."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import errors

__all__ = ["ALLOCATORS", "JobError", "child_environment", "describe_settings", "run_job"]

# Keeps big temporaries of a step on the heap for the next one: without it glibc maps and unmaps
# them every time, and page faults make the step of an e3nn model 1.3 to 2.4 times as long.
TUNED_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
ALLOCATORS = ("tuned", "stock")


class JobError(errors.MdcgError, RuntimeError):
    """A benchmark process failed.

    Parameters
    ----------
    message : str
        What happened.
    died : bool
        True: it was killed or timed out, mostly for want of memory; its parts may still run alone.
    """

    def __init__(self, message: str, *, died: bool = False) -> None:
        super().__init__(message)
        self.died = died


def child_environment(
    threads: int, allocator: str, extra: Mapping[str, str] = {}, *, device: str = "cpu"
) -> dict[str, str]:
    """Return the environment of a benchmark process; this process keeps its own.

    Parameters
    ----------
    threads : int
        OpenMP threads; for the CPU each is bound to a core where there are several. For a GPU none
        is: threads of compilers and of autograd would inherit the core of the main thread.
    allocator : {"tuned", "stock"}
        glibc settings, or none.
    extra : mapping of str to str
        Set on top.
    device : str
        What is measured.

    Raises
    ------
    ValueError
        Threads below 1, or unknown allocator.
    """
    if threads < 1:
        raise ValueError(f"threads is {threads}, expected 1 or more")
    if allocator not in ALLOCATORS:
        raise ValueError(f"allocator is {allocator!r}, expected one of {', '.join(ALLOCATORS)}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    if allocator == "tuned":
        environment.update(TUNED_MALLOC)
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["OMP_PROC_BIND"] = "true" if threads > 1 and device == "cpu" else "false"
    environment["OMP_DYNAMIC"] = "false"
    environment.pop("MKL_NUM_THREADS", None)
    environment.update(extra)
    return environment


def describe_settings(threads: int, allocator: str, device: str = "cpu") -> dict[str, Any]:
    """Return what :func:`child_environment` sets, and what else may change the allocator."""
    environment = child_environment(threads, allocator, device=device)
    shown = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_DYNAMIC", "LD_PRELOAD", *TUNED_MALLOC)
    return {
        "threads": threads,
        "allocator": allocator,
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "environment": {name: environment[name] for name in shown if name in environment},
    }


def run_job(
    job: Mapping[str, Any], environment: Mapping[str, str], *, timeout: float | None = None
) -> dict[str, Any]:
    """Run a job of :mod:`mdcg.bench.worker` and return its result.

    Parameters
    ----------
    job : mapping
        Plain values; ``kind`` names the function.
    environment : mapping of str to str
        From :func:`child_environment`.
    timeout : float, optional
        Seconds after which the process is ended.

    Raises
    ------
    JobError
        The process was killed, timed out, or failed in a way it could not report.
    MdcgError, ValueError
        What the job itself raised.
    """
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        request, answer = Path(folder) / "job.json", Path(folder) / "result.json"
        request.write_text(json.dumps(dict(job)))
        command = [sys.executable, "-m", "mdcg.bench.worker", str(request), str(answer)]
        try:
            # Output is kept for the error message: frameworks print all kinds of notices at import.
            done = subprocess.run(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if job.get("verbose") else subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise JobError(
                f"benchmark process {job['kind']} did not end within {timeout:.0f} s: "
                "choose fewer atoms or repeats",
                died=True,
            ) from error
        if not answer.is_file():
            message = _failure(str(job["kind"]), done.returncode, done.stdout)
            raise JobError(message, died=done.returncode < 0)
        result: dict[str, Any] = json.loads(answer.read_text())
    if "error" in result:
        raise _rebuild(result["error"])
    return result


def _failure(kind: str, code: int, output: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ": memory ran out, choose fewer atoms" if name == "SIGKILL" else ""
        return f"benchmark process {kind} was ended by {name}{hint}"
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return (
        f"benchmark process {kind} failed with code {code}: {lines[-1] if lines else 'no message'}"
    )


def _rebuild(report: Mapping[str, str]) -> Exception:
    """Make the exception of the child again, so that callers see its class and its sentence."""
    message = report["message"]
    if report["type"] == "ValueError":
        return ValueError(message)
    cls = getattr(errors, report["type"], None) if report["type"] in errors.__all__ else None
    if cls is not None:
        rebuilt: Exception = cls(message)
        return rebuilt
    return JobError(f"{report['type']}: {message}")
