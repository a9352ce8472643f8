"""mdcg run: dynamics and relaxations, their files, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import units
from ase.build import bulk, molecule
from ase.io import read

from mdcg import MDCGCalculator
from mdcg.cli import _common, simulation
from mdcg.cli.main import main
from mdcg.runtime.cache import cached_models

from ..outputs import ROOT

PACKAGE = str(ROOT / "examples/data/water.mdcg")
COPPER = str(ROOT / "examples/data/copper.mdcg")
CHARGED = str(ROOT / "tests/data/mace_charged_water_float64.mdcg")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder with two structures."""
    monkeypatch.chdir(tmp_path)
    for name, atoms in (
        ("crystal", read(ROOT / "examples/data/ice.xyz")),
        ("h2o", molecule("H2O")),
    ):
        atoms.calc = None
        atoms.write(f"{name}.xyz")
    return tmp_path


def run(*arguments: object) -> int:
    return main(["run", *map(str, arguments)])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"crystal.xyz", "h2o.xyz"}


@pytest.mark.parametrize("form", ["traj", "xyz"])
def test_constant_energy(form: str, folder: Path, capsys: Any) -> None:
    """The files hold the steps that they name, and the energy of the last frame is the model's."""
    assert (
        run(PACKAGE, "crystal.xyz", "--md", "nve", "--steps", 25, "-o", "out", "--format", form)
        == 0
    )
    said = capsys.readouterr()
    assert said.out.startswith("25 steps of 0.5 fs in ")
    assert said.out.endswith(f"wrote out.{form}, out.log, out.png\n")
    assert names(folder) == {f"out.{form}", "out.log", "out.png"}
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    log = np.loadtxt("out.log")
    assert log[:, 0].tolist() == [0, 10, 20, 25]
    assert log[:, 1] == pytest.approx(5e-4 * log[:, 0])
    assert log[:, 4] == pytest.approx(log[:, 2] + log[:, 3])
    assert np.ptp(log[:, 4]) < 0.1 * np.ptp(log[:, 3])
    frames = read(f"out.{form}", ":")
    assert len(frames) == 4
    for frame, row in zip(frames, log, strict=True):
        assert frame.get_kinetic_energy() == pytest.approx(row[3], abs=1e-6)
        assert frame.get_potential_energy() == pytest.approx(row[2], abs=1e-6)
        fresh = frame.copy()
        fresh.calc = MDCGCalculator(PACKAGE)
        assert fresh.get_potential_energy() == pytest.approx(row[2], abs=1e-5)
    assert "step          time_ps     potential_eV" in Path("out.log").read_text()


def test_seeds(folder: Path) -> None:
    """A seed gives the same numbers again, another seed others."""
    found = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ("--md", "nvt", "--temperature", 200, "--steps", 4, "--interval", 2)
        assert run(PACKAGE, "crystal.xyz", *options, "--seed", seed, "-o", name) == 0
        found[name] = np.loadtxt(f"{name}.log")
    assert np.array_equal(found["a"], found["b"])
    assert not np.array_equal(found["a"], found["c"])


@pytest.mark.slow
def test_mean_temperature(folder: Path) -> None:
    """The mean is that of the canonical ensemble, within five standard errors.

    The kinetic energy of f degrees of freedom has the relative variance 2/f. Its memory is at most
    twice the time of the thermostat, which acts on half of the energy, so that a mean over t is one
    over t / (4 tau) independent values.
    """
    atoms = bulk("Cu", cubic=True, a=3.68) * (2, 2, 2)
    atoms.write("copper.xyz")
    options = ("--timestep", 4, "--steps", 2000, "--interval", 5, "--seed", 3)
    assert run(COPPER, "copper.xyz", "--md", "nvt", "--temperature", 450, *options) == 0
    log = np.loadtxt("copper.log")
    kept = log[log[:, 1] > 2.0]  # the crystal starts without its half of potential energy
    tau, total = 1e-3 * simulation._THERMOSTAT_FS, np.ptp(kept[:, 1])
    error = 450 * np.sqrt(2 / (3 * len(atoms)) * 4 * tau / total)
    assert 5 * error < 100  # the default temperature, 300 K, is told apart
    assert abs(kept[:, 5].mean() - 450) < 5 * error
    spread = 450 * np.sqrt(2 / (3 * len(atoms)))
    assert 0.6 * spread < kept[:, 5].std() < 1.6 * spread


