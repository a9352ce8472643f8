"""The part of PolarMACE behind its interactions: charges and dipoles in each other's fields."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features, RadialLayer
from .e3nn_modules import array, irreps_of, linear_map, real
from .inputs import FIELD_COMPONENTS, InputNetwork, refuse_unknown, system_input
from .les import refuse_parts
from .linear_map import LinearMap
from .mace_blocks import MaceContext, radial_layers
from .mace_readouts import activated_scalars, gated_features

Array = NDArray[np.float64]

#: Inputs of the structure that the model reads, besides the external field.
INPUTS = ("total_charge", "total_spin")
# Norms of the harmonics of degree 0 and 1 of a unit vector.
_HARMONICS = ((4 * pi) ** -0.5, (0.75 / pi) ** 0.5)
# Parts that packages have, by attribute: the class that they must be of.
_CLASSES = {
    "electric_potential_descriptor": "GTOElectrostaticFeatures",
    "coulomb_energy": "GTOElectrostaticEnergy",
    "fukui_source_map": "NonLinearBiasReadoutBlock",
    "layer_feature_mixer": "MultiLayerFeatureMixer",
    "local_electron_energy": "OneBodyMLPFieldReadout",
}


def polar_inputs(fields: Mapping[str, float]) -> InputNetwork:
    """Return the inputs with the defaults of `fields`; by default there is no external field."""
    names = (*INPUTS, *FIELD_COMPONENTS)
    refuse_unknown(fields, names)
    given = dict.fromkeys(FIELD_COMPONENTS, 0.0) | dict(fields)
    return InputNetwork(tuple(system_input(given, name) for name in names))


def add_polar(context: MaceContext, layers: list[Features]) -> None:
    """Write the charges and the energies that follow from the features of all interactions."""
    _Polar(context, layers).write()


class _Polar:
    def __init__(self, context: MaceContext, layers: list[Features]) -> None:
        self.context, self.model, self.layers = context, context.model, layers
        self.builder: Builder = context.builder
        for name, kind in _CLASSES.items():
            self.expect(getattr(self.model, name, None), kind, name)
        self.max_l = int(self.model.atomic_multipoles_max_l)
        self.field_max_l = int(self.model.field_feature_max_l)
        for what, found in (("multipoles", self.max_l), ("field features", self.field_max_l)):
            if found > 1:
                raise UnsupportedProblemError(
                    f"the model has {what} up to l = {found}, expected 0 or 1: charges and dipoles"
                )
        self.receivers = len(self.model.field_feature_widths)
        # charges of both spins as channels, in place of the spins one after the other
        self.spins = _interleaved(2, 1, self.max_l)
        self.potentials = _interleaved(2, self.receivers, self.field_max_l)

    @staticmethod
    def expect(module: Any, kind: str, at: str) -> None:
        if type(module).__name__ != kind or "forward" in vars(module):
            raise UnsupportedProblemError(f"{at} is {a_type(module)}, expected {kind}")

    def write(self) -> None:
        builder, model, feats = self.builder, self.model, self.layers[-1]
        mixer = list(model.layer_feature_mixer.linears)
        mixed = self.total(
            [(x, linear_map(m, f"mixer.{i}"), f"{i}") for i, (x, m) in enumerate(self.each(mixer))],
            "mixed",
        )
        charges = self.total(
            [
                (x, self.sources(source, f"lr_source_maps.{i}"), f"{i}")
                for i, (x, source) in enumerate(self.each(list(model.lr_source_maps)))
            ],
            "sources",
        )
        hidden = activated_scalars(
            self.context, "fukui", model.fukui_source_map, feats, "fukui_source_map"
        )
        last = linear_map(model.fukui_source_map.linear_2, "fukui_source_map.linear_2")
        weights = builder.linear(hidden, last, "weights")
        charges = first = self.fill(charges, weights, 0)
        external = builder.external_potential(FIELD_COMPONENTS, "external")
        maps = list(model.field_dependent_charges_maps)
        received = self.received(external) if maps else external
        field: Features | None = None
        for step, block in enumerate(maps):
            field = builder.sum([self.field(charges, step), received], f"all_fields_{step}")
            change, weights = self.update(block, step, mixed, field, charges)
            moved = builder.sum([charges, change], f"moved_{step}")
            charges = self.fill(moved, weights, step + 1)
        if model.add_local_electron_energy:
            self.electron_energy(feats, field, first, charges)
        both = {(b, b): np.ones((2, 1)) for b in range(self.max_l + 1)}
        density = builder.linear(
            charges, LinearMap(charges.irreps, _irreps(1, self.max_l), both), "density"
        )
        one = LinearMap(density.irreps, Irreps.parse("1x0e"), {(0, 0): np.ones((1, 1))})
        builder.charges(builder.linear(density, one, "charges"))
        # each moment in the potential that is zero at the origin
        at_origin = {(0, 0): np.array([[0.0], [1.0]]), (1, 1): np.ones((1, 1))}
        kept = {key: at_origin[key] for key in list(at_origin)[: self.max_l + 1]}
        potential = builder.linear(
            external, LinearMap(external.irreps, density.irreps, kept), "at_origin"
        )
        in_field = builder.dot(density, potential, "in_external_field")
        builder.energy(in_field, np.ones(1), np.zeros(1), "external_energy")
        energy = model.coulomb_energy
        builder.reciprocal_energy(
            density,
            self.own_parts(energy.self_interaction_terms, 1, self.max_l)[0],
            "coulomb",
            **self.sum_fields(energy, energy.realspace_energy),
        )

    def each(self, modules: list[Any]) -> list[tuple[Features, Any]]:
        return list(zip(self.layers, modules, strict=True))

    def total(self, terms: list[tuple[Features, LinearMap, str]], name: str) -> Features:
        """Write the sum of linear maps, each of its own features."""
        found = [self.builder.linear(x, to, f"{name}_{part}") for x, to, part in terms]
        return self.builder.sum(found, name)

    # ---- charges ----

    def sources(self, block: Any, at: str) -> LinearMap:
        """Return the map of an interaction's features to charges and dipoles."""
        self.expect(block, "EnvironmentDependentSpinSourceBlock", at)
        refuse_parts(block, {"zero_charges": "charges that are zero"}, at)
        return linear_map(block.linear, f"{at}.linear").then(self.spins)

    def fill(self, charges: Features, weights: Features, step: int) -> Features:
        """Shift the charges to those of the system."""
        return self.builder.total_charge(charges, weights, *INPUTS, f"charges_{step}")

    def update(
        self, block: Any, step: int, mixed: Features, field: Features, charges: Features
    ) -> tuple[Features, Features]:
        """Write a network that turns fields into changes of charges, and weights of the next."""
        at = f"field_dependent_charges_maps.{step}"
        self.expect(block, "AgnosticEmbeddedOneBodyVariableUpdate", at)
        embedding, inner = block.potential_embedding, f"{at}.potential_embedding"
        self.expect(embedding, "AgnosticChargeBiasedLinearPotentialEmbedding", inner)
        inputs = {
            "potential_linear": (field, self.potentials),
            "node_feats_linear": (mixed, None),
            "charge_embedding": (charges, self.spins),
        }
        terms = []
        for part, (x, order) in inputs.items():
            linear = linear_map(getattr(embedding, part), f"{inner}.{part}")
            if order is not None:
                linear = _reversed(order).then(linear)
            product = _contracted(block.dot_products, f"{at}.dot_products")
            terms.append((x, linear.then(product), part))
        embedded = self.total(terms, f"embedded_{step}")
        scalars = self.builder.dot(mixed, embedded, f"dots_{step}")
        types = self.builder.table(f"{len(self.model.atomic_numbers)}x0e", self.context.one_hot)
        of_type = self.builder.linear(
            types, linear_map(block.source_embedding, f"{at}.source_embedding"), ""
        )
        net, where = block.nonlinearity, f"{at}.nonlinearity"
        scalars = self.network(net, [scalars, of_type], f"update_{step}", where)
        modulation = _modulation(block.tp_out, f"{at}.tp_out")
        factors = self.builder.linear(scalars, modulation, f"factors_{step}")
        changed = self.builder.modulate(mixed, factors, f"changed_{step}")
        readout, parts = block.readout, ("linear_1", "linear_mid")
        self.expect(readout, "GeneralNonLinearBiasReadoutBlock", f"{at}.readout")
        hidden = gated_features(
            self.context, f"update_{step}", readout, changed, parts, f"{at}.readout"
        )
        last = linear_map(readout.linear_2, f"{at}.readout.linear_2")
        count = len(self.spins.irreps_in)
        moments, weights = _divided(last, count)
        return (
            self.builder.linear(hidden, moments.then(self.spins), f"change_{step}"),
            self.builder.linear(hidden, weights, f"weights_{step + 1}"),
        )

    def network(self, module: Any, inputs: list[Features], name: str, at: str) -> Features:
        """Write a ``RadialMLP`` of scalars, which come one after the other."""
        layers = list(radial_layers(module, at))
        terms, used = [], 0
        for number, x in enumerate(inputs):
            part = _scalar_map(layers[0], x.irreps, used, number == 0)
            terms.append(self.builder.linear(x, part, f"{name}_in_{number}"))
            used += x.irreps.dim
        feats = self.builder.sum(terms, f"{name}_0")
        for number, layer in enumerate(layers):
            if number:
                linear = _scalar_map(layer, feats.irreps)
                feats = self.builder.linear(feats, linear, f"{name}_{number}")
            if layer.norm is not None:
                feats = self.builder.layer_norm(feats, *layer.norm, f"{name}_norm_{number}")
            if layer.activation != "none":
                rows = [(0, 0, layer.activation, layer.factor)]
                feats = self.builder.gate(feats, feats.irreps, rows, [], f"{name}_act_{number}")
        return feats

    # ---- sums over all atoms ----

    def field(self, charges: Features, step: int) -> Features:
        """Write the potentials of both spins, and their slopes."""
        module, widths = self.model.electric_potential_descriptor, self.receivers
        scales = _scales(module.feature_basis)
        owns = self.own_parts(module.self_interaction_terms, widths, self.field_max_l)
        norms = array(self.model.field_feature_norms)
        receivers = []
        for number, sigma in enumerate(module.feature_basis.sigmas):
            norm = [norms[number], norms[widths + 3 * number] if self.field_max_l else 1.0]
            receivers.append(
                {
                    "sigma": float(sigma),
                    "scale": [float(a / b) for a, b in zip(scales[number], norm, strict=True)],
                    "own": [float(a / b) for a, b in zip(owns[number], norm, strict=True)],
                }
            )
        fields = self.sum_fields(module, module.realspace_features)
        return self.builder.reciprocal_field(charges, receivers, f"field_{step}", **fields)

    def received(self, external: Features) -> Features:
        """Write what the receivers get of the external field: half of it for each spin."""
        matrix = array(self.model.external_field_contribution.matrix)
        norms, widths = array(self.model.field_feature_norms), self.receivers
        charges = matrix[:widths, 0] / norms[:widths]
        weights = {(0, 0): np.stack([np.tile(0.5 * charges, 2), np.zeros(2 * widths)])}
        if self.field_max_l:
            first = slice(widths, None, 3)  # x of each width; the others are the same
            slopes = matrix[first].sum(axis=1) / norms[first]
            weights[1, 1] = np.tile(0.5 * slopes, 2)[None]
        to = LinearMap(external.irreps, _irreps(2 * widths, self.field_max_l), weights)
        return self.builder.linear(external, to, "received")

    def sum_fields(self, module: Any, isolated: Any) -> dict[str, Any]:
        """Return the fields that layers of sums share."""
        from graph_longrange.utils import FIELD_CONSTANT

        basis = module.density_basis
        (source,) = _scales(basis)
        (sigma,) = basis.sigmas
        own = "kept" if module.include_self_interaction else "removed"
        return {
            "sigma": float(sigma),
            "spacing": 2 * pi / real(self.model.kspace_cutoff),
            "factor": float(FIELD_CONSTANT),
            "offset": float(isolated.offset),
            "source": source,
            "own_part": own,
        }

    @staticmethod
    def own_parts(module: Any, widths: int, max_l: int) -> list[list[float]]:
        """Return the own part of each width and degree, per unit of a moment."""
        constants = array(module.overlap_constants)
        found = [[0.0, 0.0] for _ in range(widths)]
        for number in range(widths):
            found[number][0] = float(constants[number])
            if max_l and len(constants) > widths:
                found[number][1] = float(constants[widths + 3 * number])
        return found

    # ---- energies ----

    def electron_energy(
        self, feats: Features, field: Features | None, first: Features, charges: Features
    ) -> None:
        """Write the energy of a network of the charges before and behind all steps."""
        at, block = "local_electron_energy", self.model.local_electron_energy
        both = self.builder.sum([charges, first], "charges_of_energy")
        up = _reversed(self.spins).then(linear_map(block.linear_up_q, f"{at}.linear_up_q"))
        product = _contracted(block.dot_products_q, f"{at}.dot_products_q")
        embedded = self.builder.linear(both, up.then(product), "embedded_charges")
        inputs = [self.builder.dot(feats, embedded, "dots_of_charges")]
        up = linear_map(block.linear_up_v, f"{at}.linear_up_v")
        product = _contracted(block.dot_products_v, f"{at}.dot_products_v")
        if field is None:  # without steps the potentials are zero
            rows = np.zeros((self.builder.n_types, up.irreps_in.dim))
            potentials = self.builder.table(up.irreps_in, rows)
        else:
            potentials, up = field, _reversed(self.potentials).then(up)
        embedded = self.builder.linear(potentials, up.then(product), "embedded_field")
        inputs.append(self.builder.dot(feats, embedded, "dots_of_field"))
        energy = self.network(block.mlp, inputs, "electrons", f"{at}.mlp")
        self.builder.energy(energy, np.ones(1), np.zeros(1), "electron_energy")


