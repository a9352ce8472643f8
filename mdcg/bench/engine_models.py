"""Whole models as packages, evaluated by the engine: for the benchmark of models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols

from .. import _core
from ..package import ConversionOptions, convert_model
from .jobs import ModelJob
from .systems import System, neighbours

__all__ = ["EngineModel", "engine_model", "engine_step", "save_package"]


@dataclass(frozen=True)
class EngineModel:
    """An open package and what has to be known to call it."""

    model: Any
    type_names: tuple[str, ...]
    r_max: float
    flipped: bool

    @property
    def report(self) -> str:
        """What runs, in one line."""
        return str(self.model.summary())


def engine_model(impl: str, model: torch.nn.Module, head: str | None) -> EngineModel:
    """Convert a model and open the package.

    Parameters
    ----------
    impl : {"engine", "engine-exact", "engine-table"}
        With tables of the radial networks in float32 where their error is below rounding; without;
        with them, in float64 too.
    model : torch.nn.Module
        Unpatched; it is not changed.
    head : str or None
    """
    _, _, radial = impl.partition("-")
    options = ConversionOptions(head=head, radial=radial or None)
    package = convert_model(model, options)
    with tempfile.TemporaryDirectory(prefix="mdcg-") as folder:
        path = Path(folder) / "model.mdcg"
        package.save(path)
        opened = _core.Model(str(path), threads=torch.get_num_threads())
    flipped = package.manifest["edge_vector"] == "sender_minus_receiver"
    return EngineModel(opened, tuple(package.type_names), package.r_max, flipped)


def save_package(name: str, path: Path) -> None:
    """Convert a model of the benchmark, by its name, in float32."""
    from .model import load_model_of  # which imports this module

    job = ModelJob(model=name, dtype="float32", device="cpu", atoms=None, impls=("engine",))
    convert_model(load_model_of(job), ConversionOptions()).save(path)


def engine_step(
    engine: EngineModel, system: System
) -> tuple[Callable[[], Mapping[str, torch.Tensor]], int, int]:
    """Return a function for one evaluation, the number of edges, and the bytes of its inputs.

    The edges are put in order by the first call, as in dynamics with a neighbour list that holds
    for several steps; every call filters them and computes vectors anew.
    """
    edges = neighbours(system, engine.r_max, order="receiver", threads=torch.get_num_threads())
    names = [chemical_symbols[number] for number in system.numbers]
    unknown = sorted(set(names) - set(engine.type_names))
    if unknown:
        raise ValueError(
            f"the model cannot evaluate {system.name}: it does not know {', '.join(unknown)}: "
            "choose --system"
        )
    types = np.array([engine.type_names.index(name) for name in names], dtype=np.int32)
    positions = np.ascontiguousarray(system.positions, dtype=np.float64)
    graph = (
        edges.sender.astype(np.int32),
        edges.receiver.astype(np.int32),
        np.asarray(edges.shifts @ system.cell, dtype=np.float64),
    )
    known = False

    def evaluate() -> dict[str, torch.Tensor]:
        nonlocal known
        found = engine.model.evaluate(positions, types, edges=graph, same_edges=known, forces=True)
        known = True
        return {
            "energy": torch.tensor([found["energy"]]),
            "forces": torch.from_numpy(found["forces"]),
        }

    return evaluate, len(edges), positions.nbytes + types.nbytes + sum(a.nbytes for a in graph)
