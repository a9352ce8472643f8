"""Convert NequIP models: every layer of the energy network becomes layers of a package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError
from ..problem import ConvProblem
from ..problem.irreps import Irreps
from .activations import name_of
from .builder import Builder, Features
from .linear_map import LinearMap
from .radial import Radial, RadialLayer

__all__ = ["NequipParts", "convert_nequip"]

Array = NDArray[np.float64]

_ADVICE = "patch the model in place instead (mdcg-patch IN -o OUT.nequip.zip, or mdcg.patch_model)"


@dataclass(frozen=True)
class NequipParts:
    """What the manifest says of a converted model beside its program."""

    type_names: tuple[str, ...]
    r_max: float
    cutoffs: Array | None


def convert_nequip(
    model: Any,
    *,
    dtype: str,
    types: Sequence[str] | None = None,
    graph_fields: Mapping[str, int] | None = None,
) -> tuple[Builder, NequipParts]:
    """Write the program of a NequIP model.

    Parameters
    ----------
    model : torch.nn.Module
        A loaded, unpatched ``GraphModel`` of NequIP 0.19, from a checkpoint or a package.
    dtype : {"float32", "float64"}
        Of weights and features.
    types : sequence of str, optional
        Names of the atom types to keep; None: all.
    graph_fields : mapping of str to int, optional
        Values of the graph's categorical fields, such as a charge, that the package is made for.

    Returns
    -------
    builder : Builder
    parts : NequipParts

    Raises
    ------
    UnsupportedProblemError
        A layer has no counterpart; the message names it, and what serves it.
    """
    return _Converter(model, dtype, types, graph_fields or {}).convert()


def _refuse(what: str) -> UnsupportedProblemError:
    return UnsupportedProblemError(f"{what} cannot be converted to a .mdcg package: {_ADVICE}")


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy())


def _irreps(irreps: Any) -> Irreps:
    return Irreps.from_pairs([(int(mul), int(ir.l), int(ir.p)) for mul, ir in irreps])


def _kind(module: Any) -> str:
    return type(module).__qualname__


class _Converter:
    def __init__(
        self, model: Any, dtype: str, types: Sequence[str] | None, fields: Mapping[str, int]
    ) -> None:
        self.steps = dict(_network(model).named_children())
        metadata = model.metadata
        self.names = tuple(str(metadata["type_names"]).split())
        self.rows = self._rows(types)
        self.fields = fields
        self.builder = Builder(len(self.rows), dtype)
        self.r_max = float(metadata["r_max"])
        self.cutoffs: Array | None = None
        self.attributes = np.zeros((len(self.rows), 0))
        self.harmonics = Irreps(())
        self.basis: dict[str, Any] = {}
        self.transform: dict[str, Any] | None = None
        self.power = 6.0
        self.scale = 1.0
        self.features: Features | None = None
        self.number = 0

    def _rows(self, types: Sequence[str] | None) -> list[int]:
        if types is None:
            return list(range(len(self.names)))
        unknown = [name for name in types if name not in self.names]
        if unknown:
            raise ValueError(
                f"the model has no type {', '.join(unknown)}; expected some of "
                f"{', '.join(self.names)}"
            )
        return [self.names.index(name) for name in dict.fromkeys(types)]

    def convert(self) -> tuple[Builder, NequipParts]:
        handlers = {
            "NodeTypeEmbed": self._type_embedding,
            "SphericalHarmonicEdgeAttrs": self._edge_attributes,
            "EdgeLengthNormalizer": self._edge_lengths,
            "BesselEdgeLengthEncoding": self._edge_encoding,
            "ApplyFactor": self._factor,
            "ConvNetLayer": self._layer,
            "ScalarMLP": self._readout,
            "PerTypeScaleShift": self._scale_shift,
            "ZBL": self._zbl,
            "AtomwiseReduce": self._total,
        }
        for name, module in self.steps.items():
            handler = handlers.get(_kind(module))
            if handler is None:
                raise _refuse(f"layer {name}, a {_kind(module)},")
            handler(name, module)
        names = tuple(self.names[row] for row in self.rows)
        return self.builder, NequipParts(names, self.r_max, self.cutoffs)

    # ---- embeddings ----

    def _type_embedding(self, name: str, module: Any) -> None:
        parts = [_array(module.embed_module.weight)[self.rows]]
        shifts = getattr(module, "categorical_graph_field_embed_shifts", {})
        modules = getattr(module, "categorical_graph_field_embed_modules", {})
        for field, table in modules.items():
            if field not in self.fields:
                raise UnsupportedProblemError(
                    f"the model reads {field!r} of each structure, and a package is made for one "
                    f"value of it: give it, such as {field}={int(shifts[field])}"
                )
            row, count = self.fields[field] - int(shifts[field]), len(table.weight)
            if not 0 <= row < count:
                first = int(shifts[field])
                raise ValueError(
                    f"{field} is {self.fields[field]}, expected {first} to {first + count - 1}"
                )
            parts.append(np.repeat(_array(table.weight)[row : row + 1], len(self.rows), axis=0))
        self.attributes = np.concatenate(parts, axis=1)
        irreps = Irreps.from_pairs([(self.attributes.shape[1], 0, 1)])
        self.features = self.builder.table(irreps, self.attributes)

    def _edge_attributes(self, name: str, module: Any) -> None:
        harmonics = module.sh
        if not harmonics.normalize or harmonics.normalization != "component":
            raise _refuse(f"{name} with normalisation {harmonics.normalization!r}")
        self.harmonics = _irreps(module.irreps_edge_sh)

    def _edge_lengths(self, name: str, module: Any) -> None:
        reach = 1.0 / _array(module._rmax_recip)
        if reach.ndim:
            count = len(self.names)
            table = reach.reshape(count, count)[np.ix_(self.rows, self.rows)]
            if np.any(table != table[0, 0]) or table[0, 0] != self.r_max:
                self.cutoffs = table

    def _edge_encoding(self, name: str, module: Any) -> None:
        weights = _array(module.bessel_weights).reshape(-1)
        self.power = float(module.cutoff.p)
        # sinc(x w) w, x the length over the cutoff: sin(pi w x) / (pi x)
        self.basis = {"kind": "bessel", "weights": np.pi * weights, "prefactor": 1.0 / np.pi}

    def _factor(self, name: str, module: Any) -> None:
        if module.in_field != "edge_embedding":
            raise _refuse(f"{name}, a factor of {module.in_field},")
        self.scale *= float(module.factor)

    def _radial(self, module: Any) -> Radial:
        basis = {**self.basis, "prefactor": self.basis["prefactor"] * self.scale}
        r_max: float | Array = self.r_max
        transform = None
        if self.cutoffs is None:
            basis["weights"] = basis["weights"] / self.r_max
            basis["prefactor"] = basis["prefactor"] * self.r_max
        else:
            r_max, transform = self.cutoffs, {"kind": "relative"}
        return Radial(
            r_max=r_max,
            basis=basis,
            p=int(self.power) if self.power.is_integer() else self.power,  # type: ignore[arg-type]
            layers=_network_layers(module),
            transform=transform,
        )

    # ---- convolutions ----

    def _layer(self, name: str, module: Any) -> None:
        block, before = module.conv, self.features
        assert before is not None
        if _kind(block) != "InteractionBlock":
            raise _refuse(f"{name}.conv, a {_kind(block)},")
        number, self.number = self.number, self.number + 1
        builder = self.builder
        norm = _array(block.avg_num_neighbors_norm.norm_const).reshape(-1)
        norm = norm if len(norm) == 1 else norm[self.rows]
        linear = _scaled(_linear(block.linear_1), norm)
        x = builder.linear(before, linear, f"layer{number}_up")
        problem = ConvProblem.from_e3nn(block.tp_scatter.tp)
        x = builder.conv(x, problem, self._radial(block.edge_mlp), f"layer{number}_conv")
        gate = _Gate.read(module.equivariant_nonlin, name)
        down = _linear(block.linear_2).to_blocks(gate.irreps_in)
        x = builder.linear(x, down, f"layer{number}_down")
        if block.sc is not None:
            connection = _self_connection(block.sc, self.attributes).to_blocks(gate.irreps_in)
            skip = builder.linear(before, connection, f"layer{number}_self")
            x = builder.sum([x, skip], f"layer{number}_sum")
        x = builder.gate(x, gate.irreps_out, gate.scalars, gate.gated, f"layer{number}_gate")
        if module.resnet:
            x = builder.sum([before, x], f"layer{number}_resnet")
        self.features = x
        builder.describe(x, f"layer{number}_descriptors")

    # ---- energies ----

    def _readout(self, name: str, module: Any) -> None:
        x = self.features
        assert x is not None
        layers = _network_layers(module.mlp_module)
        for number, layer in enumerate(layers):
            irreps = Irreps.from_pairs([(layer.weight.shape[1], 0, 1)])
            into = Irreps.from_pairs([(layer.weight.shape[0], 0, 1)])
            bias = {} if layer.bias is None else {0: layer.bias}
            linear = LinearMap(into, irreps, {(0, 0): layer.weight}, bias)
            x = self.builder.linear(x, linear, f"readout{number}")
            if layer.activation != "none":
                act = [(0, 0, layer.activation, layer.factor)]
                x = self.builder.gate(x, irreps, act, [], f"readout{number}_act")
        self.features = x

    def _scale_shift(self, name: str, module: Any) -> None:
        x = self.features
        assert x is not None
        numbers = []
        for field, present, default in (
            ("scales", module.has_scales, 1.0),
            ("shifts", module.has_shifts, 0.0),
        ):
            value = _array(getattr(module, field)).reshape(-1) if present else np.array([default])
            numbers.append(value if len(value) == 1 else value[self.rows])
        self.builder.energy(x, numbers[0], numbers[1], "energy")

    def _zbl(self, name: str, module: Any) -> None:
        numbers = _array(module.atomic_numbers)[self.rows]
        r_max = self.cutoffs
        if r_max is None:
            r_max = np.full((len(self.rows), len(self.rows)), self.r_max)
        fields = {
            "atomic_numbers": numbers,
            "prefactor": float(module._qqr2exesquare),
            "exponent": 0.23,
            "length": 0.46850,
            "coefficients": np.array([0.02817, 0.28022, 0.50986, 0.18175]),
            "decays": np.array([0.20162, 0.40290, 0.94229, 3.19980]),
            "r_max": r_max,
            "p": float(module.cutoff.p),
            "scale": np.ones(1),
        }
        self.builder.pair_energy("zbl", fields, name)

    def _total(self, name: str, module: Any) -> None:
        if module.reduce != "sum" or module.constant != 1.0:
            raise _refuse(f"{name}, which is no plain sum of the energies,")


def _network(model: Any) -> Any:
    """Return the network of energies: without the derivatives, which the engine makes."""
    inner = model.model
    if _kind(inner) == "ForceStressOutput":
        inner = inner.func
    if _kind(inner) != "SequentialGraphNetwork":
        raise _refuse(f"a model that is a {_kind(inner)}")
    return inner


def _linear(module: Any) -> LinearMap:
    """Return an e3nn linear layer as dense matrices."""
    into, out = _irreps(module.irreps_in), _irreps(module.irreps_out)
    weights: dict[tuple[int, int], Array] = {}
    flat, start = _array(module.weight).reshape(-1), 0
    for ins in module.instructions:
        if ins.i_in == -1:
            raise _refuse("a linear layer with a bias")
        size = math.prod(ins.path_shape)
        weight = flat[start : start + size].reshape(ins.path_shape) * ins.path_weight
        start += size
        key = (int(ins.i_in), int(ins.i_out))
        weights[key] = weights[key] + weight if key in weights else weight
    return LinearMap(into, out, weights)


def _scaled(linear: LinearMap, factor: Array) -> LinearMap:
    """Multiply the map by a number, or by one for each type."""
    if len(factor) == 1:
        return linear.scaled(float(factor[0]))
    weights = {key: factor[:, None, None] * weight for key, weight in linear.weights.items()}
    return LinearMap(linear.irreps_in, linear.irreps_out, weights)


def _self_connection(module: Any, attributes: Array) -> LinearMap:
    """Return a product with the attributes of each type as one matrix per type."""
    into, out = _irreps(module.irreps_in1), _irreps(module.irreps_out)
    problem = ConvProblem.from_e3nn(module)
    columns = [
        attributes[:, block.offset : block.offset + block.mul] for block in problem.irreps_in2
    ]
    weights: dict[tuple[int, int], Array] = {}
    flat = _array(module.weight).reshape(-1)
    for path, start in zip(problem.paths, problem.weight_offsets, strict=True):
        shape = problem.weight_shape(path)
        weight = flat[start : start + math.prod(shape)].reshape(shape)
        # the 3j symbol of (l, 0, l) is a multiple of the unit matrix
        symbol = float(problem.w3j(problem.degrees(path))[0, 0, 0]) * path.path_weight
        key = (path.i_in1, path.i_out)
        value = symbol * np.einsum("tv,uvw->tuw", columns[path.i_in2], weight)
        weights[key] = weights[key] + value if key in weights else value
    return LinearMap(into, out, weights)


def _network_layers(module: Any) -> tuple[RadialLayer, ...]:
    """Return the layers of a ``ScalarMLPFunction``."""
    network = module.mlp
    if _kind(network) == "DeepLinearMLP":
        product = np.linalg.multi_dot([_array(weight) for weight in network.weights])
        return (RadialLayer(product * float(network.alpha)),)
    layers: list[RadialLayer] = []
    for part in network:
        if hasattr(part, "alpha") and hasattr(part, "weight"):
            alpha = float(part.alpha)
            bias = None if part.bias is None else _array(part.bias)
            layers.append(RadialLayer(_array(part.weight) * alpha, bias))
        else:
            last = layers[-1]
            layers[-1] = RadialLayer(last.weight, last.bias, None, _activation(part), 1.0)
    return tuple(layers)


def _activation(function: Any) -> str:
    import torch

    def values(points: Array) -> Array:
        with torch.no_grad():
            return _array(function(torch.from_numpy(points)))

    name = name_of(values)
    if name is None:
        raise _refuse(f"activation {_kind(function)}")
    return name


@dataclass(frozen=True)
class _Gate:
    """An e3nn gate with its input cut into the blocks that it treats as one."""

    irreps_in: Irreps
    irreps_out: Irreps
    scalars: list[tuple[int, int, str, float]]
    gated: list[tuple[int, int, int, int, str, float]]

    @classmethod
    def read(cls, gate: Any, name: str) -> _Gate:
        import torch

        if _kind(gate) != "Gate":
            raise _refuse(f"{name}.equivariant_nonlin, a {_kind(gate)},")
        dim = int(gate.irreps_in.dim)
        # an input of positions tells where everything goes, whatever order e3nn chose
        parts = gate.sc(torch.arange(dim, dtype=torch.get_default_dtype()).reshape(1, -1))
        blocks: list[tuple[int, int, int, int, str, int]] = []  # start, mul, l, p, part, position
        for part, where in zip(("scalars", "gates", "gated"), parts, strict=True):
            starts = _array(where).reshape(-1).astype(int)
            offset = 0
            for position, (mul, ir) in enumerate(getattr(gate, f"irreps_{part}")):
                blocks.append((int(starts[offset]), mul, ir.l, ir.p, part, position))
                offset += mul * ir.dim
        blocks.sort()
        place = {(part, position): i for i, (*_, part, position) in enumerate(blocks)}
        irreps_in = Irreps.from_pairs([(mul, l, p) for _, mul, l, p, _, _ in blocks])
        outputs = [(b.mul, b.ir.l, b.ir.p) for b in _irreps(gate.irreps_out)]
        scalars, gated = [], []
        for i, act in enumerate(_functions(gate.act_scalars)):
            scalars.append((place["scalars", i], i, *act))
        count = len(scalars)
        acts = _functions(gate.act_gates)
        if len(acts) != len(gate.irreps_gated):
            raise _refuse(f"{name}.equivariant_nonlin with gates {gate.irreps_gates}")
        for i, act in enumerate(acts):
            gated.append((place["gates", i], 0, place["gated", i], count + i, *act))
        return cls(irreps_in, Irreps.from_pairs(outputs), scalars, gated)


def _functions(activation: Any) -> list[tuple[str, float]]:
    """Return name and factor of the functions of an e3nn ``Activation``."""
    found: list[tuple[str, float]] = []
    for act in activation.acts:
        if act is None:
            found.append(("none", 1.0))
            continue
        factor = float(getattr(act, "cst", 1.0))
        found.append((_activation(getattr(act, "f", act)), factor))
    return found
