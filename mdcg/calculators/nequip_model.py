"""A loaded NequIP model as a function from a geometry to energy, forces and stress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import InputError
from ase.data import atomic_numbers, chemical_symbols

from ..patch.nequip_inputs import gives_forces, nequip_batch, nequip_info, without_derivatives
from .evaluation import Evaluation, as_array, check_finite, frozen, one_at_a_time
from .neighbors import Edges, IntArray

__all__ = ["NequipModel"]


class NequipModel:
    """A NequIP model with what has to be known to call it.

    Parameters
    ----------
    model : torch.nn.Module
        A ``GraphModel``, patched or not. It is not changed.
    head : str or None
        None: NequIP models have no heads.
    species_types : mapping of str to str, optional
        Type name for each chemical symbol; default: type names are chemical symbols.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        head: str | None,
        species_types: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.info = nequip_info(model)
        if not gives_forces(model):
            raise ValueError(
                f"{self.info.model_class} computes no forces (its ForceStressOutput is missing or "
                "off); expected a model that does: build it with enable_ForceStressOutput"
            )
        self.head = self.info.heads[self.info.head_index(head)]
        self._types = self._type_numbers(species_types)
        self._cutoffs = (
            None
            if self.info.cutoffs is None
            else torch.from_numpy(self.info.cutoffs**2).to(self.info.device)
        )
        self._within: Edges | None = None
        self._reversed: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._parameters = list(model.parameters())  # walking the modules takes 0.5 ms

    @property
    def symbols(self) -> list[str]:
        """Chemical symbols that the model takes."""
        return [chemical_symbols[z] for z in np.flatnonzero(self._types >= 0)]

    def check_species(self, numbers: IntArray) -> None:
        """Raise ``InputError`` if the model does not know one of the elements."""
        inside = (numbers >= 0) & (numbers < len(self._types))
        if inside.all() and (self._types[numbers] >= 0).all():
            return
        unknown = sorted(
            {int(n) for n, ok in zip(numbers, inside, strict=True) if not ok or self._types[n] < 0}
        )
        names = [
            chemical_symbols[n] if 0 <= n < len(chemical_symbols) else f"Z={n}" for n in unknown
        ]
        raise InputError(
            f"the model does not know {', '.join(names)}; it was trained for "
            f"{', '.join(self.symbols)}"
        )

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return nothing: the model reads the geometry only."""
        return {}

    def evaluate(
        self,
        atoms: Atoms,
        edges: Edges,
        *,
        forces: bool,
        stress: bool,
    ) -> Evaluation:
        """Evaluate the model on one structure.

        Parameters
        ----------
        atoms : ase.Atoms
            At least one atom, of known species.
        edges : Edges
            All edges within the model's cutoff.
        forces, stress : bool
            Whether to compute them; the backward pass is left out if neither is wanted.

        Raises
        ------
        ase.calculators.calculator.CalculationFailed
            The model returned a number that is not finite.
        """
        gradients = forces or stress
        with (
            one_at_a_time(self.model),
            frozen(self._parameters),
            without_derivatives(self.model, not gradients),
            torch.enable_grad() if gradients else torch.no_grad(),
        ):
            out = self.model(self._batch(atoms, edges))
        energies = as_array(out["atomic_energy"]).reshape(-1)
        total = float(out["total_energy"].detach().double().sum())
        limit = 1e-10 * (1.0 + float(np.abs(energies).sum()))
        result = Evaluation(
            energy=total,
            energies=energies if abs(energies.sum() - total) <= limit else None,
            forces=as_array(out["forces"]) if gradients else None,
            stress=as_array(out["stress"]).reshape(3, 3) if stress else None,
        )
        check_finite(result, atoms)
        return result

    def _type_numbers(self, species_types: Mapping[str, str] | None) -> IntArray:
        """Return the type of every atomic number, -1 where there is none."""
        names = self.info.type_names
        if species_types is None:
            strange = [name for name in names if name not in atomic_numbers]
            if strange:
                raise ValueError(
                    f"the model's types are {', '.join(names)}, of which {', '.join(strange)} are "
                    "no chemical symbols: pass species_types={'H': name, ...}, the type name of "
                    "every chemical symbol"
                )
            species_types = {name: name for name in names}
        found = np.full(len(chemical_symbols), -1, dtype=np.int64)
        for symbol, name in species_types.items():
            if symbol not in atomic_numbers:
                raise ValueError(f"species_types has {symbol!r}, which is no chemical symbol")
            if name not in names:
                raise ValueError(
                    f"species_types maps {symbol} to {name!r}, expected one of the model's types: "
                    f"{', '.join(names)}"
                )
            found[atomic_numbers[symbol]] = names.index(name)
        return found

    def _batch(self, atoms: Atoms, edges: Edges) -> dict[str, torch.Tensor]:
        periodic = bool(np.any(atoms.pbc))
        cell = np.where(atoms.pbc[:, None], atoms.cell.array, 0.0) if periodic else None
        none = np.zeros((2, 0), dtype=np.int64)
        types = self._types[atoms.numbers]
        data = nequip_batch(self.info, types, atoms.positions, cell, none, np.zeros((0, 3)))
        if self._cutoffs is not None:
            edges = self._within_cutoffs(data, edges)
        known = self._reversed
        if known is None or known[0] is not edges.edge_index:
            # the same tensors for the same list: their order is remembered by them
            known = (edges.edge_index, edges.edge_index.flip(0), -edges.unit_shifts)
            self._reversed = known
        data["edge_index"] = known[1]
        if periodic:
            data["edge_cell_shift"] = known[2]
        return data

    def _within_cutoffs(self, data: dict[str, torch.Tensor], edges: Edges) -> Edges:
        """Leave out edges beyond the cutoff of their two types, as NequIP does.

        The same tensors as last time if no edge came or went.
        """
        assert self._cutoffs is not None
        sender, receiver = edges.edge_index
        vectors = data["pos"][receiver] - data["pos"][sender] + edges.shifts
        kinds = data["atom_types"]
        reach = self._cutoffs[kinds[receiver], kinds[sender]]
        kept = torch.nonzero((vectors * vectors).sum(dim=1) <= reach).flatten()
        picked = Edges(
            edges.edge_index.index_select(1, kept),
            edges.unit_shifts.index_select(0, kept),
            edges.shifts.index_select(0, kept),
        )
        if self._within is None or not self._within.equals(picked):
            self._within = picked
        return self._within
