"""Packages as models of TorchSim: many structures at once, on CPUs and NVIDIA GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .errors import MissingDependencyError, installation

try:
    import torch
    from torch_sim.models.interface import ModelInterface
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"mdcg.torchsim needs {error.name!r}, which is not installed: "
        f"{installation('torch_sim')} (Python 3.11 or newer)"
    ) from error

from . import _core
from .calculators.engine_report import KernelLog
from .calculators.evaluation import require_known, stress_volumes, types_by_number
from .calculators.package_backend import engine_errors
from .calculators.stated_inputs import (
    check_fixed_inputs,
    input_values,
    inputs_of_manifest,
    keys_of_input,
    refuse_unread,
)
from .calculators.torch_backend import as_device

__all__ = ["MDCGModel"]

Tensors: TypeAlias = dict[str, torch.Tensor]

_NUMPY = {torch.float32: "float32", torch.float64: "float64"}


class MDCGModel(ModelInterface):  # type: ignore[misc]
    """A package as a model of TorchSim.

    All systems of a state are evaluated in one pass, including the search for neighbours. On a GPU
    the engine reads and writes torch's tensors, without copies to the host.

    Parameters
    ----------
    package : path
        A package (``.mdcg``) that ``mdcg-patch`` wrote.
    device : torch.device or str, optional
        Device of the tensors of states and of the evaluation; None is torch's current GPU, or the
        CPU if there is none.
    dtype : torch.dtype, optional
        Type of the tensors of states and results; None is the package's type. With torch.float64,
        positions are not rounded for a float32 package.
    compute_forces, compute_stress : bool
        What `forward` computes besides energies.
    kernels, threads, precision : optional
        See :class:`~mdcg.MDCGCalculator`.
    inputs : mapping of str to float, optional
        Charge, spin and other inputs of all systems whose state does not state them, such as
        ``{"charge": -1}``.

    Raises
    ------
    PackageError
        The file is no package, or damaged.
    DeviceError
        There is no such device, or this torch cannot use it.
    ValueError
        An option is unknown.

    Examples
    --------
    >>> import torch_sim as ts                                       # doctest: +SKIP
    >>> model = MDCGModel("water.mdcg", device="cuda")               # doctest: +SKIP
    >>> ts.optimize(images, model, optimizer=ts.frechet_cell_fire)   # doctest: +SKIP
    """

    def __init__(
        self,
        package: str | os.PathLike[str],
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        compute_forces: bool = True,
        compute_stress: bool = True,
        kernels: str = "auto",
        threads: int | None = None,
        precision: str | None = None,
        inputs: Mapping[str, float | Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        if dtype not in (None, *_NUMPY):
            raise ValueError(f"dtype is {dtype}, expected torch.float32, torch.float64 or None")
        self._device = as_device(device)
        with engine_errors():
            self._engine = _core.Model(
                os.fspath(package),
                device=str(self._device),
                kernels=kernels,
                threads=threads or 0,
                precision=precision or "",
            )
        if not self._engine.has_energy:
            raise ValueError(
                f"{os.fspath(package)} gives dipoles and no energies, expected energies"
            )
        self._package = os.fspath(package)
        self._inputs = inputs_of_manifest(json.loads(self._engine.manifest))
        self._stated = dict(inputs or {})
        refuse_unread(self._stated, [each.name for each in self._inputs], self._package)
        self._kernel_log = KernelLog(self._engine, self._package, self._device.type)
        self._dtype = dtype or getattr(torch, self._engine.dtype)
        self._compute_forces, self._compute_stress = compute_forces, compute_stress
        self._types = types_by_number(self._engine.type_names)
        # atomic numbers and system_idx of the last state, and the arrays for the engine
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._first_node = np.zeros(1, np.int64)
        self._node_types = np.zeros(0, np.int32)

    @property
    def compute_forces(self) -> bool:
        """Whether `forward` computes forces."""
        return self._compute_forces

    @compute_forces.setter
    def compute_forces(self, value: bool) -> None:
        self._compute_forces = value

    @property
    def compute_stress(self) -> bool:
        """Whether `forward` computes stresses."""
        return self._compute_stress

    @compute_stress.setter
    def compute_stress(self, value: bool) -> None:
        self._compute_stress = value

    @property
    def r_max(self) -> float:
        """The cutoff radius of edges in Å."""
        return self._engine.r_max

    def forward(self, state: Any, **kwargs: Any) -> Tensors:
        """Evaluate all systems of a state.

        Parameters
        ----------
        state : torch_sim.SimState or dict
            With positions (Å), cell, pbc (one value, or one for each direction), atomic_numbers and
            system_idx; and ``charge``, ``spin`` and other inputs that the package reads, a number
            for each system, or ``external_field``, three numbers in eV/Å/e.
        **kwargs
            Ignored, like in TorchSim's own models.

        Returns
        -------
        dict of torch.Tensor
            ``energy``, shape (n_systems,), eV; ``forces``, shape (n_atoms, 3), eV/Å; ``stress``,
            shape (n_systems, 3, 3), eV/Å^3, positive under tension. It is the strain derivative
            divided by the volume of the cell, and zero if no direction is periodic or the cell has
            fewer than three vectors.

        Raises
        ------
        ValueError
            The state is on another device or of another dtype, or a system has no atoms.
        ase.calculators.calculator.InputError
            The package does not know an element, or the state lacks a charge (or a similar input)
            that the package reads, or has one that it cannot take.
        ase.calculators.calculator.CalculationFailed
            A result is not finite.
        """
        of_state = state if isinstance(state, dict) else vars(state)
        given: dict[str, Any] = {key: each for key, each in of_state.items() if each is not None}
        # an input that the state states by any of its keys is not taken from `inputs`
        keys = [keys_of_input(each.name) for each in self._inputs]
        stated = {key for each in keys if not given.keys().isdisjoint(each) for key in each}
        given |= {
            key: each for key, each in self._stated.items() if key not in stated | given.keys()
        }
        positions, cell = given["positions"], given["cell"]
        self._check(positions, "positions")
        self._check(cell, "cell")
        reads = [each.name for each in self._inputs]
        check_fixed_inputs(self._engine.fixed_inputs, given, self._package, reads)
        self._set_composition(given["atomic_numbers"], given.get("system_idx"), len(positions))
        systems = len(self._first_node) - 1
        if cell.shape != (systems, 3, 3):
            raise ValueError(
                f"cell has shape {tuple(cell.shape)}, expected ({systems}, 3, 3): a cell for each "
                "system of the state"
            )
        rows = cell.detach().transpose(1, 2).to(torch.float64)  # the state has columns
        periodic = np.zeros((systems, 3), bool)
        periodic[:] = torch.as_tensor(given["pbc"]).cpu().numpy()
        cells = rows.cpu().numpy()
        self._kernel_log.before()
        place: dict[str, Any] = {"cells": cells, "periodic": periodic}
        if self._inputs:
            place["inputs"] = input_values(
                self._inputs, given, self._package, "{} of the state", systems
            )
        found = self._evaluate(positions.detach().to(torch.float64).contiguous(), place)
        self._kernel_log.after()
        out = {"energy": found["energy"].to(self._dtype)}
        if self._compute_forces:
            out["forces"] = found["forces"].to(self._dtype)
        if self._compute_stress:
            volumes = stress_volumes(cells, periodic)
            volumes[volumes == 0.0] = np.inf  # no stress
            divisor = torch.as_tensor(volumes, device=self._device)[:, None, None]
            out["stress"] = (-found["virial"] / divisor).to(self._dtype)
        return out

    def _check(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.device != self._device:
            raise ValueError(
                f"{name} of the state are on {tensor.device}, and the model is on {self._device}: "
                f"move the state (state.to(device={str(self._device)!r}))"
            )
        if tensor.dtype != self._dtype:
            raise ValueError(
                f"{name} of the state are {tensor.dtype}, and the model takes {self._dtype}: make "
                "the state with model.dtype, or the model with another dtype"
            )

    def _set_composition(
        self, numbers: torch.Tensor, systems: torch.Tensor | None, count: int
    ) -> None:
        """Read elements and systems of the atoms, unless they equal the last state's."""
        if systems is None:
            systems = torch.zeros_like(numbers)
        if self._seen is not None and all(
            new is old or (new.device == old.device and torch.equal(new, old))
            for new, old in zip((numbers, systems), self._seen, strict=True)
        ):
            return
        self._seen = None
        if count == 0:
            raise ValueError("the state has no atoms, expected one or more in each system")
        index = systems.cpu().numpy()
        sizes = np.bincount(index)
        empty = np.flatnonzero(sizes == 0)
        if len(empty) > 0 or (np.diff(index) < 0).any():
            what = f"system {empty[0]} has no atoms" if len(empty) > 0 else "system_idx falls"
            raise ValueError(
                f"in the state {what}, expected the atoms of systems 0, 1, 2, ... one after the "
                "other"
            )
        elements = numbers.cpu().numpy()
        require_known(elements, self._types)
        self._first_node = np.concatenate([[0], np.cumsum(sizes)])
        self._node_types = self._types[elements].astype(np.int32)
        self._seen = (numbers.clone(), systems.clone())

    def _evaluate(self, positions: torch.Tensor, cells: dict[str, Any]) -> Tensors:
        place: dict[str, Any] = {"first_node": self._first_node, "types": self._node_types, **cells}
        wanted: dict[str, Any] = {"forces": self._compute_forces, "virial": self._compute_stress}
        if self._device.type == "cpu":
            at = positions.cpu().numpy()
            with engine_errors():
                found = self._engine.evaluate_batch(**place, positions=at, **wanted)
            return {name: torch.as_tensor(v, device=self._device) for name, v in found.items()}
        systems = len(self._first_node) - 1
        shapes = {"energy": (systems,), "forces": positions.shape, "virial": (systems, 3, 3)}
        out = {
            name: torch.empty(shape, dtype=torch.float64, device=self._device)
            for name, shape in shapes.items()
            if wanted.get(name, True)
        }
        tensors = {"positions": positions, **out}
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        torch.cuda.current_stream(self._device).synchronize()  # positions are complete
        with engine_errors():
            self._engine.evaluate_batch(**place, addresses=addresses)
        return out
