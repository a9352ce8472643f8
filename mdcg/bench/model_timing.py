"""Measures energy and forces of whole models; all of it runs in a benchmark process."""

from __future__ import annotations

import fcntl
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import DeviceError, MdcgError
from ..patch import model_info
from ..patch.hosts import copy_in_dtype
from .conv import refusal
from .engine_models import EngineStep
from .gpu import device_name, device_times, free_memory, release_memory
from .jobs import ModelJob
from .model import Results, job_model, model_step, variant_of
from .systems import System, fragment, make_system
from .timing import Clock, Timing, clock_for, interleave, peak_memory, stopwatch

__all__ = ["measure_memory", "measure_timing"]

_log = logging.getLogger("mdcg.bench")


@dataclass(frozen=True)
class _Outcome:
    """Results of the first evaluation, in eV and Å."""

    energy: float
    forces: torch.Tensor
    stress: torch.Tensor | None

    @classmethod
    def of(cls, results: Results) -> _Outcome:
        energy, forces, stress = (results.get(name) for name in ("energy", "forces", "stress"))
        if energy is None or forces is None:
            raise MdcgError(
                "the model gives no energy and forces: nothing to time, give another model"
            )
        return cls(
            float(energy.detach().sum()),
            forces.detach().double().cpu(),
            None if stress is None else stress.detach().double().cpu().reshape(3, 3),
        )


def measure_timing(job: ModelJob) -> dict[str, Any]:
    """Time energy and forces of all implementations side by side, on one graph for each size.

    The neighbour list and the conversion of the structure are outside of the timed span. On a CUDA
    device the clock is the host's, around a call that is waited for: for all of them.

    Returns
    -------
    dict
        ``sizes``: for each size ``atoms``, ``edges``, ``dtype``, ``rows``, one per implementation,
        ``refused``, implementation and reason of what could not be timed, and ``spent``; ``gpu``:
        name of the device, or None.
    """
    clock = clock_for(job.device, synchronized=True)
    spent: dict[str, float] = {}
    refused: list[dict[str, Any]] = []
    sizes = []
    with tempfile.TemporaryDirectory(prefix="mdcg-") as folder:
        with stopwatch(spent, "load"):
            model = job_model(job)
        variants: dict[str, Any] = {}
        reports: dict[str, str] = {}
        for impl in job.impls:
            with _refusing(impl, job, refused), stopwatch(spent, f"convert {impl}"):
                variants[impl], reports[impl] = variant_of(impl, model, job, Path(folder))
        release_memory()
        with _turn(job.turns):
            for atoms in job.atoms:
                sizes.append(_measure_size(job, atoms, model, variants, reports, clock))
                release_memory()
    first = sizes[0]
    first["refused"] = refused + first["refused"]
    first["spent"] = {name: round(seconds, 2) for name, seconds in spent.items()} | first["spent"]
    return {"sizes": sizes, "gpu": device_name() if job.device == "cuda" else None}


@contextmanager
def _turn(path: str | None) -> Iterator[None]:
    """Wait for others that measure."""
    if path is None:
        yield
        return
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _refusing(impl: str, job: ModelJob, refused: list[dict[str, Any]]) -> Iterator[None]:
    """Note what goes wrong instead of raising it; mdcg's own faults on a CPU are raised."""
    try:
        yield
    except Exception as error:
        if job.device == "cpu" and impl in ("e3nn", "mdcg", "engine"):
            raise
        refused.append(refusal(impl, error))


