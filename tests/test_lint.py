"""The tree is linted, formatted and typed, by the versions pinned in the extra ``dev``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CPP_SUFFIXES = (".cpp", ".hpp", ".h")


def run_tool(name: str, *args: str) -> None:
    """Run a tool of this environment in the root of the tree; its output is the failure."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: pip install 'mdcg[dev]'")
    done = subprocess.run([path, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{name} {args[0]}:\n{done.stdout}{done.stderr}"


def test_ruff_check() -> None:
    run_tool("ruff", "check", "--output-format=concise", ".")


def test_ruff_format() -> None:
    run_tool("ruff", "format", "--check", "--diff", ".")


def test_mypy_strict() -> None:
    run_tool("mypy", "--strict", "mdcg")


def test_clang_format() -> None:
    sources = sorted(
        str(path.relative_to(ROOT))
        for folder in ("csrc", "mdcg", "lammps_plugin", "tests/emulator")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in CPP_SUFFIXES
    )
    assert sources, "no C++ sources found"
    run_tool("clang-format", "--dry-run", "-Werror", *sources)
