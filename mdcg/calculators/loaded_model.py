"""The base class of MACE and NequIP models that torch evaluates."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from ase import Atoms

from ..patch.hosts import frozen
from ..patch.mace_inputs import ModelInfo
from .evaluation import Evaluation, check_finite, stress_of
from .neighbors import Edges
from .species import types_by_number


def as_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return tensor.detach().to(device="cpu", dtype=torch.float64).numpy()


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

    An evaluation changes the live model for a while, which calculators may share.
    """
    with _registry:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


class LoadedModel:
    """A loaded model, patched or not, as a function from a geometry to energy, forces and stress.

    The model is not changed. `head` None is for models with one; `species_types` has the type name
    for each chemical symbol, None where type names are chemical symbols.
    """

    #: Whether the energy is by definition the sum of the energies of atoms.
    is_atomic = False

    def __init__(
        self,
        model: torch.nn.Module,
        info: ModelInfo,
        head: str | None,
        species_types: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.info = model, info
        self.head = info.heads[info.head_index(head)]
        self.types = types_by_number(info.symbols, species_types)
        self._parameters = list(model.parameters())  # walking the modules takes 0.5 ms

    def inputs_of(self, atoms: Atoms) -> dict[str, Any]:
        """Return what the model reads besides the geometry, if anything."""
        raise NotImplementedError

    def run(
        self, atoms: Atoms, edges: Edges, gradients: bool, stress: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the model by MACE's names."""
        raise NotImplementedError

    def evaluate(self, atoms: Atoms, edges: Edges, *, forces: bool, stress: bool) -> Evaluation:
        """Evaluate the model on a structure of one atom or more, with its edges.

        Raises ``InputError`` where an input that the model reads is missing or unusable, and
        ``CalculationFailed`` where the model returned a number that is not finite.
        """
        gradients = forces or stress
        # an energy without forces needs no backward pass
        mode = torch.enable_grad() if gradients else torch.no_grad()
        with one_at_a_time(self.model), frozen(self._parameters), mode:
            out = self.run(atoms, edges, gradients, stress)
        energy = float(out["energy"].detach().double().sum())
        per_atom = out.get("node_energy")
        energies = None if per_atom is None else as_array(per_atom).reshape(-1)
        if energies is not None and self.is_atomic:
            # a float32 model sums to 1e-7 of the total; in float64 its own terms are kept exact
            energy = float(energies.sum())
        elif energies is not None:
            single = per_atom is not None and per_atom.dtype == torch.float32
            limit = (1e-6 if single else 1e-10) * (1.0 + float(np.abs(energies).sum()))
            energies = energies if abs(energies.sum() - energy) <= limit else None
        result = Evaluation(
            energy=energy,
            energies=energies,
            forces=as_array(out["forces"]) if gradients else None,
            stress=stress_of(as_array(out["virials"]).reshape(3, 3), atoms) if stress else None,
        )
        check_finite(result, atoms)
        return result
