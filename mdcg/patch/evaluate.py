"""Evaluates models of MACE, NequIP, SevenNet and Nequix; results have MACE's names."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ._frameworks import default_dtype
from .models import (
    RECIPROCAL_MODELS,
    ModelInfo,
    as_outputs,
    complete_cell,
    mace_batch,
    neighbor_list,
    nequip_batch,
)
from .nequix_files import nequix_inputs, nequix_outputs
from .sevennet_files import sevennet_batch, sevennet_outputs
from .systems import Structure


def model_inputs(
    model: torch.nn.Module,
    info: ModelInfo,
    system: Structure,
    edges: tuple[ArrayLike, ArrayLike],
    head: str | None = None,
) -> Any:
    """Return what :func:`model_outputs` evaluates: a mapping of tensors on the model's device.

    `edges` is the result of :func:`~mdcg.patch.models.neighbor_list`; edges may have any order. The
    inputs of the system are for MACE, whose defaults they replace, and NequIP.
    """
    if info.framework == "sevennet":
        modal = info.heads[info.head_index(head)]
        atoms = (system.atomic_numbers, system.positions, system.cell)
        return sevennet_batch(model, info.dtype, *atoms, *edges, modal).to(info.device)
    if info.framework == "nequix":
        species, cell = info.species(system.atomic_numbers), system.cell
        on_device = (info.device, info.dtype)
        return nequix_inputs(
            *on_device, species, system.positions, cell if system.periodic else None, *edges
        )
    given = {
        name: torch.tensor([value], device=info.device) for name, value in system.inputs.items()
    }
    field = [given.pop(f"external_field_{d}") for d in "xyz" if f"external_field_{d}" in given]
    if field:
        given["external_field"] = torch.stack(field, dim=-1)
    places = (system.atomic_numbers, system.positions)
    if info.is_nequip:
        data = nequip_batch(info, *places, system.cell if system.periodic else None, *edges)
        return data | {name: value[None] for name, value in given.items()}
    extras = {name: value.to(info.dtype) for name, value in given.items()}
    return mace_batch(info, *places, system.cell, system.pbc, *edges, head=head, extras=extras)


def model_outputs(
    model: torch.nn.Module, info: ModelInfo, inputs: Any, stress: bool
) -> dict[str, torch.Tensor]:
    """Return energy and, where the model computes them, forces and stress, by MACE's names.

    `stress` is for MACE and SevenNet; NequIP and Nequix compute it wherever there is a cell.
    """
    # all but NequIP make tensors in torch's default dtype
    with default_dtype(info.dtype):
        if info.framework == "sevennet":
            return sevennet_outputs(model(copy.copy(inputs)), stress)
        if info.framework == "nequix":
            return nequix_outputs(model(**inputs), has_cell=inputs["cell"] is not None)
        data = dict(inputs)  # models add entries
        if info.is_nequip:
            return as_outputs(model(data))
        takes = inspect.signature(model.forward).parameters
        energy = hasattr(model, "atomic_energies_fn")  # dipole models cannot compute forces
        options = {"compute_force": energy, "compute_stress": energy and stress}
        options = {name: value for name, value in options.items() if name in takes}
        found: dict[str, torch.Tensor] = model(data, **options)
    if "latent_charges" in found:
        found["charges"] = found["latent_charges"]
    return found


def model_cell(model: torch.nn.Module, info: ModelInfo, system: Structure) -> NDArray[np.float64]:
    """Return the cell that a model is given for a structure."""
    if any(type(module).__name__ == "LatentEwaldSum" for module in model.modules()):
        cell = system.cell  # the package les takes left-handed cells for open systems
        return np.asarray(cell * np.sign(np.linalg.det(cell)))
    if info.model_class in RECIPROCAL_MODELS:
        # these models take roots of the volume, so it must be positive
        open_length = float(np.ptp(system.positions, axis=0).max()) + info.r_max
        cell = np.where(np.array(system.pbc)[:, None], system.cell, open_length * np.eye(3))
        return np.asarray(cell * np.sign(np.linalg.det(cell)))
    return complete_cell(system.cell, system.pbc) if system.periodic else system.cell


def evaluate_structure(
    model: torch.nn.Module,
    info: ModelInfo,
    system: Structure,
    head: str | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the number of edges, and the model's outputs by MACE's names.

    The outputs include forces and stress if the model can compute them.
    """
    system = replace(system, cell=model_cell(model, info, system))
    edges = neighbor_list(system.positions, system.cell, system.pbc, info.r_max)
    inputs = model_inputs(model, info, system, edges, head)
    return edges[0].shape[1], model_outputs(model, info, inputs, system.periodic)
