"""Other packages beside mdcg: who can run, who refuses, in which order outputs come."""

from __future__ import annotations

import os
import sys
import types
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark import conv, peers, peers_cuda, programs
from benchmark.cases import CASES, Case, channelwise, fully_connected, nequip
from benchmark.layer import Graph, Prepared, build_layer, component_major

from mdcg import DeviceError, UnsupportedProblemError, VerificationError
from mdcg.bench.model import Settings
from mdcg.bench.systems import make_system
from mdcg.problem import Irreps

needs_e3nn = pytest.mark.skipif(find_spec("e3nn") is None, reason="e3nn is not installed")

DATA = Path(__file__).resolve().parents[1] / "data"
UVU = Case("uvu", "4x0e+4x1o", "0e+1o", "0e+1o", channelwise, "a test")
UVW = Case("uvw", "3x0e+2x1o", "0e+1o", "2x0e+3x1o", fully_connected, "a test")


# ---- who can run ----


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("installed", [False, True])
def test_who_can_run(device: str, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (peers_cuda, programs):
        monkeypatch.setattr(module, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setitem(sys.modules, "symmetrix", fake_symmetrix("cuda"))
    monkeypatch.setattr(programs, "installed_version", lambda package: "0.4.4")
    missing = {impl: programs.missing(impl, device) for impl in programs.PEERS}
    skipped = peers.skipped_peers(device)
    able = installed and device == "cuda"
    assert set(skipped) == (set() if able else {"cueq", "oeq"})
    everywhere = {"symmetrix", "aoti"}
    wrong = set() if able else set(programs.PEERS) - (everywhere if installed else set())
    assert {impl for impl, reason in missing.items() if reason} == wrong
    if not able:
        reason = "it has kernels for CUDA devices only" if installed else "is not installed"
        assert reason in skipped["oeq"]
        assert reason in str(missing["cueq"])
        with pytest.raises(DeviceError, match=f"oeq cannot run: .*{reason}: leave it out"):
            peers.choose_peers(["e3nn", "oeq"], device)
    chosen = [peer.name for peer in peers.choose_peers(None, device)]
    assert chosen == [name for name in peers.PEERS if name not in skipped]
    with pytest.raises(ValueError, match="implementation 'x' is unknown, expected one of e3nn"):
        peers.choose_peers(["x"], device)


def test_what_programs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "symmetrix", fake_symmetrix())
    monkeypatch.setattr(programs, "installed_version", lambda package: "0.6.0")
    assert "such as symmetrix-xl-cuda13-sm90, is not" in str(programs.missing("symmetrix", "cuda"))
    assert "it needs e3nn 0.4.4, but 0.6.0 is" in str(programs.missing("fastmace", "cuda"))


# ---- programs of their own: Symmetrix-XL ----


def fake_symmetrix(*more: str, found: list[Any] | None = None) -> Any:
    """Return a package with Symmetrix-XL's interface, for CPUs and `more` devices."""

    class Symmetrix:
        def __init__(self, file: str, **options: Any) -> None:
            assert Path(file).read_text() == "converted"
            self.results: dict[str, Any] = {}
            if found is not None:
                found.append(options)

        def calculate(self, atoms: Any, wanted: list[str], changes: list[str]) -> None:
            assert changes == ["positions"]
            self.results = {"energy": -1.0, "forces": np.zeros((len(atoms), 3))}
            self.results["stress"] = np.arange(6.0)

    package: Any = types.ModuleType("symmetrix")
    package.available_backends = lambda: [{"backend": name} for name in ("cpu", *more)]
    package.load_backend = lambda request: None
    package.selected_backend = lambda: {"backend": "cpu"}
    package.Symmetrix = Symmetrix
    return package


def test_symmetrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The converter is called once; the calculator evaluates at every call."""
    calls: list[list[str]] = []
    options: list[Any] = []
    converter: Any = types.ModuleType("extract_mace")
    converter.main = lambda arguments: (
        calls.append(arguments),  # type: ignore[func-returns-value]
        Path(arguments[3]).write_text("converted"),
    )
    monkeypatch.setitem(sys.modules, "symmetrix", fake_symmetrix(found=options))
    monkeypatch.setitem(sys.modules, "symmetrix.cli.extract_mace", converter)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    checkpoint = DATA / "mace_water_e3nn044.model"
    for _ in range(2):
        file = programs.symmetrix_file(checkpoint, tmp_path / "a.json", ["H", "O"])
    ((*arguments, hydrogen, oxygen),) = calls
    assert arguments[:2] == ["-m", str(checkpoint)]
    assert (arguments[4], hydrogen, oxygen) == ("-s", "H", "O")
    make = partial(programs.symmetrix_calculator, file, "cpu", "float64", 3)
    info: Any = object()
    step = programs.CalculatorStep(make, info, Settings(stress=True), make_system("water", 3))
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert options == [{"dtype": "float64", "allow_fixed_workspace": False}]
    assert step()["stress"].tolist() == [[0, 5, 4], [5, 1, 3], [4, 3, 2]]
    with pytest.raises(DeviceError, match="no package for this cuda device"):
        programs.symmetrix_calculator(file, "cuda", "float32", None, 3)


# ---- what counts as a refusal ----


class FakePeer:
    """An implementation that computes with e3nn, or fails in a chosen pass."""

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


def measured(case: str, graph: Graph, *chosen: Any) -> tuple[dict[str, Any], list[str]]:
    section = conv.measure(CASES[case], "float32", graph, chosen, repeats=1)
    assert all(row["relative_error"] < 1e-5 for row in section["rows"])
    return section, [f"{row['pass']} {row['impl']}" for row in section["rows"]]


@needs_e3nn
def test_refusing_peers_do_not_stop_the_others() -> None:
    fakes = [FakePeer("good"), FakePeer("picky", "prepare"), FakePeer("big", "gradients")]
    graph = conv.make_graph(CASES["nequip-water"], make_system("water", 3), "cpu")
    section, rows = measured("nequip-water", graph, *fakes)
    assert rows == ["fwd good", "fwd big", "fwd+bwd good", "fwd+bwd+dbl good"]
    assert [(one["impl"], one["passes"], one["reason"]) for one in section["refused"]] == [
        ("picky", ["fwd", "fwd+bwd", "fwd+bwd+dbl"], "AssertionError: segments differ"),
        ("big", ["fwd+bwd", "fwd+bwd+dbl"], "out of memory"),
    ]
    assert conv.table(section, "water").splitlines()[-1] == (
        "  big (fwd+bwd, fwd+bwd+dbl): out of memory"
    )


@needs_e3nn
@pytest.mark.parametrize("case", ["nequip-water", "e3tools-conv", "e3tools-transformer"])
def test_batches_have_no_graph(case: str) -> None:
    chosen = [peers.PEERS[name] for name in ("e3nn", "mdcg")]
    section, rows = measured(case, conv.make_batch(5), *chosen)
    assert len(rows) == 6
    assert "batch of 5 products, no graph" in conv.table(section, "water")


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


def fake_openequivariance(order: list[int], log: list[str]) -> types.ModuleType:
    """Return a package that computes with e3nn and gives the output blocks in another order."""
    from e3nn import o3

    class Product:
        def __init__(self, problem: dict[str, Any]) -> None:
            log.append(type(self).__name__)
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
        def __call__(self, x: Any, y: Any, w: Any, rows: Any, cols: Any) -> Any:
            assert rows.dtype == cols.dtype == torch.int64
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
@pytest.mark.parametrize("order", [[], [0, 1, 3, 2]], ids=["same order", "other order"])
def test_openequivariance_in_its_own_order(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setitem(sys.modules, "openequivariance", fake_openequivariance(order, log))
    layer = build_layer(UVU, torch.float32)
    sender, receiver = peers_cuda._ring(torch.device("cpu"))
    graph = Graph(4, sender, receiver)
    ready = peers.PEERS["oeq"].prepare(layer, graph)
    assert log == ["TensorProductConv"]
    x, y = torch.randn(4, 16), torch.randn(8, 4)
    w = torch.randn(8, layer.problem.weight_numel)
    got = ready.run(ready.nodes_in(x), y, ready.weights_in(w))
    want = peers.PEERS["e3nn"].prepare(layer, graph).run(x, y, w)
    torch.testing.assert_close(ready.nodes_out_back(got), want)
    torch.testing.assert_close(ready.nodes_out(want), got)


@needs_e3nn
def test_openequivariance_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setitem(sys.modules, "openequivariance", fake_openequivariance([], log))
    layer = build_layer(UVW, torch.float64)
    rows = torch.arange(6)
    graph = Graph(6, rows, rows, batched=True)
    ready = peers.PEERS["oeq"].prepare(layer, graph)
    assert log == ["TensorProduct"]
    w = torch.randn(6, layer.problem.weight_numel, dtype=torch.float64)
    assert torch.equal(ready.weights_back(ready.weights_in(w)), w)
    assert not torch.equal(ready.weights_in(w), w)


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
