"""Packages as forces of OpenMM: the whole system, or a part of one that is otherwise molecular.

OpenMM 8.4 or newer calls Python for energy and forces (``openmm.PythonForce``); the engine computes
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms, units

from .calculators import MDCGCalculator
from .errors import MissingDependencyError, UnsupportedProblemError, installation

if TYPE_CHECKING:
    import openmm
    from openmm import app

__all__ = ["add_force"]

_ENERGY = units.mol / units.kJ  # kJ/mol in an eV
_LENGTH = 10.0  # Å in a nm

# Bonded terms by class: how many particles a term has, and its parameters without energy.
_BONDED: dict[str, tuple[str, int, Callable[..., tuple[Any, ...]]]] = {
    "HarmonicBondForce": ("Bond", 2, lambda length, k: (length, 0.0)),
    "HarmonicAngleForce": ("Angle", 3, lambda angle, k: (angle, 0.0)),
    "PeriodicTorsionForce": ("Torsion", 4, lambda n, phase, k: (n, phase, 0.0)),
    "RBTorsionForce": ("Torsion", 4, lambda *c: (0.0,) * 6),
}
# Bonded terms whose energy is an expression of parameters. The last class lists its particles.
_CUSTOM_BONDED = {
    "CustomBondForce": ("Bond", 2),
    "CustomAngleForce": ("Angle", 3),
    "CustomTorsionForce": ("Torsion", 4),
    "CustomCompoundBondForce": ("Bond", 1),
}
_OTHERS = ("CMAPTorsionForce", "NonbondedForce", "CustomNonbondedForce")
# Restraints, biases, and what acts on the box or on velocities: no part of a force field.
_KEPT = (
    *("AndersenThermostat", "CMMotionRemover", "CustomVolumeForce", "RPMDMonteCarloBarostat"),
    *("MonteCarloBarostat", "MonteCarloAnisotropicBarostat", "MonteCarloFlexibleBarostat"),
    *("MonteCarloMembraneBarostat", "CustomExternalForce", "CustomCentroidBondForce"),
    *("CustomCVForce", "RMSDForce", "RGForce", "OrientationRestraintForce"),
)
# The parameter of a custom bonded term that is 0 where the term is switched off.
_SWITCH = "mdcg_switch"


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

    The package replaces what the system has between these atoms: their bonded terms, custom ones
    and CMAP included, and their nonbonded interactions lose their energy, and constraints between
    them are removed. Virtual sites that depend on these atoms alone belong to them. Interactions
    with other atoms stay, so that a part of a system is embedded mechanically, as openmm-ml does
    it: the charges that other atoms see are those of the system.

    Restraints and biases stay (`CustomExternalForce`, `CustomCentroidBondForce`, `CustomCVForce`,
    `RMSDForce` and the like). A restraint that is a bond, angle or torsion term stays too, unless
    all of its particles are among these atoms: add such a term after this call.

    Parameters
    ----------
    system : openmm.System
        Changed in place; nothing is changed where an error is raised.
    topology : openmm.app.Topology
        With the element of every atom.
    package : path
        A package (``.mdcg``) that ``mdcg-patch`` wrote.
    atoms : iterable of int, optional
        Numbers of the atoms in the topology, in any order; None is all of them.
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
        The system has a force whose energy between the atoms cannot be switched off, such as an
        implicit solvent or AMOEBA's multipoles.
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
    inside = _with_virtual_sites(system, chosen)
    forces = system.getForces()
    for force in forces:
        _require_separable(force, inside)
    for force in forces:
        _switch_off(force, inside, whole=len(inside) == count)
    for number in reversed(range(system.getNumConstraints())):
        first, second, _ = system.getConstraintParameters(number)
        if first in inside and second in inside:
            system.removeConstraint(number)
    force = openmm.PythonForce(_Computation(calculator, Atoms(symbols, pbc=periodic)))
    force.setName(f"mdcg {Path(package).name}")
    force.setUsesPeriodicBoundaryConditions(periodic)
    force.setParticles(chosen)  # also where these are all: `symbols` have their order
    system.addForce(force)
    return force


def _import_openmm() -> Any:
    try:
        import openmm
    except ModuleNotFoundError:
        raise MissingDependencyError(f"OpenMM is not installed: {installation('openmm')}") from None
    if not hasattr(openmm, "PythonForce"):
        raise MissingDependencyError(
            f"OpenMM {openmm.version.version} has no PythonForce, expected 8.4 or newer: "
            + installation("openmm")
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


def _with_virtual_sites(system: Any, chosen: list[int]) -> frozenset[int]:
    """Return the atoms and all virtual sites whose positions depend on them alone."""
    parents = {}
    for number in filter(system.isVirtualSite, range(system.getNumParticles())):
        site = system.getVirtualSite(number)
        parents[number] = {site.getParticle(k) for k in range(site.getNumParticles())}
    inside = set(chosen)
    while found := {n for n, needed in parents.items() if needed <= inside} - inside:
        inside |= found
    return frozenset(inside)


def _require_separable(force: Any, inside: frozenset[int]) -> None:
    """Raise if a force acts between the atoms in a way that cannot be switched off."""
    kind = type(force).__name__
    if kind in (*_BONDED, *_CUSTOM_BONDED, *_OTHERS, *_KEPT):
        return
    if kind == "PythonForce":
        particles = force.getParticles()
        acts = not particles or not inside.isdisjoint(particles)
    elif kind == "DrudeForce":
        terms = (force.getParticleParameters(n) for n in range(force.getNumParticles()))
        acts = any(not inside.isdisjoint(particles[:2]) for particles in terms)
    elif kind == "CustomHbondForce":
        donors, acceptors = (
            [n for n in range(count) if inside.issuperset({*particles(n)[:3]} - {-1})]
            for count, particles in (
                (force.getNumDonors(), force.getDonorParameters),
                (force.getNumAcceptors(), force.getAcceptorParameters),
            )
        )
        excluded = {tuple(force.getExclusionParticles(n)) for n in range(force.getNumExclusions())}
        acts = not excluded.issuperset(product(donors, acceptors))
    else:
        acts = True
    if acts:
        raise UnsupportedProblemError(
            f"the system has the force {force.getName()} (class {kind}), and mdcg cannot switch "
            "off what it computes between the atoms of the package: choose a force field without "
            "it, or add it after mdcg.openmm.add_force if it is a restraint or a bias"
        )


def _switch_off(force: Any, inside: frozenset[int], *, whole: bool) -> None:
    """Take away the energy of all terms of a force that have no particle outside."""
    kind = type(force).__name__
    if kind in _BONDED:
        term, size, without = _BONDED[kind]
        for number, found in _terms_inside(force, term, slice(size), inside):
            getattr(force, f"set{term}Parameters")(number, *found[:size], *without(*found[size:]))
    elif kind in _CUSTOM_BONDED:
        _switch_off_custom(force, inside, *_CUSTOM_BONDED[kind])
    elif kind == "CMAPTorsionForce":
        if terms := _terms_inside(force, "Torsion", slice(1, None), inside):
            size, energies = force.getMapParameters(0)
            flat = force.addMap(size, [0.0] * len(energies))
            for number, (_, *particles) in terms:
                force.setTorsionParameters(number, flat, *particles)
    elif kind == "NonbondedForce":
        _switch_off_nonbonded(force, inside, whole)
    elif kind == "CustomNonbondedForce" and whole:
        force.setEnergyFunction("0")
    elif kind == "CustomNonbondedForce":  # platforms want the exclusions of NonbondedForce
        numbers = range(force.getNumExclusions())
        excluded = {frozenset(force.getExclusionParticles(n)) for n in numbers}
        for pair in combinations(sorted(inside), 2):
            if frozenset(pair) not in excluded:
                force.addExclusion(*pair)


def _terms_inside(
    force: Any, term: str, particles: slice, inside: frozenset[int]
) -> list[tuple[int, Any]]:
    """Return number and parameters of the bonded terms that have no particle outside."""
    get, count = getattr(force, f"get{term}Parameters"), getattr(force, f"getNum{term}s")()
    terms = ((number, get(number)) for number in range(count))
    return [term for term in terms if inside.issuperset(np.ravel(term[1][particles]))]


def _switch_off_custom(force: Any, inside: frozenset[int], term: str, size: int) -> None:
    terms = _terms_inside(force, term, slice(size), inside)
    if not terms:
        return
    get, put = (getattr(force, f"{verb}{term}Parameters") for verb in ("get", "set"))
    count = getattr(force, f"getNumPer{term}Parameters")()
    names = [getattr(force, f"getPer{term}ParameterName")(n) for n in range(count)]
    if _SWITCH not in names:
        names.append(_SWITCH)
        getattr(force, f"addPer{term}Parameter")(_SWITCH)
        # `select`, as a product with 0 is no number where the energy is infinite
        force.setEnergyFunction(
            f"select({_SWITCH}, mdcg_energy, 0); mdcg_energy = {force.getEnergyFunction()}"
        )
        for number in range(getattr(force, f"getNum{term}s")()):
            *particles, values = get(number)
            put(number, *particles, (*values, 1.0))
    for number, _ in terms:
        *particles, values = get(number)
        values = list(values)
        values[names.index(_SWITCH)] = 0.0
        put(number, *particles, values)


def _switch_off_nonbonded(force: Any, inside: frozenset[int], whole: bool) -> None:
    if whole:  # particles are fewer than their pairs
        for number in range(force.getNumParticles()):
            _, sigma, _ = force.getParticleParameters(number)
            force.setParticleParameters(number, 0.0, sigma, 0.0)
        for number in range(force.getNumParticleParameterOffsets()):
            parameter, particle, *_ = force.getParticleParameterOffset(number)
            force.setParticleParameterOffset(number, parameter, particle, 0.0, 0.0, 0.0)
        numbers = range(force.getNumExceptions())
        pairs: Any = [force.getExceptionParameters(number)[:2] for number in numbers]
    else:
        pairs = combinations(sorted(inside), 2)
    for first, second in pairs:
        force.addException(first, second, 0.0, 1.0, 0.0, True)
    for number in range(force.getNumExceptionParameterOffsets()):
        parameter, exception, *_ = force.getExceptionParameterOffset(number)
        if inside.issuperset(force.getExceptionParameters(exception)[:2]):
            force.setExceptionParameterOffset(number, parameter, exception, 0.0, 0.0, 0.0)


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