def _scalar_map(
    layer: RadialLayer, irreps_in: Irreps, first: int = 0, with_bias: bool = True
) -> LinearMap:
    """Return a layer as a map of scalars, which are its inputs from `first` on."""
    weight = layer.weight[first : first + irreps_in.dim]
    bias = {0: layer.bias} if with_bias and layer.bias is not None else {}
    irreps_out = Irreps.from_pairs([(weight.shape[1], 0, 1)])
    return LinearMap(irreps_in, irreps_out, {(0, 0): weight}, bias)


def _irreps(count: int, max_l: int) -> Irreps:
    return Irreps.from_pairs([(count, 0, 1), (count, 1, -1)][: 1 + max_l])


def _interleaved(count: int, channels: int, max_l: int) -> LinearMap:
    """Return the map from `count` sets of scalars and vectors to one with all their channels."""
    one = [(channels, l, (-1) ** l) for l in range(max_l + 1)]
    weights: dict[tuple[int, int], Array] = {}
    for number in range(count):
        for l in range(max_l + 1):
            matrix = np.zeros((channels, count * channels))
            matrix[:, number * channels : (number + 1) * channels] = np.eye(channels)
            weights[number * (max_l + 1) + l, l] = matrix
    return LinearMap(Irreps.from_pairs(one * count), _irreps(count * channels, max_l), weights)


