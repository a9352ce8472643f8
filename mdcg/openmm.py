"""Packages as forces of OpenMM: the whole system, or a part of one that is otherwise molecular.

OpenMM 8.4 or newer calls Python for energy and forces (``openmm.PythonForce``); the engine computes
them. The extra ``mdcg[openmm]`` installs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms, units

from .calculators import MDCGCalculator
from .errors import MissingDependencyError, UnsupportedProblemError

if TYPE_CHECKING:
    import openmm
    from openmm import app

__all__ = ["add_force"]

_ENERGY = units.mol / units.kJ  # kJ/mol in an eV
_LENGTH = 10.0  # Å in a nm

# Bonded terms by class: how many atoms a term has, and the parameters at which it has no energy.
_BONDED = {
    "HarmonicBondForce": ("Bond", 2, lambda length, k: (length, 0.0)),
    "HarmonicAngleForce": ("Angle", 3, lambda angle, k: (angle, 0.0)),
    "PeriodicTorsionForce": ("Torsion", 4, lambda n, phase, k: (n, phase, 0.0)),
    "RBTorsionForce": ("Torsion", 4, lambda *c: (0.0,) * 6),
}
# Forces that act on atoms one by one, or on the whole system, or not at all.
_OUTSIDE = (
    *("AndersenThermostat", "CMMotionRemover", "MonteCarloBarostat", "CustomExternalForce"),
    *("MonteCarloAnisotropicBarostat", "MonteCarloFlexibleBarostat", "MonteCarloMembraneBarostat"),
    *("PythonForce", "RMSDForce", "CustomCVForce", "CustomCentroidBondForce"),
)


def add_force(
    system: openmm.System,
    topology: app.Topology,
    package: str | os.PathLike[str],
    atoms: Iterable[int] | None = None,
    *,
    periodic: bool | None = None,
    **options: Any,
) -> openmm.PythonForce:
    """Let a package compute the energy inside of some atoms, or of all.

    The package replaces what the system has between these atoms: their bonds, angles, torsions and
    nonbonded interactions lose their energy, and constraints between them are removed. Interactions
    with other atoms stay, so that a part of a system is embedded mechanically, as openmm-ml does
    it: the charges that other atoms see are those of the system.

    Parameters
    ----------
    system : openmm.System
        Changed in place; nothing is changed where an error is raised.
    topology : openmm.app.Topology
        With the element of every atom.
    package : path
        A package (``.mdcg``) that ``mdcg-patch`` wrote.
    atoms : iterable of int, optional
        Numbers of the atoms; None is all of them.
    periodic : bool, optional
        Whether the package sees periodic images; None: if the topology has box vectors.
    **options
        Those of :class:`~mdcg.MDCGCalculator`, such as ``device``, ``threads`` or ``dispersion``.

    Returns
    -------
    openmm.PythonForce
        The force that was added; it can be serialized while the package stays where it is.

    Raises
    ------
    MissingDependencyError
        OpenMM is not installed, or older than 8.4.
    UnsupportedProblemError
        The system has a force whose terms between the atoms cannot be switched off.
    ValueError
        Topology and system differ, a number of an atom is wrong, an atom has no element, or the
        package does not know it.

    Examples
    --------
    >>> system = forcefield.createSystem(topology)             # doctest: +SKIP
    >>> mdcg.openmm.add_force(system, topology, "water.mdcg")  # doctest: +SKIP
    """
    openmm = _import_openmm()
    count = system.getNumParticles()
    elements = [atom.element for atom in topology.atoms()]
    if len(elements) != count:
        raise ValueError(
            f"the topology has {len(elements)} atoms and the system {count} particles, expected "
            "as many: give the topology that the system was made from"
        )
    chosen = _chosen(atoms, count)
    unknown = [n for n in chosen if elements[n] is None]
    if unknown:
        raise ValueError(
            f"atom {unknown[0]} of the topology has no element, expected atoms: leave virtual "
            "sites out of `atoms`"
        )
    calculator = MDCGCalculator(package, **options)
    symbols = [elements[n].symbol for n in chosen]
    missing = sorted(set(symbols) - set(calculator.species))
    if missing:
        raise ValueError(
            f"{os.fspath(package)} does not know {' '.join(missing)}, expected elements out of: "
            f"{' '.join(calculator.species)}"
        )
    if periodic is None:
        periodic = topology.getPeriodicBoxVectors() is not None
    inside = frozenset(chosen)
    whole = len(inside) == count
    changes = [change for force in system.getForces() for change in _changes(force, inside, whole)]
    for change in changes:  # all of them are known to be possible
        change()
    for number in reversed(range(system.getNumConstraints())):
        first, second, _ = system.getConstraintParameters(number)
        if first in inside and second in inside:
            system.removeConstraint(number)
    force = openmm.PythonForce(_Computation(calculator, Atoms(symbols, pbc=periodic)))
    force.setName(f"mdcg {Path(package).name}")
    force.setUsesPeriodicBoundaryConditions(periodic)
    if not whole:
        force.setParticles(chosen)
    system.addForce(force)
    return force


def _import_openmm() -> Any:
    try:
        import openmm
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "OpenMM is not installed: pip install 'mdcg[openmm]'"
        ) from None
    if not hasattr(openmm, "PythonForce"):
        raise MissingDependencyError(
            f"OpenMM {openmm.version.version} has no PythonForce, expected 8.4 or newer: pip "
            "install --upgrade 'mdcg[openmm]'"
        )
    return openmm


def _chosen(atoms: Iterable[int] | None, count: int) -> list[int]:
    if atoms is None:
        return list(range(count))
    chosen = [int(n) for n in atoms]
    wrong = [n for n in chosen if not 0 <= n < count]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        got = f"{wrong[0]}" if wrong else "one twice" if chosen else "none"
        raise ValueError(f"atoms are {got}, expected different numbers from 0 to {count - 1}")
    return chosen


def _changes(force: Any, inside: frozenset[int], whole: bool) -> list[Any]:
    """Return what switches the terms of a force between the atoms off, to be called later."""
    kind = type(force).__name__
    if kind in _OUTSIDE:
        return []
    if kind in _BONDED:
        return _bonded_changes(force, inside, *_BONDED[kind])
    if kind == "NonbondedForce":
        return _nonbonded_changes(force, inside, whole)
    raise UnsupportedProblemError(
        f"the system has a {kind}, and mdcg does not know how to switch its terms between the "
        "atoms of the package off: remove the force, or make the system without it"
    )


def _bonded_changes(
    force: Any, inside: frozenset[int], term: str, size: int, without: Any
) -> list[Any]:
    changes = []
    for number in range(getattr(force, f"getNum{term}s")()):
        found = getattr(force, f"get{term}Parameters")(number)
        if inside.issuperset(found[:size]):
            arguments = (number, *found[:size], *without(*found[size:]))
            changes.append(
                lambda arguments=arguments: getattr(force, f"set{term}Parameters")(*arguments)
            )
    return changes


def _nonbonded_changes(force: Any, inside: frozenset[int], whole: bool) -> list[Any]:
    def without_particles() -> None:
        for number in range(force.getNumParticles()):
            _, sigma, _ = force.getParticleParameters(number)
            force.setParticleParameters(number, 0.0, sigma, 0.0)

    def without_exceptions() -> None:
        for number in range(force.getNumExceptions()):
            first, second, _, sigma, _ = force.getExceptionParameters(number)
            if first in inside and second in inside:
                force.setExceptionParameters(number, first, second, 0.0, sigma, 0.0)

    def without_pairs() -> None:
        for first, second in combinations(sorted(inside), 2):
            force.addException(first, second, 0.0, 1.0, 0.0, True)

    return [without_particles, without_exceptions] if whole else [without_pairs]


class _Computation:
    """What OpenMM calls, and pickles where a system is serialized."""

    def __init__(self, calculator: MDCGCalculator, atoms: Atoms) -> None:
        self.calculator = calculator
        self.atoms = atoms

    def __call__(self, state: Any) -> tuple[float, np.ndarray]:
        """Return energy (kJ/mol) and forces (kJ/mol/nm) of a state."""
        from openmm.unit import angstrom

        self.atoms.positions = state.getPositions(asNumpy=True).value_in_unit(angstrom)
        if self.atoms.pbc.any():
            self.atoms.cell = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(angstrom)
        forces = self.calculator.get_property("forces", self.atoms)
        energy = self.calculator.get_property("energy", self.atoms)
        return energy * _ENERGY, forces * (_ENERGY * _LENGTH)
