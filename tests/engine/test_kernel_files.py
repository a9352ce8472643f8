"""Sources of a package's kernels: a named file, the cache, Python, or generic kernels."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.build import molecule

from mdcg import MDCGCalculator, Package, _core
from mdcg.cli.main import main
from mdcg.errors import KernelCompileError, UnsupportedProblemError
from mdcg.package.kernel_file import cache_kernels, compile_kernels

from ..processes import printed_by
from ..signing import joined, split
from .capi import Rank
from .kernel_files import altered, cached, manifest_of, plant, with_code
from .programs import graph, refused, run
from .test_program import two_layers

pytestmark = pytest.mark.compiler(whole=True)

DATA = Path(__file__).parents[1] / "data"
LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
NATIVE = _core.host_target("native")
Kernels = list[dict[str, Any]]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    """Use the default compiler, and the cache that these tests share."""
    monkeypatch.setenv("MDCG_CACHE_DIR", str(shared_cache))
    for name in ("MDCG_DISABLE_JIT", "MDCG_PYTHON", "MDCG_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "p.mdcg"
    two_layers().package().save(path)
    return path


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "empty"))
    return tmp_path / "empty"


@pytest.fixture
def own_copy(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with the kernels of the package, and the texts and libraries that they need."""
    cache_kernels(package, "native")
    source = os.environ["MDCG_CACHE_DIR"]
    shutil.copytree(source, tmp_path / "own")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "own"))
    return tmp_path / "own"


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def evaluate(path: Path, kernels: str = "auto") -> tuple[dict[str, Any], Kernels]:
    """Return results, and the kernels in the report."""
    model = _core.Model(str(path), kernels=kernels)
    assert json.loads(model.report())["kernels"] == [], "opening must load nothing"
    found = run(model, graph(), virial=True)
    return found, json.loads(model.report())["kernels"]


def origins(kernels: Kernels) -> set[str]:
    return {kernel["origin"] for kernel in kernels}


def compare(got: dict[str, Any], want: dict[str, Any], limit: float) -> None:
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= limit * np.abs(value).max(), name


# -- the usual way --------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-13), ("float32", 5e-6)])
def test_compiled_then_cached_and_equal_to_generic(
    tmp_path: Path, empty: Path, dtype: str, limit: float
) -> None:
    path = tmp_path / "p.mdcg"
    two_layers(dtype).package().save(path)
    generic, kernels = evaluate(path, "generic")
    assert origins(kernels) == {"generic"}
    assert all("was asked for" in kernel["why"] for kernel in kernels)
    model = _core.Model(str(path))
    compiled = run(model, graph(), virial=True)
    assert f" s by {sys.executable} -m mdcg kernels" in model.summary()
    kernels = json.loads(model.report())["kernels"]
    assert origins(kernels) == {"made"}
    assert {kernel["target"] for kernel in kernels} == {NATIVE}
    assert sum("compile_seconds" in kernel for kernel in kernels) == 1
    again, kernels = evaluate(path, "generated")
    assert origins(kernels) == {"cached"}
    compare(compiled, generic, limit)
    compare(again, compiled, 0.0)
    assert {p.name for p in cached(empty).parent.iterdir()} == {
        "package.mdcg-kernels",
        "kernel.sha256",
    }
    if dtype == "float64":  # other weights, the same layers: the same kernels
        two_layers(dtype, seed=1).package().save(path)
        assert origins(evaluate(path, "generated")[1]) == {"cached"}


def test_python_is_started_once_for_several_processes(package: Path, empty: Path) -> None:
    notes = empty.parent / "notes"
    python = script(empty.parent / "python", f'echo run >> {notes}\nexec {sys.executable} "$@"')
    code = (
        "import sys; from mdcg import _core; model = _core.Model(sys.argv[1], kernels='generated')"
        "; model.prepare(); print(model.summary())"
    )
    command = [sys.executable, "-c", code, str(package)]
    environment = {**os.environ, "MDCG_PYTHON": python}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3
    assert notes.read_text() == "run\n"
    assert sorted("made" in line for line in said) == [False, False, True]
    assert sum("cached" in line for line in said) == 2


