"""Whole models as packages, evaluated by the engine: for the benchmark of models."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase.data import chemical_symbols

from .. import _core
from ..calculators.package_backend import engine_errors
from ..errors import KernelCompileError
from ..package import ConversionOptions, convert_model
from ..runtime.nvrtc import find_nvrtc
from .jobs import PRECISIONS, ModelJob
from .systems import System

__all__ = ["EnginePackage", "EngineStep", "engine_package", "package_name", "save_package"]


@dataclass(frozen=True)
class EnginePackage:
    """A package, where it is evaluated, and in which precision; empty: its own."""

    path: Path
    device: str
    precision: str = ""


def package_name(impl: str, job: ModelJob) -> str | None:
    """Return the name of a random model's package in a folder of them; None for files."""
    if Path(job.model).is_file():
        return None
    kind = f"-{radial}" if (radial := _radial(impl)) else ""
    return f"{job.model}-{job.dtype or 'float32'}-seed{job.seed}{kind}.mdcg"


def _radial(impl: str) -> str | None:
    """Return what becomes of radial networks, or None."""
    _, _, kind = impl.partition("-")
    return kind if kind and kind not in PRECISIONS else None


def engine_package(
    impl: str, model: torch.nn.Module, job: ModelJob, temporary: Path
) -> EnginePackage:
    """Convert a model, unless the job's folder has the package.

    Parameters
    ----------
    impl : {"engine", "engine-exact", "engine-table", "engine-tf32", "engine-bf16"}
        With tables of the radial networks in float32 where their error is below rounding; without;
        with them, in float64 too; as the first, computed in another precision.
    model : torch.nn.Module
        Unpatched; it is not changed.
    job : ModelJob
    temporary : path
        Folder for packages that are not kept.
    """
    name = package_name(impl, job)
    kept = job.packages is not None and name is not None
    path = (Path(job.packages) if kept else temporary) / (name or f"{impl}.mdcg")  # type: ignore[arg-type]
    if not (kept and path.is_file()):
        options = ConversionOptions(head=job.head, radial=_radial(impl))
        on_host = model if job.device == "cpu" else copy.deepcopy(model).cpu()
        package = convert_model(on_host, options)
        path.parent.mkdir(parents=True, exist_ok=True)
        package.save(path)
    if job.device != "cpu":
        with suppress(KernelCompileError):  # they may be cached; the engine says if not
            _core.set_nvrtc_path(find_nvrtc()[1])
    precision = impl.removeprefix("engine-")
    return EnginePackage(
        path,
        "cpu" if job.device == "cpu" else "cuda:0",
        precision if precision in PRECISIONS else "",
    )


def save_package(name: str, path: Path) -> None:
    """Convert a model of the benchmark, by its name, in float32."""
    from .model import job_model  # which imports this module

    job = ModelJob(model=name, dtype="float32", device="cpu", impls=("engine",))
    convert_model(job_model(job), ConversionOptions()).save(path)


class EngineStep:
    """One system in an open package; a call is a step of dynamics whose neighbour list holds.

    The first call puts the edges in order. Every call takes positions from the host, filters edges,
    computes vectors anew, and returns results to the host.

    Parameters
    ----------
    package : EnginePackage
    system : System
    stress : bool
        Also the stress.
    """

    def __init__(self, package: EnginePackage, system: System, *, stress: bool) -> None:
        threads = torch.get_num_threads()
        with engine_errors():
            self.model = _core.Model(
                str(package.path),
                device=package.device,
                threads=threads,
                precision=package.precision,
            )
            type_names = self.model.type_names
            names = [chemical_symbols[number] for number in system.numbers]
            unknown = sorted(set(names) - set(type_names))
            if unknown:
                raise ValueError(
                    f"the model cannot evaluate {system.name}: it does not know "
                    f"{', '.join(unknown)}: choose --system"
                )
            place = {name: n for n, name in enumerate(type_names)}
            self._types = np.array([place[name] for name in names], dtype=np.int32)
            self._positions = np.ascontiguousarray(system.positions, dtype=np.float64)
            self._edges = _core.NeighborList(self.model.r_max, 0.0)
            self._edges.update(self._positions, system.cell, system.periodic, threads)
        self.num_edges = int(self._edges.num_edges)
        # two indices and a shift for each edge
        self.nbytes = self._positions.nbytes + self._types.nbytes + 32 * self.num_edges
        self._stress = stress
        self._volume = abs(float(np.linalg.det(system.cell)))
        self._known = False

    def __call__(self) -> Mapping[str, torch.Tensor]:
        """Evaluate; raises what the engine says as exceptions of this package."""
        with engine_errors():
            found = self.model.evaluate(
                self._positions,
                self._types,
                edges=self._edges,
                same_edges=self._known,
                forces=True,
                virial=self._stress,
            )
        self._known = True
        results = {
            "energy": torch.tensor([found["energy"]], dtype=torch.float64),
            "forces": torch.from_numpy(found["forces"]),
        }
        if self._stress:
            results["stress"] = torch.from_numpy(found["virial"] / -self._volume)
        return results

    @property
    def report(self) -> str:
        """What runs, in one line."""
        return str(self.model.summary())

    @property
    def reported_bytes(self) -> int:
        """What the engine says it has on its device; 0 for the host."""
        return int(json.loads(self.model.report()).get("bytes", 0))
