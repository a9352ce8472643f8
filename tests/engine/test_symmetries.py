"""Trained models: rotations, inversions, translations, permutations and other cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .symmetry import Box, check_symmetries, open_trained

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
@pytest.mark.parametrize(
    ("dtype", "table"),
    [("float64", False), ("float64", True), ("float32", True), ("float32", False)],
)
def test_symmetries(
    name: str, dtype: str, table: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    check_symmetries(open_trained(name, dtype, table, tmp_path), rng)


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
def test_open_clusters(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Energies of distant parts of an open system add up: no interaction exceeds r_max."""
    model = open_trained(name, "float64", None, tmp_path)
    box = Box(model, rng)
    box = box.changed(periodic=(False, False, False))
    one = box.evaluate(model)
    far = np.array([40.0, -30.0, 20.0])
    two = box.changed(
        positions=np.concatenate([box.positions, box.positions + far]), types=np.tile(box.types, 2)
    ).evaluate(model)
    scale = np.abs(one["energies"]).max()
    assert np.abs(two["energies"] - np.tile(one["energies"], 2)).max() < 1e-12 * scale
    scale = np.abs(one["forces"]).max()
    assert np.abs(two["forces"] - np.tile(one["forces"], (2, 1))).max() < 1e-12 * scale
    assert np.abs(one["forces"].sum(axis=0)).max() < 1e-12 * scale * len(box.positions)
    torque = np.cross(box.positions, one["forces"]).sum(axis=0)
    assert np.abs(torque).max() < 1e-11 * scale * len(box.positions)
