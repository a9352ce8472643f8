"""Programs: order of layers, stages, buffers, threads, reuse of edges, and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mdcg import _core
from mdcg.package import Package
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from ..core.contraction_helpers import random_contraction
from .programs import R_MAX, Program, check, graph, open_model, refused, run


def two_layers(dtype: str = "float64", seed: int = 0, channels: int = 7) -> Program:
    """Return a convolution of types, polynomials, and a convolution of their values."""
    p = Program(3, dtype, seed)
    x = p.features(channels)
    problem = random_contraction(
        str(x.irreps), f"{channels}x0e+{channels}x1o", 3, dtype=dtype, per_block=6
    )
    coefficients = p.random(3, problem.num_coefficients, channels) / 4
    y = p.contraction(x, problem, coefficients, "polynomials")
    p.readout(y, "first")
    weights = {(i, i): p.random(channels, channels) / channels for i in (0, 1)}
    up = p.linear(y, LinearMap(y.irreps, y.irreps, weights), "up")
    paths = [(0, 0, 0, "uvu", True), (1, 1, 1, "uvu", True), (0, 1, 2, "uvu", True)]
    conv = ConvProblem.build(
        str(y.irreps), "1x0e+1x1o", f"{channels}x0e+{channels}x0e+{channels}x1o", paths
    )
    z = p.conv(up, conv, p.network(conv.weight_numel), "second")
    weights = {(0, 0): p.random(channels, channels), (1, 0): p.random(channels, channels)}
    weights[(2, 1)] = p.random(channels, channels)
    z = p.linear(z, LinearMap(z.irreps, y.irreps, weights), "message")
    # reads the exchanged value, whose ghosts get gradients only from the convolution
    skip = p.linear(
        up, LinearMap(y.irreps, y.irreps, {(0, 0): p.random(3, channels, channels)}), "s"
    )
    total = p.sum([z, skip], "total")
    p.describe(y, "y")
    p.describe(total, "total")
    p.readout(total, "last")
    return p


def two_readers(dtype: str = "float64", channels: int = 5) -> Program:
    """Return two convolutions of one value, whose backward passes cannot be merged."""
    p = Program(3, dtype)
    x = p.features(channels)
    weights = {(i, i): p.random(channels, channels) / channels for i in (0, 1)}
    problem = random_contraction(
        str(x.irreps), f"{channels}x0e+{channels}x1o", 3, dtype=dtype, per_block=6
    )
    coefficients = p.random(3, problem.num_coefficients, channels) / 4
    y = p.contraction(x, problem, coefficients, "polynomials")
    up = p.linear(y, LinearMap(y.irreps, y.irreps, weights), "up")
    paths = [(0, 0, 0, "uvu", True), (1, 1, 1, "uvu", True)]
    conv = ConvProblem.build(str(y.irreps), "1x0e+1x1o", f"{channels}x0e+{channels}x0e", paths)
    found = []
    for name in ("left", "right"):
        z = p.conv(up, conv, p.network(conv.weight_numel), name)
        weights = {(i, 0): p.random(channels, channels) for i in (0, 1)}
        found.append(p.linear(z, LinearMap(z.irreps, y.irreps, weights), f"{name}_message"))
    p.readout(p.sum(found, "total"), "last")
    return p


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_two_layers(tmp_path: Path, dtype: str) -> None:
    check(two_layers(dtype), tmp_path / "p.mdcg", graph(70, box=7.0))


def test_edge_vector(tmp_path: Path) -> None:
    g = graph()
    a = check(two_layers(), tmp_path / "a.mdcg", g)
    b = check(two_layers(), tmp_path / "b.mdcg", g, edge_vector="sender_minus_receiver")
    assert not np.allclose(a["energies"], b["energies"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("nodes", [70, 1100])
def test_threads_do_not_matter(tmp_path: Path, dtype: str, nodes: int) -> None:
    """Results are equal to the last bit for any number of threads."""
    package = two_layers(dtype).package()
    g = graph(nodes, box=2.0 * nodes ** (1 / 3))
    results = []
    for threads in (1, 2, 3, 7):
        model = open_model(package, tmp_path / "p.mdcg", threads=threads, kernels="generic")
        for _ in range(2):
            results.append(run(model, g, virial=True, virials=True, descriptors=True))
    for other in results[1:]:
        for name, value in results[0].items():
            assert np.array_equal(value, other[name]), name


def test_order_of_nodes_and_edges(tmp_path: Path) -> None:
    g = graph(60, box=7.0)
    model = open_model(two_layers().package(), tmp_path / "p.mdcg", kernels="generic")
    want = run(model, g, descriptors=True)
    rng = np.random.default_rng(2)
    order = rng.permutation(len(g["positions"]))
    number = np.argsort(order).astype(np.int32)
    edges = rng.permutation(len(g["sender"]))
    shuffled = {
        "positions": g["positions"][order],
        "types": g["types"][order],
        "sender": number[g["sender"]][edges],
        "receiver": number[g["receiver"]][edges],
    }
    got = run(model, shuffled, descriptors=True)
    for name in ("energies", "forces", "descriptors"):
        np.testing.assert_allclose(got[name], want[name][order], rtol=1e-10, atol=1e-11)


def test_descriptors(tmp_path: Path) -> None:
    from .reference import evaluate

    package = two_layers().package()
    g = graph()
    got = run(open_model(package, tmp_path / "p.mdcg"), g, forces=False, descriptors=True)
    want = evaluate(package, g["positions"], g["types"], g["sender"], g["receiver"]).values
    names = package.manifest["descriptors"]
    rows = np.concatenate([want[name].numpy() for name in names], axis=1)
    np.testing.assert_allclose(got["descriptors"], rows, rtol=1e-10, atol=1e-11)


def test_same_edges(tmp_path: Path) -> None:
    """With `same_edges` and moved positions, results are the same as with new edges."""
    package = two_layers().package()
    model = open_model(package, tmp_path / "p.mdcg")
    g = graph()
    run(model, g)
    rng = np.random.default_rng(5)
    moved = {**g, "positions": g["positions"] + rng.normal(size=g["positions"].shape) * 0.05}
    shifts = np.zeros((len(g["sender"]), 3))
    edges = (g["sender"], g["receiver"], shifts)
    got = model.evaluate(moved["positions"], g["types"], edges=edges, same_edges=True)
    want = run(open_model(package, tmp_path / "p.mdcg"), moved)
    np.testing.assert_allclose(got["forces"], want["forces"], rtol=1e-9, atol=1e-11)
    with pytest.raises(_core.EngineError, match="41 nodes and 1 edges, but mdcg_system"):
        model.evaluate(
            moved["positions"],
            g["types"],
            edges=(g["sender"][:1], g["receiver"][:1], shifts[:1]),
            same_edges=True,
        )


def with_pairs(dtype: str = "float64") -> Program:
    """Return a program with energies of nodes and energies of pairs."""
    p = two_layers(dtype)
    square = {"factor": np.full((3, 3), 3.0), "a": np.full((3, 3), 0.5)}
    square["r_max"] = np.full((3, 3), 2.5)
    screening = {"coefficients": [0.3, 0.7], "exponents": [0.4, 1.2], "p": 6}
    p.pair_energy("zbl", {**square, **screening}, "pairs")
    return p


def test_weighted_energies(tmp_path: Path) -> None:
    model = open_model(with_pairs().package(), tmp_path / "p.mdcg", kernels="generic")
    g, rng = graph(20, box=4.5), np.random.default_rng(2)
    weights, plain = rng.normal(size=20), run(model, g)
    found = run(model, g, energy_weights=weights)
    assert_array_equal(found["energies"], plain["energies"])
    size = np.abs(plain["forces"]).max()
    assert np.abs(found["forces"] - plain["forces"]).max() > 0.1 * size
    for _ in range(4):
        way = rng.normal(size=(20, 3))
        ends = [{**g, "positions": g["positions"] + step * way} for step in (1e-4, -1e-4)]
        up, down = (weights @ run(model, end, forces=False)["energies"] for end in ends)
        assert (found["forces"] * way).sum() == pytest.approx((down - up) / 2e-4, abs=1e-5 * size)
    assert_array_equal(run(model, g, energy_weights=np.ones(20))["forces"], plain["forces"])
    with pytest.raises(
        _core.EngineError, match=r"energy_weights has shape \(3\), expected \(20,\)"
    ):
        run(model, g, energy_weights=np.ones(3))
    own, all_edges = (
        model.evaluate(g["positions"], g["types"], energy_weights=each) for each in (weights, None)
    )
    for sum_of, forces in ((weights, own["forces"]), (np.ones(20), all_edges["forces"])):
        ends = (
            model.evaluate(g["positions"] + step * way, g["types"])["energies"]
            for step in (1e-4, -1e-4)
        )
        up, down = (sum_of @ energies for energies in ends)
        assert (forces * way).sum() == pytest.approx((down - up) / 2e-4, abs=1e-5 * size)
    assert_array_equal(run(model, g)["forces"], plain["forces"])


def test_energy_alone_needs_less(tmp_path: Path) -> None:
    package = two_layers(channels=64).package()
    g = graph(2000, box=25.0)
    g["sender"], g["receiver"] = g["sender"][:9000], g["receiver"][:9000]
    bytes_of = []
    for forces in (False, True):
        model = open_model(package, tmp_path / "p.mdcg", threads=1, kernels="generic")
        run(model, g, forces=forces)
        report = json.loads(model.report())
        bytes_of.append(report["bytes"] - report["graph_bytes"])
        backward = sum(layer["backward_ms"] for layer in report["layers"])
        assert (backward > 0) == forces
    assert bytes_of[0] < 0.6 * bytes_of[1]


# -- damaged programs ------------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def layer_of(manifest: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(layer for layer in manifest["layers"] if layer["type"] == kind)


def _cycle(m: dict[str, Any], _: dict[str, Any]) -> None:
    m["layers"].append(m["layers"].pop(0))


def _twice(m: dict[str, Any], _: dict[str, Any]) -> None:
    m["layers"].append({**layer_of(m, "sum"), "name": "again"})


def _set(kind: str, **fields: Any) -> Change:
    return lambda m, _: layer_of(m, kind).update(fields)


def _top(**fields: Any) -> Change:
    return lambda m, _: m.update(fields)


def _tensor(kind: str, key: str, change: Callable[[Any], Any]) -> Change:
    def apply(m: dict[str, Any], t: dict[str, Any]) -> None:
        name = layer_of(m, kind)[key]
        t[name] = change(t[name])

    return apply


def _problem(kind: str, **fields: Any) -> Change:
    def apply(m: dict[str, Any], _: dict[str, Any]) -> None:
        layer = layer_of(m, kind)
        problem = json.loads(layer["problem"]) | fields
        layer["problem"] = json.dumps(problem, separators=(",", ":"), sort_keys=True)

    return apply


def _nan(a: Any) -> Any:
    a = a.copy()
    a.flat[3] = np.nan
    return a


def _absent(m: dict[str, Any], t: dict[str, Any]) -> None:
    del t[layer_of(m, "contraction")["coefficients"]]


def _no_exchange(m: dict[str, Any], _: dict[str, Any]) -> None:
    m["layers"] = [layer for layer in m["layers"] if layer["type"] != "exchange"]


def _append(*layers: str) -> Change:
    """Append exchanges ("exchange x"), and convolutions that nothing reads ("conv x")."""

    def apply(m: dict[str, Any], t: dict[str, Any]) -> None:
        second = next(layer for layer in m["layers"] if layer["name"] == "second")
        t["rows.table"] = np.ones((3, 28))
        m["values"] |= {"rows": m["values"]["up"], "dead": m["values"]["second"]}
        m["layers"].append({"type": "type_rows", "name": "r", "out": "rows", "table": "rows.table"})
        for layer in layers:
            kind, x = layer.split()
            fields = {**second, "out": "dead"} if kind == "conv" else {}
            m["layers"].append({**fields, "type": kind, "name": f"my {kind}", "x": x})

    return apply


def _radial(m: dict[str, Any]) -> Any:
    return layer_of(m, "conv")["radial"]


def _self(m: dict[str, Any], _: dict[str, Any]) -> None:
    layer = layer_of(m, "sum")
    layer["x"] = [*layer["x"], layer["out"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_cycle, r"layer 0 \(polynomials\) reads \"source\" before any layer has written it"),
        (_twice, r"\(again\) writes \"total\", which layer \d+ has written"),
        (_self, r"reads \"total\" before any layer has written it"),
        (_no_exchange, r"\(second\) reads \"up\" of neighbours, expected an exchange"),
        (
            _append("exchange up"),
            r"\(my exchange\) exchanges \"up\", which layer \d+ \(up_exchange\) has exchanged, "
            r"expected once: remove the second",
        ),
        (
            _append("conv rows", "exchange rows"),
            r"\(my exchange\) exchanges \"rows\" after layer \d+ \(my conv\) has read it of "
            r"neighbours, expected before: move it there",
        ),
        (
            _append("exchange total"),
            r"\(my exchange\) exchanges \"total\", which no layer reads of neighbours: remove the "
            "exchange",
        ),
        (
            _append("exchange message", "conv message"),
            r"\(my exchange\) exchanges \"message\" for layer \d+ \(my conv\), on which no energy "
            r"and no descriptor depends: remove both",
        ),
        (_set("linear", type="linier"), r"layer \d+ has type linier, this version of mdcg knows"),
        (_set("sum", out="nothing"), r"field out is \"nothing\", expected a name"),
        (_set("sum", x=["message"] * 2, out="up"), r"x and out|writes \"up\""),
        (_set("sum", x="message"), r"\(sum\): field x is \"message\", expected a list"),
        (_set("contraction", problem="{"), r"field problem is \"{\", expected an object as text"),
        (_set("energy", channel=1), r"field channel is 1, expected an integer from 0 to 0"),
        (_set("energy", channel=None), r"field channel is null, expected an integer"),
        (_set("energy", scale="nowhere"), r"field scale is \"nowhere\", expected the name"),
        (_absent, r"field coefficients is \"polynomials.coefficients\", expected the name"),
        (_tensor("contraction", "coefficients", _nan), r"coefficients has the value nan at pos"),
        (_tensor("energy", "shift", lambda a: a[:2]), r"field shift is 2 numbers, expected 1 or 3"),
        (
            _tensor("contraction", "coefficients", lambda a: a[:, :, :-1].copy()),
            r"is a tensor of shape \[3, 12, 6\], expected shape \[any, 12, 7\]",
        ),
        (_top(format=5), r"has package format 5, this is mdcg .* and reads up to 4"),
        (_top(dtype="float16"), r"field dtype is float16, expected float32 or float64"),
        (_top(r_max=-1.0), r"field r_max is -1, expected a length"),
        (_top(r_max="x"), r"field r_max is \"x\", expected a finite number"),
        (_top(layers=[]), r"field layers is 0 layers, expected 1"),
        (_top(layers=7), r"field layers is 7, expected a list of objects"),
        (_top(layers=[7]), r"is 7, expected an object"),
        (_top(values={"source": "7x0"}), r"value \"source\" has irreps \"7x0\", expected such"),
        (_top(values={"source": "99999999x0e"}), r"irreps \"99999999x0e\", expected such"),
        (_top(values=[]), r"field values is no object"),
        (lambda m, _: _radial(m).update(r_max=-1.0), r"r_max"),
        (lambda m, _: _radial(m)["layers"].pop(), r"outputs"),
        (_set("conv", problem="{}"), r"irreps_in1 is absent"),
        (_top(format="1"), r'field format is "1", expected an integer'),
        (_top(type_names=[]), r"field type_names is 0 names"),
        (
            _top(descriptors=["nothing"]),
            r"field descriptors is \"nothing\", expected different names",
        ),
        (_top(charges=True, dipoles=True), r"field dipoles is there beside charges, expected one"),
        (_top(energy_unit="kcal/mol"), r"field energy_unit is kcal/mol, expected eV"),
        (
            _tensor("contraction", "coefficients", lambda a: a.astype(np.float32)),
            r"field coefficients is a tensor of float32, expected float64",
        ),
        (
            _tensor("energy", "shift", lambda a: a.astype(np.float32)),
            r"field shift is a tensor of float32, expected float64",
        ),
        (
            _problem("contraction", dtype="float32"),
            r"\(contraction\), problem: field dtype is float32, expected float64, the dtype of the",
        ),
        (
            _problem("conv", dtype="float32"),
            r"problem: field dtype is float32, expected float64, the dtype of the package",
        ),
        (
            _problem("conv", irreps_in1="7x0o"),
            r"field paths is 7x0o times 1x0e to 7x0e, expected an irrep that their product con",
        ),
        (
            _problem("conv", paths=[[0, 1, 2, "uvu", 1, "0x1p+0"]]),
            r"field paths is 7x0e times 1x1o to 7x2e, expected an irrep that their product con",
        ),
    ],
)
def test_damaged(tmp_path: Path, change: Change, sentence: str) -> None:
    package = two_layers().package()
    manifest = json.loads(json.dumps(package.manifest))
    tensors = dict(package.tensors)
    change(manifest, tensors)
    broken = Package(manifest, tensors)
    broken.save(tmp_path / "p.mdcg")
    refused(tmp_path / "p.mdcg", sentence, 3 if "this version of mdcg knows" in sentence else 2)


def test_gate_and_linear_errors(tmp_path: Path) -> None:
    p = Program(3)
    x = p.features(7)
    out = Irreps.parse("7x0e+7x1o")
    p.gate(x, out, [(0, 0, "silu", 1.0)], [(0, 0, 1, 1, "sinh", 1.0)], "gate")
    with pytest.raises(_core.EngineError, match=r"activation \"sinh\", expected none, silu"):
        open_model(p.package(), tmp_path / "p.mdcg")


def test_damaged_systems(tmp_path: Path) -> None:
    model = open_model(two_layers().package(), tmp_path / "p.mdcg", kernels="generic")
    g = graph()
    for key, value, sentence in [
        ("types", 3, r"the type of atom 5 is 3, expected 0 to 2"),
        ("sender", 41, r"sender\[5\] is 41, expected 0 <= sender < 41"),
        ("receiver", -1, r"receiver\[5\] is -1, expected 0 <= receiver < 41"),
        ("positions", np.nan, r"the position of atom 5 is nan"),
    ]:
        broken = {**g, key: g[key].copy()}
        broken[key][5] = value
        with pytest.raises(_core.EngineError, match=sentence):
            run(model, broken)
    broken = {**g, "positions": g["positions"].copy()}
    broken["positions"][g["sender"][0]] = broken["positions"][g["receiver"][0]]
    with pytest.raises(
        _core.EngineError, match=rf"atoms {g['sender'][0]} and {g['receiver'][0]} are at the"
    ):
        run(model, broken)
    assert np.isfinite(run(model, g)["energy"])  # the model still works
    assert model.r_max == R_MAX


def test_results_that_are_not_finite(tmp_path: Path) -> None:
    """Descriptors or virials that are not finite are an error, even if the energy is finite."""
    g = graph()
    p = Program(3, "float32")
    x = p.features(7)
    huge = LinearMap(x.irreps, x.irreps, {(0, 0): np.eye(7) * 3e38})
    p.linear(p.linear(x, huge, "large"), huge, "larger")
    p.readout(x)
    package = p.package()
    package.manifest["descriptors"] = ["larger"]
    with pytest.raises(_core.EngineError, match="descriptors are not finite") as error:
        run(open_model(package, tmp_path / "p.mdcg"), g, forces=False, descriptors=True)
    assert error.value.kind == 7
    p = Program(3, "float32")
    x = p.features(7)
    tiny = {(0, 0): np.full((7, 1), 1e-30)}
    x = p.linear(x, LinearMap(x.irreps, Irreps.parse("1x0e"), tiny), "tiny")
    p.energy(x, np.full(1, 1e300), np.zeros(1), "energy")  # beyond float32
    model = open_model(p.package(), tmp_path / "p.mdcg")
    assert np.isfinite(run(model, g, forces=False)["energy"])
    with pytest.raises(_core.EngineError, match="virials are not finite"):
        run(model, g, forces=False, virials=True)
