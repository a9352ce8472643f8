"""Packages as forces of OpenMM: units, drift, mixed systems, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import pytest
from ase import Atoms, units
from openmm import app, unit

import mdcg.openmm
from mdcg import MDCGCalculator
from mdcg.errors import MissingDependencyError, PackageError, UnsupportedProblemError

from ..lammps.lmp import package, water

MODEL = package("nequip", "float64")
KJ = units.mol / units.kJ  # kJ/mol in an eV
PLATFORMS = ["Reference", "CPU"]


def topology_of(atoms: Atoms) -> app.Topology:
    """Return molecules of water in the order O H H."""
    topology = app.Topology()
    chain = topology.addChain()
    for _ in range(len(atoms) // 3):
        residue = topology.addResidue("HOH", chain)
        oxygen, *hydrogens = (
            topology.addAtom(name, app.Element.getBySymbol(name[0]), residue)
            for name in ("O", "H1", "H2")
        )
        for hydrogen in hydrogens:
            topology.addBond(oxygen, hydrogen)
    if atoms.pbc.any():
        topology.setPeriodicBoxVectors(atoms.cell.array * unit.angstrom)
    return topology


def bare(atoms: Atoms) -> openmm.System:
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    if atoms.pbc.any():
        system.setDefaultPeriodicBoxVectors(*(atoms.cell.array / 10))
    return system


def molecular(atoms: Atoms, **options: Any) -> openmm.System:
    """Return flexible TIP3P."""
    field = app.ForceField("tip3p.xml")
    return field.createSystem(topology_of(atoms), rigidWater=False, **options)


def evaluate(
    system: openmm.System, atoms: Atoms, platform: str = "Reference"
) -> tuple[float, np.ndarray]:
    """Return energy and forces in eV and Å."""
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName(platform)
    )
    context.setPositions(atoms.positions / 10)
    state = context.getState(getEnergy=True, getForces=True)
    forces = state.getForces(asNumpy=True)._value / (10 * KJ)
    return state.getPotentialEnergy()._value / KJ, forces


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("periodic", [True, False], ids=["box", "vacuum"])
def test_whole_systems(platform: str, periodic: bool) -> None:
    """A box of water, and a molecule in vacuum; what the system had is switched off."""
    atoms = water(2 if periodic else 1, seed=3)
    atoms.pbc = periodic
    method = app.CutoffPeriodic if periodic else app.NoCutoff
    cutoff = 0.25 * unit.nanometer
    for system in (
        bare(atoms),
        molecular(atoms, nonbondedMethod=method, nonbondedCutoff=cutoff),
    ):
        force = mdcg.openmm.add_force(system, topology_of(atoms), MODEL, threads=1)
        assert force.usesPeriodicBoundaryConditions() == periodic
        assert system.getNumConstraints() == 0
        energy, forces = evaluate(system, atoms, platform)
        atoms.calc = MDCGCalculator(MODEL)
        exact = 1e-9 if platform == "Reference" else 1e-4  # the CPU platform sums in float32
        assert abs(energy - atoms.get_potential_energy()) < exact
        np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=exact)


def test_energy_is_conserved() -> None:
    atoms = water(2, seed=3)
    system = bare(atoms)
    mdcg.openmm.add_force(system, topology_of(atoms), MODEL)
    integrator = openmm.VerletIntegrator(0.2 * unit.femtosecond)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(atoms.positions / 10)
    context.setVelocitiesToTemperature(100 * unit.kelvin, 7)
    totals, potentials = [], []
    for _ in range(10):
        integrator.step(20)
        state = context.getState(getEnergy=True)
        potentials.append(state.getPotentialEnergy()._value)
        totals.append(potentials[-1] + state.getKineticEnergy()._value)
    assert np.ptp(potentials) > 1.0
    assert np.ptp(totals) < 0.03 * np.ptp(potentials)


@pytest.mark.parametrize("method", [app.NoCutoff, app.PME])
def test_mechanical_embedding(method: Any) -> None:
    """The package takes the place of what the molecules have among themselves, and of no more."""
    atoms = water(2, seed=5)
    atoms.cell *= 2
    atoms.pbc = method is app.PME
    options = {"nonbondedMethod": method, "nonbondedCutoff": 0.5 * unit.nanometer}
    chosen = [3, 4, 5, 12, 13, 14]
    part = atoms[chosen]
    system = molecular(atoms, **options)
    mdcg.openmm.add_force(system, topology_of(atoms), MODEL, iter(chosen), threads=1)
    energy, forces = evaluate(system, atoms)
    want, want_forces = evaluate(molecular(atoms, **options), atoms)
    # without images: with PME, exceptions take away the pair itself, and no image of it
    part.pbc = False
    lost, lost_forces = evaluate(molecular(part, nonbondedMethod=app.NoCutoff), part)
    part.pbc = atoms.pbc
    part.calc = MDCGCalculator(MODEL)
    want += part.get_potential_energy() - lost
    want_forces[chosen] += part.get_forces() - lost_forces
    limit = 1e-9 if method is app.NoCutoff else 1e-3  # that of PME and of the cutoff
    assert abs(lost) > 20 * limit
    assert abs(energy - want) < limit
    np.testing.assert_allclose(forces, want_forces, rtol=0, atol=limit)


def test_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "USAGE.md").read_text()
    code = text.split("**OpenMM**")[1].split("```python\n")[1].split("```")[0]
    shutil.copy(MODEL, tmp_path / "water.mdcg")
    monkeypatch.chdir(tmp_path)
    atoms = water(2, seed=5)
    atoms.pbc = False
    found: dict[str, Any] = {"topology": topology_of(atoms)}
    exec(code, found)
    energy, _ = evaluate(found["system"], atoms)
    assert np.isfinite(energy)
    assert found["system"].getForces()[-1].getName() == "mdcg water.mdcg"


def test_constraints_between_the_atoms_are_removed() -> None:
    atoms = water(2, seed=5)
    atoms.pbc = False
    system = app.ForceField("tip3p.xml").createSystem(topology_of(atoms), rigidWater=True)
    before = system.getNumConstraints()
    mdcg.openmm.add_force(system, topology_of(atoms), MODEL, range(6))
    assert before - system.getNumConstraints() == 6


def test_systems_can_be_written() -> None:
    atoms = water(1, seed=5)
    system = bare(atoms)
    mdcg.openmm.add_force(system, topology_of(atoms), MODEL, dispersion="pbe")
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    energy, forces = evaluate(system, atoms)
    other, others = evaluate(again, atoms)
    assert other == energy
    np.testing.assert_array_equal(others, forces)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        ([0, 24], "atoms are 24, expected different numbers from 0 to 23"),
        ([-1], "atoms are -1, expected"),
        ([2, 2], "atoms are one twice, expected"),
        ([], "atoms are none, expected"),
    ],
)
def test_refused_atoms(atoms: list[int], message: str) -> None:
    box = water(2)
    with pytest.raises(ValueError, match=message):
        mdcg.openmm.add_force(bare(box), topology_of(box), MODEL, atoms)


def test_refusals_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = water(2)
    system, topology = molecular(box), topology_of(box)
    custom = openmm.CustomBondForce("r")
    custom.addBond(0, 1)
    system.addForce(custom)
    before = openmm.XmlSerializer.serialize(system)
    with pytest.raises(UnsupportedProblemError, match="a CustomBondForce, and mdcg does not know"):
        mdcg.openmm.add_force(system, topology, MODEL)
    with pytest.raises(ValueError, match="topology has 3 atoms and the system 24 particles"):
        mdcg.openmm.add_force(system, topology_of(water(1)), MODEL)
    with pytest.raises(PackageError, match="cannot be opened"):
        mdcg.openmm.add_force(system, topology, tmp_path / "none.mdcg")
    next(topology.atoms()).element = app.Element.getBySymbol("Fe")
    with pytest.raises(ValueError, match="does not know Fe, expected elements out of: H O"):
        mdcg.openmm.add_force(system, topology, MODEL)
    next(topology.atoms()).element = None
    with pytest.raises(ValueError, match="atom 0 of the topology has no element"):
        mdcg.openmm.add_force(system, topology, MODEL)
    monkeypatch.delattr(openmm, "PythonForce")
    with pytest.raises(MissingDependencyError, match="has no PythonForce, expected 8\\.4"):
        mdcg.openmm.add_force(system, topology, MODEL)
    monkeypatch.undo()
    assert openmm.XmlSerializer.serialize(system) == before
