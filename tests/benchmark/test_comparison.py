"""Results of several runs together: the table in Markdown and the drawing over sizes."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmark import comparison
from benchmark.cli import main

from mdcg.bench.report import document

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def row(impl: str, atoms: int, milliseconds: float, **more: Any) -> dict[str, Any]:
    place = {"model": "medium", "dtype": "float32", "system": "water", "atoms": atoms}
    peak = 1e5 * atoms * (1 if impl == "engine" else 12)
    seconds = {"median": 1e-3 * milliseconds}
    return {**place, "impl": impl, "stress": True, "seconds": seconds, "peak_bytes": peak, **more}


def write(
    path: Path, rows: list[dict[str, Any]], refused: list[dict[str, Any]], kind: str = "model"
) -> str:
    result = document(kind, {"threads": 2, "device": "cuda"})
    result["machine"]["gpu"] = "NVIDIA H200"
    result["machine"]["packages"] = {"e3nn": "0.4.4", "cuequivariance": "0.13.0"}
    result["rows"], result["refused"] = rows, refused
    path.write_text(json.dumps(result))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return a run beside two others, one of them out of memory and one refused, and a second."""
    place = {"model": "medium", "dtype": "float32", "system": "water", "atoms": 24_000}
    refused = [
        {**place, "impl": "original", "reason": "out of memory"},
        {**place, "impl": "oeq", "reason": "RuntimeError: int32"},
    ]
    first = [
        *(row("original", 5184, 214), row("cueq", 5184, 43.2), row("engine", 5184, 9.9)),
        *(row("cueq", 24_000, 104), row("engine", 24_000, 21.5)),
        row("engine", 192, 0.9, model="nequip-m"),
    ]
    second = [row("engine", 1_029_000, 900), row("engine", 5184, 4.9)]
    return [
        write(tmp_path / "first.json", first, refused),
        write(tmp_path / "second.json", second, []),
    ]


def test_table_of_two_runs(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", *files]) == 0
    head, rule, *lines, empty, reason = capsys.readouterr().out.splitlines()
    assert (empty, reason) == ("", "- OpenEquivariance: RuntimeError: int32")
    assert head == (
        "| model | atoms | e3nn | OpenEquivariance | cuEquivariance | mdcg, engine | "
        "faster than the best other | GB: engine, least of the others |"
    )
    assert rule.count("|") == head.count("|")
    assert lines == [
        "| MACE medium, float32 | 5,184 | 214 | not run | 43.2 | 4.90 | 8.8x | 0.52, 6.2 |",
        "| MACE medium, float32 | 24,000 | no memory | cannot | 104 | 21.5 | 4.8x | 2.4, 29 |",
        "| MACE medium, float32 | 1,029,000 | not run | not run | not run | 900 | - | 103, - |",
        "| NequIP M, float32 | 192 | not run | not run | not run | 0.900 | - | 0.02, - |",
    ]


def test_a_run_of_mdcg_alone(tmp_path: Path) -> None:
    one = row("patched", 192, 17.0, peak_bytes=None)
    found = comparison.read_results([write(tmp_path / "a.json", [one], [])])
    assert (
        comparison.markdown_table(found).splitlines()[2] == "| MACE medium, float32 | 192 | 17.0 |"
    )


def test_what_was_refused_once_and_measured_later_is_measured(tmp_path: Path) -> None:
    refused = {**row("engine", 192, 0.0), "reason": "x"}
    before = write(tmp_path / "a.json", [row("original", 192, 22.0)], [refused])
    after = write(tmp_path / "b.json", [row("engine", 192, 0.5)], [])
    for order in ([before, after], [after, before]):
        found = comparison.read_results(order)
        assert "| 22.0 | 0.500 | 44.0x |" in comparison.markdown_table(found)


def test_rows_with_stress_are_rows_of_their_own(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(Path(files[1]).read_text())
    document["options"]["stress"] = True
    Path(files[1]).write_text(json.dumps(document))
    assert main(["table", *files]) == 0
    printed = capsys.readouterr().out
    assert "| MACE medium, float32 | 5,184 | 214 | not run | 43.2 | 9.90 |" in printed
    assert "| MACE medium, float32, with stress | 5,184 | not run | not run | not run |" in printed


@needs_matplotlib
def test_drawing(files: list[str], tmp_path: Path) -> None:
    target = tmp_path / "times.svg"
    assert main(["plot", *files, "-o", str(target)]) == 0
    text = target.read_bytes()
    assert len(text) < 150_000
    ElementTree.fromstring(text)
    assert main(["plot", *files, "-o", str(target)]) == 0
    assert target.read_bytes() == text, "the same numbers give the same file"
    # Both panels show every implementation in its colour: a line with markers, and a point.
    for colour in (b"#8c8c8c", b"#5b9a3c", b"#1f5fa8"):
        assert text.count(b"stroke: " + colour) > 4
    assert b"#d28b26" not in text
    picture = tmp_path / "times.png"
    assert main(["plot", *files, "-o", str(picture), "--model", "nequip-m"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_matplotlib
def test_dynamics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table and the plot of dynamics contain FastMACE."""
    rows = [row("fastmace", 192, 1.4), row("mdcg", 192, 0.35), row("mdcg", 5184, 3.0)]
    result = write(
        tmp_path / "a.json", [each | {"peak_bytes": None} for each in rows], [], "dynamics"
    )
    assert main(["table", result]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| model | atoms | FastMACE | mdcg | faster than the best other |",
        "|---|---|---|---|---|",
        "| MACE medium, float32 | 192 | 1.40 | 0.350 | 4.0x |",
        "| MACE medium, float32 | 5,184 | not run | 3.00 | - |",
    ]
    assert main(["plot", result, "-o", str(tmp_path / "a.svg")]) == 0
    for colour in (b"#b5523b", b"#1f5fa8"):
        assert (tmp_path / "a.svg").read_bytes().count(b"stroke: " + colour) > 2


@needs_matplotlib
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "huge"], "no times of huge, only of medium float32, nequip-m float32"),
        (["--dtype", "float64"], "no times of any model float64, only of"),
    ],
)
def test_what_cannot_be_drawn(
    files: list[str], tmp_path: Path, arguments: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["plot", *files, "-o", str(tmp_path / "x.svg"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_no_results(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "conv.json"
    other.write_text(json.dumps({"benchmark": "conv"}))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    empty = write(tmp_path / "empty.json", [], [])
    moving = write(tmp_path / "moving.json", [row("mdcg", 192, 0.3)], [], "dynamics")
    for path, message in (
        (str(other), "is not a result of `model --json`"),
        (str(broken), "cannot be read"),
        (empty, "nothing was measured"),
        (f"{files[0]} {moving}", "is a result of `dynamics`, expected one of `model`"),
    ):
        assert main(["table", *path.split()]) == 2
        assert message in capsys.readouterr().err


@needs_matplotlib
@pytest.mark.parametrize("name", ["x.abc", "no/x.svg"])
def test_files_that_cannot_be_written(
    files: list[str], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *files, "-o", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mdcg bench: ")
    assert error.count("\n") == 1


def test_missing_matplotlib(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", *files, "-o", "x.svg"]) == 5
    assert capsys.readouterr().err == (
        "mdcg bench: the package 'matplotlib' is not installed: pip install 'matplotlib>=3.7'\n"
    )
