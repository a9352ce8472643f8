"""Converts MACE models to the program of a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features
from .e3nn_modules import activation, array, gate_blocks, linear_map, real
from .inputs import refuse_unknown
from .les import add_long_range, refuse_parts
from .linear_map import LinearMap
from .mace_blocks import MaceContext, add_interaction, add_product, pair_repulsion, radial_embedding
from .mace_inputs import embedded_inputs


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
    builder, at = context.builder, f"readouts.{number}"
    first = linear_map(readout.linear_1, f"{at}.linear_1")
    last = _head(context, linear_map(readout.linear_2, f"{at}.linear_2"), at)
    if len(first.irreps_out) != 1 or first.irreps_out[0].ir.l:
        raise UnsupportedProblemError(
            f"{at} has hidden features {first.irreps_out}, expected scalars of one kind"
        )
    middle = getattr(readout, "linear_mid", None)
    (act,) = readout.non_linearity.acts
    kind, factor = activation(act, f"{at}.non_linearity")
    # Hidden features of the other heads are masked. Models older than heads lack `num_heads`.
    if getattr(readout, "num_heads", 1) > 1:
        size = first.irreps_out[0].mul // context.n_heads
        own = slice(context.head * size, (context.head + 1) * size)
        first, last = first.to_channels(own), last.from_channels(own)
    else:
        own = slice(None)
    maps = [first]
    if middle is not None:
        inner = linear_map(middle, f"{at}.linear_mid")
        maps.append(inner.from_channels(own).to_channels(own))
    for step, linear in enumerate(maps):
        feats = builder.linear(feats, linear, f"hidden_{number}_{step}")
        rows = [(0, 0, kind, factor)]
        feats = builder.gate(feats, feats.irreps, rows, [], f"activated_{number}_{step}")
    return builder.linear(feats, last, f"readout_{number}")


def _gated(
    context: MaceContext,
    number: int | str,
    readout: Any,
    feats: Features,
    parts: tuple[str, ...],
    last: LinearMap,
) -> Features:
    builder, at = context.builder, f"readouts.{number}"
    gate = gate_blocks(readout.equivariant_nonlin, f"{at}.equivariant_nonlin")
    for step, part in enumerate(parts):
        linear = linear_map(getattr(readout, part), f"{at}.{part}").to_blocks(gate.irreps_in)
        feats = builder.linear(feats, linear, f"hidden_{number}_{step}")
        feats = builder.gate(
            feats, gate.irreps_out, gate.scalars, gate.gated, f"activated_{number}_{step}"
        )
    return builder.linear(feats, last, f"readout_{number}")


#: Classes whose forward pass is converted here. Other classes add or leave out terms.
_MODELS = ("MACE", "ScaleShiftMACE", "MACELES", "EnergyDipolesMACE", "AtomicDipolesMACE")
_REASONS = {
    "PolarMACE": "it solves for charges in a field",
    "AtomicDielectricMACE": "it predicts dipoles and polarizabilities, no energies",
}


def refusal(model: Any) -> str:
    """Return why a MACE model as a whole cannot be converted, or an empty string."""
    kind = type(model).__name__
    if kind not in _MODELS:
        reason = _REASONS.get(kind, f"only {' and '.join(_MODELS)} are known")
        return f"the model is {a_type(model)}: {reason}"
    return ""


def build_mace(
    model: Any,
    builder: Builder,
    columns: list[int],
    head: int,
    graph_fields: Mapping[str, float] | None = None,
) -> None:
    """Write the layers of a MACE model, which must have e3nn's own layers and no LoRA.

    `columns` are the elements to convert, as columns of the model's one-hot vectors. `graph_fields`
    has the defaults of inputs that the model reads once per structure, such as a charge.
    """
    reason = refusal(model)
    if reason:
        raise UnsupportedProblemError(reason)
    if len(model.readouts) not in (1, len(model.interactions)):
        raise UnsupportedProblemError(
            f"the model has {len(model.readouts)} readouts, expected 1 or "
            f"{len(model.interactions)}, one for each interaction"
        )
    numbers = array(model.atomic_numbers)[columns].astype(int)
    n_heads = len(getattr(model, "heads", None) or ["Default"])
    dipoles: list[Features] = []  # one of each readout
    charges: list[Features] = []
    has_dipoles = type(model).__name__.endswith("DipolesMACE")
    has_energy = hasattr(model, "atomic_energies_fn")
    embedding = radial_embedding(model.radial_embedding, numbers, real(model.r_max))
    context = MaceContext(model, builder, columns, head, n_heads, *embedding)

    types = builder.table(f"{len(model.atomic_numbers)}x0e", context.one_hot)
    feats = builder.linear(types, linear_map(model.node_embedding.linear, "node_embedding"), "")
    scale, shift, energies = (
        _energies(model, columns, head) if has_energy else (1.0, 0.0, np.zeros(len(columns)))
    )
    by_inputs: NDArray[np.float64] | None = None  # of the energies
    if hasattr(model, "joint_embedding"):
        builder.inputs, row = embedded_inputs(model, graph_fields or {})
        slopes = np.eye(builder.inputs.units)[:, None]
        feats = builder.table(
            feats.irreps, row + (0.0 if feats.table is None else feats.table), slopes
        )
        readout = getattr(model, "embedding_readout", None)
        if readout is not None:
            site = add_readout(context, "embedding", readout, feats)
            energies = energies + (0.0 if site.table is None else site.table[:, 0])
            by_inputs = None if site.by_inputs is None else site.by_inputs[..., 0]
    else:
        refuse_unknown(graph_fields or {}, ())
    constant = shift + energies
    layers = list(zip(model.interactions, model.products, strict=True))
    for number, (block, product) in enumerate(layers):
        message, skip = add_interaction(context, number, block, feats)
        feats = add_product(context, number, product, message, skip)
        builder.describe(feats, f"node_feats_{number}")
        for at, readout in _readouts_of(model.readouts, number, len(layers)):
            site = add_readout(context, at, readout, feats)
            if has_dipoles:
                dipoles.append(vectors_of(context, at, site))
            if has_energy:
                name, factor = f"energy_{at}", np.full(1, scale)
                builder.energy(site, factor, constant, name, by_inputs=by_inputs)
                constant, by_inputs = np.zeros(1), None
        for at, readout in _readouts_of(getattr(model, "les_readouts", ()), number, len(layers)):
            charges.append(add_readout(context, f"les_{at}", readout, feats))
    if hasattr(model, "les"):
        _refuse_multipoles(model)
        if not charges:
            raise UnsupportedProblemError(
                "the model has a long-range sum and no readouts of charges (les_readouts), which "
                "packages need"
            )
        add_long_range(builder, builder.sum(charges, "charges"), model.les, "les")
    if dipoles:
        builder.dipoles(builder.sum(dipoles, "dipoles"))
    if hasattr(model, "pair_repulsion_fn"):
        # ScaleShiftMACE scales the repulsion; for MACE the scale is 1
        fields = pair_repulsion(model.pair_repulsion_fn, numbers, scale)
        builder.pair_energy("zbl", fields, "pair_repulsion")


def _readouts_of(readouts: Sequence[Any], number: int, count: int) -> list[tuple[int, Any]]:
    """Return (index, module) of each readout that reads the features of a layer."""
    if len(readouts) == 1:  # a single readout reads the last layer
        return [(0, readouts[0])] if number == count - 1 else []
    return [(number, readouts[number])] if number < len(readouts) else []


def _refuse_multipoles(model: Any) -> None:
    refuse_parts(model, {"compute_bec": "Born effective charges"}, "the model")
    for name, _ in model.named_children():
        if name.startswith("les_") and name != "les_readouts":
            raise UnsupportedProblemError(
                f"the model has {name}, such as readouts of multipoles or of induced charges, and "
                "packages have long-range sums of charges alone"
            )


def _energies(
    model: Any, columns: list[int], head: int
) -> tuple[float, float, NDArray[np.float64]]:
    """Return scale and shift of the interaction energy, and the energies of isolated atoms."""
    isolated = np.atleast_2d(array(model.atomic_energies_fn.atomic_energies))
    energies = isolated[head if len(isolated) > 1 else 0, columns]
    block = getattr(model, "scale_shift", None)
    if block is None:
        return 1.0, 0.0, energies
    scale, shift = (np.atleast_1d(array(getattr(block, name))) for name in ("scale", "shift"))
    return float(scale[head]), float(shift[head]), energies
