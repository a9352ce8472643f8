"""Fixes of Monte Carlo moves, which hide an atom from the potential to try its removal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from mdcg.package import Package

from .lmp import BAR, Output, head, package, reference, run_input, same, water, write_data

BOLTZMANN = 8.617343e-5  # LAMMPS' own, units metal, eV/K
TEMPERATURE = 1000.0
DISPERSION = "dispersion pbe dispersion_cutoff 8"
CONTROL = "pair_style lj/cut 5.0\npair_coeff * * 0.0 1.0\n"  # zero energy


def bound(folder: Path, energy: float = -20.0) -> Path:
    """Return a package whose atoms have this energy more each, as those of real models do."""
    shifted = Package.open(package("nequip", "float64"))
    shifted.tensors["energy.shift"] = np.array([energy - 0.05])
    path = folder / "bound.mdcg"
    shifted.save(path)
    return path


def gas(length: float, style: str = "charge") -> str:
    """Return the beginning of an input: two oxygen atoms in a large box."""
    return f"""
units metal
atom_style {style}
atom_modify map yes
newton on
region box block 0 {length} 0 {length} 0 {length}
create_box 2 box
mass 1 1.008
mass 2 15.999
group gas type 2
neighbor 1.0 bin
thermo 1
thermo_modify lost error
"""


def mdcg(model: Path, settings: str) -> str:
    return f"pair_style mdcg {settings}\npair_coeff * * {model} H O\n"


def energy_of(model: Path, atoms: Atoms) -> float:
    return float(reference(atoms, model)["energy"])


def pressure_of(fugacity: float) -> str:
    """Return the pressure that fix gcmc wants for this number of ideal particles in 1 Å^3."""
    return f"{fugacity * BOLTZMANN * TEMPERATURE * BAR:.17g}"


def atoms_of_a_gas(folder: Path, pair: str, energy: float, ranks: int) -> Output:
    """Exchange atoms that never touch, so that six are in the box on average; run twice.

    LAMMPS loses track of atoms that it moves and then removes on several ranks: none are moved.
    """
    fugacity = 6.0 / 80.0**3 * math.exp(energy / (BOLTZMANN * TEMPERATURE))
    text = gas(80.0) + pair + "create_atoms 2 single 5 5 5\ncreate_atoms 2 single 60 60 60\n"
    text += f"fix mc gas gcmc 1 10 {2 if ranks == 1 else 0} 2 4711 {TEMPERATURE} 0 2.0 "
    text += f"pressure {pressure_of(fugacity)} overlap_cutoff 9.0 full_energy\n"
    text += "thermo_style custom step atoms f_mc[*]\n"
    return run_input(folder, text + 2 * f"run {20 if ranks == 1 else 3}\n", ranks=ranks)


@pytest.mark.parametrize("settings", ["", DISPERSION], ids=["", "dispersion"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gas_of_atoms(tmp_path: Path, ranks: int, settings: str) -> None:
    """fix gcmc accepts the same moves of atoms as in an ideal gas of zero energy."""
    model = bound(tmp_path)
    energy = energy_of(model, Atoms("O"))
    assert energy < -20.0
    want = atoms_of_a_gas(tmp_path, CONTROL, 0.0, ranks)
    got = atoms_of_a_gas(tmp_path, mdcg(model, settings), energy, ranks)
    same(got, want, 0.0)
    attempts, successes = (want.last[f"f_mc[{k}]"] for k in (5, 6))
    assert 0 < successes < attempts
    if ranks == 1:
        assert 4.0 < np.concatenate([run["Atoms"] for run in got.runs]).mean() < 8.0


WATER = """
3 atoms

Coords

1 0.0 0.0 0.0
2 0.757 0.586 0.0
3 -0.757 0.586 0.0

Types

