"""Behaviour common to every MDCGCalculator: MACE and NequIP models, packages, committees.

Features of a single kind are tested beside the kind: tests/mace/test_calculator.py and
test_calculator_models.py, tests/nequip/test_calculator.py, tests/engine/test_package_calculator.py
and, for devices, tests/engine/cuda_calculator_cases.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import (
    CalculatorSetupError,
    InputError,
    PropertyNotImplementedError,
    all_changes,
)
from ase.calculators.fd import FiniteDifferenceCalculator, calculate_numerical_forces
from ase.filters import FrechetCellFilter
from ase.optimize import BFGSLineSearch
from numpy.testing import assert_allclose, assert_array_equal

from mdcg import MDCGCalculator
from mdcg.errors import DeviceError, UnsupportedProblemError

from ..engine.copies import check_copies
from .kinds import EMULATED, SYSTEMS, Kind, assert_same, box, dimer, has_stress, kinds, results

pytestmark = pytest.mark.parametrize("kind", kinds())


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["triclinic", "left-handed", "slab", "wire", "wire in a cell", "molecules"]
)
def test_forces_and_stress_are_derivatives_of_the_energy(kind: Kind, name: str) -> None:
    calc, atoms = kind.shared(), SYSTEMS[name]()
    forces = calc.get_forces(atoms)
    size = float(np.abs(forces).max())
    assert size > 0.1
    # Packages have random weights, so their energies are large and rough.
    limit, step = (2e-5 * size, 1e-4) if kind.engine else (1e-6, 3e-5)
    if not has_stress(atoms):
        numeric = atoms.copy()
        numeric.calc = calc
        found = calculate_numerical_forces(numeric, eps=step, force_consistent=True)
        assert_allclose(found, forces, rtol=0, atol=limit)
        return
    stress = calc.get_stress(atoms)
    numeric = FiniteDifferenceCalculator(calc, eps_disp=step, eps_strain=1e-5)
    assert_allclose(numeric.get_property("forces", atoms), forces, rtol=0, atol=limit)
    limit = 2e-5 * float(np.abs(stress).max()) if kind.engine else 1e-7
    assert_allclose(numeric.get_property("stress", atoms), stress, rtol=0, atol=limit)


def test_properties_belong_together(kind: Kind) -> None:
    atoms, calc = box(), kind.shared()
    atoms.calc = calc
    energy = atoms.get_potential_energy()
    assert isinstance(energy, float)
    assert atoms.get_potential_energy(force_consistent=True) == energy
    assert atoms.get_potential_energies().shape == (6,)
    assert atoms.get_potential_energies().sum() == pytest.approx(energy, rel=1e-12)
    assert atoms.get_forces().shape == (6, 3)
    assert atoms.get_forces().dtype == np.float64
    assert_allclose(atoms.get_forces().sum(axis=0), 0.0, atol=1e-12 * np.abs(energy) + 1e-11)
    assert atoms.get_stress().shape == (6,)
    found = calc.calculate_properties(atoms, ["energy", "forces", "stress"])
    assert found["energy"] == pytest.approx(energy, rel=1e-12)
    assert found["forces"].shape == (6, 3)
    if kind.name == "committee":  # ASE has no names for deviations
        assert "forces_std" in calc.results
        assert "forces_std" not in found
        with pytest.raises(PropertyNotImplementedError, match="forces_std"):
            calc.get_property("forces_std", atoms)


def test_atoms_that_flew_off_do_not_matter(kind: Kind) -> None:
    calc = kind.shared()
    near, far = dimer([12, 12, 0], (True, True, False)), Atoms("O", [[1e3, -5e5, 3e7]])
    energy = calc.get_potential_energy(near) + calc.get_potential_energy(far)
    forces = calc.get_forces(near)
    both = near + far
    assert calc.get_potential_energy(both) == pytest.approx(energy, rel=1e-11, abs=1e-10)
    limit = 1e-10 * max(1.0, float(np.abs(forces).max()))
    assert_allclose(calc.get_forces(both)[:6], forces, rtol=0, atol=limit)


def test_structures_may_change_between_calls(kind: Kind) -> None:
    """One calculator gives right results while any property of the structure changes."""
    calc = kind.make()
    swapped = box()
    swapped.numbers = swapped.numbers[::-1]
    systems = [box(), swapped, *(make() for make in SYSTEMS.values()), box()[:3], box()]
    found = [results(calc, atoms) for atoms in systems]
    for atoms, got in zip(systems, found, strict=True):
        fresh = kind.on_the_cpu()
        fresh.reset()
        fresh.neighbors.reset()
        assert_same(got, results(fresh, atoms), 1e-11 if kind.engine else 1e-10)
    assert_same(found[-1], found[0], 1e-13 if kind.on_cpu else kind.noise)
    assert found[1]["energy"] != found[0]["energy"]


def test_no_atoms(kind: Kind) -> None:
    calc = kind.shared()
    for atoms in (Atoms(), Atoms(cell=[5, 5, 5], pbc=True)):
        assert calc.get_potential_energy(atoms) == 0.0
        assert calc.get_forces(atoms).shape == (0, 3)
        assert calc.get_potential_energies(atoms).shape == (0,)
    assert_array_equal(calc.get_stress(atoms), np.zeros(6))


def test_results_do_not_depend_on_the_skin(kind: Kind) -> None:
    """Results with several skins are equal along small steps, while the cell changes, too."""
    rng, atoms = np.random.default_rng(7), box()
    calcs = [kind.make(skin=skin) for skin in (0.0, 0.3, 1.5)]
    steps = 8 if EMULATED else 24
    for step in range(steps):
        atoms.positions += rng.normal(scale=0.04, size=atoms.positions.shape)
        if step % 8 == 7:
            atoms.set_cell(atoms.cell * 1.002, scale_atoms=True)
        want, *others = [results(calc, atoms) for calc in calcs]
        for got in others:
            assert_same(got, want, 1e-11 if kind.engine else kind.noise)
    if kind.on_cpu or not kind.engine:  # devices make lists for packages
        builds = [calc.neighbors.num_builds for calc in calcs]
        assert builds[0] == steps
        assert builds[0] > builds[1] > builds[2] >= 1


# -- only requested properties are computed --------------------------------------------------------


def test_results_hold_what_was_asked_and_no_more(kind: Kind) -> None:
    atoms, calc = box(), kind.make()
    atoms.calc = calc
    atoms.get_potential_energy()
    assert {"energy", "free_energy", "energies"} <= set(calc.results)
    assert {"forces", "stress"}.isdisjoint(calc.results)
    assert not calc.calculation_required(atoms, ["energy"])
    assert calc.calculation_required(atoms, ["forces"])
    forces = atoms.get_forces()
    assert "stress" not in calc.results
    forces[:] = 0.0
    assert np.abs(atoms.get_forces()).max() > 0.0, "results are copied out"
    atoms.get_stress()
    atoms.positions += 0.01
    atoms.get_forces()
    assert "stress" in calc.results, "constant-pressure runs need one evaluation per step"


def test_direct_calls(kind: Kind) -> None:
    """`calculate` can be called directly, as in ase.test.calculator.test_lj."""
    atoms, calc = box(), kind.make()
    with pytest.raises(ValueError, match="no atoms"):
        calc.calculate()
    calc.calculate(atoms, system_changes=["positions"])
    assert "forces" not in calc.results
    energy = calc.results["energy"]
    calc.calculate(atoms, ["forces"], [])
    assert calc.results["energy"] == pytest.approx(energy, rel=1e-14)
    assert "forces" in calc.results
    calc.calculate(atoms, ["energy"], all_changes)
    assert "forces" not in calc.results
    calc.calculate(properties=["stress"], system_changes=[])
    assert calc.results["stress"].shape == (6,)


def test_files_keep_results(kind: Kind, tmp_path: Path) -> None:
    """Files of ASE keep energies and forces, as in ase.test.calculator.test_traj."""
    atoms = box()
    atoms.calc = kind.shared()
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    for name in ("water.traj", "water.json", "water.extxyz"):
        ase.io.write(tmp_path / name, atoms)
        again = ase.io.read(tmp_path / name)
        assert again.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        assert_allclose(again.get_forces(), forces, atol=1e-7)


def test_nothing_is_written_into_atoms(kind: Kind) -> None:
    """Results are only in `results`, and Atoms objects are not changed."""
    atoms, calc = box(), kind.make()
    before = atoms.copy()
    atoms.calc, names = calc, {"energy", "free_energy", "energies"}
    for name in ("energy", "forces", "stress", *(["stresses"] if kind.engine else [])):
        calc.get_property(name, atoms)
        names.add(name)
        members = names - {"free_energy"} if kind.name == "committee" else set()
        more = {f"{each}_{kept}" for each in members for kept in ("std", "committee")}
        as_mace = members & {"energy", "forces", "stress"}
        more |= {f"{each}_{kept}" for each in as_mace for kept in ("var", "comm")}
        assert set(calc.results) == names | more
    assert atoms.info == {}
    assert set(atoms.arrays) == set(before.arrays)
    assert atoms == before


def test_check_state_names_what_models_read(kind: Kind) -> None:
    calc, atoms = kind.make(), box()
    assert set(calc.check_state(atoms)) >= {"positions", "numbers", "cell", "pbc"}
    atoms.new_array("tag of mine", np.arange(len(atoms)))
    calc.get_forces(atoms)
    atoms.set_initial_magnetic_moments(np.ones(len(atoms)))
    atoms.info["note"] = "nothing to the model"
    atoms.positions[1, 0] = np.nextafter(atoms.positions[1, 0], 9.0)
    assert calc.check_state(atoms) == []
    assert not calc.calculation_required(atoms, ["energy", "forces"])
    atoms.positions[0, 0] += 1e-9
    atoms.arrays["tag of mine"] = np.full(len(atoms), 0.5)
    assert calc.check_state(atoms) == ["positions"]
    assert calc.calculation_required(atoms, ["energy"])
    assert calc.check_state(atoms, tol=1e-2) == []
    calc.get_forces(atoms)
    assert calc.atoms == atoms
    assert calc.atoms.arrays["tag of mine"][0] == 0.5
    for array in calc.atoms.arrays.values():
        array.setflags(write=False)
    atoms.positions[0, 0] += 1e-3
    calc.get_forces(atoms)
    for dtype, order in ((np.longdouble, "C"), (float, "F")):
        atoms.arrays["positions"] = atoms.positions.astype(dtype, order)
        assert calc.check_state(atoms) == []
    atoms.arrays["numbers"] = atoms.numbers.astype(np.uint8)
    assert calc.check_state(atoms) == []
    before = calc.atoms.positions.copy()
    atoms.positions[0, 0] += 1e-3
    assert calc.check_state(atoms) == ["positions"]
    assert_array_equal(calc.atoms.positions, before)
    for change in (
        lambda: atoms.set_cell(atoms.cell * 1.001),
        lambda: atoms.set_pbc(False),
        lambda: atoms.numbers.__setitem__(slice(None), atoms.numbers[::-1].copy()),
        lambda: atoms.__delitem__(0),
    ):
        calc.get_forces(atoms)
        change()
        assert calc.check_state(atoms), change


@pytest.mark.parametrize(
    ("cell", "pbc"), [([9.0, 9.0, 9.0], False), ([9.0, 9.0, 0.0], (True, True, False))], ids=str
)
def test_stress_needs_three_cell_vectors_and_a_period(kind: Kind, cell: Any, pbc: Any) -> None:
    atoms, calc = molecule("H2O", cell=cell, pbc=pbc), kind.shared()
    for call in (calc.get_stress, lambda atoms: calc.batch([atoms], ["stress"])):
        with pytest.raises(PropertyNotImplementedError, match="of three independent vectors"):
            call(atoms)
    assert calc.get_forces(atoms).shape == (3, 3)
    atoms.set_cell([9.0, 9.0, 9.0])
    atoms.pbc = (True, True, False)
    assert calc.get_stress(atoms).shape == (6,)


def test_a_slab_is_a_crystal_with_vacuum(kind: Kind) -> None:
    """A slab with any open direction has forces and stresses of a periodic crystal with vacuum."""
    calc = kind.make()
    names = ["forces", "stress", *(["stresses"] if kind.engine else [])]
    for turn in range(3):
        slab = SYSTEMS["slab"]()
        slab.positions = np.roll(slab.positions, turn, axis=1)
        slab.set_cell(np.roll(slab.cell.array, turn, axis=(0, 1)))
        slab.pbc = np.roll(slab.pbc, turn)
        crystal = slab.copy()
        crystal.pbc = True
        want = {name: calc.get_property(name, crystal) for name in names}
        assert np.abs(want["stress"]).max() > 1e-4
        assert_same({name: calc.get_property(name, slab) for name in names}, want)
        batch = calc.batch([crystal, slab], names)[1]
        assert_same({name: batch[name] for name in names}, want)


def test_the_cell_of_a_slab_relaxes_in_its_plane(kind: Kind) -> None:
    slab = SYSTEMS["slab"]()
    slab.calc = kind.make()
    cell, energy = slab.cell.array.copy(), slab.get_potential_energy()
    both = FrechetCellFilter(slab, mask=[1, 1, 0, 0, 0, 1])
    BFGSLineSearch(both, logfile=None).run(fmax=1e-3, steps=4)
    assert slab.get_potential_energy() < energy
    moved = np.abs(slab.cell.array - cell)
    assert moved[:2, :2].min() > 1e-6
    assert_allclose(slab.cell.array[:, 2], cell[:, 2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dipole", "stresses", "magmoms"])
def test_other_properties_are_refused(kind: Kind, name: str) -> None:
    calc, atoms = kind.shared(), molecule("H2O")
    message = "three independent" if kind.engine and name == "stresses" else name
    for call in (
        lambda: calc.get_property(name, atoms),
        lambda: calc.calculate(atoms, [name]),
        lambda: calc.batch([atoms], [name]),
    ):
        with pytest.raises(PropertyNotImplementedError, match=message):
            call()


def test_stresses_of_atoms_are_parts_of_the_stress(kind: Kind) -> None:
    calc, atoms = kind.make(), box()
    if not kind.engine:
        assert "stresses" not in calc.implemented_properties
        return
    stresses = calc.get_stresses(atoms)
    assert stresses.shape == (6, 6)
    assert "stress" not in calc.results
    stress = calc.get_stress(atoms)
    size = np.abs(stresses).max()
    assert_allclose(stresses.sum(axis=0), stress, rtol=0, atol=1e-12 * size)
    assert np.abs(stresses - stress / 6).max() > 0.1 * size
    twice = calc.get_stresses(atoms * (2, 1, 1))  # twice the volume
    assert_allclose(2 * twice, np.concatenate([stresses, stresses]), rtol=0, atol=1e-10 * size)
    both = calc.batch([atoms, atoms * (2, 1, 1)], ["stress", "stresses"])
    assert_allclose(both[0]["stresses"], stresses, rtol=0, atol=1e-10 * size)
    assert_allclose(both[1]["stresses"], twice, rtol=0, atol=1e-10 * size)
    assert_allclose(both[0]["stress"], stress, rtol=0, atol=1e-10 * size)


def test_hessian(kind: Kind) -> None:
    """The Hessian is symmetric, and times a direction it is the change of forces along it."""
    calc, atoms = kind.make(), box()[:4]
    found = calc.get_hessian(atoms)
    assert_array_equal(found, found.T)
    way = np.random.default_rng(3).normal(size=(4, 3))
    ends = [atoms.copy(), atoms.copy()]
    for end, step in zip(ends, (1e-4, -1e-4), strict=True):
        end.positions += step * way
    forward, backward = (calc.get_forces(end) for end in ends)
    size = np.abs(found).max()
    want = (backward - forward).ravel() / 2e-4
    assert_allclose(found @ way.ravel(), want, rtol=0, atol=1e-4 * size)
    assert calc.get_hessian(Atoms()).shape == (0, 0)
    with pytest.raises(ValueError, match="step is 0, expected a length"):
        calc.get_hessian(atoms, step=0)


def test_rows_of_the_hessian(kind: Kind) -> None:
    """Chosen rows are those of the whole matrix, up to the error of differences."""
    calc, atoms = kind.make(), box()[:4]
    whole = calc.get_hessian(atoms).reshape(4, 3, 12)
    size = np.abs(whole).max()
    # not always to the last bit: sums of torch on a GPU have no fixed order
    found = calc.get_hessian(atoms, indices=range(4))
    assert_allclose(found, whole.reshape(12, 12), rtol=0, atol=1e-12 * size)
    for indices in ([2, 0], np.array([3]), (1, 3, 2)):
        found = calc.get_hessian(atoms, indices=indices)
        assert found.shape == (3 * len(indices), 12)
        rows = found.reshape(-1, 3, 12)
        assert_allclose(rows, whole[list(indices)], rtol=0, atol=1e-5 * size)
        block = rows.reshape(-1, 4, 3)[:, list(indices)].reshape(len(found), -1)
        assert_array_equal(block, block.T)
    assert calc.get_hessian(atoms, indices=[]).shape == (0, 12)


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([0, 4], r"indices has 4, expected numbers from 0 to 3 \(4 atoms\)"),
        ([-1], r"indices has -1, expected numbers from 0 to 3 \(4 atoms\)"),
        ([1, 1], r"indices is \[1, 1\], expected different whole numbers of atoms, such as"),
        ([0.0], r"indices is \[0.0\], expected different whole"),
        ([[0, 1]], r"indices is \[\[0, 1\]\], expected different whole"),
        (2, r"indices is 2, expected different whole"),
        ([True, False, True, False], r"indices is \[True, False, .* expected different whole"),
    ],
    ids=str,
)
def test_rows_of_the_hessian_that_do_not_exist(kind: Kind, indices: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        kind.make().get_hessian(box()[:4], indices=indices)


# -- batches and descriptors -----------------------------------------------------------------------


def test_a_batch_gives_what_single_calls_give(kind: Kind) -> None:
    calc, single = kind.make(), kind.shared()
    images = [box(), molecule("H2O"), Atoms("O"), Atoms(), SYSTEMS["slab"](), box()[:4]]
    images += [dimer(seed=seed) for seed in range(4 if EMULATED else 40)]
    found = calc.batch(images)
    assert calc.results == {}
    assert len(found) == len(images)
    for atoms, each in zip(images, found, strict=True):
        assert "stress" not in each
        want = results(single, atoms)
        want = {name: value for name, value in want.items() if not name.startswith("stress")}
        assert_same({name: each[name] for name in want}, want, 1e-10)
    crystals = [box(), box(1) * (2, 1, 1)]
    for atoms, each in zip(crystals, calc.batch(crystals, ["stress"]), strict=True):
        assert_same({"stress": each["stress"]}, {"stress": single.get_stress(atoms)}, 1e-10)
        assert not kind.engine or "forces" not in each
    assert calc.batch([]) == []


def test_errors_in_a_batch_name_the_structure(kind: Kind) -> None:
    bad = molecule("H2O")
    bad.positions[2] = bad.positions[1]
    with pytest.raises(InputError, match=r"images\[1\]: atoms [12] and [12] are at the same"):
        kind.shared().batch([molecule("H2O"), bad, bad])


def test_descriptors(kind: Kind) -> None:
    calc, atoms = kind.make(), box()
    if kind.name == "nequip":
        message = (
            "get_descriptors is for packages and for MACE models of energies alone, and this is "
            "GraphModel of nequip"
        )
        with pytest.raises(UnsupportedProblemError, match=message):
            calc.get_descriptors(atoms)
        return
    if not kind.engine:
        return  # tests/mace/test_drop_in.py
    with pytest.raises(ValueError, match="no atoms to evaluate"):
        calc.get_descriptors()
    found = calc.get_descriptors(atoms)
    assert found.shape == (6, 2 * 7 * 4), "of a committee those of its first member"
    other = calc.get_descriptors(atoms[::-1])
    assert_allclose(other[::-1], found, rtol=0, atol=1e-12 * np.abs(found).max())
    assert np.abs(other - found).max() > 1e-3
    assert_allclose(kind.on_the_cpu().get_descriptors(atoms), found, rtol=0, atol=1e-10)
    assert calc.results == {}
    assert calc.get_descriptors(Atoms()).shape == (0, found.shape[1])


# -- copies, threads, surroundings -----------------------------------------------------------------


def test_copies(kind: Kind) -> None:
    check_copies(kind.make(skin=0.3), box())


def test_calculators_in_threads(kind: Kind) -> None:
    calcs = [kind.make(), kind.make()]
    systems = [box(1), box(2)]
    want = [results(kind.shared(), atoms) for atoms in systems]

    def work(k: int) -> list[dict[str, Any]]:
        found = []
        for _ in range(3):
            calcs[k].reset()
            found.append(results(calcs[k], systems[k]))
        return found

    with ThreadPoolExecutor(2) as pool:
        for k, found in enumerate(pool.map(work, (0, 1))):
            for each in found:
                assert_same(each, want[k])
                assert_same(each, found[0], kind.noise)


def test_nothing_global_is_touched(kind: Kind) -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.random.get_rng_state().tolist(),
            str(np.random.get_state()),  # noqa: NPY002
            dict(os.environ),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        )

    before = state()
    for options in ({}, {"dtype": "float32"}) if kind.name == "mace" else ({},):
        calc = kind.make(**options)
        calc.get_stress(box())
    with pytest.raises(InputError):
        calc.get_forces(Atoms("U"))
    assert state() == before


def test_a_calculator_describes_itself(kind: Kind) -> None:
    calc = kind.make(skin=0.25)
    device = kind.device
    assert calc.todict().keys() == {"model", "device", "dtype", "head", "skin"}
    for name, value in {"device": device, "dtype": "float64", "skin": 0.25}.items():
        assert calc.todict()[name] == value
    assert str(calc.device) == device
    assert str(calc.dtype).removeprefix("torch.") == "float64"
    assert calc.species == (("H", "C", "O") if kind.engine else ("H", "O"))
    assert (calc.model is None) == kind.engine
    assert calc.is_patched == (not kind.engine)
    for part in (*calc.species, f"r_max {calc.r_max:g} Å", "float64", device):
        assert part in repr(calc)
    with pytest.raises(TypeError, match="cannot change skin after"):
        calc.set(skin=1.0)


# -- refusals --------------------------------------------------------------------------------------


def _set(part: str, index: Any, value: Any) -> Callable[[Atoms], None]:
    def change(atoms: Atoms) -> None:
        array = getattr(atoms, part)
        array[index] = value(array) if callable(value) else value

    return change


def _cell(cell: Any) -> Callable[[Atoms], None]:
    def change(atoms: Atoms) -> None:
        atoms.set_cell(cell)
        atoms.pbc = True

    return change


NOT_FINITE = "the cell .* has entries that are not finite numbers"
UNUSABLE: dict[str, tuple[Callable[[Atoms], None], str]] = {
    "position": (_set("positions", (1, 2), np.nan), "atom 1 at"),
    "same place": (
        _set("positions", 2, lambda array: array[0]),
        "atoms (0 and 2|2 and 0) are at the same place",
    ),
    "species": (_set("numbers", 0, 92), r"does not know U, only H, (C, )?O"),
    "dummy": (_set("numbers", 0, 0), "does not know X, only"),
    "number": (_set("numbers", slice(None), 500), "does not know Z=500"),
    "no cell": (_cell(None), "periodic along abc, where its cell vector is zero"),
    "cell of nan": (_cell(np.full((3, 3), np.nan)), NOT_FINITE),
    "one nan": (_cell(np.diag([8.0, np.nan, 8.0])), NOT_FINITE),
    "infinite": (_cell(np.diag([8.0, np.inf, 8.0])), NOT_FINITE),
    "tiny": (_cell(np.eye(3) * 0.001), r"0.001 Å apart, so each atom .* images within .* repeat"),
    "small": (_cell(np.eye(3) * 0.02), r"would have [0-9.e+]+ periodic images within .* repeat"),
    "thin": (_cell(np.diag([9.0, 9.0, 0.001])), "expected at most 1020 along a cell vector"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_structures_are_refused_in_one_sentence(kind: Kind, name: str) -> None:
    """Unusable structures give one sentence, and the calculator can be used afterwards."""
    change, message = UNUSABLE[name]
    calc, good = kind.shared(), molecule("H2O")
    want = calc.get_forces(good)
    bad = good.copy()
    change(bad)
    calls: list[Callable[[Atoms], Any]] = [calc.get_forces, lambda atoms: calc.batch([atoms])]
    for call in [*calls, calc.get_stress] if bad.cell.rank == 3 else calls:
        with pytest.raises(InputError, match=message) as error:
            call(bad)
        assert "\n" not in str(error.value)
    assert_allclose(calc.get_forces(good), want, atol=1e-12)
    assert issubclass(InputError, CalculatorSetupError)


def test_too_many_neighbours(kind: Kind) -> None:
    """Scaled coordinates taken for Å, 1000 atoms in a cell of 1 Å, are refused."""
    scaled = np.random.default_rng(0).uniform(size=(1000, 3))
    atoms = Atoms("O1000", scaled, cell=np.eye(3), pbc=True)
    with pytest.raises(InputError, match=r"atom \d+ has \d+ neighbours .* at most 50000"):
        kind.shared().get_forces(atoms)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cuda:97"}, DeviceError, "cuda:97"),
        ({"device": "tpu"}, (ValueError, DeviceError), "device is 'tpu', expected 'cpu', 'cuda'"),
        ({"dtype": "float16"}, ValueError, "dtype is 'float16', expected"),
        ({"skin": -0.1}, ValueError, "skin is -0.1, expected a length"),
        ({"skin": np.nan}, ValueError, "skin is nan"),
        ({"head": "pbe"}, ValueError, "head"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(kind: Kind, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as found:
        MDCGCalculator(kind.model, **({"device": kind.device} | options))
    assert "\n" not in str(found.value)
