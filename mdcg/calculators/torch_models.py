"""Loaded models as functions from a geometry to energy, forces and stress."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from ase import Atoms
from ase.calculators.calculator import InputError, equal

from ..errors import UnsupportedProblemError
from ..package.inputs import FIELD_COMPONENTS, SystemInput, system_input
from ..patch._frameworks import default_dtype
from ..patch.models import (
    ModelInfo,
    as_outputs,
    categorical_fields,
    complete_cell,
    frozen,
    gives_forces,
    mace_batch,
    mace_info,
    model_record,
    nequip_batch,
    nequip_info,
    sevennet_info,
    without_derivatives,
)
from ..patch.sevennet_files import sevennet_batch
from .descriptors import LayerFeatures
from .evaluation import (
    Evaluation,
    Options,
    check_finite,
    long_cell,
    stress_of,
    stress_volume,
    types_by_number,
)
from .neighbors import BoolArray, Edges, FloatArray
from .stated_inputs import (
    HEAD,
    input_values,
    refuse_field,
    stated_head,
    stated_inputs,
    stated_value,
)


def as_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return tensor.detach().to(device="cpu", dtype=torch.float64).numpy()


_LOG = logging.getLogger("mdcg")
_locks: WeakKeyDictionary[torch.nn.Module, threading.RLock] = WeakKeyDictionary()
_registry = threading.Lock()


def _after_fork() -> None:
    """Replace, in a forked child, the locks that threads of the parent may have held."""
    global _locks, _registry
    _locks, _registry = WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def one_at_a_time(model: torch.nn.Module) -> Iterator[None]:
    """Keep other threads from evaluating the same model.

    Calculators may share a model, which an evaluation changes for a while.
    """
    with _registry:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


def _default_head(model: torch.nn.Module) -> str | None:
    """Return the head chosen by mdcg-patch, or the only one named default, as MACE does."""
    heads = [str(head) for head in getattr(model, "heads", None) or ()]
    found = [head for head in heads if head.lower() == "default"]
    chosen = model_record(model).get("head")
    if chosen or len(heads) < 2 or len(found) != 1:
        return chosen
    _LOG.info("head %s of %s, because none was named", found[0], ", ".join(heads))
    return found[0]


class LoadedModel:
    """A loaded model, patched or not, as a function from a geometry to energy, forces and stress.

    The head of the options may be None if the model has one only, or one that is the default.
    """

    #: Whether the energy is by definition the sum of the energies of atoms.
    is_atomic = False

    def __init__(self, model: torch.nn.Module, info: ModelInfo, options: Options) -> None:
        self.model, self.info, self.options = model, info, options
        head = _default_head(model) if options.head is None else options.head
        self.head = info.heads[info.head_index(head)]
        self.types = types_by_number(info.symbols, options.species_types)
        self._parameters = list(model.parameters())  # kept, because collecting them takes 0.5 ms

    def input_names(self) -> tuple[Iterable[str], Iterable[str]]:
        """Return names of the inputs besides head and geometry: per structure, and per atom."""
        return (), ()

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return what a structure states of the inputs besides the geometry, unchecked."""
        per_structure, per_atom = self.input_names()
        heads = [HEAD] if len(self.info.heads) > 1 else []
        return {
            **stated_inputs(
                [*per_structure, *FIELD_COMPONENTS, *heads], atoms.info, self.options.info_keys
            ),
            "arrays": stated_inputs(per_atom, atoms.arrays, self.options.arrays_keys),
        }

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if an input of the model is missing or unusable."""
        self.head_of(atoms)
        self._refuse_field(atoms)

    def _refuse_field(self, atoms: Atoms) -> None:
        """Raise ``InputError`` for an external field that the model does not take."""
        if FIELD_COMPONENTS[0] not in self.input_names()[0]:
            refuse_field(atoms.info, "the model", self.options.info_keys)

    def head_of(self, atoms: Atoms) -> str:
        """Return the head for a structure, which may state one of several."""
        stated = stated_head(atoms, self.options) if len(self.info.heads) > 1 else None
        if stated is None:
            return self.head
        if stated not in self.info.heads:
            raise InputError(
                f"head of the structure is {stated!r}, expected one of the model's: "
                f"{', '.join(self.info.heads)}"
            )
        return stated

    def descriptors(self, atoms: Atoms, edges: Edges | None) -> LayerFeatures:
        """Return the features of every atom; there are no edges if there are no atoms."""
        raise UnsupportedProblemError(
            f"get_descriptors is for packages and for MACE models of energies alone, and this is "
            f"{self.info.model_class} of {self.info.framework}: convert the checkpoint with "
            "'mdcg-patch FILE -o NAME.mdcg' and give that file"
        )

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model by MACE's names."""
        raise NotImplementedError

    def evaluate(self, atoms: Atoms, edges: Edges, wanted: set[str]) -> Evaluation:
        """Evaluate the model on a structure of one atom or more, with its edges.

        Raises ``InputError`` if an input of the model is missing or unusable, and
        ``CalculationFailed`` if the model returned a number that is not finite.
        """
        self._refuse_field(atoms)  # run() checks what the model reads
        stress, gradients = "stress" in wanted, bool(wanted)
        # an energy without forces needs no backward pass
        mode = torch.enable_grad() if gradients else torch.no_grad()
        with one_at_a_time(self.model), frozen(self._parameters), mode:
            out = self.run(atoms, edges, gradients, stress)
        energy = float(out["energy"].detach().double().sum())
        per_atom = out.get("node_energy")
        energies = None if per_atom is None else as_array(per_atom).reshape(-1)
        if energies is not None and self.is_atomic:
            # a float32 sum has errors of 1e-7 of the total; a float64 sum of its terms has none
            energy = float(energies.sum())
        elif energies is not None:
            single = per_atom is not None and per_atom.dtype == torch.float32
            limit = (1e-6 if single else 1e-10) * (1.0 + float(np.abs(energies).sum()))
            energies = energies if abs(energies.sum() - energy) <= limit else None
        volume = stress_volume(atoms, self.options.reach(self.info.r_max)) if stress else 0.0
        result = Evaluation(
            energy=energy,
            energies=energies,
            forces=as_array(out["forces"]) if gradients else None,
            stress=stress_of(as_array(out["virials"]).reshape(3, 3), volume) if stress else None,
        )
        check_finite(result, atoms)
        return result


