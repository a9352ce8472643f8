"""The comparison of convolutions: layer shapes, counts, passes, ratios, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark import conv
from benchmark.cases import (
    CASES,
    DEFAULT_CASES,
    DEFAULT_CUDA,
    channelwise,
    find_cases,
    fully_connected,
)
from benchmark.cli import main
from benchmark.layer import build_layer
from benchmark.passes import (
    PASSES,
    make_inputs,
    make_pass,
    reference,
    relative_errors,
)
from benchmark.peers import PEERS

from mdcg.bench import timing
from mdcg.bench.systems import make_system

ROOT = Path(__file__).resolve().parents[2]
needs_e3nn = pytest.mark.skipif(find_spec("e3nn") is None, reason="e3nn is not installed")
needs_mace = pytest.mark.skipif(find_spec("mace") is None, reason="mace-torch is not installed")

# weights, output columns, paths and 3j nonzeros of the published layers
SIZES = {
    "mace-small": (512, 2048, 4, 16),
    "mace-medium-l1": (512, 2048, 4, 16),
    "mace-medium-l2": (1280, 5120, 10, 86),
    "mace-large": (2176, 9088, 17, 215),
    "mace-medium": (1024, 3328, 8, 58),
    "nequip-lips": (960, 3264, 30, 274),
    "nequip-toluene": (1920, 6528, 30, 274),
    "nequip-benzene": (4352, 19968, 68, 1222),
    "nequip-oam-like": (1312, 5472, 23, 353),
    "sevennet-l3i5-main": (1760, 7776, 34, 611),
}


# ---- layer shapes ----


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_case_is_a_valid_problem_with_the_published_sizes(case: Any) -> None:
    problem = case.problem("float64")
    found = (problem.weight_numel, problem.irreps_out.dim, len(problem.paths), problem.nnz)
    assert found == SIZES.get(case.name, found)
    assert problem.shared_weights == (case.name == "e3tools-transformer")
    modes = {path.mode for path in problem.paths}
    assert modes == ({"uvw"} if case.builder is fully_connected else {"uvu"})
    assert {path.i_out for path in problem.paths} == set(range(len(problem.irreps_out)))


def test_channelwise_weights_are_in_output_order_and_blocks_are_not_merged() -> None:
    irreps_out, instructions = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    assert irreps_out == "8x0e+8x0e+8x1o+8x1o"
    assert [(i, j, k) for i, j, k, *_ in instructions] == [
        (0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 3),
    ]  # fmt: skip


@needs_mace
@pytest.mark.parametrize("name", ["mace-medium-l1", "mace-medium-l2", "mace-large", "mace-medium"])
def test_channelwise_is_what_mace_builds(name: str) -> None:
    from mdcg.patch._frameworks import import_mace

    import_mace()
    from e3nn import o3
    from mace.modules.irreps_tools import tp_out_irreps_with_instructions

    case = CASES[name]
    texts = (case.irreps_in1, case.irreps_in2, case.target)
    irreps_out, instructions = tp_out_irreps_with_instructions(*(o3.Irreps(t) for t in texts))
    assert case.build() == (str(irreps_out), tuple(instructions))


def test_cases_by_name_and_wildcard() -> None:
    assert [case.name for case in find_cases(["mace-large", "mace-small"])] == [
        *("mace-small", "mace-large"),
    ]
    assert len(find_cases(["nequix-*"])) == 3
    assert len(find_cases(["all"])) == len(CASES)
    assert {*DEFAULT_CASES, *(name for name, _ in DEFAULT_CUDA)} <= set(CASES)


# ---- errors and ratios ----


def test_relative_errors_keep_nan_and_take_all_rows() -> None:
    truth = torch.tensor([[1.0], [2.0], [-4.0]], dtype=torch.float64)
    assert relative_errors((truth,), (truth + 0.4,), chunk_rows=2) == [pytest.approx(0.4 / 3.6)]
    broken = torch.where(truth == 1, torch.nan, truth)
    (error,) = relative_errors((broken,), (truth,), chunk_rows=1)
    assert error != error
    assert relative_errors((truth[:0],), (truth[:0],)) == [0.0]


def test_ratios_to_e3nn_and_to_the_fastest_other() -> None:
    times = {"e3nn": 56.2, "cueq": 2.8, "oeq": 2.5, "mdcg": 1.0}
    rows = [
        {
            "pass": name,
            "impl": impl,
            "seconds": dict.fromkeys(("quartile1", "median", "quartile3"), ms),
            "peak_bytes": 100 * ms,
        }
        for name in PASSES
        for impl, ms in times.items()
    ]
    *_, mdcg = conv.add_ratios(rows)
    assert mdcg["of_fastest_other"] == pytest.approx(0.4)
    assert mdcg["speedup"] == pytest.approx(56.2)
    assert mdcg["of_e3nn"] == pytest.approx(1 / 56.2)
    (alone,) = conv.add_ratios(rows[-1:])
    assert alone["of_fastest_other"] is alone["speedup"] is alone["of_e3nn"] is None


# ---- passes ----


@needs_e3nn
@pytest.mark.parametrize("name", ["mace-medium-l1", "e3tools-transformer"])
def test_chunked_reference_is_the_whole(name: str) -> None:
    graph = conv.make_graph(CASES[name], make_system("water", 3), "cpu")
    layer = build_layer(CASES[name], torch.float64)
    inputs = make_inputs(layer, graph)
    prepared = PEERS["e3nn"].prepare(layer, graph)
    expected = reference(layer.tensor_product, graph, inputs, chunk_bytes=100_000)
    for name in PASSES:
        assert max(relative_errors(make_pass(name, prepared, inputs)(), expected[name])) < 1e-12


# ---- the command ----


@needs_e3nn
@pytest.mark.slow
def test_the_command_in_a_clone(tmp_path: Path) -> None:
    """The README's command runs in the clone, next to the sources of mdcg."""
    path = tmp_path / "conv.json"
    options = ["--case", "nequip-water", "--atoms", "3", "--repeats", "2", "--json", str(path)]
    command = [sys.executable, "examples/benchmark", "conv", *options, "--dtype", "float32,float64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nequip-water  float64" in done.stdout
    assert "not measured: cueq: " in done.stdout
    result = json.loads(path.read_text())
    assert (result["benchmark"], result["refused"]) == ("conv", [])
    assert [row["impl"] for row in result["rows"]] == ["e3nn", "mdcg"] * 6
    for row in result["rows"]:
        assert row["relative_error"] < (1e-5 if row["dtype"] == "float32" else 1e-12)


# torch warns if a backward pass starts with a matrix product
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.gpu
@needs_e3nn
def test_the_command_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "keep_heap", lambda: None)
    path = tmp_path / "conv.json"
    options = ["--device", "cuda", "--atoms", "24", "--repeats", "2"]
    options += ["--case", "nequip-water", "--impl", "e3nn,mdcg", "--json", str(path)]
    assert main(["conv", *options]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 6
    assert all(row["relative_error"] < 1e-5 and row["peak_bytes"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["conv", "--case", "mace-huge"],
            "case 'mace-huge' is unknown, expected one of mace-small",
        ),
        (["model", "medium", "--impl", "x"], "'x' is unknown, expected one of original, cueq, oeq"),
        (["model", "no.model"], "nequip-l, nequip-xl nor a file: check the path"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
