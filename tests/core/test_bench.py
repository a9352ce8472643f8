"""The benchmark that is installed: structures, clocks, tables, and its command on tiny cases."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.io import write

from mdcg import UnsupportedProblemError
from mdcg.bench import report, timing
from mdcg.bench.model import EngineStep, Fitting, Settings, measure, refusal
from mdcg.bench.systems import make_system, water_box
from mdcg.cli.main import main, make_parser

from ..processes import printed_by

DATA = Path(__file__).resolve().parents[1] / "data"
CHECKPOINT = DATA / "mace_water_e3nn044.model"
PACKAGE = DATA / "mace_water_float32.mdcg"
needs_mace = pytest.mark.skipif(find_spec("mace") is None, reason="mace-torch is not installed")


# ---- structures ----


@pytest.mark.parametrize(
    ("name", "atoms", "edges"),
    [("water", 192, 16_098), ("water", 5184, 436_904), ("carbon", 1000, 158_000)],
)
def test_structures_have_the_edges_of_published_timings(name: str, atoms: int, edges: int) -> None:
    from mdcg.patch import neighbor_list

    system = make_system(name, atoms)
    index, _ = neighbor_list(system.positions, system.cell.array, system.pbc, 6.0)
    assert (len(system), index.shape) == (atoms, (2, edges))


def test_water_molecules_are_rigid_and_differ_in_orientation() -> None:
    molecules = water_box(3).positions.reshape(-1, 3, 3)
    bonds = molecules[:, 1:] - molecules[:, :1]
    np.testing.assert_allclose(np.linalg.norm(bonds, axis=2), 0.9572, rtol=1e-12)
    cosines = np.einsum("na,na->n", bonds[:, 0], bonds[:, 1]) / 0.9572**2
    np.testing.assert_allclose(np.degrees(np.arccos(cosines)), 104.52, rtol=1e-9)
    assert np.linalg.norm(bonds.sum(axis=1).mean(axis=0)) < 0.5


def test_structures_by_name_and_by_file(tmp_path: Path) -> None:
    assert set(make_system("iron", 54).numbers) == {26}
    with pytest.raises(ValueError, match="expected 3 n³: try 24, 81, 192"):
        make_system("water", 100)
    with pytest.raises(ValueError, match="neither water, carbon, iron nor a file"):
        make_system("ice")
    path = str(tmp_path / "copper.xyz")
    write(path, Atoms("Cu2", positions=[[0, 0, 0], [2, 0, 0]], cell=[9, 9, 9], pbc=[1, 0, 1]))
    assert make_system(path).pbc.tolist() == [True, False, True]
    with pytest.raises(ValueError, match="has its own number"):
        make_system(path, 2)


# ---- clocks, memory, tables ----


def test_interleave_takes_turns() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = timing.interleave(runs, timing.clock_for("cpu"), repeats=3, sample_seconds=0.0)
    assert calls == list("aaabbb") + list("ababab")
    assert (found["a"]["samples"], found["a"]["calls_per_sample"]) == (3, 1)
    assert found["a"]["quartile1"] <= found["a"]["median"] <= found["a"]["quartile3"]


def seconds(low: float, middle: float, high: float) -> dict[str, float]:
    return {"quartile1": low, "median": middle, "quartile3": high}


def test_samples_that_scatter_give_no_ratio() -> None:
    quiet, busy = seconds(0.0095, 0.010, 0.012), seconds(0.155, 0.600, 1.105)
    assert timing.ratio(quiet, quiet) == 1.0
    assert timing.ratio(busy, quiet) is timing.ratio(quiet, busy) is None
    shared = {"stress": False, "peak_bytes": None}
    section = {"atoms": 3, "edges": 6, "dtype": "float64", "model_class": "Fake", "r_max": 1.0}
    rows = [
        {**shared, "impl": "original", "seconds": busy, "speedup": timing.ratio(busy, busy)},
        {**shared, "impl": "engine", "seconds": quiet, "speedup": timing.ratio(busy, quiet)},
    ]
    lines = report.model_table({**section, "rows": rows, "refused": []}, "", "").splitlines()
    assert [line.split()[4] for line in lines[3:5]] == ["-", "-"]
    assert lines[5:] == [
        "  no ratio where samples scatter (quartiles: original 155-1105 ms): stop what else runs "
        "on this machine, and measure again"
    ]


@pytest.mark.parametrize(
    ("variable", "threads"), [("1", 1), ("3,2", 3), ("", None), ("many", None), ("0", None)]
)
def test_threads_are_those_that_were_asked_for(
    variable: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    options = make_parser().parse_args(["bench", "model", "a.model"])
    assert options.threads == (threads or len(os.sched_getaffinity(0)))
    assert make_parser().parse_args(["bench", "model", "a.model", "--threads", "5"]).threads == 5


@pytest.mark.parametrize("tuned", [False, True])
def test_peak_memory_sees_temporaries(tuned: bool) -> None:
    """Peak memory includes temporaries, with the default and the tuned allocator."""
    code = (
        "import numpy as np; from mdcg.bench import timing\n"
        f"if {tuned}: timing.keep_heap()\n"
        "def run(): return float(np.ones(5_000_000).sum())\n"
        "run(); print(timing.peak_bytes(run, 'cpu', 7))"
    )
    said = printed_by(code)
    if said == "None\n":
        pytest.skip("no /proc/self/clear_refs to reset the high-water mark")
    assert 38e6 < int(said) < 60e6


def test_reasons_without_a_time() -> None:
    assert refusal("engine", MemoryError("cuda:0 is full")) == {
        "impl": "engine", "reason": "out of memory: cuda:0 is full", "failed": False,
    }  # fmt: skip
    unsupported = refusal("patched", UnsupportedProblemError("no kernels for uvw"))
    assert (unsupported["reason"], unsupported["failed"]) == ("no kernels for uvw", False)
    assert refusal("engine-exact", RuntimeError("broken"))["failed"]
    other = refusal("oeq", RuntimeError("line one\n  line two"))
    assert (other["reason"], other["failed"]) == ("RuntimeError: line one line two", False)


def test_one_that_fails_does_not_stop_the_others() -> None:
    class Step:
        num_edges = nbytes = 0
        info = type("Info", (), {"model_class": "Fake", "dtype": "float64", "r_max": 1.0})

        def __init__(self, fails: type[Exception] | None = None) -> None:
            self.fails = fails

        def __call__(self) -> dict[str, Any]:
            if self.fails:
                raise self.fails("broken")
            return {"energy": np.ones(1), "forces": np.full((3, 3), 2.0)}

    loaders = {
        "original": lambda: lambda atoms: Step(),
        "oeq": lambda: lambda atoms: Step(AssertionError),
        "cueq": lambda: Step(KeyError)(),  # type: ignore[dict-item]
        "engine": lambda: lambda atoms: Step(MemoryError),
    }
    small, large = measure(loaders, [water_box(1), water_box(2)], Settings(repeats=1))  # type: ignore[arg-type]
    assert [row["impl"] for row in large["rows"]] == ["original"]
    reasons = {one["impl"]: one["reason"] for one in large["refused"]}
    assert reasons == {
        "oeq": "AssertionError: broken",
        "cueq": "KeyError: 'broken'",
        "engine": "out of memory with 3 atoms already",
    }
    reason = "out of memory: broken"
    assert {"impl": "engine", "reason": reason, "failed": False} in small["refused"]
    lines = report.model_table(large, "a.model", "water").splitlines()
    assert lines[0] == "a.model  float64  Fake, r_max 1 Å; energy and forces"
    assert "  engine: out of memory with 3 atoms already" in lines
    assert report.model_table(large | {"rows": []}, "", "").splitlines() == lines[-3:]


@pytest.mark.parametrize(("room", "turns"), [(200, "abab"), (100, "aabb")])
def test_what_does_not_fit_together_is_timed_apart(
    room: int, turns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Step:
        num_edges = nbytes = own_bytes = 0
        info = type("Info", (), {"model_class": "Fake", "dtype": "float64", "r_max": 1.0})

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self) -> dict[str, Any]:
            calls.append(self.name)
            return {"energy": np.ones(1), "forces": np.zeros((3, 3))}

    free = iter([room, 100, 20, 100, 20])
    monkeypatch.setattr("mdcg.bench.model.free_bytes", lambda: next(free))
    monkeypatch.setattr(timing, "_WARMUP", 1)
    loaders: dict[str, Any] = {name: lambda name=name: lambda atoms: Step(name) for name in "ab"}
    (found,) = measure(loaders, [water_box(1)], Settings(repeats=1))
    assert [(row["impl"], row["peak_bytes"]) for row in found["rows"]] == [("a", 80), ("b", 80)]
    timed = "".join(calls).removeprefix("aabb")  # each is called twice before
    assert timed[0] == "a"
    assert ("ba" in timed) == (turns == "abab")


def test_sizes_that_cannot_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdcg.bench.model.total_bytes", lambda device: 10**9)
    fitting = Fitting("cuda")
    for atoms in (100, 1000):
        rows = [{"impl": "oeq", "peak_bytes": atoms * 10**5}]
        rows.append({"impl": "engine", "peak_bytes": atoms * 10**5, "plans_memory": True})
        fitting.add({"atoms": atoms, "rows": rows, "refused": []})
    assert fitting.why_not("oeq", 10_000) is None
    assert "out of memory: some 2 GB" in str(fitting.why_not("oeq", 20_000))
    assert fitting.why_not("engine", 20_000) is None
    refused = [{"impl": "cueq", "reason": "out of memory"}]
    fitting.add({"atoms": 1000, "rows": [], "refused": refused})
    assert fitting.why_not("cueq", 999) is None
    assert fitting.why_not("cueq", 1000) == "out of memory with 1,000 atoms already"


def test_table_is_aligned() -> None:
    table = report.numbers_table(("a", "b", "c"), [["x", "yy", "1"], ["xxx", "y", "22"]])
    assert table.splitlines() == ["  a     b   c", "  x    yy   1", "  xxx   y  22"]


# ---- the command ----


@needs_mace
@pytest.mark.slow
def test_bench_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark of a model prints and saves rows for two sizes and three implementations."""
    monkeypatch.setattr(timing, "keep_heap", lambda: None)
    path = tmp_path / "model.json"
    options = ["--atoms", "3,24", "--repeats", "1", "--json", str(path)]
    assert (
        main(["bench", "model", str(CHECKPOINT), *options, "--dtype", "float32", "--stress"]) == 0
    )
    out = capsys.readouterr().out
    assert "mace_water_e3nn044.model  float32  ScaleShiftMACE" in out
    assert "energy, forces and stress" in out
    assert "engine: mace ScaleShiftMACE, float32, cpu" in out
    result = json.loads(path.read_text())
    assert set(result) == {
        *("benchmark", "created", "mdcg", "machine", "options", "rows", "refused"),
    }
    assert (result["benchmark"], result["refused"]) == ("model", [])
    rows = result["rows"]
    assert [(row["atoms"], row["impl"]) for row in rows] == [
        (atoms, impl) for atoms in (3, 24) for impl in ("original", "patched", "engine")
    ]
    assert {row["edges"] for row in rows[3:]} == {632}
    for row in rows:
        assert row["forces_difference_float64"] < 1e-4
        assert row["peak_bytes"] is None or row["peak_bytes"] > 0
        assert {"median", "quartile1", "quartile3"} < set(row["seconds"])
        if row["impl"] != "original":
            assert row["stress_difference_original"] < 1e-6
            assert row["forces_difference_original"] < 1e-4
    assert rows[0]["speedup"] == 1.0  # one sample has no spread


