"""Published models of MACE by name: the command line, the calculator, and MACE's own cache."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from ase.build import bulk, molecule

import mdcg
from mdcg import MDCGCalculator
from mdcg.cli.main import main
from mdcg.cli.patch import main as mdcg_patch
from mdcg.package import cached
from mdcg.package.convert import ConversionOptions
from mdcg.patch import model_names
from mdcg.patch._frameworks import import_mace
from mdcg.runtime.cache import cached_models, is_name

from ..outputs import DATA

WATER = DATA / "mace_water_e3nn044.model"


def test_packages_of_other_libraries_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is made again when a library that checkpoints are read with has changed."""
    found = []
    for version in ("1", "1", "2"):
        monkeypatch.setattr(cached, "installed_version", lambda name, v=version: v)
        cached._converter.cache_clear()
        found.append(cached._place("w", 64 * "0", ConversionOptions()))
    cached._converter.cache_clear()
    assert found[0] == found[1] != found[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of MACE, which cannot download, beside one of packages."""
    import_mace("calculators.foundations_models")
    from mace.calculators import foundations_models

    def offline(url: str, *args: Any) -> None:
        raise urllib.error.URLError(f"no network for {url}")

    monkeypatch.setattr(foundations_models, "_urlretrieve_with_timeout", offline)
    monkeypatch.setattr(foundations_models, "module_dir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module in ("runtime.cache", "package.cached"):  # kernels are those of other tests
        monkeypatch.setattr(f"mdcg.{module}.models_dir", lambda: tmp_path / "packages")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mace"


@pytest.fixture
def medium(cache: Path) -> Path:
    """Put a model where MACE keeps that of MACE-MP-0 medium."""
    cache.mkdir()
    path = cache / "20231203mace128L1_epoch199model"
    shutil.copy(WATER, path)
    return path


def models() -> dict[str, model_names.NamedModel]:
    return {model.name: model for model in model_names._mace_models()}


def test_files_are_where_mace_looks_for_them(cache: Path, capsys: Any) -> None:
    """With a file there, MACE's own functions load it and download nothing."""
    found = models()
    assert len(found) > 15
    for model in found.values():
        model.file.parent.mkdir(parents=True, exist_ok=True)
        assert not model.file.exists()
        shutil.copy(WATER, model.file)
        path = model.download()  # raises where MACE looks for another file
        assert path is None or Path(path) == model.file
    assert "Downloading" not in capsys.readouterr().out


def test_spellings(cache: Path) -> None:
    """The names of MACE, with the prefixes of its functions, and those of its files."""
    names = {
        "mace-mp-medium": "medium", "MACE-MP-0_small": "small", "mace-mpa-0": "medium-mpa-0",
        "medium-mpa-0": "medium-mpa-0", "mace-mpa-0-medium": "medium-mpa-0", "mh-1": "mh-1",
        "mace-mh-1": "mh-1", "mace-mp-0b3": "medium-0b3", "mace-omat-0-small": "small-omat-0",
        "mace-matpes-r2scan-0": "mace-matpes-r2scan-0",
    }  # fmt: skip
    for text, key in names.items():
        assert is_name(text)
        download = model_names._find(text).download
        assert download.args == (key,)  # type: ignore[attr-defined]
    off = model_names._find("mace-off23-small").download
    assert off.keywords == {"model": "small"}  # type: ignore[attr-defined]
    assert model_names._find("mace-omol-0").name == "mace-omol"
    assert model_names._find("polar-1-m").name == "mace-polar-1-m"
    spelled = [model_names._normal(s) for m in models().values() for s in (m.name, *m.spellings)]
    assert len(set(spelled)) == len(spelled)  # none stands for two models


@pytest.mark.parametrize(
    "text", ["water.model", "a/b", "./x", "x.mdcg", "", "a b", "nequip.net:a", "a" * 300]
)
def test_texts_that_are_no_names(text: str) -> None:
    assert not is_name(text)


def test_a_file_goes_before_a_name(medium: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copy(medium, tmp_path / "mace-mp-large")
    assert not is_name("mace-mp-large")
    assert mdcg_patch(["mace-mp-large", "--info", "-q"]) == 0
    assert capsys.readouterr().out.startswith("mace-mp-large: ScaleShiftMACE, H O")


def test_convert_and_describe_by_name(medium: Path, tmp_path: Path, capsys: Any) -> None:
    assert mdcg_patch(["mace-mp-medium", "-o", "x.mdcg", "-q"]) == 0
    assert mdcg_patch([str(medium), "-o", "y.mdcg", "-q"]) == 0
    assert (tmp_path / "x.mdcg").read_bytes() == (tmp_path / "y.mdcg").read_bytes()
    capsys.readouterr()
    for command in (["patch", "mace-mp-medium", "--info"], ["info", "mace-mp-0-medium"]):
        assert main([*command, "-q", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["input"] == str(medium)
        assert facts["model"]["class"] == "ScaleShiftMACE"


def test_the_calculator_converts_once(
    medium: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The package agrees with the checkpoint, and its check is recorded in it."""
    atoms = molecule("H2O")
    calculator = MDCGCalculator("mace-mp-medium")
    (package,) = cached_models()
    assert package.name.startswith("mace-mp-medium-")
    (said,) = [r.getMessage() for r in caplog.records if "is converting" in r.getMessage()]
    assert said.startswith("mdcg is converting mace-mp-medium and comparing it with the original")
    assert mdcg.Package.open(package).manifest["verification"]["passed"] is True
    energy = calculator.get_potential_energy(atoms)
    assert energy == pytest.approx(MDCGCalculator(medium).get_potential_energy(atoms), abs=1e-6)
    before = package.stat().st_mtime_ns
    both = MDCGCalculator(["mace-mp-medium", "mace-mp-medium"])
    assert both.get_potential_energy(atoms) == pytest.approx(energy, abs=1e-12)
    again = MDCGCalculator("mace-mp-0-medium", skin=0.5)
    assert again.get_potential_energy(atoms) == energy
    assert package.stat().st_mtime_ns == before
    assert MDCGCalculator("mace-mp-medium", dtype="float32").dtype == "float32"
    assert len(cached_models()) == 2
    shutil.copy(DATA / "mace_alloy_density_e3nn044.model", medium)  # a newer file of this name
    assert "Ag" in MDCGCalculator("mace-mp-medium").species
    assert len(cached_models()) == 3


def test_run_by_name(medium: Path, tmp_path: Path, capsys: Any) -> None:
    molecule("H2O").write("h2o.xyz")
    bulk("Cu").write("copper.xyz")
    assert main(["run", "mace-mp-medium", "h2o.xyz", "--relax"]) == 0
    assert "mdcg: mdcg is converting mace-mp-medium" in capsys.readouterr().err
    assert main(["run", "mace-mp-medium", "copper.xyz", "--md", "nve"]) == 2
    assert "copper.xyz has Cu, which mace-mp-medium lacks" in capsys.readouterr().err


def test_without_network(cache: Path, capsys: Any) -> None:
    """One sentence says where the file is looked for; nothing is written."""
    for name, file in (
        ("mace-mp-medium", "20231203mace128L1_epoch199model"),
        ("mace-off-small", "MACE-OFF23_small.model"),
        ("mace-polar-1-s", "MACEPOLAR1Smodel"),
    ):
        assert mdcg_patch([name, "-o", "x.mdcg", "-q"]) == 4
        said = capsys.readouterr().err.splitlines()[-1]
        start = f"mdcg-patch: {name} is not on this machine, and mace cannot download it (URLE"
        assert said.startswith(start)
        end = f"looked for as {cache / file}, copy it there, or run this once where there is a "
        assert said.endswith(f"{end}network")
        with pytest.raises(mdcg.CheckpointError, match=f"looked for as {cache / file}"):
            MDCGCalculator(name)
    assert not Path("x.mdcg").exists()
    assert not list(cache.iterdir())


@pytest.mark.parametrize("command", ["info", "patch"])
def test_a_description_downloads_nothing(
    command: str, cache: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the file of the library's cache is described; nothing asks the network for it."""
    from mace.calculators import foundations_models

    monkeypatch.setattr(foundations_models, "_urlretrieve_with_timeout", pytest.fail)
    for name, file in (
        ("mace-mp-medium", "20231203mace128L1_epoch199model"),
        ("mace-off-small", "MACE-OFF23_small.model"),
    ):
        given = [command, name, *(["--info"] if command == "patch" else [])]
        program = "mdcg-patch" if command == "patch" else "mdcg info"
        assert main(given) == 4
        captured = capsys.readouterr()
        assert captured.err.splitlines()[-1] == (
            f"{program}: {name} is a published model that is not on this machine (it is "
            f"looked for as {cache / file}), and nothing is downloaded to describe it: mdcg "
            f"convert {name} -o OUT.mdcg does that"
        )
        assert captured.out == ""
        cache.mkdir(exist_ok=True)
        shutil.copy(WATER, cache / file)
        assert main(given) == 0
        assert "ScaleShiftMACE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("mace-mp-0", "mace-mp-0-small, mace-mp-0-medium, mace-mp-0-large"),
        ("mace-mp-mediun", "mace-mp-medium"),
        ("mace-omat-0", "mace-omat-0-small, mace-omat-0-medium"),
        ("mace-of-small", "mace-off-small"),
    ],
)
def test_names_that_no_library_knows(text: str, near: str, cache: Path, capsys: Any) -> None:
    assert mdcg_patch([text, "--info", "-q"]) == 4
    said = capsys.readouterr().err
    start = f"mdcg-patch: {text}: no such file, and no published model has this name: the nearest"
    assert said.startswith(f"{start} names are {near}")
    assert said.count("\n") == 1
    with pytest.raises(mdcg.CheckpointError, match="no published model has this name"):
        MDCGCalculator(text)


def test_libraries_that_are_not_installed(
    cache: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sevenn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sevenn", None)
    assert mdcg_patch(["sevennet-0", "--info", "-q"]) == 5
    said = "a SevenNet model needs sevenn, but 'sevenn.checkpoint' is not installed: pip"
    assert said in capsys.readouterr().err
    monkeypatch.setattr(model_names, "find_spec", lambda name: None)
    assert mdcg_patch(["nope", "--info", "-q"]) == 4
    assert "names of MACE, SevenNet and Nequix need their packages" in capsys.readouterr().err


def test_the_cached_file_is_no_output(medium: Path, capsys: Any) -> None:
    """The library's file is never overwritten, even where its name fits an output."""
    file = medium.with_name("MACE-OFF23_small.model")
    shutil.copy(WATER, file)
    before = file.read_bytes()
    assert mdcg_patch(["mace-off-small", "-o", str(file), "--force", "-q"]) == 2
    assert "is the input file, which is never overwritten" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_several_heads(cache: Path, build: Any, tmp_path: Path, capsys: Any) -> None:
    """A head, or a modal, that is not named is one sentence with the choices."""
    import numpy as np
    import torch

    model = build(heads=["pbe", "r2scan"], atomic_energies=np.array([[-1.5, -7.2], [-1.4, -7.1]]),
                  atomic_inter_scale=[1.3, 1.2], atomic_inter_shift=[0.2, 0.1])  # fmt: skip
    cache.mkdir()
    torch.save(model, cache / "macemh1model")
    molecule("H2O").write("h2o.xyz")
    with pytest.raises(ValueError, match=r"has 2 heads \(pbe, r2scan\): name one with head="):
        MDCGCalculator("mace-mh-1")
    assert main(["run", "mace-mh-1", "h2o.xyz", "--relax"]) == 2
    said = "mace-mh-1: the model has 2 heads (pbe, r2scan): name one with head= (on the command"
    assert said in capsys.readouterr().err
    assert (
        main(["run", "mace-mh-1", "h2o.xyz", "--md", "nve", "--steps", "1", "--head", "pbe"]) == 0
    )
    assert MDCGCalculator("mace-mh-1", head="r2scan").parameters["head"] == "r2scan"


def test_names_of_files_need_no_torch() -> None:
    """A package is opened without the libraries that resolve names."""
    package = str(DATA / "mace_water_float32.mdcg")
    code = f"import sys, mdcg; mdcg.MDCGCalculator({package!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
