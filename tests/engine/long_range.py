"""Systems with long-range sums, and checks that the tests of all of them share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdcg import _core
from mdcg.package.linear_map import LinearMap
from mdcg.problem import Irreps

from .capi import Exchange, Rank
from .cells import CELLS
from .programs import R_MAX, Program, open_model
from .reference import evaluate
from .test_ghosts import evaluate_together, parts

Array = NDArray[Any]
BOXES = {
    **{name: CELLS[name] for name in ("cubic", "triclinic", "left-handed", "very skewed")},
    "small": np.array([[2.3, 0.0, 0.0], [0.4, 2.4, 0.0], [0.0, 0.3, 2.5]]),
    "edges of ten spacings": np.diag([10.0, 10.0, 10.0]),
    "open": None,
}
# sigma, spacing, factor
NUMBERS = {"usual": (1.0, 2.0, 90.4756), "fine": (0.6, 1.2, 90.0474), "coarse": (1.7, 3.1, 50.0)}


def package(dtype: str = "float64", numbers: str = "usual", own: str = "removed") -> Any:
    """Return a package whose charges depend on the neighbours."""
    p = Program(3, dtype)
    x = p.features(7)
    weights = {(0, 0): p.random(7, 1) / 3}
    charges = p.linear(x, LinearMap(x.irreps, Irreps.parse("1x0e"), weights), "charges")
    p.charges(charges)
    p.readout(x)
    p.ewald(charges, *NUMBERS[numbers], own == "removed", "long_range")
    return p.package()


def of_types(charges: Array, dtype: str = "float64") -> Any:
    """Return a package whose charges depend on the types alone."""
    p = Program(3, dtype)
    p.ewald(p.table("1x0e", charges.reshape(3, 1)), *NUMBERS["usual"], True, "long_range")
    return p.package()


def system(box: Array | None, nodes: int = 13, seed: int = 0) -> dict[str, Any]:
    """Return a system for the engine. Atoms may be outside the cell."""
    rng = np.random.default_rng(seed)
    cell = np.eye(3) * 7.0 if box is None else box
    count = min(nodes, max(1, int(abs(np.linalg.det(cell)) / 12)))
    points: list[Array] = []
    while len(points) < count:
        new = rng.uniform(-1.0, 2.0, 3)
        steps = np.array([(new - old + 0.5) % 1.0 - 0.5 for old in points]).reshape(-1, 3)
        if (np.linalg.norm(steps @ cell, axis=1) > 1.1).all():
            points.append(new)
    found = {
        "positions": np.array(points) @ cell,
        "types": rng.integers(3, size=count).astype(np.int32),
    }
    return found if box is None else {**found, "cell": box, "periodic": (True, True, True)}


def reference(of: Any, s: dict[str, Any]) -> Any:
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(s["positions"], s.get("cell", np.zeros((3, 3))), s.get("periodic", [False] * 3))
    edges = near.sender, near.receiver, near.shifts
    return evaluate(of, s["positions"], s["types"], *edges, cell=s.get("cell"))


def close(got: Array, want: Array, limit: float, name: str) -> None:
    scale = max(1e-3, float(np.abs(want).max(initial=0.0)))
    error = float(np.abs(got - want).max(initial=0.0)) / scale
    assert error < limit, f"{name}: relative error {error:.1e}"


def check_threads(of: Any, path: Path, s: dict[str, Any]) -> None:
    """One number of threads gives the same bits as another."""
    open_model(of, path)
    found = []
    for threads in (1, 3):
        model = _core.Model(str(path), kernels="generic", threads=threads)
        found.append(model.evaluate(**s, virial=True))
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


def check_derivatives(
    model: Any,
    s: dict[str, Any],
    forces: dict[str, float],
    virial: dict[str, float],
    steps: tuple[float, float] = (1e-5, 1e-5),
) -> None:
    """Forces and virial are derivatives of the energy, within tolerances of `pytest.approx`.

    `steps` are those of positions and of strains, so small that no wave enters or leaves the sphere
    where that matters.
    """
    got = model.evaluate(**s, virial=True)

    def energy(moves: Array, strain: Array) -> float:
        change = np.eye(3) + strain
        moved = {**s, "positions": (s["positions"] + moves) @ change}
        if "cell" in s:
            moved["cell"] = s["cell"] @ change
        return float(model.evaluate(**moved, forces=False)["energy"])

    def slope(energy: Callable[[float], float], step: float) -> float:
        e = {n: energy(n * step) for n in (-2, -1, 1, 2)}
        return (8 * (e[1] - e[-1]) - (e[2] - e[-2])) / (12 * step)

    rng = np.random.default_rng(2)
    none = np.zeros((3, 3))
    for along in rng.normal(size=(2, *s["positions"].shape)):
        found = slope(lambda t, by=along: energy(t * by, none), steps[0])
        assert found == pytest.approx(-(got["forces"] * along).sum(), **forces)
    for half in rng.normal(size=(3, 3, 3)):
        strain = half + half.T
        found = slope(lambda t, by=strain: energy(0 * s["positions"], t * by), steps[1])
        assert found == pytest.approx(-(got["virial"] * strain).sum(), **virial)


def check_ranks(of: Any, path: Path, s: dict[str, Any], cuts: tuple[float, ...], sums: int) -> None:
    """Ranks, some of them without atoms, have the results of one; they do so again."""
    want = open_model(of, path).evaluate(**s, virial=True)
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(s["positions"], s["cell"], s["periodic"])
    table, image = np.unique(near.shifts, axis=0, return_inverse=True)
    g = {**s, "sender": near.sender, "receiver": near.receiver, "image": image.reshape(-1)}
    g["image_shifts"] = table
    ranks = [Rank(str(path), *part) for part in parts(g, *cuts)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    found = [evaluate_together(ranks, g, exchange, wanted=names) for _ in range(2)]
    assert exchange.calls == ["sum"] * 2 * sums  # features are not exchanged in these networks
    for name in names:
        assert np.array_equal(found[0][name], found[1][name]), name
        close(found[0][name], np.asarray(want[name]), 1e-10, name)
    for rank in ranks:
        rank.close()


class OtherRank:
    """A communicator with another rank that has atoms."""

    def sum(self, values: int, count: int) -> int:
        if count == 1:  # the number of ranks with atoms
            ctypes.cast(values, ctypes.POINTER(ctypes.c_int64))[0] += 1
        return 0


def check_open_systems_of_several_ranks(of: Any, path: Path) -> None:
    open_model(of, path)
    s = system(None)
    none = np.zeros(0, np.int32)
    rank = Rank(str(path), np.arange(len(s["types"])), none)
    g = {**s, "sender": none, "receiver": none}
    with pytest.raises(
        RuntimeError, match="the model sums over all pairs of an open system, which"
    ):
        rank.evaluate(g, OtherRank(), ("forces",))
    rank.close()
