"""Fused convolutions on a CUDA device, whose weights come from tables, against the network itself.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.package.cuda_kernels import cuda_passes

from ..internals.internals import filling_from
from .cuda_models import SHORT_EDGES, check_short_edges, compare_models, evaluate, open_both, passes
from .test_conv_layer import EDGES, R_MAX, Model, System, system, two_layers, with_edges

LIMIT = {"float64": 1e-11, "float32": 1e-5}


def saved(path: str) -> str:
    assert {"table_forward", "table_backward"} <= passes(path)
    return path


def compare(path: str, s: System, limit: float) -> list[dict[str, Any]]:
    return compare_models(*open_both(saved(path)), s, limit)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("by_pair", [False, True])
def test_channels_that_are_no_whole_warps(tmp_path: Path, dtype: str, by_pair: bool) -> None:
    """Results agree for numbers of channels that are no multiples of a warp."""
    path = two_layers(dtype=dtype, by_pair=by_pair, table=True).write(tmp_path)
    compare(path, system(14, 260), LIMIT[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("edges", EDGES)
def test_xplor_and_solid_harmonics(
    tmp_path: Path, edges: tuple[float | None, bool], dtype: str
) -> None:
    """Tables have a break where an XPLOR cutoff begins to fall, and powers of the length."""
    model = with_edges(two_layers(dtype=dtype, by_pair=dtype == "float64", table=True), *edges)
    compare(model.write(tmp_path), system(14, 260), LIMIT[dtype])


def test_flipped_vectors(tmp_path: Path) -> None:
    compare(two_layers(flip=True, table=True).write(tmp_path), system(9, 120), LIMIT["float64"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lmax", [0, 1, 2, 4])
def test_degrees(tmp_path: Path, lmax: int, dtype: str) -> None:
    """Results agree for all degrees, with multiplicities that leave some lanes idle."""
    model = Model(dtype=dtype, table=True)
    first = model.conv(None, "4x0e", lmax, "+".join(f"4x{k}{'eo'[k % 2]}" for k in range(lmax + 1)))
    x = model.linear(first, "70x0e" + "+33x1o" * (lmax > 0))
    out = "70x0e" + "+33x0e+33x1o+40x1o" * (lmax > 0)
    model.energy(model.conv(x, "70x0e" + "+33x1o" * (lmax > 0), lmax, out))
    compare(model.write(tmp_path), system(8, 90), LIMIT[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_neighbours(tmp_path: Path, dtype: str) -> None:
    """Results agree for receivers with more edges than are sorted by length."""
    s = system(5, 1200)
    assert np.bincount(s.receiver).max() > 256
    model = Model(dtype=dtype, table=True)
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "90x0e+70x1o")
    model.energy(model.conv(x, "90x0e+70x1o", 1, "90x0e+90x1o+70x1o"))
    compare(model.write(tmp_path), s, LIMIT[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_warp_groups_of_a_receiver(tmp_path: Path, dtype: str, rng: Any) -> None:
    """Results agree for any number of batches per warp group of a receiver."""
    counts = [0, 1, 2, 31, 63, 64, 65, 66, 127, 128, 129, 3]
    receiver = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    s = system(len(counts), len(receiver))
    unit = rng.normal(size=(len(receiver), 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    vectors = unit * rng.uniform(0.6, 0.99 * R_MAX, size=(len(receiver), 1))
    shifts = vectors - (s.positions[receiver] - s.positions[s.sender])
    s = System(s.positions, s.types, s.sender, receiver, shifts)
    model = Model(dtype=dtype, table=True)
    # the kernel for 330 channels has too many threads for two warp_groups, others have two or more
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "330x0e+40x1o")
    model.energy(model.conv(x, "330x0e+40x1o", 1, "330x0e+40x0e+40x1o"))
    path = model.write(tmp_path)
    package = Package.open(path)
    found, _ = cuda_passes(package.layers, package.tensors)
    last = [each["entries"] for each in found if each["pass"] == "table_forward"][-1]
    warp_groups = {entry["max_warp_groups"] for entry in last}
    assert min(warp_groups) == 1
    assert max(warp_groups) >= 4
    compare(path, s, LIMIT[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("receivers", "filling"), [(300, 300), (514, 1000)])
def test_many_receivers(tmp_path: Path, dtype: str, receivers: int, filling: int) -> None:
    """Results agree for numbers of receivers that give each one or more warp groups."""
    model = Model(dtype=dtype, table=True)
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "8x0e+8x1o")
    model.energy(model.conv(x, "8x0e+8x1o", 1, "8x0e+8x1o+8x0e+8x1o+8x1o"))
    with filling_from(filling):
        compare(model.write(tmp_path), system(receivers, 3 * receivers), LIMIT[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("edges", [0, 1, 2, 3])
def test_hardly_any_edges(tmp_path: Path, edges: int, dtype: str) -> None:
    s = system(1 if edges > 1 else 4, edges)  # several edges of one receiver
    compare(two_layers(table=True, dtype=dtype).write(tmp_path), s, LIMIT[dtype])


def test_small_weights_that_count(tmp_path: Path) -> None:
    """Small, steep weights are accurate enough if later layers enlarge them."""
    model = Model(dtype="float32", table=True)
    x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), "8x0e+8x1o")
    model.energy(model.conv(x, "8x0e+8x1o", 1, "8x0e+8x0e"))
    conv, linear = (model.package.manifest["layers"][n] for n in (-3, -2))
    tensors = model.package.tensors
    inner, last = (tensors[layer["weight"]] for layer in conv["radial"]["layers"])
    inner[:, :10] *= 8.0
    of_block = last.reshape(20, 2, 2, 8)  # [units][terms of each block][blocks][channels]
    of_block[10:, :, 0] = of_block[:10, :, 1] = 0.0
    of_block[:, :, 0] *= 2.0**-17
    tensors[linear["paths"][0]["weight"]] *= 2.0**17
    compare(model.write(tmp_path), system(9, 120), LIMIT["float32"])


def test_no_edge_within_the_cutoff(tmp_path: Path) -> None:
    s = system(6, 30)
    unit = s.shifts / np.linalg.norm(s.shifts, axis=1, keepdims=True)
    far = System(0 * s.positions, s.types, s.sender, s.receiver, 1.05 * R_MAX * unit)
    got = compare(two_layers(table=True).write(tmp_path), far, LIMIT["float64"])
    assert not np.any(got[0]["forces"])


@pytest.mark.parametrize(("dtype", "part"), SHORT_EDGES)
def test_short_edges(tmp_path: Path, dtype: str, part: float) -> None:
    path = saved(two_layers(table=True, dtype=dtype).write(tmp_path))
    (tmp_path / "exact").mkdir()
    exact = _core.Model(two_layers().write(tmp_path / "exact"), kernels="generic")
    check_short_edges(exact, _core.Model(path, device="cuda"), part)


@pytest.mark.parametrize(
    ("dtype", "step", "limit"), [("float64", 2e-4, 1e-8), ("float32", 1e-2, 1e-4)]
)
def test_forces_are_the_derivative(tmp_path: Path, dtype: str, step: float, limit: float) -> None:
    """Forces are the derivative of the energy, up to rounding and spline errors."""
    path = saved(two_layers(by_pair=True, dtype=dtype, table=True).write(tmp_path))
    model = _core.Model(path, device="cuda")
    s = system(10, 90, seed=3)
    forces = evaluate(model, s)["forces"]
    for node, axis in ((0, 0), (3, 1)):
        energies = []
        for n in (-2, -1, 1, 2):
            moved = s.positions.copy()
            moved[node, axis] += n * step
            found = model.evaluate(moved, s.types, edges=s.edges, forces=False)
            energies.append(float(found["energy"]))
        a, b, c, d = energies
        slope = -(a - 8 * b + 8 * c - d) / (12 * step)
        assert abs(slope - forces[node, axis]) < limit * np.abs(forces).max()


def test_the_fused_kernels_run(tmp_path: Path) -> None:
    """Weights of edges come only from the fused kernels."""
    path = saved(two_layers(table=True).write(tmp_path))
    model = _core.Model(path, device="cuda")
    evaluate(model, system(6, 40))
    names = [kernel["name"] for kernel in json.loads(model.report())["kernels"]]
    assert any("conv_table_forward_0" in name for name in names)
    assert not any("radial_forward" in name for name in names)