def _reversed(order: LinearMap) -> LinearMap:
    """Return the inverse of a map that only moves channels."""
    weights = {(o, i): weight.T for (i, o), weight in order.weights.items()}
    return LinearMap(order.irreps_out, order.irreps_in, weights)


def _divided(linear: LinearMap, blocks: int) -> tuple[LinearMap, LinearMap]:
    """Return the maps to the first blocks of an output, and to the others."""
    found = []
    irreps = [(b.mul, b.ir.l, b.ir.p) for b in linear.irreps_out]
    for first, part in ((0, irreps[:blocks]), (blocks, irreps[blocks:])):
        kept = range(first, first + len(part))
        weights = {(i, o - first): w for (i, o), w in linear.weights.items() if o in kept}
        bias = {o - first: value for o, value in linear.bias.items() if o in kept}
        found.append(LinearMap(linear.irreps_in, Irreps.from_pairs(part), weights, bias))
    return found[0], found[1]


def _paths(module: Any, mode: int, at: str) -> list[tuple[int, int, int, Array]]:
    """Return (first block, second block, output block, weights) of a product of channels."""
    if type(module).__name__ != "SparseUvuTensorProduct" or module.layout != "mul_ir":
        raise UnsupportedProblemError(
            f"{at} is {a_type(module)}, expected SparseUvuTensorProduct of e3nn's layout"
        )
    weight, found = array(module.weight).reshape(-1), []
    for instruction, meta in zip(module.instructions, module._path_meta, strict=True):
        begin, end, factor, kind, mul_1, mul_2, dim = meta[6:]
        if kind != mode and dim > 1:
            raise UnsupportedProblemError(f"{at} has a path of another kind than its first")
        matrix = weight[begin:end].reshape(mul_1, mul_2) * (factor / dim**0.5)
        numbers = (int(n) for n in (instruction.i_in1, instruction.i_in2, instruction.i_out))
        found.append((*numbers, matrix))
    return found


