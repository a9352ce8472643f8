"""Statements of the documents hold: settings, files, links, exported names, packages to install.

tests/documents.py runs their commands and code.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mdcg
from mdcg.env import VARIABLES
from mdcg.errors import installation

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *(".", "docs", "docs/usage", "mdcg/package", "lammps_plugin", "tests/emulator"),
    *("examples", "examples/benchmark", "examples/data"),
)
DOCUMENTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
USAGE = ROOT / "docs" / "usage"


def blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def section(text: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    (level,) = re.findall(rf"^(#+) {title}$", text, re.MULTILINE)
    return re.split(rf"^#{{1,{len(level)}}} ", text.split(f"{level} {title}\n")[1], flags=re.M)[0]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as Git hosts make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Yield file and anchor of each link that leads to another place in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            yield name, anchor


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document(path: Path) -> None:
    """Links, files, scripts and names in a document exist."""
    text = path.read_text(encoding="utf-8")
    for name, anchor in links(path):
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"
    named = re.findall(r"bash ([\w./]+\.sh)", text)
    named += re.findall(r"`((?:csrc|mdcg|tests|examples|lammps_plugin)/[\w./-]+)`", text)
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not {name for name in missing if not name.startswith("examples/output")}
    for line in re.findall(r"^from mdcg import (.+)$", text, re.MULTILINE):
        assert {name.strip() for name in line.split(",")} <= set(mdcg.__all__)
    for name in re.findall(r"\bmdcg\.([A-Z]\w*|\w+(?=\())", text):
        assert hasattr(mdcg, name), name
    assert not re.search(r"BENCH_|TIME_|TODO|XXX", text)


def test_blocks_of_the_readme_are_short() -> None:
    for block in blocks(README, r"\w*"):
        assert len([line for line in block.splitlines() if line]) <= 6, block


def test_settings_table_is_that_of_the_code() -> None:
    text = (USAGE / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(MDCG_\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    found = [(name, default.replace("`", ""), meaning) for name, default, meaning in rows]
    assert found == [(v.name, v.default, v.meaning) for v in VARIABLES]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("from mdcg import patch_model", "mdcg.patch_model needs 'torch', which is not installed:"),
        (
            "import mdcg.torchsim",
            "mdcg.torchsim needs 'torch', which is not installed: pip install 'torch-sim",
        ),
    ],
)
def test_hints_where_torch_is_missing(use: str, message: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; {use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"mdcg.errors.MissingDependencyError: {message}" in done.stderr


def test_hints_name_packages_that_an_index_has() -> None:
    """Hints name packages on an index, and no extra of mdcg, which is not there."""
    assert installation("mace.modules") == "pip install 'mace-torch>=0.3.15' 'torch>=2.6'"
    assert installation("torch").startswith("pip install 'mace-torch>=0.3.15' 'torch>=2.6', or")
    assert installation("tad_mctc").startswith("pip install 'tad-dftd3")
    assert installation("les_of.tomorrow") == "pip install les_of"
    assert installation("les.les") == "pip install git+https://github.com/ChengUCB/les"
    with pytest.MonkeyPatch.context() as patch:

        def refuse(name: str) -> None:
            raise importlib.metadata.PackageNotFoundError(name)

        patch.setattr("mdcg.errors.requires", refuse)  # mdcg without metadata
        assert installation("mace") == "pip install mace"
    files = [path for name in ("mdcg", "examples", "csrc") for path in (ROOT / name).rglob("*.*")]
    texts = {path: path.read_bytes() for path in files if path.suffix in (".py", ".sh", ".cpp")}
    assert [path for path, text in texts.items() if b"mdcg[" in text] == []


def test_phonons_are_those_of_their_package(tmp_path: Path) -> None:
    """The phonon recipe does not reuse files that another package left in the folder."""
    text = (USAGE / "ase.md").read_text(encoding="utf-8")
    start, *recipes = blocks(section(text, "Recipes"), "python")
    (recipe,) = [block for block in recipes if "Phonons" in block]
    code = start + recipe.replace("(3, 3, 3)", "(1, 1, 1)")
    found = []
    for folder, model in (("one", "nequip_water"), ("one", "mace_water"), ("two", "mace_water")):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for name in ("water192.xyz", "ice.xyz"):
            shutil.copy(ROOT / "examples" / "data" / name, place)
        shutil.copy(ROOT / "tests" / "data" / f"{model}_float64.mdcg", place / "water.mdcg")
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] != found[1] == found[2]


def test_the_wheel_states_and_holds_both_licences() -> None:
    found = importlib.metadata.metadata("mdcg")
    assert found["License-Expression"] == "MIT AND GPL-2.0-only"
    files = {str(file) for file in importlib.metadata.files("mdcg") or ()}
    for name in ("LICENSE", "lammps_plugin/LICENSE"):
        assert any(file.endswith(f"licenses/{name}") for file in files), name
