"""Commands and code of the documents, run as a reader would, each document from top to bottom.

Blocks in ``bash`` and ``python`` are run, those in ``lammps`` are inputs, and inline code is run
where it is a whole command. Comments, which readers do not see, are before a block or after inline
code:

    <!-- in: clone -->          from here on in a copy of the clone
    <!-- in: water.xyz a=b -->  in a folder of one's own with these files of examples/data, a as b
    <!-- needs: nequip -->      where this module is installed; "gpu": on a device
    <!-- not run: REASON -->
    <!-- file: NAME -->         what the block holds is written to a file
    <!-- start -->              these lines are before all inputs of the section
    <!-- start: LINES -->       the same with lines that readers do not see
    <!-- alone -->              an input without them
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "examples" / "data"
NAMES = (
    *("README.md", "SECURITY.md", "lammps_plugin/README.md"),
    *("examples/README.md", "examples/data/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / "usage").glob("*.md"))),
)
LANGUAGES = ("bash", "python", "lammps", "yaml", "text")
#: What is not copied with the clone.
BIG = shutil.ignore_patterns(".*", "build", "csrc", "tests", "output", "__pycache__")

# Fewer steps, and smaller systems.
SHORTER = {
    r"\brun \d{3,}": "run 10",
    r"custom 100 ": "custom 10 ",
    r"\.run\(1000\)": ".run(2)",
    r"fmax=0\.05": "fmax=0.3",
    r"lmp -in in\.water\b": r"\g<0> -var steps 5",
    r"in\.heat_flux": r"\g<0> -var cells 2 -var steps 20 -var every 5 -var points 3",
    r"in\.active_learning": r"\g<0> -var limit 1e-3",
    r"water_md\.py": r"\g<0> --steps 3",
    r"many_systems\.py": r"\g<0> --structures 4 --steps 3",
    r"checkpoint_to_lammps\.sh": r"\g<0> 5",
    r"--steps 1000": "--steps 10",
    r"max_num_epochs 2": "max_num_epochs 1",
}

_TOKEN = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```|<!--\s*(?P<marks>.*?)\s*-->"
    r"|^(?P<level>#+) [^\n]+$|`(?P<inline>[^`\n]+)`",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(r"(?:bash|cd|lmp|mpirun|nequip-\w+|python|mdcg(?:-patch)?(?! -)) \S")
# What is mentioned without its arguments, and words in place of names.
_MENTION = re.compile(r"python -(?:c|m|m mdcg|m mdcg kernels)|.*\b(?:[A-Z]{2,}\b(?!=)|[A-Z]\b).*")


@dataclass
class Step:
    """One block or command of a document."""

    document: str
    line: int
    section: int  # sections of the second level, which share variables of Python
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    start: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    def needs(self, name: str) -> bool:
        """Return whether it runs only where something is."""
        return name in self.marks.get("needs", "").split()


def _marks(text: str) -> dict[str, str]:
    """Return marks by name; only "start" has more than one line."""
    parts = [text] if text.startswith("start:") else text.split(";")
    found = (part.partition(":") for part in parts)
    return {name.strip(): value.strip() for name, _, value in found}


@cache
def steps(document: str) -> tuple[Step, ...]:
    """Return what a document has to run, in its order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found: list[Step] = []
    section, level, start, place = 0, 0, "", ""
    marks: dict[str, str] = {}
    end = 0  # of the last inline code
    for token in _TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if token["level"]:
            section += len(token["level"]) <= 2
            if len(token["level"]) <= level:
                start, level = "", 0
        elif token["marks"] is not None:
            new = _marks(token["marks"])
            place = new.pop("in", place)
            if new.get("start"):
                start, level = new.pop("start") + "\n", 9
            if found and end == token.start():
                found[-1].marks |= new
            else:
                marks |= new
        elif token["block"] is not None:
            step = Step(document, line, section, token["language"], token["block"], marks)
            step.start, step.place = start if "alone" not in marks else "", place
            if "start" in marks:
                start, level = step.text, 9
            found.append(step)
            marks = {}
        elif _COMMAND.match(token["inline"]) and not _MENTION.fullmatch(token["inline"]):
            found.append(Step(document, line, section, "bash", token["inline"], {}, "", place))
            end = token.end()
    return tuple(found)


