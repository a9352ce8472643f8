"""Moves an atom across a cutoff: forces must be smooth, and equal the gradient of the energy.

Envelopes vanish as (r_max - r)^3, so second differences of forces, about 1e-8 eV/Å, stay below
h² max|F"| at the cutoff, too, and a jump of the forces would appear in them at full size. Tables
end with the network's value and slope, 0, but not with its curvature: forces have a kink there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
STEP = 1e-4
HALF = 200  # steps on either side
#: Rounding of forces and energies, relative to the largest.
ROUNDING = {"float64": 2e-13, "float32": 4e-6}
#: How far the slope of a force may change at the end of a table, eV/Å²; found: 2e-5.
BEND = 1e-4


def crossing(model: Any, cutoff: float, others: int, types: tuple[int, int], seed: int) -> Any:
    """Return energies [steps] and forces [steps, atoms, 3] as atom 1 leaves the cutoff of atom 0.

    `others` more atoms stand around, so that both have neighbours when they lose each other.
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    places = [np.zeros(3), cutoff * direction]
    while len(places) < 2 + others:
        place = 0.5 * cutoff * direction + rng.uniform(-2.2, 2.2, size=3)
        if min(float(np.linalg.norm(place - other)) for other in places) > 0.9:
            places.append(place)
    kinds = np.resize(np.arange(len(model.type_names)), len(places)).astype(np.int32)
    kinds[:2] = types
    energies, forces = [], []
    for k in range(-HALF, HALF + 1):
        places[1] = (cutoff + k * STEP) * direction
        found = model.evaluate(np.array(places), kinds)
        energies.append(found["energy"])
        forces.append(found["forces"])
    slope = -np.einsum("sc,c->s", np.array(forces)[:, 1], direction)
    return np.array(energies), np.array(forces), slope


def largest_jump(values: Array, rounding: float) -> float:
    """Return the ratio of the largest second difference to the limit from other places."""
    second = np.abs(np.diff(values, n=2, axis=0)).reshape(len(values) - 2, -1).max(axis=1)
    middle = slice(HALF - 4, HALF + 3)
    elsewhere = np.delete(second, np.arange(len(second))[middle]).max()
    return float(second[middle].max() / (2.0 * elsewhere + rounding))


def check_smooth(
    model: Any,
    cutoff: float,
    others: int,
    types: tuple[int, int],
    *,
    table: bool = False,
    seed: int = 0,
) -> None:
    """Compare second differences at the cutoff with those beside it."""
    energies, forces, slope = crossing(model, cutoff, others, types, seed)
    relative = ROUNDING[model.dtype]
    size = np.abs(forces).max()
    assert size > (1e-9 if others == 0 else 1e-2)
    # float32 sums interactions of atoms that are some eV, float64 the total as well
    level = 10.0 * (len(forces[0]) if model.dtype == "float32" else float(np.abs(energies).max()))
    bend = STEP * BEND if table else 0.0
    assert largest_jump(forces, relative * max(float(size), 1e-3) + bend) < 1.0, "forces jump"
    assert largest_jump(energies, relative * level) < 1.0, "the energy jumps"
    # trapezoidal rule: h³/12 F''
    step = np.diff(energies) - STEP * (slope[1:] + slope[:-1]) / 2.0
    bound = STEP**3 * float(np.abs(np.diff(slope, n=2)).max()) / STEP**2
    assert np.abs(step).max() < bound + relative * level, "forces are no slopes"
    if others == 0 and cutoff >= model.r_max:
        beyond = forces[HALF + 1 :]
        assert not beyond.any(), "atoms beyond the cutoff feel each other"
        assert np.ptp(energies[HALF + 1 :]) == 0.0