1 2
2 1
3 1
"""


@pytest.mark.parametrize("settings", ["", DISPERSION], ids=["", "dispersion"])
def test_gas_of_molecules(tmp_path: Path, settings: str) -> None:
    """fix gcmc accepts the same moves of molecules as in an ideal gas; LAMMPS allows one rank."""
    model = bound(tmp_path)
    (tmp_path / "water.txt").write_text("water\n" + WATER)
    molecule = Atoms("OHH", [[0, 0, 0], [0.757, 0.586, 0], [-0.757, 0.586, 0]])
    options = {"dispersion": "pbe", "dispersion_cutoff": 8.0} if settings else {}
    energy = float(reference(molecule, model, **options)["energy"])
    assert energy < -60.0

    def run(pair: str, energy: float) -> Output:
        text = gas(80.0, "bond") + "molecule water water.txt\n" + pair
        text += "create_atoms 0 single 5 5 5 mol water 1\n"
        text += "create_atoms 0 single 50 50 50 mol water 1\ngroup water type 1 2\n"
        text += f"fix mc water gcmc 1 8 4 0 4711 {TEMPERATURE} 0 2.0 mol water maxangle 90 "
        text += f"pressure {pressure_of(4.0 / 80.0**3)} overlap_cutoff 10.0 full_energy "
        text += f"intra_energy {energy:.17g}\nthermo_style custom step atoms f_mc[*]\n"
        return run_input(tmp_path, text + 2 * "run 10\n")

    want = run(CONTROL, 0.0)
    same(run(mdcg(model, settings), energy), want, 0.0)
    assert 0 < want.last["f_mc[6]"] < want.last["f_mc[5]"]
    assert want.last["f_mc[8]"] > 0


@pytest.mark.parametrize("settings", ["", DISPERSION], ids=["", "dispersion"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_pairs_of_ions(tmp_path: Path, ranks: int, settings: str) -> None:
    """fix charge/regulation accepts the same moves of ion pairs as in an ideal gas."""
    model = bound(tmp_path)

    def run(pair: str, energy: float) -> Output:
        exponent = math.log10(120.0**3 * 6.02214e-4 / 3.0)  # three of each on average
        exponent -= energy / (BOLTZMANN * TEMPERATURE) / math.log(10.0)
        text = gas(120.0) + pair + "create_atoms 2 single 5 5 5\n"
        text += f"fix mc gas charge/regulation 1 2 nevery 1 nmc 10 pIp {exponent:.17g} "
        text += f"pIm {exponent:.17g} lunit_nm 0.1 temp {TEMPERATURE} pmcmoves 0 0 1 seed 4711\n"
        text += "thermo_style custom step atoms f_mc[*]\n"
        return run_input(tmp_path, text + 2 * "run 4\n", ranks=ranks)

    energy = energy_of(model, Atoms("O"))
    assert energy == energy_of(model, Atoms("H"))
    want = run(CONTROL, 0.0)
    same(run(mdcg(model, settings), energy), want, 0.0)
    assert np.diff(want.runs[-1]["f_mc[7]"]).min() < 0 < want.last["f_mc[2]"]


@pytest.mark.parametrize("settings", ["", DISPERSION], ids=["", "dispersion"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_chemical_potential(tmp_path: Path, ranks: int, settings: str) -> None:
    """fix widom finds the energy of an atom that it inserts far from all others."""
    model = bound(tmp_path)
    text = gas(80.0) + mdcg(model, settings) + "create_atoms 2 single 5 5 5\n"
    text += f"fix mc gas widom 1 5 2 4711 {TEMPERATURE} full_energy\n"
    text += "thermo_style custom step atoms f_mc[1]\nthermo_modify format float %.17g\n"
    output = run_input(tmp_path, text + 2 * "run 2\n", ranks=ranks)
    energy = energy_of(model, Atoms("O"))
    for run in output.runs:
        np.testing.assert_allclose(run["f_mc[1]"][1:], energy, rtol=1e-9)


@pytest.mark.parametrize("settings", ["", DISPERSION], ids=["", "dispersion"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_atom_of_a_liquid(tmp_path: Path, ranks: int, settings: str) -> None:
    check_an_atom_of_a_liquid(tmp_path, package("nequip", "float64"), ranks, settings)


def check_an_atom_of_a_liquid(
    folder: Path, model: Path, ranks: int, settings: str, **run: Any
) -> None:
    """Check that an atom goes where the fugacity is below that of its energy, and stays above."""
    atoms = water(2, seed=3)
    write_data(folder / "test.data", atoms)
    options = {"dispersion": "pbe", "dispersion_cutoff": 8.0} if DISPERSION in settings else {}
    whole, less = (reference(a, model, **options)["energy"] for a in (atoms, atoms[1:]))
    for margin in (0.02, -0.02):  # eV, which is 23 kT
        fugacity = math.exp((whole - less + margin) / (BOLTZMANN * 10.0)) / atoms.get_volume()
        text = head(model, settings=settings) + "group one id 1\n"
        text += "fix mc one gcmc 1 1 0 2 4711 10.0 0 0 min 0 max 1 full_energy pressure "
        text += f"{fugacity * BOLTZMANN * 10.0 * BAR:.17g}\n"
        text += "thermo_style custom step pe f_mc[5] f_mc[6]\nthermo_modify format float %.17g\n"
        text += "thermo 1\n" + 2 * "run 3\n"
        output = run_input(folder, text, ranks=ranks, **run)
        steps = {name: np.concatenate([run[name] for run in output.runs]) for name in output.last}
        tried = steps["f_mc[5]"] > 0
        gone = tried if margin < 0 else np.zeros(len(tried), dtype=bool)
        assert tried.any()
        np.testing.assert_array_equal(steps["f_mc[6]"], gone)
        np.testing.assert_allclose(steps["PotEng"], np.where(gone, less, whole), rtol=1e-10)