@pytest.mark.slow
def test_mean_pressure(folder: Path) -> None:
    """The mean over time is the pressure asked for, within five standard errors of blocks."""
    atoms = bulk("Cu", cubic=True, a=3.68) * (2, 2, 2)
    atoms.write("copper.xyz")
    options = ("--timestep", 4, "--steps", 2000, "--interval", 5, "--temperature", 200)
    given = ("--md", "npt", "--pressure", 30000, *options)
    assert run(COPPER, "copper.xyz", *given) == 0
    log = np.loadtxt("copper.log")
    kept = log[log[:, 1] > 2.5]
    blocks = [block[:, 6].mean() for block in np.array_split(kept, 10)]
    error = np.std(blocks, ddof=1) / np.sqrt(len(blocks))
    assert error < 3000  # the default pressure, 0, is told apart
    assert abs(kept[:, 6].mean() - 30000) < 5 * error
    assert 0.9 < kept[:, 7].mean() / atoms.get_volume() < 0.995  # 3 GPa compress the crystal


def test_log_and_plot_carry_units(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    labels, save = [], Figure.savefig

    def keep(self: Figure, *args: Any, **options: Any) -> None:
        labels.append([axes.get_ylabel() for axes in self.axes] + [self.axes[-1].get_xlabel()])
        assert all(len(line.get_xdata()) > 1 for axes in self.axes for line in axes.lines)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    energies = ["time_ps", "potential_eV", "kinetic_eV", "total_eV", "temperature_K"]
    cell, of_cell = ["pressure_bar", "volume_A3"], ["pressure (bar)", "volume (Å³)"]
    for arguments, columns, shown in (
        (["--md", "nve"], energies, ["energy (eV)", "temperature (K)", "time (ps)"]),
        (["--md", "npt"], energies + cell,
         ["energy (eV)", "temperature (K)", *of_cell, "time (ps)"]),
        (["--relax", "--cell", "--fmax", 1e-5], ["potential_eV", "fmax_eV/A", *cell],
         ["potential energy (eV)", "largest force (eV/Å)", *of_cell, "step"]),
    ):  # fmt: skip
        run(PACKAGE, "crystal.xyz", *arguments, "--steps", 4, "--interval", 2, "--overwrite")
        header = [line for line in Path("crystal.log").read_text().splitlines() if line[0] == "#"]
        assert header[-1].split() == ["#", "step", *columns]
        assert labels.pop() == shown
        assert Path("crystal.png").read_bytes().startswith(b"\x89PNG")
        assert np.loadtxt("crystal.log").shape[1] == 1 + len(columns)


def test_inputs(folder: Path) -> None:
    """Charge and spin are those of the command, in place of those of the file."""
    atoms = read("h2o.xyz")
    atoms.info["charge"] = 2
    atoms.write("ion.xyz")
    energies = {}
    for charge, spin in ((2, 1), (-1, 2)):
        fresh = molecule("H2O")
        fresh.info.update(charge=charge, spin=spin)
        energies[charge, spin] = MDCGCalculator(CHARGED).get_potential_energy(fresh)
    assert abs(energies[2, 1] - energies[-1, 2]) > 1e-3
    for number, (given, want) in enumerate(
        (
            ((), (2, 1)),
            (("--charge", -1, "--spin", 2), (-1, 2)),
            (("--input", "total_charge=-1", "--input", "spin = 2"), (-1, 2)),
        )
    ):
        output = f"out{number}"
        options = ("--md", "nve", "--steps", 1, "--interval", 1, "-o", output)
        assert run(CHARGED, "ion.xyz", *options, *given) == 0
        assert np.loadtxt(f"{output}.log")[0, 2] == pytest.approx(energies[want], abs=1e-6)
        said = f"# inputs: total_charge = {want[0]}, total_spin = {want[1]}\n"
        assert said in Path(f"{output}.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CHARGED], f"h2o.xyz states no total_charge, which {CHARGED} reads and has no default for:"
                    " give --charge, a whole number from -2 to 2\n"),
        ([CHARGED, "--charge", 3], "--charge is 3, expected a whole number from -2 to 2\n"),
        ([CHARGED, "--charge", 0, "--spin", 0.5], "--spin is 0.5, expected a whole number "),
        ([CHARGED, "--charge", 0, "--spin", 0], "--spin is 0, expected a whole number from 1 on\n"),
        ([CHARGED, "--charge", 0, "--input", "total_charge=1"],
         f"--charge and --input total_charge are one input of {CHARGED}: give one\n"),
        ([CHARGED, "--charge", 0, "--input", "field=1"],
         f"--input field is given, but {CHARGED} reads total_charge, total_spin of a structure: "),
        ([PACKAGE, "--charge", 0], f"--charge is given, but {PACKAGE} reads nothing but the atoms"),
        ([PACKAGE, "--spin", 1], f"--spin is given, but {PACKAGE} reads nothing but the atoms of"),
    ],
)  # fmt: skip
def test_refusals_of_inputs(arguments: list[Any], message: str, folder: Path, capsys: Any) -> None:
    model, *given = arguments
    assert run(model, "h2o.xyz", "--relax", *given) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mdcg run: {message}")
    assert said.count("\n") == 1
    assert not names(folder)


