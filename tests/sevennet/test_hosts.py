"""A small SevenNet model as a package in every host, against the original in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units

from mdcg import MDCGCalculator, _core
from mdcg.package.convert import ConversionOptions, convert_model
from mdcg.patch.evaluate import evaluate_structure
from mdcg.patch.models import model_info
from mdcg.patch.systems import Structure

from ..emulator.emulator import emulator_environment
from ..engine.domains import RESULTS, compare, opened
from .conftest import MODALS, MODELS, build_model, config_of, modal_config

KJ = units.mol / units.kJ  # kJ/mol in an eV


def crystal(count: int = 3, seed: int = 0) -> Atoms:
    """Return a displaced crystal of H, O and Fe in a skewed cell."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(count)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cell = 2.3 * count * np.eye(3) + np.triu(rng.normal(scale=0.3, size=(3, 3)), 1).T
    positions = (grid / count) @ cell + rng.normal(scale=0.15, size=grid.shape)
    return Atoms(rng.choice([1, 8, 26], len(grid)), positions, cell=cell, pbc=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(config_of(**MODELS["like the published"]))


@pytest.fixture(scope="module")
def package(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hosts") / "p.mdcg"
    convert_model(model, ConversionOptions(dispersion="pbe")).save(path)
    return path


def original(model: Any, atoms: Atoms, modal: str | None = None) -> dict[str, Any]:
    system = Structure(
        "", atoms.numbers, atoms.positions, atoms.cell.array, tuple(map(bool, atoms.pbc))
    )
    found = evaluate_structure(model, model_info(model), system, modal)[1]
    return {name: value.detach().numpy() for name, value in found.items()}


def close(found: Any, want: Any, limit: float = 1e-9) -> None:
    want = np.asarray(want)
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(found, want, rtol=0, atol=limit * np.abs(want).max())


def test_openmm(model: Any, package: Path) -> None:
    app = pytest.importorskip("openmm.app")
    import openmm

    import mdcg.openmm

    atoms = crystal(4)  # OpenMM's cells hold twice the cutoff
    atoms.set_cell(np.diag(np.diag(atoms.cell.array)))
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    system.setDefaultPeriodicBoxVectors(*(atoms.cell.array / 10))
    topology = app.Topology()
    residue = topology.addResidue("ALL", topology.addChain())
    for symbol in atoms.get_chemical_symbols():
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
    topology.setPeriodicBoxVectors(atoms.cell.array / 10)
    mdcg.openmm.add_force(system, topology, package)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(atoms.positions / 10)
    state, want = context.getState(getEnergy=True, getForces=True), original(model, atoms)
    close(state.getPotentialEnergy()._value / KJ, want["energy"][0])
    close(state.getForces(asNumpy=True)._value / (10 * KJ), want["forces"])


def test_torchsim(model: Any, package: Path) -> None:
    ts = pytest.importorskip("torch_sim", exc_type=ImportError)
    import torch

    from mdcg.torchsim import MDCGModel

    images = [crystal(2, 1), crystal(3, 2), crystal(2, 3)]
    host = MDCGModel(package, "cpu", dtype=torch.float64)
    found = host(ts.io.atoms_to_state(images, host.device, host.dtype))
    want = [original(model, atoms) for atoms in images]
    close(found["energy"], np.concatenate([each["energy"] for each in want]))
    close(found["forces"], np.concatenate([each["forces"] for each in want]))
    close(found["stress"], np.stack([each["stress"].reshape(3, 3) for each in want]), 1e-8)


def test_batches_and_committees(model: Any, package: Path, tmp_path: Path) -> None:
    other = build_model(config_of(**MODELS["like the published"]), seed=6)
    convert_model(other).save(tmp_path / "other.mdcg")
    committee = MDCGCalculator([package, tmp_path / "other.mdcg"])
    images = [crystal(2, 1), crystal(3, 2)]
    images[0].pbc = False
    for atoms, found in zip(images, committee.batch(images), strict=True):
        both = np.stack([original(each, atoms)["forces"] for each in (model, other)])
        close(found["forces"], both.mean(axis=0))
        close(found["forces_std"], both.std(axis=0))


def test_heat_flux_of_a_cluster(package: Path) -> None:
    """It is the derivative of the sum of positions times energies."""
    atoms, calc = crystal(2), MDCGCalculator(package)
    atoms.pbc = False
    velocities = np.random.default_rng(5).normal(scale=0.02, size=(len(atoms), 3))
    atoms.set_velocities(velocities)
    flux, forces, masses = calc.get_heat_flux(atoms), calc.get_forces(atoms), atoms.get_masses()

    def barycentre(time: float) -> Any:
        at = atoms.copy()
        at.positions += time * velocities + 0.5 * time**2 * forces / masses[:, None]
        then = velocities + time * forces / masses[:, None]
        energies = 0.5 * masses * (then**2).sum(axis=1) + calc.get_potential_energies(at)
        return energies @ at.positions

    close(flux, (barycentre(1e-4) - barycentre(-1e-4)) / 2e-4, 1e-6)


def test_domains(model: Any, package: Path) -> None:
    atoms = crystal(4) * (4, 1, 1)
    types = np.array([model.type_map[z] for z in atoms.numbers], np.int32)
    cell = atoms.cell.array
    system = {"positions": atoms.positions, "types": types, "cell": cell, "periodic": (True,) * 3}
    whole = _core.Model(str(package)).evaluate(**system, **RESULTS)
    close(whole["forces"], original(model, atoms)["forces"])
    compare(whole, opened(str(package), 3, system).evaluate(**system, **RESULTS), 1e-12)


@pytest.mark.parametrize("modal", MODALS)
def test_modals(modal: str, tmp_path: Path) -> None:
    """Each modal has a package of its own, which the calculator names."""
    changes = {"use_modal_node_embedding": True, "use_modal_wise_shift": True}
    several = build_model(modal_config(**changes))
    convert_model(several, ConversionOptions(head=modal)).save(tmp_path / "p.mdcg")
    atoms = crystal(2)
    calc = atoms.calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert calc.parameters["head"] == modal
    want = original(several, atoms, modal)
    close(atoms.get_potential_energy(), want["energy"][0])
    close(atoms.get_forces(), want["forces"])


_ON_A_DEVICE = """
import sys
import numpy as np
from mdcg import _core
path = sys.argv[1]
data = np.load(sys.argv[2])
system = {name: data[name] for name in ("positions", "types", "cell")} | {"periodic": (True,) * 3}
model = _core.Model(path, device="cuda")
for _ in range(3):  # one by one, captured, replayed
    found = model.evaluate(**system, virial=True)
    assert abs(found["energy"] - data["energy"]) < 1e-11 * abs(data["energies"]).sum()
    error = np.abs(found["forces"] - data["forces"]).max()
    assert error < 1e-10 * np.abs(data["forces"]).max(), error
print("passed")
"""


@pytest.mark.slow
def test_an_emulated_device(tmp_path: Path) -> None:
    small = build_model(config_of(**MODELS["like the published"], channel=2, lmax=1))
    convert_model(small).save(tmp_path / "p.mdcg")
    atoms = crystal(2)
    types = np.array([small.type_map[z] for z in atoms.numbers], np.int32)
    want, calc = original(small, atoms), MDCGCalculator(tmp_path / "p.mdcg")
    np.savez(
        tmp_path / "want.npz",
        positions=atoms.positions,
        types=types,
        cell=atoms.cell.array,
        energy=want["energy"][0],
        energies=calc.get_potential_energies(atoms),
        forces=want["forces"],
    )
    command = [sys.executable, "-c", _ON_A_DEVICE, str(tmp_path / "p.mdcg")]
    done = subprocess.run(
        [*command, str(tmp_path / "want.npz")],
        env=emulator_environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "passed\n", done.stderr[-3000:]


def test_dispersion_is_added_when_asked_for(model: Any, package: Path) -> None:
    """A package with data of D3 gives SevenNet's energy alone unless a functional is named."""
    atoms = crystal(2)
    plain, whole = MDCGCalculator(package), MDCGCalculator(package, dispersion="pbe")
    close(plain.get_potential_energy(atoms), original(model, atoms)["energy"][0])
    assert abs(whole.get_potential_energy(atoms) - plain.get_potential_energy(atoms)) > 0.1
