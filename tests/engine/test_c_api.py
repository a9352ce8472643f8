"""The C interface, called from C; importing and opening need no torch."""

from __future__ import annotations

import copy
import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest

import mdcg
from mdcg import MDCGCalculator, _core

from .capi import ListNumbers, Options, Rank, library
from .sequences import check_sequences
from .test_program import two_layers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(mdcg.__path__[0])
HEADERS = ROOT / "csrc" / "include"
WATER = ROOT / "examples" / "data"


def compile_c(source: Path, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = FOLDER / "libmdcg.so"
    assert library.is_file(), "libmdcg.so is not beside the Python module"
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror"]
    command = [compiler, *strict, "-I", str(HEADERS), str(source), "-o", str(target)]
    subprocess.run([*command, str(library), f"-Wl,-rpath,{FOLDER}", "-lm"], check=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernels", [False, True], ids=["generic", "generated"])
def test_c_interface(tmp_path: Path, dtype: str, kernels: bool) -> None:
    """Arguments and error messages, ghosts against a periodic cell, threads, empty ranks."""
    two_layers(dtype).package().save(tmp_path / "p.mdcg")
    compile_c(Path(__file__).parent / "c_api.c", tmp_path / "c_api")
    done = subprocess.run(
        [tmp_path / "c_api", tmp_path / "p.mdcg"],
        env={**os.environ, "OMP_NUM_THREADS": "2", "MDCG_DISABLE_JIT": str(int(not kernels))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_calls_in_any_order(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    check_sequences(str(tmp_path / "p.mdcg"), "cpu", "generic", examples=200)


@pytest.fixture(scope="module")
def dynamics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("example") / "dynamics"
    compile_c(ROOT / "examples" / "dynamics.c", program)
    return program


def test_example(dynamics: Path, tmp_path: Path) -> None:
    """A host's own list, reused for some steps, gives mdcg's results and conserves energy."""
    command = [dynamics, WATER / "water.mdcg", WATER / "water192.xyz", "100", tmp_path / "last.xyz"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    closing = re.search(r"within (\S+) meV/atom, (\d+) lists in 100 steps", done.stdout)
    assert closing is not None, done.stdout
    assert float(closing[1]) < 0.1
    assert 3 < int(closing[2]) < 30
    start, last = (ase.io.read(path) for path in command[2::2])
    assert np.abs(last.positions - start.positions).max() > 0.5
    last_energy, last_forces = last.get_potential_energy(), last.get_forces()
    last.calc = MDCGCalculator(WATER / "water.mdcg", skin=0.0)
    assert last_energy == pytest.approx(last.get_potential_energy(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(last_forces, last.get_forces(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("package", "cell", "sentence"),
    [
        ("water.mdcg", [9.9, 12, 12], "the cell is too small for one image"),
        ("water.mdcg", [[12, 0, 0], [1, 12, 0], [0, 0, 12]], 'no Lattice="a 0.0 0.0 0.0 b'),
        ("copper.mdcg", [12, 12, 12], "O: the model does not know this type"),
        ("nowhere.mdcg", [12, 12, 12], "nowhere.mdcg"),
    ],
)
def test_example_refuses(
    package: str, cell: list[Any], sentence: str, dynamics: Path, tmp_path: Path
) -> None:
    atoms = ase.io.read(WATER / "water192.xyz")[:3]
    atoms.cell = cell
    atoms.write(tmp_path / "start.xyz")
    command = [dynamics, WATER / package, tmp_path / "start.xyz", "1", tmp_path / "last.xyz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert not (tmp_path / "last.xyz").exists()


def test_a_package_whose_file_is_replaced(tmp_path: Path) -> None:
    """A second model is made from the package that the first has read."""
    path = str(tmp_path / "p.mdcg")
    two_layers("float64").package().save(path)
    atoms, none = np.arange(4), np.zeros(0, int)
    first = Rank(path, atoms, none)
    two_layers("float64", seed=1).package().save(path)
    other, same = Rank(path, atoms, none), copy.copy(first)
    same.model, same.list = ctypes.c_void_p(), ListNumbers()
    first.check(first.lib.mdcg_open_same(first.model, None, ctypes.byref(same.model)))
    edges = np.array([[0, 1], [1, 0], [2, 3], [3, 2]], np.int32).T
    g = {
        "positions": np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0.3, 2, 1]], float),
        "types": np.zeros(4, np.int32),
        "sender": edges[0],
        "receiver": edges[1],
    }
    energies = [rank.evaluate(g, None, ("energy",))["energy"][0] for rank in (first, same, other)]
    assert energies[0] == energies[1] != energies[2]
    for rank in (first, same, other):
        rank.close()


@pytest.mark.parametrize("option", [{"damping": b"zero"}, {"dispersion_cutoff": 9.0}])
def test_options_of_dispersion_without_it(option: dict[str, Any]) -> None:
    lib, model = library(), ctypes.c_void_p()
    path = os.fsencode(WATER / "water.mdcg")
    assert lib.mdcg_open(path, ctypes.byref(Options(**option)), ctypes.byref(model)) == 1
    assert b"without dispersion, expected" in lib.mdcg_last_error()


def symbols_of_library(option: str) -> list[str]:
    """Lines of nm, such as "... T mdcg_open"."""
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("nm is not installed")
    command = [tool, "-D", option, str(FOLDER / "libmdcg.so")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_library_imports_no_streams() -> None:
    """Nor anything else of libstdc++ that prints numbers with a locale."""
    wrong = re.compile(r"stream|filebuf|ios_base|ctype|St6locale|vsnprintf")
    assert not [line for line in symbols_of_library("--undefined-only") if wrong.search(line)]


def test_library_exports_the_interface_alone() -> None:
    """Beside it, mdcg's C++ under the version that ``_core`` asks for, and nothing of others."""
    lines = symbols_of_library("--defined-only")
    exported = [line.split()[-1].partition("@@") for line in lines if " A " not in line]
    interface = {name for name, _, version in exported if version == "MDCG_1"}
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in (HEADERS / "mdcg.h").read_text().splitlines()
        if line.startswith("MDCG_API")
    }
    assert len(declared) >= 12
    assert interface == declared
    private = f"MDCG_PRIVATE_{re.sub('[^0-9A-Za-z]', '_', mdcg.__version__)}"
    rest = [(name, version) for name, _, version in exported if name not in interface]
    assert {version for _, version in rest} == {private}
    assert all(re.match("_Z(T[ISV])?NK?4mdcg", name) for name, _ in rest)


def test_module_refuses_the_library_of_another_version(tmp_path: Path) -> None:
    """Library and module of different versions give an error of the loader, not a crash."""
    copy = tmp_path / "mdcg"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    library = copy / "libmdcg.so"
    version = f"MDCG_PRIVATE_{re.sub('[^0-9A-Za-z]', '_', mdcg.__version__)}".encode()
    library.write_bytes(library.read_bytes().replace(version, b"X" + version[1:]))
    code = "from mdcg import _core"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode != 0
    assert "libmdcg.so" in done.stderr
    assert version.decode() in done.stderr


def test_packages_run_without_torch(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    code = (
        "import sys; from mdcg import _core; import mdcg.calculators\n"
        f"_core.Model({str(tmp_path / 'p.mdcg')!r}).evaluate([[0., 0., 0.]], [0])\n"
        "print(sorted(set(sys.modules) & {'torch', 'e3nn', 'mace', 'nequip'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_one_default_skin() -> None:
    """Python's, the engine's and C's default are the same, as their documentation says."""
    (engine,) = re.findall(r"skin: .*? = ([\d.]+)", _core.Model.__init__.__doc__ or "")
    (c,) = re.findall(r"double skin;[^;]*steps; 0: ([\d.]+),", (HEADERS / "mdcg.h").read_text())
    python = inspect.signature(MDCGCalculator).parameters["skin"].default
    assert float(engine) == float(c) == python
