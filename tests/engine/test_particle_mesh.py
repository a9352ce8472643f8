"""The particle mesh of long-range sums against direct sums in torch, in large cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from .cells import CELLS
from .long_range import (
    NUMBERS,
    check_derivatives,
    check_ranks,
    check_threads,
    close,
    of_types,
    package,
    reference,
    system,
)
from .programs import Array, open_model

BOXES = {
    "cube": CELLS["cubic"],
    "triclinic": CELLS["triclinic"],
    "left-handed": CELLS["left-handed"],
    "long": np.diag([6.0, 2.0, 130.0]),
}
# errors relative to the largest result; in float32 those of the charges are part of them
LIMIT = {"float64": 1e-10, "float32": 3e-6}
SOURCE = Path(__file__).parents[2] / "csrc/engine/ops/system/particle_mesh.hpp"


def fewest_pairs(device: str) -> int:
    """Return the number of pairs of waves from which on the mesh is used."""
    found = re.search(rf"MESH_PAIRS_{device} = (\d+)", SOURCE.read_text("utf-8"))
    assert found is not None
    return int(found[1])


def pairs(cell: Array, spacing: float) -> int:
    """Count half of the waves, of which n3 and -n3 are one."""
    ranges = [np.arange(-int(n), int(n) + 1) for n in np.linalg.norm(cell, axis=1) / spacing + 1e-6]
    n = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    length = np.linalg.norm(n @ np.linalg.inv(cell).T, axis=1)
    first = next_nonzero(n)
    found = n[(length <= (1 + 1e-9) / spacing) & (first > 0)]
    return len({(a, b, abs(c)) for a, b, c in found.tolist()})


def next_nonzero(n: Array) -> Array:
    """Return the first number of each row that is not zero."""
    return np.where(n[:, 0] != 0, n[:, 0], np.where(n[:, 1] != 0, n[:, 1], n[:, 2]))


def large(box: str, spacing: float, device: str) -> Array:
    """Return a cell with some more pairs than the mesh takes."""
    cell, wanted = BOXES[box], 1.1 * fewest_pairs(device)
    volume = wanted * 24.0 / np.pi * spacing**3 / 8.0
    found = cell * (volume / abs(np.linalg.det(cell))) ** (1.0 / 3.0)
    assert wanted / 1.1 <= pairs(found, spacing) < 1.5 * wanted
    return found


def atoms(box: str, spacing: float, device: str = "CPU", nodes: int = 70, seed: int = 0) -> Any:
    return system(large(box, spacing, device), nodes, seed)


def change_by_moves(model: Any, s: dict[str, Any]) -> float:
    """Return how much forces change, relative to the largest, if all atoms move together.

    A mesh stays where it is; a direct sum has no place.
    """
    moves = np.random.default_rng(1).uniform(0.0, 3.0, (3, 3))
    found = [model.evaluate(**{**s, "positions": s["positions"] + by})["forces"] for by in moves]
    return float(np.ptp(found, axis=0).max() / np.abs(found[0]).max())


@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-11), ("float32", 1e-7)])
@pytest.mark.parametrize("box", ["cube", "triclinic"])
def test_large_cells_have_a_mesh(tmp_path: Path, box: str, dtype: str, least: float) -> None:
    """Charges are those of the types, so forces of a direct sum are exact in both precisions."""
    model = open_model(of_types(np.array([0.5, -0.9, 0.3]), dtype), tmp_path / "p.mdcg")
    assert least < change_by_moves(model, atoms(box, 2.0)) < 1e5 * least
    small = 0.8 * large(box, 2.0, "CPU")
    assert pairs(small, 2.0) < fewest_pairs("CPU")
    assert change_by_moves(model, system(small, 70)) < 0.1 * least


def test_very_long_cells_have_none(tmp_path: Path) -> None:
    """The matrices of a mesh grow with the square of the length."""
    model = open_model(of_types(np.array([0.5, -0.9, 0.3])), tmp_path / "p.mdcg")
    for width, length, has_mesh in ((12.0, 400.0, True), (6.0, 2000.0, False)):
        cell = np.diag([width, width, length])
        assert pairs(cell, 2.0) > fewest_pairs("CPU")
        assert (change_by_moves(model, system(cell, 70)) > 1e-12) == has_mesh


@covering(box=list(BOXES), numbers=list(NUMBERS), own=["kept", "removed"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_results(tmp_path: Path, box: str, numbers: str, own: str, dtype: str) -> None:
    of = package(dtype, numbers, own)
    model = open_model(of, tmp_path / "p.mdcg")
    s = atoms(box, NUMBERS[numbers][1])
    want = reference(of, s)
    got = model.evaluate(**s, virial=True)
    close(got["energies"], want.energies.numpy(), LIMIT[dtype], "energies")
    close(got["forces"], want.forces.numpy(), LIMIT[dtype], "forces")
    close(got["virial"], want.virial.numpy(), LIMIT[dtype], "virial")
    assert np.array_equal(model.evaluate(**s, forces=False)["energies"], got["energies"])


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-8), ("float32", 5e-6)])
def test_differences_of_energies(tmp_path: Path, dtype: str, limit: float) -> None:
    """Forces and virial are derivatives of the energy of the mesh, but for the ends of windows."""
    model = open_model(of_types(np.array([0.5, -0.9, 0.3]), dtype), tmp_path / "p.mdcg")
    s = atoms("triclinic", 2.0)
    check_derivatives(model, s, {"rel": limit}, {"rel": 1e-7}, steps=(1e-3, 1e-6))


def test_one_number_of_threads_is_as_good_as_another(tmp_path: Path) -> None:
    check_threads(package(), tmp_path / "p.mdcg", atoms("triclinic", 2.0, nodes=300))


def test_images(tmp_path: Path) -> None:
    """Atoms far from the cell, on its faces, and cells on both sides of the limit in turn."""
    model = open_model(package(), tmp_path / "p.mdcg")
    s = atoms("left-handed", 2.0)
    s["positions"][0] = 0.0
    s["positions"][1] = 0.5 * s["cell"][1]
    want = reference(package(), s)
    cells = np.random.default_rng(1).integers(-2, 3, (len(s["types"]), 3))
    for shift in (np.zeros((1, 3)), cells, np.full((1, 3), 100)):
        small = system(CELLS["triclinic"])
        close(
            model.evaluate(**small)["forces"], reference(package(), small).forces.numpy(), 1e-10, ""
        )
        got = model.evaluate(**{**s, "positions": s["positions"] + shift @ s["cell"]})
        close(got["forces"], want.forces.numpy(), LIMIT["float64"], "forces")


@pytest.mark.parametrize("nodes", [0, 1])
def test_hardly_any_nodes(tmp_path: Path, nodes: int) -> None:
    model = open_model(package(), tmp_path / "p.mdcg")
    s = atoms("cube", 2.0, nodes=1)
    s["positions"], s["types"] = s["positions"][:nodes], s["types"][:nodes]
    got = model.evaluate(**s, virial=True)
    assert np.abs(got["forces"]).max(initial=0.0) < 1e-10
    if nodes > 0:
        close(got["energies"], reference(package(), s).energies.numpy(), 1e-11, "energies")


@pytest.mark.parametrize("cuts", [(0.5,), (0.0,), (0.3, 0.7)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    check_ranks(package(), tmp_path / "p.mdcg", atoms("triclinic", 2.0), cuts, sums=1)


def test_charges_that_are_too_large(tmp_path: Path) -> None:
    model = open_model(of_types(np.full(3, 1e6)), tmp_path / "p.mdcg")
    with pytest.raises(_core.EngineError, match="the charges of the atoms are too large"):
        model.evaluate(**atoms("cube", 2.0))
