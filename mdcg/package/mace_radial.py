"""Radial parts of MACE models: embedding of lengths, distance transforms, pair repulsion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedProblemError, a_type
from .e3nn_modules import activation, array, fully_connected, real
from .radial import Radial, RadialLayer

Array = NDArray[np.float64]

# Constants of mace's ZBLBasis.forward: Å per Bohr radius, e²/(4 pi eps0) in eV Å, exponents.
_BOHR, _COULOMB = 0.529, 14.3996
_EXPONENTS = (3.2, 0.9423, 0.4028, 0.2016)


@dataclass(frozen=True)
class RadialEmbedding:
    """What all radial networks of a model have in common."""

    r_max: float
    basis: Mapping[str, Any]
    size: int
    p: int
    transform: Mapping[str, Any] | None
    cutoff_on: str

    def network(
        self, layers: tuple[RadialLayer, ...], *, sender: Any = None, receiver: Any = None
    ) -> Radial:
        """Return the embedding with layers after it."""
        return Radial(
            self.r_max, self.basis, self.p, layers, self.transform, self.cutoff_on, sender, receiver
        )


def radial_embedding(block: Any, numbers: NDArray[np.int_], r_max: float) -> RadialEmbedding:
    """Read a ``RadialEmbeddingBlock``.

    Parameters
    ----------
    block : mace.modules.RadialEmbeddingBlock
    numbers : array of int, shape (n_types,)
        Atomic numbers.
    r_max : float
        Of the model, Å.
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
    return RadialEmbedding(
        own, basis, size, int(cutoff.p), transform and _transform(transform, numbers), on
    )


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
    """Read a ``ZBLBasis``: fields of a ``pair_energy`` layer, every matrix by pairs of types."""
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
