"""The examples in Python, and what the quickstart says where something is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE
from ase.units import invcm
from ase.vibrations import VibrationsData

from mdcg import MDCGCalculator
from mdcg.cli.patch import main as mdcg_patch
from mdcg.patch import load_model
from mdcg.patch._frameworks import import_mace

from ..outputs import DATA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart.sh"


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patched") / "water.model"
    for output in (path, path.with_suffix(".mdcg")):
        assert mdcg_patch([str(EXAMPLES / "data" / "water.model"), "-o", str(output), "-q"]) == 0
    return path


def models(patched: Path) -> list[str]:
    return ["--patched", str(patched), "--package", str(patched.with_suffix(".mdcg"))]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def water_md() -> Iterator[ModuleType]:
    for needed in ("matplotlib", "tqdm"):
        pytest.importorskip(needed, reason="the examples need mdcg[mace,bench]")
    yield example("water_md")
    sys.modules.pop("water_md", None)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the figures that an example saves."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    found: list[Any] = []
    save = figure.savefig

    def keep(self: Any, *arguments: Any, **options: Any) -> None:
        save(self, *arguments, **options)
        found.append(self)

    monkeypatch.setattr(figure, "savefig", keep)
    return found


def test_water_md(
    water_md: ModuleType,
    patched: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    figures: list[Any],
) -> None:
    frames = []
    for name in ("first", "second"):
        arguments = [*models(patched), "--out", str(tmp_path / name), "--steps", "7"]
        water_md.main([*arguments, "--every", "3", "--no-progress"])
        frames.append(ase.io.read(tmp_path / name / "water.traj", ":"))
    printed = capsys.readouterr().out
    columns = ("original", "patched", "engine")
    assert [line.split() for line in printed.splitlines()].count(list(columns)) == 2
    for part in ("192 atoms, 7 steps of 0.5 fs", "times as fast", "meV/atom/ps", "ase gui"):
        assert part in printed
    assert (tmp_path / "first" / "water_rdf.png").read_bytes().startswith(b"\x89PNG")
    # Curves that coincide differ in line style or marker.
    for axes in figures[0].axes:
        shown = {(line.get_linestyle(), line.get_marker()) for line in axes.lines[:3]}
        assert shown == {("-", "None"), ("None", "o"), ("None", "x")}
    assert "7 steps of 0.5 fs, " in figures[0].get_suptitle()
    assert not re.search(r"\b1 threads|\dx\b", figures[0].get_suptitle())
    results = json.loads((tmp_path / "first" / "water.json").read_text())
    for name in columns[1:]:
        assert results[name]["max_force_difference"] < 1e-10
        assert results[name]["max_distance"] < 1e-10
        ratio = results[name]["speedup"]
        assert ratio is None or ratio > 0  # no speedup is given on a busy machine
    assert results["original"]["ms_per_step"] > 0
    assert len(frames[0]) == 3
    for one, other in zip(*frames, strict=True):
        assert np.isfinite(one.get_potential_energy())
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.get_forces(), other.get_forces())


def test_water_md_refuses(water_md: ModuleType, patched: Path, tmp_path: Path) -> None:
    original = str(EXAMPLES / "data" / "water.model")
    out = ["--out", str(tmp_path), "--no-progress", "--steps", "1"]
    with pytest.raises(SystemExit, match="before mdcg-patch"):
        water_md.main([*models(patched), "--original", str(patched), *out])
    with pytest.raises(SystemExit, match="expected a package: mdcg-patch IN"):
        water_md.main([*models(patched), "--package", original, *out])
    for wrong in (
        ["--patched", str(tmp_path / "nothing.model")],
        [*models(patched), "--steps", "0"],
    ):
        with pytest.raises(SystemExit) as stopped:
            water_md.main(wrong)
        assert stopped.value.code == 2


def test_radial_distribution_of_an_ideal_lattice(water_md: ModuleType) -> None:
    """The RDF of a cubic lattice of oxygen atoms has six neighbours in the first shell."""
    spacing = 3.2
    atoms = ase.Atoms("O", cell=[spacing] * 3, pbc=True) * (4, 4, 4)
    r, g = water_md.oxygen_rdf([atoms, atoms])
    near = r < 1.2 * spacing
    density = 64 / atoms.get_volume()
    shell = 4 * np.pi * r**2 * (r[1] - r[0])
    assert (g * shell * density)[near].sum() == pytest.approx(6.0, rel=0.02)


def test_start_is_seeded(water_md: ModuleType) -> None:
    water = ase.io.read(EXAMPLES / "data" / "water192.xyz")
    temperatures = []
    for seed in (1, 1, 2):
        water_md.heat_up(water, 300.0, seed)
        temperatures.append(water.get_temperature())
        np.testing.assert_allclose(water.get_momenta().sum(axis=0), 0.0, atol=1e-10)
    assert temperatures[0] == temperatures[1] != temperatures[2]
    assert all(abs(each - 300.0) < 60.0 for each in temperatures)


def numbers_after(label: str, printed: str) -> np.ndarray:
    (line,) = re.findall(rf"^{label}:? +(-?\d.*)$", printed, re.MULTILINE)
    return np.array([float(word) for word in line.split() if word not in ("eV", "eV/Å^2")])


def test_phonons(capsys: pytest.CaptureFixture[str]) -> None:
    """Phonon frequencies equal those of MACE's exact second derivatives."""
    import_mace()
    from mace.calculators import MACECalculator

    example("phonons").main([])
    printed = capsys.readouterr().out
    crystal = ase.io.read(EXAMPLES / "data" / "ice.xyz")
    mace = MACECalculator(
        models=[load_model(EXAMPLES / "data" / "water.model")], device="cpu", compute_hessian=True
    )
    matrix = mace.get_hessian(crystal).reshape(18, 18)
    expected = VibrationsData.from_2d(crystal, matrix).get_frequencies()[3:].real
    at_zero = numbers_after("Hessian", printed)
    assert np.abs(at_zero[:3]).max() < 0.5
    assert expected.min() > 300.0
    np.testing.assert_allclose(at_zero[3:], expected, rtol=0, atol=0.2)  # left by the relaxation
    np.testing.assert_allclose(numbers_after("G", printed), at_zero, rtol=0, atol=0.5)
    # Bands of molecules are nearly flat, and a stable crystal has no imaginary frequencies.
    lowest = numbers_after("N", printed)[0]
    assert lowest > 10.0
    zero_point = numbers_after("zero-point energy", printed)
    assert zero_point == pytest.approx(0.5 * expected.sum() * invcm, rel=0.1)
    assert numbers_after("force constants of the whole crystal, .*", printed) < 1e-4


