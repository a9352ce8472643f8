"""The layers of test_conv_layer.py on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package

from ..internals.internals import core, ranges_of
from . import test_conv_layer as layers
from .cuda_models import compare_models, open_both
from .small_package import SmallPackage, radial_network
from .test_conv_layer import (  # noqa: F401
    R_MAX,
    System,
    model_of_features,
    system,
    test_density,
    test_pair_repulsion,
    test_radial_networks,
    test_radial_networks_of_features,
    test_radial_networks_of_types,
    test_sizes,
    two_layers,
    with_edges,
)

# In float64, derivatives from tables have errors up to 1e-11; the limit is twice that.
LIMIT = {"float64": 2e-11, "float32": 2e-5}


def has_kinks(layer: dict[str, Any]) -> bool:
    """Return whether a layer is a density for which GPUs cannot make a table."""
    layers = layer["radial"]["layers"] if layer["type"] == "edge_sum" else []
    return any(each.get("activation") == "relu" for each in layers)


def compare(path: str, s: System, *_: float) -> None:
    """Compare some of the edges, so that an emulated device is fast enough."""
    part = System(s.positions, s.types, *(each[:150] for each in s.edges))
    if any(has_kinks(layer) for layer in Package.open(path).layers):
        with pytest.raises(_core.EngineError, match=r"edge_sum: .* is not smooth.* use device cpu"):
            _core.Model(path, device="cuda")
        return
    cpu, cuda = open_both(path)
    compare_models(cpu, cuda, part, LIMIT[cuda.dtype])


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "compare", compare)


def test_several_slices_of_edges(tmp_path: Path) -> None:
    path = model_of_features("sender", "receiver").write(tmp_path)
    with ranges_of(40):
        compare(path, system(40, 150))


@pytest.mark.parametrize(
    ("degrees", "most", "sizes"),
    [([10] * 100, 300, [250] * 4), ([10] * 30, 300, [300]), ([10] * 31, 300, [160, 150]),
     ([500] + [10] * 40, 300, [500, 100, 300]), ([0, 0, 7], 300, [7]),
     ([100] * 50 + [80] + [0] * 51, 1300, [1300, 1200, 1300, 1280])],
)  # fmt: skip
def test_ranges_of_one_size(degrees: list[int], most: int, sizes: list[int]) -> None:
    lists = core.CudaLists(4.0, 0.5, num_types=1, range_edges=most)
    receiver = np.repeat(np.arange(len(degrees)), degrees).astype(np.int32)
    types = np.zeros(len(degrees), np.int32)
    found = lists.take(len(degrees), types, np.zeros_like(receiver), receiver)
    assert [count for _, _, _, count in found["divided"]] == sizes


def test_high_degrees(tmp_path: Path) -> None:
    layers.test_degrees(8, "float64", tmp_path)


def test_high_powers_of_the_cutoff(tmp_path: Path) -> None:
    """Cutoff functions with high powers give no overflow for edges far beyond r_max."""
    cutoff = {"cutoff": {"kind": "polynomial", "p": 40}, "cutoff_on": "weights"}
    path = model_of_features("sender", "receiver", dtype="float32", **cutoff).write(tmp_path)
    compare(path, system(40, 90))


@pytest.mark.parametrize("cutoff_on", ["basis", "weights"])
def test_xplor_without_a_table(tmp_path: Path, cutoff_on: str) -> None:
    cutoff = {"cutoff": {"kind": "xplor", "start": 1.7}, "cutoff_on": cutoff_on}
    path = model_of_features("sender", "receiver", **cutoff).write(tmp_path)
    compare(path, system(40, 90))


def test_solid_harmonics_without_a_table_are_refused(tmp_path: Path) -> None:
    path = with_edges(model_of_features("sender"), solid=True).write(tmp_path)
    with pytest.raises(_core.EngineError, match=r"solid harmonics need a .* table .* device cpu"):
        _core.Model(path, device="cuda").evaluate(
            np.zeros((1, 3)), np.zeros(1, np.int32), cell=np.eye(3), periodic=[False] * 3
        )


def density_package(rng: Any) -> tuple[SmallPackage, dict[str, Any]]:
    """Return a package whose energies are sums of a radial network, and that network."""
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    radial = radial_network("silu", package, rng)
    package.layer("edge_sum", out=package.value("density", "18x0e"), radial=radial)
    one = package.tensor([1.0])
    package.layer("energy", x="density", channel=3, scale=one, shift=one)
    return package, radial


def test_density_with_a_break(tmp_path: Path, rng: Any) -> None:
    package, radial = density_package(rng)
    radial["cutoff"] = {"kind": "xplor", "start": 1.7}
    compare(package.write(tmp_path / "density.mdcg"), system(40, 400, n_types=3))


def test_nothing_near(tmp_path: Path, rng: Any) -> None:
    path = density_package(rng)[0].write(tmp_path / "density.mdcg")
    model, s = _core.Model(path, device="cuda"), system(9, 90)
    none = np.zeros(0, np.int32)
    far = (np.array([4], np.int32), np.array([2], np.int32), np.array([[9.0, 0.0, 0.0]]))
    for edges in ((none, none, np.zeros((0, 3))), far):
        found = model.evaluate(s.positions, s.types, edges=edges, virial=True)
        assert found["energy"] == 9.0
        assert not found["forces"].any()
        assert not found["virial"].any()


def test_too_wide(tmp_path: Path) -> None:
    """Networks that cannot be tables and do not fit into shared memory are refused."""
    model = model_of_features("sender")
    (radial,) = (
        layer["radial"]
        for layer in model.package.manifest["layers"]
        if "sender" in layer.get("radial", ())
    )
    first = radial["layers"][0]
    layers = [
        {"weight": first["weight"], "activation": "silu"},
        {"weight": model.package.tensor(np.zeros((20, 5000))), "activation": "silu"},
        {"weight": model.package.tensor(np.zeros((5000, 7)))},
    ]
    radial["layers"] = layers
    path = model.write(tmp_path)
    with pytest.raises(_core.EngineError, match="layers of 5000 units is too wide"):
        _core.Model(path, device="cuda")


def test_nodes_in_one_place(tmp_path: Path, rng: Any) -> None:
    path = density_package(rng)[0].write(tmp_path / "density.mdcg")
    model, s = _core.Model(path, device="cuda"), system(9, 90)
    s.sender[70], s.receiver[70] = 0, 3
    s.shifts[70] = s.positions[0] - s.positions[3] + 1e-8
    with pytest.raises(_core.EngineError, match="atoms 0 and 3 are at the same place"):
        model.evaluate(s.positions, s.types, edges=s.edges)
    s.shifts[70] += 1.0
    assert np.isfinite(model.evaluate(s.positions, s.types, edges=s.edges)["energy"])
