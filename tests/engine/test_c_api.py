"""The C interface from C, and that importing and opening need no torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mdcg
from mdcg import _core

from .test_program import two_layers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(mdcg.__path__[0])
HEADERS = ROOT / "csrc" / "include"


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
    """Arguments and their sentences, ghosts against a periodic cell, threads, empty ranks."""
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


def test_example(tmp_path: Path) -> None:
    package = two_layers().package(type_names=["H", "O", "C"], atomic_numbers=[1, 8, 6])
    package.save(tmp_path / "water.mdcg")
    compile_c(ROOT / "examples" / "energy.c", tmp_path / "energy")
    done = subprocess.run(
        [tmp_path / "energy", tmp_path / "water.mdcg"], capture_output=True, text=True, check=True
    )
    found = float(done.stdout.split("energy ")[1].split()[0])
    model = _core.Model(str(tmp_path / "water.mdcg"))
    positions = [[0.0, 0.0, 0.119], [0.0, 0.763, -0.477], [0.0, -0.763, -0.477]]
    assert found == pytest.approx(model.evaluate(positions, [1, 0, 0])["energy"], abs=1e-6)
    missing = subprocess.run(
        [tmp_path / "energy", "nowhere.mdcg"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert "nowhere.mdcg" in missing.stderr


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
    """Neither finds its C++ in the other's: a sentence of the loader, not a crash."""
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
