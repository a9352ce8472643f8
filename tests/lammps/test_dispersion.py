"""Dispersion in LAMMPS: the same numbers as in ASE, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from ase import Atoms

from .lmp import (
    DUMP,
    LATE_EXCLUSION,
    THERMO,
    TOLERANCE,
    check_strain,
    compare,
    flat_water,
    head,
    molecule_in_a_corner,
    nve,
    package,
    reference,
    run_input,
    same,
    single_point,
    water,
    write_data,
)
from .test_cuda import emulated, on

MODEL = package("nequip", "float64")
BJ = {"dispersion": "pbe"}
SHORT = {"dispersion": "PBE", "damping": "zero", "dispersion_cutoff": 9.0}


def words(options: dict[str, object]) -> str:
    return " ".join(f"{name} {value}" for name, value in options.items())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("options", [BJ, SHORT], ids=["bj", "zero"])
def test_single_point(tmp_path: Path, options: dict[str, object], ranks: int) -> None:
    atoms = water(3, seed=7)
    atoms.set_cell(atoms.cell.array @ [[1, 0, 0], [0.1, 1, 0], [-0.1, 0.2, 1]], scale_atoms=True)
    output = single_point(tmp_path, atoms, MODEL, ranks=ranks, settings=words(options))
    compare(output, reference(atoms, MODEL, **options), 1e-10)


def test_float32(tmp_path: Path) -> None:
    atoms, model = water(2, seed=3), package("mace", "float32")
    output = single_point(tmp_path, atoms, model, ranks=2, settings=words(BJ))
    compare(output, reference(atoms, model, **BJ), TOLERANCE["float32"])


def test_ranks_without_atoms(tmp_path: Path) -> None:
    """Dispersion equals ASE's if some ranks have only ghosts or nothing."""
    atoms = molecule_in_a_corner()
    output = single_point(
        tmp_path,
        atoms,
        MODEL,
        ranks=4,
        boundary="f f f",
        before="processors 4 1 1",
        settings=words(BJ),
    )
    compare(output, reference(atoms, MODEL, **BJ), 1e-10)


@pytest.mark.timeout(60)  # comparing all pairs of images would take minutes
def test_many_images(tmp_path: Path) -> None:
    """A tiny cell with half a million images and the doubled cell have the same energy per atom."""
    write_data(tmp_path / "test.data", Atoms("O", [[0.1, 0.2, 0.3]], cell=[1.0] * 3, pbc=True))
    text = head(MODEL, settings="dispersion pbe dispersion_cutoff 35")
    text += "thermo_style custom step pe\nthermo_modify format float %.17g\n"
    output = run_input(tmp_path, text + "run 0\nreplicate 2 1 1\nrun 0\n", ranks=2)
    one, two = (run["PotEng"][-1] for run in output.runs)
    assert two == pytest.approx(2.0 * one, rel=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_dimensions(tmp_path: Path, ranks: int) -> None:
    """In two dimensions, dispersion ignores periodic images along z, as in ASE."""
    atoms = flat_water()
    output = single_point(
        tmp_path, atoms, MODEL, ranks=ranks, before="dimension 2", settings=words(BJ)
    )
    compare(output, reference(atoms, MODEL, **BJ), 1e-10)


@pytest.mark.parametrize("ranks", [1, 2])
def test_strain_of_atoms_alone(tmp_path: Path, ranks: int) -> None:
    """Atoms strained in a large constant box give ASE's pressures and elastic derivatives."""
    atoms = water(1, seed=3)
    atoms.set_cell([13.0] * 3)
    atoms.positions += 6.5 - atoms.positions.mean(axis=0)

    def change(text: str) -> str:
        return text.replace("pair_style mdcg", f"pair_style mdcg {words(BJ)}")

    check_strain(tmp_path, MODEL, ranks, atoms=atoms, skewed=False, change=change, **BJ)


@pytest.mark.parametrize("ranks", [2, 3])
def test_trajectory(tmp_path: Path, ranks: int) -> None:
    """A trajectory with dispersion does not depend on the number of ranks."""
    write_data(tmp_path / "test.data", water(3, seed=7))
    text = head(MODEL, settings=words(BJ)) + nve(every=10) + "run 60\n"
    same(run_input(tmp_path, text, ranks=ranks), run_input(tmp_path, text), 1e-9)


@pytest.mark.parametrize(
    ("settings", "before", "message"),
    [
        ("dispersion blyp", "", "dispersion is 'blyp', and the package holds that of pbe"),
        ("dispersion pbe damping op", "", "damping is 'op', expected bj (Becke and Johnson) or"),
        ("damping zero", "", "without dispersion, expected dispersion FUNCTIONAL as well"),
        ("dispersion pbe dispersion_cutoff 0", "", "dispersion_cutoff is 0, expected a length"),
        ("dispersion pbe", "neigh_modify exclude type 1 1", "leave some out, expected none"),
        ("dispersion pbe", LATE_EXCLUSION, "leave some out, expected none"),
        (
            "dispersion pbe",
            "neighbor 1.0 multi\ncomm_modify mode multi",
            "comm_modify mode is multi, expected single",
        ),
    ],
)
def test_refusals(tmp_path: Path, settings: str, before: str, message: str) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(MODEL, settings=settings) + before + "\nrun 0\n"
    output = run_input(tmp_path, text, ranks=2, check=False)
    assert output.code != 0
    assert message in " ".join(output.text.split()), output.text


def test_a_package_without_dispersion(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2))
    model = package("mace", "float64")
    output = run_input(tmp_path, head(model, settings="dispersion pbe"), check=False)
    assert output.code != 0
    assert "the package holds none: convert the checkpoint again with" in output.text