# Classes whose energy is the sum of node energies. Others add terms that are not per atom.
_ATOMIC_CLASSES = ("MACE", "ScaleShiftMACE")
# Classes whose energies depend on no inputs but those of their embeddings.
_WITHOUT_INPUTS = (*_ATOMIC_CLASSES, "EnergyDipolesMACE", "MACELES")


# What MACE's own calculator gives a model where the structure states nothing.
_NEUTRAL = {
    "total_charge": 0,
    "total_spin": 1,
    "elec_temp": 0.0,
    **dict.fromkeys(FIELD_COMPONENTS, 0.0),
}


@dataclass(frozen=True)
class _Input:
    """An input besides the geometry: a row of numbers per atom or per structure."""

    per_atom: bool
    width: int
    number: SystemInput | None = None  # of an input that is one number of a structure


class MaceModel(LoadedModel):
    """A MACE model of any class that returns an energy."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        super().__init__(model, mace_info(model), options)
        if options.species_types is not None:
            raise ValueError(
                "species_types is for NequIP models; a MACE model has chemical elements"
            )
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
        self._static: tuple[tuple[Any, ...], dict[str, Any], dict[str, torch.Tensor]] | None = None

    def input_names(self) -> tuple[Iterable[str], Iterable[str]]:
        """Return names of inputs, such as charge and spin."""
        names: tuple[list[str], list[str]] = ([], [])
        for name, wanted in self._inputs.items():
            names[wanted.per_atom].append(name)
        return names

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if an input of the model is missing or unusable."""
        super().check_inputs(atoms)
        self._tensors(atoms)

    def descriptors(self, atoms: Atoms, edges: Edges | None) -> LayerFeatures:
        """Return the outputs of the products, which are MACE's descriptors."""
        products: Any = getattr(self.model, "products", ())
        irreps = [product.linear.irreps_out for product in products]
        found = torch.zeros(0, sum(each.dim for each in irreps))
        if edges is not None:
            with one_at_a_time(self.model), torch.no_grad():
                out = self.run(atoms, edges, False, False)
            if "node_feats" not in out:  # models with dipoles
                return super().descriptors(atoms, edges)
            found = out["node_feats"]
        features = LayerFeatures.of(as_array(found), [str(each) for each in irreps])
        # other models have other features
        return features if features.rows.shape == found.shape else super().descriptors(atoms, edges)

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
        """Return the description of each input besides the geometry."""
        inputs = {}
        specs: Mapping[str, Mapping[str, Any]] = getattr(self.model, "embedding_specs", None) or {}
        for name, (per, kind, width) in self.info.graph_features.items():
            per_atom, width = per not in ("graph",), 1 if kind == "categorical" else width
            spec = specs[name]
            count = int(spec["num_classes"]) if kind == "categorical" else None
            lowest = None if count is None else -int(spec.get("offset", 0))
            number = system_input(_NEUTRAL, name, lowest, count)
            inputs[name] = _Input(per_atom, width, number if width == 1 and not per_atom else None)
        if self.info.model_class in _WITHOUT_INPUTS:
            return inputs
        own = {
            name: _Input(per_atom=False, width=1, number=system_input(_NEUTRAL, name))
            for name in ("total_charge", "total_spin", *FIELD_COMPONENTS)
        }
        return {**own, **inputs}

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
        )
        known = self._static
        if known is not None and known[0] == key and equal(known[1], inputs):
            return known[2]
        no_edges = np.zeros((2, 0), dtype=np.int64)
        data = mace_batch(
            self.info,
            atoms.numbers,
            atoms.positions,
            cell,
            atoms.pbc.tolist(),
            no_edges,
            np.zeros((0, 3)),
            head=self.head_of(atoms),
            extras=self._tensors(atoms),
        )
        self._static = (key, copy.deepcopy(inputs), data)
        return data

    def _model_cell(self, atoms: Atoms) -> FloatArray:
        """Return the cell for the model. Like in MACE, vectors along open directions are long."""
        cell = np.array(atoms.cell.array, dtype=np.float64)
        pbc: BoolArray = atoms.pbc
        if pbc.all():
            return cell
        if self.info.model_class in _ATOMIC_CLASSES:  # they use no vectors along open directions
            return np.where(pbc[:, None], cell, 0.0)
        return long_cell(atoms, self.info.r_max)

    def _tensors(self, atoms: Atoms) -> dict[str, torch.Tensor]:
        tensors, n_nodes = {}, len(atoms)
        place: dict[str, Any] = {"dtype": self.info.dtype, "device": self.info.device}
        for name, wanted in self._inputs.items():
            if wanted.number is not None:
                values = input_values([wanted.number], atoms.info, keys=self.options.info_keys)
                tensors[name] = torch.tensor(values, **place)
                continue
            places = (atoms.info, self.options.info_keys)
            if wanted.per_atom:
                places = (atoms.arrays, self.options.arrays_keys)
            stated = stated_value(name, *places)
            if stated is None:  # MACE has a neutral value
                continue
            rows, width = n_nodes if wanted.per_atom else 1, wanted.width
            try:
                array = np.asarray(stated[1], dtype=np.float64)
                array = array.reshape((rows,) if width == 1 else (rows, width))
                if not np.isfinite(array).all():
                    raise ValueError("not finite")
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{name} is {stated[1]!r}, expected {width} finite number(s) "
                    f"{'per atom' if wanted.per_atom else 'for the structure'}"
                ) from error
            tensors[name] = torch.tensor(array, **place)
        field = [tensors.pop(name) for name in FIELD_COMPONENTS if name in tensors]
        if field:
            tensors["external_field"] = torch.stack(field, dim=-1)
        return tensors


