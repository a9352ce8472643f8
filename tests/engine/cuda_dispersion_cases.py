"""Dispersion on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator, _core
from mdcg.package import Package

from .small_package import SmallPackage

DATA = Path(__file__).parents[1] / "data"
WANTED: dict[str, Any] = {"forces": True, "virial": True, "virials": True}
BOX = np.array([[5.0, 0.0, 0.0], [1.0, 6.0, 0.0], [-1.0, 0.5, 5.5]])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a package whose network gives no energy, with coordination numbers of 7 Å."""
    whole = Package.open(DATA / "nequip_water_float64.mdcg")
    package = SmallPackage(whole.type_names, 3.0, "float32")
    package.value("a", "1x0e")
    package.layer("type_rows", out="a", table=package.weights(np.zeros((2, 1))))
    one, zero = package.tensor(np.ones(1)), package.tensor(np.zeros(1))
    package.layer("energy", x="a", channel=0, scale=one, shift=zero)
    package.manifest["dispersion"] = {**whole.manifest["dispersion"], "coordination_cutoff": 7.0}
    package.tensors |= {k: v for k, v in whole.tensors.items() if k.startswith("dispersion.")}
    return package.write(tmp_path_factory.mktemp("d3") / "d3.mdcg")


def models(path: str, damping: str = "bj", cutoff: float = 8.0) -> tuple[Any, Any]:
    options: dict[str, Any] = {"damping": damping, "dispersion_cutoff": cutoff}
    return tuple(
        _core.Model(path, device=device, dispersion="pbe", **options) for device in ("cpu", "cuda")
    )  # type: ignore[return-value]


def assert_close(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        scale = max(1.0, np.abs(value).max())
        # devices count far neighbours in single precision
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("damping", ["bj", "zero"])
@pytest.mark.parametrize("periodic", [(1, 1, 1), (1, 0, 1), (0, 0, 0)])
def test_cells(
    path: str, damping: str, periodic: tuple[int, ...], rng: np.random.Generator
) -> None:
    cpu, device = models(path, damping)
    for count in (1, 5, 37):
        positions = rng.random((count, 3)) @ BOX + 20.0 * rng.integers(-1, 2, size=(count, 1))
        types = rng.integers(0, 2, size=count).astype(np.int32)
        where = {"cell": BOX, "periodic": [bool(p) for p in periodic]}
        want = cpu.evaluate(positions, types, **where, **WANTED)
        assert_close(device.evaluate(positions, types, **where, **WANTED), want)
        alone = device.evaluate(positions, types, **where, forces=False)
        assert alone["energy"] == pytest.approx(want["energy"], rel=1e-10)


def test_steps(path: str, rng: np.random.Generator) -> None:
    """Dispersion equals the CPU's while positions, cell, types and number of atoms change."""
    cpu, device = models(path)
    atoms = Atoms("H2OHOH2", rng.random((7, 3)) @ BOX, cell=BOX, pbc=True)
    for step in range(12):
        types = (atoms.numbers == 8).astype(np.int32)
        where = {"cell": atoms.cell.array, "periodic": atoms.pbc}
        want = cpu.evaluate(atoms.positions, types, **where, **WANTED)
        assert_close(device.evaluate(atoms.positions, types, **where, **WANTED), want)
        atoms.positions += rng.normal(scale=0.02, size=(len(atoms), 3))
        if step == 4:
            atoms.positions += rng.normal(scale=2.0, size=(len(atoms), 3))
        if step == 6:
            atoms.set_cell(atoms.cell.array * 1.001, scale_atoms=True)
        if step == 8:
            atoms.numbers[:] = atoms.numbers[::-1].copy()
        if step == 10:
            atoms = atoms[:4]


def test_calculator(path: str) -> None:
    """A calculator with dispersion gives CPU results and replays captured steps."""
    atoms = Atoms("OH2", [[0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]], cell=BOX, pbc=True)
    options: dict[str, Any] = {"dispersion": "pbe", "dispersion_cutoff": 8.0}
    cpu = MDCGCalculator(path, **options)
    device = MDCGCalculator(path, device="cuda", **options)
    for _ in range(4):
        atoms.positions += [[0.01, 0, 0], [0, 0.02, 0], [0, 0, -0.03]]
        for name in ("energy", "forces", "stress"):
            want = cpu.get_property(name, atoms)
            np.testing.assert_allclose(device.get_property(name, atoms), want, rtol=0, atol=1e-11)
    network, dispersion = device.report().packages
    assert dispersion["device"] == "cuda:0"
    assert dispersion["replays"] > 0
    assert network["replays"] > 0


def test_refusals(path: str) -> None:
    _, device = models(path)
    types = np.zeros(2, dtype=np.int32)
    with pytest.raises(_core.EngineError, match="energy_weights are given, which dispersion"):
        device.evaluate(np.eye(3)[:2], types, energy_weights=np.ones(2))
    none = np.zeros(0, dtype=np.int32)
    with pytest.raises(_core.EngineError, match="finds distant neighbours itself"):
        device.evaluate(np.eye(3)[:2], types, edges=(none, none, np.zeros((0, 3))))


def test_weights_have_one_reader(tmp_path: Path) -> None:
    whole = Package.open(DATA / "nequip_water_float64.mdcg")
    given = whole.manifest["dispersion"]
    package = SmallPackage(whole.type_names, 8.0)
    package.tensors |= {k: v for k, v in whole.tensors.items() if k.startswith("dispersion.")}
    package.value("cn", "1x0e")
    steepness = given["coordination_steepness"]
    package.layer(
        "coordination", out="cn", radii=given["covalent_radii"], steepness=steepness, cutoff=7.0
    )
    package.value("weights", "7x0e")
    package.layer(
        "reference_weights",
        x="cn",
        out="weights",
        references=given["references"],
        steepness=given["weight_steepness"],
    )
    package.layer("exchange", x="weights")
    one, zero = package.tensor(np.ones(1)), package.tensor(np.zeros(1))
    package.layer("energy", x="weights", channel=0, scale=one, shift=zero)
    fields = {**given["damping"]["bj"], "damping": "bj", "cutoff": 8.0}
    tensors = {"c6": given["c6"], "q": given["q"], "radii": given["pair_radii"]}
    package.layer("dispersion", x="weights", **tensors, **fields)
    path = package.write(tmp_path / "two.mdcg")
    _core.Model(path, device="cpu")
    with pytest.raises(_core.EngineError, match="expected a value that this layer alone reads"):
        _core.Model(path, device="cuda")
