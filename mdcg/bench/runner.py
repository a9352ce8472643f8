"""Plans a benchmark as jobs in processes of their own and joins the answers; needs no torch."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import MdcgError
from .jobs import ConvJob, ModelJob
from .process import JobError, child_environment, describe_settings, run_job

__all__ = [
    "Settings",
    "available_cores",
    "conv_section",
    "document",
    "machine_section",
    "model_sections",
]

FORMAT = 1
_PACKAGES = (
    *("torch", "e3nn", "mace-torch", "nequip", "cuequivariance", "cuequivariance-ops-torch-cu12"),
    *("cuequivariance-ops-torch-cu13", "openequivariance"),
)
# A GPU needs larger arrays to reach its rates.
_GPU_SIZES = {"matrix_size": 8192, "megabytes": 4096}


@dataclass(frozen=True)
class Settings:
    """How the processes run.

    Parameters
    ----------
    threads : int
        OpenMP threads of a process.
    allocator : {"tuned", "stock"}
        Of the timed processes; memory is measured with the stock one, which gives pages back.
    memory : bool
        Measure peak memory, one process per implementation.
    startup : bool
        Measure compilation and loading of the kernels.
    matrix_size, megabytes : int
        Sizes for the machine's ceilings.
    verbose : bool
        Processes say on the error stream what they are doing.
    rates : bool
        Measure the machine's ceilings.
    """

    threads: int
    allocator: str = "tuned"
    memory: bool = True
    startup: bool = True
    matrix_size: int = 2048
    megabytes: int = 256
    verbose: bool = False
    rates: bool = True


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def document(kind: str, settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """Start the document that ``--json`` writes: sections are appended to its lists."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "format": FORMAT,
        "benchmark": kind,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mdcg": __version__,
        "machine": {
            "cpu": _cpu_name(),
            "cores": available_cores(),
            "python": platform.python_version(),
            "packages": versions,
            "rates": {},
        },
        "settings": describe_settings(
            settings.threads, settings.allocator, options.get("device", "cpu")
        ),
        "options": options,
        "rows": [],
        "startup": [],
        "refused": [],
        "failures": [],
        "spent": [],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_section(
    settings: Settings, dtypes: Sequence[str], device: str = "cpu"
) -> dict[str, Any]:
    """Measure the machine's ceilings in a process like those of the benchmark.

    Returns
    -------
    dict
        ``rates`` by dtype, and on CUDA devices ``gpu``, the name of the device. Nothing where the
        settings want no rates.
    """
    if not settings.rates:
        return {}
    sizes = {"matrix_size": settings.matrix_size, "megabytes": settings.megabytes}
    job = {
        "kind": "machine",
        "dtypes": list(dtypes),
        "device": device,
        **(sizes if device == "cpu" else _GPU_SIZES),
    }
    found = _run(job, settings, settings.allocator)
    return {name: found[name] for name in ("rates", "gpu") if name in found}


def _run(job: dict[str, Any], settings: Settings, allocator: str, **extra: str) -> dict[str, Any]:
    device = job.get("device") or job["options"]["device"]
    environment = child_environment(settings.threads, allocator, extra, device=device)
    return run_job({**job, "verbose": settings.verbose}, environment)


def _attempt(
    job: dict[str, Any],
    settings: Settings,
    allocator: str,
    failures: list[dict[str, Any]],
    **extra: str,
) -> dict[str, Any] | None:
    """Run a job; where it fails, note that and go on: the others may still be worth their time."""
    try:
        return _run(job, settings, allocator, **extra)
    except (MdcgError, ValueError) as error:
        died = isinstance(error, JobError) and error.died
        failures.append({"job": job, "message": str(error), "died": died})
        return None


