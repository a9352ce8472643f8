"""MDCGCalculator: a patched MACE or NequIP model as an ASE calculator."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import (
    Calculator,
    PropertyNotImplementedError,
    all_changes,
    equal,
)
from ase.stress import full_3x3_to_voigt_6_stress

from ..errors import DeviceError
from ..patch import (
    PatchReport,
    copy_model,
    inspect_model,
    is_nequip,
    is_patched,
    load_model,
    model_info,
    model_record,
    patch_model,
)
from .evaluation import Evaluation
from .mace_model import MaceModel
from .neighbors import SkinNeighborList
from .nequip_model import NequipModel

__all__ = ["MDCGCalculator"]

_LOG = logging.getLogger("mdcg")
PROPERTIES = ("energy", "free_energy", "energies", "forces", "stress")
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class MDCGCalculator(Calculator):
    """ASE calculator for a MACE or NequIP model whose tensor products run on mdcg's kernels.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A checkpoint written by ``mdcg-patch``; a MACE checkpoint or a NequIP ``.ckpt`` or
        ``.nequip.zip``, which is patched after loading (logged at INFO, the file stays as it is);
        or a loaded model, patched or not, which is used as it is given and never changed. See
        `is_patched`.
    device : str or torch.device, optional
        ``"cpu"`` or ``"cuda"``. None is the device of a loaded model, and the CPU for a file.
    dtype : str or torch.dtype, optional
        ``"float32"`` or ``"float64"``: precision to evaluate in. None is that of the model. That of
        a NequIP model is fixed when it is built.
    head : str, optional
        Head of a multi-head model; needed if there are several.
    skin : float
        In Å. The neighbour list is built this much longer and reused until an atom has moved by
        half of it, or cell, periodicity or species change. Results do not depend on it.
    species_types : mapping of str to str, optional
        For NequIP models whose types are not named by chemical symbols: the type name for each
        chemical symbol, such as ``{"O": "oxygen"}``.

    Attributes
    ----------
    implemented_properties : list of str
        ``energy``, ``free_energy`` (the same number), ``energies`` (per atom), in eV and with the
        energies of the isolated atoms; ``forces`` in eV/Å; ``stress``, Voigt order, in eV/Å^3, for
        systems periodic along all three cell vectors.

    Raises
    ------
    CheckpointError
        The file is no MACE checkpoint that can be loaded; the message says which file to give.
    UnsupportedProblemError
        A layer of an unpatched file cannot be patched.
    DeviceError
        The device is not there, or its driver cannot run the kernels.
    KernelCompileError
        The kernels are not cached, and there is no C++ compiler (CPU) or NVRTC (CUDA).
    ValueError, TypeError
        An argument is out of range or of the wrong kind, or the head is missing or unknown.

    Notes
    -----
    Only what is asked for is computed: an energy alone costs no backward pass, and forces come
    without stress until stress has been asked for beside them, as in constant-pressure runs; then
    the next step computes both at once. ``atoms.info["charge"]`` and ``["spin"]`` are passed to
    models that use them. Neither torch's default dtype and threads nor environment or random
    state are touched.

    While running it raises ``ase.calculators.calculator.InputError`` for species that the model
    does not know and for unusable positions or cells, ``PropertyNotImplementedError`` for stress
    without a three-dimensional cell, and ``CalculationFailed`` if the model returns nan.

    Examples
    --------
    >>> from ase.build import molecule
    >>> atoms = molecule("H2O")
    >>> atoms.calc = MDCGCalculator("water.mdcg.model")  # doctest: +SKIP
    >>> atoms.get_forces().shape  # doctest: +SKIP
    (3, 3)
    """

    # not ClassVar, as ASE declares them as instance variables
    implemented_properties: list[str] = [*PROPERTIES]  # noqa: RUF012
    # no model reads them, so that setting a magnetic moment does not cost an evaluation
    ignored_changes: set[str] = {"initial_charges", "initial_magmoms"}  # noqa: RUF012

    def __init__(
        self,
        model: str | os.PathLike[str] | torch.nn.Module,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        head: str | None = None,
        skin: float = 0.5,
        species_types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not (np.isfinite(skin) and skin >= 0):
            raise ValueError(f"skin is {skin}, expected a length of 0 Å or more")
        loaded, name = _prepare(model, _as_device(device), _as_dtype(dtype))
        if head is None:
            head = model_record(loaded).get("head")  # what mdcg-patch --head chose
        self._evaluator: MaceModel | NequipModel
        if is_nequip(loaded):
            self._evaluator = NequipModel(loaded, head, species_types)
        elif species_types is None:
            self._evaluator = MaceModel(loaded, head)
        else:
            raise ValueError(
                "species_types is for NequIP models; a MACE model has chemical elements"
            )
        info = self._evaluator.info
        self._neighbors = SkinNeighborList(info.r_max, float(skin), info.device)
        self._numbers: bytes | None = None
        self._asked: set[str] = set()
        self._asked_before: set[str] = set()
        self._inputs_seen: dict[str, Any] = {}
        self.parameters = {
            "model": name,
            "device": str(info.device),
            "dtype": str(info.dtype).removeprefix("torch."),
            "head": self._evaluator.head,
            "skin": float(skin),
        }

    @property
    def model(self) -> torch.nn.Module:
        """The torch model that is evaluated."""
        return self._evaluator.model

    @property
    def is_patched(self) -> bool:
        """Whether the model runs on mdcg's kernels; False for an unpatched live model."""
        return is_patched(self.model)

    @property
    def patch_report(self) -> PatchReport:
        """Every tensor product of the model: patched, or why not."""
        return inspect_model(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._evaluator.info.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model."""
        return self._evaluator.info.dtype

    @property
    def r_max(self) -> float:
        """Cutoff of the model in Å."""
        return self._evaluator.info.r_max

    @property
    def species(self) -> tuple[str, ...]:
        """Chemical symbols that the model knows."""
        return tuple(self._evaluator.symbols)

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of the model."""
        return self._evaluator.info.heads

    @property
    def neighbors(self) -> SkinNeighborList:
        """The neighbour list; `num_builds` and `num_updates` tell how well the skin works."""
        return self._neighbors

    def __repr__(self) -> str:
        known = " ".join(self.species)
        known = known if len(self.species) <= 8 else f"{len(self.species)} elements"
        kind = "patched" if self.is_patched else "unpatched"
        return (
            f"MDCGCalculator({self.parameters['model']!r}: {kind} "
            f"{self._evaluator.info.model_class}, {known}, r_max {self.r_max:g} Å, "
            f"{self.parameters['dtype']}, {self.device}, head {self._evaluator.head})"
        )

    def set(self, **kwargs: Any) -> dict[str, Any]:
        """Refuse changes: a calculator is what it was made as.

        Raises
        ------
        TypeError
            Any argument was given.
        """
        if kwargs:
            raise TypeError(
                f"MDCGCalculator cannot change {', '.join(sorted(kwargs))} after it was made; "
                "make a new one"
            )
        return {}

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return what has changed since the last calculation.

        Parameters
        ----------
        atoms : ase.Atoms
            Structure to compare with the last one.
        tol : float
            Largest change that is none.
        """
        changes: list[str] = super().check_state(atoms, tol=tol)  # type: ignore[no-untyped-call]
        if not changes and not equal(self._inputs_seen, self._evaluator.inputs_of(atoms)):
            changes.append("info")
        return changes

    def get_property(
        self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True
    ) -> Any:
        """Return one property, computed if it is not there yet.

        Parameters
        ----------
        name : str
            One of `implemented_properties`.
        atoms : ase.Atoms, optional
            None is the structure of the last call.
        allow_calculation : bool
            Return None rather than compute.
        """
        value = super().get_property(name, atoms, allow_calculation)  # type: ignore[no-untyped-call]
        if allow_calculation:
            self._asked.add(name)
        return value

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute properties of a structure and put them into `results`.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            None is the structure of the last call.
        properties : sequence of str
            What is wanted, out of `implemented_properties`.
        system_changes : sequence of str
            What changed since the last call; empty adds to the results that are there.

        Raises
        ------
        ase.calculators.calculator.InputError
            Unknown species, or positions or a cell that are unusable.
        ase.calculators.calculator.PropertyNotImplementedError
            Stress without a cell that is periodic in three dimensions, or a property that the
            model does not have.
        """
        atoms = self.atoms if atoms is None else atoms
        if atoms is None:
            raise ValueError("there are no atoms to calculate: pass them, or set atoms.calc first")
        unknown = sorted(set(properties) - set(self.implemented_properties))
        if unknown:
            raise PropertyNotImplementedError(
                f"{', '.join(unknown)} not implemented; available: "
                f"{', '.join(self.implemented_properties)}"
            )
        self.atoms = atoms.copy()
        if system_changes:
            self.results = {}
            self._asked_before, self._asked = self._asked, set()
        self._asked.update(properties)
        periodic = _has_volume(atoms)
        if "stress" in properties and not periodic:
            raise PropertyNotImplementedError(
                f"stress needs a cell that is periodic along three directions, got pbc "
                f"{atoms.pbc.tolist()} and volume {abs(np.linalg.det(atoms.cell.array)):.3g} Å^3"
            )
        forces = "forces" in properties
        beside = forces and {"forces", "stress"} <= self._asked_before  # constant-pressure run
        stress = "stress" in properties or (beside and periodic)
        self._inputs_seen = copy.deepcopy(self._evaluator.inputs_of(atoms))
        self._store(self._evaluate(atoms, forces, stress))
        if "energies" in properties and "energies" not in self.results:
            raise PropertyNotImplementedError(
                f"the energy of {self._evaluator.info.model_class} is no sum over atoms, so it has "
                "no energies"
            )

    def _evaluate(self, atoms: Atoms, forces: bool, stress: bool) -> Evaluation:
        numbers = np.asarray(atoms.numbers, dtype=np.int64)
        self._evaluator.check_species(numbers)
        if len(atoms) == 0:
            nothing = np.zeros((0, 3))
            return Evaluation(
                energy=0.0,
                energies=np.zeros(0),
                forces=nothing if forces else None,
                stress=np.zeros((3, 3)) if stress else None,
            )
        if self._numbers != numbers.tobytes():
            self._neighbors.reset()
            self._numbers = numbers.tobytes()
        cell = np.asarray(atoms.cell.array, dtype=np.float64)
        edges = self._neighbors.update(atoms.positions, cell, atoms.pbc)
        return self._evaluator.evaluate(atoms, edges, forces=forces, stress=stress)

    def _store(self, found: Evaluation) -> None:
        self.results["energy"] = self.results["free_energy"] = found.energy
        if found.energies is not None:
            self.results["energies"] = found.energies
        if found.forces is not None:
            self.results["forces"] = found.forces
        if found.stress is not None:
            self.results["stress"] = full_3x3_to_voigt_6_stress(found.stress)


def _has_volume(atoms: Atoms) -> bool:
    return bool(atoms.pbc.all()) and bool(np.linalg.matrix_rank(atoms.cell.array) == 3)


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype in _DTYPES.values():
        return dtype  # type: ignore[return-value]
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    raise ValueError(f"dtype is {dtype!r}, expected 'float32', 'float64' or None")


def _as_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            why = (
                f"this torch ({torch.__version__}) is built without CUDA"
                if torch.version.cuda is None
                else f"torch finds {count} CUDA devices"
            )
            raise DeviceError(
                f"device {device!s} was requested, but {why}; use device='cpu' or install a torch "
                "that can use the GPU"
            )
        found = torch.device("cuda", found.index or 0)
    return found


def _prepare(
    model: str | os.PathLike[str] | torch.nn.Module,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> tuple[torch.nn.Module, str]:
    """Return the model to evaluate, on its device and in its dtype, and a name for it."""
    if isinstance(model, torch.nn.Module):
        loaded, name = _live(model, device, dtype), type(model).__name__
    elif isinstance(model, (str, os.PathLike)):
        loaded, name = _from_file(Path(model), device, dtype), os.fspath(model)
    else:
        raise TypeError(
            f"model is a {type(model).__name__}, expected the path of a checkpoint or a loaded "
            "torch model (of a MACECalculator: calc.models[0])"
        )
    return loaded, name


def _from_file(
    path: Path, device: torch.device | None, dtype: torch.dtype | None
) -> torch.nn.Module:
    loaded = load_model(path)
    if _other_dtype(loaded, dtype):
        loaded = loaded.to(dtype)
    # on its device before it is patched: layers are checked where they will run
    loaded = loaded.to(device or torch.device("cpu"))
    if not is_patched(loaded):
        report = patch_model(loaded)
        _LOG.info("%s was not patched yet; patched it after loading:\n%s", path, report)
    if device is None:
        _LOG.info("%s runs on the CPU", path)
    return loaded.requires_grad_(False)


def _other_dtype(model: torch.nn.Module, dtype: torch.dtype | None) -> bool:
    """Return whether a model has to be converted, or raise if it cannot be."""
    if dtype is None:
        return False
    if is_nequip(model):
        built = model_info(model).dtype
        if built != dtype:
            raise ValueError(
                f"dtype is {dtype}, but the NequIP model was built in {built} (model_dtype of its "
                "configuration), which is fixed: leave out dtype"
            )
        return False
    weights = _weights(model)
    return weights is not None and weights.dtype != dtype


def _live(
    model: torch.nn.Module, device: torch.device | None, dtype: torch.dtype | None
) -> torch.nn.Module:
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "model is a TorchScript module, whose layers are compiled in; expected the MACE or "
            "NequIP model it was made from"
        )
    weights = _weights(model)
    moved = device is not None and weights is not None and weights.device != device
    converted = _other_dtype(model, dtype)
    if not (moved or converted):
        return model
    # a copy, as the caller's model is not ours to change
    return copy_model(model).to(device=device, dtype=dtype if converted else None)


def _weights(model: torch.nn.Module) -> torch.nn.Parameter | None:
    return next((p for p in model.parameters() if p.is_floating_point()), None)
