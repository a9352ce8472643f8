"""Repeated boxes on a device have multiples of the energy, and equal forces in every image.

pytest does not collect this file. test_cuda_cases.py runs it with few copies, and
test_cuda_large.py runs the same check on a real device with more than 2^31 numbers per value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms

from mdcg import _core
from mdcg.package import Package
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from ..core.contraction_helpers import random_contraction
from .cuda_cases import DATA, LIMIT, NAMES, saved, water
from .programs import Program

WATER = Path(__file__).resolve().parents[2] / "examples" / "data" / "water192.xyz"
ENERGY_LIMIT = 1e-6  # for float32, relative to the energy of all atoms


def trained_model() -> Package:
    return Package.open(DATA / "mace_water_float32.mdcg")


def wide_program(channels: int = 128) -> Package:
    """Return layers that read and write rows of 9 `channels`, and few others.

    Memory is mostly those rows: more than 2^31 numbers of them fit where a model's do not.
    """
    p = Program(3, "float32")
    x = p.features(channels)
    scalars = f"{channels}x0e"
    problem = random_contraction(str(x.irreps), scalars, 3, dtype="float32", per_block=6)
    coefficients = p.random(3, problem.num_coefficients, channels) / 4
    p.readout(p.contraction(x, problem, coefficients, "polynomials"), "first")
    weights = {(l, l): p.random(channels, channels) / channels for l in range(3)}
    up = p.linear(x, LinearMap(x.irreps, x.irreps, weights), "up")
    out, paths = "+".join(3 * [scalars]), [(l, l, l, "uvu", True) for l in range(3)]
    conv = ConvProblem.build(str(up.irreps), "1x0e+1x1o+1x2e", out, paths)
    p.readout(p.conv(up, conv, p.network(conv.weight_numel), "second"), "last")
    return p.package(**NAMES)


def gated_program(channels: int = 1152) -> Package:
    """Return layers whose number of threads, nodes times channels, is large too."""
    p = Program(3, "float32")
    x = p.features(channels, 0)
    y = p.gate(x, x.irreps, [(0, 0, "silu", 1.5)], [], "gate")
    p.readout(p.sum([x, y], "total"))
    return p.package(**NAMES)


def liquid() -> Atoms:
    atoms = ase.io.read(WATER)
    assert isinstance(atoms, Atoms)
    return atoms


def copies_beyond(package: Package, box: Atoms, numbers: int = 2**31) -> int:
    """Return the repeats of a box along each axis that give the widest value so many numbers."""
    width = max(Irreps.parse(irreps).dim for irreps in package.manifest["values"].values())
    copies = 1
    while copies**3 * len(box) * width <= numbers:
        copies += 1
    return copies


def check_copies(package: Package, path: Path, box: Atoms, copies: int) -> dict[str, Any]:
    """Compare a box repeated along three axes with the box on the processor; return the report."""
    saved(package, path)
    cpu, cuda = _core.Model(str(path), kernels="generic"), _core.Model(str(path), device="cuda")

    def evaluate(model: Any, atoms: Atoms) -> Any:
        types = [package.type_names.index(symbol) for symbol in box.symbols]
        types = np.tile(np.array(types, np.int32), len(atoms) // len(box))
        return model.evaluate(
            *(atoms.positions, types),
            cell=atoms.cell.array,
            periodic=(True, True, True),
            virial=True,
        )

    want, atoms, count = evaluate(cpu, box), box.repeat(copies), copies**3
    assert np.abs(want["forces"]).max() > 0.1
    for _ in range(3):  # layer by layer, captured, replayed
        got = evaluate(cuda, atoms)
        scale = count * np.abs(want["energies"]).sum()
        assert abs(got["energy"] - count * want["energy"]) < ENERGY_LIMIT * scale
        for name, images in (("energies", count), ("forces", count), ("virial", 1)):
            value = want[name] * (count if images == 1 else 1)
            limit = LIMIT["float32"] * np.abs(value).max()
            error = np.abs(got[name].reshape(images, *value.shape) - value).max()
            assert error < limit, f"{name}: error {error:.1e}, limit {limit:.1e}"
    report = json.loads(cuda.report())
    assert isinstance(report, dict)
    assert report["replays"] == 2
    assert report["nodes"] == len(atoms)
    return report


@pytest.mark.parametrize(
    "make",
    [trained_model, lambda: wide_program(16), lambda: gated_program(144)],
    ids=["trained", "wide", "gated"],
)
def test_few_copies(tmp_path: Path, make: Callable[[], Package]) -> None:
    positions, types, cell = water(count=4)
    box = Atoms(np.array([1, 8])[types], positions, cell=cell, pbc=True)
    package = make()
    copies = copies_beyond(package, box, 11_000)
    assert copies == 2
    check_copies(package, tmp_path / "p.mdcg", box, copies)