def test_two_charges_of_a_structure(folder: Path, capsys: Any) -> None:
    atoms = read("h2o.xyz")
    atoms.info.update(charge=1, total_charge=2)
    atoms.write("two.xyz")
    assert run(CHARGED, "two.xyz", "--relax") == 2
    said = "mdcg run: two.xyz: charge of the structure is 1 and total_charge is 2, which are one"
    assert capsys.readouterr().err.startswith(said)


def test_velocities_of_the_structure_are_kept(folder: Path) -> None:
    assert run(PACKAGE, "crystal.xyz", "--md", "nve", "--steps", 10, "-o", "one") == 0
    assert run(PACKAGE, "one.traj", "--md", "nve", "--steps", 10, "-o", "two") == 0
    assert "velocities of the structure" in Path("two.log").read_text()
    first, then = np.loadtxt("one.log"), np.loadtxt("two.log")
    assert then[0, 2:] == pytest.approx(first[-1, 2:], rel=1e-6)


def test_pressures_of_the_log(folder: Path) -> None:
    """Pressure and volume of the log are those of the frames."""
    arguments = ("--md", "npt", "--pressure", 100, "--steps", 10, "-o", "npt")
    assert run(PACKAGE, "crystal.xyz", *arguments) == 0
    log, last = np.loadtxt("npt.log"), read("npt.traj")
    assert log.shape == (2, 8)
    assert log[1, 7] == pytest.approx(last.get_volume())
    assert log[1, 7] != log[0, 7]
    stress = last.get_stress(include_ideal_gas=True)
    assert log[1, 6] == pytest.approx(-stress[:3].mean() / units.bar, rel=1e-6)


def test_relaxation(folder: Path, capsys: Any) -> None:
    assert run(PACKAGE, "h2o.xyz", "--relax", "--fmax", 0.01, "-o", "out") == 0
    assert capsys.readouterr().out.startswith("relaxed in ")
    last = read("out.traj")
    assert np.linalg.norm(last.get_forces(), axis=1).max() <= 0.01
    assert names(folder) == {"out.traj", "out.log", "out.png"}


def test_relaxation_of_a_cell(folder: Path) -> None:
    atoms = read("crystal.xyz")
    atoms.set_cell(atoms.cell * 1.03, scale_atoms=True)
    atoms.write("wide.xyz")
    arguments = ("--relax", "--cell", "--pressure", 2000, "--fmax", 0.01)
    assert run(PACKAGE, "wide.xyz", *arguments) == 0
    pressure, volume = np.loadtxt("wide.log")[-1, 3:]
    assert volume < atoms.get_volume()
    assert pressure == pytest.approx(2000, abs=300)


def test_a_relaxation_that_needs_more_steps(folder: Path, capsys: Any) -> None:
    assert run(PACKAGE, "h2o.xyz", "--relax", "--fmax", 1e-4, "--steps", 1) == 1
    log = capsys.readouterr().err
    assert "h2o.xyz is not relaxed after 1 steps (largest force " in log
    assert names(folder) == {"h2o.traj", "h2o.log", "h2o.png"}


