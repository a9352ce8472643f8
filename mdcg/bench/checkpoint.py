"""The three forms of a checkpoint that the benchmark times: original, patched, converted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms

from ..package import ConversionOptions, convert_model
from ..package.inputs import lowest_values, neutral_values
from ..patch import load_model, model_info, neighbor_list, patch_model, unpatch_model
from ..patch.evaluate import model_cell, model_inputs, model_outputs
from ..patch.models import copy_in_dtype
from ..patch.systems import Structure
from .model import EngineStep, Loader, Settings, type_numbers


class TorchStep:
    """A model in torch with inputs on its device, neighbour list included."""

    def __init__(self, model: torch.nn.Module, settings: Settings, atoms: Atoms) -> None:
        self.model, self.info = model, model_info(model)
        names = self.info.type_names
        kinds = np.array(type_numbers(atoms, names)) if names else atoms.numbers
        system = Structure("", kinds, atoms.positions, atoms.cell.array, tuple(atoms.pbc))
        # charge, spin and field of PolarMACE are not among them: mace_batch has such values
        inputs = neutral_values(lowest_values(model))
        system = replace(system, cell=model_cell(model, self.info, system), inputs=inputs)
        edges = neighbor_list(system.positions, system.cell, system.pbc, self.info.r_max)
        # MACE's own lists are sorted by sender, the others' by receiver
        order = np.argsort(edges[0][int(self.info.framework != "mace")], kind="stable")
        edges = (edges[0][:, order], edges[1][order])
        self.num_edges, self._stress = len(order), settings.stress
        self.inputs = model_inputs(model, self.info, system, edges, settings.head)
        tensors = filter(torch.is_tensor, dict(self.inputs).values())
        self.nbytes = sum(tensor.nbytes for tensor in tensors)

    def __call__(self) -> Mapping[str, Any]:
        """Return energy, forces and, if it is wanted, stress, in eV and Å."""
        return model_outputs(self.model, self.info, self.inputs, self._stress)


def load(path: str) -> torch.nn.Module:
    """Load a checkpoint, and undo a patch."""
    model = load_model(path)
    unpatch_model(model)
    return model


def ready(model: torch.nn.Module, dtype: str | None, device: str) -> torch.nn.Module:
    """Return a model on a device and in a dtype, without gradients of its parameters."""
    if dtype is not None:
        model = copy_in_dtype(model, getattr(torch, dtype))
    return model.to(device).eval().requires_grad_(False)


def convert(model: torch.nn.Module, path: Path, settings: Settings, radial: Any = None) -> Path:
    """Write a model as a package; `radial` as in ``ConversionOptions``."""
    on_host = model if settings.device == "cpu" else copy.deepcopy(model).cpu()
    convert_model(on_host, ConversionOptions(head=settings.head, radial=radial)).save(path)
    return path


def loaders(model: torch.nn.Module, package: Path, settings: Settings) -> dict[str, Loader]:
    """Return functions that make each implementation of a model; the engine's writes `package`."""

    def patched() -> Callable[[Atoms], TorchStep]:
        found = copy.deepcopy(model)
        patch_model(found)
        return partial(TorchStep, found, settings)

    def engine() -> Callable[[Atoms], EngineStep]:
        return partial(EngineStep, convert(model, package, settings), settings)

    original = partial(TorchStep, model, settings)
    return {"original": lambda: original, "patched": patched, "engine": engine}


def exact(model: torch.nn.Module, settings: Settings) -> Callable[[Atoms], TorchStep] | None:
    """Return the model in float64, or None if it is in float64 already."""
    if model_info(model).dtype == torch.float64:
        return None
    return lambda atoms: TorchStep(copy_in_dtype(model, torch.float64), settings, atoms)
