"""Programs of charges and dipoles in each other's fields, and systems for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg.package.builder import Features
from mdcg.package.inputs import FIELD_COMPONENTS, InputNetwork, system_input
from mdcg.package.linear_map import LinearMap
from mdcg.problem import Irreps

from .programs import Program

Array = NDArray[Any]

# fields of sums: widths and shortest waves in Å
SUMS = {
    "usual": {"sigma": 1.5, "spacing": 2.3, "factor": 180.95128},
    "fine": {"sigma": 0.7, "spacing": 1.3, "factor": 90.0},
}
WIDTHS = {"one": [1.5], "two": [0.8, 1.9]}


def irreps_of(channels: int, l_max: int) -> Irreps:
    return Irreps.from_pairs([(channels, 0, 1), (channels, 1, -1)][: 1 + l_max])


def moments(p: Program, x: Features, l_max: int, name: str, channels: int = 2) -> Features:
    """Return charges, and dipoles for l_max 1, that depend on features."""
    mul = x.irreps[0].mul
    maps = {(b, b): p.random(mul, channels) / mul for b in range(l_max + 1)}
    return p.linear(x, LinearMap(x.irreps, irreps_of(channels, l_max), maps), name)


def program(
    dtype: str = "float64",
    *,
    l_max: int = 1,
    field_l_max: int = 1,
    widths: str = "two",
    numbers: str = "usual",
    own: str = "removed",
    steps: int = 2,
    charge: float | None = 1.0,
    spin: float | None = 2.0,
    external: tuple[float, float, float] | None = None,
) -> Program:
    """Return a program whose charges depend on neighbours and on each other's fields.

    With `external` they also depend on a field, whose components have these defaults.
    """
    p = Program(3, dtype)
    values = {"total_charge": charge, "total_spin": spin}
    given = {name: value for name, value in values.items() if value is not None}
    components = dict(zip(FIELD_COMPONENTS, external or (), strict=False))
    names = (*values, *components)
    p.inputs = InputNetwork(tuple(system_input({**given, **components}, name) for name in names))
    x = p.features(5, 1)
    p.readout(x)
    source = [1.0, 0.9]
    fields = {**SUMS[numbers], "offset": 0.05, "source": source, "own_part": own}
    receivers = [
        {"sigma": width, "scale": [0.7 + n, 1.1 * field_l_max], "own": [2.0, 0.3 - n]}
        for n, width in enumerate(WIDTHS[widths])
    ]
    weight = LinearMap(
        x.irreps, Irreps.parse("2x0e"), {(0, 0): p.random(5, 2) / 5}, {0: np.ones(2)}
    )
    found = p.linear(x, weight, "weights")
    c = p.total_charge(moments(p, x, l_max, "first"), found, *values, "charges_0")
    outside = p.external_potential(FIELD_COMPONENTS, "outside") if external else None
    for step in range(steps):
        v = p.reciprocal_field(c, receivers, f"field_{step}", **fields)
        count = v.irreps[0].mul
        if outside is not None:
            parts = {(b, b): p.random(2 - b, count) for b in range(1 + field_l_max)}
            own = p.linear(outside, LinearMap(outside.irreps, v.irreps, parts), f"outside_{step}")
            v = p.sum([v, own], f"all_{step}")
        # fields change charges, not only linearly
        back = {(b, b): p.random(count, 5) / 30 for b in range(min(l_max, field_l_max) + 1)}
        into = irreps_of(5, 1)
        seen = p.linear(v, LinearMap(v.irreps, into, back), f"seen_{step}")
        product = p.dot(x, seen, f"dot_{step}")
        scalar = LinearMap(product.irreps, irreps_of(2, l_max), {(0, 0): p.random(5, 2) / 9})
        terms = [c, p.linear(product, scalar, f"of_dot_{step}")]
        if l_max:
            terms.append(moments(p, seen, 1, f"of_field_{step}"))
        total = p.sum(terms, f"moments_{step}")
        change = LinearMap(product.irreps, Irreps.parse("2x0e"), {(0, 0): p.random(5, 2) / 20})
        more = p.sum([found, p.linear(product, change, f"more_{step}")], f"weights_{step}")
        c = p.total_charge(total, more, *values, f"charges_{step + 1}")
    both = irreps_of(1, l_max)
    ones = {(b, b): np.ones((2, 1)) for b in range(l_max + 1)}
    total = p.linear(c, LinearMap(c.irreps, both, ones), "density")
    one = LinearMap(total.irreps, Irreps.parse("1x0e"), {(0, 0): np.ones((1, 1))})
    p.charges(p.linear(total, one, "charges"))
    if outside is not None:
        parts = {(b, b): p.random(2 - b, 1) for b in range(1 + l_max)}
        potential = p.linear(outside, LinearMap(outside.irreps, both, parts), "potential")
        p.energy(p.dot(total, potential, "work"), np.ones(1), np.zeros(1), "energy_outside")
    p.reciprocal_energy(total, [3.0, 0.4], "energy_of_fields", **fields)
    return p
