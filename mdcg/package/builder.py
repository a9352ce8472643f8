"""Writes the program of a package layer by layer, and folds what depends only on atom types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from ..problem import ConvProblem, SymmetricContractionProblem
from ..problem.irreps import Irreps
from .linear_map import LinearMap

if TYPE_CHECKING:
    from .inputs import InputNetwork

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RadialLayer:
    """``factor * activation(layer_norm(x @ weight + bias))``."""

    weight: Array  # [n_in, n_out], normalisation included
    bias: Array | None = None  # [n_out]
    norm: tuple[Array, Array, float] | None = None  # weight, bias and epsilon of a layer norm
    activation: str = "none"  # a key of `e3nn_modules.ACTIVATIONS`
    factor: float = 1.0


@dataclass(frozen=True)
class Radial:
    """A radial network."""

    r_max: float | Array  # Å; or an array [n_types, n_types], by types of receiver and sender
    # `kind` (bessel, gaussian, chebyshev) with its numbers and arrays. `argument` is "length", the
    # default, or "normalized": the length divided by the cutoff.
    basis: Mapping[str, Any]
    p: float  # exponent of the polynomial cutoff
    layers: tuple[RadialLayer, ...]
    transform: Mapping[str, Any] | None = None  # `kind` (agnesi, soft) with its numbers and arrays
    cutoff_on: str = "basis"  # what the cutoff function multiplies: "basis" or "weights"
    # Terms that are added to the input of the first activation: an array [n_types, n_hidden], or
    # features with n_hidden scalars.
    sender: Any = None
    receiver: Any = None
    start: float | None = None  # where an xplor cutoff begins to fall, Å; None: polynomial

    @property
    def weight_numel(self) -> int:
        """Number of outputs."""
        return int(self.layers[-1].weight.shape[1])

    @property
    def by_type(self) -> bool:
        """Whether the outputs depend only on the length and on the two types."""
        ends = (self.sender, self.receiver)
        return all(end is None or isinstance(end, np.ndarray) for end in ends)


@dataclass(frozen=True)
class Features:
    """Node features: a value of the program, or a table with a row for each type."""

    irreps: Irreps
    name: str = ""  # name of the value; empty if the features are a table
    table: Array | None = None  # (n_types, irreps.dim), blocks as [2l+1][mul]
    # Derivatives of the table by the hidden units of the inputs of a system, (units, n_types or 1,
    # irreps.dim). The table depends on them linearly; None: not at all.
    by_inputs: Array | None = None

    @property
    def known(self) -> bool:
        """Whether the features depend only on the type of the node."""
        return self.table is not None


class Builder:
    """Layers, values and tensors of a package, in the order of the calls.

    Methods take and return :class:`Features`. Features that depend only on types stay float64
    tables as long as possible, so that only what depends on positions becomes a layer. With
    `exact`, convolutions evaluate radial networks instead of tables.

    Examples
    --------
    >>> builder = Builder(2, "float64")
    >>> embedding = builder.table("3x0e", np.ones((2, 3)))
    >>> builder.layers, embedding.known
    ([], True)
    """

    def __init__(self, n_types: int, dtype: str, exact: bool = False) -> None:
        self.n_types = n_types
        self.dtype = dtype
        self.exact = exact
        self.values: dict[str, str] = {}
        self.layers: list[dict[str, Any]] = []
        self.tensors: dict[str, NDArray[Any]] = {}
        self.descriptors: list[str] = []
        self.inputs: InputNetwork | None = None  # of a system, if the model reads any
        self._factors: dict[str, str] = {}  # tensors that depend on inputs: their derivatives
        self._named: dict[str, str] = {}  # descriptors that are results: dipoles or charges
        self._exchanged: set[str] = set()
        self._maps: dict[str, LinearMap] = {}  # maps of linear layers that no layer reads yet
        # derivatives of these maps by hidden units, whose weights have an axis of units in front
        self._slopes: dict[str, LinearMap] = {}

    # ---- features ----

    def table(self, irreps: str | Irreps, rows: Array, by_inputs: Array | None = None) -> Features:
        """Return features from a row for each type, shape (n_types, dim).

        `by_inputs` are derivatives by the hidden units of inputs; see :class:`Features`.
        """
        irreps = Irreps.parse(irreps) if isinstance(irreps, str) else irreps
        table = np.asarray(rows, dtype=np.float64)
        if table.shape != (self.n_types, irreps.dim):
            raise ValueError(
                f"table has shape {table.shape}, expected {(self.n_types, irreps.dim)}"
            )
        return Features(irreps, table=table, by_inputs=by_inputs)

    def stored(self, x: Features, name: str) -> Features:
        """Return features as a value of the program; a table gets a layer."""
        if x.table is None:
            return x
        table = self._weights(f"{name}.table", x.table, x.by_inputs)
        return self._layer("type_rows", name, x.irreps, table=table)

    def describe(self, x: Features, name: str) -> None:
        """Add features to the descriptors of a node."""
        self.descriptors.append(self._use(self.stored(x, name)))

    def dipoles(self, x: Features) -> None:
        """Set the dipoles of the nodes, which become the last descriptors."""
        self.describe(x, "dipoles")
        self._named["dipoles"] = self.descriptors[-1]

    def charges(self, x: Features) -> None:
        """Set the charges of the nodes, which become the last descriptor."""
        self.describe(x, "charges")
        self._named["charges"] = self.descriptors[-1]

    # ---- layers on nodes ----

    def linear(
        self, x: Features, linear: LinearMap, name: str, by_inputs: LinearMap | None = None
    ) -> Features:
        """Apply a linear map, which may depend on the type of the node.

        `by_inputs` are derivatives of its weights by the hidden units of inputs, (units, mul_in,
        mul_out) each.
        """
        if linear.irreps_in != x.irreps:
            linear = linear.from_blocks(x.irreps)
        if by_inputs is not None:
            # the product of a table and a map would not depend linearly on the units
            x = self.stored(x, f"{name}_x")
        if x.table is not None:
            slopes = None if x.by_inputs is None else linear.apply_weights(x.by_inputs)
            return Features(linear.irreps_out, table=linear.apply(x.table), by_inputs=slopes)
        out = self._layer("linear", name, linear.irreps_out, x=self._use(x))
        self._maps[out.name] = linear
        if by_inputs is not None:
            self._slopes[out.name] = by_inputs.from_blocks(x.irreps)
        return out

    def normalize(
        self, x: Features, density: Features, alpha: float, beta: float, name: str
    ) -> Features:
        """Divide the rows of x by ``density * beta + alpha``."""
        if x.table is not None and density.table is not None:
            assert density.by_inputs is None  # sums over edges are no tables
            divisor = density.table * beta + alpha
            slopes = None if x.by_inputs is None else x.by_inputs / divisor
            return replace(x, table=x.table / divisor, by_inputs=slopes)
        x, density = self.stored(x, f"{name}_x"), self.stored(density, f"{name}_density")
        numbers = {"alpha": float(alpha), "beta": float(beta)}
        operands = {"x": self._use(x), "density": self._use(density)}
        return self._layer("normalize", name, x.irreps, **operands, **numbers)

    def scale(self, x: Features, factor: Array, name: str) -> Features:
        """Multiply rows by a number for each type, shape (n_types,) or (1,)."""
        if x.table is not None:
            slopes = None if x.by_inputs is None else x.by_inputs * factor[:, None]
            return replace(x, table=x.table * factor[:, None], by_inputs=slopes)
        tensor = self._weights(f"{name}.factor", factor)
        return self._layer("scale", name, x.irreps, x=self._use(x), factor=tensor)

    def contraction(
        self, x: Features, problem: SymmetricContractionProblem, coefficients: Array, name: str
    ) -> Features:
        """Evaluate symmetric polynomials of each channel.

        The coefficients have shape (n_types or 1, problem.num_coefficients, problem.channels).
        """
        wanted = (problem.num_coefficients, problem.channels)
        if coefficients.shape[1:] != wanted or len(coefficients) not in (1, self.n_types):
            raise ValueError(
                f"coefficients have shape {coefficients.shape}, expected (n, *{wanted})"
            )
        if str(x.irreps) != str(problem.irreps_in):
            raise ValueError(f"features are {x.irreps}, expected {problem.irreps_in}")
        return self._layer(
            "contraction",
            name,
            problem.irreps_out,
            x=self._use(self.stored(x, f"{name}_x")),
            problem=problem.with_dtype(self.dtype).to_json(),
            coefficients=self._weights(f"{name}.coefficients", coefficients),
        )

    def gate(
        self,
        x: Features,
        irreps_out: Irreps,
        scalars: Iterable[tuple[int, int, str, float]],
        gated: Iterable[tuple[int, int, int, int, str, float]],
        name: str,
    ) -> Features:
        """Apply activations to scalars, and multiply other blocks by activated scalars.

        Rows of `scalars` are (in, out, activation, factor), with a block of x and a block of the
        output. Rows of `gated` are (gate, gate_offset, in, out, activation, factor), with the block
        of x that contains the gates, their first channel there, the block of x that they multiply,
        and the block of the output.
        """
        first = ("in", "out", "activation", "factor")
        second = ("gate", "gate_offset", *first)
        return self._layer(
            "gate",
            name,
            irreps_out,
            x=self._use(self.stored(x, f"{name}_x")),
            scalars=[dict(zip(first, row, strict=True)) for row in scalars],
            gated=[dict(zip(second, row, strict=True)) for row in gated],
        )

    def product(self, x: Features, y: Features, name: str) -> Features:
        """Multiply two rows of equal irreps item by item."""
        x, y = self.stored(x, f"{name}_x"), self.stored(y, f"{name}_y")
        return self._layer("product", name, x.irreps, x=self._use(x), y=self._use(y))

    def dot(self, x: Features, y: Features, name: str) -> Features:
        """Sum products of components for each channel, which all blocks have equally many of."""
        out = Irreps.from_pairs([(x.irreps[0].mul, 0, 1)])
        x, y = self.stored(x, f"{name}_x"), self.stored(y, f"{name}_y")
        return self._layer("dot", name, out, x=self._use(x), y=self._use(y))

    def modulate(self, x: Features, y: Features, name: str) -> Features:
        """Multiply each block of x by the scalars of the same block of y, channel by channel."""
        x, y = self.stored(x, f"{name}_x"), self.stored(y, f"{name}_y")
        return self._layer("modulate", name, x.irreps, x=self._use(x), y=self._use(y))

    def layer_norm(
        self, x: Features, weight: Array, bias: Array, epsilon: float, name: str
    ) -> Features:
        """Normalise the scalars of each node; weight and bias have one number for each channel."""
        x = self.stored(x, f"{name}_x")
        return self._layer(
            "layer_norm",
            name,
            x.irreps,
            x=self._use(x),
            weight=self._weights(f"{name}.weight", weight),
            bias=self._weights(f"{name}.bias", bias),
            epsilon=float(epsilon),
        )

    def rms_norm(
        self, x: Features, factors: Array, weight: Array, epsilon: float, name: str
    ) -> Features:
        """Divide the row of each node by the root of its squares, and multiply by weights.

        The squares of each block have a factor, and each channel of each block has a weight.
        """
        x = self.stored(x, f"{name}_x")
        fields: dict[str, Any] = {"factors": factors.tolist(), "epsilon": float(epsilon)}
        fields["weight"] = self._weights(f"{name}.weight", weight)
        return self._layer("rms_norm", name, x.irreps, x=self._use(x), **fields)

    def sum(self, terms: Sequence[Features], name: str) -> Features:
        """Add features of equal irreps."""
        irreps = terms[0].irreps
        if any(term.irreps != irreps for term in terms):
            raise ValueError(f"irreps of a sum differ: {[str(term.irreps) for term in terms]}")
        constant = sum((t.table for t in terms if t.table is not None), np.zeros(()))
        slopes = None
        for term in terms:
            if term.by_inputs is not None:
                slopes = term.by_inputs if slopes is None else slopes + term.by_inputs
        known = bool(np.any(constant)) or slopes is not None
        others = [term for term in terms if term.table is None]
        if not others:
            return self.table(irreps, constant + np.zeros((self.n_types, irreps.dim)), slopes)
        if known:
            for number, term in enumerate(others):
                if self._absorb(term, constant, slopes):
                    known = False
                    others[number] = term
                    break
        if known:
            others.append(self.stored(self.table(irreps, constant, slopes), f"{name}_types"))
        if len(others) == 1:
            return others[0]
        return self._layer("sum", name, irreps, x=[self._use(term) for term in others])

    def _absorb(self, x: Features, constant: Array, by_inputs: Array | None) -> bool:
        """Add a constant of each type to the bias of x's linear layer; return whether it fits."""
        linear = self._maps.get(x.name)
        if linear is None:
            return False
        bias = dict(linear.bias)
        before = self._slopes.get(x.name) or replace(linear, weights={}, bias={})
        slopes = dict(before.bias)
        for o, block in enumerate(x.irreps):
            items = slice(block.offset, block.offset + block.dim)
            part = constant[:, items]
            change = None if by_inputs is None else by_inputs[..., items]
            if not part.any() and (change is None or not change.any()):
                continue
            if block.ir.l:
                return False
            bias[o] = bias[o] + part if o in bias else part
            if change is not None:
                slopes[o] = slopes[o] + change if o in slopes else change
        self._maps[x.name] = replace(linear, bias=bias)
        if by_inputs is not None:
            self._slopes[x.name] = replace(before, bias=slopes)
        return True

    # ---- layers on edges ----

    def conv(
        self, x: Features, problem: ConvProblem, radial: Radial, name: str, *, solid: bool = False
    ) -> Features:
        """Convolve node features with harmonics and radial weights, summed over the neighbours.

        The problem has one weight per path and channel. Its path weights are applied. Harmonics
        are those of unit vectors, or, if `solid`, those of the vectors of edges.
        """
        if radial.weight_numel != problem.weight_numel:
            raise ValueError(
                f"the radial network has {radial.weight_numel} outputs, expected "
                f"{problem.weight_numel}"
            )
        problem = replace(problem, layout="ir_mul", dtype=self.dtype, _w3j={})
        field: dict[str, Any] = {"harmonics": "solid"} if solid else {}
        if x.table is not None:
            field["x_table"] = self._weights(f"{name}.x_table", x.table, x.by_inputs)
        else:
            field["x"] = self._exchange(x)
        field["radial"] = self._radial(radial, name)
        if radial.by_type and not self.exact:
            field["radial"]["table"] = {}
        field["problem"] = problem.to_json()
        return self._layer("conv", name, problem.irreps_out, **field)

    def edge_sum(self, radial: Radial, activation: str, name: str) -> Features:
        """Sum an activated radial function over the neighbours."""
        fields = {"radial": self._radial(radial, name), "activation": activation}
        irreps = Irreps.from_pairs([(radial.weight_numel, 0, 1)])
        return self._layer("edge_sum", name, irreps, **fields)

    # ---- energies ----

    def energy(
        self,
        x: Features,
        scale: Array,
        shift: Array,
        name: str,
        channel: int = 0,
        by_inputs: Array | None = None,
    ) -> None:
        """Add ``scale * x[channel] + shift`` to the energy of each node.

        Scale and shift have shape (n_types,) or (1,). `by_inputs` are derivatives of the shift by
        the hidden units of inputs, (units, n_types or 1).
        """
        if x.table is not None:
            shift = shift + scale * x.table[:, channel]
            if x.by_inputs is not None:
                own = scale * x.by_inputs[..., channel]
                by_inputs = own if by_inputs is None else by_inputs + own
            x = self.stored(self.table("1x0e", np.zeros((self.n_types, 1))), f"{name}_x")
            scale, channel = np.zeros(1), 0
        self._layer(
            "energy",
            name,
            None,
            x=self._use(x),
            channel=channel,
            scale=self._tensor(f"{name}.scale", np.atleast_1d(scale).astype(np.float64)),
            shift=self._tensor(f"{name}.shift", np.atleast_1d(shift).astype(np.float64), by_inputs),
        )

    def pair_energy(self, kind: str, fields: Mapping[str, Any], name: str) -> None:
        """Add an energy of pairs; arrays among the fields become float64 tensors."""
        self._layer("pair_energy", name, None, kind=kind, **self._exact(fields, name))

    def ewald(
        self, x: Features, sigma: float, spacing: float, factor: float, own_removed: bool, name: str
    ) -> None:
        """Add the energy of Gaussian charges x, a scalar of each node.

        The width and the spacing, the length of the shortest wave, are in Å, and the factor is
        1 / (2 epsilon_0) in eV Å / e^2. `own_removed` removes the interaction of each charge with
        itself.
        """
        numbers = {"sigma": sigma, "spacing": spacing, "factor": factor}
        own = "removed" if own_removed else "kept"
        charges = self._use(self.stored(x, f"{name}_x"))
        self._layer("ewald", name, None, x=charges, **numbers, own_part=own)

    def total_charge(
        self, x: Features, weights: Features, charge: str, spin: str, name: str
    ) -> Features:
        """Shift charges x of two spins to those of the system, in proportion to weights.

        `charge` and `spin` are names of inputs: the charge in e, and the spin multiplicity.
        """
        operands = {"x": x, "weights": weights}
        fields = {key: self._use(self.stored(v, f"{name}_{key}")) for key, v in operands.items()}
        return self._layer("total_charge", name, x.irreps, **fields, charge=charge, spin=spin)

    def reciprocal_field(
        self, x: Features, receivers: Sequence[Mapping[str, Any]], name: str, **sum_fields: Any
    ) -> Features:
        """Compute potentials of charges and dipoles, and slopes where a receiver has a scale.

        Receivers have `sigma` in Å, and `scale` and `own` for each degree. `sum_fields` are the
        other fields of the layer: sigma, spacing, factor, offset, source and own_part.
        """
        count = x.irreps[0].mul * len(receivers)
        vectors = any(receiver["scale"][1] for receiver in receivers)
        irreps = Irreps.from_pairs([(count, 0, 1), (count, 1, -1)][: 1 + vectors])
        used = self._use(self.stored(x, f"{name}_x"))
        rows = [dict(receiver) for receiver in receivers]
        return self._layer("reciprocal_field", name, irreps, x=used, receivers=rows, **sum_fields)

    def reciprocal_energy(
        self, x: Features, own: Sequence[float], name: str, **sum_fields: Any
    ) -> None:
        """Add the energy of charges and dipoles; see :meth:`reciprocal_field`."""
        used = self._use(self.stored(x, f"{name}_x"))
        self._layer("reciprocal_energy", name, None, x=used, own=list(own), **sum_fields)

    def external_potential(self, field: Sequence[str], name: str) -> Features:
        """Compute the potential of a uniform external field at each node.

        `field` are names of three inputs, its slope in eV/Å/e. The scalars are the potential that
        is zero at the mean position of all nodes, and that which is zero at the origin; the vector
        is the field.
        """
        irreps = Irreps.parse("2x0e+1x1o")
        return self._layer("external_potential", name, irreps, field=list(field))

    # ---- result ----

    def finish(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the program's part of the manifest, and all tensors."""
        for layer in self.layers:
            if layer["type"] == "linear" and "paths" not in layer:
                self._write_linear(layer)
        program: dict[str, Any] = {
            "values": dict(self.values),
            "layers": [dict(layer) for layer in self.layers],
            "descriptors": list(self.descriptors),
            **self._named,
        }
        if self.inputs is not None:
            entries, network, tensors = self.inputs.entries()
            program["inputs"] = entries
            if network is not None:
                program["input_network"] = {**network, "factors": dict(self._factors)}
            for name, tensor in tensors.items():
                self._tensor(name, tensor)
        return program, dict(self.tensors)

    def _write_linear(self, layer: dict[str, Any]) -> None:
        linear, name = self._maps.pop(layer["out"]), layer["name"]
        slopes = self._slopes.pop(layer["out"], None) or replace(linear, weights={}, bias={})

        def weights(o: int, i: int, weight: Array) -> str:
            change = slopes.weights.get((i, o))
            if change is not None and weight.ndim == 3:
                change = change[:, None]
            return self._weights(f"{name}.weight_{i}_{o}", weight, change)

        layer["paths"] = [
            {"in": i, "out": o, "weight": weights(o, i, weight)}
            for (i, o), weight in sorted(linear.weights.items())
        ]
        layer["bias"] = [
            {"out": o, "value": self._weights(f"{name}.bias_{o}", value, slopes.bias.get(o))}
            for o, value in sorted(linear.bias.items())
        ]

    # ---- helpers ----

    def _layer(self, type_: str, name: str, irreps: Irreps | None, **fields: Any) -> Features:
        layer = {"type": type_, "name": name, **fields}
        if any(other["name"] == name for other in self.layers) or "." in name:
            raise ValueError(f"layer {name!r}: the name is taken or has a dot")
        self.layers.append(layer)
        if irreps is None:
            return Features(Irreps(()))
        layer["out"] = name
        self.values[name] = str(irreps)
        return Features(irreps, name)

    def _use(self, x: Features) -> str:
        for layer in self.layers:
            if layer.get("out") == x.name and x.name in self._maps:
                self._write_linear(layer)
        return x.name

    def _exchange(self, x: Features) -> str:
        name = self._use(x)
        if name not in self._exchanged:
            self._exchanged.add(name)
            self.layers.append({"type": "exchange", "name": f"{name}_exchange", "x": name})
        return name

    def _radial(self, radial: Radial, name: str) -> dict[str, Any]:
        name = f"{name}.radial"
        r_max = radial.r_max
        found: dict[str, Any] = {
            "r_max": float(r_max)
            if np.ndim(r_max) == 0
            else self._tensor(f"{name}.r_max", np.asarray(r_max)),
            "transform": radial.transform and self._exact(radial.transform, f"{name}.transform"),
            "basis": self._exact(radial.basis, f"{name}.basis"),
            "cutoff": {"kind": "polynomial", "p": radial.p}
            if radial.start is None
            else {"kind": "xplor", "start": radial.start},
            "cutoff_on": radial.cutoff_on,
            "layers": [],
            "table": None,
        }
        for number, layer in enumerate(radial.layers):
            at = f"{name}.{number}"
            entry: dict[str, Any] = {"weight": self._weights(f"{at}.weight", layer.weight)}
            if layer.bias is not None:
                entry["bias"] = self._weights(f"{at}.bias", layer.bias)
            if layer.norm is not None:
                weight, bias, epsilon = layer.norm
                entry["layer_norm"] = {
                    "weight": self._weights(f"{at}.norm_weight", weight),
                    "bias": self._weights(f"{at}.norm_bias", bias),
                    "epsilon": epsilon,
                }
            if layer.activation != "none":
                entry |= {"activation": layer.activation, "factor": layer.factor}
            found["layers"].append(entry)
        for end in ("sender", "receiver"):
            value = getattr(radial, end)
            if isinstance(value, Features) and value.by_inputs is not None:
                value = self.stored(value, f"{name.removesuffix('.radial')}_{end}")
            elif isinstance(value, Features) and value.table is not None:
                value = value.table
            if isinstance(value, Features):
                found[end] = self._exchange(value) if end == "sender" else self._use(value)
            elif value is not None:
                found[end] = self._weights(f"{name}.{end}", value)
        return found

    def _exact(self, fields: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {
            key: self._tensor(f"{name}.{key}", value.astype(np.float64))
            if isinstance(value, np.ndarray)
            else value
            for key, value in fields.items()
        }

    def _weights(self, name: str, array: Array, by_inputs: Array | None = None) -> str:
        return self._tensor(name, np.asarray(array).astype(self.dtype), by_inputs)

    def _tensor(self, name: str, array: NDArray[Any], by_inputs: Array | None = None) -> str:
        """Add a tensor. Its derivatives by hidden units may have an axis of one type."""
        if by_inputs is not None:
            array = np.broadcast_to(array, np.broadcast_shapes(array.shape, by_inputs.shape[1:]))
            if len(by_inputs[0]) == 1 and len(array) == self.n_types:
                by_inputs = by_inputs[:, 0]
            by_inputs = np.asarray(by_inputs, dtype=np.float64)
            self._factors[name] = self._tensor(f"{name}.by_inputs", by_inputs)
        if name in self.tensors:
            raise ValueError(f"tensor {name!r} exists already")
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{name} of the converted model would have NaN or infinity, expected finite "
                f"{array.dtype} numbers: the training has diverged, or the model is damaged"
            )
        self.tensors[name] = np.ascontiguousarray(array)
        return name
