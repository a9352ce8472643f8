"""Layers on nodes against plain torch: values, gradients, padding, groups of types."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mdcg import _core
from mdcg.package.linear_map import LinearMap
from mdcg.problem import Irreps

from ..core.contraction_helpers import random_contraction
from ..covering import covering
from .programs import Program, check, graph, open_model, run

pytestmark = pytest.mark.compiler

DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])


@covering(channels=[1, 7, 16, 33, 128], dtype=["float64", "float32"], typed=[False, True])
def test_linear(tmp_path: Path, dtype: str, channels: int, typed: bool) -> None:
    p = Program(3, dtype)
    x = p.features(channels)
    irreps_out = Irreps.parse(f"5x1o+{channels}x0e+9x0e+3x2e")
    lead = (3,) if typed else ()
    pairs = [(1, 0), (0, 1), (0, 2)]  # block 2 of x feeds nothing, block 3 of out gets nothing
    weights = {(i, o): p.random(*lead, channels, irreps_out[o].mul) / 2 for i, o in pairs}
    bias = {1: p.random(channels), 2: p.random(3, 9)}
    y = p.linear(x, LinearMap(x.irreps, irreps_out, weights, bias), "first")
    # two paths meet in one block, and blocks come in another order
    back = Irreps.parse(f"{channels}x0e+{channels}x1o+{channels}x2e")
    weights = {(1, 0): p.random(channels, channels), (2, 0): p.random(9, channels)}
    weights |= {(0, 1): p.random(5, channels), (3, 2): p.random(3, channels)}
    z = p.linear(y, LinearMap(irreps_out, back, weights), "second")
    # x is read twice: gradients add up
    total = p.sum([x, z], "total")
    contract(p, total)
    check(p, tmp_path / "p.mdcg", graph())


@covering(channels=[7, 32], dtype=["float64", "float32"], typed=[False, True], terms=[1, 2, 3])
def test_terms_of_a_sum(tmp_path: Path, dtype: str, channels: int, typed: bool, terms: int) -> None:
    """Linear layers that are terms of sums give the results of the reference."""
    p = Program(3, dtype)
    x = p.features(channels)
    out = Irreps.parse("+".join(f"{channels}x{ir}" for ir in ("0e", "0e", "1o", "2e")))
    lead = (3,) if typed else ()
    square = p.random(*lead, channels, channels) / 4
    maps = [  # blocks that a term leaves out, several paths to one block, constants
        LinearMap(x.irreps, out, {(0, 0): square, (2, 3): square}, {1: p.random(channels)}),
        LinearMap(x.irreps, out, {(1, 2): square, (0, 0): square}),
        LinearMap(out, out, {(0, 0): square, (1, 0): square}, {0: p.random(3, channels)}),
    ]
    first = p.linear(x, maps[0], "first")
    inputs = [p.scale(x, np.array([0.7]), "scaled"), x, first]
    found = [p.linear(inputs[i], maps[i], f"term_{i}") for i in (0, 1, 2)[:terms]]
    total = p.sum(found, "total")
    # reads a sum that has been folded into its terms
    more = [p.linear(total, LinearMap(out, out, {(2, 2): square}), f"more_{i}") for i in "ab"]
    kept = p.sum([total, first], "kept")  # both terms have several readers
    contract(p, kept)
    contract(p, p.sum(more, "second_total"), "second_square")
    p.readout(total, "again")
    check(p, tmp_path / "p.mdcg", graph())
    model = open_model(p.package(), tmp_path / "p.mdcg")
    run(model, graph())
    names = [layer["name"] for layer in json.loads(model.report())["layers"]]
    assert not {"total", "second_total"} & {*names}
    assert "kept" in names
    assert terms == 1 or names.index("term_1") < names.index("term_0")


def contract(p: Program, x, name: str = "square", seed: int = 4) -> None:
    """Read every component of x: through polynomials to scalars."""
    channels = x.irreps[0].mul
    problem = random_contraction(
        str(x.irreps), f"{channels}x0e", 2, per_block=8, terms=8, seed=seed, dtype=p.dtype
    )
    coefficients = p.random(p.n_types, problem.num_coefficients, channels) / 4
    p.readout(p.contraction(x, problem, coefficients, name), f"{name}_readout")


@covering(degree=[1, 2, 3, 4], dtype=["float64", "float32"], typed=[False, True], channels=[7, 33])
def test_contraction(tmp_path: Path, dtype: str, degree: int, typed: bool, channels: int) -> None:
    p = Program(3, dtype)
    x = p.features(channels, 3)
    out = f"{channels}x0e+{channels}x1o"
    problem = random_contraction(str(x.irreps), out, degree, dtype=dtype, per_block=6)
    n = problem.num_coefficients
    coefficients = p.random(3 if typed else 1, n, channels) / 4
    y = p.contraction(x, problem, coefficients, "polynomials")
    p.readout(y)
    if degree > 1:  # gradients of x come from two layers
        p.readout(x, "of_x")
    check(p, tmp_path / "p.mdcg", graph(), kernels=("generic", "generated"))


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "tanh", "sigmoid", "relu", "abs", "ssp", "none"])
def test_gate(tmp_path: Path, dtype: str, activation: str) -> None:
    p = Program(3, dtype)
    x = p.features(5)
    wide = Irreps.parse("19x0e+5x1o+4x2e+3x0e")
    weights = {(0, 0): p.random(5, 19), (1, 1): p.random(5, 5), (2, 2): p.random(5, 4)}
    weights[(0, 3)] = p.random(5, 3)
    y = p.linear(x, LinearMap(x.irreps, wide, weights), "wide")
    if dtype == "float64":  # gradients of y come from two layers
        p.readout(y, "of_wide")
    out = Irreps.parse("3x0e+5x1o+4x2e")
    scalars = [(3, 0, activation, 1.3)]
    gated = [(0, 10, 1, 1, activation, 0.7), (0, 2, 2, 2, "sigmoid", 1.9)]
    z = p.gate(y, out, scalars, gated, "gate")
    back = {(0, 0): p.random(3, 7), (1, 1): p.random(5, 7), (2, 2): p.random(4, 7)}
    irreps = Irreps.parse("7x0e+7x1o+7x2e")
    contract(p, p.linear(z, LinearMap(out, irreps, back), "back"))
    check(p, tmp_path / "p.mdcg", graph())


@DTYPES
def test_pointwise(tmp_path: Path, dtype: str) -> None:
    p = Program(3, dtype)
    x = p.features(7)
    density = p.edge_sum(p.network(1), "tanh_square", "density")
    y = p.normalize(x, density, 0.9, 0.4, "normalize")
    y = p.scale(y, p.random(3), "by_type")
    y = p.scale(y, np.array([1.7]), "by_one")
    scalars = LinearMap(x.irreps, Irreps.parse("6x0e"), {(0, 0): p.random(7, 6)})
    a, b = p.linear(y, scalars, "a"), p.linear(x, scalars, "b")
    p.readout(p.product(a, b, "product"), "first")
    p.readout(p.product(a, a, "squared"), "second")
    p.readout(p.sum([a, b, a], "sum"), "third")
    fixed = p.stored(p.table("6x0e", p.random(3, 6)), "fixed")
    p.readout(p.product(a, fixed, "times_fixed"), "fourth")
    contract(p, y)
    check(p, tmp_path / "p.mdcg", graph())


@covering(channels=[1, 7, 33], dtype=["float64", "float32"], l_max=[0, 2], same=[False, True])
def test_channels(tmp_path: Path, channels: int, dtype: str, l_max: int, same: bool) -> None:
    """Layers that mix the components or the channels of a node."""
    p = Program(3, dtype)
    x = p.features(channels, l_max)
    square = {(b, b): p.random(channels, channels) / 2 for b in range(l_max + 1)}
    y = x if same else p.linear(x, LinearMap(x.irreps, x.irreps, square), "y")
    dots = p.dot(x, y, "dot")
    p.readout(dots, "of_dot")
    weight, bias = p.random(channels), p.random(channels)
    norm = p.layer_norm(dots, weight, bias, 1e-2, "norm")
    p.readout(p.layer_norm(norm, weight, bias, 1e-2, "second_norm"), "of_norm")
    uneven = Irreps.from_pairs([(channels + b, b, (-1) ** b) for b in range(l_max + 1)])
    maps = {(b, b): p.random(channels, channels + b) for b in range(l_max + 1)}
    z = p.linear(x, LinearMap(x.irreps, uneven, maps), "uneven")
    numbers, weights = p.rng.uniform(size=l_max + 1), p.random(sum(b.mul for b in uneven))
    z = p.rms_norm(z, numbers, weights, 1e-2, "rms")
    back = {(b, b): p.random(channels + b, channels) for b in range(l_max + 1)}
    contract(p, p.linear(z, LinearMap(uneven, x.irreps, back), "even"), "of_rms")
    p.readout(p.rms_norm(x, numbers, p.random(channels * (l_max + 1)), 1e-2, "second_rms"), "rms_x")
    factors = Irreps.from_pairs([(channels, 0, 1)] * (l_max + 1))
    maps = {(0, b): p.random(channels, channels) for b in range(l_max + 1)}
    gates = p.linear(norm, LinearMap(norm.irreps, factors, maps), "gates")
    out = p.modulate(x, gates, "modulate")
    if l_max == 0:
        out = p.modulate(out, out, "itself")
    contract(p, out)
    check(p, tmp_path / "p.mdcg", graph())


@pytest.mark.parametrize(
    ("layer", "change", "message"),
    [
        ("dot", {"y": "scalars"}, r"dot.: field y is 5x0e, expected 5x0e\+5x1o as x"),
        ("dot", {"out": "wide"}, r"dot.: field out is 6x0e, expected 5x0e"),
        ("dot", {"x": "uneven", "y": "uneven"}, r"x is 5x0e\+4x1o, expected .* same multiplicity"),
        ("modulate", {"y": "wide"}, r"modulate.: field y is 6x0e, expected 5x0e\+5x0e"),
        ("layer_norm", {"epsilon": 0.0}, r"epsilon is 0, expected a positive number"),
        ("layer_norm", {"x": "vectors", "out": "norm_of_vectors"}, r"5x0e\+5x1o, expected 5x0e"),
        (
            "rms_norm",
            {"epsilon": 0.0},
            r"rms_norm.: field epsilon is 0, expected a positive number",
        ),
        ("rms_norm", {"factors": [1.0]}, r"factors is 1 numbers, expected 2, one for each block"),
        ("rms_norm", {"factors": [1.0, -1.0]}, r"factors is -1, expected numbers that are not neg"),
        ("rms_norm", {"weight": "norm.weight"}, r"weight .*\[5\].*\[10\]"),
        (
            "rms_norm",
            {"out": "wide"},
            r"rms_norm.: x and out have different irreps, expected the same",
        ),
    ],
)
def test_refusals_of_channels(tmp_path: Path, layer: str, change, message: str) -> None:
    p = Program(3)
    x = p.features(5, 1, "vectors")

    def to(irreps: str, name: str):
        out = Irreps.parse(irreps)
        pairs = [(0, b) for b in range(len(out)) if out[b].ir.l == 0]
        weights = {(i, o): p.random(5, out[o].mul) for i, o in pairs}
        if out[-1].ir.l:
            weights[(1, len(out) - 1)] = p.random(5, out[-1].mul)
        return p.linear(x, LinearMap(x.irreps, out, weights), name)

    scalars, _, _ = to("5x0e", "scalars"), to("6x0e", "wide"), to("5x0e+4x1o", "uneven")
    to("5x0e+5x1o", "norm_of_vectors")
    gates = to("5x0e+5x0e", "gates")
    p.dot(x, x, "dot")
    p.modulate(x, gates, "modulate")
    p.layer_norm(scalars, np.ones(5), np.zeros(5), 1e-5, "norm")
    p.rms_norm(x, np.ones(2), np.ones(10), 1e-5, "rms")
    p.readout(scalars)
    package = p.package()
    next(entry for entry in package.layers if entry["type"] == layer).update(change)
    path = tmp_path / "p.mdcg"
    with pytest.raises(_core.EngineError, match=message):
        open_model(package, path)


def test_energies_add_up_in_double(tmp_path: Path) -> None:
    p = Program(2, "float32")
    x = p.features(7)
    p.readout(x)
    y = p.linear(x, LinearMap(x.irreps, Irreps.parse("3x0e"), {(0, 0): p.random(7, 3)}), "y")
    shift = np.array([-2043.93216841, 13.58713249])  # float32 has no room for these
    p.energy(y, np.array([0.5]), shift, "e", channel=2)
    check(p, tmp_path / "p.mdcg", graph(types=2))


@pytest.mark.parametrize(
    ("nodes", "box"), [(0, 1.0), (1, 1.0), (2, 2.0), (2, 50.0), (16, 5.0), (17, 5.0), (33, 6.0)]
)
def test_sizes(tmp_path: Path, nodes: int, box: float) -> None:
    """Results agree for any number of nodes: none, isolated ones, full and partial chunks."""
    p = Program(3)
    contract(p, p.features(7))
    g = graph(nodes, box=box)
    if nodes:
        check(p, tmp_path / "p.mdcg", g)
