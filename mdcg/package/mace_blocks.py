"""Interaction and product blocks of MACE models, and their radial parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features, Radial, RadialLayer
from .e3nn_modules import (
    activation,
    array,
    convolution,
    fully_connected,
    gate_blocks,
    linear_map,
    real,
    typed_linear_map,
)
from .linear_map import LinearMap

Array = NDArray[np.float64]

# Constants of mace's ZBLBasis.forward: Å per Bohr radius, e²/(4 pi eps0) in eV Å, exponents.
_BOHR, _COULOMB = 0.529, 14.3996
_EXPONENTS = (3.2, 0.9423, 0.4028, 0.2016)


def radial_embedding(block: Any, numbers: NDArray[np.int_], r_max: float) -> tuple[Radial, int]:
    """Read a ``RadialEmbeddingBlock``: the start of all radial networks, and its size.

    `numbers` are the atomic numbers of the types, `r_max` is the model's cutoff in Å.
    """
    cutoff = block.cutoff_fn
    if type(cutoff).__name__ != "PolynomialCutoff":
        raise UnsupportedProblemError(f"cutoff_fn is {a_type(cutoff)}, expected PolynomialCutoff")
    own = real(cutoff.r_max)
    if abs(own - r_max) > 1e-6 * r_max:
        raise UnsupportedProblemError(f"cutoff_fn ends at {own} Å, expected r_max, {r_max} Å")
    basis, size = _basis(block.bessel_fn)
    on = "basis" if getattr(block, "apply_cutoff", True) else "weights"
    transform = getattr(block, "distance_transform", None)
    transform = transform and _transform(transform, numbers)
    return Radial(own, basis, int(cutoff.p), (), transform, on), size


def _basis(module: Any) -> tuple[dict[str, Any], int]:
    kind = type(module).__name__
    if kind == "BesselBasis":
        weights = array(module.bessel_weights).reshape(-1)
        prefactor = real(module.prefactor)
        return {"kind": "bessel", "weights": weights, "prefactor": prefactor}, len(weights)
    if kind == "GaussianBasis":
        centers = array(module.gaussian_weights).reshape(-1)
        coefficient = real(module.coeff)
        return {"kind": "gaussian", "centers": centers, "coefficient": coefficient}, len(centers)
    if kind == "ChebychevBasis":
        orders = array(module.n).reshape(-1)
        if not np.array_equal(orders, np.arange(1, len(orders) + 1)):
            raise UnsupportedProblemError(f"Chebyshev orders are {orders}, expected 1, 2, 3, ...")
        return {"kind": "chebyshev", "order": len(orders)}, len(orders)
    raise UnsupportedProblemError(
        f"the radial basis is {a_type(module)}, expected Bessel, Gaussian or Chebyshev functions"
    )


def _transform(module: Any, numbers: NDArray[np.int_]) -> dict[str, Any]:
    radii = array(module.covalent_radii)[numbers]
    total = radii[:, None] + radii[None, :]
    kind = type(module).__name__
    if kind == "AgnesiTransform":
        constants = {name: real(getattr(module, name)) for name in ("a", "q", "p")}
        return {"kind": "agnesi", **constants, "r_0": 0.5 * total}
    if kind == "SoftTransform":
        return {"kind": "soft", "alpha": real(module.alpha), "r_0": total}
    raise UnsupportedProblemError(
        f"distances are transformed by {a_type(module)}, expected AgnesiTransform or SoftTransform"
    )


def pair_repulsion(module: Any, numbers: NDArray[np.int_], scale: float) -> dict[str, Any]:
    """Read a ``ZBLBasis`` to fields of a ``pair_energy`` layer; matrices are by pairs of types."""
    if type(module).__name__ != "ZBLBasis":
        raise UnsupportedProblemError(f"pair_repulsion_fn is {a_type(module)}, expected ZBLBasis")
    z = numbers.astype(np.float64)
    power = z ** real(module.a_exp)
    radii = array(module.covalent_radii)[numbers]
    return {
        "factor": 0.5 * scale * _COULOMB * z[:, None] * z[None, :],
        "a": real(module.a_prefactor) * _BOHR / (power[:, None] + power[None, :]),
        "coefficients": [float(c) for c in array(module.c).reshape(-1)],
        "exponents": list(_EXPONENTS),
        "p": int(module.p),
        "r_max": radii[:, None] + radii[None, :],
    }


def radial_layers(net: Any, name: str) -> tuple[RadialLayer, ...]:
    """Read the network of an interaction block, a ``FullyConnectedNet`` or a ``RadialMLP``."""
    kind = type(net).__name__
    if kind == "FullyConnectedNet":
        return fully_connected(net, name)
    if kind == "RadialMLP":
        return _radial_mlp(list(net.net), name)
    raise UnsupportedProblemError(
        f"{name} is {a_type(net)}, expected a FullyConnectedNet or a RadialMLP"
    )


def _radial_mlp(modules: list[Any], name: str) -> tuple[RadialLayer, ...]:
    layers: list[RadialLayer] = []
    while modules:
        linear = modules.pop(0)
        if type(linear).__name__ != "Linear":
            raise UnsupportedProblemError(
                f"{name} has {a_type(linear)} where a Linear was expected"
            )
        weight = array(linear.weight).T
        bias = None if linear.bias is None else array(linear.bias)
        norm, kind, factor = None, "none", 1.0
        if modules and type(modules[0]).__name__ == "LayerNorm":
            layer = modules.pop(0)
            if tuple(layer.normalized_shape) != (weight.shape[1],):
                raise UnsupportedProblemError(f"{name} has a LayerNorm of another width")
            one = np.ones(weight.shape[1])
            norm = (
                one if layer.weight is None else array(layer.weight),
                0.0 * one if layer.bias is None else array(layer.bias),
                float(layer.eps),
            )
        if modules and type(modules[0]).__name__ != "Linear":
            kind, factor = activation(modules.pop(0), name)
        layers.append(RadialLayer(weight, bias, norm, kind, factor))
    return tuple(layers)


_Parts = tuple[Features, Features | None]


@dataclass(frozen=True)
class MaceContext:
    """Data that the conversion of every block needs."""

    model: Any
    builder: Builder
    columns: list[int]  # column of each converted type in the model's one-hot vectors
    head: int  # the head to convert
    n_heads: int
    embedding: Radial  # radial embedding without the layers of a network
    embedding_size: int

    @property
    def one_hot(self) -> NDArray[np.float64]:
        """The model's one-hot vector of each type, shape (n_types, number of elements)."""
        return np.eye(len(self.model.atomic_numbers))[self.columns]


