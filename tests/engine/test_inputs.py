"""Inputs of a system, such as its charge, on CPUs and in damaged files."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package

from .batches import WANTED, assert_same_batch, joined, one_by_one, places
from .capi import Rank
from .input_programs import VALUES, input_program, with_values
from .programs import TOLERANCE, graph, open_model, refused, run
from .test_c_api import compile_c


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("types", [3, 20])
@pytest.mark.parametrize("preset", [True, False])
def test_values(tmp_path: Path, dtype: str, types: int, preset: bool) -> None:
    package = input_program(dtype, types, preset).package()
    model = open_model(package, tmp_path / "p.mdcg")
    g = graph(types=types)
    found = {}
    for values in (*VALUES, *VALUES[::-1]):
        got = run(model, g, virial=True, inputs=np.array(values))
        if values in found:
            for name in ("energies", "forces", "virial"):
                np.testing.assert_array_equal(got[name], found[values][name])
            continue
        found[values] = got
        plain = open_model(with_values(package, values), tmp_path / "q.mdcg")
        want = run(plain, g, virial=True)
        for name in ("energies", "forces", "virial"):
            size = np.abs(want[name]).max()
            assert np.abs(got[name] - want[name]).max() < TOLERANCE[dtype] * size
    energies = {round(float(each["energy"]), 4) for each in found.values()}
    assert len(energies) == len(VALUES)  # the number `field` alone has no effect
    if preset:
        np.testing.assert_array_equal(run(model, g)["forces"], found[VALUES[0]]["forces"])
        nan = np.array([np.nan, 2.0, np.nan])
        other = run(model, g, inputs=np.array([0.0, 2.0, 0.0]))
        np.testing.assert_array_equal(run(model, g, inputs=nan)["forces"], other["forces"])


def test_batches_of_different_values(tmp_path: Path) -> None:
    """Threads share groups of systems that have equal values."""
    package = input_program().package()
    systems = [*places(0), *places(1)]
    chosen = np.array([VALUES[n % 3] for n in range(len(systems))])
    model = open_model(package, tmp_path / "p.mdcg", threads=2)
    found = model.evaluate_batch(**joined(systems), **WANTED, inputs=chosen)
    for values in VALUES[:3]:
        plain = open_model(with_values(package, values), tmp_path / "q.mdcg")
        which = [n for n, own in enumerate(chosen) if tuple(own) == values]
        want = one_by_one(plain, [systems[n] for n in which], **WANTED)
        rows = np.concatenate([[n] * len(s.types) for n, s in enumerate(systems)])
        by_system = ("energy", "virial")
        got = {
            name: values[which if name in by_system else np.isin(rows, which)]
            for name, values in found.items()
        }
        assert_same_batch(got, want, TOLERANCE["float64"])
    none = model.evaluate_batch(
        np.zeros(1, int), np.zeros(0, np.int32), np.zeros((0, 3)), inputs=np.zeros((0, 3))
    )
    assert none["energy"].shape == (0,)


def test_a_host_in_c(tmp_path: Path) -> None:
    input_program(preset=False).package().save(tmp_path / "p.mdcg")
    compile_c(Path(__file__).parent / "c_inputs.c", tmp_path / "host")
    command = [tmp_path / "host", tmp_path / "p.mdcg", "1", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["charge nan", "spin 1", "field 0"]
    assert lines[3].startswith("the model reads charge of each system, which was not given and has")
    model = _core.Model(str(tmp_path / "p.mdcg"))
    at = np.array([[0, 0, 0], [0.9, 0.3, 0], [-0.4, 0.8, 0]])
    want = [
        model.evaluate(at, np.array([1, 0, 0], np.int32), inputs=np.array(values))["energy"]
        for values in ([1.0, 3.0, 0.0], [-1.0, 1.0, 0.0])
    ]
    found = [float(word) for line in lines[4:] for word in line.split()]
    assert found == pytest.approx([want[0], *want], rel=1e-13)
    command[2:] = ["3", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\ncharge is 3, expected a whole number from -2 to 2\n" in done.stdout
    assert "\nsystem 0 of the batch: charge is 3, expected a whole" in done.stdout


def test_ranks_and_copies_of_nodes(tmp_path: Path) -> None:
    """Two ranks have the inputs of one, and lists of edges stay where inputs change."""
    package = input_program().package()
    package.save(tmp_path / "p.mdcg")
    g: dict[str, Any] = dict(graph(30))
    model = open_model(package, tmp_path / "p.mdcg")
    halves = np.array_split(np.arange(30), 2)
    ranks = [Rank(str(tmp_path / "p.mdcg"), *halves[:: 1 - 2 * k]) for k in range(2)]
    for values in (*VALUES[1:3], VALUES[1]):
        want = run(model, g, inputs=np.array(values))
        found = [
            rank.evaluate({**g, "inputs": values}, None, ("energy", "forces")) for rank in ranks
        ]
        assert sum(each["energy"][0] for each in found) == pytest.approx(want["energy"], rel=1e-12)
        forces = np.zeros((30, 3))
        for rank, each in zip(ranks, found, strict=True):
            np.add.at(forces, rank.nodes, each["forces"])
        np.testing.assert_allclose(forces, want["forces"], atol=1e-11)


def test_description(tmp_path: Path) -> None:
    model = open_model(input_program(preset=False).package(), tmp_path / "p.mdcg")
    found = model.inputs
    assert [each["name"] for each in found] == ["charge", "spin", "field"]
    assert np.isnan(found[0]["default"])
    assert (found[1]["default"], found[2]["default"]) == (1.0, 0.0)
    assert [each["expected"] for each in found] == [
        "a whole number from -2 to 2",
        "a whole number",
        "a finite number",
    ]
    assert ", reads charge, spin (default 1), field (default 0), float64, " in model.summary()
    model.prepare()  # needs no values
    model.release()
    with pytest.raises(_core.EngineError, match="reads charge of each system, which was not"):
        run(model, graph())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, n: i[0].pop("name"), "name"),
        (lambda i, n: i[0].update(name="spin"), "expected different names"),
        (lambda i, n: i[0].update(whole=1), "whole is 1, expected true or false"),
        (lambda i, n: i[0].update(whole=False), "expected true where a value is the lowest"),
        (lambda i, n: i[0].update(count=0), "count"),
        (lambda i, n: i[0].update(default=3), "default is 3, expected a whole number from -2"),
        (lambda i, n: i[1].update(default=0.5), "default is 0.5, expected a whole number"),
        (lambda i, n: i.clear(), "inputs is 0 inputs, expected 1 to 100"),
        (lambda i, n: i[0].update(count=4), "embedding is a tensor of shape"),
        (lambda i, n: i[0].pop("count"), "has an embedding, and no count of values"),
        (lambda i, n: i[0].update(layers=[]), "layers is 0 layers|expected one"),
        (lambda i, n: i[1]["layers"].clear(), "layers is 0 layers, expected 1 to 16"),
        (lambda i, n: i[1]["layers"][0].update(activation="step"), "activation .step., expected"),
        (lambda i, n: i[1]["layers"].pop(), "weight is a tensor of shape"),
        (lambda i, n: n.update(units=5), "shape"),
        (lambda i, n: n.update(units=0), "units"),
        (lambda i, n: n.update(factors=[]), "factors is no object"),
        (lambda i, n: n["factors"].update({"no.tensor": "x"}), "factors of no tensor"),
        (
            lambda i, n: n["factors"].update({"energy.shift": "rows.table.by_inputs"}),
            "energy.shift is a tensor of shape",
        ),
        (
            lambda i, n: n["factors"].update({"inputs.1.1.bias": n["factors"].pop("energy.shift")}),
            "inputs.1.1.bias",
        ),
    ],
)
def test_damaged_descriptions(tmp_path: Path, change: Any, message: str) -> None:
    package = input_program(types=6).package()  # as many types as units
    manifest = copy.deepcopy(package.manifest)
    change(manifest["inputs"], manifest["input_network"])
    Package(manifest, package.tensors).save(tmp_path / "bad.mdcg")
    refused(tmp_path / "bad.mdcg", message)


def test_a_tensor_that_no_layer_reads_again(tmp_path: Path) -> None:
    package = input_program().package()
    tensors = dict(package.tensors)
    name = "first.radial.0.weight"
    tensors["more.by_inputs"] = np.zeros((6, *tensors[name].shape))
    package.manifest["input_network"]["factors"][name] = "more.by_inputs"
    Package(package.manifest, tensors).save(tmp_path / "bad.mdcg")
    refused(tmp_path / "bad.mdcg", f"tensor {name} depends on inputs, expected a table, a weight")
