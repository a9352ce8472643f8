"""The result of an evaluation, and checks that both backends share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.calculator import (
    CalculationFailed,
    InputError,
    PropertyNotImplementedError,
    all_changes,
)
from ase.data import atomic_numbers, chemical_symbols
from ase.stress import full_3x3_to_voigt_6_stress
from ase.units import Bohr

from .. import _core

IntArray = npt.NDArray[np.int64]


def types_by_number(
    names: Sequence[str], species_types: Mapping[str, str] | None = None
) -> IntArray:
    """Return the type of every atomic number, -1 if the model does not know it.

    `names` are the model's types in order. `species_types` has the type name for each chemical
    symbol; None if type names are chemical symbols.
    """
    if species_types is None:
        strange = [name for name in names if name not in atomic_numbers]
        if strange:
            raise ValueError(
                f"the model's types are {', '.join(names)}, and {', '.join(strange)} are not "
                "chemical symbols: pass species_types={'H': name, ...}, the type name of "
                "every chemical symbol"
            )
        species_types = {name: name for name in names}
    found = np.full(len(chemical_symbols), -1, dtype=np.int64)
    for symbol, name in species_types.items():
        if symbol not in atomic_numbers:
            raise ValueError(f"species_types has {symbol!r}, which is not a chemical symbol")
        if name not in names:
            raise ValueError(
                f"species_types maps {symbol} to {name!r}, expected one of the model's types: "
                f"{', '.join(names)}"
            )
        found[atomic_numbers[symbol]] = names.index(name)
    return found


def known_symbols(types: IntArray) -> list[str]:
    """Return the chemical symbols that have a type."""
    return [chemical_symbols[number] for number in np.flatnonzero(types >= 0)]


def require_known(numbers: IntArray, types: IntArray) -> None:
    """Raise ``InputError`` if an atomic number has no type; see `types_by_number`."""
    inside = (numbers >= 0) & (numbers < len(types))
    if inside.all() and (types[numbers] >= 0).all():
        return
    unknown = sorted(
        {int(n) for n, ok in zip(numbers, inside, strict=True) if not ok or types[n] < 0}
    )
    names = [chemical_symbols[n] if 0 <= n < len(chemical_symbols) else f"Z={n}" for n in unknown]
    raise InputError(
        f"the model does not know {', '.join(names)}, only {', '.join(known_symbols(types))}"
    )


FloatArray: TypeAlias = npt.NDArray[np.float64]
#: A Debye in e Å, computed like in MACE.
_DEBYE = 1e-11 / 299792458 / 1.602176634e-19
RESULTS = ("energy", "energies", "forces", "stress", "stresses")


@dataclass(frozen=True)
class Options:
    """Arguments of :class:`~mdcg.calculators.MDCGCalculator` that its backends read."""

    device: Any
    dtype: Any
    head: str | None
    skin: float
    species_types: Mapping[str, str] | None
    kernels: str
    threads: int | None
    precision: str | None
    #: Empty, or functional, damping and cutoff by the engine's names.
    dispersion: Mapping[str, Any] = field(default_factory=dict)
    memory: str | None = None
    fixed_waves: bool = False
    #: Keys of ``atoms.info`` and ``atoms.arrays`` by the names of inputs, and that of charges.
    info_keys: Mapping[str, str] | None = None
    arrays_keys: Mapping[str, str] | None = None
    charges_key: str = "Qs"
    stress_volume: str = "cell"
    model_type: str | None = None  # MACE's name for the kind of model

    def __post_init__(self) -> None:
        if not (np.isfinite(self.skin) and self.skin >= 0):
            raise ValueError(f"skin is {self.skin}, expected a length of 0 Å or more")
        if self.memory is not None and not isinstance(self.memory, str):
            raise TypeError(
                f"memory is {self.memory!r}, expected a text such as '90 %' or '120 GB'"
            )
        for name in ("info_keys", "arrays_keys"):
            keys = getattr(self, name) or {}
            texts = chain.from_iterable(keys.items()) if isinstance(keys, Mapping) else [None]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{name} is {keys!r}, expected keys by names of inputs, as texts")
            if keys:  # a copy, because the caller may change theirs
                object.__setattr__(self, name, dict(keys))
        if not isinstance(self.charges_key, str):
            raise TypeError(f"charges_key is {self.charges_key!r}, expected the key of an array")
        if self.stress_volume not in ("cell", "mace"):
            raise ValueError(f"stress_volume is {self.stress_volume!r}, expected 'cell' or 'mace'")

    def reach(self, r_max: float) -> float | None:
        """Return the `reach` of `stress_volume` for a model with a cutoff."""
        return r_max if self.stress_volume == "mace" else None


def dispersion_options(functional: str | None, damping: str, cutoff: float) -> dict[str, Any]:
    """Return the options of a dispersion by the engine's names, or none of them."""
    if functional is not None:
        return {"dispersion": functional, "damping": damping, "dispersion_cutoff": cutoff}
    if (damping, cutoff) != ("bj", 40 * Bohr):
        raise ValueError(
            f"damping is {damping!r} and dispersion_cutoff {cutoff:g} Å without dispersion, "
            "expected the functional of dispersion as well, such as dispersion='pbe'"
        )
    return {}


