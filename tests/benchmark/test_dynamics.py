"""Dynamics of a checkpoint, in a process of its own for each program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert "fastmace: " in printed.splitlines()[0]
    milliseconds = float(printed.split("192 atoms")[1].split()[0])
    assert 0.1 < milliseconds < 1e5
    assert main(["table", result[1]]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == f"| water, float32 | 192 | {format_number(milliseconds)} |"


def test_a_program_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(program: str, run: dynamics.Run) -> dict[str, Any]:
        if program == "symmetrix":
            raise RuntimeError("broken")
        row = {"impl": program, "dtype": "float32", "atoms": len(run.atoms), "peak_bytes": None}
        return {**row, "seconds": {"median": 0.001}}

    monkeypatch.setattr(dynamics, "missing", lambda program, device: None)
    monkeypatch.setattr(dynamics, "measure", measure)
    files = [str(DATA / "water.model"), str(DATA / "water192.xyz")]
    result = ["--json", str(tmp_path / "result.json")]
    assert main(["dynamics", *files, "--copies", "1", "--device", "cpu", *result]) == 0
    printed = capsys.readouterr().out
    assert "symmetrix        192 atoms RuntimeError: broken" in printed
    assert main(["table", result[1]]) == 0
    table = capsys.readouterr().out
    assert "| water, float32 | 192 | 1.00 | cannot | 1.00 | 1.0x |" in table
    assert "- Symmetrix-XL: RuntimeError: broken" in table


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
