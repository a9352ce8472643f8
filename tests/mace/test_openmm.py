"""Packages as forces of OpenMM: units, drift, mixed systems, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openmm
import pytest
from ase import Atoms, units
from ase.calculators.calculator import InputError
from openmm import app, unit

import mdcg.openmm
from mdcg import MDCGCalculator
from mdcg.errors import MissingDependencyError, PackageError, UnsupportedProblemError

from ..engine.input_programs import input_program
from ..engine.programs import Program
from ..lammps.lmp import EXAMPLES, package, water

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


def among(system: openmm.System, inside: Iterable[int]) -> openmm.System:
    """Return a system with what force fields compute between some particles, and nothing else."""
    inside = set(inside)
    root = ElementTree.fromstring(openmm.XmlSerializer.serialize(system))
    forces = root.find("Forces")
    assert forces is not None
    for force in list(forces):
        for terms in (each for each in force if each.tag in ("Bonds", "Angles", "Torsions")):
            for term in list(terms):
                found = {int(n) for key, n in term.items() if re.fullmatch("[abp][0-9]", key)}
                if not found <= inside:
                    terms.remove(term)
        if not re.search("Bond|Angle|Torsion|Nonbonded", force.get("type", "")) or (
            force.get("type") == "CustomCentroidBondForce"
        ):
            forces.remove(force)
    part = openmm.XmlSerializer.deserialize(ElementTree.tostring(root, encoding="unicode"))
    outside = set(range(system.getNumParticles())) - inside
    for force in part.getForces():
        if isinstance(force, openmm.NonbondedForce):
            for n in outside:
                force.setParticleParameters(n, 0, 1, 0)
            for n in range(force.getNumExceptions()):
                one, two, *_ = force.getExceptionParameters(n)
                if {one, two} & outside:
                    force.setExceptionParameters(n, one, two, 0, 1, 0)
            for n in range(force.getNumParticleParameterOffsets()):
                name, one, *_ = force.getParticleParameterOffset(n)
                if one in outside:
                    force.setParticleParameterOffset(n, name, one, 0, 0, 0)
            for n in range(force.getNumExceptionParameterOffsets()):
                name, number, *_ = force.getExceptionParameterOffset(n)
                if set(force.getExceptionParameters(number)[:2]) & outside:
                    force.setExceptionParameterOffset(n, name, number, 0, 0, 0)
        if isinstance(force, openmm.CustomNonbondedForce):
            if force.getNumInteractionGroups() == 0:
                force.addInteractionGroup(inside, inside)
            for n in range(force.getNumInteractionGroups()):
                groups = (inside & set(g) for g in force.getInteractionGroupParameters(n))
                force.setInteractionGroupParameters(n, *groups)
    return part


@pytest.fixture(scope="module")
def organic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package for H, C, N and O."""
    program = Program(4)
    program.readout(program.features(3))
    path = tmp_path_factory.mktemp("organic") / "organic.mdcg"
    program.package(type_names=[*"HCNO"], atomic_numbers=[1, 6, 7, 8]).save(path)
    return path


@pytest.fixture(scope="module")
def charmm() -> Callable[..., tuple[app.Topology, openmm.System]]:
    """Return what makes a dipeptide, ethanol and two waters with CHARMM36."""
    field = app.ForceField("charmm36.xml", "charmm36/water.xml")
    topology = app.Topology()
    topology.setUnitCellDimensions((3, 3, 3))
    for name in ("ALAD", "ETOH", "TIP3", "TIP3"):
        residue = topology.addResidue(name, topology.addChain())
        template = field._templates[name]
        atoms = [topology.addAtom(atom.name, atom.element, residue) for atom in template.atoms]
        for first, second in template.bonds:
            topology.addBond(atoms[first], atoms[second])
    names = {residue: residue.name for residue in topology.residues()}

    def make(**options: Any) -> tuple[app.Topology, openmm.System]:
        return topology, field.createSystem(
            topology, residueTemplates=names, rigidWater=False, useDispersionCorrection=False,
            **options,
        )  # fmt: skip

    return make