@dataclass(frozen=True)
class Evaluation:
    """Results for one structure; None if a result was not asked for or does not exist."""

    energy: float | None  # eV, with the energies of the isolated atoms
    energies: FloatArray | None  # [n_nodes], None if the energy is not a sum over atoms
    forces: FloatArray | None  # [n_nodes, 3] eV/Å
    stress: FloatArray | None  # [3, 3] eV/Å^3, positive under tension
    stresses: FloatArray | None = None  # [n_nodes, 3, 3]; they sum to `stress`
    extra: dict[str, Any] = field(default_factory=dict)  # such as deviations of a committee

    @classmethod
    def of_nothing(cls, wanted: Container[str]) -> Evaluation:
        """Return the evaluation of a structure without atoms; `wanted` is from `wanted_of`."""
        shapes = {"forces": (0, 3), "stress": (3, 3), "stresses": (0, 3, 3)}
        found = {name: np.zeros(s) if name in wanted else None for name, s in shapes.items()}
        dipoles = {"dipole": np.zeros(3), "dipoles": np.zeros((0, 3))}
        extra = dipoles if "dipole" in wanted else {}
        extra |= {"charges": np.zeros(0)} if "charges" in wanted else {}
        return cls(energy=0.0, energies=np.zeros(0), **found, extra=extra)

    def __add__(self, other: Evaluation) -> Evaluation:
        """Return the sum of two results of one structure, with the first one's `extra`."""
        sums: dict[str, Any] = {}
        for name in RESULTS:
            one, two = getattr(self, name), getattr(other, name)
            sums[name] = None if one is None or two is None else one + two
        return Evaluation(**sums, extra=self.extra)


def check_finite(result: Evaluation, atoms: Atoms) -> None:
    """Raise ``CalculationFailed`` if a result is not finite."""
    for name in RESULTS:
        value = getattr(result, name)
        if value is not None and not np.isfinite(value).all():
            raise CalculationFailed(
                f"the model returned {name} that are not finite numbers for "
                f"{atoms.get_chemical_formula()}; check the structure for atoms that are much "
                "too close"
            )


@contextmanager
def errors_of_images(
    images: Sequence[Atoms], evaluate: Callable[[Atoms], Evaluation]
) -> Iterator[None]:
    """Raise the error of the first structure that fails by itself, with its own atom numbers."""
    try:
        yield
    except (InputError, CalculationFailed):
        for number, atoms in enumerate(images):
            try:
                evaluate(atoms)
            except (InputError, CalculationFailed) as error:
                raise type(error)(f"images[{number}]: {error}") from None
        raise


