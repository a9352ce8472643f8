"""Other packages beside mdcg: who can run, who refuses, in which order outputs come, the tables."""

from __future__ import annotations

import json
import sys
import types
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from mdcg import DeviceError, UnsupportedProblemError, VerificationError
from mdcg.bench import conv, gpu, peers, peers_cuda, report, runner
from mdcg.bench.cases import CASES, DEFAULT_CUDA, Case, channelwise, fully_connected, nequip
from mdcg.bench.cli import main
from mdcg.bench.jobs import MODEL_IMPLS, ON_REQUEST, ConvJob
from mdcg.bench.layer import Graph, Prepared, build_layer, component_major
from mdcg.bench.passes import Inputs, relative_errors, tensor_bytes
from mdcg.bench.timing import Timing
from mdcg.problem import Irreps

torch = pytest.importorskip("torch")
needs_e3nn = pytest.mark.skipif(find_spec("e3nn") is None, reason="e3nn is not installed")
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")

UVU = Case("uvu", "4x0e+4x1o", "0e+1o", "0e+1o", channelwise, "a test")
UVW = Case("uvw", "3x0e+2x1o", "0e+1o", "2x0e+3x1o", fully_connected, "a test")


# ---- who can run ----


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_cuda, "find_spec", lambda name: None)
    assert peers.skipped_peers("cuda") == {
        "cueq": "cuequivariance_torch, cuequivariance_ops_torch is not installed",
        "oeq": "openequivariance is not installed",
        "oeq-det": "openequivariance is not installed",
    }
    assert [peer.name for peer in peers.choose_peers(None, "cuda")] == [
        *("e3nn", "mdcg", "mdcg-ir_mul"),
    ]
    assert peers.choose_model_impls(None, "cuda") == ("e3nn", "mdcg", "engine", "engine-exact")
    asked = ("engine", "cueq", "e3nn")
    assert peers.choose_model_impls(asked, "cuda") == ("engine", "e3nn")
    assert set(peers.skipped_model_impls("cuda", asked)) == {"cueq"}
    with pytest.raises(DeviceError, match="oeq cannot run: openequivariance is not installed: lea"):
        peers.choose_peers(["e3nn", "oeq"], "cuda")
    assert report.reasons_line(peers.skipped_model_impls("cuda")) == (
        "cueq: cuequivariance_torch, cuequivariance_ops_torch is not installed; "
        "oeq: openequivariance is not installed"
    )


def test_gpu_packages_are_not_compared_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_cuda, "find_spec", lambda name: object())
    assert set(peers.skipped_peers("cuda")) == set()
    on_gpus = tuple(name for name in MODEL_IMPLS if name not in ON_REQUEST)
    with pytest.raises(DeviceError, match="engine-tf32 cannot run: it is a choice on CUDA devices"):
        peers.choose_model_impls(["engine-tf32"], "cpu")
    assert peers.choose_model_impls(None, "cuda") == on_gpus
    assert [peer.name for peer in peers.choose_peers(None, "cpu")] == ["e3nn", "mdcg"]
    assert peers.choose_model_impls(None, "cpu") == ("e3nn", "mdcg", "engine", "engine-exact")
    with pytest.raises(DeviceError, match="cueq cannot run: it has kernels for CUDA devices only"):
        peers.choose_model_impls(["cueq"], "cpu")


def test_default_layers_on_a_gpu_are_cases() -> None:
    assert {name for name, _ in DEFAULT_CUDA} <= set(CASES)
    assert ("mace-medium-l2", "float64") in DEFAULT_CUDA
    assert CASES["diffdock-l1"].batch == CASES["diffdock-l2"].batch == 50_000


@no_cuda
@pytest.mark.parametrize("command", ["conv", "model"])
def test_bench_without_a_device_is_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--device", "cuda"]) == 1
    captured = capsys.readouterr()
    last = captured.err.strip().splitlines()[-1]
    assert last.startswith("mdcg bench: device is 'cuda', but torch ")
    assert captured.out == ""


# ---- what counts as a refusal ----


