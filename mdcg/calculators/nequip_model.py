"""A loaded NequIP model as a function from a geometry to energy, forces and stress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import InputError

from ..patch.nequip_inputs import (
    as_outputs,
    categorical_fields,
    gives_forces,
    nequip_batch,
    nequip_info,
    without_derivatives,
)
from .loaded_model import LoadedModel
from .neighbors import Edges


class NequipModel(LoadedModel):
    """A ``GraphModel`` of NequIP, which has no heads."""

    def __init__(
        self,
        model: torch.nn.Module,
        head: str | None,
        species_types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(model, nequip_info(model), head, species_types)
        if not gives_forces(model):
            raise ValueError(
                f"{self.info.model_class} computes no forces (its ForceStressOutput is missing or "
                "off); expected a model that does: build it with enable_ForceStressOutput"
            )
        self._cutoffs = (
            None
            if self.info.cutoffs is None
            else torch.from_numpy(self.info.cutoffs**2).to(self.info.device)
        )
        self._within: Edges | None = None
        self._reversed: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._fields = categorical_fields(model)

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return the categorical fields of the structure that the model reads, from ``info``."""
        return {name: atoms.info[name] for name in self._fields if name in atoms.info}

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model by MACE's names."""
        with without_derivatives(self.model, not gradients):
            out = self.model(self._batch(atoms, edges))
        return {**as_outputs(out), "node_energy": out["atomic_energy"]}

    def _batch(self, atoms: Atoms, edges: Edges) -> dict[str, torch.Tensor]:
        periodic = bool(np.any(atoms.pbc))
        cell = np.where(atoms.pbc[:, None], atoms.cell.array, 0.0) if periodic else None
        none = np.zeros((2, 0), dtype=np.int64)
        types = self.types[atoms.numbers]
        data = nequip_batch(self.info, types, atoms.positions, cell, none, np.zeros((0, 3)))
        if self._cutoffs is not None:
            edges = self._within_cutoffs(data, edges)
        known = self._reversed
        if known is None or known[0] is not edges.edge_index:
            # the same tensors for the same list, because the sorted order is cached by tensor
            known = (edges.edge_index, edges.edge_index.flip(0), -edges.unit_shifts)
            self._reversed = known
        data["edge_index"] = known[1]
        if periodic:
            data["edge_cell_shift"] = known[2]
        for name, (low, high) in self._fields.items():
            value = self._field(atoms, name, low, high)
            data[name] = torch.tensor([[value]], device=self.info.device)
        return data

    def _field(self, atoms: Atoms, name: str, low: int, high: int) -> int:
        value: Any = atoms.info.get(name)
        whole = isinstance(value, (int, float, np.number)) and int(value) == value
        if not whole or not low <= value <= high:
            raise InputError(
                f"atoms.info[{name!r}], which the model reads, is {value!r}, expected a whole "
                f"number, {low} to {high}"
            )
        return int(value)

    def _within_cutoffs(self, data: dict[str, torch.Tensor], edges: Edges) -> Edges:
        """Leave out edges beyond the cutoff of their two types, as NequIP does.

        The same tensors as last time if the set of edges is unchanged.
        """
        assert self._cutoffs is not None
        sender, receiver = edges.edge_index
        vectors = data["pos"][receiver] - data["pos"][sender] + edges.shifts
        kinds = data["atom_types"]
        reach = self._cutoffs[kinds[receiver], kinds[sender]]
        kept = torch.nonzero((vectors * vectors).sum(dim=1) <= reach).flatten()
        picked = edges.select(kept)
        if self._within is None or not self._within.equals(picked):
            self._within = picked
        return self._within
