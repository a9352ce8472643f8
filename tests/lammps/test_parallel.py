"""Trajectories do not depend on the number of ranks, nor on how the box is divided."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from .lmp import (
    DUMP,
    THERMO,
    Output,
    compare,
    head,
    molecule_in_a_corner,
    nve,
    package,
    reference,
    run_input,
    same,
    water,
    write_data,
)

NVE = nve(every=5)


def trajectory(folder: Path, name: str, ranks: int, steps: int, before: str = "") -> Output:
    text = head(package(name, "float64"), before=before) + NVE + f"run {steps}\n"
    return run_input(folder, text, ranks=ranks)


GRIDS = [
    (2, "processors 2 1 1"),
    (2, "comm_style tiled"),
    (3, "processors 1 3 1"),
    (4, "processors 2 1 2"),
    (4, "comm_style tiled"),
]


@pytest.mark.parametrize("name", ["mace", "nequip", "sevennet", "nequix"])
def test_grids(tmp_path: Path, name: str) -> None:
    write_data(tmp_path / "test.data", water(3, seed=7))
    want = trajectory(tmp_path, name, 1, 10)
    for ranks, before in GRIDS:
        text = head(package(name, "float64"), before=before)
        if "tiled" in before:
            text += "balance 1.0 rcb\n"
        same(run_input(tmp_path, text + NVE + "run 10\n", ranks=ranks), want, 1e-9)


@pytest.mark.parametrize(("name", "all_ranks"), [("mace", (2, 8)), ("nequip", (3, 4))])
def test_hundred_steps(tmp_path: Path, name: str, all_ranks: tuple[int, ...]) -> None:
    """A run of 100 steps ends at the same positions and velocities on any number of ranks."""
    write_data(tmp_path / "test.data", water(2, seed=7))
    last = "write_dump all custom out.dump id xu yu zu vx vy vz modify sort id format float %.17g\n"
    text = head(package(name, "float64")) + NVE + "run 100\n" + last
    want = run_input(tmp_path, text)
    start = water(2, seed=7).positions
    (end,) = want.dump()
    assert np.linalg.norm(end[:, 1:4] - start, axis=1).mean() > 0.1
    for ranks in all_ranks:
        got = run_input(tmp_path, text, ranks=ranks)
        same(got, want, 1e-9)
        assert len(got.runs[0]["Step"]) == 21
        np.testing.assert_allclose(got.dump()[0], end, rtol=0, atol=1e-9 * np.abs(end).max())


@pytest.mark.parametrize("grid", ["4 1 1", "2 2 1"])
@pytest.mark.parametrize("name", ["mace", "nequip"])
def test_empty_ranks(tmp_path: Path, name: str, grid: str) -> None:
    """Results equal ASE's if some ranks have only ghosts or nothing."""
    atoms = molecule_in_a_corner()
    write_data(tmp_path / "test.data", atoms)
    model = package(name, "float64")
    text = head(model, boundary="f f f", before=f"processors {grid}") + THERMO + DUMP + "run 0\n"
    compare(run_input(tmp_path, text, ranks=4), reference(atoms, model), 1e-10)


def test_atoms_without_neighbours_on_one_rank(tmp_path: Path) -> None:
    """Results equal ASE's if one rank has atoms without neighbours."""
    atoms = Atoms("OHHOO", [[1, 1, 1], [1.9, 1, 1], [1, 2, 1], [18, 5, 5], [15, 12, 12]])
    atoms.set_cell([24.0] * 3)
    write_data(tmp_path / "test.data", atoms)
    model = package("mace", "float64")
    text = head(model, boundary="f f f", before="processors 2 1 1") + THERMO + DUMP + "run 0\n"
    compare(run_input(tmp_path, text, ranks=2), reference(atoms, model), 1e-10)


def test_atoms_move_between_ranks(tmp_path: Path) -> None:
    """Atoms that change ranks during load balancing keep the trajectory of one rank."""
    write_data(tmp_path / "test.data", water(3, seed=9))
    moves = "neighbor 0.3 bin\nneigh_modify every 1 delay 0 check yes\n"
    text = head(package("mace", "float64")) + NVE + moves
    want = run_input(tmp_path, text + "run 40\n")
    assert "Neighbor list builds = 0" not in want.text
    balanced = text + "fix b all balance 5 1.0 shift xyz 5 1.0\nrun 40\n"
    same(run_input(tmp_path, balanced, ranks=2), want, 1e-8)
    tiled = text.replace("newton on", "newton on\ncomm_style tiled", 1)
    tiled += "fix b all balance 5 1.0 rcb\nrun 40\n"
    same(run_input(tmp_path, tiled, ranks=3), want, 1e-8)


