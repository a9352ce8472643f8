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
_DTYPE_ATTRIBUTES = ("_output_dtype", "model_dtype")
#: Classes of mace with sums over reciprocal space: their energy depends on the cell itself.
_RECIPROCAL = ("MACELES", "PolarMACE")


def model_info(model: torch.nn.Module) -> ModelInfo:
    """Return the properties of a MACE or NequIP model, or raise TypeError."""
    return nequip_info(model) if is_nequip(model) else mace_info(model)


def copy_in_dtype(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return a copy of a model in another precision.

    NequIP's modules also cast to the dtype they were built with, which ``model.to`` leaves.
    """
    found = copy_model(model).to(dtype)
    for module in found.modules():
        for name in _DTYPE_ATTRIBUTES:
            if module.__dict__.get(name) in (torch.float32, torch.float64):
                module.__dict__[name] = dtype
    return found


@contextmanager
def frozen(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Switch off gradients of parameters for a while, so that autograd stores nothing for them."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def lacks_radial_derivative(model: torch.nn.Module) -> bool:
    """Whether a model's forces are not the gradient of its energy.

    mace gives the polynomials of ``radial_type="chebyshev"`` a derivative of zero.
    """
    basis = getattr(getattr(model, "radial_embedding", None), "bessel_fn", None)
    return type(basis).__name__ == "ChebychevBasis"


def with_radial_derivative(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with the same energies, whose forces are their gradient."""
    copied = copy_model(model)
    basis: Any = copied.radial_embedding.bessel_fn  # type: ignore[union-attr]
    count, original = basis.num_basis, basis.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        polynomials = [torch.ones_like(x), x]
        for _ in range(count - 1):  # T_n+1(x) = 2 x T_n(x) - T_n-1(x)
            polynomials.append(2.0 * x * polynomials[-1] - polynomials[-2])
        with_gradient = torch.cat(polynomials[1:], dim=1)
        # the original's values bit by bit, with the derivative of these
        return torch.as_tensor(original(x).detach() + (with_gradient - with_gradient.detach()))

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

    `edges` is what :func:`neighbor_list` returns, in any order. `fields` has inputs that the model
    reads of a structure, such as a charge, in place of MACE's defaults.
    """
    given = {name: torch.tensor([value]) for name, value in (fields or {}).items()}
    atoms = (system.atomic_numbers, system.positions)
    if info.is_nequip:
        data = nequip_batch(info, *atoms, system.cell if system.periodic else None, *edges)
        return data | {name: value[None] for name, value in given.items()}
    extras = {name: value.to(info.dtype) for name, value in given.items()}
    return mace_batch(info, *atoms, system.cell, system.pbc, *edges, head=head, extras=extras)


def _model_cell(info: ModelInfo, system: Structure) -> NDArray[np.float64]:
    """Return the cell that a model is given for a structure."""
    if info.model_class in _RECIPROCAL:
        # these models take roots of the volume, so the cell is right-handed and has one
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
    """Return the number of edges, and the model's outputs by MACE's names.

    The outputs have forces and stress where the model can compute them.
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