def test_neb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NEB with one calculator for each image, or in batches, gives the checkpoint's energies."""
    found = []
    for options in (["--single"], []):
        example("neb").main(["--out", str(tmp_path), *options])
        printed = capsys.readouterr().out
        found.append([numbers_after(f"image {k}", printed)[0] for k in range(7)])
        barrier = numbers_after("barrier", printed)[0]
        assert barrier == pytest.approx(max(found[-1]) - found[-1][0], abs=1.1e-5)
        assert numbers_after("directions along which the energy falls", printed) == 1
    np.testing.assert_allclose(*found, rtol=0, atol=1.1e-5)  # the last digit printed
    assert barrier > 0.1
    assert found[0][0] == pytest.approx(found[0][-1], abs=1e-4)
    images = ase.io.read(tmp_path / "neb.traj", ":")
    checkpoint = load_model(DATA / "mace_alloy_density_e3nn044.model")
    original = MDCGCalculator(checkpoint, dtype="float64")
    energies = np.array([original.get_potential_energy(image) for image in images])
    np.testing.assert_allclose(energies - energies[0], found[-1], rtol=0, atol=1e-5)
    top = images[int(energies.argmax())]
    assert np.linalg.norm(original.get_forces(top), axis=1).max() < 0.02


def test_batches_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch for each step has the images that moved, and no image is evaluated alone."""
    neb = example("neb")
    calculator = MDCGCalculator(EXAMPLES / "data" / "copper.mdcg")
    crystal = bulk("Cu", a=3.68, cubic=True) * (2, 2, 2)
    ends = crystal[1:], crystal[1:]
    ends[1].positions[0] = crystal.positions[0]
    bands = []
    for batch in (True, False):
        images = [ends[0].copy(), *(ends[0].copy() for _ in range(3)), ends[1].copy()]
        settings = {"climb": True, "method": "improvedtangent"}
        bands.append(
            neb.BatchNEB(images, calculator, **settings)
            if batch
            else neb.NEB(images, allow_shared_calculator=True, **settings)
        )
        bands[-1].interpolate(mic=True)
        if not batch:
            for image in images:
                image.calc = MDCGCalculator(EXAMPLES / "data" / "copper.mdcg")
    sizes, evaluate = [], calculator.batch
    monkeypatch.setattr(
        calculator, "batch", lambda images: sizes.append(len(images)) or evaluate(images)
    )
    monkeypatch.setattr(calculator, "calculate", None)
    for _ in range(3):
        forces = [band.get_forces() for band in bands]
        np.testing.assert_allclose(*forces, rtol=0, atol=1e-10 * np.abs(forces[0]).max())
        assert not np.ptp([band.get_forces() for band in bands[:1]] + forces[:1], axis=0).any()
        for band, by in zip(bands, forces, strict=True):
            band.set_positions(band.get_positions() + 0.01 * by)
    assert sizes == [5, 0, 3, 0, 3, 0]


def test_many_systems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: list[Any]
) -> None:
    """Crystals that differ in size relax to the energies of ASE's own relaxation."""
    for needed in ("torch_sim", "matplotlib"):
        pytest.importorskip(needed, reason="the example needs mdcg[torchsim,bench]")
    many = example("many_systems")
    many.main(["--structures", "6", "--steps", "5", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "6 crystals" in printed
    assert (tmp_path / "many_systems.png").stat().st_size > 10_000
    (after,) = re.findall(r"-> (-\d\.\d+) eV per atom", printed)
    assert figures[0].axes[0].get_ylabel() == "number of crystals"
    assert all(tick == int(tick) for tick in figures[0].axes[0].get_yticks())
    temperature = figures[0].axes[1]
    assert temperature.get_xlabel() == "t (ps)"
    (line,) = (line for line in temperature.lines if line.get_label() == "thermostat")
    assert list(line.get_ydata()) == [300.0, 300.0]
    assert temperature.lines[1].get_xdata()[-1] == pytest.approx(5 * 0.002)
    energies = []
    for atoms in many.crystals(6):
        atoms.calc = MDCGCalculator(EXAMPLES / "data" / "copper.mdcg")
        FIRE(FrechetCellFilter(atoms), logfile=None).run(fmax=0.02, steps=500)
        energies.append(atoms.get_potential_energy() / len(atoms))
    assert float(after) == pytest.approx(np.mean(energies), abs=1e-3)


def quickstart(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, str(QUICKSTART), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """Return a folder with the commands the script itself uses, and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("dirname", "cat", "sed", "mkdir"):
        where = shutil.which(name)
        assert where is not None
        (folder / name).symlink_to(where)
    (folder / "python3").symlink_to(sys.executable)
    return folder


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("quickstart: ")
    return lines[0]


def test_convert_models(tmp_path: Path) -> None:
    """The script prints one row per file, with the reason for a file that cannot be converted."""
    first, second = sorted(DATA.glob("mace_*_e3nn044.model"))
    models = [f"water={second}", str(first), "none=no.model", str(EXAMPLES / "README.md")]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "convert_models.py"), "--output", str(tmp_path), *models],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["water", first.stem, "none", "README"]
    for row in rows[:2]:
        assert row[1].startswith("yes, float")
        assert float(row[2]) < 1e-3
        assert re.fullmatch(r"\d+\.\d\d \(\d+ atoms\)", row[3])
        assert (tmp_path / f"{row[0]}.mdcg").is_file()
    assert rows[2][1:] == ["no", "no.model: no such file"]
    assert rows[3][1] == "no"
    assert "is not a PyTorch checkpoint" in rows[3][2]


def test_quickstart_help() -> None:
    done = quickstart("--help")
    assert done.returncode == 0
    assert "bash examples/quickstart.sh" in done.stdout
    assert "PYTHON names the interpreter" in done.stdout.splitlines()[-1]
    assert "apt install" in done.stdout


def test_quickstart_without_python(tmp_path: Path) -> None:
    said = one_sentence(quickstart(PYTHON="python-that-is-not-there"))
    assert "python-that-is-not-there was not found: sudo apt install python3" in said


def test_quickstart_with_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    said = one_sentence(quickstart(PYTHON=str(old)))
    assert "Python 3.8.2 is too old, mdcg needs Python 3.10 or newer" in said


def test_quickstart_without_compiler(bare_path: Path) -> None:
    done = quickstart(PATH=str(bare_path), CXX="")
    assert "g++; on Debian and Ubuntu: sudo apt install" in one_sentence(done)


def test_quickstart_without_venv(bare_path: Path, tmp_path: Path) -> None:
    """The quickstart names python3-venv if Debian's python3 has no ensurepip."""
    (bare_path / "python3").unlink()
    (bare_path / "python3").write_text(
        '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexec ' + sys.executable + ' "$@"\n'
    )
    (bare_path / "python3").chmod(0o755)
    said = one_sentence(quickstart(PATH=str(bare_path), CXX="/bin/sh"))
    assert "not installed: python3-venv" in said


def test_data_is_small_and_complete() -> None:
    assert (EXAMPLES / "data" / "water.model").stat().st_size < 1_000_000
    water = ase.io.read(EXAMPLES / "data" / "water192.xyz")
    assert water.get_chemical_formula() == "H128O64"
    assert water.pbc.all()
