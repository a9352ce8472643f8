"""Dynamics of a checkpoint, in a process of its own for each program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import ase.io
import numpy as np
import pytest
from benchmark import dynamics
from benchmark.cli import main

from mdcg.bench.report import format_number

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"


def test_velocities_leave_the_structure_where_it_is() -> None:
    water = ase.io.read(DATA / "water192.xyz")
    atoms = dynamics.with_velocities(water, 2)
    assert len(atoms) == 8 * len(water)
    assert np.abs(atoms.get_momenta().sum(axis=0)).max() < 1e-9
    assert 280 < atoms.get_temperature() < 320


@pytest.mark.slow
def test_of_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    files = [str(DATA / "water.model"), str(DATA / "water192.xyz")]
    result = ["--json", str(tmp_path / "result.json")]
    code = main(["dynamics", *files, "--copies", "1", "--steps", "2", "--device", "cpu", *result])
    printed = capsys.readouterr().out
    assert code == 0
    assert "not measured: fastmace: it runs on CUDA devices only" in printed
    milliseconds = float(printed.split("192 atoms")[1].split()[0])
    assert 0.1 < milliseconds < 1e5
    assert main(["table", result[1]]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == f"| water, float32 | 192 | {format_number(milliseconds)} |"


@pytest.mark.skipif(find_spec("fastmace") is not None, reason="fastmace is installed")
def test_what_is_missing() -> None:
    assert dynamics.missing("mdcg", "cuda") is None
    assert dynamics.missing("fastmace", "cuda") == "fastmace is not installed"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.model", "water192.xyz"], "none.model does not exist"),
        (["water.model", "none.xyz"], "none.xyz does not exist"),
        (["water.model", "water192.xyz", "--impl", "mdcg,slowmace"], "'slowmace' is unknown"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, structure, *rest = arguments
    assert main(["dynamics", str(DATA / model), str(DATA / structure), *rest]) == 2
    assert sentence in capsys.readouterr().err