def test_refusals_and_failures() -> None:
    memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    assert conv.refusal("mdcg", memory) == {
        "impl": "mdcg",
        "reason": "out of memory",
        "failed": False,
    }
    unsupported = conv.refusal("mdcg", UnsupportedProblemError("no kernels for uvw"))
    assert (unsupported["reason"], unsupported["failed"]) == ("no kernels for uvw", False)
    assert conv.refusal("engine", MemoryError("cuda:0 is full"))["reason"] == "out of memory"
    assert conv.refusal("engine", RuntimeError("broken"))["failed"]
    other = conv.refusal("oeq", RuntimeError("line one\n  line two"))
    assert (other["reason"], other["failed"]) == ("RuntimeError: line one line two", False)
    assert conv.refusal("mdcg-ir_mul", RuntimeError("broken"))["failed"]


def test_a_fault_of_mdcg_is_a_failure() -> None:
    refused = [
        {"impl": "cueq", "reason": "one multiplicity", "failed": False},
        {"impl": "mdcg", "reason": "RuntimeError: broken", "failed": True},
    ]
    failures: list[dict[str, Any]] = []
    job = ConvJob("mace-large")
    found = list(runner._split_failures(refused, "conv-timing", job, failures))
    assert found == [{"impl": "cueq", "reason": "one multiplicity"}]
    assert report.failure_lines(failures) == ["mace-large (mdcg): RuntimeError: broken"]


class FakePeer:
    """An implementation that computes with e3nn, or fails in a chosen pass."""

    description = "a fake"

    def __init__(self, name: str, fails: str = "") -> None:
        self.name, self.fails = name, fails

    def missing(self, device: str) -> str | None:
        return None

    def prepare(self, layer: Any, graph: Graph) -> Prepared:
        if self.fails == "prepare":
            raise AssertionError("segments differ")
        run = peers.PEERS["e3nn"].prepare(layer, graph).run

        def sometimes(*operands: Any) -> Any:
            if self.fails == "gradients" and operands[0].requires_grad:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
            return run(*operands)

        return Prepared(sometimes)

    def counters(self) -> dict[str, float]:
        return {}


@needs_e3nn
def test_refusing_peers_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [FakePeer("good"), FakePeer("picky", "prepare"), FakePeer("big", "gradients")]
    for fake in fakes:
        monkeypatch.setitem(peers.PEERS, fake.name, fake)
    job = ConvJob("nequip-water", atoms=3, repeats=1, impls=("good", "picky", "big"))
    found = conv.measure_timing(job)
    assert [(row["pass"], row["impl"]) for row in found["rows"]] == [
        *(("fwd", "good"), ("fwd", "big"), ("fwd+bwd", "good"), ("fwd+bwd+dbl", "good")),
    ]
    assert [(one["impl"], one["passes"], one["reason"]) for one in found["refused"]] == [
        ("picky", ["fwd", "fwd+bwd", "fwd+bwd+dbl"], "AssertionError: segments differ"),
        ("big", ["fwd+bwd", "fwd+bwd+dbl"], "out of memory"),
    ]
    assert all(row["relative_error"] < 1e-5 for row in found["rows"])


@needs_e3nn
@pytest.mark.parametrize("case", ["nequip-water", "e3tools-conv", "e3tools-transformer"])
def test_batches_have_no_graph(case: str) -> None:
    found = conv.measure_timing(ConvJob(case, batch=5, repeats=1, impls=("e3nn", "mdcg")))
    assert (found["nodes"], found["edges"], found["batched"]) == (5, 5, True)
    assert [row["impl"] for row in found["rows"]] == ["e3nn", "mdcg"] * 3
    assert all(row["relative_error"] < 1e-5 for row in found["rows"])


# ---- the same layer in other packages ----


