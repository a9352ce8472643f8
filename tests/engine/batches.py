"""Systems of all kinds, evaluated in one batch and one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg import _core

from .cells import CELLS, PBC

Array = NDArray[Any]
WANTED = {"forces": True, "virial": True, "virials": True, "descriptors": True}


@dataclass
class Place:
    positions: Array
    types: Array
    cell: Array
    periodic: Array


def places(seed: int = 0) -> list[Place]:
    """Return molecules, crystals in all kinds of cells, single atoms and empty systems, shuffled.

    Nodes may lie far outside their cells.
    """
    rng = np.random.default_rng(seed)
    cells = [(cell, pbc) for cell in CELLS.values() for pbc in PBC]
    found = []
    for count in (0, 1, 1, 2, 3, 5, 8, 13, 31, 32, 33, 45, 0):
        cell, pbc = cells[rng.integers(len(cells))]
        cells_away = rng.integers(-2, 3, size=(count, 3)) * np.array(pbc)
        at = rng.random((count, 3)) @ (np.eye(3) * (2.0 + 0.3 * count))
        types = rng.integers(3, size=count).astype(np.int32)
        found.append(Place(at + cells_away @ cell, types, cell, np.array(pbc, dtype=bool)))
    return [found[i] for i in rng.permutation(len(found))]


def joined(systems: list[Place]) -> dict[str, Array]:
    """Return the arguments of a batch."""
    return {
        "first_node": np.cumsum([0, *(len(s.types) for s in systems)]),
        "types": np.concatenate([s.types for s in systems]),
        "positions": np.concatenate([s.positions for s in systems]),
        "cells": np.array([s.cell for s in systems]),
        "periodic": np.array([s.periodic for s in systems]),
    }


def one_by_one(model: _core.Model, systems: list[Place], **wanted: bool) -> dict[str, Array]:
    """Return the results that a batch must give, from single evaluations."""
    found = [
        model.evaluate(s.positions, s.types, cell=s.cell, periodic=s.periodic, **wanted)
        for s in systems
    ]
    by_system = ("energy", "virial")
    return {
        name: (np.array if name in by_system else np.concatenate)([f[name] for f in found])
        for name in found[0]
    }


def assert_same_batch(got: dict[str, Any], want: dict[str, Any], limit: float) -> None:
    assert set(got) == set(want)
    for name, values in want.items():
        assert got[name].shape == values.shape, name
        size = max(1e-3, np.abs(values).max(initial=0.0))
        error = np.abs(got[name] - values).max(initial=0.0) / size
        assert error < limit, f"{name}: relative error {error:.1e}"
