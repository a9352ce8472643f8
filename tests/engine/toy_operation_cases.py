"""An operation of one header and two sources (tests/internals/toy_square*) in a whole network.

pytest does not collect this file. test_toy_operation.py runs it on an emulated device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package.inputs import InputNetwork, SystemInput
from mdcg.package.kernel_file import cache_kernels
from mdcg.problem import ConvProblem

from ..internals import internals
from .capi import Exchange, Rank
from .cuda_cases import assert_close, both
from .programs import Program, graph, open_model, run
from .test_ghosts import assert_same, evaluate_together, parts

assert internals.core  # registers the operation


def network(toy: bool, dtype: str = "float64") -> Program:
    """Return a network with the operation between convolutions, or with product and scale."""
    p = Program(2, dtype)
    x = p.features(6, 0)
    if toy:
        y = p._layer("toy_square", "square", x.irreps, x=p._use(x), factor=0.7)
    else:
        y = p.scale(p.product(x, x, "product"), np.array([0.7]), "square")
    problem = ConvProblem.build("6x0e", "1x0e", "6x0e", [(0, 0, 0, "uvu", True)])
    p.readout(p.conv(y, problem, p.network(problem.weight_numel), "conv"))
    return p


def both_toys(folder: Path, dtype: str = "float64") -> tuple[Any, Any]:
    """Return models on CPU and device. This process makes the kernels, as it has the operation."""
    models = both(network(True, dtype).package(), folder / "toy.mdcg")
    cache_kernels(folder / "toy.mdcg", "sm_90")
    return models


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_evaluates_and_differentiates(tmp_path: Path, dtype: str) -> None:
    g = graph(30, types=2, box=5.0)
    known = open_model(network(False, dtype).package(), tmp_path / "known.mdcg", kernels="generic")
    want = run(known, g, virial=True)
    assert np.abs(want["forces"]).max() > 1e-3
    for model in both_toys(tmp_path, dtype):
        for _ in range(2):  # the second step of a device is captured
            assert_close(run(model, g, virial=True), want, dtype)


def test_reads_an_input_of_the_system(tmp_path: Path) -> None:
    """The number of each evaluation reaches operations, also in captured steps."""
    g = graph(20, types=2, box=5.0)
    known = open_model(network(False).package(), tmp_path / "known.mdcg", kernels="generic")
    p = network(True)
    p.inputs = InputNetwork((SystemInput("charge", True), SystemInput("field", False, default=1.0)))
    (toy,) = (layer for layer in p.layers if layer["type"] == "toy_square")
    toy["input"] = "field"
    models = both(p.package(), tmp_path / "toy.mdcg")
    cache_kernels(tmp_path / "toy.mdcg", "sm_90")
    want = run(known, g)["forces"]  # they are proportional to the factor
    for model in models:
        for field in (1.0, 0.5, 1.0):
            for _ in range(3):
                found = run(model, g, inputs=np.array([0.0, field]))["forces"]
                np.testing.assert_allclose(found, field * want, atol=1e-10)
    toy["input"] = "phase"
    p.package().save(tmp_path / "bad.mdcg")
    with pytest.raises(_core.EngineError, match="reads the input phase, expected one of that name"):
        _core.Model(str(tmp_path / "bad.mdcg"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_exchanges(tmp_path: Path, device: str) -> None:
    cpu, _ = both_toys(tmp_path)
    g = graph(30, types=2, box=5.0)
    want = run(cpu, g, virial=True, virials=True)
    ranks = [
        Rank(
            str(tmp_path / "toy.mdcg"),
            *part,
            device=device,
            kernels="auto" if device == "cuda" else "generic",
        )
        for part in parts(g, 0.4)
    ]
    assert_same(evaluate_together(ranks, g, Exchange(2, 30)), want, 1e-10)
    for rank in ranks:
        rank.close()


def test_is_checked(tmp_path: Path) -> None:
    package = network(True).package()
    package.check()
    layer = next(each for each in package.manifest["layers"] if each["type"] == "toy_square")
    del layer["factor"]
    package.save(tmp_path / "toy.mdcg")
    for device in ("cpu", "cuda"):
        with pytest.raises(_core.EngineError, match=r"toy_square.*factor is absent"):
            _core.Model(str(tmp_path / "toy.mdcg"), device=device)