def result_of(
    found: Mapping[str, Any], atoms: Atoms, charges: bool, options: Options, reach: float | None
) -> Evaluation:
    """Return the engine's results for a structure; `charges`: the last descriptor is a charge."""
    extra: dict[str, Any] = {}
    if "descriptors" in found:
        last = found["descriptors"][:, -1].copy()
        extra = {"charges": last} if charges else dipoles_of(found["descriptors"], atoms, options)
    volume = stress_volume(atoms, reach) if {"virial", "virials"} & found.keys() else 0.0
    return Evaluation(
        energy=float(found["energy"]) if "energy" in found else None,
        energies=found.get("energies"),
        forces=found.get("forces"),
        stress=stress_of(found.get("virial"), volume),
        stresses=stress_of(found.get("virials"), volume),
        extra=extra,
    )


def stress_of(virial: FloatArray | None, volume: float) -> FloatArray | None:
    """Return the stress (eV/Å^3) of a virial (eV), or of the virial of each atom.

    `require_stress` has refused structures without a stress.
    """
    return None if virial is None else -virial / volume


def long_cell(atoms: Atoms, reach: float) -> FloatArray:
    """Return the cell as MACE's calculator has it: vectors along open directions are long.

    They lie along the axes, and their length is five cutoffs for each Å of the largest coordinate,
    counted from the origin, plus one. `reach` is the cutoff in Å.
    """
    length = (float(np.abs(atoms.positions).max(initial=0.0)) + 1.0) * 5.0 * reach
    cell = np.array(atoms.cell.array, dtype=np.float64)
    return np.where(atoms.pbc[:, None], cell, length * np.identity(3))


def stress_volume(atoms: Atoms, reach: float | None = None) -> float:
    """Return the volume (Å^3) that divides virials, zero for a structure without a stress.

    With a `reach`, the cell is that of :func:`long_cell`, so that molecules have a stress as well.
    """
    if reach is None:
        return float(stress_volumes(atoms.cell.array, atoms.pbc))
    return float(stress_volumes(long_cell(atoms, reach), np.full(3, True)))


