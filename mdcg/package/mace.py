"""Converts MACE models to the program of a package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from .builder import Builder, Features
from .e3nn_modules import array, linear_map, real
from .inputs import refuse_unknown
from .les import add_long_range, refuse_parts
from .mace_blocks import MaceContext, add_interaction, add_product, pair_repulsion, radial_embedding
from .mace_inputs import embedded_inputs
from .mace_readouts import add_readout, readouts_of, vectors_of
from .polar import add_polar, polar_inputs

#: Classes whose forward pass is converted here. Other classes add or leave out terms.
_MODELS = (
    *("MACE", "ScaleShiftMACE", "MACELES", "PolarMACE"),
    *("EnergyDipolesMACE", "AtomicDipolesMACE"),
)
_REASONS = {
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
    is_polar = type(model).__name__ == "PolarMACE"  # it has no use for embeddings and repulsion
    embedding = radial_embedding(model.radial_embedding, numbers, real(model.r_max))
    context = MaceContext(model, builder, columns, head, n_heads, *embedding)

    types = builder.table(f"{len(model.atomic_numbers)}x0e", context.one_hot)
    feats = builder.linear(types, linear_map(model.node_embedding.linear, "node_embedding"), "")
    scale, shift, energies = (
        _energies(model, columns, head) if has_energy else (1.0, 0.0, np.zeros(len(columns)))
    )
    by_inputs: NDArray[np.float64] | None = None  # of the energies
    node_feats: list[Features] = []
    if is_polar:
        builder.inputs = polar_inputs(graph_fields or {})
    elif hasattr(model, "joint_embedding"):
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
        if is_polar:  # a single readout reads the features of every layer
            node_feats.append(feats)
            readouts = [(number, model.readouts[min(number, len(model.readouts) - 1)])]
        else:
            readouts = readouts_of(model.readouts, number, len(layers))
        for at, readout in readouts:
            site = add_readout(context, at, readout, feats)
            if has_dipoles:
                dipoles.append(vectors_of(context, at, site))
            if has_energy:
                name, factor = f"energy_{at}", np.full(1, scale)
                builder.energy(site, factor, constant, name, by_inputs=by_inputs)
                constant, by_inputs = np.zeros(1), None
        for at, readout in readouts_of(getattr(model, "les_readouts", ()), number, len(layers)):
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
    if is_polar:
        add_polar(context, node_feats)
    elif hasattr(model, "pair_repulsion_fn"):
        # ScaleShiftMACE scales the repulsion; for MACE the scale is 1
        fields = pair_repulsion(model.pair_repulsion_fn, numbers, scale)
        builder.pair_energy("zbl", fields, "pair_repulsion")


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