class NequipModel(LoadedModel):
    """A ``GraphModel`` of NequIP, which has no heads."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        super().__init__(model, nequip_info(model), options)
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
        self._fields = [
            system_input({}, name, low, high - low + 1)
            for name, (low, high) in categorical_fields(model).items()
        ]

    def input_names(self) -> tuple[Iterable[str], Iterable[str]]:
        """Return names of the categorical fields of structures."""
        return [each.name for each in self._fields], ()

    def check_inputs(self, atoms: Atoms) -> None:
        """Raise ``InputError`` if an input of the model is missing or unusable."""
        super().check_inputs(atoms)
        input_values(self._fields, atoms.info, keys=self.options.info_keys)

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model by MACE's names."""
        with without_derivatives(self.model, not gradients):
            out = self.model(self._batch(atoms, edges, stress))
        return {**as_outputs(out), "node_energy": out["atomic_energy"]}

    def _batch(self, atoms: Atoms, edges: Edges, stress: bool) -> dict[str, torch.Tensor]:
        periodic = stress or bool(np.any(atoms.pbc))  # NequIP gives no virial without a cell
        cell = np.where(atoms.pbc[:, None], atoms.cell.array, 0.0) if periodic else None
        none = np.zeros((2, 0), dtype=np.int64)
        types = self.types[atoms.numbers]
        data = nequip_batch(self.info, types, atoms.positions, cell, none, np.zeros((0, 3)))
        if self._cutoffs is not None:
            edges = self._within_cutoffs(data, edges)
        known = self._reversed
        if known is None or known[0] is not edges.edge_index:
            # the same tensors for the same list, because operators cache sorted edges by tensor
            known = (edges.edge_index, edges.edge_index.flip(0), -edges.unit_shifts)
            self._reversed = known
        data["edge_index"] = known[1]
        if periodic:
            data["edge_cell_shift"] = known[2]
        values = input_values(self._fields, atoms.info, keys=self.options.info_keys)
        for each, value in zip(self._fields, values, strict=True):
            data[each.name] = torch.tensor([[int(value)]], device=self.info.device)
        return data

    def _within_cutoffs(self, data: dict[str, torch.Tensor], edges: Edges) -> Edges:
        """Leave out edges beyond the cutoff of their two types, as NequIP does.

        These are the same tensors as last time if the set of edges is unchanged.
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


class SevenNetModel(LoadedModel):
    """An ``AtomGraphSequential`` of SevenNet, whose modals are heads."""

    is_atomic = True

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        super().__init__(model, sevennet_info(model), options)
        if options.species_types is not None:
            raise ValueError(
                "species_types is for NequIP models; a SevenNet model has chemical elements"
            )

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model by MACE's names."""
        cell = complete_cell(atoms.cell.array, atoms.pbc.tolist())
        near = (edges.edge_index.cpu().numpy(), edges.unit_shifts.cpu().numpy())
        place = (atoms.numbers, atoms.positions, cell, *near)
        batch = sevennet_batch(self.model, self.info.dtype, *place, self.head_of(atoms))
        with torch.enable_grad():  # the model always computes forces
            out = self.model(batch.to(self.info.device))
        xx, yy, zz, xy, yz, zx = out["inferred_stress"].double().reshape(6)
        virial = [xx, xy, zx, xy, yy, yz, zx, yz, zz]
        return {
            "energy": out["inferred_total_energy"].reshape(-1),
            "node_energy": out["atomic_energy"].reshape(-1),
            "forces": out["inferred_force"],
            "virials": torch.stack(virial) * abs(float(np.linalg.det(cell))),
        }
