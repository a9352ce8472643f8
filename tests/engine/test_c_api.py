"""The C interface from C, and that importing and opening need no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mdcg
from mdcg import _core
from mdcg.package.kernels import add_kernels

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


def write_package(path: Path, dtype: str, with_kernels: bool) -> None:
    package = two_layers(dtype).package()
    if with_kernels:
        package.manifest["kernels"] = add_kernels(package.manifest["layers"], package.tensors)
    package.save(path)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernels", [False, True], ids=["generic", "generated"])
def test_c_interface(tmp_path: Path, dtype: str, kernels: bool) -> None:
    """Arguments and their sentences, ghosts against a periodic cell, threads, empty ranks."""
    write_package(tmp_path / "p.mdcg", dtype, kernels)
    compile_c(Path(__file__).parent / "c_api.c", tmp_path / "c_api")
    done = subprocess.run(
        [tmp_path / "c_api", tmp_path / "p.mdcg"],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
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


def test_library_exports_the_interface_alone() -> None:
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("nm is not installed")
    done = subprocess.run(
        [tool, "-D", "--defined-only", str(FOLDER / "libmdcg.so")],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in done.stdout.splitlines() if " T " in line}
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in (HEADERS / "mdcg.h").read_text().splitlines()
        if line.startswith("MDCG_API")
    }
    assert len(declared) >= 12
    assert names - {"_init", "_fini"} == declared


def test_packages_run_without_torch(tmp_path: Path) -> None:
    write_package(tmp_path / "p.mdcg", "float64", False)
    code = (
        "import sys; from mdcg import _core; import mdcg.calculators\n"
        f"_core.Model({str(tmp_path / 'p.mdcg')!r}).evaluate([[0., 0., 0.]], [0])\n"
        "print(sorted(set(sys.modules) & {'torch', 'vesin', 'e3nn', 'mace', 'nequip'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
