"""Converts NequIP models to the program of a package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features, Radial, RadialLayer
from .e3nn_modules import activation, array, convolution, gate_blocks, linear_map, typed_linear_map
from .inputs import InputNetwork, SystemInput, refuse_unknown, system_input
from .les import add_long_range, refuse_parts
from .linear_map import LinearMap

Array = NDArray[np.float64]

# What NequIP-LES can add to a long-range sum of charges, by the attribute that switches it on.
_LES_PARTS = {
    "compute_bec": "Born effective charges",
    "use_dipole": "dipoles",
    "use_quad": "quadrupoles",
    "use_induced_charge": "induced charges",
    "use_induced_dipole": "induced dipoles",
}

# Constants of NequIP's ZBL, the same as in LAMMPS' pair_style zbl.
_EXPONENT, _LENGTH = 0.23, 0.46850
_COEFFICIENTS = (0.02817, 0.28022, 0.50986, 0.18175)
_DECAYS = (0.20162, 0.40290, 0.94229, 3.19980)


def build_nequip(
    model: Any, builder: Builder, columns: list[int], graph_fields: Mapping[str, float]
) -> None:
    """Write the layers of a NequIP model from a checkpoint or a package.

    `columns` are the model's numbers of the types to convert. `graph_fields` has the defaults of
    categorical per-structure fields that the model reads, such as a charge.
    """
    network = model.model
    if _kind(network) == "ForceStressOutput":
        network = network.func
    if _kind(network) != "SequentialGraphNetwork":
        raise UnsupportedProblemError(f"the model is {a_type(network)} of unknown order")
    converter = _Converter(model, builder, columns, graph_fields)
    for name, module in network.named_children():
        step = getattr(converter, f"on_{_kind(module)}", None)
        if step is None:
            raise UnsupportedProblemError(f"{name} is {a_type(module)}, which packages do not have")
        step(name, module)
    refuse_unknown(graph_fields, converter.fields)


def _kind(module: Any) -> str:
    return type(module).__qualname__


class _Converter:
    """Converts modules in the order in which the model runs them, with a method for each class."""

    def __init__(
        self, model: Any, builder: Builder, columns: list[int], graph_fields: Mapping[str, float]
    ) -> None:
        self.builder = builder
        self.columns = columns
        self.graph_fields = graph_fields
        self.fields: set[str] = set()  # categorical fields that the model reads
        self.r_max = float(model.metadata["r_max"])
        self.reach: Array | None = None  # cutoffs by pair of types, if they differ
        self.attributes = np.zeros((len(columns), 0))
        self.slopes: Array | None = None  # [units, attributes], by the hidden units of inputs
        self.features: Features | None = None
        self.readouts: dict[str, Features] = {}  # by the field that the model writes
        self.harmonics: Any = None
        self.frequencies = np.zeros(0)
        self.power: float = 6
        self.factor = 1.0
        self.number = 0

    # ---- embeddings ----

    def on_NodeTypeEmbed(self, name: str, module: Any) -> None:  # noqa: N802
        parts = [array(module.embed_module.weight)[self.columns]]
        inputs: list[SystemInput] = []
        tables: list[Array] = []
        first = getattr(module, "categorical_graph_field_embed_shifts", {})
        for field, table in getattr(module, "categorical_graph_field_embed_modules", {}).items():
            lowest, count = int(first[field]), len(table.weight)
            self.fields.add(field)
            inputs.append(system_input(self.graph_fields, field, lowest, count))
            tables.append(array(table.weight))
        if inputs:
            parts.append(self._embed(inputs, tables))
        self.attributes = np.concatenate(parts, axis=1)
        units = self.attributes.shape[1] - parts[0].shape[1]
        if units:
            self.slopes = np.eye(units, self.attributes.shape[1], parts[0].shape[1])
        irreps = Irreps.from_pairs([(self.attributes.shape[1], 0, 1)])
        slopes = None if self.slopes is None else self.slopes[:, None]
        self.features = self.builder.table(irreps, self.attributes, slopes)

    def _embed(self, inputs: list[SystemInput], tables: list[Array]) -> Array:
        """Make each number of the embeddings a hidden unit; return those of the defaults."""
        units, used, row = sum(t.shape[1] for t in tables), 0, np.zeros(0)
        found = []
        for each, table in zip(inputs, tables, strict=True):
            rows = np.zeros((len(table), units))
            rows[:, used : used + table.shape[1]] = table
            used += table.shape[1]
            found.append(replace(each, rows=rows))
            if each.default is not None:
                row = np.append(row, table[int(each.default) - (each.lowest or 0)])
        self.builder.inputs = InputNetwork(tuple(found), units)
        if not self.builder.inputs.has_defaults:
            row = np.zeros(units)
        return np.repeat(row[None], len(self.columns), axis=0)

    def on_SphericalHarmonicEdgeAttrs(self, name: str, module: Any) -> None:  # noqa: N802
        self.harmonics = module.sh

    def on_EdgeLengthNormalizer(self, name: str, module: Any) -> None:  # noqa: N802
        reach = 1.0 / array(module._rmax_recip)
        if reach.size > 1:
            count = round(reach.size**0.5)
            # rows are receivers: NequIP's first end of an edge is its centre
            self.reach = reach.reshape(count, count)[np.ix_(self.columns, self.columns)]

    def on_BesselEdgeLengthEncoding(self, name: str, module: Any) -> None:  # noqa: N802
        self.frequencies = np.pi * array(module.bessel_weights).reshape(-1)
        power = float(module.cutoff.p)
        self.power = int(power) if power.is_integer() else power

    def on_ApplyFactor(self, name: str, module: Any) -> None:  # noqa: N802
        if module.in_field != "edge_embedding":
            raise UnsupportedProblemError(f"{name} multiplies {module.in_field}")
        self.factor *= float(module.factor)

    def _radial(self, module: Any, name: str) -> Radial:
        # The basis is sin(pi n x) / (pi x) with x = r / cutoff.
        r_max: float | Array = self.r_max
        basis: dict[str, Any] = {
            "kind": "bessel",
            "weights": self.frequencies / self.r_max,
            "prefactor": self.factor / np.pi * self.r_max,
        }
        if self.reach is not None:
            r_max = self.reach
            basis |= {
                "weights": self.frequencies,
                "prefactor": self.factor / np.pi,
                "argument": "normalized",
            }
        return Radial(r_max=r_max, basis=basis, p=self.power, layers=_layers(module, name))

    # ---- convolutions ----

    def on_ConvNetLayer(self, name: str, module: Any) -> None:  # noqa: N802
        block, before, builder = module.conv, self.features, self.builder
        assert before is not None
        if _kind(block) != "InteractionBlock":
            raise UnsupportedProblemError(f"{name}.conv is {a_type(block)}")
        number, self.number = self.number, self.number + 1
        norm = array(block.avg_num_neighbors_norm.norm_const).reshape(-1)
        norm = norm[0] if len(norm) == 1 else norm[self.columns]
        up = linear_map(block.linear_1, f"{name}.linear_1").scaled(norm)
        x = builder.linear(before, up, f"linear_up_{number}")
        problem = convolution(block.tp_scatter.tp, self.harmonics, f"{name}.tp_scatter")
        x = builder.conv(x, problem, self._radial(block.edge_mlp, name), f"conv_{number}")
        gate = gate_blocks(module.equivariant_nonlin, f"{name}.equivariant_nonlin")
        down = linear_map(block.linear_2, f"{name}.linear_2").to_blocks(gate.irreps_in)
        x = builder.linear(x, down, f"linear_down_{number}")
        if block.sc is not None:
            own = typed_linear_map(block.sc, self.attributes, f"{name}.sc")
            slopes: LinearMap | None = None
            if self.slopes is not None:
                slopes = typed_linear_map(block.sc, self.slopes, f"{name}.sc")
                slopes = slopes.to_blocks(gate.irreps_in)
            skip = builder.linear(before, own.to_blocks(gate.irreps_in), f"self_{number}", slopes)
            x = builder.sum([x, skip], f"message_{number}")
        x = builder.gate(x, gate.irreps_out, gate.scalars, gate.gated, f"features_{number}")
        if module.resnet:
            x = builder.sum([before, x], f"resnet_{number}")
        self.features = x
        builder.describe(x, f"node_feats_{number}")

    # ---- energies ----

    def on_ScalarMLP(self, name: str, module: Any) -> None:  # noqa: N802
        x = self.features
        assert x is not None
        if module.field != "node_features":
            raise UnsupportedProblemError(f"{name} reads {module.field}, expected node_features")
        charges = "" if module.out_field == "atomic_energy" else "charge_"
        for number, layer in enumerate(_layers(module.mlp_module, name)):
            into, out = (Irreps.from_pairs([(n, 0, 1)]) for n in layer.weight.shape)
            bias = {} if layer.bias is None else {0: layer.bias}
            linear = LinearMap(into, out, {(0, 0): layer.weight}, bias)
            x = self.builder.linear(x, linear, f"{charges}readout_{number}")
            if layer.activation != "none":
                act = (0, 0, layer.activation, layer.factor)
                x = self.builder.gate(x, out, [act], [], f"{charges}readout_act_{number}")
        self.readouts[module.out_field] = x

    def on_PerTypeScaleShift(self, name: str, module: Any) -> None:  # noqa: N802
        scale = array(module.scales).reshape(-1) if module.has_scales else np.ones(1)
        shift = array(module.shifts).reshape(-1) if module.has_shifts else np.zeros(1)
        scale, shift = (a if len(a) == 1 else a[self.columns] for a in (scale, shift))
        self.builder.energy(self.readouts[module.field], scale, shift, "energy")

    def on_ZBL(self, name: str, module: Any) -> None:  # noqa: N802
        z = array(module.atomic_numbers)[self.columns]
        power = z**_EXPONENT
        count = len(self.columns)
        fields = {
            "factor": float(module._qqr2exesquare) * z[:, None] * z[None, :],
            "a": _LENGTH / (power[:, None] + power[None, :]),
            "coefficients": list(_COEFFICIENTS),
            "exponents": list(_DECAYS),
            "p": self.power if module.cutoff.p == self.power else float(module.cutoff.p),
            "r_max": np.full((count, count), self.r_max) if self.reach is None else self.reach,
        }
        self.builder.pair_energy("zbl", fields, name)

    def on_LatentEwaldSum(self, name: str, module: Any) -> None:  # noqa: N802
        refuse_parts(module, _LES_PARTS, name)
        add_long_range(self.builder, self.readouts[module.field], module.les, f"{name}.les")

    def on_AddEnergy(self, name: str, module: Any) -> None:  # noqa: N802
        pass  # of both parts of the energy

    def on_AtomwiseReduce(self, name: str, module: Any) -> None:  # noqa: N802
        if module.reduce != "sum" or module.constant != 1.0:
            raise UnsupportedProblemError(f"{name} is not a plain sum of the atoms' energies")


def _layers(module: Any, name: str) -> tuple[RadialLayer, ...]:
    """Read a ``ScalarMLPFunction``."""
    network = module.mlp
    if _kind(network) == "DeepLinearMLP":
        weights = [array(weight) for weight in network.weights]
        return (RadialLayer(np.linalg.multi_dot(weights) * float(network.alpha)),)
    layers: list[RadialLayer] = []
    for part in network:
        if hasattr(part, "alpha") and hasattr(part, "weight"):
            bias = None if part.bias is None else array(part.bias)
            layers.append(RadialLayer(array(part.weight) * float(part.alpha), bias))
        else:
            kind, factor = activation(part, name)
            last = layers.pop()
            layers.append(RadialLayer(last.weight, last.bias, None, kind, factor))
    return tuple(layers)