def test_constant_pressure_triclinic(tmp_path: Path) -> None:
    atoms = water(3, seed=10)
    shear = np.array([[1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [-0.1, 0.2, 1.0]])
    atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    write_data(tmp_path / "test.data", atoms)
    text = head(package("nequip", "float64")) + NVE
    text += "unfix nve\nfix npt all npt temp 300 300 0.05 tri 0 0 0.5\nrun 20\n"
    same(run_input(tmp_path, text, ranks=2), run_input(tmp_path, text), 1e-8)


def test_restart_on_other_ranks(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(3, seed=11))
    model = package("mace", "float64")
    whole = run_input(
        tmp_path, head(model) + NVE + "run 10\nwrite_restart middle\nrun 10\n", ranks=2
    )
    again = head(model).replace("read_data test.data", "read_restart middle")
    settings = NVE.replace("velocity all create 300 4711 loop geom\n", "")
    part = run_input(tmp_path, again + settings + "run 10\n", ranks=3)
    whole.runs = whole.runs[-1:]
    same(part, whole, 1e-9)


def test_rerun_and_minimize(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2, seed=12))
    model = package("nequip", "float64")
    dump = "dump d all custom 5 out.dump id type x y z\ndump_modify d sort id format float %.17g\n"
    first = run_input(tmp_path, head(model) + NVE + dump + "run 10\n")
    again = head(model) + NVE.replace("ke etotal", "") + "rerun out.dump dump x y z\n"
    for ranks in (1, 2):
        found = run_input(tmp_path, again, ranks=ranks)
        np.testing.assert_allclose(
            found.runs[0]["PotEng"], first.runs[0]["PotEng"], rtol=0, atol=1e-9
        )
    text = (
        head(model)
        + "thermo_style custom step pe\nthermo_modify format float %.17g\nminimize 0 1e-3 15 60\n"
    )
    energies = [run_input(tmp_path, text, ranks=ranks).runs[0]["PotEng"] for ranks in (1, 2)]
    assert energies[0][-1] < energies[0][0] - 0.1
    np.testing.assert_allclose(energies[1][-1], energies[0][-1], rtol=0, atol=1e-6)


ENERGY = "thermo_style custom step pe\nthermo_modify format float %.17g\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_restart_names_the_package(tmp_path: Path, ranks: int) -> None:
    """A restart restores packages and settings; others are refused until `pair_style none`."""
    write_data(tmp_path / "test.data", water(2, seed=13))
    model, other = package("mace", "float64"), package("nequip", "float64")
    text = head(model).replace("mdcg\n", "mdcg committee first threads 1\n", 1)
    text = text.replace(f"{model}", f"{model} {other}") + ENERGY + "run 0\nwrite_restart middle\n"
    want = run_input(tmp_path, text, ranks=ranks).last["PotEng"]
    start = head(model).replace("read_data test.data", "read_restart middle")
    start = start.split("pair_style")[0] + ENERGY
    files = f"{model} {other}"
    free = f"pair_style none\npair_style mdcg\npair_coeff * * {other} H O\nrun 0\n"
    again = f"run 0\npair_style mdcg\npair_coeff * * {files} H O\nrun 0\n"
    output = run_input(tmp_path, start + again + free, ranks=ranks)
    found = [run["PotEng"][-1] for run in output.runs]
    np.testing.assert_allclose(found[0], want, rtol=1e-12)
    assert "energy and forces are those of the first" in output.text
    assert "energy and forces are the mean" in output.text
    assert abs(found[1] - want) > 1e-3
    assert abs(found[2] - want) > 1e-3
    for coeff, reason in (
        (f"{other} {model} H O", "is not the package of the restart file, which names "),
        (f"{files} O H", "atom type 1 is O, and the restart file was written with H: name the"),
        (f"{model} H O", "pair_coeff names 1 packages, and the restart file 2: name the same"),
    ):
        text = start + f"pair_coeff * * {coeff}\nrun 0\n"
        refused = run_input(tmp_path, text, ranks=ranks, check=False)
        assert refused.code != 0
        assert refused.text.count(reason) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_restart_names_no_code(tmp_path: Path, ranks: int) -> None:
    """Kernels named in a restart file do not run, and control characters are escaped."""
    write_data(tmp_path / "test.data", water(1))
    (tmp_path / "water.mdcg").symlink_to(package("mace", "float64"))
    text = head(Path("water.mdcg"), settings="kernels generated")
    run_input(tmp_path, text + "run 0\nwrite_restart middle\n", ranks=ranks)
    written = (tmp_path / "middle").read_bytes()
    start = text.split("read_data")[0] + "read_restart middle\n"
    code = written.replace(b"\ngenerated\n", b"\n\x1b[31m/k.m\n")
    assert code != written
    (tmp_path / "middle").write_bytes(code)
    found = run_input(tmp_path, start + "run 0\n", ranks=ranks).text
    reason = (
        r"the restart file names the kernels \x1b[31m/k.m, which are code and run only where the "
        "input names them (pair_style mdcg kernels FILE, then pair_coeff)"
    )
    assert found.count(reason) == 1
    assert re.search(r"kernels: \d+ (cached|made)", found)
    again = "pair_style mdcg kernels mine/k.mdcg-kernels\npair_coeff * * water.mdcg H O\nrun 0\n"
    refused = run_input(tmp_path, start + again, ranks=ranks, check=False)
    assert refused.code != 0
    assert "mine/k.mdcg-kernels: cannot be opened" in refused.text
    (tmp_path / "middle").write_bytes(written.replace(b"water.mdcg", b"\x1b[31m.mdcg"))
    refused = run_input(tmp_path, start + "run 0\n", ranks=ranks, check=False)
    assert refused.code != 0
    assert r"\x1b[31m.mdcg: cannot be opened" in refused.text
    assert "\x1b" not in found + refused.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_labels_and_units(tmp_path: Path, ranks: int) -> None:
    """Elements may be given by type labels, in units metal and real."""
    atoms, model = water(2, seed=14), package("nequip", "float64")
    write_data(tmp_path / "test.data", atoms)
    want = reference(atoms, model)["energy"]
    for units, factor in (("metal", 1.0), ("real", 23.060549)):
        text = head(model, types="labels", units=units)
        text = text.replace("pair_style", "labelmap atom 1 H 2 O\npair_style", 1) + ENERGY
        found = run_input(tmp_path, text + "run 0\n", ranks=ranks).last["PotEng"]
        np.testing.assert_allclose(found, factor * want, rtol=1e-11)
    for labels, reason in (
        ("1 H 2 Ow", "atom type 2 is Ow, which "),
        ("1 H", "pair_coeff has the word labels, and some atom types have no labels: use the"),
        ("", "pair_coeff has the word labels, and atom types have no labels"),
    ):
        line = f"labelmap atom {labels}\n" * bool(labels)
        text = head(model, types="labels").replace("pair_style", line + "pair_style", 1)
        refused = run_input(tmp_path, text, ranks=ranks, check=False)
        assert refused.code != 0
        assert refused.text.count(reason) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_deposit(tmp_path: Path, ranks: int) -> None:
    """Atoms that fix deposit adds during a run get the energy that ASE finds."""
    atoms, model = water(2, seed=15), package("mace", "float64")
    atoms.positions[:, 2] += 1.0
    atoms.set_cell([*atoms.cell.lengths()[:2], 14.0])
    atoms.pbc = (True, True, False)
    write_data(tmp_path / "test.data", atoms)
    text = head(model, boundary="p p f") + NVE + "region top block 0.5 5.5 0.5 5.5 9.0 11.0\n"
    text += "fix d all deposit 3 2 5 4711 region top near 1.0 vz -20 -20\nrun 20\n"
    text += "write_dump all custom out.dump id type x y z modify sort id format float %.17g\n"
    output = run_input(tmp_path, text, ranks=ranks)
    (end,) = output.dump()
    assert len(end) == len(atoms) + 3
    found = Atoms(["HO"[int(kind) - 1] for kind in end[:, 1]], end[:, 2:], pbc=atoms.pbc)
    found.set_cell(atoms.cell)
    np.testing.assert_allclose(output.last["PotEng"], reference(found, model)["energy"], rtol=1e-10)