def test_a_checkpoint_is_converted_once(
    folder: Path, water: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = folder / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("MDCG_CACHE_DIR", str(cache))
    arguments = ("h2o.xyz", "--md", "nve", "--steps", 2, "--overwrite")
    assert run(water, *arguments) == 0
    assert f"mdcg is converting {water.name} and comparing it" in capsys.readouterr().err
    (package,) = cached_models()
    written = package.stat().st_mtime_ns
    assert run(water, *arguments) == 0
    assert f"{water.name} was converted before: {package}" in capsys.readouterr().err
    assert package.stat().st_mtime_ns == written
    assert run(water, *arguments, "--dtype", "float32") == 0
    assert len(cached_models()) == 2
    capsys.readouterr()
    assert main(["cache"]) == 0
    listing = capsys.readouterr().out
    assert "2 converted models, " in listing
    assert package.name in listing
    assert main(["cache", "clear"]) == 0
    assert not cached_models()


def test_a_cache_that_keeps_no_package(
    folder: Path, water: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that others could have written is not used, either."""
    (folder / "file").touch()
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    for name, reason in (
        ("file", f"the kernel cache {folder}/file cannot be written"),
        ("open", f"kernels in {folder}/open are not used, because other users can write it"),
    ):
        monkeypatch.setenv("MDCG_CACHE_DIR", str(folder / name))
        assert run(water, "h2o.xyz", "--relax") == 2
        said = f"{water.name} cannot be converted into the cache: {reason}"
        assert said in capsys.readouterr().err
        assert names(folder) == {"file", "open", water.name}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.mdcg", "h2o.xyz", "--relax"], "no.mdcg does not exist: convert one"),
        (["no.model", "h2o.xyz", "--relax"], "no.model: no such file"),
        ([PACKAGE, "no.xyz", "--relax"], "no.xyz: no such file"),
        ([PACKAGE, "text.xyz", "--relax"], "text.xyz cannot be read as a structure ("),
        ([PACKAGE, "copper.xyz", "--md", "nvt"],
         f"copper.xyz has Cu, which {PACKAGE} lacks, expected any of H O: give a model of all"),
        ([PACKAGE, "h2o.xyz", "--md", "npt"], "h2o.xyz is not periodic in three directions"),
        ([PACKAGE, "h2o.xyz", "--relax", "--cell"], "h2o.xyz has no cell of three vectors"),
        ([PACKAGE, "h2o.xyz", "--md", "nve", "--format", "xyz"], "h2o.xyz is an input, which is"),
        ([PACKAGE, "h2o.xyz", "--relax", "-o", "no/out"], "the folder of no/out does not exist"),
        ([PACKAGE, "h2o.xyz", "--relax", "-o", "."], "--output is ., a folder"),
        ([PACKAGE, "h2o.xyz", "--relax", "--skin", "-1"], "skin is -1.0, expected a length"),
        ([PACKAGE, "h2o.xyz", "--relax", "--dtype", "float32"], "float32"),
        ([PACKAGE, "h2o.xyz", "--relax", "--head", "PBE"], "'PBE'"),
        ([PACKAGE, "h2o.xyz", "--relax", "--device", "tpu"], "device is 'tpu', expected 'cpu'"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], message: str, folder: Path, capsys: Any) -> None:
    """Each is one sentence, and nothing is written."""
    Path("text.xyz").write_text("no structure\n")
    bulk("Cu").write("copper.xyz")
    before = names(folder)
    assert run(*arguments) in (2, 5)
    captured = capsys.readouterr()
    assert captured.err.startswith("mdcg run: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert names(folder) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --md --relax is required"),
        (["--md", "nve", "--relax"], "not allowed with argument --md"),
        (["--relax", "--temperature", "300"], "--temperature does not apply to --relax"),
        (["--md", "nvt", "--fmax", "0.1"], "--fmax does not apply to --md"),
        (["--md", "nvt", "--pressure", "1"], "--pressure is for --md npt and for --relax --cell"),
        (["--md", "nvt", "--steps", "0"], "'0' is not a positive whole number"),
        (["--md", "nvt", "--temperature", "-3"], "'-3' is not a positive number"),
        (["--md", "npt", "--pressure", "much"], "'much' is not a finite number"),
        (["--md", "npt", "--pressure", "nan"], "'nan' is not a finite number"),
        (["--md", "nve", "--seed", "-1"], "'-1' is not a whole number from 0 on"),
        (["--relax", "--charge", "one"], "'one' is not a finite number"),
        (["--relax", "--input", "charge"], "'charge' is not NAME=VALUE"),
        (["--relax", "--input", "=1"], "'=1' is not NAME=VALUE"),
    ],
)
def test_usage(arguments: list[str], message: str, folder: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        run(PACKAGE, "h2o.xyz", *arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


@pytest.mark.parametrize("suffix", ["traj", "log", "png"])
def test_nothing_is_overwritten(suffix: str, folder: Path, capsys: Any) -> None:
    file = Path(f"h2o.{suffix}")
    file.write_text("precious")
    assert run(PACKAGE, "h2o.xyz", "--relax") == 2
    said = f"mdcg run: {file} exists already: name another --output or use --overwrite\n"
    assert capsys.readouterr().err == said
    assert names(folder) == {file.name}
    assert file.read_text() == "precious"
    assert run(PACKAGE, "h2o.xyz", "--relax", "--overwrite") == 0
    assert file.read_bytes() != b"precious"


def test_files_stay_until_the_first_energy(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("h2o.log").write_text("precious")

    def fail(self: Any, *args: Any) -> None:
        raise simulation.CalculationFailed("nan")

    monkeypatch.setattr(MDCGCalculator, "calculate", fail)
    assert run(PACKAGE, "h2o.xyz", "--relax", "--overwrite") == 1
    assert "no energy for h2o.xyz (nan): nothing was written" in capsys.readouterr().err
    assert names(folder) == {"h2o.log"}
    assert Path("h2o.log").read_text() == "precious"


def test_a_structure_that_falls_apart(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before it are kept."""
    calculate, calls = MDCGCalculator.calculate, []

    def fail_late(self: Any, *args: Any) -> None:
        calls.append(1)
        if len(calls) > 15:
            raise simulation.CalculationFailed("nan")
        calculate(self, *args)

    monkeypatch.setattr(MDCGCalculator, "calculate", fail_late)
    assert run(PACKAGE, "h2o.xyz", "--md", "nve") == 1
    log = capsys.readouterr().err
    assert "no energy for h2o.xyz (nan): h2o.traj, h2o.log, h2o.png hold the steps until" in log
    assert len(read("h2o.traj", ":")) == len(np.loadtxt("h2o.log")) == 2
    assert names(folder) == {"h2o.traj", "h2o.log", "h2o.png"}


def test_atoms_that_fly_off(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A structure that becomes unusable during the run is no wrong use of the command."""
    calculate, calls = MDCGCalculator.calculate, []

    def move_late(self: Any, atoms: Any = None, *args: Any) -> None:
        calls.append(1)
        if len(calls) > 3:
            atoms.positions[0] = np.nan
        calculate(self, atoms, *args)

    monkeypatch.setattr(MDCGCalculator, "calculate", move_late)
    assert run(PACKAGE, "h2o.xyz", "--relax", "--fmax", "1e-9") == 1
    log = capsys.readouterr().err
    assert "no energy for h2o.xyz (" in log
    assert "a shorter --timestep" not in log


def test_a_structure_that_explodes(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "_HOTTEST", 1.0)
    assert run(PACKAGE, "h2o.xyz", "--md", "nve", "--steps", "5") == 1
    assert "h2o.xyz fell apart: its temperature reached" in capsys.readouterr().err
    assert names(folder) == {"h2o.traj", "h2o.log", "h2o.png"}


def test_no_matplotlib(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdcg.cli.run.find_spec", lambda name: None)
    assert run(PACKAGE, "h2o.xyz", "--relax") == 5
    said = "mdcg run: mdcg run needs matplotlib, which is not installed: pip install 'matplotlib"
    assert capsys.readouterr().err.startswith(said)
    assert not names(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_between_steps(number: signal.Signals, folder: Path) -> None:
    arguments = [PACKAGE, "crystal.xyz", "--md", "nve", "--steps", "1000000", "--interval", "7"]
    # what was started in the background of a shell ignores SIGINT, and so do its children
    command = ["env", "--default-signal=INT", sys.executable, "-m", "mdcg", "run", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        for _ in range(3000):
            if Path("crystal.log").is_file() and Path("crystal.log").read_text().count("\n") > 6:
                break
            time.sleep(0.1)
        os.kill(job.pid, number)
        try:
            log = job.communicate(timeout=300)[1]
        finally:
            job.kill()  # leaving the block would wait for it
    assert job.returncode == 128 + number
    rows = np.loadtxt("crystal.log")
    frames = read("crystal.traj", ":")
    assert len(frames) == len(rows)
    assert frames[-1].get_potential_energy() == pytest.approx(rows[-1, 2], abs=1e-6)
    said = f"mdcg run: stopped by {number.name} after step {rows[-1, 0]:.0f}: crystal.traj, crystal"
    assert log.splitlines()[-1].startswith(said)
    assert names(folder) == {"crystal.traj", "crystal.log", "crystal.png"}


class Terminal:
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_progress(with_tqdm: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals show steps, energy and temperature, with tqdm or without it."""
    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(PACKAGE, "h2o.xyz", "--md", "nve", "--steps", 20) == 0
    last = terminal.text.split("\r")[-1]
    assert "20/20" in last
    assert " eV, " in last
    assert " K" in last
    assert "\\u000d" not in terminal.text
    assert isinstance(_common.progress_bar(1, "step"), _common._PlainProgress) == (not with_tqdm)
