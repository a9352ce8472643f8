"""MDCGCalculator: packages and patched models as an ASE calculator."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes, equal
from ase.outputs import Properties, all_outputs
from ase.units import Bohr

from ..package import ConversionOptions
from ..package.cached import named_package
from ..runtime.cache import is_name
from .drop_in import are_packages, members_and_options
from .engine_report import EngineReport
from .evaluation import (
    Evaluation,
    Options,
    as_results,
    changes_since,
    dispersion_options,
    errors_of_images,
    has_stress,
    remembered,
    wanted_of,
)
from .hessian import hessian
from .package_backend import PackageBackend

if TYPE_CHECKING:
    import torch

    from .. import _core
    from ..patch import PatchReport
    from .neighbors import SkinNeighborList
    from .torch_backend import TorchBackend

#: A path or name, a torch model, or a calculator of MACE, NequIP or SevenNet.
Model: TypeAlias = "str | os.PathLike[str] | torch.nn.Module | Calculator"
PROPERTIES = ("energy", "free_energy", "energies", "forces", "stress")


class MDCGCalculator(Calculator):
    """ASE calculator for MACE, NequIP, SevenNet and Nequix models that run on mdcg's kernels.

    Parameters
    ----------
    model : str, path, torch.nn.Module, calculator, or a sequence of these
        A package (``.mdcg``) written by ``mdcg-patch``, which runs in mdcg's engine, without torch.
        Or a model that runs in its own framework: a checkpoint of MACE, NequIP (``.ckpt``,
        ``.nequip.zip``) or SevenNet, which is patched after loading (logged at INFO; the file does
        not change) or refused; a loaded model, which is patched in place, unless `device` or
        `dtype` ask for a copy (:func:`mdcg.unpatch_model` restores it); or a ``MACECalculator``,
        ``NequIPCalculator`` or ``SevenNetCalculator``, with its models, head and keys. Layers of
        loaded models that cannot be patched run as given, with a warning. Or the name of a
        published model, such as ``"mace-mpa-0"``, ``"sevennet-0"`` or
        ``"nequip.net:GROUP/MODEL:VERSION"``, whose package downloads and keeps the checkpoint; it
        is converted once, into mdcg's cache, and compared with the original. Several models, or a
        text with wildcards, are a committee: of packages, or of models in torch with one cutoff.
    device : str or torch.device, optional
        ``"cpu"``, ``"cuda"``, ``"cuda:N"``, or ``"hip"`` and ``"hip:N"`` of AMD. None is
        the device of a loaded model, and the CPU for a file. A package on an NVIDIA GPU
        needs its driver, and NVRTC for kernels that are not cached yet, but neither torch
        nor a CUDA toolkit. A step copies only positions and results: neighbour lists are
        made on the device, unless most of the system is empty.
    dtype : str or torch.dtype, optional
        ``"float32"`` or ``"float64"``, or ``"fp32"`` or ``"fp64"``: precision of the evaluation.
        None is the model's precision. The precision of packages and NequIP models is fixed when
        they are made.
    head : str, optional
        Head of a model with several heads, which must be named, unless torch runs the model and
        one of its heads is named default. If it is None, or if `info_keys` has ``"head"``,
        ``atoms.info["head"]`` names another one.
    skin : float
        Length in Å by which the neighbour list is longer than the cutoff. A list is used again
        until an atom has moved by half the skin, or less if the cell is strained. Results do not
        depend on the skin.
    species_types : mapping of str to str, optional
        For NequIP models whose types are not named by chemical symbols: the type name for each
        chemical symbol, such as ``{"O": "oxygen"}``.
    kernels : str
        For packages. ``"auto"``: compiled kernels from the cache, or compiled now; if neither is
        possible, CPUs run generic kernels, which are slower and give the same numbers (logged as a
        warning). ``"generic"``, CPUs only: generic kernels. ``"generated"``: compiled kernels, or
        an error. The name of a ``.mdcg-kernels`` file: the compiled kernels in it.
    threads : int, optional
        For packages: number of threads; None is OpenMP's choice (``OMP_NUM_THREADS``). Results do
        not depend on it.
    precision : str, optional
        For packages. Values as for `dtype`; another precision than the package's is an error.
    dispersion : str, optional
        For packages with dispersion (``mdcg-patch --dispersion pbe``): the functional whose D3
        dispersion is added to all results, in float64. A committee adds its first package's.
    damping : {"bj", "zero"}
        Damping of the dispersion at short distances, by Becke and Johnson or as in the original D3.
        Without `dispersion`, other values of this and `dispersion_cutoff` than the defaults are an
        error.
    dispersion_cutoff : float
        Largest distance in Å of pairs that interact; the default is 40 Bohr, as in MACE's
        calculators.
    memory : str, optional
        For packages: memory that an evaluation may take, as a share of that of the device
        (``"90 %"``) or a size (``"120 GB"``; also MB, TB, MiB, GiB). A structure that needs more is
        divided into domains, which are evaluated one after the other. The number of domains follows
        from the structure, the skin and this memory; results differ from those without domains by
        rounding. A committee's packages share the memory. None: a structure that needs more memory
        than there is raises ``MemoryError``.
    fixed_waves : bool
        For packages with a long-range sum (LES, PolarMACE): in a cell that changes, the sum
        goes over the waves of the first cell, with the same integers, so that the energy is
        smooth, as at constant pressure. Cells strained by more than 25 % from it (the norm
        of the strain tensor: 22 % of one length, or 13 % of all three), and batches, are
        refused, and copies of the calculator have a first cell of their own. Packages of a
        committee without such a sum are evaluated as usual. False: waves enter and leave
        the sum with the cell, as in the original model.
    stress_volume : {"cell", "mace"}
        What divides the strain derivative of a structure with open directions: the volume of its
        cell; or, as in ``MACECalculator``, that of a cell whose vectors along open directions lie
        along x, y and z and are 5 `r_max` (L + 1) long, where L is the largest coordinate in Å.
        Molecules then have a stress, too.
    charges_key : str
        For packages that predict dipoles: the array of the atoms with fixed charges.
    info_keys, arrays_keys : mapping of str to str, optional
        The keys of ``atoms.info`` and ``atoms.arrays`` for inputs of the model, such as
        ``{"total_charge": "q", "head": "level"}``; other inputs keep their usual keys.
    **mace
        Keywords of ``MACECalculator``: `model_paths`, `models`, `default_dtype`, `model_type`. Of
        others, which have no meaning here, a value other than the default is an error.

    Attributes
    ----------
    implemented_properties : list of str
        ``energy``, ``free_energy`` (the same number), ``energies`` (per atom), in eV and with the
        energies of the isolated atoms; ``forces`` in eV/Å; ``stress``, Voigt order, in eV/Å^3, the
        strain derivative divided by the volume of the cell, for systems that are periodic in at
        least one direction and whose cell has three vectors. Packages also have ``stresses``, the
        contribution of each atom to the stress, but not with a long-range sum, whose latent
        ``charges`` (e) they have instead. A committee gives means, and adds to `results` for
        each property ``..._std``, the standard deviation over the members, and ``..._committee``,
        the single values; and ``..._var`` and ``..._comm`` in the shapes of ``MACECalculator``.

    Raises
    ------
    PackageError
        The package is missing, damaged or of a newer version.
    CheckpointError
        The file is not a checkpoint that can be loaded; the message says which file to give.
    UnsupportedProblemError
        A layer of an unpatched file cannot be patched, or a calculator's model is compiled.
    DeviceError
        The device does not exist, or its driver cannot run the kernels.
    KernelCompileError
        The kernels are not cached, and there is no C++ compiler (CPU) or NVRTC (CUDA). A package on
        a GPU raises this at the first evaluation.
    ValueError, TypeError
        An argument is out of range or of the wrong kind, or the head is missing or unknown.

    Notes
    -----
    Only the properties that are asked for are computed: an energy alone needs no backward pass.
    Stress is computed together with forces if the previous step asked for both, as in
    constant-pressure runs. ``atoms.info["charge"]`` and ``["spin"]`` are passed to models that use
    them, and so are categorical fields of ``atoms.info`` that a NequIP model reads. The calculator
    does not change torch's threads, environment or random state. It changes torch's default dtype
    only during calls of MACE models that make tensors in it, such as those of several heads.

    Copies (``copy.deepcopy``, ``pickle``) share nothing with the original: they open the same file
    with the same options, and raise `PackageError` or `CheckpointError` if it has changed or is
    missing. A loaded model, or one that was changed in place, is itself copied.

    While running it raises ``ase.calculators.calculator.InputError`` for species that the model
    does not know and for unusable positions or cells, ``PropertyNotImplementedError`` for stress
    of molecules and in cells of fewer than three vectors, and ``CalculationFailed`` if the model
    returns nan. A package raises ``MemoryError`` if host or device have too little memory; it can
    then evaluate a smaller structure. Ctrl-C ends compilations and evaluations of packages on CPUs
    within about a second; the calculator can be used afterwards.

    Examples
    --------
    >>> from ase.build import molecule
    >>> atoms = molecule("H2O")
    >>> atoms.calc = MDCGCalculator("water.mdcg")  # doctest: +SKIP
    >>> atoms.get_forces().shape  # doctest: +SKIP
    (3, 3)
    """

    # not ClassVar, because ASE declares an instance variable
    implemented_properties: list[str] = [*PROPERTIES]  # noqa: RUF012

    def __init__(
        self,
        model: Model | Sequence[Model] | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        head: str | None = None,
        skin: float = 1.0,
        species_types: Mapping[str, str] | None = None,
        kernels: str = "auto",
        threads: int | None = None,
        precision: str | None = None,
        dispersion: str | None = None,
        damping: str = "bj",
        dispersion_cutoff: float = 40 * Bohr,
        memory: str | None = None,
        fixed_waves: bool = False,
        stress_volume: str = "cell",
        charges_key: str = "Qs",
        info_keys: Mapping[str, str] | None = None,
        arrays_keys: Mapping[str, str] | None = None,
        **mace: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        added = dispersion_options(dispersion, damping, float(dispersion_cutoff))
        machine = (kernels, threads, precision, added, memory, bool(fixed_waves))
        places = (info_keys, arrays_keys, charges_key, stress_volume)
        options = Options(device, dtype, head, float(skin), species_types, *machine, *places)
        members, options = members_and_options(model, mace, options, signature(MDCGCalculator))
        self._backend: PackageBackend | TorchBackend
        if are_packages(members):
            kind = None if options.dtype is None else str(options.dtype).removeprefix("torch.")
            wanted = ConversionOptions(None, options.head, precision or kind, dispersion=dispersion)
            members = [named_package(str(m), wanted) if is_name(m) else m for m in members]
            self._backend = PackageBackend(members, options)
            backend = self._backend
            energies = [*PROPERTIES] if backend.has_energies else []
            energies += ["stresses"] * (backend.has_energies and not backend.is_long_range)
            others = ["dipole"] * backend.has_dipoles + ["charges"] * backend.has_charges
            self.implemented_properties = energies + others
        else:
            if machine != ("auto", None, None, {}, None, False):
                raise ValueError(
                    "kernels, threads, precision, memory, fixed_waves and dispersion are for "
                    "packages (.mdcg); torch runs other models, see torch.set_num_threads"
                )
            from .torch_backend import TorchBackend

            self._backend = TorchBackend(members, options)
        self._keeps_waves = bool(fixed_waves)
        self._asked: set[str] = set()
        self._asked_before: set[str] = set()
        self._inputs_seen: dict[str, Any] = {}
        self.parameters = {
            "model": self._backend.name,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "head": self._backend.head,
            "skin": float(skin),
            **added,
            **({} if stress_volume == "cell" else {"stress_volume": stress_volume}),
        }

    @property
    def model(self) -> torch.nn.Module | None:
        """The torch model that is evaluated, of a committee the first; None for packages."""
        return self._backend.model

    @property
    def is_patched(self) -> bool:
        """Whether layers of a torch model run on mdcg's kernels; False for packages."""
        return self._backend.is_patched

    @property
    def patch_report(self) -> PatchReport | None:
        """Whether each tensor product of the (first) torch model is patched, or None."""
        return self._backend.patch_report

    @property
    def device(self) -> torch.device | str:
        """Device of the model."""
        return self._backend.device

    @property
    def dtype(self) -> torch.dtype | str:
        """Precision of the model."""
        return self._backend.dtype

    @property
    def r_max(self) -> float:
        """Cutoff of the model in Å."""
        return self._backend.r_max

    @property
    def species(self) -> tuple[str, ...]:
        """Chemical symbols that the model knows."""
        return self._backend.species

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of the model."""
        return self._backend.heads

    @property
    def neighbors(self) -> SkinNeighborList | _core.NeighborList:
        """The neighbour list; `num_builds` and `num_updates` show how often it was rebuilt.

        Packages on CUDA devices make their own lists there, see `report`.
        """
        return self._backend.neighbors

    def report(self) -> EngineReport:
        """Return the kernels of a package and the milliseconds of each part; printable.

        Raises
        ------
        TypeError
            The calculator runs no package.
        """
        return self._package("report").report()

    def get_spin_polarized(self) -> bool:
        """Return False."""
        # Without this method ASE binds a function to each calculator. The calculator would then
        # refer to itself, and its device memory stay allocated until Python collects cycles.
        return False

    def get_descriptors(
        self,
        atoms: Atoms | None = None,
        invariants_only: bool | None = None,
        num_layers: int = -1,
    ) -> npt.NDArray[np.float64] | list[npt.NDArray[np.float64]]:
        """Return the features of every atom from which the model computes the energy.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            None is the structure of the last call.
        invariants_only : bool, optional
            True: invariant features alone, as ``MACECalculator`` returns them by default. False:
            all features, but of the last layer the invariant ones, as in MACE. None: True for
            models that torch runs, and for packages, if `num_layers` is -1, all features of all
            layers, of a committee those of the first package.
        num_layers : int
            Features of so many layers, counted from the first; -1 stands for all.

        Returns
        -------
        numpy.ndarray, shape (n_nodes, n_features)
            The features of each layer, in sequence, each in the order of its irreps. Except for
            packages without these options, a committee gives a list of an array for each member.

        Raises
        ------
        UnsupportedProblemError
            Torch runs the model, and it is no MACE model of energies alone.
        ValueError
            The model has fewer layers.
        """
        atoms = self._atoms_or_last(atoms)
        as_mace = (
            not isinstance(self._backend, PackageBackend)
            or invariants_only is not None
            or num_layers != -1
        )
        found = self._backend.descriptors(atoms, all_members=as_mace)
        if not as_mace:
            return found[0].rows
        invariant = True if invariants_only is None else bool(invariants_only)
        kept = [each.select(invariant, num_layers) for each in found]
        return kept[0] if len(kept) == 1 else kept

    def get_heat_flux(self, atoms: Atoms | None = None) -> npt.NDArray[np.float64]:
        """Return the heat flux of atoms that move, for Green-Kubo thermal conductivities.

        The flux is exact for message-passing potentials too. It takes four evaluations of the cell
        with all periodic images that send messages to it. It is not divided by the volume.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            With velocities; None is the structure of the last call.

        Returns
        -------
        numpy.ndarray, shape (3,)
            Derivative of the sum of positions times energies of atoms, eV Å per ASE unit of time.

        Raises
        ------
        TypeError
            The calculator runs no package.
        """
        return self._package("get_heat_flux").heat_flux(self._atoms_or_last(atoms))

    def get_hessian(
        self,
        atoms: Atoms | None = None,
        step: float = 1e-3,
        indices: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return second derivatives of the energy, central differences of forces.

        Parameters
        ----------
        atoms : ase.Atoms, optional
            None is the structure of the last call.
        step : float
            Displacement of each atom in Å; the error is proportional to its square.
        indices : sequence of int, optional
            Atoms that are displaced, whose rows are returned; None: all. Only these are computed.

        Returns
        -------
        numpy.ndarray, shape (3 n_nodes, 3 n_nodes) or (3 n_indices, 3 n_nodes)
            In eV/Å^2, in the order of `indices` and of atoms, with x, y and z of each. The block
            of the displaced atoms is symmetric.

        Raises
        ------
        ValueError
            The model is in float32, whose forces are too coarse for differences, or `step` or
            `indices` are out of range.
        """
        dtype = str(self.parameters["dtype"])
        batch = self._one_by_one if self._keeps_waves else self.batch
        return hessian(self._atoms_or_last(atoms), step, indices, dtype, batch)

    def _one_by_one(self, images: Sequence[Atoms], names: Sequence[str]) -> list[dict[str, Any]]:
        """Do what :meth:`batch` does, which is not for fixed waves."""
        wanted = wanted_of(names, images, self._backend.reach)
        found = [self._backend.evaluate(image, wanted) for image in images]
        return [as_results(each, names, self._backend.model_class) for each in found]

    def batch(
        self, images: Sequence[Atoms], properties: Sequence[str] = ("energy", "forces")
    ) -> list[dict[str, Any]]:
        """Evaluate many structures at once, which is faster than one by one if they are small.

        Parameters
        ----------
        images : sequence of ase.Atoms
            Structures, which may differ in size, elements and cell.
        properties : sequence of str
            Names from `implemented_properties`.

        Returns
        -------
        list of dict
            The `results` of each structure. The calculator's own `results` do not change.

        Raises
        ------
        ase.calculators.calculator.InputError, PropertyNotImplementedError
            As in :meth:`calculate`.
        """
        images = list(images)
        self._check_properties(properties)
        wanted = wanted_of(properties, images, self._backend.reach)

        def single(atoms: Atoms) -> Evaluation:
            return self._backend.evaluate(atoms, wanted)

        with errors_of_images(images, single):
            if isinstance(self._backend, PackageBackend):
                found = self._backend.evaluate_batch(images, wanted)
            else:
                found = [single(atoms) for atoms in images]
        return [as_results(each, properties, self._backend.model_class) for each in found]

    def __repr__(self) -> str:
        known = " ".join(self.species)
        known = known if len(self.species) <= 8 else f"{len(self.species)} elements"
        return (
            f"MDCGCalculator({self.parameters['model']!r}: {self._backend.describe()}, {known}, "
            f"r_max {self.r_max:g} Å, {self.parameters['dtype']}, {self.device}, "
            f"head {self._backend.head})"
        )

    def set(self, **kwargs: Any) -> dict[str, Any]:
        """Refuse changes, because the options of a calculator are fixed when it is made.

        Raises
        ------
        TypeError
            Any argument was given.
        """
        if kwargs:
            names = ", ".join(sorted(kwargs))
            raise TypeError(f"MDCGCalculator cannot change {names} after it was made: make another")
        return {}

    def export_properties(self) -> Properties:
        """Return the results that ASE has names for; others are only in `results`."""
        return Properties(
            {name: self.results[name] for name in self.results if name in all_outputs}
        )

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return the names of what has changed since the last calculation.

        Parameters
        ----------
        atoms : ase.Atoms
            Structure to compare with the last one.
        tol : float
            Changes up to this size are ignored.
        """
        changes = changes_since(self.atoms, atoms, tol)
        if not changes and not equal(self._inputs_seen, self._backend.inputs_of(atoms)):
            changes.append("info")
        return changes

    def get_property(
        self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True
    ) -> Any:
        """Return a property, which is computed if it is not known.

        Parameters
        ----------
        name : str
            One of `implemented_properties`.
        atoms : ase.Atoms, optional
            None is the structure of the last call.
        allow_calculation : bool
            If False, return None instead of computing.
        """
        self._check_properties([name])
        changes = [] if atoms is None else self.check_state(atoms)
        if changes:
            self.results = {}
        if allow_calculation:
            if name not in self.results:
                self.calculate(atoms, [name], changes)
            self._asked.add(name)
        elif changes:
            self.atoms = None
        return copy.copy(self.results.get(name))

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
            Names from `implemented_properties`.
        system_changes : sequence of str
            What changed since the last call; if empty, results are added to the known ones.

        Raises
        ------
        ase.calculators.calculator.InputError
            Unknown species, or positions or a cell that are unusable.
        ase.calculators.calculator.PropertyNotImplementedError
            A property that the model does not have, or the stress of a structure without one: see
            `implemented_properties`.
        """
        atoms = self._atoms_or_last(atoms)
        self._check_properties(properties)
        self.atoms = remembered(self.atoms, atoms, system_changes)
        if system_changes:
            self.results = {}
            self._asked_before, self._asked = self._asked, set()
        self._asked.update(properties)
        wanted = wanted_of(properties, [atoms], self._backend.reach)
        moves_cell = "forces" in wanted and {"forces", "stress"} <= self._asked_before
        if moves_cell and has_stress(atoms, self._backend.reach):
            wanted.add("stress")  # a constant-pressure run
        inputs = self._backend.inputs_of(atoms)
        self._inputs_seen = copy.deepcopy(inputs) if inputs else {}
        found = self._backend.evaluate(atoms, wanted)
        self.results.update(as_results(found, properties, self._backend.model_class))

    def _atoms_or_last(self, atoms: Atoms | None) -> Atoms:
        found = self.atoms if atoms is None else atoms
        if found is None:
            raise ValueError("there are no atoms to evaluate: pass them, or set atoms.calc first")
        return found

    def _check_properties(self, properties: Sequence[str]) -> None:
        unknown = [name for name in properties if name not in self.implemented_properties]
        if unknown:
            known = ", ".join(self.implemented_properties)
            sums = "stresses" in unknown and getattr(self._backend, "is_long_range", False)
            why = ", which a long-range sum does not have" if sums else ""
            raise PropertyNotImplementedError(
                f"{', '.join(sorted(set(unknown)))} not implemented{why}; available: {known}"
            )

    def _package(self, what: str) -> PackageBackend:
        if not isinstance(self._backend, PackageBackend):
            raise TypeError(
                f"{what} is for packages: convert the checkpoint with 'mdcg-patch FILE -o "
                "NAME.mdcg' and give that file"
            )
        return self._backend
