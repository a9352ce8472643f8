"""PolarMACE on any number of ranks, against the ASE calculator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdcg import MDCGCalculator

from .lmp import BAR, head, molecule_in_a_corner, nve, package, run_input, water, write_data
from .test_les import OUTPUT, crystal

POLAR = package("mace_polar", "float64")
INPUTS = {"charge": 1, "spin": 2}


def start(**options: str) -> str:
    """Return the beginning of an input with values of the model's inputs."""
    return head(POLAR, settings="charge 1 spin 2", **options)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["cubic", "triclinic"])
def test_numbers_of_ase(tmp_path: Path, name: str, ranks: int) -> None:
    atoms = crystal(name)
    write_data(tmp_path / "test.data", atoms)
    output = run_input(tmp_path, start() + OUTPUT + "run 0\n", ranks=ranks)
    atoms.info |= INPUTS
    atoms.calc = MDCGCalculator(POLAR, threads=1)
    (frame,) = output.dump()
    np.testing.assert_allclose(frame[:, 1:4], atoms.get_forces(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(frame[:, 4], atoms.get_potential_energies(), rtol=1e-10)
    np.testing.assert_allclose(frame[:, 5], atoms.get_charges(), rtol=0, atol=1e-10)
    assert frame[:, 5].sum() == pytest.approx(1.0, abs=1e-9)
    found = output.last
    energy = atoms.get_potential_energy()
    np.testing.assert_allclose([found["PotEng"], found["c_esum"]], energy, rtol=1e-10)
    pressure = [found[f"c_p[{k}]"] for k in range(1, 7)]
    want = -atoms.get_stress()[[0, 1, 2, 5, 4, 3]] * BAR
    np.testing.assert_allclose(pressure, want, rtol=0, atol=1e-9 * BAR)


def test_dynamics(tmp_path: Path) -> None:
    """Trajectories of one rank and of three agree, also in a cell that changes."""
    write_data(tmp_path / "test.data", crystal("triclinic"))
    steps = nve(1).replace("fix nve all nve", "fix npt all npt temp 300 300 0.1 tri 1e4 1e4 0.1")
    text = start() + steps + "run 20\n"
    runs = {ranks: run_input(tmp_path, text, ranks=ranks).runs[0] for ranks in (1, 3)}
    for name in ("PotEng", "TotEng", "Pxx", "Pxy"):
        scale = np.abs(runs[1][name]).max()
        np.testing.assert_allclose(runs[3][name], runs[1][name], rtol=0, atol=1e-8 * scale)
    assert np.ptp(runs[1]["PotEng"]) > 1e-3


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_charges(tmp_path: Path, ranks: int) -> None:
    """The charge and the spin change between runs."""
    atoms = crystal("cubic")
    write_data(tmp_path / "test.data", atoms)
    text = start() + "thermo_style custom step pe\nthermo_modify format float %.17g\nrun 0\n"
    output = run_input(tmp_path, text + "pair_modify charge -2 spin 1\nrun 0\n", ranks=ranks)
    calc = MDCGCalculator(POLAR, threads=1)
    for run, (charge, spin) in zip(output.runs, [(1, 2), (-2, 1)], strict=True):
        atoms.info |= {"charge": charge, "spin": spin}
        assert run["PotEng"][-1] == pytest.approx(calc.get_potential_energy(atoms), rel=1e-10)


@pytest.mark.parametrize("ranks", [1, 2])
def test_open_systems(tmp_path: Path, ranks: int) -> None:
    """A molecule that lies on one of two ranks; the other one is empty."""
    atoms = molecule_in_a_corner()
    write_data(tmp_path / "test.data", atoms)
    text = start(boundary="f f f") + OUTPUT + "run 0\n"
    output = run_input(tmp_path, text, ranks=ranks)
    atoms.info |= INPUTS
    atoms.calc = MDCGCalculator(POLAR, threads=1)
    np.testing.assert_allclose(output.dump()[0][:, 1:4], atoms.get_forces(), rtol=0, atol=1e-9)


def test_external_field(tmp_path: Path) -> None:
    """A field changes between runs, and is not for boxes."""
    atoms = molecule_in_a_corner()
    write_data(tmp_path / "test.data", atoms)
    text = head(
        POLAR, settings="charge 1 spin 2 input external_field 0 0.1 -0.05", boundary="f f f"
    )
    text += OUTPUT + "run 0\npair_modify input external_field 0.2 0 0\nrun 0\n"
    text += "pair_modify input external_field_x 0.1\nrun 0\n"
    output = run_input(tmp_path, text)
    fields = [[0, 0.1, -0.05], [0.2, 0, 0], [0.1, 0, 0]]
    atoms.calc = MDCGCalculator(POLAR, threads=1)
    for run, field in zip(output.runs, fields, strict=True):
        atoms.info = INPUTS | {"external_field": field}
        assert run["PotEng"][-1] == pytest.approx(atoms.get_potential_energy(), rel=1e-10)
    atoms.info["external_field"] = fields[0]  # the dump has the first run alone
    np.testing.assert_allclose(output.dump()[0][:, 1:4], atoms.get_forces(), rtol=0, atol=1e-9)
    assert "external_field_x = 0, external_field_y = 0.1, external_field_z = -0.05" in output.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("input external_field 0 0.1 0", "the external field is (0, 0.1, 0) eV/Å/e and the system"),
        ("input external_field 0 0.1", "keyword input needs three values behind external_field"),
    ],
)
def test_unusable_fields(tmp_path: Path, settings: str, message: str) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(POLAR, settings="charge 1 spin 2 " + settings) + "run 0\n"
    output = run_input(tmp_path, text, ranks=1, check=False)
    assert output.code != 0
    assert message in output.text


def test_fields_of_other_models(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace_les", "float64"), settings="input external_field 0 0 1") + "run 0\n"
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert "external_field_x is given, which no package reads, expected none" in output.text


REFUSED = {
    "slab": ("p p f", "is periodic along 2 directions, expected 0 or 3"),
    "ranks": ("f f f", "sums over all pairs of an open system, which several processes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    boundary, reason = REFUSED[case]
    write_data(tmp_path / "test.data", water(2))
    output = run_input(tmp_path, start(boundary=boundary) + "run 0\n", ranks=2, check=False)
    assert output.code != 0
    assert reason in output.text
