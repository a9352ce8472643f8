"""Functions that work on MACE and NequIP models alike."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from . import nequip_inputs
from .copies import copy_model
from .mace_inputs import ModelInfo, complete_cell, mace_batch, mace_info, neighbor_list
from .nequip_inputs import is_nequip, nequip_batch, nequip_info
from .systems import Structure

#: Attributes in which NequIP's modules store the dtype that they were built with.
_NOTED = ("_output_dtype", "model_dtype")
#: Classes of MACE with sums over reciprocal space: their energy depends on the cell itself.
_RECIPROCAL = ("MACELES", "PolarMACE")


def model_info(model: torch.nn.Module) -> ModelInfo:
    """Read the facts that inputs depend on from a loaded MACE or NequIP model.

    Raises
    ------
    TypeError
        The object is neither.
    """
    return nequip_info(model) if is_nequip(model) else mace_info(model)


def copy_in_dtype(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return a copy of a model in another precision.

    ``model.to(dtype)`` is not enough for NequIP, whose modules cast to the dtype they were built
    with.
    """
    found = copy_model(model).to(dtype)
    for module in found.modules():
        for name in _NOTED:
            if module.__dict__.get(name) in (torch.float32, torch.float64):
                module.__dict__[name] = dtype
    return found


@contextmanager
def frozen(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Switch off gradients to parameters for a while, so that nothing is stored for them."""
    live = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in live:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in live:
            parameter.requires_grad_(True)


def lacks_radial_derivative(model: torch.nn.Module) -> bool:
    """Return whether a model's forces are not the gradient of its energy.

    torch gives the Chebyshev polynomials of MACE's ``radial_type="chebyshev"`` a derivative of
    zero.
    """
    basis = getattr(getattr(model, "radial_embedding", None), "bessel_fn", None)
    return type(basis).__name__ == "ChebychevBasis"


def with_radial_derivative(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with the same energies and with forces that are their gradient.

    Source: ``T_n+1(x) = 2 x T_n(x) - T_n-1(x)``.
    """
    copied = copy_model(model)
    basis: Any = copied.radial_embedding.bessel_fn  # type: ignore[union-attr]
    count, values = basis.num_basis, basis.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        found = [torch.ones_like(x), x]
        for _ in range(count - 1):
            found.append(2.0 * x * found[-1] - found[-2])
        known = torch.cat(found[1:], dim=1)
        return torch.as_tensor(values(x).detach() + (known - known.detach()))

    basis.forward = forward
    return copied


def model_batch(
    info: ModelInfo,
    system: Structure,
    edges: Sequence[ArrayLike],
    head: str | None = None,
    fields: Mapping[str, int] | None = None,
) -> dict[str, torch.Tensor]:
    """Build the ``data`` argument of a model's ``forward`` for one structure.

    Parameters
    ----------
    info : ModelInfo
        Of the model.
    system : Structure
        With atomic numbers from `info.kinds`; for a NequIP model these are type numbers. The cell
        has a volume if it is periodic.
    edges : sequence of two arrays
        What :func:`neighbor_list` returns, in any order.
    head : str, optional
        Needed if there are several.
    fields : mapping of str to int, optional
        Inputs of the structure that the model reads, such as a charge; default: MACE's.
    """
    given = {name: torch.tensor([value]) for name, value in (fields or {}).items()}
    place = (system.atomic_numbers, system.positions)
    if info.is_nequip:
        data = nequip_batch(info, *place, system.cell if system.periodic else None, *edges)
        return data | {name: value[None] for name, value in given.items()}
    extras = {name: value.to(info.dtype) for name, value in given.items()}
    return mace_batch(info, *place, system.cell, system.pbc, *edges, head=head, extras=extras)


def _model_cell(info: ModelInfo, system: Structure) -> NDArray[np.float64]:
    """Return the cell that a model is given for a structure."""
    if info.model_class in _RECIPROCAL:
        # right-handed and with a volume, of which these models take roots
        open_length = float(np.ptp(system.positions, axis=0).max()) + info.r_max
        cell = np.where(np.array(system.pbc)[:, None], system.cell, open_length * np.eye(3))
        return np.asarray(cell * np.sign(np.linalg.det(cell)))
    return complete_cell(system.cell, system.pbc) if system.periodic else system.cell


def evaluate_structure(
    model: torch.nn.Module,
    info: ModelInfo,
    system: Structure,
    head: str | None = None,
    fields: Mapping[str, int] | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """Evaluate a model on a structure, forces and stress included where it can.

    Parameters
    ----------
    model : torch.nn.Module
    info : ModelInfo
        As the rest in :func:`model_batch`.
    system : Structure
    head : str, optional
    fields : mapping of str to int, optional

    Returns
    -------
    tuple of int and dict of str to torch.Tensor
        Number of edges; outputs by MACE's names.
    """
    system = replace(system, cell=_model_cell(info, system))
    edges = neighbor_list(system.positions, system.cell, system.pbc, info.r_max)
    data, count = model_batch(info, system, edges, head, fields), edges[0].shape[1]
    if info.is_nequip:
        return count, nequip_inputs.as_outputs(model(data))
    takes = inspect.signature(model.forward).parameters
    energy = hasattr(model, "atomic_energies_fn")  # dipole models cannot compute forces
    options = {"compute_force": energy, "compute_stress": energy and system.periodic}
    return count, model(data, **{k: v for k, v in options.items() if k in takes})
