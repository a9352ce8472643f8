"""Charges and dipoles in each other's fields against direct sums in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from .cells import CELLS
from .long_range import (
    BOXES,
    check_derivatives,
    check_open_systems_of_several_ranks,
    check_ranks,
    check_threads,
    close,
    reference,
    system,
)
from .multipoles import program
from .programs import open_model

FIELD = (0.3, -0.2, 0.5)
IN_A_CELL = (
    r"the external field is \(0.3, -0.2, 0.5\) eV/Å/e and the system is periodic, where the energy "
    "would jump when an atom is wrapped into the cell, expected an open system or no field"
)

pytestmark = pytest.mark.compiler


@covering(
    box=list(BOXES),
    numbers=["usual", "fine"],
    own=["kept", "removed"],
    dtype=["float64", "float32"],
    l_max=[0, 1],
    field_l_max=[0, 1],
    widths=["one", "two"],
    steps=[0, 1, 2],
)
def test_results(
    tmp_path: Path,
    box: str,
    numbers: str,
    own: str,
    dtype: str,
    l_max: int,
    field_l_max: int,
    widths: str,
    steps: int,
) -> None:
    options: dict[str, Any] = {"numbers": numbers, "own": own, "l_max": l_max, "widths": widths}
    of = program(dtype, field_l_max=field_l_max, steps=steps, **options).package()
    model = open_model(of, tmp_path / "p.mdcg")
    s = system(BOXES[box])
    want = reference(of, s)
    limit = {"float64": 1e-10, "float32": 3e-5}[dtype]
    got = model.evaluate(**s, virial=True, descriptors=True)
    close(got["energies"], want.energies.numpy(), limit, "energies")
    close(got["forces"], want.forces.numpy(), limit, "forces")
    close(got["virial"], want.virial.numpy(), limit, "virial")
    close(got["descriptors"][:, -1:], want.values["charges"].numpy(), limit, "charges")
    assert got["descriptors"][:, -1].sum() == pytest.approx(1.0, abs=1e-4)
    again = model.evaluate(**s, forces=False)["energies"]
    close(again, got["energies"], 1e-13, "energies without forces")


@covering(
    dtype=["float64", "float32"],
    l_max=[0, 1],
    field_l_max=[0, 1],
    steps=[0, 1, 2],
    nodes=[1, 13],
)
def test_external_field(
    tmp_path: Path, dtype: str, l_max: int, field_l_max: int, steps: int, nodes: int
) -> None:
    options: dict[str, Any] = {"l_max": l_max, "field_l_max": field_l_max, "steps": steps}
    of = program(dtype, external=FIELD, **options).package()
    model = open_model(of, tmp_path / "p.mdcg")
    s = system(None)
    s = {name: value[:nodes] for name, value in s.items()}
    want = reference(of, s)
    limit = {"float64": 1e-10, "float32": 3e-5}[dtype]
    for given in ({}, {"inputs": [1.0, 2.0, *FIELD]}):
        got = model.evaluate(**s, virial=True, descriptors=True, **given)
        close(got["energies"], want.energies.numpy(), limit, "energies")
        close(got["forces"], want.forces.numpy(), limit, "forces")
        close(got["virial"], want.virial.numpy(), limit, "virial")
        close(got["descriptors"][:, -1:], want.values["charges"].numpy(), limit, "charges")
    none = program(dtype, external=(0.0, 0.0, 0.0), **options).package()
    want = reference(none, s)
    got = model.evaluate(**s, inputs=[1.0, 2.0, 0.0, 0.0, 0.0])
    close(got["energies"], want.energies.numpy(), limit, "energies without a field")
    np.testing.assert_allclose(got["forces"], want.forces.numpy(), rtol=0, atol=limit)


def test_external_fields_of_cells(tmp_path: Path) -> None:
    model = open_model(program(external=FIELD).package(), tmp_path / "p.mdcg")
    s = system(CELLS["triclinic"])
    for periodic in ((True, True, True), (False, True, False)):
        with pytest.raises(_core.EngineError, match=IN_A_CELL):
            model.evaluate(**{**s, "periodic": periodic})
    got = model.evaluate(**s, inputs=[1.0, 2.0, 0.0, 0.0, 0.0])
    want = reference(program(external=(0.0, 0.0, 0.0)).package(), s)
    close(got["energies"], want.energies.numpy(), 1e-10, "energies")
    close(got["forces"], want.forces.numpy(), 1e-10, "forces")


@pytest.mark.parametrize("box", ["triclinic", "open"])
def test_one_number_of_threads_is_as_good_as_another(tmp_path: Path, box: str) -> None:
    s = system(np.diag([13.0, 12.0, 11.0]) if box != "open" else None, nodes=100)
    check_threads(program().package(), tmp_path / "p.mdcg", s)


@pytest.mark.parametrize("box", ["triclinic", "open", "open, in a field"])
def test_differences_of_energies(tmp_path: Path, box: str) -> None:
    external = FIELD if box == "open, in a field" else None
    model = open_model(program(external=external).package(), tmp_path / "p.mdcg")
    s = system(1.03 * CELLS["triclinic"] if box == "triclinic" else None)
    check_derivatives(model, s, {"abs": 1e-6}, {"abs": 1e-6}, steps=(1e-4, 1e-4))


@pytest.mark.parametrize("cuts", [(), (0.5,), (0.3, 0.7), (0.4, 0.4)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    # three totals, two fields, and the energy; backward the totals and the fields again
    s = system(CELLS["triclinic"], nodes=24)
    check_ranks(program().package(), tmp_path / "p.mdcg", s, cuts, sums=3 + 2 + 1 + 3 + 2)


def test_batches(tmp_path: Path) -> None:
    model = open_model(program().package(), tmp_path / "p.mdcg")
    systems = [system(BOXES[box], seed=i) for i, box in enumerate(("triclinic", "cubic", "small"))]
    got = model.evaluate_batch(
        first_node=np.cumsum([0, *(len(s["types"]) for s in systems)]),
        positions=np.concatenate([s["positions"] for s in systems]),
        types=np.concatenate([s["types"] for s in systems]),
        cells=np.stack([s["cell"] for s in systems]),
        periodic=np.ones((3, 3), bool),
        virial=True,
    )
    want = [model.evaluate(**s, virial=True) for s in systems]
    assert np.array_equal(got["forces"], np.concatenate([each["forces"] for each in want]))
    assert np.array_equal(got["energy"], [each["energy"] for each in want])
    assert np.array_equal(got["virial"], [each["virial"] for each in want])


def test_open_systems_of_several_ranks(tmp_path: Path) -> None:
    check_open_systems_of_several_ranks(program().package(), tmp_path / "p.mdcg")


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    model = open_model(program().package(), path)
    s = system(CELLS["triclinic"])
    with pytest.raises(_core.EngineError, match="periodic along 2 directions, expected 0 or 3: "):
        model.evaluate(**{**s, "periodic": (True, True, False)})
    with pytest.raises(_core.EngineError, match="no virials of single atoms"):
        model.evaluate(**s, virials=True)
    huge = program(charge=1e7).package()
    with pytest.raises(_core.EngineError, match="the charges of the atoms are too large"):
        open_model(huge, path).evaluate(**s)

    def refuse(kind: str, change: dict[str, Any], message: str) -> None:
        of = program().package()
        next(entry for entry in of.layers if entry["type"] == kind).update(change)
        with pytest.raises(_core.EngineError, match=message):
            open_model(of, path)

    def refuse_external(change: dict[str, Any], message: str) -> None:
        of = program(external=FIELD).package()
        next(each for each in of.layers if each["type"] == "external_potential").update(change)
        with pytest.raises(_core.EngineError, match=message):
            open_model(of, path)

    refuse_external({"field": ["total_charge"]}, "field is 1 inputs, expected three: x, y and z")
    refuse_external({"field": ["a", "b", "c"]}, "a")
    field = "reciprocal_field"
    refuse(field, {"sigma": 0.0}, "sigma is 0, expected a length from 0.001 to 1000")
    refuse(field, {"own_part": "some"}, "own_part is 'some', expected kept or removed")
    refuse(field, {"receivers": []}, "receivers is empty, expected one or more")
    refuse(field, {"source": [1.0]}, "source is 1 numbers, expected two: for charges and for dip")
    refuse(field, {"x": "source"}, r"out is 4x0e\+4x1o, expected 10x0e or 10x0e\+10x1o")
    refuse("total_charge", {"x": "density"}, "total_charge")
    refuse("total_charge", {"weights": "density"}, "weights is 1x0e[+]1x1o, expected 2x0e")


def test_waves_that_stay(tmp_path: Path) -> None:
    """With fixed_waves the waves of the first cell are kept, and energies have no jumps."""
    package = program(numbers="fine").package()
    s = system(CELLS["triclinic"])
    moving = open_model(package, tmp_path / "p.mdcg")
    fixed = open_model(package, tmp_path / "p.mdcg", fixed_waves=True)
    want = moving.evaluate(**s)["energy"]
    assert fixed.evaluate(**s)["energy"] == want

    def found(model: Any, scale: float) -> float:
        moved = {"positions": scale * s["positions"], "cell": scale * s["cell"]}
        return float(model.evaluate(**{**s, **moved}, forces=False)["energy"])

    scales = 1 + np.linspace(0.0, 0.02, 41)
    curves = [np.array([found(model, scale) for scale in scales]) for model in (fixed, moving)]
    jumps = [np.abs(np.diff(curve, 3)).max() for curve in curves]
    assert jumps[0] < 0.1 * jumps[1]
