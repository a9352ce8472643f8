"""Packages as models of TorchSim: its validation, dynamics, relaxations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import InputError
from ase.optimize import FIRE

from mdcg import MDCGCalculator
from mdcg.errors import DeviceError, PackageError
from mdcg.package import Package

from ..engine.input_programs import input_program
from ..engine.test_program import two_layers
from ..lammps.lmp import EXAMPLES, package, water

ts = pytest.importorskip("torch_sim", reason="torch-sim needs Python 3.11", exc_type=ImportError)
from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from mdcg.torchsim import MDCGModel  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LIMIT = {"float64": 1e-10, "float32": 2e-5}


def state_of(images: list[Atoms], model: MDCGModel) -> Any:
    return ts.io.atoms_to_state(images, model.device, model.dtype)


def boxes(count: int = 3) -> list[Atoms]:
    """Return boxes of water of several sizes, whose atoms are not where they rest."""
    found = [water(1 + seed % 2, seed=seed) for seed in range(count)]
    for seed, atoms in enumerate(found):
        atoms.cell[1, 0] += 0.3 * seed
        atoms.pbc = True
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_validation_of_torchsim(tmp_path: Path, dtype: str, device: str) -> None:
    names = {"type_names": ["Si", "Fe", "O"], "atomic_numbers": [14, 26, 8]}
    two_layers(dtype).package(**names).save(tmp_path / "p.mdcg")
    for of_states in (torch.float64, torch.float32):
        model = MDCGModel(tmp_path / "p.mdcg", device, dtype=of_states)
        validate_model_outputs(model, model.device, of_states)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_results_are_those_of_the_calculator(dtype: str, device: str) -> None:
    path = package("mace", dtype)
    calc = MDCGCalculator(path)
    model = MDCGModel(path, device, dtype=torch.float64)
    images = boxes()
    for _ in range(2):
        found = {k: v.cpu().numpy() for k, v in model(state_of(images, model)).items()}
        starts = np.cumsum([0, *map(len, images)])
        for number, atoms in enumerate(images):
            rows = slice(starts[number], starts[number + 1])
            forces = calc.get_forces(atoms)
            scale = np.abs(forces).max()
            assert abs(found["energy"][number] - calc.get_potential_energy(atoms)) < (
                LIMIT[dtype] * len(atoms) * 10
            )
            np.testing.assert_allclose(found["forces"][rows], forces, atol=LIMIT[dtype] * scale)
            stress = calc.get_property("stress", atoms)[[0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(3, 3)
            np.testing.assert_allclose(found["stress"][number], stress, atol=LIMIT[dtype])
        images.insert(0, images.pop())  # another composition
    model.compute_stress = model.compute_forces = False
    assert set(model(state_of(images, model))) == {"energy"}
    open_state = state_of([molecule("H2O"), molecule("H2O")], model)
    open_state.pbc = False
    model.compute_stress = True
    alone = calc.get_potential_energy(molecule("H2O"))
    found = model(open_state)
    np.testing.assert_allclose(found["energy"].cpu(), [alone, alone], atol=10 * LIMIT[dtype])
    assert not found["stress"].any()


def test_open_directions_that_torchsim_drops() -> None:
    """TorchSim still reads slabs as molecules, for which docs/usage/torchsim.md has a remedy."""
    slab = boxes(2)[1]
    slab.pbc = [True, True, False]
    state = ts.initialize_state([slab], torch.device("cpu"), torch.float64)
    assert state.pbc in (False, [False] * 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pbc", [[True, True, False], [False, True, False]], ids=["slab", "wire"])
def test_slabs_and_wires_have_a_stress(pbc: list[bool], device: str) -> None:
    """The stress of slabs and wires is the strain derivative of the energy over the cell volume."""
    path = package("mace", "float64")
    model = MDCGModel(path, device)
    atoms = boxes(2)[1]
    atoms.cell[~np.array(pbc)] += 9 * np.eye(3)[~np.array(pbc)]
    atoms.pbc = pbc
    strained = [atoms]
    for one, two in np.ndindex(3, 3):
        for step in (1e-5, -1e-5):
            image = atoms.copy()
            strain = np.eye(3)
            strain[one, two] += step
            image.set_cell(atoms.cell.array @ strain, scale_atoms=True)
            strained.append(image)
    state = state_of(strained, model)
    state.pbc = pbc  # TorchSim 0.3.0 sets False
    found = {name: values.cpu().numpy() for name, values in model(state).items()}
    numeric = (found["energy"][1::2] - found["energy"][2::2]).reshape(3, 3) / 2e-5
    assert np.abs(found["stress"][0]).max() > 1e-3
    np.testing.assert_allclose(found["stress"][0], numeric / atoms.get_volume(), atol=1e-8)
    stress = MDCGCalculator(path).get_property("stress", atoms)
    np.testing.assert_allclose(found["stress"][0].flat[[0, 4, 8, 5, 2, 1]], stress, atol=1e-12)
    with pytest.warns(UserWarning, match="reached max steps"):
        relaxed = ts.optimize(state[0], model, optimizer=ts.frechet_cell_fire, max_steps=5)
    assert relaxed.pbc == pbc
    assert float(relaxed.energy) < found["energy"][0]
    state.cell[:, :, 1] = 0  # TorchSim stores vectors as columns: a periodic one is zero
    with pytest.raises(ValueError, match="cell"):
        model(state)


@pytest.mark.parametrize("device", DEVICES)
def test_dynamics(device: str) -> None:
    """Energy errors fall with the square of the timestep, and a thermostat reaches its target."""
    model = MDCGModel(package("mace", "float64"), device)
    images, energies, temperatures = boxes(), [], []

    class Follow(ts.TrajectoryReporter):
        """A reporter that keeps energies and temperatures instead of writing a file."""

        def __init__(self) -> None:
            super().__init__(None)

        def report(self, state: Any, step: int, model: Any = None) -> list[Any]:
            parts = {name: getattr(state, name) for name in ("masses", "momenta", "system_idx")}
            energies.append((state.energy + ts.calc_kinetic_energy(**parts)).cpu().numpy())
            temperatures.append(ts.quantities.calc_temperature(**parts).cpu().numpy())
            return []

    keywords = {"model": model, "trajectory_reporter": Follow()}
    spread = []
    for steps in (40, 80):
        energies.clear()
        torch.manual_seed(0)
        ts.integrate(
            images, integrator=ts.nve, n_steps=steps, timestep=0.02 / steps, temperature=300,
            **keywords,
        )  # fmt: skip
        spread.append(np.ptp(energies, axis=0) / [len(a) for a in images])
    assert spread[0].max() < 3e-3  # eV per atom
    assert (spread[0] / spread[1]).min() > 3, spread
    assert np.ptp(temperatures, axis=0).min() > 10
    temperatures.clear()
    ts.integrate(
        images, integrator=ts.nvt_langevin, n_steps=300, timestep=0.0005, temperature=300,
        gamma=50.0, **keywords,
    )  # fmt: skip
    assert 150 < np.mean(temperatures[100:]) < 450


@pytest.mark.parametrize("device", DEVICES)
def test_relaxations(device: str) -> None:
    """Structures relaxed in one batch reach the energies of single relaxations."""
    path = package("mace", "float64")
    model = MDCGModel(path, device)
    images = [molecule("H2O"), molecule("H2O") + molecule("H2O")]
    images[1].positions[3:] += [0.2, 0.1, 2.9]
    for seed, atoms in enumerate(images):
        atoms.rattle(0.05, seed=seed)
    start = state_of(images, model)
    start.pbc = False
    end = ts.optimize(
        start,
        model,
        optimizer=ts.optimizers.fire,
        convergence_fn=ts.generate_force_convergence_fn(2e-3, include_cell_forces=False),
        max_steps=600,
    )
    for number, atoms in enumerate(images):
        atoms.calc = MDCGCalculator(path)
        FIRE(atoms, logfile=None).run(fmax=2e-3, steps=600)
        assert float(end.energy[number]) == pytest.approx(atoms.get_potential_energy(), abs=1e-4)
    forces = model(end)["forces"].norm(dim=1)
    assert float(forces.max()) < 2e-3


def test_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "usage" / "torchsim.md").read_text()
    code = text.split("## First run")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(EXAMPLES / "data")
    found: dict[str, Any] = {}
    exec(code, found)
    lattice = found["relaxed"].cell.diagonal(dim1=1, dim2=2)
    np.testing.assert_allclose(lattice.cpu().numpy(), 3.68, atol=0.03)  # see data/README.md


@pytest.mark.parametrize("device", DEVICES)
def test_systems_with_different_charges(tmp_path: Path, device: str) -> None:
    names = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}
    input_program(preset=False).package(**names).save(tmp_path / "p.mdcg")
    model, calc = MDCGModel(tmp_path / "p.mdcg", device), MDCGCalculator(tmp_path / "p.mdcg")
    images = boxes(4)
    state = vars(state_of(images, model))
    charges, spins = [1, -1, 1, 0], torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=model.dtype)
    found = model({**state, "charge": charges, "spin": spins.to(model.device)})
    for n, atoms in enumerate(images):
        atoms.info = {"charge": charges[n], "spin": float(spins[n])}
        atoms.calc = calc
        assert abs(float(found["energy"][n]) - atoms.get_potential_energy()) < 1e-8
        forces = found["forces"][model_rows(state, n)].cpu().numpy()
        np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-8)
    one = model({**state, "total_charge": 1})["energy"]
    assert abs(float(one[0] - found["energy"][0])) < 1e-8
    for stated, message in (
        (
            {},
            r"has no charge, which \S*p.mdcg reads .*: set total_charge of the state or charge of",
        ),
        (
            {"charge": [1, 0]},
            r"is \[1, 0\], expected one number for all or 4 for the systems, each",
        ),
        (
            {"charge": [1, 0, 0, 3]},
            r"is \[1, 0, 0, 3\], expected one .* each a whole number from -2 to 2",
        ),
    ):
        with pytest.raises(InputError, match=message):
            model({**state, **stated})


def test_inputs_of_all_states(tmp_path: Path) -> None:
    """States that TorchSim makes have the inputs of the model."""
    path = tmp_path / "p.mdcg"
    names = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}
    input_program(preset=False).package(**names).save(path)
    found = [
        ts.static(boxes(2), MDCGModel(path, "cpu", inputs={"charge": charge})) for charge in (-1, 1)
    ]
    energies = torch.stack([torch.stack([e["potential_energy"] for e in one]) for one in found])
    assert (energies[0] - energies[1]).abs().min() > 1e-3
    model = MDCGModel(path, "cpu", inputs={"total_charge": -1})
    state = {**vars(state_of(boxes(2), model)), "charge": torch.ones(2)}
    assert torch.equal(model(state)["energy"], MDCGModel(path, "cpu")(state)["energy"])
    with pytest.raises(ValueError, match=r"inputs has chrage, which \S*p.mdcg does not read"):
        MDCGModel(path, "cpu", inputs={"chrage": 1})


def model_rows(state: dict[str, Any], system: int) -> torch.Tensor:
    return torch.nonzero(state["system_idx"] == system).flatten()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package("mace", "float32")
    model = MDCGModel(path, "cpu")
    good = state_of(boxes(2), model)

    def refused(kind: type[Exception], text: str, **changes: Any) -> None:
        state = {**vars(good), **changes}
        with pytest.raises(kind, match=text) as error:
            model(state)
        assert "\n" not in str(error.value)

    model(vars(good))
    refused(ValueError, "torch.float64, and the model takes", positions=good.positions.double())
    refused(ValueError, "cell of the state are torch.float64", cell=good.cell.double())
    refused(ValueError, "are on meta, and the model is on cpu", positions=good.positions.to("meta"))
    nothing = {"positions": torch.zeros(0, 3), "atomic_numbers": good.atomic_numbers[:0]}
    refused(ValueError, "no atoms, expected one", **nothing, system_idx=good.system_idx[:0])
    refused(ValueError, "system 1 has no atoms", system_idx=2 * good.system_idx)
    refused(ValueError, "system_idx falls", system_idx=good.system_idx.flip(0))
    refused(ValueError, r"cell has shape \(1, 3, 3\), expected \(2, 3, 3\)", cell=good.cell[:1])
    refused(InputError, "does not know Fe", atomic_numbers=torch.full_like(good.atomic_numbers, 26))
    refused(ValueError, "no usable position", positions=good.positions * torch.nan)
    close = good.positions.clone()
    close[1] = close[0]
    refused(ValueError, "at the same place", positions=close)
    model(good)
    fixed = Package.open(path)
    fixed.manifest["options"]["graph_fields"] = [["total_charge", -1]]
    fixed.save(tmp_path / "p.mdcg")
    model = MDCGModel(tmp_path / "p.mdcg", "cpu")
    for stated in (None, -1, torch.tensor([-1.0, -1.0])):
        model({**vars(good), "charge": stated})
    refused(InputError, r"charge of the structure is \[-1, 0\], and \S*p.mdcg was made "
            "for total_charge=-1, which is fixed", charge=torch.tensor([-1, 0]))  # fmt: skip
    with pytest.raises(DeviceError, match="device cuda:99 was requested, but"):
        MDCGModel(path, "cuda:99")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device cuda was requested, but"):
        MDCGModel(path, "cuda")
    with pytest.raises(ValueError, match="device is 'tpu', expected 'cpu', 'cuda'"):
        MDCGModel(path, "tpu")
    with pytest.raises(ValueError, match=r"dtype is torch\.int32, expected torch\.float32"):
        MDCGModel(path, "cpu", dtype=torch.int32)
    with pytest.raises(PackageError):
        MDCGModel(tmp_path / "nothing.mdcg", "cpu")
