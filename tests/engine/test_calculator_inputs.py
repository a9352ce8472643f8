"""MDCGCalculator with packages that read numbers of the structure, such as its charge."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import InputError

from mdcg import MDCGCalculator, _core
from mdcg.package import Package

from .input_programs import input_program, with_values
from .test_package_calculator import NAMES, write


def save(path: Path, preset: bool = True, seed: int = 0, **changes: Any) -> Package:
    package = input_program(preset=preset).package(**NAMES, **changes)
    package.tensors["energy.shift"] = package.tensors["energy.shift"] + seed
    package.save(path)
    return package


def plain(path: Path, package: Package, values: Sequence[float]) -> MDCGCalculator:
    with_values(package, values).save(path)
    return MDCGCalculator(path, kernels="generic")


def charged(**info: Any) -> Atoms:
    atoms = molecule("CH3CH2OH", cell=[7.0, 8.0, 9.0], pbc=True)
    atoms.info.update(info)
    return atoms


@pytest.fixture
def calc(tmp_path: Path) -> MDCGCalculator:
    save(tmp_path / "p.mdcg")
    return MDCGCalculator(tmp_path / "p.mdcg", kernels="generic")


@pytest.mark.parametrize(
    ("info", "values"),
    [
        ({}, (0, 1, 0)),
        ({"charge": -2}, (-2, 1, 0)),
        ({"total_charge": np.int64(1), "spin": 3.0}, (1, 3, 0)),
        ({"charge": 2, "total_charge": 2.0, "total_spin": np.array([2])}, (2, 2, 0)),
        ({"charge": None, "field": 0.5}, (0, 1, 0.5)),
    ],
    ids=str,
)
def test_results_are_those_of_the_values(
    calc: MDCGCalculator, info: dict[str, Any], values: tuple[float, ...], tmp_path: Path
) -> None:
    want = plain(tmp_path / "q.mdcg", Package.open(tmp_path / "p.mdcg"), values)
    atoms, bare = charged(**info), charged()
    rng = np.random.default_rng(0)
    for each in (atoms, bare):
        each.set_velocities(np.random.default_rng(1).normal(size=(len(each), 3)))
    for _ in range(2):
        for name in ("forces", "stress", "energies"):
            found = calc.get_property(name, atoms)
            np.testing.assert_allclose(found, want.get_property(name, bare), atol=1e-11)
        np.testing.assert_allclose(calc.get_heat_flux(atoms), want.get_heat_flux(bare), atol=1e-10)
        np.testing.assert_allclose(calc.get_descriptors(atoms), want.get_descriptors(bare))
        move = rng.normal(scale=0.05, size=(len(atoms), 3))
        for each in (atoms, bare):
            each.positions += move
    np.testing.assert_allclose(calc.get_hessian(atoms[:3]), want.get_hessian(bare[:3]), atol=1e-6)


def test_changes_of_info_are_seen(calc: MDCGCalculator) -> None:
    atoms = charged()
    atoms.calc = calc
    energies = []
    for charge in (0, 1, -1, 0):
        atoms.info["charge"] = charge
        assert calc.check_state(atoms) == (["info"] if energies else calc.check_state(atoms))
        energies.append(atoms.get_potential_energy())
        assert calc.check_state(atoms) == []
        assert calc.get_property("energy", atoms, allow_calculation=False) == energies[-1]
    assert len(set(energies)) == 3
    assert energies[0] == energies[3]
    atoms.info["other"] = 3
    assert calc.check_state(atoms) == []
    assert copy.deepcopy(calc).get_potential_energy(atoms) == energies[3]


def test_positions_and_info_change_together(calc: MDCGCalculator) -> None:
    """Calls without atoms take the inputs of the last structure."""
    atoms = charged(charge=0)
    calc.get_potential_energy(atoms)
    atoms.positions += 0.1 * np.random.default_rng(0).random(atoms.positions.shape)
    atoms.info["charge"] = 1
    calc.get_potential_energy(atoms)
    np.testing.assert_array_equal(calc.get_descriptors(), calc.get_descriptors(atoms))
    fresh = copy.deepcopy(calc)
    fresh.reset()
    np.testing.assert_array_equal(calc.get_descriptors(), fresh.get_descriptors(atoms))


def test_no_images(calc: MDCGCalculator) -> None:
    assert calc.batch([]) == []
    assert calc.get_hessian(charged(), indices=[]).shape == (0, 27)


def test_a_batch_without_cells(tmp_path: Path) -> None:
    """Systems with different inputs, which are evaluated in groups, are open without cells."""
    save(tmp_path / "p.mdcg")
    model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic")
    images = [charged(), charged()[:4], charged()]
    types = [np.zeros(len(atoms), np.int32) for atoms in images]
    given = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = model.evaluate_batch(
        np.cumsum([0, *map(len, images)]),
        np.concatenate(types),
        np.concatenate([atoms.positions for atoms in images]),
        inputs=given,
    )
    for energy, atoms, kinds, inputs in zip(found["energy"], images, types, given, strict=True):
        alone = model.evaluate(atoms.positions, kinds, inputs=inputs)
        assert energy == pytest.approx(alone["energy"], rel=1e-12)


def test_batches_have_different_values(calc: MDCGCalculator) -> None:
    images = [charged(charge=q, spin=s) for q, s in ((1, 2), (0, 1), (-2, 1), (1, 2))]
    images += [molecule("H2O"), charged()[:4]]
    found = calc.batch(images, ["energy", "forces"])
    for image, each in zip(images, found, strict=True):
        assert each["energy"] == pytest.approx(calc.get_potential_energy(image), rel=1e-12)
        np.testing.assert_allclose(each["forces"], calc.get_forces(image), atol=1e-11)
    images[2].info["charge"] = 3
    with pytest.raises(InputError, match=r"images\[2\]: charge of the structure is 3, expected a"):
        calc.batch(images)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, r"the structure has no charge, which \S*n.mdcg reads and has no default for: set "
             r"atoms.info\['total_charge'\] or atoms.info\['charge'\] to a whole number from -2 to "
             "2, or convert the model again with mdcg-patch --set charge=VALUE"),
        ({"charge": 3}, "charge of the structure is 3, expected a whole number from -2 to 2"),
        ({"charge": 0.5}, "charge of the structure is 0.5, expected a whole number from -2 to 2"),
        ({"charge": float("nan")}, "charge of the structure is nan, expected a whole number"),
        ({"charge": "one"}, "charge of the structure is 'one', expected a whole number"),
        ({"charge": [1, 1]}, r"charge of the structure is \[1, 1\], expected a whole number"),
        ({"charge": 0, "spin": 1.5}, "spin of the structure is 1.5, expected a whole number"),
        ({"charge": 0, "field": float("inf")}, "field of the structure is inf, expected a finite"),
        ({"charge": 1, "total_charge": 2}, "total_charge of the structure is 2 and charge is 1, "
                                           "which are one input of the model, expected one value"),
    ],
    ids=str,
)  # fmt: skip
def test_unusable_values(info: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(tmp_path / "n.mdcg", preset=False)
    calc = MDCGCalculator(tmp_path / "n.mdcg", kernels="generic")
    atoms = charged(**info)
    atoms.set_velocities(np.ones((len(atoms), 3)))
    calls = (calc.get_potential_energy, calc.get_descriptors, calc.get_heat_flux)
    for call in calls:
        with pytest.raises(InputError, match=message) as error:
            call(atoms)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"images\[1\]: .*" + message):
        calc.batch([charged(charge=0), atoms])
    atoms.info = {"charge": 1}
    calc.get_forces(atoms)
    assert "that reads charge and spin and field, " in repr(calc)


def test_external_field(calc: MDCGCalculator) -> None:
    """A field that no package takes is an error, also behind a result without it."""
    atoms = charged(external_field=[0.0, 0.0, 0.0])
    atoms.calc = calc
    atoms.get_potential_energy()
    atoms.info["external_field"] = np.array([0.0, 0.0, 0.5])
    with pytest.raises(
        InputError, match=r"external_field of the structure is .* takes no external"
    ):
        atoms.get_potential_energy()
    with pytest.raises(InputError, match="takes no external field"):
        calc.batch([atoms])


def test_committees_with_different_defaults(tmp_path: Path) -> None:
    paths = [tmp_path / "0.mdcg", tmp_path / "1.mdcg"]
    save(paths[0])
    other = save(paths[1])
    entry = next(e for e in other.manifest["inputs"] if e["name"] == "charge")
    entry["default"] = entry["default"] + 1
    other.save(paths[1])
    calc = MDCGCalculator(paths, kernels="generic")
    calc.get_potential_energy(charged(charge=1))
    message = "has no charge, for which packages of the committee have different values"
    with pytest.raises(InputError, match=message):
        calc.get_potential_energy(charged())


@pytest.mark.parametrize("value", ["1", True, None, [1, 2]])
def test_what_is_no_number(value: Any, calc: MDCGCalculator) -> None:
    if value is None:
        calc.get_potential_energy(charged(charge=value))
        return
    with pytest.raises(InputError, match=r"charge of the structure is .*, expected a whole number"):
        calc.get_potential_energy(charged(charge=value))


def test_committees(tmp_path: Path) -> None:
    """Each member takes its own inputs, in its own order and with its own defaults."""
    first = save(tmp_path / "0.mdcg")
    second = save(tmp_path / "1.mdcg", preset=False, seed=1)
    order = [1, 2, 0]
    second.manifest["inputs"] = [second.manifest["inputs"][n] for n in order]
    second.save(tmp_path / "1.mdcg")
    other = write(tmp_path / "2.mdcg", total_charge=1)
    paths = [tmp_path / "0.mdcg", tmp_path / "1.mdcg", other]
    calc = MDCGCalculator(paths, kernels="generic")
    atoms = charged(charge=1, spin=2)
    bare = charged()
    want = [
        plain(tmp_path / "q0.mdcg", first, (1, 2, 0)).get_potential_energy(bare),
        plain(tmp_path / "q1.mdcg", second, (2, 0, 1)).get_potential_energy(bare),
        MDCGCalculator(other, kernels="generic").get_potential_energy(bare),
    ]
    assert calc.get_potential_energy(atoms) == pytest.approx(np.mean(want), rel=1e-12)
    (batch,) = calc.batch([atoms])
    assert batch["energy"] == pytest.approx(np.mean(want), rel=1e-12)
    with pytest.raises(InputError, match=r"no charge, which \S*1.mdcg reads and has no default"):
        calc.get_potential_energy(bare)
    atoms.info["charge"] = 0
    with pytest.raises(InputError, match=r"charge of the .* is 0, and .* made for total_charge=1"):
        calc.get_potential_energy(atoms)