def restrain(system: openmm.System, periodic: bool) -> None:
    """Add what users add to a system of the peptide (atoms 0 to 21) and ethanol (22 to 30)."""
    walls = openmm.CustomExternalForce("k*(x-x0)^2")
    walls.addPerParticleParameter("k")
    walls.addPerParticleParameter("x0")
    distances = openmm.CustomBondForce("k*(r-r0)^2")
    distances.addPerBondParameter("k")
    distances.addPerBondParameter("r0")
    for n in range(0, 30, 3):
        walls.addParticle(n, [10.0 + n, 0.1])
        distances.addBond(n, n + 1, [5.0 + n, 0.3])
    centres = openmm.CustomCentroidBondForce(2, "3*distance(g1,g2)^2")
    centres.addGroup(range(22))
    centres.addGroup(range(22, 31))
    centres.addBond([0, 1])
    away = np.random.default_rng(3).normal(size=(system.getNumParticles(), 3))
    inside = openmm.CustomBondForce("r")
    inside.addBond(22, 25)
    bias = openmm.CustomCVForce("50*(a-0.1)^2 + 20*(b-0.2)^2")
    bias.addCollectiveVariable("a", inside)
    bias.addCollectiveVariable("b", openmm.RMSDForce(away, range(22, 31)))
    for force in (walls, distances, centres, bias, openmm.RMSDForce(away, range(10))):
        system.addForce(force)
    if periodic:
        system.addForce(openmm.MonteCarloBarostat(1, 300))


@pytest.fixture(scope="module")
def places(charmm: Callable[..., Any]) -> np.ndarray:
    """Return positions in Å that are near a minimum of the force field."""
    topology, system = charmm()
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(np.random.default_rng(0).uniform(0, 1, (topology.getNumAtoms(), 3)))
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=200)
    found = context.getState(positions=True).getPositions(asNumpy=True)._value * 10
    return found + np.random.default_rng(1).normal(scale=0.05, size=found.shape)


@pytest.mark.parametrize(
    "chosen",
    [range(22), range(22, 31), range(31, 34), [*range(10, 25), 32], range(37)],
    ids=["peptide", "ligand", "water", "some", "all"],
)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_proteins(
    charmm: Any, places: np.ndarray, organic: Path, platform: str, chosen: Any, rng: Any
) -> None:
    """The package replaces CHARMM36 among chosen atoms, beside restraints and a bias."""
    options: dict[str, Any] = {}
    periodic = platform == "CPU"  # the CPU platform refuses exclusions that differ between forces
    if periodic:
        options = {"nonbondedMethod": app.CutoffPeriodic, "nonbondedCutoff": 1.2}
    topology, system = charmm(**options)
    restrain(system, periodic)
    atoms = Atoms([a.element.symbol for a in topology.atoms()], places, cell=[30.0] * 3)
    atoms.pbc = periodic
    want, forces = evaluate(system, atoms, platform)
    less, less_forces = evaluate(among(system, chosen), atoms, platform)
    order = rng.permutation(chosen)
    part = atoms[order]
    part.calc = MDCGCalculator(organic)
    want += part.get_potential_energy() - less
    forces -= less_forces
    forces[order] += part.get_forces()
    mdcg.openmm.add_force(system, topology, organic, order, periodic=periodic, threads=1)
    found, found_forces = evaluate(system, atoms, platform)
    exact = 1e-9 if platform == "Reference" else 1e-3  # the CPU platform sums in float32
    assert np.abs(less_forces).max() > 100 * exact
    assert abs(found - want) < exact
    np.testing.assert_allclose(found_forces, forces, rtol=0, atol=10 * exact)


