"""Packages as forces of OpenMM, for a whole system or for a part of it.

OpenMM 8.4 or newer calls Python for energy and forces (``openmm.PythonForce``); the engine computes
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import InputError

from .calculators import MDCGCalculator
from .calculators.stated_inputs import refuse_unread
from .errors import MissingDependencyError, UnsupportedProblemError, installation

if TYPE_CHECKING:
    import openmm
    from openmm import app

__all__ = ["add_force"]

_ENERGY = units.mol / units.kJ  # kJ/mol in an eV
_LENGTH = 10.0  # Å in a nm

# Bonded terms by class: name, number of particles, and parameters with which the energy is zero.
_BONDED: dict[str, tuple[str, int, Callable[..., tuple[Any, ...]]]] = {
    "HarmonicBondForce": ("Bond", 2, lambda length, k: (length, 0.0)),
    "HarmonicAngleForce": ("Angle", 3, lambda angle, k: (angle, 0.0)),
    "PeriodicTorsionForce": ("Torsion", 4, lambda n, phase, k: (n, phase, 0.0)),
    "RBTorsionForce": ("Torsion", 4, lambda *c: (0.0,) * 6),
}
# Bonded terms whose energy is an expression. The last class has its particles in one list.
_CUSTOM_BONDED = {
    "CustomBondForce": ("Bond", 2),
    "CustomAngleForce": ("Angle", 3),
    "CustomTorsionForce": ("Torsion", 4),
    "CustomCompoundBondForce": ("Bond", 1),
}
_OTHERS = ("CMAPTorsionForce", "NonbondedForce", "CustomNonbondedForce")
# Forces that are no part of a force field: restraints, biases, barostats, thermostats.
_KEPT = (
    *("AndersenThermostat", "CMMotionRemover", "CustomVolumeForce", "RPMDMonteCarloBarostat"),
    *("MonteCarloBarostat", "MonteCarloAnisotropicBarostat", "MonteCarloFlexibleBarostat"),
    *("MonteCarloMembraneBarostat", "CustomExternalForce", "CustomCentroidBondForce"),
    *("CustomCVForce", "RMSDForce", "RGForce", "OrientationRestraintForce"),
)
# The parameter of custom bonded terms that is 0 if a term is switched off.
_SWITCH = "mdcg_switch"


def add_force(
    system: openmm.System,
    topology: app.Topology,
    package: str | os.PathLike[str],
    atoms: Iterable[int] | None = None,
    *,
    periodic: bool | None = None,
    inputs: Mapping[str, float | Sequence[float]] | None = None,
    **options: Any,
) -> openmm.PythonForce:
    """Let a package compute the energy of all atoms, or the interactions among some of them.

    The package replaces the system's interactions among these atoms: bonded terms, including custom
    ones and CMAP, and nonbonded interactions lose their energy, and constraints are removed.
    Virtual sites that depend only on these atoms belong to them. Interactions with other atoms
    stay: a part of a system is embedded mechanically, like in openmm-ml, with the charges of the
    system.

    Restraints and biases stay (`CustomExternalForce`, `CustomCentroidBondForce`, `CustomCVForce`,
    `RMSDForce` and the like). A restraint that is a bond, angle or torsion term stays too, unless
    all of its particles are among these atoms: add such a term after this call.

    Parameters
    ----------
    system : openmm.System
        Changed in place; not changed if an error is raised.
    topology : openmm.app.Topology
        With the element of every atom.
    package : path
        A package (``.mdcg``) that ``mdcg-patch`` wrote.
    atoms : iterable of int, optional
        Indices of the atoms in the topology, in any order; None is all of them.
    periodic : bool, optional
        Whether the package uses periodic images; None: it does if the topology has box vectors.
    inputs : mapping of str to number, optional
        Inputs of the package for these atoms, such as ``{"charge": -1, "spin": 2}``, or
        ``"external_field"`` with three numbers in eV/Å/e. Those left out have the defaults of the
        package.
    **options
        Options of :class:`~mdcg.MDCGCalculator`, such as ``device`` or ``dispersion``.

    Returns
    -------
    openmm.PythonForce
        The force that was added. A serialized force needs the package in the same place.

    Raises
    ------
    MissingDependencyError
        OpenMM is not installed, or older than 8.4.
    UnsupportedProblemError
        The system has a force whose energy between the atoms cannot be switched off, such as an
        implicit solvent or AMOEBA's multipoles, or `atoms` are a part of a periodic system and the
        package has a long-range sum.
    ValueError
        Topology and system differ, a number of an atom is wrong, an atom has no element, or the
        package does not know it.
    ase.calculators.calculator.InputError
        An input is missing and has no default, or the package cannot take its value.

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
    backend = calculator._backend
    refuse_unread(inputs or {}, getattr(backend, "input_names", ()), os.fspath(package))
    structure = Atoms(symbols, pbc=periodic, info=dict(inputs or {}))
    try:
        backend.check_inputs(structure)
    except InputError as error:  # what a user of OpenMM gives is `inputs`
        raise InputError(str(error).replace("atoms.info", "inputs")) from None
    inside = _with_virtual_sites(system, chosen)
    if periodic and len(inside) < count and getattr(backend, "is_long_range", False):
        raise UnsupportedProblemError(
            f"{os.fspath(package)} has a long-range sum, in which periodic images of a part of the "
            "system would interact, and which does not see the charges of the other atoms: leave "
            "out atoms, or set periodic=False"
        )
    forces = system.getForces()
    for force in forces:
        _require_separable(force, inside)
    for force in forces:
        _switch_off(force, inside, whole=len(inside) == count)
    for number in reversed(range(system.getNumConstraints())):
        first, second, _ = system.getConstraintParameters(number)
        if first in inside and second in inside:
            system.removeConstraint(number)
    force = openmm.PythonForce(_Computation(calculator, structure))
    force.setName(f"mdcg {Path(package).name}")
    force.setUsesPeriodicBoundaryConditions(periodic)
    force.setParticles(chosen)  # even if these are all atoms, because `symbols` are in this order
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
    """Return the atoms and all virtual sites whose positions depend only on them."""
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
    """Set the energy of all terms of a force without particles outside to zero."""
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
    elif kind == "CustomNonbondedForce":
        # some platforms require the same exclusions as in NonbondedForce
        numbers = range(force.getNumExclusions())
        excluded = {frozenset(force.getExclusionParticles(n)) for n in numbers}
        for pair in combinations(sorted(inside), 2):
            if frozenset(pair) not in excluded:
                force.addExclusion(*pair)


def _terms_inside(
    force: Any, term: str, particles: slice, inside: frozenset[int]
) -> list[tuple[int, Any]]:
    """Return index and parameters of each bonded term without particles outside."""
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
        # `select`, because an infinite energy times 0 would be nan
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
    if whole:  # by particle, because there are fewer particles than pairs
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
    """The function that OpenMM calls, and pickles to serialize a system."""

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
