"""Charges and dipoles in each other's fields against direct sums in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from .capi import Exchange, Rank
from .cells import CELLS
from .multipoles import program
from .programs import R_MAX, open_model
from .test_ewald import BOXES, Array, close, reference, system
from .test_ghosts import evaluate_together, parts


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


@pytest.mark.parametrize("box", ["triclinic", "open"])
def test_one_number_of_threads_is_as_good_as_another(tmp_path: Path, box: str) -> None:
    open_model(program().package(), tmp_path / "p.mdcg")
    s = system(np.diag([13.0, 12.0, 11.0]) if box != "open" else None, nodes=100)
    found = []
    for threads in (1, 3):
        model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic", threads=threads)
        found.append(model.evaluate(**s, virial=True))
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


@pytest.mark.parametrize("box", ["triclinic", "open"])
def test_differences_of_energies(tmp_path: Path, box: str) -> None:
    model = open_model(program().package(), tmp_path / "p.mdcg")
    s = system(None if box == "open" else 1.03 * CELLS["triclinic"])
    got = model.evaluate(**s, virial=True)

    def energy(change: Array, moves: Array) -> float:
        moved = {**s, "positions": (s["positions"] + moves) @ change}
        if "cell" in s:
            moved["cell"] = s["cell"] @ change
        return float(model.evaluate(**moved, forces=False)["energy"])

    def slope(energy: Callable[[float], float]) -> float:
        step = 1e-4
        e = {n: energy(n * step) for n in (-2, -1, 1, 2)}
        return (8 * (e[1] - e[-1]) - (e[2] - e[-2])) / (12 * step)

    rng = np.random.default_rng(2)
    one = np.eye(3)
    for along in rng.normal(size=(2, *s["positions"].shape)):
        found = slope(lambda t, along=along: energy(one, t * along))
        assert found == pytest.approx(-(got["forces"] * along).sum(), abs=1e-6)
    for half in rng.normal(size=(3, 3, 3)):
        strain = half + half.T
        found = slope(lambda t, by=strain: energy(one + t * by, 0 * s["positions"]))
        assert found == pytest.approx(-(got["virial"] * strain).sum(), abs=1e-6)


@pytest.mark.parametrize("cuts", [(), (0.5,), (0.3, 0.7), (0.4, 0.4)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    """Ranks, one of them without atoms, have the results of one; they do so again."""
    path = tmp_path / "p.mdcg"
    s = system(CELLS["triclinic"], nodes=24)
    want = open_model(program().package(), path).evaluate(**s, virial=True)
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(s["positions"], s["cell"], s["periodic"])
    table, image = np.unique(near.shifts, axis=0, return_inverse=True)
    g = {**s, "sender": near.sender, "receiver": near.receiver, "image": image.reshape(-1)}
    g["image_shifts"] = table
    ranks = [Rank(str(path), *part) for part in parts(g, *cuts)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    found = [evaluate_together(ranks, g, exchange, wanted=names) for _ in range(2)]
    # three totals, two fields, and the energy; backward the totals and the fields again
    assert exchange.calls == ["sum"] * 2 * (3 + 2 + 1 + 3 + 2)
    for name in names:
        assert np.array_equal(found[0][name], found[1][name]), name
        close(found[0][name], np.asarray(want[name]), 1e-10, name)
    for rank in ranks:
        rank.close()


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


class OtherRank:
    """A communicator with another rank that has atoms."""

    def sum(self, values: int, count: int) -> int:
        if count == 1:  # the number of ranks with atoms
            ctypes.cast(values, ctypes.POINTER(ctypes.c_int64))[0] += 1
        return 0


def test_open_systems_of_several_ranks(tmp_path: Path) -> None:
    open_model(program().package(), tmp_path / "p.mdcg")
    s = system(None)
    none = np.zeros(0, np.int32)
    rank = Rank(str(tmp_path / "p.mdcg"), np.arange(len(s["types"])), none)
    g = {**s, "sender": none, "receiver": none}
    with pytest.raises(RuntimeError, match=r"field. sums over all pairs of an open system, which"):
        rank.evaluate(g, OtherRank(), ("forces",))
    rank.close()


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