def add_interaction(context: MaceContext, number: int, block: Any, feats: Features) -> _Parts:
    """Write an interaction block; return the message, and a term for the product block to add."""
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
        """Return the radial embedding followed by a network.

        `sender` and `receiver` are further inputs of the network: a width, and a function that
        makes the input's term from the rows of the first weight matrix that multiply it.
        """
        layers = list(radial_layers(getattr(self.module, part), self.at(part)))
        first, size = layers[0], self.context.embedding_size
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
        return replace(
            self.context.embedding, layers=tuple(layers), sender=ends[0], receiver=ends[1]
        )

    def neighbors(self) -> float:
        """Return the number that divides the sum over neighbours."""
        return real(self.module.avg_num_neighbors)

    def density(self, **ends: Any) -> Features:
        """Write the sum of tanh(net²) over the neighbours."""
        radial = self.radial("density_fn", **ends)
        return self.builder.edge_sum(radial, "tanh_square", self.name("density"))


def _then_typed(linear: LinearMap, typed: LinearMap) -> list[LinearMap]:
    """Merge two maps if that does not make them larger."""
    both = linear.then(typed)
    return [both] if both.num_weights <= linear.num_weights + typed.num_weights else [linear, typed]


def _plain(block: _Block, feats: Features, *, residual: bool, by_density: bool) -> _Parts:
    """Convert a block with a linear layer after the convolution.

    The typed product acts on the features (`residual`) or on the message, which is divided by a
    density of neighbours (`by_density`) or by their average number.
    """
    typed, skip, density = block.typed("skip_tp"), None, None
    if residual:
        skip = block.builder.linear(feats, typed, block.name("skip"))
    if by_density:
        density = block.density()
    message = block.conv(feats)
    linear = block.linear("linear")
    if density is None:
        linear = linear.scaled(1.0 / block.neighbors())
    message = _apply(block, message, [linear] if residual else _then_typed(linear, typed))
    if density is not None:  # division by a number per node commutes with linear maps
        message = block.builder.normalize(message, density, 1.0, 1.0, block.name("normalized"))
    return message, skip


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
        feats, up.then(block.linear("linear_res")).to_blocks(gate.irreps_in), block.name("residual")
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
    """Return the width of an embedding of types, and a function that makes its term."""
    linear = block.linear(part)
    table = linear.apply(block.context.one_hot)
    return table.shape[1], lambda weight: table @ weight


def _apply(block: _Block, message: Features, maps: list[LinearMap]) -> Features:
    for number, linear in enumerate(maps):
        name = block.name("typed_message" if number else "message")
        message = block.builder.linear(message, linear, name)
    return message


_BLOCKS: dict[str, Callable[[_Block, Features], _Parts]] = {
    "RealAgnosticInteractionBlock": partial(_plain, residual=False, by_density=False),
    "RealAgnosticResidualInteractionBlock": partial(_plain, residual=True, by_density=False),
    "RealAgnosticDensityInteractionBlock": partial(_plain, residual=False, by_density=True),
    "RealAgnosticDensityResidualInteractionBlock": partial(_plain, residual=True, by_density=True),
    "RealAgnosticAttResidualInteractionBlock": _attention_residual,
    "RealAgnosticResidualNonLinearInteractionBlock": _nonlinear,
}


def add_product(
    context: MaceContext, number: int, block: Any, message: Features, skip: Features | None
) -> Features:
    """Write a product block: symmetric contraction, linear layer, and the skip connection."""
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
