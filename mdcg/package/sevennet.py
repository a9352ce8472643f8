"""Converts SevenNet models to the program of a package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from ..problem.irreps import Irreps
from .builder import Builder, Features, Radial, RadialLayer
from .e3nn_modules import (
    GateBlocks,
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


def build_sevennet(model: Any, builder: Builder, numbers: list[int], modal: int) -> None:
    """Write the layers of a SevenNet model.

    `numbers` are the atomic numbers to convert. `modal` is the number of the fidelity, which only
    models that were trained on several read.
    """
    converter = _Converter(model, builder, numbers, modal)
    for name, module in model.named_children():
        step = getattr(converter, f"on_{type(module).__name__}", None)
        if step is None:
            raise UnsupportedProblemError(f"{name} is {a_type(module)}, which packages do not have")
        step(name, module)


class _Converter:
    """Converts modules in the order in which the model runs them, with a method for each class."""

    def __init__(self, model: Any, builder: Builder, numbers: list[int], modal: int) -> None:
        self.model = model
        self.builder = builder
        self.types = [model.type_map[z] for z in numbers]
        self.modal = modal
        self.one_hot = np.zeros((len(numbers), 0))
        self.features: Features | None = None
        self.skip: Features | None = None
        self.hidden: LinearMap | None = None  # first layer of the readout
        self.edges: Any = None  # the module that embeds edges

    def _x(self) -> Features:
        assert self.features is not None
        return self.features

    # ---- embeddings ----

    def on_EdgeEmbedding(self, name: str, module: Any) -> None:  # noqa: N802
        basis, cutoff = type(module.basis_function).__name__, type(module.cutoff_function).__name__
        if basis != "BesselBasis":
            raise UnsupportedProblemError(f"{name} has the basis {basis}, expected BesselBasis")
        if cutoff not in ("PolynomialCutoff", "XPLORCutoff"):
            raise UnsupportedProblemError(
                f"{name} has the cutoff {cutoff}, expected PolynomialCutoff or XPLORCutoff"
            )
        self.edges = module

    def on_OnehotEmbedding(self, name: str, module: Any) -> None:  # noqa: N802
        if module.key_x != "modal_type":  # the row of the modal is read where layers use it
            self.one_hot = np.eye(module.num_classes)[self.types]
            irreps = Irreps.from_pairs([(module.num_classes, 0, 1)])
            self.features = self.builder.table(irreps, self.one_hot)

    def _linear(self, module: Any, name: str) -> LinearMap:
        """Read an ``IrrepsLinear``; the modal, if it is an input, becomes a bias."""
        found = linear_map(module.linear, f"{name}.linear")
        if module.num_modalities <= 1:
            return found
        last = len(found.irreps_in.blocks) - 1
        bias = dict(found.bias)
        for (i, o), weight in found.weights.items():
            if i == last:
                bias[o] = bias.get(o, 0.0) + weight[self.modal]
        kept = found.irreps_in.blocks[:last]
        irreps = Irreps.from_pairs((block.mul, block.ir.l, block.ir.p) for block in kept)
        weights = {(i, o): weight for (i, o), weight in found.weights.items() if i != last}
        return LinearMap(irreps, found.irreps_out, weights, bias)

    # ---- interactions ----

    def _gate(self, name: str) -> GateBlocks:
        """Return the gate of the interaction that the layer `name` belongs to."""
        gate = f"{name.partition('_')[0]}_equivariant_gate"
        return gate_blocks(self.model.get_submodule(gate).gate, f"{gate}.gate")

    def on_SelfConnectionIntro(self, name: str, module: Any) -> None:  # noqa: N802
        product = module.fc_tensor_product
        own = typed_linear_map(product, self.one_hot, f"{name}.fc_tensor_product")
        self._connect(name, own)

    def on_SelfConnectionLinearIntro(self, name: str, module: Any) -> None:  # noqa: N802
        self._connect(name, linear_map(module.linear, f"{name}.linear"))

    def _connect(self, name: str, own: LinearMap) -> None:
        own = own.to_blocks(self._gate(name).irreps_in)
        self.skip = self.builder.linear(self._x(), own, f"self_{name.partition('_')[0]}")

    def on_IrrepsLinear(self, name: str, module: Any) -> None:  # noqa: N802
        linear, number = self._linear(module, name), name.partition("_")[0]
        if name.endswith("_self_interaction_1"):
            norm = 1.0 / real(self.model.get_submodule(f"{number}_convolution").denominator)
            self.features = self.builder.linear(
                self._x(), linear.scaled(norm), f"linear_up_{number}"
            )
        elif name.endswith("_self_interaction_2"):
            linear = linear.to_blocks(self._gate(name).irreps_in)
            self.features = self.builder.linear(self._x(), linear, f"linear_down_{number}")
        elif name == "reduce_input_to_hidden":
            self.hidden = linear
        elif name == "reduce_hidden_to_energy":
            assert self.hidden is not None
            self.features = self.builder.linear(self._x(), self.hidden.then(linear), "readout")
        else:
            self.features = self.builder.linear(self._x(), linear, name)

    def on_IrrepsConvolution(self, name: str, module: Any) -> None:  # noqa: N802
        harmonics = self.edges.spherical.sph
        solid = not harmonics.normalize
        problem = convolution(module.convolution, harmonics, f"{name}.convolution", solid=solid)
        layers = fully_connected(module.weight_nn, f"{name}.weight_nn")
        self.features = self.builder.conv(
            self._x(), problem, self._radial(layers), f"conv_{name.partition('_')[0]}", solid=solid
        )

    def _radial(self, layers: tuple[RadialLayer, ...]) -> Radial:
        basis, cutoff = self.edges.basis_function, self.edges.cutoff_function
        power, start = 0.0, None
        if type(cutoff).__name__ == "XPLORCutoff":
            start = float(cutoff.r_on)
        else:
            power = int(cutoff.p) if float(cutoff.p).is_integer() else float(cutoff.p)
        return Radial(
            r_max=float(self.model.cutoff),
            basis={
                "kind": "bessel",
                "weights": array(basis.coeffs).reshape(-1),
                "prefactor": float(basis.prefactor),
            },
            p=power,
            start=start,
            layers=layers,
        )

    def on_SelfConnectionOutro(self, name: str, module: Any) -> None:  # noqa: N802
        assert self.skip is not None
        terms = [self._x(), self.skip]
        self.features = self.builder.sum(terms, f"message_{name.partition('_')[0]}")

    def on_EquivariantGate(self, name: str, module: Any) -> None:  # noqa: N802
        gate, number = self._gate(name), name.partition("_")[0]
        x = self.builder.gate(
            self._x(), gate.irreps_out, gate.scalars, gate.gated, f"features_{number}"
        )
        self.builder.describe(x, f"node_feats_{number}")
        self.features = x

    # ---- energies ----

    def on_FCN_e3nn(self, name: str, module: Any) -> None:  # noqa: N802
        for number, layer in enumerate(fully_connected(module.fcn, f"{name}.fcn")):
            into, out = (Irreps.from_pairs([(n, 0, 1)]) for n in layer.weight.shape)
            linear = LinearMap(into, out, {(0, 0): layer.weight})
            x = self.builder.linear(self._x(), linear, f"readout_{number}")
            if layer.activation != "none":
                act = (0, 0, layer.activation, layer.factor)
                x = self.builder.gate(x, out, [act], [], f"readout_act_{number}")
            self.features = x

    def on_Rescale(self, name: str, module: Any) -> None:  # noqa: N802
        self.builder.energy(self._x(), array(module.scale), array(module.shift), "energy")

    def on_SpeciesWiseRescale(self, name: str, module: Any) -> None:  # noqa: N802
        scale, shift = (array(each)[self.types] for each in (module.scale, module.shift))
        self.builder.energy(self._x(), scale, shift, "energy")

    def on_ModalWiseRescale(self, name: str, module: Any) -> None:  # noqa: N802
        def row(table: Any, by_modal: bool) -> Array:
            values = array(table)
            return (values[self.modal] if by_modal else values)[self.types]

        scale = row(module.scale, module.use_modal_wise_scale)
        shift = row(module.shift, module.use_modal_wise_shift)
        self.builder.energy(self._x(), scale, shift, "energy")

    def on_AtomReduce(self, name: str, module: Any) -> None:  # noqa: N802
        if module.constant != 1.0:
            raise UnsupportedProblemError(f"{name} is not a plain sum of the atoms' energies")

    def on_ForceStressOutputFromEdge(self, name: str, module: Any) -> None:  # noqa: N802
        pass  # the engine's own