def every_term(rng: Any, count: int) -> openmm.System:
    """Return a system with random terms of all classes that can be switched off."""
    system = openmm.System()
    for _ in range(count):
        system.addParticle(10)

    def numbers(size: int) -> list[float]:
        return rng.uniform(0.3, 1, size).tolist()

    def several(size: int) -> list[int]:
        return [int(n) for n in rng.choice(count, size, replace=False)]

    for force, term, size, values in (
        (openmm.HarmonicBondForce(), "Bond", 2, 2),
        (openmm.HarmonicAngleForce(), "Angle", 3, 2),
        (openmm.RBTorsionForce(), "Torsion", 4, 6),
        (openmm.PeriodicTorsionForce(), "Torsion", 4, 2),
        (openmm.CustomBondForce("c*r^2; c = a+b"), "Bond", 2, 2),
        (openmm.CustomAngleForce("a*(theta-b)^2"), "Angle", 3, 2),
        (openmm.CustomTorsionForce("a*cos(theta-b)"), "Torsion", 4, 2),
        (openmm.CustomCompoundBondForce(3, "a*angle(p1,p2,p3)+b*distance(p1,p3)"), "Bond", 3, 2),
    ):
        kind = type(force).__name__
        custom = kind.startswith("Custom")
        for name in "ab" if custom else "":
            getattr(force, f"addPer{term}Parameter")(name)
        for _ in range(40):
            atoms: list[Any] = [several(size)] if "Compound" in kind else several(size)
            multiplicity = [2] if kind == "PeriodicTorsionForce" else []
            numbered = [numbers(values)] if custom else numbers(values)
            getattr(force, f"add{term}")(*atoms, *multiplicity, *numbered)
        system.addForce(force)
    maps = openmm.CMAPTorsionForce()
    maps.addMap(6, numbers(36))
    for _ in range(40):
        maps.addTorsion(0, *several(4), *several(4))
    system.addForce(maps)
    charges = openmm.NonbondedForce()
    charges.addGlobalParameter("on", 0.7)

    def charge() -> list[float]:
        return [*numbers(1), 0.2, *numbers(1)]

    lists = [openmm.CustomNonbondedForce("a1*a2/r"), openmm.CustomNonbondedForce("a1*a2*r")]
    lists[1].addInteractionGroup(range(count // 2), range(count // 3, count))
    for n in range(count):
        charges.addParticle(*charge())
        charges.addParticleParameterOffset("on", n, *numbers(1), 0, *numbers(1))
    for n in range(count - 2):
        charges.addException(n, n + 2, *charge())
        charges.addExceptionParameterOffset("on", n, *numbers(1), 0, *numbers(1))
    for force in lists:
        force.addPerParticleParameter("a")
        for n in range(count):
            force.addParticle(numbers(1))
            if n > 1:
                force.addExclusion(n, n - 2)
    for force in (charges, *lists):
        system.addForce(force)
    return system


@pytest.mark.parametrize("sizes", [(4, 5), (6, 3), (9, 0)])
def test_terms_of_every_class(organic: Path, sizes: tuple[int, int], rng: Any) -> None:
    """Two packages replace terms of every class among their atoms, in any order of atoms."""
    atoms = water(3, seed=5)[:9]
    atoms.symbols[:] = "HCNOHCNOH"
    atoms.pbc = False
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for symbol in atoms.symbols:
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
    system = every_term(rng, len(atoms))
    want, forces = evaluate(system, atoms)
    before = openmm.XmlSerializer.clone(system)
    order = rng.permutation(len(atoms))
    for chosen in (order[: sizes[0]], order[sizes[0] :]):
        if len(chosen) == 0:
            continue
        less, less_forces = evaluate(among(before, chosen), atoms)
        part = atoms[chosen]
        part.calc = MDCGCalculator(organic)
        want += part.get_potential_energy() - less
        forces -= less_forces
        forces[chosen] += part.get_forces()
        mdcg.openmm.add_force(system, topology, organic, chosen, threads=1)
    found, found_forces = evaluate(system, atoms)
    assert abs(found - want) < 1e-9
    np.testing.assert_allclose(found_forces, forces, rtol=0, atol=1e-8)


def test_terms_that_are_switched_off_may_be_infinite() -> None:
    atoms = water(1)
    atoms.pbc = False
    system = bare(atoms)
    force = openmm.CustomBondForce("1/(r-r)")
    force.addBond(0, 1)
    system.addForce(force)
    assert not np.isfinite(evaluate(system, atoms)[0])
    mdcg.openmm.add_force(system, topology_of(atoms), MODEL)
    energy, forces = evaluate(system, atoms)
    assert np.isfinite(energy)
    assert np.isfinite(forces).all()


@pytest.mark.parametrize("molecules", [1, 2, 8])
def test_virtual_sites_belong_to_their_atoms(molecules: int) -> None:
    """Virtual sites of TIP4P follow their molecule: their inside terms are switched off, too."""
    atoms = water(2, seed=5)
    atoms.pbc = False
    field = app.ForceField("tip4pew.xml")
    model = app.Modeller(topology_of(atoms), atoms.positions / 10)
    model.addExtraParticles(field)
    system = field.createSystem(model.topology, rigidWater=False)
    every = Atoms([a.element.symbol if a.element else "X" for a in model.topology.atoms()])
    every.positions = model.positions.value_in_unit(unit.angstrom)
    want, _ = evaluate(system, every)
    less, _ = evaluate(among(system, range(4 * molecules)), every)
    chosen = [n for n in range(4 * molecules) if n % 4 < 3]
    part = every[chosen]
    want += MDCGCalculator(MODEL).get_potential_energy(part) - less
    mdcg.openmm.add_force(system, model.topology, MODEL, chosen, threads=1)
    assert abs(evaluate(system, every)[0] - want) < 1e-9


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("periodic", [True, False], ids=["box", "vacuum"])
def test_whole_systems(platform: str, periodic: bool) -> None:
    """A package for all atoms replaces every term of the system, periodic or in vacuum."""
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


def test_inputs_of_the_atoms(tmp_path: Path) -> None:
    """A charge is given with the force, and is kept where a system is written."""
    path, atoms = tmp_path / "p.mdcg", water(1, seed=3)
    names = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}
    input_program(preset=False).package(**names).save(path)
    topology = topology_of(atoms)
    energies = []
    for charge in (-1, 1):
        system = bare(atoms)
        mdcg.openmm.add_force(system, topology, path, inputs={"charge": charge}, threads=1)
        again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
        atoms.info["charge"], atoms.calc = charge, MDCGCalculator(path)
        energies.append(evaluate(again, atoms)[0])
        assert abs(energies[-1] - atoms.get_potential_energy()) < 1e-9
    assert abs(energies[0] - energies[1]) > 1e-3
    for inputs, message in (
        (
            None,
            r"has no charge, which \S*p.mdcg reads .* for: set inputs\['total_charge'\] or inputs",
        ),
        ({"charge": 3}, "charge of the structure is 3, expected a whole number from -2 to 2"),
    ):
        system = bare(atoms)
        with pytest.raises(InputError, match=message):
            mdcg.openmm.add_force(system, topology, path, inputs=inputs)
        assert system.getNumForces() == 0
    with pytest.raises(ValueError, match=r"inputs has chrage, which \S*p.mdcg does not read"):
        mdcg.openmm.add_force(bare(atoms), topology, path, inputs={"charge": 0, "chrage": 1})


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
    """The package replaces only the interactions among the chosen molecules."""
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
    # No images: with PME, exceptions remove only the nearest pair.
    part.pbc = False
    lost, lost_forces = evaluate(molecular(part, nonbondedMethod=app.NoCutoff), part)
    part.pbc = atoms.pbc
    part.calc = MDCGCalculator(MODEL)
    want += part.get_potential_energy() - lost
    want_forces[chosen] += part.get_forces() - lost_forces
    limit = 1e-9 if method is app.NoCutoff else 1e-3  # the error of PME and of the cutoff
    assert abs(lost) > 20 * limit
    assert abs(energy - want) < limit
    np.testing.assert_allclose(forces, want_forces, rtol=0, atol=limit)


def test_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "usage" / "openmm.md").read_text()
    code = text.split("## First run")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(EXAMPLES / "data")
    found: dict[str, Any] = {}
    exec(code, found)
    state = found["simulation"].context.getState(energy=True)
    assert state.getStepCount() == 100
    assert state.getPotentialEnergy()._value < 0
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


