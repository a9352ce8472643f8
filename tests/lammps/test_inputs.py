"""Charge, spin and other inputs of a system in LAMMPS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.units import fs

from mdcg import MDCGCalculator, Package

from .lmp import (
    THERMO,
    compare,
    head,
    package,
    reference,
    run_input,
    single_point,
    water,
    write_data,
)
from .test_heat_flux import HEAT_FLUX

MODEL = package("mace_charged", "float64")


def charged(atoms: Atoms, **info: float) -> Atoms:
    found = atoms.copy()
    found.info.update(info)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("settings", "info"),
    [
        ("charge 1 spin 2", {"charge": 1, "spin": 2}),
        ("input total_charge -2 threads 1", {"charge": -2}),
        ("charge 1 input total_charge 2 spin 3", {"charge": 2, "spin": 3}),
    ],
)
def test_values(tmp_path: Path, ranks: int, settings: str, info: dict[str, float]) -> None:
    atoms = water(3)
    output = single_point(tmp_path, atoms, MODEL, ranks=ranks, settings=settings)
    compare(output, reference(charged(atoms, **info), MODEL), 1e-10)
    spin = info.get("spin", 1)
    assert output.text.count(f"mdcg: total_charge = {info['charge']}, total_spin = {spin}\n") == 1
    assert "reads total_charge, total_spin (default 1), float64, " in output.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_changes_between_runs(tmp_path: Path, ranks: int) -> None:
    """Each run has its values, and the first ones again give the same bits."""
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(MODEL, settings="charge 0") + THERMO + "run 0\n"
    text += "pair_modify charge 1 spin 2\nrun 0\nrun 0\n"
    text += "pair_modify shift no input total_charge 0 mix geometric input total_spin 1\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks)
    values = [(0, 1), (1, 2), (1, 2), (0, 1)]
    for run, (charge, spin) in zip(output.runs, values, strict=True):
        want = reference(charged(atoms, charge=charge, spin=spin), MODEL)
        assert run["PotEng"][-1] == pytest.approx(want["energy"], rel=1e-12)
    assert output.runs[0]["PotEng"][-1] == output.runs[3]["PotEng"][-1]
    said = [line for line in output.text.splitlines() if " mdcg: total_charge = " in line]
    assert [line.split("= ", 1)[1] for line in said] == [
        "0, total_spin = 1",
        "1, total_spin = 2",
        "0, total_spin = 1",
    ]


def test_dynamics_and_restart(tmp_path: Path) -> None:
    """A restart file holds the values of the last run."""
    write_data(tmp_path / "test.data", water(2))
    thermo = "thermo_style custom step pe\nthermo_modify format float %.17g\nthermo 1\n"
    dynamics = "timestep 0.0003\nvelocity all create 300 4711 loop geom\nfix nve all nve\n"
    text = head(MODEL, settings="charge 0") + thermo + dynamics
    text += "run 2\npair_modify charge -1\nrun 2\nwrite_restart r\nrun 2\n"
    whole = run_input(tmp_path, text)
    again = run_input(
        tmp_path,
        f"units metal\natom_style atomic\natom_modify map yes\nread_restart r\n{thermo}"
        "neighbor 1.0 bin\ntimestep 0.0003\nfix nve all nve\nrun 2\n",
    )
    np.testing.assert_allclose(again.runs[0]["PotEng"], whole.runs[2]["PotEng"], rtol=1e-11)
    assert "pair_style mdcg: total_charge = -1, total_spin = 1\n" in again.text


def test_hybrid_and_committee(tmp_path: Path) -> None:
    """Packages without inputs ignore those that others read."""
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    other = package("mace", "float64")
    lines = head(MODEL).replace("pair_style mdcg", "pair_style hybrid/overlay mdcg charge 1 zero 4")
    text = lines.replace("* * ", "* * mdcg ") + "pair_coeff * * zero\n" + THERMO + "run 0\n"
    again = "\n".join(line for line in text.splitlines() if line.startswith("pair_"))
    output = run_input(tmp_path, text + again.replace("charge 1", "charge -1") + "\nrun 0\n")
    for run, charge in zip(output.runs, (1, -1), strict=True):
        want = reference(charged(atoms, charge=charge), MODEL)
        assert run["PotEng"][-1] == pytest.approx(want["energy"], rel=1e-12)
    with_other = head(MODEL, settings="charge 1").replace(f"{MODEL} ", f"{MODEL} {other} ")
    output = run_input(tmp_path, with_other + THERMO + "run 0\n")
    want = [reference(charged(atoms, charge=1), each)["energy"] for each in (MODEL, other)]
    assert output.last["PotEng"] == pytest.approx(np.mean(want), rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("settings", "after", "message"),
    [
        ("", "", "reads total_charge and has no default for it, expected a value: write charge "
                 "VALUE behind pair_style mdcg or pair_modify, or convert the model with "
                 "mdcg-patch --set total_charge=VALUE"),
        ("charge 3", "", "total_charge is 3, expected a whole number from -2 to 2"),
        ("charge 0.5", "", "total_charge is 0.5, expected a whole number from -2 to 2"),
        ("charge 0 spin 1.5", "", "total_spin is 1.5, expected a whole number from 1 on"),
        ("charge 0 spin 0", "", "total_spin is 0, expected a whole number from 1 on"),
        ("charge 0 input phase 1", "", "phase is given, which no package reads, expected one "
                                       "of: total_charge, total_spin"),
        ("charge", "", "pair_style mdcg: keyword charge needs a value"),
        ("input total_charge", "", "keyword input needs the name of an input and a value"),
        ("charge one", "", "Expected floating point parameter instead of 'one'"),
        ("charge 0", "run 0\npair_modify charge 3", "total_charge is 3, expected a whole number"),
        ("charge 0", "run 0\npair_modify spin", "pair_style mdcg: keyword spin needs a"),
        ("charge 0", "run 0\npair_modify charge 1\nrun 1 pre no",
         "an input of pair_modify was given after the last set-up"),
        ("charge 0", "pair_modify colour 1", "colour"),
    ],
)  # fmt: skip
def test_unusable_values(
    tmp_path: Path, ranks: int, settings: str, after: str, message: str
) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(MODEL, settings=settings) + after + "\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code != 0
    lines: list[Any] = [line for line in output.text.splitlines() if message in line]
    assert lines, output.text[-2000:]


def test_values_that_differ(tmp_path: Path) -> None:
    """Ranks, or packages of a committee, with different values are an error."""
    write_data(tmp_path / "test.data", water(2))
    text = "variable q getenv PMI_RANK\n" + head(MODEL, settings="charge ${q}") + "run 0\n"
    output = run_input(tmp_path, text, ranks=2, check=False)
    assert "charge is 0 on one rank and 1 on another, expected one value" in output.text
    paths = []
    for charge in (0, 1):
        changed = Package.open(MODEL)
        (entry,) = (e for e in changed.manifest["inputs"] if e["name"] == "total_charge")
        entry["default"] = charge
        changed.save(tmp_path / f"{charge}.mdcg")
        paths.append(str(tmp_path / f"{charge}.mdcg"))
    text = head(MODEL).replace(str(MODEL), " ".join(paths)) + "run 0\n"
    output = run_input(tmp_path, text, check=False)
    assert "committee have different defaults of total_charge (0 and 1), expected" in output.text


def test_a_package_without_inputs(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float32"), settings="charge 1") + "run 0\n"
    output = run_input(tmp_path, text, check=False)
    assert "charge is given, which no package reads, expected none: remove it" in output.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_heat_flux(tmp_path: Path, ranks: int) -> None:
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(MODEL, settings="charge 1 spin 2", before="comm_modify cutoff 15.0")
    output = run_input(tmp_path, text + HEAT_FLUX, ranks=ranks)
    calc, time = MDCGCalculator(MODEL, threads=1), 1000.0 * fs
    atoms.set_masses([15.0 if symbol == "O" else 12.0 for symbol in atoms.symbols])
    atoms.info = {"charge": 1, "spin": 2}
    for frame, rows in enumerate(output.dump()):
        atoms.positions = rows[:, 1:4]
        atoms.set_velocities(rows[:, 4:7] / time)
        want = calc.get_heat_flux(atoms) * time
        found = [output.runs[0][f"c_flux[{k}]"][frame] for k in range(1, 4)]
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-7 * np.abs(want).max())