def test_restart_keeps_dispersion(tmp_path: Path) -> None:
    atoms = water(2, seed=3)
    write_data(tmp_path / "test.data", atoms)
    run_input(tmp_path, head(MODEL, settings=words(SHORT)) + "run 0\nwrite_restart a.restart\n")
    text = (
        "units metal\natom_style atomic\natom_modify map yes\nnewton on\nread_restart a.restart\n"
    )
    output = run_input(tmp_path, text + THERMO + DUMP + "run 0\n")
    compare(output, reference(atoms, MODEL, **SHORT), 1e-10)


def test_heat_flux_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(MODEL, settings="dispersion pbe") + "compute j all mdcg/heat/flux\n"
    text += "thermo_style custom step c_j[1]\nrun 0\n"
    output = run_input(tmp_path, text, check=False)
    assert output.code != 0
    assert "whose heat flux is not implemented" in output.text


BOX = """
thermo_style custom step pe vol pxx pyy pzz pxy pxz pyz
thermo_modify format float %.17g
thermo 4
timestep 0.0003
velocity all create 300 4711 loop geom
fix 1 all npt temp 300 300 0.03 aniso 1 5000 0.1
run 20
"""


@pytest.mark.parametrize("where", ["2 ranks", "device", "device, 2 ranks"])
def test_a_box_that_changes(tmp_path: Path, where: str) -> None:
    """A changing box gives the same results on several ranks and on devices."""
    write_data(tmp_path / "test.data", water(2, seed=7))
    text = head(MODEL, settings="dispersion pbe dispersion_cutoff 8") + BOX
    want = run_input(tmp_path, text)
    assert len(set(want.runs[-1]["Volume"])) > 3
    ranks = 2 if "2 ranks" in where else 1
    if "device" in where:
        found = run_input(tmp_path, on("cuda", text), ranks=ranks, env=emulated())
    else:
        found = run_input(tmp_path, text, ranks=ranks)
    same(found, want, 1e-9)


def test_units_and_hybrid(tmp_path: Path) -> None:
    """Dispersion is the same under hybrid/overlay and in units real."""
    write_data(tmp_path / "test.data", water(2, seed=7))
    tail = "thermo_style custom step pe\nthermo_modify format float %.17g\nrun 0\n"
    plain, added = (
        run_input(tmp_path, head(MODEL, settings=settings) + tail).last["PotEng"]
        for settings in ("", words(BJ))
    )
    hybrid = head(MODEL, settings=words(BJ), units="real")
    hybrid = hybrid.replace("pair_style mdcg", "pair_style hybrid/overlay zero 5.0 mdcg")
    hybrid = hybrid.replace("pair_coeff * *", "pair_coeff * * zero\npair_coeff * * mdcg")
    found = run_input(tmp_path, hybrid + tail).last["PotEng"]
    assert abs(added - plain) > 0.1
    assert found == pytest.approx(added * 23.060549, rel=1e-10)