def drude() -> openmm.DrudeForce:
    force = openmm.DrudeForce()
    force.addParticle(9, 0, -1, -1, -1, -1.0, 0.001, 1, 1)
    return force


def hydrogen_bonds() -> openmm.CustomHbondForce:
    force = openmm.CustomHbondForce("distance(d1,a1)")
    force.addDonor(1, 0, -1)
    force.addDonor(4, 3, -1)
    force.addAcceptor(2, -1, -1)
    force.addAcceptor(5, -1, -1)
    force.addExclusion(1, 1)
    return force


def of_python() -> openmm.PythonForce:
    force = openmm.PythonForce(len)
    force.setParticles([0, 9])
    return force


@pytest.mark.parametrize("make", [drude, hydrogen_bonds, of_python, openmm.AmoebaMultipoleForce])
def test_forces_that_act_between_the_atoms_are_refused(make: Callable[[], Any]) -> None:
    """Forces that cannot be switched off among the chosen atoms are refused."""
    box = water(2)
    for chosen in (range(3), range(3, 6)):
        system = bare(box)
        system.addForce(make())
        if chosen[0] == 3 and make is not openmm.AmoebaMultipoleForce:
            mdcg.openmm.add_force(system, topology_of(box), MODEL, chosen)
            continue
        with pytest.raises(UnsupportedProblemError, match=f"class {type(make()).__name__}"):
            mdcg.openmm.add_force(system, topology_of(box), MODEL, chosen)


def test_refusals_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = water(2)
    system, topology = molecular(box), topology_of(box)
    solvent = openmm.GBSAOBCForce()
    solvent.setName("solvent")
    for _ in range(len(box)):
        solvent.addParticle(0.1, 0.2, 1)
    system.addForce(solvent)
    before = openmm.XmlSerializer.serialize(system)
    text = r"the force solvent \(class GBSAOBCForce\), and mdcg cannot switch off what it computes"
    with pytest.raises(UnsupportedProblemError, match=text):
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