@needs_e3nn
@pytest.mark.skipif(find_spec("cuequivariance_torch") is None, reason="no cuequivariance-torch")
@pytest.mark.parametrize("case", [UVU, UVW], ids=lambda case: case.name)
def test_polynomial_is_the_layer(case: Case) -> None:
    import cuequivariance_torch

    layer = build_layer(case, torch.float64)
    module = cuequivariance_torch.SegmentedPolynomial(
        peers_cuda.polynomial(layer.problem), method="naive", math_dtype=torch.float64
    )
    sender, receiver = torch.tensor([[0, 1, 2, 2], [1, 1, 0, 3]])
    graph = Graph(4, sender, receiver)
    run = peers_cuda.CueqPeer()._function(module, graph)
    ready = component_major(run, layer.problem, torch.device("cpu"))
    x, y, w = (
        torch.randn(4, width, dtype=torch.float64)
        for width in (
            layer.problem.irreps_in1.dim,
            layer.problem.irreps_in2.dim,
            layer.problem.weight_numel,
        )
    )
    got = ready.nodes_out_back(ready.run(ready.nodes_in(x), y, w))
    want = peers.PEERS["e3nn"].prepare(layer, graph).run(x, y, w)
    torch.testing.assert_close(got, want)


@needs_e3nn
def test_layers_that_uniform_1d_does_not_cover() -> None:
    odd = Case("odd", "4x0e+2x1o", "0e+1o", "0e+1o", nequip, "a test")
    edges = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UnsupportedProblemError, match=r"one multiplicity, but .* has 2, 4"):
        peers_cuda.CueqPeer().prepare(build_layer(odd, torch.float32), Graph(1, edges, edges))


def fake_openequivariance(order: list[int], log: list[Any]) -> types.ModuleType:
    """Return a package that computes with e3nn and gives the output blocks in another order."""
    from e3nn import o3

    class Product:
        def __init__(self, problem: dict[str, Any], **options: Any) -> None:
            log.append((type(self).__name__, options))
            with torch.serialization.safe_globals([slice]):
                self.module = o3.TensorProduct(
                    *problem["irreps"],
                    problem["instructions"],
                    shared_weights=problem["shared_weights"],
                    internal_weights=False,
                )
            irreps = Irreps.parse(problem["irreps"][2])
            self.columns = peers_cuda.block_columns(irreps, order or list(range(len(irreps))))

        def reorder_weights_from_e3nn(self, weights: Any, has_batch_dim: bool) -> Any:
            return weights.flip(-1)

        def reorder_weights_to_e3nn(self, weights: Any, has_batch_dim: bool) -> Any:
            return weights.flip(-1)

    class TensorProduct(Product):
        def __call__(self, x: Any, y: Any, w: Any) -> Any:
            return self.module(x, y, w.flip(-1))[:, self.columns]

    class TensorProductConv(Product):
        def __call__(self, x: Any, y: Any, w: Any, rows: Any, cols: Any, *more: Any) -> Any:
            assert rows.dtype == cols.dtype == torch.int64
            if log[-1][1]["deterministic"]:
                (transposed,) = more
                pairs = torch.stack([cols, rows])[:, transposed]
                assert (pairs[0].diff() >= 0).all()
            messages = self.module(x[cols], y, w)
            out = messages.new_zeros(len(x), messages.shape[1]).index_add(0, rows, messages)
            return out[:, self.columns]

    package = types.ModuleType("openequivariance")
    package.TensorProduct, package.TensorProductConv = TensorProduct, TensorProductConv  # type: ignore[attr-defined]
    package.Irreps = str  # type: ignore[attr-defined]
    package.TPProblem = (
        lambda *irreps_and_paths, **options: {  # type: ignore[attr-defined]
            "irreps": irreps_and_paths[:3],
            "instructions": irreps_and_paths[3],
            "shared_weights": options["shared_weights"],
        }
    )
    return package