def test_a_failure_is_that_of_all_that_wait(package: Path, empty: Path) -> None:
    notes = empty.parent / "notes"
    python = script(
        empty.parent / "python", f"echo run >> {notes}; sleep 5; echo 'mdcg: no luck' >&2; exit 5"
    )
    code = (
        "import sys; from mdcg import _core; model = _core.Model(sys.argv[1])"
        "; model.prepare(); print(model.summary())"
    )
    environment = {**os.environ, "MDCG_PYTHON": python}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(package)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    for process in processes:
        said = process.communicate(timeout=300)[0]
        assert "kernels: 3 generic, because no luck; where kernels cannot be made, run " in said
        assert f"'python -m mdcg kernels {package} --target native' beforehand" in said
    assert notes.read_text().count("run") == 1


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"MDCG_PYTHON": "/nonexistent/python"}, "'/nonexistent/python' that MDCG_PYTHON names"),
        ({"MDCG_PYTHON": "false"}, "/false -m mdcg kernels ended with status 1"),
        ({"MDCG_PYTHON": "true"}, "it is of another mdcg, set MDCG_PYTHON to the one of mdcg"),
        ({"MDCG_CXX": "/nonexistent/g++"}, "named by MDCG_CXX or CXX was not found"),
        ({"MDCG_CXX": "false"}, "false rejected a generated kernel (exit status 1)"),
        ({"MDCG_DISABLE_JIT": " Yes "}, "MDCG_DISABLE_JIT=1 forbids compiling"),
        ({"MDCG_COMPILE_TIMEOUT": "soon"}, "MDCG_COMPILE_TIMEOUT is 'soon', expected"),
    ],
)
def test_generic_where_none_can_be_made(
    package: Path,
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    reason: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _, kernels = evaluate(package)
    assert origins(kernels) == {"generic"}
    assert all(reason in kernel["why"] for kernel in kernels)
    assert all("\n" not in kernel["why"] for kernel in kernels)
    assert f"python -m mdcg kernels {package} --target native" in kernels[0]["why"]
    with pytest.raises(_core.EngineError) as error:
        evaluate(package, "generated")
    assert error.value.kind == 4
    assert reason in str(error.value)


def test_the_child_reads_the_package_that_was_opened(
    package: Path, empty: Path, tmp_path: Path
) -> None:
    """Kernels are made from the opened package, even if its file was deleted or overwritten."""
    want, _ = evaluate(package, "generic")
    model = _core.Model(str(package), kernels="generated")
    package.unlink()
    compare(run(model, graph(), virial=True), want, 1e-13)
    two_layers().package().save(package)
    model = _core.Model(str(package), kernels="generated")
    package.write_bytes(b"something else")
    shutil.rmtree(empty)
    compare(run(model, graph(), virial=True), want, 1e-13)


def test_the_child_runs_nothing_of_the_present_folder(
    package: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Making kernels does not import Python files of the current folder."""
    mark = tmp_path / "mark"
    (tmp_path / "folder" / "mdcg").mkdir(parents=True)
    for name in ("json", "numpy", "mdcg/__init__", "mdcg/__main__", "sitecustomize"):
        (tmp_path / "folder" / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path / "folder")
    assert origins(evaluate(package)[1]) == {"made"}
    assert not mark.exists()


@pytest.mark.parametrize("closed", ["<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(own_copy: Path, package: Path, tmp_path: Path, closed: str) -> None:
    """Kernels are made if standard streams are closed and files get their numbers."""
    shutil.rmtree(cached(own_copy).parent)  # Python must write it again
    code = """
import sys
from mdcg import _core
model = _core.Model(sys.argv[1])
model.prepare()
open(sys.argv[2], "w").write(model.summary())
"""
    said = tmp_path / "said"
    arguments = [sys.executable, "-W", "ignore", "-c", code, str(package), str(said)]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *arguments], check=True)
    assert "3 made" in said.read_text()


def test_a_cache_that_cannot_be_written(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = """
import sys
from mdcg import _core
for _ in range(2):
    model = _core.Model(sys.argv[1], kernels="generated")
    model.prepare()
    print(model.summary())
"""
    places = {"MDCG_CACHE_DIR": str(tmp_path / "file/cache"), "TMPDIR": str(tmp_path)}
    first, second = printed_by(code, package, **places).splitlines()
    assert " made in " in first
    assert "cached" in second
    assert "cannot be written (" in first
    assert not list(tmp_path.glob("mdcg-*")), "the folder of an ended process is left"


@pytest.mark.parametrize("code", ["another library", "no library"])
def test_libraries_of_something_else_are_made_again(
    own_copy: Path, package: Path, tmp_path: Path, code: str
) -> None:
    want, _ = evaluate(package, "generated")
    content = b"text"
    if code == "another library":
        source, library = tmp_path / "other.cpp", tmp_path / "other.so"
        source.write_text('extern "C" int nothing = 1;\n')
        subprocess.run(["c++", "-shared", "-fPIC", source, "-o", library], check=True)
        content = library.read_bytes()
    file = cached(own_copy)
    data = altered(file, with_code(content))
    file.write_bytes(data)
    file.with_name("kernel.sha256").write_text(hashlib.sha256(data).hexdigest())
    for origin in ("made", "cached"):
        found, kernels = evaluate(package, "generated")
        assert origins(kernels) == {origin}
        compare(found, want, 0.0)


def test_unknown_modes(package: Path) -> None:
    with pytest.raises(_core.EngineError, match=r"kernels is 'fast', expected auto, generic, gen"):
        evaluate(package, "fast")


# -- files that are named -------------------------------------------------------------------------


def make(package: Path, path: Path, *targets: str) -> Path:
    options = [word for target in targets for word in ("--target", target)]
    assert main(["kernels", str(package), *options, "--output", str(path)]) == 0
    return path


def test_files_need_neither_compiler_nor_cache(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _core.instruction_set_level()
    if own not in LEVELS:
        pytest.skip("levels are of x86-64")
    file = make(package, tmp_path / "k.mdcg-kernels", *LEVELS)
    assert file.read_bytes() == compile_kernels(package, LEVELS), "not the same bytes"
    want, _ = evaluate(package, "generic")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("MDCG_PYTHON", "/nonexistent")
    found, kernels = evaluate(package, str(file))
    assert origins(kernels) == {"named"}
    assert {kernel["target"] for kernel in kernels} == {own}, "not the best for this CPU"
    compare(found, want, 1e-13)
    assert origins(evaluate(package)[1]) == {"generic"}, "a file beside the package is not used"


def test_levels_of_the_cache_are_used(package: Path, empty: Path) -> None:
    """Kernels in the cache for a lower instruction set are used until there are native ones."""
    if _core.instruction_set_level() not in LEVELS:
        pytest.skip("levels are of x86-64")
    assert main(["kernels", str(package), "--target", "x86-64-v2"]) == 0
    _, kernels = evaluate(package)
    assert {kernel["target"] for kernel in kernels} == {"x86-64-v2"}
    assert main(["kernels", str(package), "--target", "native"]) == 0
    _, kernels = evaluate(package)
    assert {kernel["target"] for kernel in kernels} == {NATIVE}


def truncate(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m, _: m.update(mdcg_version="0.0.1"), "was made by mdcg 0.0.1, and this is mdcg"),
        (lambda m, _: m.update(generator="x"), "was made by another build of mdcg"),
        (lambda m, _: m.update(problem="x"), "was made for another package: make it again with"),
        (lambda m, _: m.update(host={"native-x": []}), f"has no kernels for {NATIVE}: make it"),
        (lambda m, _: m.update(format=2), "has format 2, this is mdcg"),
        (truncate, "tensors .* bytes|lies at"),
        (flip, "was altered or damaged after it was written .its SHA-256 differs."),
        (lambda data: data[:4], "has 4 bytes, expected a .mdcg-kernels file"),
    ],
)
def test_files_that_do_not_fit(package: Path, tmp_path: Path, change: Any, sentence: str) -> None:
    file = make(package, tmp_path / "k.mdcg-kernels", "native")
    if change.__code__.co_argcount == 2:
        file.write_bytes(altered(file, change))
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(_core.EngineError, match=sentence) as error:
        _core.Model(str(package), kernels=str(file))
    assert error.value.kind == 2
    text = str(error.value)
    assert text.startswith(str(file))
    assert "\n" not in text
    if "make it again with" in text:
        command = f"python -m mdcg kernels {package} --target native --output {file}"
        assert f"'{command}'" in text


def test_files_of_other_packages(package: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.mdcg"
    two_layers("float32").package().save(other)
    file = make(other, tmp_path / "k.mdcg-kernels", "native")
    for path in (file, tmp_path / "none.mdcg-kernels", package):
        with pytest.raises(_core.EngineError) as error:
            _core.Model(str(package), kernels=str(path))
        assert error.value.kind == 2


# -- packages are data ----------------------------------------------------------------------------


def test_code_in_packages_of_format_1_is_never_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code in a package of format 1, or in a file of kernels beside it, is never run."""
    path, mark = tmp_path / "p.mdcg", tmp_path / "mark"
    plant(DATA / "mace_water_float64.mdcg", path, mark)
    assert main(["patch", str(path), "--info"]) == 0
    assert main(["patch", str(path), "--info", "--json"]) == 0
    assert str(mark) not in capsys.readouterr().out
    Package.open(path).save(tmp_path / "again.mdcg")
    assert mark.name.encode() not in (tmp_path / "again.mdcg").read_bytes()
    clean = _core.Model(str(DATA / "mace_water_float64.mdcg"))
    for each in (path, tmp_path / "again.mdcg"):
        for kernels in ("generic", "auto", "generated"):
            found = run(_core.Model(str(each), kernels=kernels), graph(types=2))
            compare(found, run(clean, graph(types=2)), 1e-12)
    rank = Rank(str(path), np.arange(3), np.zeros(0, np.int64), kernels="auto")
    assert rank.lib.mdcg_prepare(rank.model) == 0
    rank.close()
    calculator = MDCGCalculator(path)
    assert np.isfinite(calculator.get_potential_energy(molecule("H2O")))
    assert not mark.exists()
    # a file that the user names is loaded
    with pytest.raises(_core.EngineError, match="no symbol"):
        run(_core.Model(str(path), kernels=str(path.with_suffix(".mdcg-kernels"))), graph(types=2))
    assert mark.exists()


def test_swapped_tensors_are_refused(package: Path) -> None:
    """A package in which two tensors of equal shape are swapped is refused."""
    header, tensors = split(package.read_bytes())
    names = [name for name in header if name != "__metadata__"]
    one, other = next(
        (a, b)
        for a, b in itertools.combinations(names, 2)
        if [header[a][key] for key in ("dtype", "shape")]
        == [header[b][key] for key in ("dtype", "shape")]
    )
    header[one], header[other] = header[other], header[one]
    package.write_bytes(joined(header, tensors))
    refused(package, "its SHA-256 differs")


def test_a_file_that_is_rewritten_changes_nothing(package: Path) -> None:
    """An open package does not change if its file is truncated."""
    model = _core.Model(str(package), kernels="generic")
    want = run(_core.Model(str(package), kernels="generic"), graph())
    with package.open("r+b") as file:
        file.truncate(1000)
    compare(run(model, graph()), want, 0.0)


# -- what Python makes ----------------------------------------------------------------------------


def test_equal_layers_share_a_library(package: Path, tmp_path: Path) -> None:
    manifest = manifest_of(make(package, tmp_path / "k.mdcg-kernels", "native"))
    libraries = manifest["host"][NATIVE]
    kinds = [layer["type"] for layer in two_layers().package().layers]
    for kind, library in zip(kinds, libraries, strict=True):
        assert (library is not None) == (kind in ("conv", "contraction"))


def test_what_cannot_be_made(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, kind, sentence in (
        ("sm_70", UnsupportedProblemError, "target sm_70: kernels need devices of compute cap"),
        (
            "sm_999",
            KernelCompileError,
            "NVRTC .* is too old for this card: it does not compile",
        ),
        (
            "gfx803",
            UnsupportedProblemError,
            "target gfx803: kernels need gfx900 or later, expected",
        ),
        ("x86-64-v5", UnsupportedProblemError, "target x86-64-v5 is unknown, expected any of nat"),
    ):
        with pytest.raises(kind, match=sentence):
            compile_kernels(package, [target])
    for words, sentence in (
        (["--target", "native", "--output", "kernels.so"], "expected a name that ends in .mdcg-k"),
        (["--target", "x86"], "target x86 is unknown"),
    ):
        assert main(["kernels", str(package), *words]) != 0
        assert sentence in capsys.readouterr().err
    assert main(["kernels", str(tmp_path / "none.mdcg"), "--target", "native"]) != 0
    assert "none.mdcg does not exist: convert one" in capsys.readouterr().err


def test_cached_kernels_are_found_without_torch(package: Path) -> None:
    path = cache_kernels(package, "native")
    code = (
        "import sys; from mdcg.cli.main import main\n"
        f"assert main(['kernels', {str(package)!r}, '--target', 'native']) == 0\n"
        "print(*sorted({'torch', 'ase', 'e3nn'} & set(sys.modules)))"
    )
    assert printed_by(code).splitlines() == [str(path), ""]
