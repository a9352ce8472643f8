"""The benchmark's processes and its command, on the smallest cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mdcg import DeviceError, MissingDependencyError
from mdcg.bench import report
from mdcg.bench.cases import CASES
from mdcg.bench.cli import main
from mdcg.bench.process import (
    JobError,
    _failure,
    child_environment,
    describe_settings,
    run_job,
)

DATA = Path(__file__).resolve().parents[1] / "data"
torch = pytest.importorskip("torch")
needs_e3nn = pytest.mark.skipif(find_spec("e3nn") is None, reason="e3nn is not installed")
needs_mace = pytest.mark.skipif(find_spec("mace") is None, reason="mace-torch is not installed")


# ---- processes ----


def test_child_environment_is_tuned_and_the_own_is_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    before = dict(os.environ)
    tuned = child_environment(2, "tuned", {"MDCG_CACHE_DIR": "/x"})
    assert tuned["MALLOC_MMAP_THRESHOLD_"] == "4294967296"
    assert (tuned["OMP_NUM_THREADS"], tuned["OMP_PROC_BIND"]) == ("2", "true")
    assert tuned["MDCG_CACHE_DIR"] == "/x"
    stock = child_environment(1, "stock")
    assert not any(name.startswith("MALLOC_") for name in stock)
    assert stock["OMP_PROC_BIND"] == "false"
    assert child_environment(2, "stock", device="cuda")["OMP_PROC_BIND"] == "false"
    assert dict(os.environ) == before
    assert "MALLOC_TOP_PAD_" in describe_settings(1, "tuned")["environment"]
    with pytest.raises(ValueError, match="threads is 0, expected 1 or more"):
        child_environment(0, "tuned")
    with pytest.raises(ValueError, match="allocator is 'jemalloc', expected one of tuned, stock"):
        child_environment(1, "jemalloc")


def test_errors_come_back_from_the_process() -> None:
    job = {"kind": "conv-timing", "options": {"case": "mace-small", "device": "cuda"}}
    with pytest.raises(DeviceError, match="use --device cpu"):
        run_job(job, child_environment(1, "stock"))
    with pytest.raises(JobError, match="KeyError") as caught:
        run_job({"kind": "nonsense"}, child_environment(1, "stock"))
    assert not caught.value.died


def test_a_lost_process_is_one_sentence() -> None:
    with pytest.raises(JobError, match=r"did not end within 0 s: choose fewer atoms") as caught:
        run_job({"kind": "machine"}, child_environment(1, "stock"), timeout=0.01)
    assert caught.value.died
    assert _failure("conv-timing", -9, "") == (
        "benchmark process conv-timing was ended by SIGKILL: memory ran out, choose fewer atoms"
    )
    assert (
        _failure("x", 3, "a\nlast words\n") == "benchmark process x failed with code 3: last words"
    )


def test_an_ended_command_ends_its_processes(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    sleeper = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = (
        "import subprocess, sys; from mdcg.bench import cli\n"
        f"cli._bench_conv = lambda options: subprocess.run([sys.executable, '-c', {sleeper!r}])\n"
        "sys.exit(cli.main(['conv']))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


# ---- the command ----


def run_main(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@needs_e3nn
@pytest.mark.slow
def test_bench_conv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    code, out, err = run_main(
        capsys,
        *("conv", "--case", "nequix-last", "--atoms", "3", "--repeats", "2", "--threads", "1"),
        *("--passes", "fwd", "--json", str(path), "--verbose"),
    )
    assert code == 0, err
    assert "allocator tuned" in out
    assert "MALLOC_TOP_PAD_=268435456" in out
    assert "nequix-last  float32" in out
    assert "from the cache: loaded" in out
    result = json.loads(path.read_text())
    assert set(result) == {
        *("format", "benchmark", "created", "mdcg", "machine", "settings", "options", "rows"),
        *("startup", "refused", "failures", "spent"),
    }
    assert (result["format"], result["benchmark"], result["failures"]) == (1, "conv", [])
    assert set(result["machine"]["rates"]["float32"]) == {
        *("dtype", "gemm_gflops", "copy_gbytes", "read_gbytes"),
    }
    assert len(result["rows"]) == 2
    for row in result["rows"]:
        assert {
            *("case", "dtype", "system", "order", "nodes", "edges", "problem", "weight_numel"),
            *("pass", "impl", "seconds", "relative_error", "flops", "bytes", "gflops", "gbytes"),
            *("of_gemm", "of_copy", "of_limit", "memory", "speedup", "memory_ratio"),
            *("side_by_side", "torch_threads"),
        } <= set(row)
        assert set(row["seconds"]) == {
            *("median", "quartile1", "quartile3", "minimum", "maximum", "samples"),
            "calls_per_sample",
        }
        assert row["relative_error"] < 1e-5
        assert row["torch_threads"] == 1
        assert row["memory"]["peak_bytes"] >= row["memory"]["operand_bytes"]
    (startup,) = result["startup"]
    assert startup["cold"]["counters"]["compiled"] == 1
    assert startup["cached"]["counters"] | {"load_seconds": 0.0} == {
        "compiled": 0, "loaded": 1, "compile_seconds": 0.0, "load_seconds": 0.0,
    }  # fmt: skip


@needs_mace
@pytest.mark.slow
def test_bench_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model = DATA / "mace_water_e3nn044.model"
    code, out, err = run_main(
        capsys,
        *("model", str(model), "--atoms", "3", "--repeats", "1", "--threads", "1"),
        *("--dtype", "float32", "--stress", "--no-rates", "--json", str(path)),
        *("--impl", "e3nn,mdcg,cueq,engine,engine-exact", "--turns", str(tmp_path / "turns")),
    )
    assert code == 0, err
    assert "not measured: cueq: " in out
    assert "energy, forces and stress" in out
    assert "mace_water_e3nn044.model  float32" in out
    rows = {row["impl"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(rows) == {"e3nn", "mdcg", "engine", "engine-exact"}
    for impl in ("mdcg", "engine", "engine-exact"):
        assert rows[impl]["edges"] == rows["e3nn"]["edges"]
        assert rows[impl]["stress_difference_e3nn"] < 1e-6
    assert rows["mdcg"]["force_difference_e3nn"] < 1e-4
    for impl in ("engine", "engine-exact"):
        assert rows[impl]["force_difference_float64"] < 1e-4
        assert "float32, cpu" in rows[impl]["patch_report"]
        assert rows[impl]["memory"]["peak_bytes"] > 0
    assert rows["mdcg"]["force_difference_float64"] < 1e-4
    assert "patched" in rows["mdcg"]["patch_report"]
    assert rows["mdcg"]["memory"]["peak_bytes"] > 0
    assert rows["e3nn"]["speedup"] == 1.0


@needs_mace
def test_several_sizes_in_one_process() -> None:
    from mdcg.bench.jobs import ModelJob
    from mdcg.bench.model_timing import measure_timing

    job = ModelJob(
        str(DATA / "mace_water_e3nn044.model"),
        impls=("e3nn", "mdcg", "engine"),
        atoms=(3, 24),
        largest=(("mdcg", 10),),
        repeats=1,
        warmup=1,
    )
    found = measure_timing(job)
    assert found["gpu"] is None
    small, large = found["sizes"]
    assert (small["atoms"], large["atoms"], large["edges"]) == (3, 24, 632)
    assert [row["impl"] for row in small["rows"]] == ["e3nn", "mdcg", "engine"]
    assert [row["impl"] for row in large["rows"]] == ["e3nn", "engine"]
    assert not any(row["stress"] for row in large["rows"])
    assert large["rows"][1]["force_difference_e3nn"] < 1e-10


@needs_mace
def test_random_model_leaves_no_trace() -> None:
    from mdcg.bench.model import build_mace

    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    changes = {"max_ell": 1, "correlation": 1, "num_elements": 2, "atomic_numbers": [1, 8]}
    changes["atomic_energies"] = np.zeros(2)
    one, two = (build_mace("4x0e", torch.float64, seed=5, **changes) for _ in range(2))
    assert torch.get_default_dtype() == dtype
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
        assert value.dtype == torch.float64 or not value.is_floating_point()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv", "--case", "mace-huge"], "case 'mace-huge' is unknown"),
        (["conv", "--dtype", "float16"], "dtype 'float16' is unknown, expected one of float32"),
        (["conv", "--passes", "bwd"], "pass 'bwd' is unknown, expected one of fwd, fwd+bwd"),
        (["conv", "--impl", "x"], "implementation 'x' is unknown, expected one of e3nn, cueq, oeq"),
        (
            ["model", "--impl", "x"],
            "implementation 'x' is unknown, expected one of e3nn, cueq, oeq",
        ),
        (["model", "no.model"], "nequip-l, nequip-xl nor a file: check the path"),
        (["conv", "--atoms", "100"], "no water box has 100 atoms"),
        (["table", "no.json"], "no.json cannot be read"),
        (["conv", "--system", "ice"], "system 'ice' is neither water, carbon, iron nor a file"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_main(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mdcg bench: ")
    assert message in err
    assert err.count("\n") == 1


def test_missing_matplotlib_is_said_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run_main(capsys, "conv", "--plot", str(tmp_path / "x.png"))
    assert (code, out) == (1, "")
    assert "--plot needs matplotlib, which is not installed: pip install 'mdcg[bench]'" in err
    with pytest.raises(MissingDependencyError):
        report.require_matplotlib()


def test_list_shows_all_cases_and_implementations(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_main(capsys, "conv", "--list")
    assert code == 0
    assert all(name in out for name in (*CASES, "mdcg-ir_mul"))


def test_parsing_arguments_loads_no_torch() -> None:
    code = "import sys, mdcg.bench.cli; print('torch' in sys.modules, 'e3nn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_bench_startup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "startup.json"
    package = DATA / "mace_water_float32.mdcg"
    code, out, err = run_main(
        capsys, "startup", str(package), "--repeats", "2", "--json", str(target)
    )
    assert code == 0, err
    assert "median of 2" in out
    assert "without torch" in out
    result = json.loads(target.read_text())
    assert result["command"] == "startup"
    assert not result["torch"]
    for kind in ("cold", "cached"):
        assert set(result[kind]) == {"import", "core", "open", "kernels"}
        assert all(seconds > 0 for seconds in result[kind].values())
    assert result["cold"]["kernels"] > result["cached"]["kernels"], "they were compiled"
    code, _, err = run_main(capsys, "startup", str(tmp_path / "no.mdcg"))
    assert code == 2
    assert "no.mdcg is not there: convert one" in err
    (tmp_path / "bad.mdcg").write_bytes(b"abc")
    code, _, err = run_main(capsys, "startup", str(tmp_path / "bad.mdcg"))
    assert code == 1
    assert "bad.mdcg" in err.splitlines()[-1]