@needs_e3nn
@pytest.mark.parametrize("impl", ["oeq", "oeq-det"])
@pytest.mark.parametrize("order", [[], [0, 1, 3, 2]], ids=["same order", "other order"])
def test_openequivariance_in_its_own_order(
    impl: str, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    monkeypatch.setitem(sys.modules, "openequivariance", fake_openequivariance(order, log))
    layer = build_layer(UVU, torch.float32)
    sender, receiver = peers_cuda._ring(torch.device("cpu"))
    graph = Graph(4, sender, receiver)
    ready = peers.PEERS[impl].prepare(layer, graph)
    assert log == [("TensorProductConv", {"deterministic": impl == "oeq-det"})]
    x, y = torch.randn(4, 16), torch.randn(8, 4)
    w = torch.randn(8, layer.problem.weight_numel)
    got = ready.run(ready.nodes_in(x), y, ready.weights_in(w))
    want = peers.PEERS["e3nn"].prepare(layer, graph).run(x, y, w)
    torch.testing.assert_close(ready.nodes_out_back(got), want)
    torch.testing.assert_close(ready.nodes_out(want), got)
    if impl == "oeq-det":
        shuffled = Graph(4, sender, receiver, order="random")
        with pytest.raises(UnsupportedProblemError, match="needs edges sorted by receiver"):
            peers.PEERS[impl].prepare(layer, shuffled)


@needs_e3nn
def test_openequivariance_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    monkeypatch.setitem(sys.modules, "openequivariance", fake_openequivariance([], log))
    layer = build_layer(UVW, torch.float64)
    rows = torch.arange(6)
    graph = Graph(6, rows, rows, batched=True)
    ready = peers.PEERS["oeq"].prepare(layer, graph)
    assert [name for name, _ in log] == ["TensorProduct"]
    w = torch.randn(6, layer.problem.weight_numel, dtype=torch.float64)
    assert torch.equal(ready.weights_back(ready.weights_in(w)), w)
    assert not torch.equal(ready.weights_in(w), w)
    with pytest.raises(UnsupportedProblemError, match="a batch has no sum"):
        peers.PEERS["oeq-det"].prepare(layer, graph)


def test_output_blocks_are_matched() -> None:
    irreps = Irreps.parse("2x0e+2x0e+1x1o+2x1o")
    want = np.random.default_rng(0).normal(size=(3, irreps.dim))
    got = want[:, [2, 3, 0, 1, *range(4, irreps.dim)]]
    order = peers_cuda.match_blocks(want, got, irreps)
    assert order == [1, 0, 2, 3]
    np.testing.assert_array_equal(got[:, peers_cuda.block_columns(irreps, order)], want)
    got[:, 5] += 0.1
    with pytest.raises(VerificationError, match="block 2 of its output is not in e3nn's"):
        peers_cuda.match_blocks(want, got, irreps)


# ---- numbers and tables ----


def test_tensor_bytes_count_inputs_results_and_gradients() -> None:
    sizes = {"node_feats": 2, "edge_attrs": 3, "weights": 5, "cotangent": 7}
    inputs = Inputs(**{name: torch.zeros(n, dtype=torch.float32) for name, n in sizes.items()})
    x, y, w, out = (4 * n for n in sizes.values())
    assert tensor_bytes("fwd", inputs) == x + y + w + 2 * out
    assert tensor_bytes("fwd+bwd", inputs) == 2 * (x + y + w + out)
    assert tensor_bytes("fwd+bwd+dbl", inputs) == 4 * x + 4 * y + 3 * w + 2 * out


def test_relative_errors_keep_nan_and_take_all_rows() -> None:
    truth = torch.tensor([[1.0], [2.0], [-4.0]], dtype=torch.float64)
    assert relative_errors((truth,), (truth + 0.4,), chunk_rows=2) == [pytest.approx(0.4 / 3.6)]
    broken = truth.clone()
    broken[0] = float("nan")
    (error,) = relative_errors((broken,), (truth,), chunk_rows=1)
    assert np.isnan(error)
    assert relative_errors((truth[:0],), (truth[:0],)) == [0.0]


def gpu_row(impl: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    seconds = Timing.of([1e-3 * milliseconds] * 3, 1).as_dict()
    sizes = {"nodes": 5184, "edges": 436_904, "weight_numel": 1280, "out_dim": 5120}
    irreps = {"irreps_in1": "128x0e", "irreps_in2": "1x0e", "irreps_out": "128x0e"}
    return {
        "case": "mace-large",
        "dtype": "float32",
        "system": "water",
        "order": "receiver",
        "device": "cuda",
        "pass": "fwd",
        "impl": impl,
        "seconds": seconds,
        "paths": 10,
        "nnz": 86,
        "relative_error": 4e-7,
        "of_copy": 0.5,
        "side_by_side": True,
        "kernel_seconds": 9e-4 * milliseconds,
        "launches": 2.0,
        "memory": {"peak_bytes": 3e9, "beyond_tensors": 0.034},
        **sizes,
        **irreps,
        **more,
    }


def test_gpu_table_compares_with_the_best_peer() -> None:
    from mdcg.bench.runner import _ratios

    rows = [gpu_row("e3nn", 56.2), gpu_row("cueq", 2.8), gpu_row("oeq", 2.5), gpu_row("mdcg", 1.0)]
    _ratios(rows, "pass")
    assert [row["best_peer"] for row in rows] == ["oeq"] * 4
    assert rows[3]["of_best_peer"] == pytest.approx(0.4)
    refused = [{"impl": "oeq-det", "passes": ["fwd"], "reason": "out of memory"}]
    text = report.conv_table({"rows": rows, "startup": [], "refused": refused})
    lines = text.splitlines()
    assert "5184 atoms, 436904 edges" in lines[1]
    assert lines[2].split()[:6] == ["pass", "impl", "ms", "quartiles", "GPU", "ms"]
    assert lines[6].split() == [
        *("fwd", "mdcg", "1.00", "1.00-1.00", "0.900", "2", "56.2x", "0.40x", "2.00", "4e-07"),
        *("3000", "+3", "%"),
    ]
    assert lines[7] == "  oeq-det (fwd): out of memory"
    batch = [gpu_row("mdcg", 1.0, batched=True, nodes=50_000)]
    assert "batch of 50000 products, no graph" in report.conv_table({"rows": batch, "startup": []})
    assert report.conv_table({"rows": [], "startup": [], "refused": refused}) == lines[7]


def test_gpu_model_table() -> None:
    row = {
        "model": "medium",
        "dtype": "float32",
        "model_class": "ScaleShiftMACE",
        "r_max": 6.0,
        "system": "water",
        "atoms": 5184,
        "edges": 436_904,
        "device": "cuda",
        "impl": "mdcg",
        "seconds": Timing.of([0.04] * 3, 1).as_dict(),
        "side_by_side": True,
        "max_force": 1.0,
        "microseconds_per_atom": 7.7,
        "katom_steps_per_second": 129.6,
        "launches": 640.0,
        "kernel_seconds": 0.03,
        "of_best_peer": 0.53,
        "best_peer": "oeq",
        "memory": {"peak_bytes": 9e9},
    }
    refused = [{"impl": "e3nn", "reason": "out of memory"}]
    lines = report.model_table({"rows": [row], "refused": refused}).splitlines()
    assert lines[3].split()[:6] == ["mdcg", "40.0", "40.0-40.0", "30.0", "640", "0.53x"]
    assert lines[4] == "  e3nn: out of memory"
    engine = {**row, "impl": "engine", "stress": True}
    for name in ("launches", "kernel_seconds"):
        del engine[name]
    title, _, head, *_ = report.model_table({"rows": [engine]}).splitlines()
    assert title.endswith("; energy, forces and stress")
    assert "GPU ms" not in head
    both = report.model_table({"rows": [row, engine]}).splitlines()
    assert both[0].endswith("; energy and forces; with stress: engine")


def test_time_that_a_device_is_busy() -> None:
    """Kernels overlap where one starts in the last blocks of another."""
    assert gpu.covered([]) == 0.0
    assert gpu.covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0
    kernels = tuple(gpu.KernelTime(str(n), 2.0, 1e-3) for n in range(20))
    row = gpu.DeviceTimes(15e-3, kernels).as_dict()
    assert (row["kernel_seconds"], row["launches"], len(row["kernels"])) == (15e-3, 40.0, 16)


def test_kernel_times_travel_as_json() -> None:
    kernel = gpu.KernelTime("mdcg_run_0", 2.0, 1e-3)
    assert json.loads(json.dumps(kernel.as_dict())) == {
        "name": "mdcg_run_0",
        "launches": 2.0,
        "seconds": 1e-3,
    }