def to_run(with_nequip: bool) -> list[Any]:
    """Return what is run where NequIP is installed, or elsewhere, as parameters of a test."""
    return [
        pytest.param(step, id=str(step), marks=[pytest.mark.gpu] if step.needs("gpu") else [])
        for document in NAMES
        for step in steps(document)
        if step.language in ("bash", "python", "lammps")
        and "not run" not in step.marks
        and "start" not in step.marks
        and step.needs("nequip") == with_nequip
    ]


def shorter(text: str) -> str:
    """Return what a test can wait for."""
    for long, short in SHORTER.items():
        text = re.sub(long, short, text)
    return text


# Runs blocks of Python one after the other, as if they were typed.
_WORKER = """
import json, sys, traceback
answers, sys.stdout, scopes = sys.stdout, sys.stderr, {}
for line in sys.stdin:
    section, name, code = json.loads(line)
    scope, error = scopes.setdefault(section, {"__name__": "__main__"}), ""
    try:
        exec(compile(code, name, "exec"), scope)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=answers, flush=True)
"""


class Reader:
    """Someone who follows one document."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pythons = folder, {}
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
        for name in ("PYTHONPATH", "MDCG_DISABLE_JIT"):
            self.environment.pop(name, None)
        scripts = folder / "bin"
        scripts.mkdir()
        # what would be installed is here
        (scripts / "pip").write_text("#!/bin/sh\n")
        (scripts / "pip").chmod(0o755)
        path = f"{scripts}:{sys.prefix}/bin:{os.environ['PATH']}"
        self.environment["PATH"] = path

    def place(self, name: str) -> Path:
        """Return the folder in which a document says that something runs."""
        folder = self.folder / ("clone" if name == "clone" else "own")
        if name == "clone" and not folder.exists():
            shutil.copytree(ROOT, folder, ignore=BIG)
            (folder / "examples" / "output").mkdir()
        elif name != "clone":
            folder.mkdir(exist_ok=True)
            for each in name.split():
                source, _, target = each.partition("=")
                if not (folder / (target or source)).exists():
                    shutil.copy(DATA / source, folder / (target or source))
        return folder

    def run(self, step: Step) -> None:
        """Run a step, and fail with what it has printed."""
        folder, text = self.place(step.place), shorter(step.start + step.text)
        if "file" in step.marks:
            (folder / step.marks["file"]).write_text(text)
        elif step.language == "python":
            assert not (error := self.python(step, folder, text)), error
        elif step.language == "lammps":
            runs = "" if re.search(r"^run ", step.text, re.MULTILINE) else "run 10\n"
            (folder / "in.block").write_text(text + runs)
            self.command("lmp -in in.block -log none", folder)
        else:
            self.command(text, folder)

    def command(self, text: str, folder: Path) -> None:
        """Run commands of a shell, of which none may fail."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,  # mpirun reads it
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-6000:]}"

    def python(self, step: Step, folder: Path, text: str) -> str:
        """Run code in the Python of a folder; return the traceback of an error."""
        if folder not in self.pythons:
            self.pythons[folder] = subprocess.Popen(
                ["python", "-c", _WORKER],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        python = self.pythons[folder]
        # errors name the line of the document
        job = [step.section, step.document, "\n" * step.line + text]
        print(json.dumps(job), file=python.stdin, flush=True)
        return str(json.loads(python.stdout.readline() or '"Python has ended"'))

    def close(self) -> None:
        """End what runs."""
        for python in self.pythons.values():
            python.communicate()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    """Return a reader of each document."""
    found = {name: Reader(tmp_path_factory.mktemp("reader")) for name in NAMES}
    yield found
    for reader in found.values():
        reader.close()


def follow(step: Step, readers: dict[str, Reader]) -> None:
    """Run a step, where all is there that it needs."""
    for name in step.marks.get("needs", "").split():
        if name != "gpu" and find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    readers[step.document].run(step)
