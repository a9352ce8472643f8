"""Converts Nequix models to the program of a package."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features, Radial, RadialLayer
from .e3nn_modules import ACTIVATIONS, array, convolution, irreps_of, linear_map
from .linear_map import LinearMap

Array = NDArray[np.float64]

_POINTS = np.array([-2.5, -1.0, 0.5, 1.0, 3.0])


def build_nequix(model: Any, builder: Builder, columns: list[int]) -> None:
    """Write the layers of a ``NequixTorch``; `columns` are the numbers of the species."""
    one_hot = np.eye(model.n_species)[columns]
    x = builder.table(Irreps.from_pairs([(model.n_species, 0, 1)]), one_hot)
    for number, layer in enumerate(model.layers):
        x = _interaction(model, builder, layer, x, number)
        builder.describe(x, f"node_feats_{number}")
    energy = builder.linear(
        x, linear_map(model.readout, "readout").from_blocks(x.irreps), "readout"
    )
    shift = float(model.shift) + array(model.atom_energies)[columns]
    builder.energy(energy, np.array([float(model.scale)]), shift, "energy")


def _interaction(model: Any, builder: Builder, layer: Any, x: Features, number: int) -> Features:
    name = f"layers.{number}"
    if getattr(layer, "kernel", False) or layer.index_weights:
        what = "kernels of OpenEquivariance" if layer.kernel else "weights for each species"
        raise UnsupportedProblemError(f"{name} has {what}, expected a model of e3nn without them")
    harmonics = SimpleNamespace(normalize=True, normalization="component")
    problem = convolution(layer.tp, harmonics, f"{name}.tp")
    up = linear_map(layer.linear_1, f"{name}.linear_1").from_blocks(x.irreps)
    norm = float(layer.avg_n_neighbors) ** -0.5
    up = up.to_blocks(problem.irreps_in1).scaled(norm)
    message = builder.conv(
        builder.linear(x, up, f"linear_up_{number}"),
        problem,
        _radial(model, layer.radial_mlp, f"{name}.radial_mlp"),
        f"conv_{number}",
    )
    parts, scalars, gated = _gate(layer.gate, f"{name}.gate")
    down = _unsorted(linear_map(layer.linear_2, f"{name}.linear_2"), layer.sort)
    skip = linear_map(layer.skip, f"{name}.skip").from_blocks(x.irreps).to_blocks(parts)
    terms = [
        builder.linear(message, down.to_blocks(parts), f"linear_down_{number}"),
        builder.linear(x, skip, f"skip_{number}"),
    ]
    total = builder.sum(terms, f"message_{number}")
    if layer.layer_norm is not None:
        total = _normalized(builder, layer.layer_norm, total, number, f"{name}.layer_norm")
    out = Irreps.from_pairs((b.mul, b.ir.l, b.ir.p) for i, b in enumerate(parts) if i != 1)
    return builder.gate(total, out, scalars, gated, f"features_{number}")


def _unsorted(linear: LinearMap, sort: Any) -> LinearMap:
    """Return the map from sorted blocks as a map from blocks before they were sorted."""
    ordered, order = irreps_of(sort.irreps_sorted), list(sort.irreps.sort().inv)
    from_sorted = linear.from_blocks(ordered)
    weights = {(order[i], o): weight for (i, o), weight in from_sorted.weights.items()}
    return LinearMap(irreps_of(sort.irreps), linear.irreps_out, weights, from_sorted.bias)


def _radial(model: Any, net: Any, name: str) -> Radial:
    act = _activation(net.activation, name)
    layers, last = [], len(net.layers) - 1
    for number, layer in enumerate(net.layers):
        bias = None if layer.bias is None else array(layer.bias)
        kind, factor = ("none", 1.0) if number == last else act
        layers.append(RadialLayer(array(layer.weights), bias, activation=kind, factor=factor))
    r_max, power = float(model.cutoff), float(model.radial_polynomial_p)
    frequencies = np.arange(1, int(model.radial_basis_size) + 1) * np.pi / r_max
    return Radial(
        r_max=r_max,
        basis={"kind": "bessel", "weights": frequencies, "prefactor": 2.0 / r_max},
        p=int(power) if power.is_integer() else power,
        layers=tuple(layers),
    )


def _activation(function: Any, name: str) -> tuple[str, float]:
    """Return the name of an activation and its factor, which Nequix keeps in a closure."""
    import torch

    with torch.no_grad():
        values = array(function(torch.from_numpy(_POINTS)))
    for known in ("silu", "tanh"):
        factors = values / ACTIVATIONS[known](_POINTS)
        if np.allclose(factors, factors[0], 1e-12, 0.0):
            return known, float(factors[0])
    raise UnsupportedProblemError(
        f"{name} has an activation that is neither SiLU nor tanh, which packages do not have"
    )


def _gate(
    gate: Any, name: str
) -> tuple[Irreps, list[tuple[int, int, str, float]], list[tuple[int, int, int, int, str, float]]]:
    """Return the blocks that a gate takes, and the entries of its scalars and gated blocks."""
    blocks = irreps_of(gate.irreps_out).blocks
    vectors = [block for block in blocks if block.ir.l]
    even = sum(block.mul for block in blocks if not block.ir.l and block.ir.p == 1)
    gates = sum(block.mul for block in vectors)
    if any(not block.ir.l and block.ir.p != 1 for block in blocks) or even <= gates:
        raise UnsupportedProblemError(
            f"{name} takes {irreps_of(gate.irreps_out)}, expected even scalars, of which at least "
            "one is no gate"
        )
    pairs = [(even - gates, 0, 1), *([(gates, 0, 1)] if gates else [])]
    parts = Irreps.from_pairs([*pairs, *((b.mul, b.ir.l, b.ir.p) for b in vectors)])
    scalars = [(0, 0, *_activation(gate.scalars_extra.acts[0], f"{name}.scalars_extra"))]
    gated, first = [], 0
    for number, block in enumerate(vectors):
        act = _activation(gate.scalars_gates.acts[0], f"{name}.scalars_gates")
        gated.append((1, first, number + 2, number + 1, *act))
        first += block.mul
    return parts, scalars, gated


def _normalized(builder: Builder, norm: Any, x: Features, number: int, name: str) -> Features:
    if norm.centering or not (norm.affine and norm.std_balance_degrees):
        raise UnsupportedProblemError(
            f"{name} is {a_type(norm)} with other options than those of Nequix: expected weights, "
            "no centering and balanced degrees"
        )
    # the mean over blocks and components of sums over channels and components
    factors = [1.0 / (len(norm.irreps) * block.ir.dim**2) for block in x.irreps]
    weight = np.concatenate([array(each) for each in norm.affine_weight])
    return builder.rms_norm(x, np.array(factors), weight, float(norm.eps), f"norm_{number}")
