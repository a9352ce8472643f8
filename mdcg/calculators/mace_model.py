"""A loaded MACE model as a function from a geometry to energy, forces and stress."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import InputError

from ..patch._frameworks import default_dtype
from ..patch.mace_inputs import mace_batch, mace_info
from .evaluation import keys_of_input
from .loaded_model import LoadedModel
from .neighbors import BoolArray, Edges, FloatArray

# Classes whose energy is the sum of node energies; others add terms that are not per atom.
_ATOMIC_CLASSES = ("MACE", "ScaleShiftMACE")


@dataclass(frozen=True)
class _Input:
    """An input besides the geometry: one row of numbers per atom or per structure."""

    per_atom: bool
    width: int


class MaceModel(LoadedModel):
    """A MACE model of any class that returns an energy."""

    def __init__(self, model: torch.nn.Module, head: str | None) -> None:
        super().__init__(model, mace_info(model), head)
        if not hasattr(model, "atomic_energies_fn"):
            raise ValueError(
                f"{self.info.model_class} computes no energy, so there are no forces to run with; "
                "expected a MACE model trained on energies"
            )
        self.is_atomic = self.info.model_class in _ATOMIC_CLASSES and not hasattr(
            model, "embedding_readout"
        )
        # mace makes masks of heads and products of nuclear charges in torch's default dtype
        self._reads_default = (
            len(self.info.heads) > 1
            or hasattr(model, "pair_repulsion_fn")
            or self.info.model_class not in _ATOMIC_CLASSES
        )
        self._inputs = self._named_inputs()
        self._static: tuple[tuple[Any, ...], dict[str, torch.Tensor]] | None = None

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return what the model reads besides the geometry (charge, spin, ...), if anything.

        `atoms.info` holds inputs per structure (``"charge"``, ``"spin"``, or the name that the
        model has for it), `atoms.arrays` those per atom. Missing ones keep their neutral value.
        """
        found = {}
        for name, wanted in self._inputs.items():
            store = atoms.arrays if wanted.per_atom else atoms.info
            for key in keys_of_input(name):
                if key in store and not isinstance(store[key], (str, bytes)):
                    found[name] = store[key]
                    break
        return found

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model."""
        with default_dtype(self.info.dtype) if self._reads_default else nullcontext():
            data = self._batch(atoms, edges)
            found: Mapping[str, torch.Tensor] = self.model(
                data, training=False, compute_force=gradients, compute_stress=stress
            )
        return found

    def _named_inputs(self) -> dict[str, _Input]:
        """Return what the model reads besides the geometry."""
        inputs = {
            name: _Input(per not in ("graph",), 1 if kind == "categorical" else width)
            for name, (per, kind, width) in self.info.graph_features.items()
        }
        if self.info.model_class in _ATOMIC_CLASSES:
            return inputs
        number = _Input(per_atom=False, width=1)
        field = _Input(per_atom=False, width=3)
        return {"total_charge": number, "total_spin": number, "external_field": field, **inputs}

    def _batch(self, atoms: Atoms, edges: Edges) -> dict[str, torch.Tensor]:
        dtype, device = self.info.dtype, self.info.device
        data = dict(self._static_part(atoms))
        data["positions"] = torch.tensor(atoms.positions, dtype=dtype, device=device)
        data["edge_index"] = edges.edge_index
        data["shifts"] = edges.shifts.to(dtype)
        data["unit_shifts"] = edges.unit_shifts.to(dtype)
        return data

    def _static_part(self, atoms: Atoms) -> Mapping[str, torch.Tensor]:
        """Return the inputs that do not depend on positions: one-hot species, cell, head, ..."""
        cell = self._model_cell(atoms)
        inputs = self.inputs_of(atoms)
        key = (
            atoms.numbers.tobytes(),
            cell.tobytes(),
            atoms.pbc.tobytes(),
            *((name, np.asarray(value).tobytes()) for name, value in inputs.items()),
        )
        if self._static is not None and self._static[0] == key:
            return self._static[1]
        no_edges = np.zeros((2, 0), dtype=np.int64)
        data = mace_batch(
            self.info,
            atoms.numbers,
            atoms.positions,
            cell,
            atoms.pbc.tolist(),
            no_edges,
            np.zeros((0, 3)),
            head=self.head,
            extras=self._tensors(inputs, len(atoms)),
        )
        self._static = (key, data)
        return data

    def _model_cell(self, atoms: Atoms) -> FloatArray:
        """Return the cell for the model; like MACE, it has long vectors along open directions."""
        cell = np.array(atoms.cell.array, dtype=np.float64)
        pbc: BoolArray = atoms.pbc
        if pbc.all():
            return cell
        if self.info.model_class in _ATOMIC_CLASSES:  # reads no vectors along open directions
            return np.where(pbc[:, None], cell, 0.0)
        length = (np.abs(atoms.positions).max() + 1.0) * 5.0 * self.info.r_max
        return np.where(pbc[:, None], cell, length * np.identity(3))

    def _tensors(self, inputs: Mapping[str, Any], n_nodes: int) -> dict[str, torch.Tensor]:
        tensors = {}
        for name, value in inputs.items():
            rows, width = n_nodes if self._inputs[name].per_atom else 1, self._inputs[name].width
            try:
                array = np.asarray(value, dtype=np.float64)
                array = array.reshape((rows,) if width == 1 else (rows, width))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{name} is {value!r}, expected {width} number(s) "
                    f"{'per atom' if self._inputs[name].per_atom else 'for the structure'}"
                ) from error
            tensors[name] = torch.tensor(array, dtype=self.info.dtype, device=self.info.device)
        return tensors
