"""Committees: the numbers of ASE's committee, and what selects structures by them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator

from .lmp import (
    DUMP,
    EXAMPLES,
    THERMO,
    compare,
    environment,
    executable,
    head,
    launcher,
    package,
    run_input,
    thermo_tables,
    water,
    write_data,
)

MEMBERS = (package("mace", "float64"), package("nequip", "float64"), package("mace", "float64"))
KCAL = 23.060549  # per eV
DEVIATIONS = """
compute c all pair mdcg
fix std all pair 1 mdcg forces_std 1
thermo_style custom step pe etotal vol c_esum c_p[*] c_vsum[*] c_c[*]
thermo_modify format float %.17g
dump s all custom 1 std.dump id f_std
dump_modify s sort id format float %.17g
"""


def of_committee(atoms: Atoms) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the means, as `compare` wants them, and the deviations of ASE's committee."""
    atoms = atoms.copy()
    atoms.calc = MDCGCalculator(list(MEMBERS), threads=1, skin=1.0)
    means = {
        "energy": atoms.get_potential_energy(),
        "energies": atoms.get_potential_energies(),
        "forces": atoms.get_forces(),
        "virial": -atoms.get_stress()[[0, 1, 2, 5, 4, 3]] * atoms.get_volume(),
    }
    return means, atoms.calc.results


def text_of(files: Sequence[Path], style: str = "", units: str = "metal") -> str:
    text = head(MEMBERS[0], units=units).replace("pair_style mdcg", f"pair_style mdcg {style}")
    return text.replace(str(MEMBERS[0]), " ".join(map(str, files)))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_numbers_of_ase(tmp_path: Path, ranks: int) -> None:
    """Energies, forces and deviations equal ASE's, also for `committee first` and one package."""
    atoms = water(3, seed=31)
    write_data(tmp_path / "test.data", atoms)
    files = " ".join(map(str, MEMBERS))
    text = text_of(MEMBERS) + THERMO + DEVIATIONS + DUMP + "run 0\nundump d\n"
    text += f"pair_style mdcg committee first\npair_coeff * * {files} H O\nrun 0\n"
    text += f"pair_style mdcg\npair_coeff * * {MEMBERS[1]} H O\nundump s\nunfix std\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks)
    means, results = of_committee(atoms)
    force = np.linalg.norm(results["forces_std"], axis=1)
    want = [results["energy_std"] / len(atoms), force.max(), force.mean()]
    assert min(want) > 1e-4
    for run in output.runs[:2]:
        found = [run[f"c_c[{k}]"][-1] for k in (3, 4, 5)]
        np.testing.assert_allclose(found, want, rtol=1e-9)
    np.testing.assert_allclose(output.dump("std.dump")[0][:, 1], force, rtol=0, atol=1e-9)
    assert [output.runs[2][f"c_c[{k}]"][-1] for k in (3, 4, 5)] == [0, 0, 0]
    for run, model in ((output.runs[1], MEMBERS[0]), (output.runs[2], MEMBERS[1])):
        alone = MDCGCalculator(model, threads=1).get_potential_energy(atoms)
        np.testing.assert_allclose(run["PotEng"][-1], alone, rtol=1e-11)
    output.runs = output.runs[:1]
    compare(output, means, 1e-10)


