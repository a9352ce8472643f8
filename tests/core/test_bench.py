"""The benchmark's layer shapes, systems, counts, clocks, passes and tables."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import DeviceError
from mdcg.bench import report
from mdcg.bench.cases import CASES, DEFAULT_CASES, channelwise, find_cases, fully_connected
from mdcg.bench.jobs import ConvJob, ModelJob
from mdcg.bench.roofline import Work, problem_work
from mdcg.bench.runner import Settings, document
from mdcg.bench.systems import carbon_lattice, fragment, make_system, neighbours, water_box
from mdcg.bench.timing import Timing, clock_for, interleave, peak_memory
from mdcg.problem import ConvProblem

torch = pytest.importorskip("torch")
needs_e3nn = pytest.mark.skipif(find_spec("e3nn") is None, reason="e3nn is not installed")
needs_mace = pytest.mark.skipif(find_spec("mace") is None, reason="mace-torch is not installed")
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)

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


@pytest.mark.parametrize("name", SIZES)
def test_case_has_the_published_sizes(name: str) -> None:
    problem = CASES[name].problem()
    found = (problem.weight_numel, problem.irreps_out.dim, problem.num_paths, problem.nnz)
    assert found == SIZES[name]


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_case_is_a_valid_problem(case: Any) -> None:
    problem = case.problem("float64")
    assert problem.dtype == "float64"
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


def test_find_cases_takes_names_wildcards_and_all() -> None:
    assert [case.name for case in find_cases(["mace-large", "mace-small"])] == [
        "mace-small",
        "mace-large",
    ]
    assert {case.name for case in find_cases(["nequix-*"])} == {
        "nequix-first",
        "nequix-main",
        "nequix-last",
    }
    assert len(find_cases(["all"])) == len(CASES)
    assert set(DEFAULT_CASES) <= set(CASES)
    with pytest.raises(ValueError, match="case 'mace-huge' is unknown, expected one of mace-small"):
        find_cases(["mace-huge"])


# ---- systems ----


def test_water_box_has_the_edges_of_the_published_timings() -> None:
    system = water_box(12)
    edges = neighbours(system, 6.0)
    assert (len(system), len(edges)) == (5184, 436_904)
    assert np.all(np.diff(edges.receiver) >= 0)


def test_small_water_boxes_are_as_dense() -> None:
    found = {n: len(neighbours(water_box(n), 6.0)) for n in (4, 6)}
    assert found == {4: 16_098, 6: 54_520}


def test_carbon_lattice_has_the_published_edges() -> None:
    system = carbon_lattice(5)
    assert (len(system), len(neighbours(system, 6.0))) == (1000, 158_000)


def test_water_molecules_are_rigid_and_differ_in_orientation() -> None:
    molecules = water_box(3).positions.reshape(-1, 3, 3)
    bonds = molecules[:, 1:] - molecules[:, :1]
    np.testing.assert_allclose(np.linalg.norm(bonds, axis=2), 0.9572, rtol=1e-12)
    cosines = np.einsum("na,na->n", bonds[:, 0], bonds[:, 1]) / 0.9572**2
    np.testing.assert_allclose(np.degrees(np.arccos(cosines)), 104.52, rtol=1e-9)
    assert np.linalg.norm(bonds.sum(axis=1).mean(axis=0)) < 0.5
    np.testing.assert_array_equal(water_box(3).positions, water_box(3).positions)


@pytest.mark.parametrize("order", ["sender", "receiver", "random"])
def test_edge_orders_hold_the_same_edges(order: str) -> None:
    system = water_box(2)
    edges = neighbours(system, 5.0, order=order)
    vectors = system.positions[edges.receiver] - system.positions[edges.sender]
    assert np.all(np.linalg.norm(vectors + edges.shifts @ system.cell, axis=1) < 5.0)
    rows = np.column_stack([edges.sender, edges.receiver, edges.shifts])
    first = neighbours(system, 5.0, order="receiver")
    other = np.column_stack([first.sender, first.receiver, first.shifts])
    np.testing.assert_array_equal(np.unique(rows, axis=0), np.unique(other, axis=0))
    assert len(np.unique(rows, axis=0)) == len(edges)
    if order != "random":
        assert np.all(np.diff(getattr(edges, order)) >= 0)


def test_systems_by_name_and_by_file(tmp_path: Path) -> None:
    assert len(make_system("water")) == 192
    assert len(make_system("carbon", 64)) == 64
    with pytest.raises(ValueError, match="expected 3 n³: try 24, 81, 192"):
        make_system("water", 100)
    with pytest.raises(ValueError, match="neither water, carbon, iron nor a file"):
        make_system("ice")
    from ase import Atoms
    from ase.io import write

    path = tmp_path / "copper.xyz"
    write(path, Atoms("Cu2", positions=[[0, 0, 0], [2, 0, 0]], cell=[9, 9, 9], pbc=[1, 0, 1]))
    system = make_system(str(path))
    assert (system.name, len(system), system.periodic) == ("copper", 2, (True, False, True))
    with pytest.raises(ValueError, match="has its own number"):
        make_system(str(path), 2)


def test_fragment_keeps_neighbours() -> None:
    part = fragment(water_box(3))
    assert sorted(part.numbers) == [1, 1, 8]
    assert len(neighbours(part, 6.0)) == 6


def test_unknown_edge_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order is 'sorted', expected one of receiver, sender"):
        neighbours(water_box(1), 4.0, order="sorted")


# ---- counts ----


def test_work_is_that_of_the_published_roofline() -> None:
    problem = CASES["mace-medium-l2"].problem()
    forward = problem_work(problem, "fwd", 1, 50)
    assert forward.flops / 50 == 29_696
    assert forward.bytes / 50 == pytest.approx(5651, abs=1)
    both = problem_work(problem, "fwd+bwd", 1, 50)
    assert (both.flops - forward.flops) / 50 == 73_728
    # the published figure leaves out writing the node gradients
    assert (both.bytes - forward.bytes) / 50 == pytest.approx(10_835 + 4 * 512 / 50, abs=1)


def test_work_of_other_problems() -> None:
    problem = ConvProblem.build("4x0e", "0e", "6x0e", [(0, 0, 0, "uvw")], shared_weights=True)
    work = problem_work(problem, "fwd", 3, 10)
    assert work.flops == 10 * 4 * (2 + 2 * 6)
    assert work.bytes == 4 * (24 + 10 + 3 * (4 + 6)) + 10 * 16
    double = problem_work(problem.with_dtype("float64"), "fwd", 3, 10)
    assert double.bytes - 160 == 2 * (work.bytes - 160)


def test_floor_is_the_slower_of_the_two_limits() -> None:
    work = Work(flops=2e9, bytes=1e9)
    assert work.floor_seconds(1.0, 1.0) == 2.0
    assert work.floor_seconds(4.0, 1.0) == 1.0


# ---- clocks and memory ----


def test_interleave_takes_turns() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = interleave(runs, clock_for("cpu"), repeats=3, warmup=2, sample_seconds=0.0)
    assert calls == list("aabb") + list("ababab")
    assert found["a"].samples == 3
    assert found["a"].calls_per_sample == 1


def test_timing_summary() -> None:
    timing = Timing.of([3.0, 1.0, 2.0, 4.0, 5.0], 7)
    assert (timing.median, timing.quartile1, timing.quartile3) == (3.0, 2.0, 4.0)
    assert (timing.minimum, timing.maximum, timing.calls_per_sample) == (1.0, 5.0, 7)


def test_other_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="device is 'tpu', expected cpu or cuda"):
        clock_for("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_absent_cuda_device_is_one_sentence() -> None:
    with pytest.raises(DeviceError, match=r"device is 'cuda', but torch .*: use --device cpu"):
        clock_for("cuda")


def test_peak_memory_sees_temporaries() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc/self/clear_refs to reset the high-water mark")
    peak = peak_memory(lambda: float(np.ones(5_000_000).sum()))
    assert 38e6 < peak.extra_bytes < 60e6


# ---- passes ----


@needs_e3nn
@pytest.mark.parametrize("name", ["mace-medium-l1", "e3tools-transformer"])
def test_chunked_reference_is_the_whole(name: str) -> None:
    from mdcg.bench.layer import Graph, build_layer
    from mdcg.bench.passes import make_inputs, make_pass, reference, relative_errors
    from mdcg.bench.peers import PEERS

    edges = neighbours(water_box(1), 4.0)
    graph = Graph(3, torch.from_numpy(edges.sender), torch.from_numpy(edges.receiver))
    layer = build_layer(CASES[name], torch.float64)
    inputs = make_inputs(layer, graph)
    prepared = PEERS["e3nn"].prepare(layer, graph)
    passes = ("fwd", "fwd+bwd", "fwd+bwd+dbl")
    expected = reference(layer.tensor_product, graph, inputs, passes, chunk_bytes=100_000)
    for name in passes:
        assert max(relative_errors(make_pass(name, prepared, inputs)(), expected[name])) < 1e-12


@needs_e3nn
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-12)])
def test_implementations_agree_with_float64(dtype: str, limit: float) -> None:
    from mdcg.bench.conv import measure_timing

    default = torch.get_default_dtype()
    impls = ("e3nn", "mdcg", "mdcg-ir_mul")
    job = ConvJob("nequip-water", dtype=dtype, impls=impls, atoms=3, repeats=1, order="random")
    found = measure_timing(job)
    assert torch.get_default_dtype() == default
    assert (found["nodes"], found["weight_numel"], found["nnz"]) == (3, 320, 32)
    assert [(row["pass"], row["impl"]) for row in found["rows"]] == [
        (name, impl) for name in job.passes for impl in impls
    ]
    assert all(row["relative_error"] < limit for row in found["rows"])


def test_jobs_travel_as_json() -> None:
    model = ModelJob("small", impls=("mdcg",), atoms=(192, None), largest=(("e3nn", 1000),))
    for job in (ConvJob("mace-large", passes=("fwd",)), model):
        assert type(job).from_dict(json.loads(json.dumps(job.to_dict()))) == job


# ---- tables and plots ----


def example_document() -> dict[str, Any]:
    result = document("conv", Settings(threads=2), {})
    result["machine"]["rates"] = {
        "float32": {"gemm_gflops": 150.0, "copy_gbytes": 10.0, "read_gbytes": 12.0}
    }
    for impl, milliseconds in (("e3nn", 440.0), ("mdcg", 11.0)):
        seconds = Timing.of([1e-3 * milliseconds] * 3, 1).as_dict()
        row = {"case": "mace-large", "dtype": "float32", "pass": "fwd", "impl": impl}
        result["rows"].append({**row, "seconds": seconds, "speedup": 440.0 / milliseconds})
    return result


def test_header_states_allocator_threads_and_ceilings() -> None:
    text = report.header(example_document())
    assert "2 of" in text
    assert "OMP_NUM_THREADS=2 OMP_PROC_BIND=true" in text
    assert "matrix product 150 GFLOP/s, copy 10.0 GB/s, read 12.0 GB/s" in text


def test_table_is_aligned() -> None:
    table = report.format_table(("a", "b", "c"), [["x", "yy", "1"], ["xxx", "y", "22"]], indent="")
    assert table.splitlines() == ["a    b    c", "x    yy   1", "xxx  y   22"]


def test_failures_name_case_and_implementation() -> None:
    job = {"kind": "conv-memory", "options": ConvJob("mace-large").to_dict(), "impl": "e3nn"}
    lines = report.failure_lines([{"job": job, "message": "was killed", "died": True}])
    assert lines == ["mace-large (e3nn): was killed"]


@needs_matplotlib
def test_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "times.png"
    report.plot(str(path), example_document())
    assert path.read_bytes().startswith(b"\x89PNG")
