"""Checks that models are invariant to rotations, translations, permutations and other cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg import _core
from mdcg.package import Package

from ..core.helpers import random_rotation

Array = NDArray[Any]
#: Packages of trained models, which need no framework.
DATA = Path(__file__).resolve().parents[1] / "data"
#: Relative, of energies of atoms, forces and virials.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


def with_tables(package: Package, table: bool) -> Package:
    """Return a package whose radial networks are exact, or all tables."""
    entry: dict[str, Any] | None = {} if table else None
    layers = [
        {**layer, "radial": {**layer["radial"], "table": entry}} if "radial" in layer else layer
        for layer in package.layers
    ]
    return Package({**package.manifest, "layers": layers}, package.tensors)


def open_trained(name: str, dtype: str, table: bool, folder: Path, **options: Any) -> Any:
    """Open a package of tests/data with exact radial networks, or with tables."""
    path = folder / f"{name}_{dtype}_{table}.mdcg"
    with_tables(Package.open(DATA / f"{name}_{dtype}.mdcg"), table).save(path)
    return _core.Model(str(path), **options)


class Box:
    """A random periodic structure of a model's types, in a skewed cell."""

    def __init__(
        self, model: Any, rng: np.random.Generator, atoms: int = 22, closest: float = 1.0
    ) -> None:
        edge = 1.15 * model.r_max  # shorter than two cutoffs: atoms see images of each other
        self.cell = np.diag([1.0, 1.2, 0.9]) * edge + rng.normal(scale=0.5, size=(3, 3))
        self.periodic = (True, True, True)
        shifts = np.stack(np.meshgrid(*3 * [(-1, 0, 1)], indexing="ij"), -1).reshape(-1, 3)
        places: list[Array] = []
        for _ in range(100_000):
            place = rng.uniform(size=3) @ self.cell
            old = np.array(places).reshape(-1, 3)[:, None] + shifts @ self.cell
            if np.linalg.norm(old - place, axis=-1).min(initial=9.0) > closest:
                places.append(place)
            if len(places) == atoms:
                break
        self.positions = np.array(places)
        assert len(self.positions) == atoms, "no room"
        self.types = rng.permutation(np.arange(atoms) % len(model.type_names)).astype(np.int32)

    def changed(self, **parts: Array) -> Box:
        other = object.__new__(Box)
        other.__dict__ = {**self.__dict__, **parts}
        return other

    def evaluate(self, model: Any) -> dict[str, Any]:
        return model.evaluate(
            self.positions, self.types, cell=self.cell, periodic=self.periodic, virial=True
        )  # type: ignore[no-any-return]


def close(got: dict[str, Any], want: dict[str, Any], tolerance: float, what: str) -> None:
    """Compare energies of atoms, forces and virial, relative to the largest value of each."""
    for name in ("energies", "forces", "virial"):
        scale = np.abs(want[name]).max()
        error = np.abs(got[name] - want[name]).max() / scale
        assert error <= tolerance, f"{what}: relative error of {name} {error:.1e}"


def check_symmetries(model: Any, rng: np.random.Generator, box: Box | None = None) -> None:
    """Compare a structure with equivalent ones."""
    box = box or Box(model, rng)
    tolerance = TOLERANCE[model.dtype]
    want = box.evaluate(model)
    # otherwise anything is right
    assert np.ptp(want["energies"]) > 1e-2
    assert np.abs(want["forces"]).max() > 1e-2
    assert np.abs(want["virial"] - np.trace(want["virial"]) / 3 * np.eye(3)).max() > 1e-2

    for number in range(4):
        turn = random_rotation(rng) * (1 if number % 2 else -1)
        turned = box.changed(positions=box.positions @ turn.T, cell=box.cell @ turn.T)
        rotated = {
            "energies": want["energies"],
            "forces": want["forces"] @ turn.T,
            "virial": turn @ want["virial"] @ turn.T,
        }
        assert np.abs(rotated["forces"] - want["forces"]).max() > 1e-2
        kind = "rotation" if number % 2 else "improper rotation"
        close(turned.evaluate(model), rotated, tolerance, f"{kind} {turn.tolist()}")

    moved = box.changed(positions=box.positions + rng.normal(scale=5.0, size=3))
    close(moved.evaluate(model), want, tolerance, "translation")

    order = rng.permutation(len(box.types))
    shuffled = box.changed(positions=box.positions[order], types=box.types[order]).evaluate(model)
    renumbered = {
        "energies": want["energies"][order],
        "forces": want["forces"][order],
        "virial": want["virial"],
    }
    close(shuffled, renumbered, tolerance, "permutation")
    assert np.isclose(shuffled["energy"], want["energy"], rtol=tolerance)

    # other vectors of the same lattice, and every atom in some other cell
    vectors = np.array([[1, 1, 0], [0, 1, -1], [0, 0, 1]]) @ box.cell
    images = rng.integers(-2, 3, size=box.positions.shape) @ box.cell
    again = box.changed(positions=box.positions + images, cell=vectors)
    close(again.evaluate(model), want, tolerance, "other cell")

    double = box.changed(
        positions=np.concatenate([box.positions, box.positions + box.cell[1]]),
        types=np.tile(box.types, 2),
        cell=box.cell * np.array([[1], [2], [1]]),
    )
    twice = {
        "energies": np.tile(want["energies"], 2),
        "forces": np.tile(want["forces"], (2, 1)),
        "virial": 2 * want["virial"],
    }
    close(double.evaluate(model), twice, tolerance, "two cells")