def _timed(
    kind: str, job: ConvJob | ModelJob, settings: Settings, failures: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Time all implementations in one process; if that is killed, each in one of its own."""
    request = {"kind": kind, "options": job.to_dict()}
    together = _attempt(request, settings, settings.allocator, failures)
    if together is not None:
        yield {**together, "side_by_side": True}
        return
    for impl in job.impls if len(job.impls) > 1 and failures[-1]["died"] else ():
        alone = {"kind": kind, "options": replace(job, impls=(impl,)).to_dict()}
        result = _attempt(alone, settings, settings.allocator, failures)
        if result is not None:
            yield {**result, "side_by_side": False}


def _split_failures(
    refused: list[dict[str, Any]],
    kind: str,
    job: ConvJob | ModelJob,
    failures: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield what was refused; what went wrong is no refusal."""
    for one in refused:
        if not one.pop("failed"):
            yield one
            continue
        request = {"kind": kind, "options": job.to_dict(), "impl": one["impl"]}
        failures.append({"job": request, "message": one["reason"], "died": False})


def conv_section(
    job: ConvJob,
    settings: Settings,
    rates: dict[str, dict[str, float]],
    progress: Callable[[str], None],
) -> dict[str, list[dict[str, Any]]]:
    """Measure one layer in one dtype.

    Returns
    -------
    dict
        ``rows``, ``startup``, ``refused``, ``failures`` and ``spent``, to be appended to the
        document.
    """
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    spent: dict[str, float] = {}
    common = {
        "case": job.case,
        "dtype": job.dtype,
        "system": job.system,
        "order": job.order,
        "device": job.device,
    }
    progress(f"{job.case} {job.dtype}: timing {', '.join(job.impls)}")
    for result in _timed("conv-timing", job, settings, failures):
        measured = result.pop("rows")
        spent |= result.pop("spent")
        for one in _split_failures(result.pop("refused"), "conv-timing", job, failures):
            refused.append({"case": job.case, "dtype": job.dtype, **one})
        for row in measured:
            row.update(_achieved(row, rates[job.dtype]))
            rows.append({**common, **result, **row})
    # on a GPU the timed process measures it, as torch counts there what each call allocates
    if settings.memory and job.device == "cpu":
        for impl in job.impls:
            progress(f"{job.case} {job.dtype}: peak memory of {impl}")
            request = {"kind": "conv-memory", "options": job.to_dict(), "impl": impl}
            found = _attempt(request, settings, "stock", failures)
            for row in rows:
                if found is not None and row["impl"] == impl:
                    row["memory"] = found["passes"][row["pass"]]
    _ratios(rows, "pass")
    startup: list[dict[str, Any]] = []
    if settings.startup:
        timed = {row["impl"] for row in rows}
        startup = _startup(job, settings, failures, progress, timed)
    spendings = [{"case": job.case, "dtype": job.dtype, "seconds": spent}] if spent else []
    return {
        "rows": rows,
        "startup": startup,
        "refused": refused,
        "failures": failures,
        "spent": spendings,
    }


def _startup(
    job: ConvJob,
    settings: Settings,
    failures: list[dict[str, Any]],
    progress: Callable[[str], None],
    timed: Container[str],
) -> list[dict[str, Any]]:
    """Run the first calls with an empty kernel cache, then again in a new process."""
    found = []
    for impl in (name for name in job.impls if name.startswith("mdcg") and name in timed):
        progress(f"{job.case} {job.dtype}: compiling and loading {impl}")
        request = {"kind": "conv-startup", "options": job.to_dict(), "impl": impl}
        with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
            states = {
                state: _attempt(
                    request, settings, settings.allocator, failures, MDCG_CACHE_DIR=folder
                )
                for state in ("cold", "cached")
            }
        found.append({"case": job.case, "dtype": job.dtype, "impl": impl, **states})
    return found


def _achieved(row: dict[str, Any], rates: dict[str, float]) -> dict[str, float]:
    """Return rates, and how much of the machine's ceilings they are."""
    seconds = row["seconds"]["median"]
    gflops, gbytes = row["flops"] / seconds / 1e9, row["bytes"] / seconds / 1e9
    of_gemm, of_copy = gflops / rates["gemm_gflops"], gbytes / rates["copy_gbytes"]
    return {
        "gflops": gflops,
        "gbytes": gbytes,
        "of_gemm": of_gemm,
        "of_copy": of_copy,
        "of_limit": max(of_gemm, of_copy),
    }


def _ratios(rows: list[dict[str, Any]], *keys: str) -> None:
    """Add speed-up and memory relative to e3nn, and time relative to the best other package."""
    others: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        place = tuple(row[key] for key in keys)
        if not row["impl"].startswith(("mdcg", "engine")) and (
            place not in others or row["seconds"]["median"] < others[place]["seconds"]["median"]
        ):
            others[place] = row
    for row in rows:
        best = others.get(tuple(row[key] for key in keys))
        if best is not None:
            row["best_peer"] = best["impl"]
            row["of_best_peer"] = row["seconds"]["median"] / best["seconds"]["median"]
    base = {tuple(row[key] for key in keys): row for row in rows if row["impl"] == "e3nn"}
    for row in rows:
        other = base.get(tuple(row[key] for key in keys))
        if other is None:
            continue
        row["speedup"] = other["seconds"]["median"] / row["seconds"]["median"]
        if "memory" in row and "memory" in other:
            peak, reference = row["memory"]["peak_bytes"], other["memory"]["peak_bytes"]
            row["memory_ratio"] = peak / max(reference, 1)


def model_sections(
    job: ModelJob, settings: Settings, progress: Callable[[str], None]
) -> list[dict[str, list[dict[str, Any]]]]:
    """Measure one model in one dtype on systems of several sizes.

    Returns
    -------
    list of dict
        For every size what :func:`conv_section` returns; on CUDA devices with ``gpu``, the name.
    """
    failures: list[dict[str, Any]] = []
    sections: dict[int, dict[str, Any]] = {}
    counts = [str(atoms) for atoms in job.atoms if atoms is not None]
    label = f"{job.model}, {job.system}{' ' * bool(counts)}{', '.join(counts)}"
    progress(f"{label}: timing {', '.join(job.impls)}")
    for result in _timed("model-timing", job, settings, failures):
        for number, size in enumerate(result["sizes"]):
            section = sections.setdefault(number, _section(result.get("gpu")))
            _take_size(section, job, {"side_by_side": result["side_by_side"], **size})
    if not sections:
        sections[0] = _section(None)
    for number, section in sections.items():
        rows = section["rows"]
        for row in rows if settings.memory and job.device == "cpu" else ():
            progress(f"{label}: peak memory of {row['impl']}")
            options = replace(job, atoms=job.atoms[number : number + 1]).to_dict()
            request = {"kind": "model-memory", "options": options, "impl": row["impl"]}
            found = _attempt(request, settings, "stock", failures)
            if found is not None:
                row["memory"] = found
        _ratios(rows)
    sections[0]["failures"] = failures + sections[0]["failures"]
    return list(sections.values())


def _section(gpu: str | None) -> dict[str, Any]:
    names = ("rows", "refused", "failures", "spent")
    return {name: [] for name in names} | ({} if gpu is None else {"gpu": gpu})


def _take_size(section: dict[str, Any], job: ModelJob, size: dict[str, Any]) -> None:
    """Add what was measured on one system."""
    measured, spent, refused = (size.pop(name) for name in ("rows", "spent", "refused"))
    place = {"model": job.model, "dtype": size["dtype"], "atoms": size["atoms"]}
    for one in _split_failures(refused, "model-timing", job, section["failures"]):
        section["refused"].append({**place, **one})
    if spent:
        section["spent"].append({**place, "seconds": spent})
    for row in measured:
        per_atom = row["seconds"]["median"] / size["atoms"]
        section["rows"].append(
            {
                "model": job.model,
                "system": job.system,
                "device": job.device,
                **size,
                **row,
                "microseconds_per_atom": per_atom * 1e6,
                "katom_steps_per_second": 1e-3 / per_atom,
            }
        )
