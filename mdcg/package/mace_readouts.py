"""Readouts of MACE models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Features
from .e3nn_modules import activation, gate_blocks, linear_map
from .linear_map import LinearMap
from .mace_blocks import MaceContext


def add_readout(context: MaceContext, number: int | str, readout: Any, feats: Features) -> Features:
    """Write a readout. Its only channel is the energy of the chosen head."""
    kind, at = type(readout).__name__, f"readouts.{number}"
    if kind == "LinearReadoutBlock":
        last = linear_map(readout.linear, f"{at}.linear")
        return context.builder.linear(feats, _head(context, last, at), f"readout_{number}")
    if kind in ("NonLinearReadoutBlock", "NonLinearBiasReadoutBlock"):
        return _nonlinear(context, number, readout, feats)
    if kind == "GeneralNonLinearBiasReadoutBlock":
        last = _head(context, linear_map(readout.linear_2, f"{at}.linear_2"), at)
        return _gated(context, number, readout, feats, ("linear_1", "linear_mid"), last)
    if kind == "LinearDipoleReadoutBlock":
        last = linear_map(readout.linear, f"{at}.linear")
        return context.builder.linear(feats, last, f"readout_{number}")
    if kind == "NonLinearDipoleReadoutBlock":
        last = linear_map(readout.linear_2, f"{at}.linear_2")
        return _gated(context, number, readout, feats, ("linear_1",), last)
    raise UnsupportedProblemError(
        f"{at} is {a_type(readout)}, expected a readout of energies or dipoles "
        "(LinearReadoutBlock, NonLinearReadoutBlock, NonLinearBiasReadoutBlock, "
        "GeneralNonLinearBiasReadoutBlock, LinearDipoleReadoutBlock, NonLinearDipoleReadoutBlock)"
    )


def vectors_of(context: MaceContext, number: int | str, site: Features) -> Features:
    """Return the vectors of a readout that may give an energy as well."""
    if len(site.irreps) == 1:
        return site
    vectors = LinearMap(site.irreps, Irreps.parse("1x1o"), {(1, 0): np.ones((1, 1))})
    return context.builder.linear(site, vectors, f"dipole_{number}")


def _head(context: MaceContext, last: LinearMap, at: str) -> LinearMap:
    """Return the map to the chosen head only."""
    if [(b.mul, b.ir.l, b.ir.p) for b in last.irreps_out] != [(context.n_heads, 0, 1)]:
        raise UnsupportedProblemError(
            f"{at} gives {last.irreps_out}, expected {context.n_heads}x0e, one energy per head"
        )
    return last.to_channels(slice(context.head, context.head + 1))


def _nonlinear(context: MaceContext, number: int | str, readout: Any, feats: Features) -> Features:
    at = f"readouts.{number}"
    last = _head(context, linear_map(readout.linear_2, f"{at}.linear_2"), at)
    own = slice(None)
    # Hidden features of the other heads are masked. Models older than heads lack `num_heads`.
    if getattr(readout, "num_heads", 1) > 1:
        hidden = linear_map(readout.linear_1, f"{at}.linear_1").irreps_out
        size = hidden[0].mul // context.n_heads
        own = slice(context.head * size, (context.head + 1) * size)
        last = last.from_channels(own)
    feats = activated_scalars(context, number, readout, feats, at, own)
    return context.builder.linear(feats, last, f"readout_{number}")


def activated_scalars(
    context: MaceContext,
    number: int | str,
    readout: Any,
    feats: Features,
    at: str,
    own: slice = slice(None),
) -> Features:
    """Write the hidden scalars of a readout, of which only the channels `own` are used."""
    builder = context.builder
    first = linear_map(readout.linear_1, f"{at}.linear_1")
    if len(first.irreps_out) != 1 or first.irreps_out[0].ir.l:
        raise UnsupportedProblemError(
            f"{at} has hidden features {first.irreps_out}, expected scalars of one kind"
        )
    middle = getattr(readout, "linear_mid", None)
    (act,) = readout.non_linearity.acts
    kind, factor = activation(act, f"{at}.non_linearity")
    maps = [first.to_channels(own)]
    if middle is not None:
        inner = linear_map(middle, f"{at}.linear_mid")
        maps.append(inner.from_channels(own).to_channels(own))
    for step, linear in enumerate(maps):
        feats = builder.linear(feats, linear, f"hidden_{number}_{step}")
        rows = [(0, 0, kind, factor)]
        feats = builder.gate(feats, feats.irreps, rows, [], f"activated_{number}_{step}")
    return feats


def _gated(
    context: MaceContext,
    number: int | str,
    readout: Any,
    feats: Features,
    parts: tuple[str, ...],
    last: LinearMap,
) -> Features:
    feats = gated_features(context, number, readout, feats, parts, f"readouts.{number}")
    return context.builder.linear(feats, last, f"readout_{number}")


def gated_features(
    context: MaceContext,
    number: int | str,
    readout: Any,
    feats: Features,
    parts: tuple[str, ...],
    at: str,
) -> Features:
    """Write the hidden features of a readout with gates, behind each of its linear `parts`."""
    builder = context.builder
    gate = gate_blocks(readout.equivariant_nonlin, f"{at}.equivariant_nonlin")
    for step, part in enumerate(parts):
        linear = linear_map(getattr(readout, part), f"{at}.{part}").to_blocks(gate.irreps_in)
        feats = builder.linear(feats, linear, f"hidden_{number}_{step}")
        feats = builder.gate(
            feats, gate.irreps_out, gate.scalars, gate.gated, f"activated_{number}_{step}"
        )
    return feats


def readouts_of(readouts: Sequence[Any], number: int, count: int) -> list[tuple[int, Any]]:
    """Return (index, module) of each readout that reads the features of a layer."""
    if len(readouts) == 1:  # a single readout reads the last layer
        return [(0, readouts[0])] if number == count - 1 else []
    return [(number, readouts[number])] if number < len(readouts) else []
