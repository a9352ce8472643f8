"""A program whose tensors depend on inputs of the system, and the same with fixed values."""

from __future__ import annotations

from typing import Any

import numpy as np

from mdcg.package import Package
from mdcg.package.inputs import InputLayer, InputNetwork, SystemInput
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from .programs import Program
from .reference import ACTIVATIONS

UNITS = 6
#: charge (counted), spin (whole), and a number that only operations could read
VALUES = ((0.0, 1.0, 0.0), (-2.0, 2.0, 0.5), (1.0, 4.0, 0.0), (2.0, 1.0, -0.25))


def input_program(dtype: str = "float64", types: int = 3, preset: bool = True) -> Program:
    """Return a program in which each kind of tensor that may depend on inputs does so."""
    p = Program(types, dtype)
    default = (0, 1, 0.0) if preset else (None, 1, 0.0)
    layers = (
        InputLayer(p.random(1, 4), p.random(4), "silu", 1.1),
        InputLayer(p.random(4, UNITS), p.random(UNITS)),
    )
    p.inputs = InputNetwork(
        (
            SystemInput("charge", True, -2, 5, default[0], p.random(5, UNITS)),
            SystemInput("spin", True, default=default[1], layers=layers),
            SystemInput("field", False, default=default[2]),
        ),
        UNITS,
        "silu",
        1.3,
    )
    channels = 7
    irreps = Irreps.parse(f"{channels}x0e")
    table = p.table(irreps, p.random(types, channels), p.random(UNITS, 1, channels))
    problem = ConvProblem.build(
        f"{channels}x0e",
        "1x0e+1x1o",
        f"{channels}x0e+{channels}x1o",
        [(0, l, l, "uvu", True) for l in range(2)],
    )
    x = p.conv(table, problem, p.network(problem.weight_numel), "first")
    out = Irreps.parse("5x0e+4x1o")
    mixed = LinearMap(x.irreps, out, {(0, 0): p.random(channels, 5), (1, 1): p.random(channels, 4)})
    slopes = LinearMap(
        x.irreps, out, {(0, 0): p.random(UNITS, channels, 5), (1, 1): p.random(UNITS, channels, 4)}
    )
    y = p.linear(x, mixed, "mixed", slopes)  # may be multiplied into the sums of the convolution
    scalars = LinearMap(out, Irreps.parse("5x0e"), {(0, 0): p.random(types, 5, 5)})
    own = LinearMap(out, Irreps.parse("5x0e"), {(0, 0): p.random(UNITS, 5, 5)})
    z = p.linear(y, scalars, "typed", own)
    constant = p.table("5x0e", p.random(types, 5), p.random(UNITS, types, 5))
    z = p.sum([z, constant], "biased")  # a bias of each type
    z = p.gate(z, z.irreps, [(0, 0, "silu", 1.0)], [], "gate")
    stored = p.stored(p.table("5x0e", p.random(types, 5), p.random(UNITS, 1, 5)), "rows")
    z = p.product(z, stored, "product")
    readout = LinearMap(z.irreps, Irreps.parse("1x0e"), {(0, 0): p.random(5, 1)})
    energy = p.linear(z, readout, "readout")
    shift, by_inputs = p.random(types), p.random(UNITS, types)
    p.energy(energy, p.random(types), shift, "energy", by_inputs=by_inputs)
    return p


def with_values(package: Package, values: Any) -> Package:
    """Return a package without inputs for some values, as FORMAT.md defines its tensors."""
    network = package.manifest["input_network"]

    def hidden(values: Any) -> Any:
        import torch

        total = np.zeros(network["units"])
        for entry, value in zip(package.inputs, values, strict=True):
            if "embedding" in entry:
                total += package.tensor(entry["embedding"])[int(value) - entry["lowest"]]
            row = np.array([value])
            for layer in entry.get("layers", ()):
                row = row @ package.tensor(layer["weight"]) + package.tensor(layer["bias"])
                act = ACTIVATIONS[layer.get("activation", "none")]
                row = layer.get("factor", 1.0) * act(torch.tensor(row)).numpy()
            total += row if "layers" in entry else 0.0
        return network["factor"] * ACTIVATIONS[network["activation"]](torch.tensor(total)).numpy()

    change = hidden(values)
    defaults = [entry.get("default") for entry in package.inputs]
    if None not in defaults:
        change = change - hidden(defaults)
    tensors = dict(package.tensors)
    for name, factors in network["factors"].items():
        before = tensors[name]
        added = np.tensordot(change, package.tensor(factors), axes=1)
        tensors[name] = (before.astype(np.float64) + added).astype(before.dtype)
    manifest = {k: v for k, v in package.manifest.items() if not k.startswith("input")}
    return Package(manifest, tensors)