REPLICAS = {
    "temper": """
variable t world 300.0 310.0
velocity all create 300 4711 loop geom
timestep 0.0003
fix nvt all nvt temp $t $t 0.05
temper 20 5 $t nvt 4711 4712
""",
    "neb": """
thermo 5
timestep 0.001
fix neb all neb 1.0
min_style quickmin
neb 0.0 0.01 10 5 5 final end.txt
""",
}


@pytest.mark.parametrize("command", REPLICAS)
def test_partitions(tmp_path: Path, command: str) -> None:
    """Replicas of NEB and tempering give the same results on one rank each and on two."""
    atoms, model, count = water(2, seed=16), package("mace", "float64"), 2
    write_data(tmp_path / "test.data", atoms)
    end = atoms.copy()
    end.positions[0] += [0.1, 0.05, 0.0]
    if command == "neb":
        count = 3
        lines = [f"{k} {x:.17g} {y:.17g} {z:.17g}" for k, (x, y, z) in enumerate(end.positions, 1)]
        (tmp_path / "end.txt").write_text("\n".join([str(len(end)), *lines]) + "\n")
    text = head(model).replace("map yes", "map yes sort 0 0") + REPLICAS[command]
    tables = []
    for ranks in (1, 2):
        options = ["-partition", f"{count}x{ranks}", "-pscreen", "none", "-plog", "none"]
        output = run_input(tmp_path, text, ranks=count * ranks, options=options)
        rows = [line.split() for line in output.text.splitlines() if re.match(r" *\d+ ", line)]
        tables.append(np.array([row for row in rows if len(row) == len(rows[-1])], dtype=float))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-5, atol=1e-6)
    if command == "temper":
        assert tables[0][:, 0].tolist() == [0, 5, 10, 15, 20]
        return
    for column, image in ((10, atoms), (14, end)):
        want = reference(image, model)["energy"]
        np.testing.assert_allclose(tables[0][0, column], want, rtol=1e-6)