def test_a_package_in_domains(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--atoms", "5184", "--repeats", "1", "--threads", "1"]
    assert main(["bench", "model", str(PACKAGE), *options, "--memory", "20 MB"]) == 0
    printed = capsys.readouterr().out
    assert "  water, 5184 atoms\n" in printed  # edges of one domain are not those of the system
    assert "domains of at most" in printed
    assert main(["bench", "model", str(PACKAGE), *options, "--memory", "1 MB"]) == 0
    assert "engine: out of memory: " in capsys.readouterr().out


def test_torch_is_not_loaded() -> None:
    command = ["bench", "model", str(PACKAGE), "--atoms", "3", "--repeats", "1", "--stress"]
    code = f"from mdcg.cli.main import main; assert main({command!r}) == 0"
    said = printed_by(f"{code}; import sys; print('torch' in sys.modules)")
    assert said.splitlines()[-1] == "False"


def test_the_engine_in_domains() -> None:
    atoms = make_system("water", 648).repeat((3, 1, 1))
    whole = EngineStep(PACKAGE, Settings(), atoms)
    forces = whole()["forces"]
    divided = EngineStep(PACKAGE, Settings(memory=f"{whole.own_bytes / 2e6:.3f} MB"), atoms)
    np.testing.assert_allclose(divided()["forces"], forces, atol=1e-5)
    assert json.loads(divided.model.report())["domains"] > 1


def test_the_engine_on_other_structures() -> None:
    with pytest.raises(ValueError, match="does not know Fe: choose another --system"):
        EngineStep(PACKAGE, Settings(), make_system("iron", 54))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "no.model"], "model 'no.model' is not a file: check the path"),
        (["model", str(PACKAGE), "--impl", "patched"], "has no patched, expected one of engine"),
        (["model", str(PACKAGE), "--head", "x"], "has its own head and dtype"),
        (["model", str(CHECKPOINT), "--dtype", "float16"], "dtype is 'float16', expected"),
        (["model", str(PACKAGE), "--atoms", "100"], "no water box has 100 atoms"),
        (["model", str(PACKAGE), "--system", "ice"], "system 'ice' is neither water, carbon, iron"),
        (
            ["model", str(PACKAGE), "--json", "no/a.json"],
            "the folder of no/a.json does not exist or cannot be written to",
        ),
        (["startup", "no.mdcg"], "no.mdcg does not exist: convert one"),
        (["lammps", "no.mdcg"], "no.mdcg does not exist: convert one"),
        (["lammps", str(CHECKPOINT)], "mace_water_e3nn044.model is not a package: convert a"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mdcg bench: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_bench_without_a_device_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch finds a CUDA device")
    assert main(["bench", "model", str(CHECKPOINT), "--device", "cuda"]) == 5
    captured = capsys.readouterr()
    assert captured.err.startswith(f"mdcg bench: torch {torch.__version__} finds no CUDA device")
    assert captured.out == ""


def test_bench_startup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "startup.json"
    assert main(["bench", "startup", str(PACKAGE), "--repeats", "2", "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert "median of 2" in out
    assert "without torch" in out
    result = json.loads(target.read_text())
    for kind in ("cold", "cached"):
        assert set(result[kind]) == {"import", "core", "open", "kernels"}
        assert all(seconds > 0 for seconds in result[kind].values())
    if "generic" not in result["summary"]:  # there is a compiler
        assert result["cold"]["kernels"] > result["cached"]["kernels"], "they were compiled"
    (tmp_path / "bad.mdcg").write_bytes(b"abc")
    assert main(["bench", "startup", str(tmp_path / "bad.mdcg")]) == 4
    assert "bad.mdcg" in capsys.readouterr().err.splitlines()[-1]
