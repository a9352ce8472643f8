"""The layers of test_node_layers.py on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from . import test_node_layers as layers
from .capi import Rank
from .cuda_cases import assert_close, both
from .programs import Array, Program, graph, run
from .test_ghosts import WANT, parts
from .test_node_layers import (  # noqa: F401
    test_channels,
    test_contraction,
    test_energies_add_up_in_double,
    test_gate,
    test_linear,
    test_pointwise,
    test_sizes,
    test_terms_of_a_sum,
)


def check(program: Program, path: Path, g: dict[str, Array], **_: Any) -> None:
    cpu, cuda = both(program.package(), path)
    for wanted in ({"forces": False}, {"virial": True}):
        want: dict[str, Any] = run(cpu, g, **wanted)
        assert_close(run(cuda, g, **wanted), want, program.dtype)


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "check", check)


def test_products_of_warpgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products by warpgroups agree for tiles of 64 and 32 columns."""
    monkeypatch.setenv("EMULATED_CUDA_MULTIPROCESSORS", "1")
    p = Program(3, "float32")
    x = p.features(64)
    weights = {(0, 0): p.random(64, 128) / 8, (1, 1): p.random(64, 96) / 8}
    irreps = Irreps.parse("128x0e+96x1o+9x0e")
    y = p.linear(x, LinearMap(x.irreps, irreps, weights, {0: p.random(128)}), "linear")
    back = {(0, 0): p.random(128, 64) / 8, (1, 1): p.random(96, 64) / 8}
    layers.contract(p, p.linear(y, LinearMap(irreps, Irreps.parse("64x0e+64x1o"), back), "back"))
    check(p, tmp_path / "p.mdcg", graph(40))


def test_what_types_alone_decide_is_found_for_ghosts(tmp_path: Path) -> None:
    """Values that depend only on types are computed for ghosts, too, without an exchange."""
    p = Program(3)
    x = p.stored(p.table("7x0e+5x1o", p.random(3, 22)), "fixed")
    weights = {(0, 0): p.random(3, 7, 9), (1, 2): p.random(3, 5, 4)}
    bias = {0: p.random(9), 1: p.random(3, 2)}  # no path goes to block 1
    y = p.linear(x, LinearMap(x.irreps, Irreps.parse("9x0e+2x0e+4x1o"), weights, bias), "typed")
    y = p.scale(y, p.random(3), "by_type")
    p._exchanged.add(p._use(y))
    paths = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True), (2, 1, 2, "uvu", True)]
    conv = ConvProblem.build(str(y.irreps), "1x0e+1x1o", "9x0e+2x0e+4x0e", paths)
    p.readout(p.conv(y, conv, p.network(conv.weight_numel), "conv"))
    package = p.package()
    assert "exchange" not in {layer["type"] for layer in package.manifest["layers"]}
    g = graph(40, box=5.5)
    cpu, cuda = both(package, tmp_path / "p.mdcg")
    want = run(cpu, g, virial=True, virials=True)
    assert_close(run(cuda, g, virial=True, virials=True), want, "float64")
    total = {name: np.zeros_like(want[name]) for name in WANT if name != "energy"}
    for local, ghosts in parts(g, 0.5):
        rank = Rank(str(tmp_path / "p.mdcg"), local, ghosts, device="cuda", kernels="auto")
        result = rank.evaluate(g, None, WANT)
        rank.close()
        total["energies"][local] += result["energies"]
        total["virial"] += result["virial"]
        np.add.at(total["forces"], rank.nodes, result["forces"])
        np.add.at(total["virials"], rank.nodes, result["virials"])
    assert_close(total, {name: want[name] for name in total}, "float64")


@pytest.mark.parametrize("energy", [True, False])
def test_dipoles(tmp_path: Path, energy: bool) -> None:
    """Dipoles and energies agree for models with both, and for models without energies."""
    p = Program(3)
    x = p.features(5)
    weights = {(0, 0): p.random(5, 1), (1, 1): p.random(5, 1)}
    site = p.linear(x, LinearMap(x.irreps, Irreps.parse("1x0e+1x1o"), weights), "site")
    if energy:
        p.energy(site, p.random(3), p.random(3), "energy")
    vectors = LinearMap(site.irreps, Irreps.parse("1x1o"), {(1, 0): np.ones((1, 1))})
    p.dipoles(p.linear(site, vectors, "vectors"))
    cpu, cuda = both(p.package(), tmp_path / "p.mdcg")
    assert cpu.has_energy == cuda.has_energy == energy
    g = graph(30, box=5.5)
    for _ in range(2):
        for wanted in (
            {"forces": energy},
            {"forces": energy, "virial": energy, "descriptors": True},
        ):
            assert_close(run(cuda, g, **wanted), run(cpu, g, **wanted), "float64")