@pytest.mark.parametrize("ranks", [1, 2])
def test_trajectory(tmp_path: Path, ranks: int) -> None:
    """The mean conserves energy, `first` follows member 1, and dumped deviations are right."""
    write_data(tmp_path / "test.data", water(2, seed=32))
    steps = """
neighbor 0.3 bin
neigh_modify every 1 delay 0 check yes
compute c all pair mdcg
thermo_style custom step pe etotal c_c[*]
thermo_modify format float %.17g
velocity all create 600 4711 loop geom
timestep 0.5
fix nve all nve
"""
    ends = {"mean": "thermo 1\nrun 20\n", "first": "thermo 10\n"}
    ends["first"] += "fix s all pair 5 mdcg forces_std 1\n"
    dump = "dump d all custom 5 out.dump id x f_s\ndump_modify d sort id format float %.17g\n"
    dump += "variable certain equal c_c[4]<0.0\ndump_modify d skip v_certain\n"
    never = 'variable no equal "c_c[4] > 0.0"\ndump n all custom 5 no.dump id\n'
    dump += never + "dump_modify n skip v_no\n"
    ends["first"] += dump + "run 20\n"
    two = MEMBERS[:2]
    runs = {}
    for style, end in ends.items():
        text = text_of(two, f"committee {style}", "real") + steps + end
        runs[style] = run_input(tmp_path, text, ranks=ranks)
    mean = runs["mean"].runs[0]
    assert np.ptp(mean["TotEng"]) < 0.05 * np.ptp(mean["PotEng"])  # total energy is conserved
    alone = run_input(
        tmp_path, text_of(two[:1], "", "real") + steps + "thermo 10\nrun 20\n", ranks=ranks
    )
    np.testing.assert_allclose(runs["first"].runs[0]["PotEng"], alone.runs[0]["PotEng"], rtol=1e-10)
    largest = [frame[:, 2].max() for frame in runs["first"].dump()]
    np.testing.assert_allclose(largest[::2], runs["first"].runs[0]["c_c[4]"], rtol=1e-9)
    assert len(largest) == 5
    assert not (tmp_path / "no.dump").read_text()  # no step exceeds the limit
    assert np.ptp(largest) > 1e-3 * KCAL


REFUSED = {
    "cutoff": (
        f"pair_coeff * * {MEMBERS[0]} {EXAMPLES / 'data' / 'water.mdcg'} H O",
        "expected a committee of packages with one cutoff",
    ),
    "type": (f"pair_coeff * * {MEMBERS[0]} {MEMBERS[1]} H Cu", "atom type 2 is Cu, which"),
    "file": (f"pair_coeff * * {MEMBERS[0]} none.mdcg H O", "none.mdcg: cannot be opened"),
    "one name": (f"pair_coeff * * {MEMBERS[0]} {MEMBERS[1]} H", "got 1 type names"),
    "word": ("pair_style mdcg committee all", "committee is all, expected mean, or first"),
    "single package": (
        f"pair_coeff * * {MEMBERS[0]} H O\nfix s all pair 1 mdcg forces_std 1",
        "fix pair reads forces_std, which a single package does not have",
    ),
    "not evaluated": (
        f"pair_style mdcg committee first\npair_coeff * * {MEMBERS[0]} {MEMBERS[1]} H O\n"
        "fix s all pair 1 mdcg forces_std 0\nthermo 5\nrun 5",
        "of a step at which the first package alone was evaluated",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    """Wrong options of a committee end the run on two ranks with one sentence."""
    write_data(tmp_path / "test.data", water(2))
    commands, reason = REFUSED[case]
    text = head(MEMBERS[0]) + commands + "\nrun 0\n"
    output = run_input(tmp_path, text, ranks=2, check=False)
    assert output.code != 0
    assert output.text.count(reason) == 1


def test_member_that_fails(tmp_path: Path) -> None:
    """An error in one member names its package and ends all ranks."""
    atoms = water(3)
    atoms.positions[3] = atoms.positions[0]
    write_data(tmp_path / "test.data", atoms)
    output = run_input(tmp_path, text_of(MEMBERS[:2]) + "run 0\n", ranks=2, check=False)
    assert output.code != 0
    assert f"pair_style mdcg: {MEMBERS[0]}: atoms " in output.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_active_learning(tmp_path: Path, ranks: int) -> None:
    """The example stops where the packages disagree, and writes that structure."""
    (tmp_path / "output").mkdir()
    for name in ("in.active_learning", "data/water192.data"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / name, tmp_path / name)
    command = [*launcher(ranks), str(executable()), "-in", "in.active_learning", "-log", "none"]
    command += ["-var", "members", f"{MEMBERS[0]} {MEMBERS[1]}"]
    for limit, stops in (("1e3", False), ("1e-3", True)):
        done = subprocess.run(
            [*command, "-var", "limit", limit, "-var", "steps", "20"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = thermo_tables(done.stdout)
        selected = tmp_path / "output" / "selected.xyz"
        assert (run["Step"][-1] < 20) == stops == selected.is_file()
    lines = selected.read_text().splitlines()
    assert lines[0] == "192"