def stress_volumes(cells: FloatArray, periodic: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the volumes (Å^3) that divide virials, zero for structures without a stress.

    The stress is the derivative of the energy with respect to strain, divided by the volume of the
    cell. It exists if the cell has three independent vectors and at least one of them is periodic:
    the volume of a slab includes the vacuum in its cell. `cells` have the shape (..., 3, 3) with
    vectors as rows, `periodic` has the shape (..., 3). If vectors are not finite the volume is not
    zero, so that the neighbour list raises the error for such cells.
    """
    with np.errstate(invalid="ignore"):
        volumes = np.abs(np.linalg.det(cells))
        lengths = np.linalg.norm(cells, axis=-1).prod(axis=-1)
    flat = (volumes <= 1e-12 * lengths) & np.isfinite(lengths)
    return np.where(flat | ~periodic.any(axis=-1), 0.0, volumes)


def dipoles_of(descriptors: FloatArray, atoms: Atoms, options: Options) -> dict[str, Any]:
    """Return dipoles of atoms, the last three descriptors, and their sum.

    Like in MACE, the sum includes the dipole of fixed charges: an array of the atoms, in units of
    the elementary charge.
    """
    dipoles = descriptors[:, -3:]
    charges = atoms.arrays.get(options.charges_key, np.zeros(len(atoms)))
    return {"dipole": dipoles.sum(axis=0) + charges @ atoms.positions / _DEBYE, "dipoles": dipoles}


def mean_of(found: Sequence[Evaluation]) -> Evaluation:
    """Return the mean; `extra` has the deviation (of the population) and the single results."""
    means: dict[str, Any] = {}
    extra: dict[str, Any] = {}

    def add(to: dict[str, Any], name: str, single: list[Any]) -> None:
        values = np.stack(single)
        to[name] = values.mean(axis=0)
        extra[f"{name}_std"] = values.std(axis=0)
        extra[f"{name}_committee"] = values

    for name in found[0].extra:
        add(extra, name, [each.extra[name] for each in found])
    for name in RESULTS:
        single = [getattr(each, name) for each in found]
        means[name] = None
        if all(value is not None for value in single):
            add(means, name, single)
    for numbers, name in ((means, "energy"), (extra, "energy_std")):
        if numbers.get(name) is not None:
            numbers[name] = float(numbers[name])
    return Evaluation(**means, extra=extra)


def wanted_of(properties: Sequence[str], images: Sequence[Atoms], reach: float | None) -> set[str]:
    """Return what a backend must compute besides energies; `reach` as in `stress_volume`.

    Raises ``PropertyNotImplementedError`` if a structure has no stress.
    """
    found = {"forces", "stress", "stresses", "dipole", "charges"}.intersection(properties)
    for number, atoms in enumerate(images) if found & {"stress", "stresses"} else ():
        require_stress(atoms, reach, f"images[{number}]: " if len(images) > 1 else "")
    return found


def as_results(found: Evaluation, wanted: Sequence[str], model_class: str) -> dict[str, Any]:
    """Return results in the format of ASE: stresses in Voigt's order."""
    if "energies" in wanted and found.energies is None:
        raise PropertyNotImplementedError(
            f"the energy of {model_class} is not a sum over atoms, so it has no energies"
        )
    results = dict(found.extra)
    if found.energy is not None:
        results |= {"energy": found.energy, "free_energy": found.energy}
    for name in RESULTS[1:]:
        if getattr(found, name) is not None:
            results[name] = getattr(found, name)
    # the names and shapes of MACE's calculator
    for name in ("energy", "forces", "stress", "dipole"):
        if f"{name}_committee" in results:
            results[f"{name}_comm"] = results[f"{name}_committee"]
            results[f"{name}_var"] = results[f"{name}_std"] ** 2
    for name in results:
        if name.startswith("stress") and not name.endswith(("_comm", "_var")):
            results[name] = full_3x3_to_voigt_6_stress(results[name])
    return results


def changes_since(last: Atoms | None, atoms: Atoms, tolerance: float) -> list[str]:
    """Return which inputs of models differ between two structures, by ASE's names."""
    if last is None:
        return list(all_changes)
    return [
        name
        for name, old, new in (
            ("positions", last.positions, atoms.positions),
            ("numbers", last.numbers, atoms.numbers),
            ("cell", last.cell.array, atoms.cell.array),
            ("pbc", last.pbc, atoms.pbc),
        )
        if not _core.arrays_agree(old, new, tolerance)
    ]


def remembered(last: Atoms | None, atoms: Atoms, changes: Sequence[str]) -> Atoms:
    """Return a copy of a structure.

    If only positions have changed, they are written into the last copy, which is returned; what
    the structure states of inputs may have changed with them.
    """
    if last is None or list(changes) != ["positions"] or last.arrays.keys() != atoms.arrays.keys():
        return atoms.copy()
    for name, values in atoms.arrays.items():
        old = last.arrays[name]
        if old.shape == values.shape and old.dtype == values.dtype and old.flags.writeable:
            np.copyto(old, values)
        else:
            last.arrays[name] = values.copy()
    last.info = copy.deepcopy(atoms.info)
    return last


def has_stress(atoms: Atoms, reach: float | None) -> bool:
    """Return whether a structure has a stress, see `stress_volume`."""
    return stress_volume(atoms, reach) != 0.0


def require_stress(atoms: Atoms, reach: float | None, name: str = "") -> None:
    """Raise ``PropertyNotImplementedError`` if a structure, called `name`, has no stress."""
    if not has_stress(atoms, reach):
        raise PropertyNotImplementedError(
            f"{name}stress needs a cell of three independent vectors, of which at least one is "
            f"periodic, got pbc {atoms.pbc.tolist()} and volume "
            f"{abs(np.linalg.det(atoms.cell.array)):.3g} "
            "Å^3: set pbc along at least one, and give the cell a vector along each open one"
        )