def _measure_size(
    job: ModelJob,
    atoms: int | None,
    model: torch.nn.Module,
    variants: Mapping[str, Any],
    reports: Mapping[str, str],
    clock: Clock,
) -> dict[str, Any]:
    system = make_system(job.system, atoms)
    info = model_info(model)
    spent: dict[str, float] = {}
    with stopwatch(spent, "float64"):
        exact = _exact(job, model, system, info.r_max) if job.check else None
    refused: list[dict[str, Any]] = []
    steps: dict[str, Callable[[], Results]] = {}
    results: dict[str, _Outcome] = {}
    sizes: dict[str, tuple[int, int]] = {}  # edges, bytes of inputs
    engine_bytes: dict[str, int] = {}
    largest = dict(job.largest)
    for impl, variant in variants.items():
        if len(system) > largest.get(impl, len(system)):
            continue
        release_memory()
        with _refusing(impl, job, refused):
            before = free_memory() if job.device == "cuda" else 0
            with stopwatch(spent, f"prepare {impl}"):
                step, *found = model_step(variant, system, job, info.r_max)
            with stopwatch(spent, f"first {impl}"):
                results[impl] = _Outcome.of(step())
            if isinstance(step, EngineStep) and job.device == "cuda":
                step()
                engine_bytes[impl] = max(before - free_memory(), step.reported_bytes)
            steps[impl], sizes[impl] = step, (found[0], found[1])
    release_memory()
    with stopwatch(spent, "timing"):
        timings, together = _time(job, steps, clock, refused)
    rows = []
    for impl, timing in timings.items():
        step, outcome = steps[impl], results[impl]
        row: dict[str, Any] = {
            "impl": impl,
            "seconds": timing.as_dict(),
            "energy": outcome.energy,
            "max_force": float(outcome.forces.abs().max()),
            "stress": outcome.stress is not None,
            "patch_report": step.report if isinstance(step, EngineStep) else reports[impl],
        }
        if job.device == "cuda":
            nbytes = sizes[impl][1]
            row["memory"] = (
                {"peak_bytes": engine_bytes[impl], "method": "driver"}
                if isinstance(step, EngineStep)
                else _peak(step, nbytes)
            )
        row |= _differences(outcome, results.get("e3nn"), "e3nn", len(system))
        row |= _differences(outcome, exact, "float64", len(system))
        _log.info("%d atoms, %s: %.3f ms", len(system), impl, 1e3 * timing.median)
        rows.append(row)
    # last, as launches take longer once a profiler has run
    if job.device == "cuda" and job.kernels and len(job.atoms) == 1:
        for row in rows:
            with stopwatch(spent, f"kernels {row['impl']}"):
                row |= device_times(steps[row["impl"]]).as_dict()
    return {
        "atoms": len(system),
        "edges": max((edges for edges, _ in sizes.values()), default=0),
        "side_by_side": together,
        "model_class": info.model_class,
        "dtype": str(info.dtype).removeprefix("torch."),
        "r_max": info.r_max,
        "torch_threads": torch.get_num_threads(),
        "rows": rows,
        "refused": refused,
        "spent": {name: round(seconds, 2) for name, seconds in spent.items()},
    }


def _time(
    job: ModelJob,
    steps: Mapping[str, Callable[[], Results]],
    clock: Clock,
    refused: list[dict[str, Any]],
) -> tuple[dict[str, Timing], bool]:
    """Time in turns, or one after the other if memory is short for all at once."""
    options = {"repeats": job.repeats, "warmup": job.warmup}
    try:
        return interleave(steps, clock, **options), True
    except (torch.OutOfMemoryError, MemoryError):
        if job.device == "cpu":
            raise
    found: dict[str, Timing] = {}
    for impl, step in steps.items():
        release_memory()
        with _refusing(impl, job, refused):
            found |= interleave({impl: step}, clock, **options)
    return found, False


def _differences(
    outcome: _Outcome, other: _Outcome | None, suffix: str, atoms: int
) -> dict[str, float]:
    """Return what is between two results, in eV per atom, eV/Å and eV/Å³."""
    if other is None:
        return {}
    found = {
        f"energy_difference_{suffix}": abs(outcome.energy - other.energy) / atoms,
        f"force_difference_{suffix}": float((outcome.forces - other.forces).abs().max()),
    }
    if outcome.stress is not None and other.stress is not None:
        found[f"stress_difference_{suffix}"] = float((outcome.stress - other.stress).abs().max())
    return found


def _peak(step: Callable[[], object], nbytes: int) -> dict[str, Any]:
    """Return the memory of an evaluation on a CUDA device that has run before."""
    peak = peak_memory(step, device="cuda")
    return {
        "operand_bytes": nbytes,
        "extra_bytes": peak.extra_bytes,
        "peak_bytes": nbytes + peak.extra_bytes,
        "method": peak.method,
    }


def _exact(job: ModelJob, model: torch.nn.Module, system: System, r_max: float) -> _Outcome | None:
    """Evaluate the unpatched model in float64, if there is memory for that.

    A model in float64 is compared with what is timed as ``e3nn`` anyway.
    """
    if model_info(model).dtype == torch.float64:
        return None
    step, _, _ = model_step(copy_in_dtype(model, torch.float64), system, job, r_max)
    try:
        return _Outcome.of(step())
    except torch.OutOfMemoryError:
        return None
    finally:
        release_memory()


def measure_memory(job: ModelJob, impl: str) -> dict[str, Any]:
    """Measure the peak memory of one evaluation above the loaded model.

    Returns
    -------
    dict
        Bytes of the inputs, of everything above them, and the method.
    """
    if job.device != "cpu":
        raise DeviceError(f"device is {job.device!r}, but memory is measured on the CPU only")
    system = make_system(job.system, job.atoms[0])
    model = job_model(job)
    r_max = model_info(model).r_max
    with tempfile.TemporaryDirectory(prefix="mdcg-") as folder:
        variant, _ = variant_of(impl, model, job, Path(folder))
        del model
        # same code paths on a few atoms, next to no memory
        warm, _, _ = model_step(variant, fragment(system), job, r_max)
        for _ in range(job.warmup):
            warm()
        step, _, nbytes = model_step(variant, system, job, r_max)
        peak = peak_memory(step)
    return {
        "operand_bytes": nbytes,
        "extra_bytes": peak.extra_bytes,
        "peak_bytes": nbytes + peak.extra_bytes,
        "method": peak.method,
    }
