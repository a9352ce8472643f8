"""A long-range sum of latent charges on any number of ranks, against the ASE calculator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator

from .lmp import BAR, head, molecule_in_a_corner, nve, package, run_input, water, write_data

LES, SHORT = package("mace_les", "float64"), package("mace", "float64")
OUTPUT = """
compute p all pressure NULL virial
compute e all pe/atom
compute esum all reduce sum c_e
fix q all pair 1 mdcg charges 1
thermo_style custom step pe c_esum c_p[*]
thermo_modify format float %.17g
dump d all custom 1 out.dump id fx fy fz c_e f_q
dump_modify d sort id format float %.17g
"""


def crystal(name: str) -> Atoms:
    atoms = water(2, seed=5)
    if name == "triclinic":
        skew = np.array([[1.0, 0.0, 0.0], [0.2, 1.0, 0.0], [-0.1, 0.15, 1.0]])
        atoms.set_cell(atoms.cell.array @ skew, scale_atoms=True)
        atoms.wrap()
    return atoms


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["cubic", "triclinic"])
def test_numbers_of_ase(tmp_path: Path, name: str, ranks: int) -> None:
    atoms = crystal(name)
    write_data(tmp_path / "test.data", atoms)
    output = run_input(tmp_path, head(LES) + OUTPUT + "run 0\n", ranks=ranks)
    atoms.calc = MDCGCalculator(LES, threads=1)
    (frame,) = output.dump()
    np.testing.assert_allclose(frame[:, 1:4], atoms.get_forces(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(frame[:, 4], atoms.get_potential_energies(), rtol=1e-10)
    np.testing.assert_allclose(frame[:, 5], atoms.get_charges(), rtol=0, atol=1e-10)
    assert np.abs(frame[:, 5]).min() > 1e-4
    found = output.last
    energy = atoms.get_potential_energy()
    np.testing.assert_allclose([found["PotEng"], found["c_esum"]], energy, rtol=1e-10)
    pressure = [found[f"c_p[{k}]"] for k in range(1, 7)]
    want = -atoms.get_stress()[[0, 1, 2, 5, 4, 3]] * BAR
    np.testing.assert_allclose(pressure, want, rtol=0, atol=1e-9 * BAR)


def test_dynamics_in_cells_that_change(tmp_path: Path) -> None:
    """Trajectories of one rank and of three agree; the last structure has the results of ASE."""
    write_data(tmp_path / "test.data", crystal("triclinic"))
    steps = nve(1).replace("fix nve all nve", "fix npt all npt temp 300 300 0.1 tri 1e4 1e4 0.1")
    text = head(LES) + steps + "run 20\n" + OUTPUT + "write_data end.data\nrun 0\n"
    runs = {ranks: run_input(tmp_path, text, ranks=ranks).runs[0] for ranks in (1, 3)}
    for name in ("PotEng", "TotEng", "Pxx", "Pxy"):
        scale = np.abs(runs[1][name]).max()
        np.testing.assert_allclose(runs[3][name], runs[1][name], rtol=0, atol=1e-8 * scale)
    assert np.ptp(runs[1]["PotEng"]) > 1e-3


@pytest.mark.parametrize("members", [[LES], [SHORT, LES]], ids=["alone", "committee"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_fixed_waves(tmp_path: Path, ranks: int, members: list[Path]) -> None:
    """The waves of the first box are kept while it changes, as in the calculator.

    A committee may also have members without a sum; results are means.
    """
    atoms = crystal("cubic")
    write_data(tmp_path / "test.data", atoms)
    several, fix = len(members) > 1, "fix q all pair 1 mdcg charges 1\n"
    printed, dump = OUTPUT.replace(fix, "").split("dump d", 1)
    if several:
        fix = fix.replace("charges", "forces_std")
    text = head(LES, settings="fixed_waves yes").replace(str(LES), " ".join(map(str, members)))
    text += printed + "run 0\nchange_box all x scale 1.08 y scale 1.08 z scale 1.08 remap\n"
    output = run_input(tmp_path, text + fix + "dump d" + dump + "run 0\n", ranks=ranks)
    calc, usual = (MDCGCalculator(members, threads=1, fixed_waves=kept) for kept in (True, False))
    for scale, run in zip((1.0, 1.08), output.runs, strict=True):
        atoms.set_cell(scale * atoms.cell.array, scale_atoms=True)
        energy, pressure = run["PotEng"][0], [run[f"c_p[{k}]"][0] for k in range(1, 7)]
        np.testing.assert_allclose(energy, calc.get_potential_energy(atoms), rtol=1e-10)
        want = -calc.get_stress(atoms)[[0, 1, 2, 5, 4, 3]] * BAR
        np.testing.assert_allclose(pressure, want, rtol=0, atol=1e-9 * BAR)
    (frame,) = output.dump()  # of the changed box
    np.testing.assert_allclose(frame[:, 1:4], calc.get_forces(atoms), rtol=0, atol=1e-9)
    if several:
        want = np.linalg.norm(calc.results["forces_std"], axis=1)
    else:
        want = calc.get_charges(atoms)
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(frame[:, 5], want, rtol=0, atol=1e-9)
    assert abs(usual.get_potential_energy(atoms) - energy) > 1e-6


@pytest.mark.parametrize("ranks", [1, 2])
def test_open_systems(tmp_path: Path, ranks: int) -> None:
    """A molecule that lies on one of two ranks; the other one is empty."""
    atoms = molecule_in_a_corner()
    write_data(tmp_path / "test.data", atoms)
    text = head(LES, boundary="f f f") + OUTPUT + "run 0\n"
    output = run_input(tmp_path, text, ranks=ranks)
    atoms.calc = MDCGCalculator(LES, threads=1)
    np.testing.assert_allclose(output.dump()[0][:, 1:4], atoms.get_forces(), rtol=0, atol=1e-9)


REFUSED = {
    "slab": ("p p f", "run 0", "is periodic along 2 directions, expected 0 or 3"),
    "ranks": ("f f f", "run 0", "sums over all pairs of an open system, which several processes"),
    "virials": (
        "p p p",
        "compute v all stress/atom NULL virial\ncompute s all reduce sum c_v[1]\n"
        "thermo_style custom step c_s\nrun 0",
        "has no virials of single atoms, expected commands that ask for the virial of the system",
    ),
    "heat flux": (
        "p p p",
        "compute f all mdcg/heat/flux\nthermo_style custom step c_f[1]\nrun 0",
        "the model has a long-range sum, whose heat flux is not implemented",
    ),
    "strained box": (
        "p p p",
        "pair_style mdcg fixed_waves yes\npair_coeff * * {LES} H O\nrun 0\n"
        "change_box all x scale 1.5 remap\nrun 0",
        "this cell is strained by 62.5 % from it",
    ),
    "strain": ("p p p", "fix f all numdiff/virial 1 1e-4\nrun 0", "move atoms and not the box"),
    "exclude": (
        "p p p",
        "neigh_modify exclude type 1 2\nrun 0",
        "the long-range sum acts between all atoms, and neigh_modify exclude",
    ),
    "fixed waves": (
        "p p p",
        "pair_style mdcg fixed_waves always",
        "fixed_waves is always, expected yes (the waves of the first cell), or no",
    ),
    "not asked for": (
        "p p p",
        "fix q all pair 1 mdcg charges 0\nrun 1",
        "write charges 1 in place of charges 0",
    ),
    "no charges": (
        "p p p",
        f"pair_coeff * * {package('mace', 'float32')} H O\nfix q all pair 1 mdcg charges 1\nrun 0",
        "does not have: name the package of a model with latent charges",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    boundary, commands, reason = REFUSED[case]
    write_data(tmp_path / "test.data", water(2))
    text = head(LES, boundary=boundary) + commands.replace("{LES}", str(LES)) + "\n"
    output = run_input(tmp_path, text, ranks=2, check=False)
    assert output.code != 0
    assert reason in output.text
