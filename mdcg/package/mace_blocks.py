"""Interaction and product blocks of MACE models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Features
from .e3nn_modules import array, convolution, linear_map, real, typed_linear_map
from .gate import gate_blocks
from .linear_map import LinearMap
from .mace_context import MaceContext
from .mace_radial import radial_layers
from .radial import Radial, RadialLayer

Array = NDArray[np.float64]
_Parts = tuple[Features, Features | None]


def add_interaction(context: MaceContext, number: int, block: Any, feats: Features) -> _Parts:
    """Write an interaction block; return the message, and what the product block adds to it."""
    kind = type(block).__name__
    add = _BLOCKS.get(kind)
    if add is None or "forward" in vars(block):
        known = ", ".join(_BLOCKS)
        raise UnsupportedProblemError(
            f"interactions.{number} is {a_type(block)}, expected one of {known}"
        )
    return add(_Block(context, number, block), feats)


class _Block:
    """An interaction block with names for its parts."""

    def __init__(self, context: MaceContext, number: int, module: Any) -> None:
        self.context, self.number, self.module = context, number, module
        self.builder = context.builder

    def at(self, part: str) -> str:
        """Return where a part is in the model."""
        return f"interactions.{self.number}.{part}"

    def name(self, part: str) -> str:
        """Return the name of a layer."""
        return f"{part}_{self.number}"

    def linear(self, part: str) -> LinearMap:
        return linear_map(getattr(self.module, part), self.at(part))

    def typed(self, part: str) -> LinearMap:
        """Return a tensor product with the one-hot vector as a map for each type."""
        return typed_linear_map(getattr(self.module, part), self.context.one_hot, self.at(part))

    def conv(self, feats: Features, *, sender: Any = None, receiver: Any = None) -> Features:
        """Write ``linear_up`` and the convolution.

        `sender` and `receiver` are further inputs of the radial network.
        """
        up = self.builder.linear(feats, self.linear("linear_up"), self.name("linear_up"))
        problem = convolution(
            self.module.conv_tp, self.context.model.spherical_harmonics, self.at("conv_tp")
        )
        radial = self.radial("conv_tp_weights", sender=sender, receiver=receiver)
        return self.builder.conv(up, problem, radial, self.name("conv"))

    def radial(self, part: str, *, sender: Any = None, receiver: Any = None) -> Radial:
        """Return the radial embedding with a network after it.

        `sender` and `receiver` are further inputs of the network: their width, and a function that
        takes the rows of the first weight matrix which multiply them.
        """
        layers = list(radial_layers(getattr(self.module, part), self.at(part)))
        first, size = layers[0], self.context.radial.size
        weight = first.weight
        ends: list[Any] = []
        used = size
        for end in (sender, receiver):
            if end is None:
                ends.append(None)
                continue
            width, make = end
            ends.append(make(weight[used : used + width]))
            used += width
        if used != len(weight):
            raise UnsupportedProblemError(
                f"{self.at(part)} takes {len(weight)} inputs, expected {used}"
            )
        bias = first.bias
        if bias is not None and isinstance(ends[1], np.ndarray):
            ends[1], bias = ends[1] + bias, None
        layers[0] = RadialLayer(weight[:size], bias, first.norm, first.activation, first.factor)
        return self.context.radial.network(tuple(layers), sender=ends[0], receiver=ends[1])

    def neighbors(self) -> float:
        """Return what the sum over neighbours is divided by."""
        return real(self.module.avg_num_neighbors)

    def density(self, **ends: Any) -> Features:
        """Write the sum of tanh(net²) over the neighbours."""
        radial = self.radial("density_fn", **ends)
        return self.builder.edge_sum(radial, "tanh_square", self.name("density"))


def _then_typed(linear: LinearMap, typed: LinearMap) -> list[LinearMap]:
    """Merge two maps if that does not make them larger."""
    both = linear.then(typed)
    return [both] if both.num_weights <= linear.num_weights + typed.num_weights else [linear, typed]


def _agnostic(block: _Block, feats: Features) -> _Parts:
    message = block.conv(feats)
    maps = _then_typed(
        block.linear("linear").scaled(1.0 / block.neighbors()), block.typed("skip_tp")
    )
    return _apply(block, message, maps), None


def _residual(block: _Block, feats: Features) -> _Parts:
    skip = block.builder.linear(feats, block.typed("skip_tp"), block.name("skip"))
    message = block.conv(feats)
    return _apply(block, message, [block.linear("linear").scaled(1.0 / block.neighbors())]), skip


def _density(block: _Block, feats: Features) -> _Parts:
    density, message = block.density(), block.conv(feats)
    # a number for each node commutes with linear maps
    message = _apply(block, message, _then_typed(block.linear("linear"), block.typed("skip_tp")))
    return block.builder.normalize(message, density, 1.0, 1.0, block.name("normalized")), None


def _density_residual(block: _Block, feats: Features) -> _Parts:
    skip = block.builder.linear(feats, block.typed("skip_tp"), block.name("skip"))
    density, message = block.density(), block.conv(feats)
    message = _apply(block, message, [block.linear("linear")])
    return block.builder.normalize(message, density, 1.0, 1.0, block.name("normalized")), skip


def _attention_residual(block: _Block, feats: Features) -> _Parts:
    skip = block.builder.linear(feats, block.linear("skip_linear"), block.name("skip"))
    down = block.linear("linear_down")

    def hidden(part: str) -> Callable[[Array], Features]:
        def make(weight: Array) -> Features:
            irreps = Irreps.from_pairs([(weight.shape[1], 0, 1)])
            after = LinearMap(Irreps.from_pairs([(len(weight), 0, 1)]), irreps, {(0, 0): weight})
            return block.builder.linear(feats, down.then(after), block.name(part))

        return make

    width = down.irreps_out.dim
    message = block.conv(
        feats, sender=(width, hidden("sender")), receiver=(width, hidden("receiver"))
    )
    return _apply(block, message, [block.linear("linear").scaled(1.0 / block.neighbors())]), skip


def _nonlinear(block: _Block, feats: Features) -> _Parts:
    builder, module = block.builder, block.module
    skip = builder.linear(feats, block.linear("skip_tp"), block.name("skip"))
    up = block.linear("linear_up")
    gate = gate_blocks(module.equivariant_nonlin, block.at("equivariant_nonlin"))
    residual = builder.linear(
        feats,
        up.then(block.linear("linear_res")).to_blocks(gate.irreps_in),
        block.name("residual"),
    )
    ends = {
        end: _type_embedding(block, f"{part}_embedding")
        for end, part in (("sender", "source"), ("receiver", "target"))
    }
    density, message = block.density(**ends), block.conv(feats, **ends)
    alpha, beta = real(module.alpha), real(module.beta)
    message = builder.linear(
        message, block.linear("linear_1").to_blocks(gate.irreps_in), block.name("message")
    )
    message = builder.normalize(message, density, alpha, beta, block.name("normalized"))
    message = builder.sum([message, residual], block.name("summed"))
    message = builder.gate(message, gate.irreps_out, gate.scalars, gate.gated, block.name("gate"))
    return builder.linear(message, block.linear("linear_2"), block.name("linear_2")), skip


def _type_embedding(block: _Block, part: str) -> tuple[int, Callable[[Array], Array]]:
    """Return the width of an embedding of types, and how it enters the radial network."""
    linear = block.linear(part)
    table = linear.apply(block.context.one_hot)
    return table.shape[1], lambda weight: table @ weight


def _apply(block: _Block, message: Features, maps: list[LinearMap]) -> Features:
    for number, linear in enumerate(maps):
        name = block.name("typed_message" if number else "message")
        message = block.builder.linear(message, linear, name)
    return message


_BLOCKS: dict[str, Callable[[_Block, Features], _Parts]] = {
    "RealAgnosticInteractionBlock": _agnostic,
    "RealAgnosticResidualInteractionBlock": _residual,
    "RealAgnosticDensityInteractionBlock": _density,
    "RealAgnosticDensityResidualInteractionBlock": _density_residual,
    "RealAgnosticAttResidualInteractionBlock": _attention_residual,
    "RealAgnosticResidualNonLinearInteractionBlock": _nonlinear,
}


def add_product(
    context: MaceContext, number: int, block: Any, message: Features, skip: Features | None
) -> Features:
    """Write a product block: symmetric contraction, linear, and what the interaction skipped."""
    from ..patch.fused_contraction import fold_contraction, stacked_weights

    builder, at = context.builder, f"products.{number}"
    if type(block).__name__ != "EquivariantProductBasisBlock":
        raise UnsupportedProblemError(
            f"{at} is {a_type(block)}, expected EquivariantProductBasisBlock"
        )
    layer = block.symmetric_contractions
    if type(layer).__name__ != "SymmetricContraction" or not hasattr(layer, "contractions"):
        raise UnsupportedProblemError(
            f"{at}.symmetric_contractions is {a_type(layer)}, expected mace's "
            "SymmetricContraction: convert the model back to e3nn first"
        )
    fold = fold_contraction(layer)
    weights = array(stacked_weights(layer))
    agnostic = bool(getattr(block, "use_agnostic_product", False))
    rows = weights if agnostic else weights[context.columns]
    coefficients = np.einsum("rk,tkc->trc", fold.combination, rows)
    problem = fold.problem
    message = replace(message, irreps=_same(message.irreps, problem.irreps_in, at))
    features = builder.contraction(message, problem, coefficients, f"contraction_{number}")
    linear = linear_map(block.linear, f"{at}.linear")
    features = builder.linear(features, linear, f"product_{number}")
    if skip is not None and block.use_sc:
        features = builder.sum([features, skip], f"node_feats_{number}")
    return features


def _same(irreps: Irreps, wanted: Irreps, at: str) -> Irreps:
    if irreps != wanted:
        raise UnsupportedProblemError(f"{at} takes {wanted}, and the message is {irreps}")
    return irreps