def _contracted(module: Any, at: str) -> LinearMap:
    """Return the map of the second operand behind which a product is a sum over components."""
    weights: dict[tuple[int, int], Array] = {}
    paths = _paths(module, 0, at)
    first, second = irreps_of(module.irreps_in1), irreps_of(module.irreps_in2)
    for i, j, _, matrix in paths:
        weights[j, i] = weights.get((j, i), 0.0) + matrix.T
    return LinearMap(second, first, weights)


def _modulation(module: Any, at: str) -> LinearMap:
    """Return the map of scalars to a factor for each channel of each block."""
    weights: dict[tuple[int, int], Array] = {}
    paths = _paths(module, 1, at)
    first, second = irreps_of(module.irreps_in1), irreps_of(module.irreps_in2)
    out = Irreps.from_pairs([(block.mul, 0, 1) for block in first])
    for i, j, k, matrix in paths:
        if i != k or irreps_of(module.irreps_out) != first:
            raise UnsupportedProblemError(f"{at} changes {first}, expected the same irreps")
        weights[j, i] = weights.get((j, i), 0.0) + matrix.T
    return LinearMap(second, out, weights)


def _scales(basis: Any) -> list[list[float]]:
    """Return the factors of charges and dipoles of each width of a basis of Gaussians.

    A charge is the Fourier transform ``factor exp(-k² sigma² / 2)``, a dipole the same times -i k.
    """
    direct, found = basis.radial_spline, []
    scales = array(basis.cl_scale)
    for number in range(len(basis.sigmas)):
        parts = [direct.pref0, direct.pref1] if basis.max_l else [direct.pref0]
        row = [
            float(array(part)[number] * scales[number, l] * _HARMONICS[l])
            for l, part in enumerate(parts)
        ]
        found.append([*row, 0.0][:2])
    return found
