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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest

import mdcg
from mdcg import MDCGCalculator, _core

from .capi import EXCHANGE, Communicator, ListNumbers, Options, Rank, Results, System, library
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


def test_a_host_in_c(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    compile_c(Path(__file__).parent / "c_api.c", tmp_path / "c_api")
    command = [tmp_path / "c_api", tmp_path / "p.mdcg"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


ARGUMENT, FILE, UNSUPPORTED, COMMUNICATION = 1, 2, 3, 6


class Host:
    """A model of two layers and three atoms in a cell, or two of them and a ghost."""

    def __init__(self, folder: Path) -> None:
        two_layers().package().save(folder / "p.mdcg")
        self.lib, self.model, self.path = library(), ctypes.c_void_p(), str(folder / "p.mdcg")
        assert self.open(self.path, Options(kernels=b"generic")) == 0
        self.kept: list[Any] = []
        self.energy = self.array([0.0])

    def array(self, values: Any, dtype: type = np.float64) -> int:
        self.kept.append(np.ascontiguousarray(values, dtype))
        return int(self.kept[-1].ctypes.data)

    def open(self, path: str | None, options: Any) -> int:
        name = None if path is None else path.encode()
        given = None if options is None else ctypes.byref(options)
        return int(self.lib.mdcg_open(name, given, ctypes.byref(self.model)))

    def in_cell(self, **changes: Any) -> System:
        at, cell = [[0, 0, 0], [0.9, 0.3, 0], [-0.4, 0.8, 0]], np.diag([7.0, 6.5, 7.0])
        fields: dict[str, Any] = {"num_local": 3, "num_nodes": 3, "make_edges": 1}
        fields |= {"positions": self.array(at), "types": self.array([1, 0, 0], np.int32)}
        fields |= {"cell": self.array(cell), "periodic": self.array([1, 1, 1], np.int32)}
        return System(**{**fields, **changes})

    def with_ghost(self, **changes: Any) -> System:
        ends = [self.array(end, np.int32) for end in ([1, 2, 0, 2], [0, 0, 1, 1])]
        fields = {"num_local": 2, "make_edges": 0, "cell": None, "periodic": None}
        fields |= {"num_edges": 4, "sender": ends[0], "receiver": ends[1]}
        return self.in_cell(**{**fields, **changes})

    def evaluate(self, system: System | None, communicator: Any = None, results: Any = True) -> int:
        if results is True:
            results = Results(energy=self.energy)
        given = [each and ctypes.byref(each) for each in (system, communicator, results)]
        return int(self.lib.mdcg_evaluate(self.model, *given))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


PASSES, FAILS = EXCHANGE(lambda *_: 0), EXCHANGE(lambda *_: 17)


def talking(**changes: Any) -> Communicator:
    return Communicator(**{"forward": PASSES, "reverse": PASSES, **changes})


REFUSED: dict[str, tuple[Callable[[Host], int], int]] = {
    "/nonexistent.mdcg": (lambda h: h.open("/nonexistent.mdcg", None), FILE),
    "path is null": (lambda h: h.open(None, None), ARGUMENT),
    "'fast'": (lambda h: h.open(h.path, Options(kernels=b"fast")), ARGUMENT),
    "memory is 'some', expected a share": (
        lambda h: h.open(h.path, Options(memory=b"some")),
        ARGUMENT,
    ),
    "mdcg_options.memory_models is -1": (
        lambda h: h.open(h.path, Options(memory=b"1 GB", memory_models=-1)),
        ARGUMENT,
    ),
    "'tpu'": (lambda h: h.open(h.path, Options(device=b"tpu")), UNSUPPORTED),
    "threads is -1": (lambda h: h.open(h.path, Options(threads=-1)), ARGUMENT),
    "threads is -2": (lambda h: h.lib.mdcg_set_threads(h.model, -2), ARGUMENT),
    "model is null": (lambda h: h.lib.mdcg_evaluate(None, None, None, None), ARGUMENT),
    "mdcg_system is null": (lambda h: h.evaluate(None), ARGUMENT),
    "mdcg_results is null": (lambda h: h.evaluate(h.in_cell(), None, None), ARGUMENT),
    "mdcg_system.size is": (
        lambda h: h.evaluate(changed(h.in_cell(), size=ctypes.sizeof(System) - 8)),
        ARGUMENT,
    ),
    "communicator": (lambda h: h.evaluate(h.with_ghost()), ARGUMENT),
    "communicator.reverse is null": (
        lambda h: h.evaluate(h.with_ghost(), Communicator(forward=PASSES)),
        ARGUMENT,
    ),
    "forward returned 17": (
        lambda h: h.evaluate(h.with_ghost(), talking(forward=FAILS)),
        COMMUNICATION,
    ),
    "num_local": (lambda h: h.evaluate(h.with_ghost(num_local=4), talking()), ARGUMENT),
    "positions is null": (
        lambda h: h.evaluate(h.with_ghost(positions=None), talking()),
        ARGUMENT,
    ),
    "make_edges": (lambda h: h.evaluate(h.with_ghost(make_edges=1), talking()), ARGUMENT),
    "image_shifts is null": (
        lambda h: h.evaluate(h.with_ghost(num_images=1), talking()),
        ARGUMENT,
    ),
    "receiver[3] is 2": (
        lambda h: h.evaluate(h.with_ghost(receiver=h.array([0, 0, 1, 2], np.int32)), talking()),
        ARGUMENT,
    ),
    "the type of atom 1 is 1000": (
        lambda h: h.evaluate(h.in_cell(types=h.array([0, 1000, 0], np.int32))),
        ARGUMENT,
    ),
    "cell is null": (lambda h: h.evaluate(h.in_cell(cell=None)), ARGUMENT),
}


def changed(struct: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(struct, name, value)
    return struct


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_the_c_interface_refuses(host: Host, sentence: str) -> None:
    call, status = REFUSED[sentence]
    model = host.model.value
    assert call(host) == status
    assert sentence in host.lib.mdcg_last_error().decode()
    host.model.value = host.model.value or model
    assert host.evaluate(host.in_cell()) == 0, "the model is as good as before"


def test_atoms_are_named_as_the_host_does(host: Host) -> None:
    host.evaluate(host.in_cell(types=host.array([0, 1000, 0], np.int32)))
    about = host.lib.mdcg_last_error_about
    about.restype = ctypes.c_char_p
    assert b"the type of atom 12 is 1000" in about(
        ctypes.c_void_p(host.array([11, 12, 13], np.int64))
    )
    assert about(None) == host.lib.mdcg_last_error()


def test_no_atoms_and_other_numbers_of_threads(host: Host) -> None:
    energies = []
    for threads in (1, 2, 0):
        assert host.lib.mdcg_set_threads(host.model, threads) == 0
        assert host.evaluate(host.in_cell()) == 0
        energies.append(host.kept[0][0])
    assert len(set(energies)) == 1
    assert host.evaluate(host.in_cell(num_local=0, num_nodes=0)) == 0
    assert host.kept[0][0] == 0.0
    assert host.evaluate(System(), talking()) == 0, "an empty rank"


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
    """mdcg_open_same uses the package that the first model read, even if the file changed."""
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
    """Return lines of nm, such as "... T mdcg_open"."""
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("nm is not installed")
    command = [tool, "-D", option, str(FOLDER / "libmdcg.so")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_library_imports_no_streams() -> None:
    """The library imports no streams of libstdc++, which print numbers with a locale."""
    wrong = re.compile(r"stream|filebuf|ios_base|ctype|St6locale|vsnprintf")
    assert not [line for line in symbols_of_library("--undefined-only") if wrong.search(line)]


def test_library_exports_the_interface_alone() -> None:
    """The library exports the C interface and mdcg's C++ for ``_core``, and nothing else."""
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
    """A module and a library of different versions give an error of the loader."""
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


def test_one_default_skin() -> None:
    """Python, the engine and C document the same default skin."""
    (engine,) = re.findall(r"skin: .*? = ([\d.]+)", _core.Model.__init__.__doc__ or "")
    (c,) = re.findall(r"double skin;[^;]*steps; 0: ([\d.]+),", (HEADERS / "mdcg.h").read_text())
    python = inspect.signature(MDCGCalculator).parameters["skin"].default
    assert float(engine) == float(c) == python
