"""Radial functions of a convolution: from the length of an edge to the weights of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import ACTIVATIONS

__all__ = ["Radial", "RadialLayer"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RadialLayer:
    """``factor * activation(layer_norm(x @ weight + bias))``.

    Parameters
    ----------
    weight : array, shape (n_in, n_out)
        All normalisation included.
    bias : array, shape (n_out,), optional
    norm : tuple of array, array, float, optional
        Weight, bias and epsilon of a layer norm.
    activation : str
        Name in :data:`mdcg.package.activations.ACTIVATIONS`.
    factor : float
    """

    weight: Array
    bias: Array | None = None
    norm: tuple[Array, Array, float] | None = None
    activation: str = "none"
    factor: float = 1.0


@dataclass(frozen=True)
class Radial:
    """A radial network.

    Parameters
    ----------
    r_max : float or array, shape (n_types, n_types)
        Cutoff in Å; by type of receiver and sender.
    basis : mapping
        ``kind`` (bessel, gaussian, chebyshev) and its numbers and arrays; ``argument``: "length"
        (or absent), transformed or not, or "normalized", the length over the cutoff.
    p : float
        Exponent of the polynomial cutoff.
    layers : tuple of RadialLayer
    transform : mapping, optional
        ``kind`` (agnesi, soft, or relative: the length over the cutoff of the pair) and its
        numbers and arrays.
    cutoff_on : {"basis", "weights"}
        What is multiplied by the cutoff.
    sender, receiver : optional
        What is added to the input of the first activation: an array of shape (n_types, n_hidden),
        or features with that many scalars.
    """

    r_max: float | Array
    basis: Mapping[str, Any]
    p: float
    layers: tuple[RadialLayer, ...]
    transform: Mapping[str, Any] | None = None
    cutoff_on: str = "basis"
    sender: Any = None
    receiver: Any = None

    @property
    def weight_numel(self) -> int:
        """Number of outputs."""
        return int(self.layers[-1].weight.shape[1])

    @property
    def by_type(self) -> bool:
        """Whether the outputs are functions of the length and of the two types alone."""
        ends = (self.sender, self.receiver)
        return all(end is None or isinstance(end, np.ndarray) for end in ends)

    def evaluate(self, r: Array, receiver: int, sender: int) -> Array:
        """Return the outputs at lengths `r` for a pair of types, shape (len(r), weight_numel).

        For networks that are functions of the length and the types alone.
        """
        r_max = float(self.r_max if np.ndim(self.r_max) == 0 else self.r_max[receiver, sender])  # type: ignore[index]
        cutoff = _polynomial_cutoff(r / r_max, self.p)[:, None]
        t = _transformed(self.transform, r, r_max, receiver, sender)
        if self.basis.get("argument") == "normalized":
            t = r / r_max
        x = _basis(self.basis, t[:, None])
        if self.cutoff_on == "basis":
            x = x * cutoff
        for number, layer in enumerate(self.layers):
            x = x @ layer.weight
            if layer.bias is not None:
                x = x + layer.bias
            if not number:
                for table, kind in ((self.sender, sender), (self.receiver, receiver)):
                    if table is not None:
                        x = x + table[kind]
            if layer.norm is not None:
                weight, bias, epsilon = layer.norm
                x = x - x.mean(axis=1, keepdims=True)
                x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias
            x = layer.factor * ACTIVATIONS[layer.activation](x)
        return x * cutoff if self.cutoff_on == "weights" else x


def _polynomial_cutoff(x: Array, p: float) -> Array:
    value = (
        1.0
        - (p + 1.0) * (p + 2.0) / 2.0 * x**p
        + p * (p + 2.0) * x ** (p + 1)
        - p * (p + 1.0) / 2.0 * x ** (p + 2)
    )
    return np.where(x < 1.0, value, 0.0)


def _transformed(
    of: Mapping[str, Any] | None, r: Array, r_max: float, receiver: int, sender: int
) -> Array:
    if of is None:
        return r
    if of["kind"] == "relative":
        return r / r_max
    r_0 = of["r_0"][receiver, sender]
    if of["kind"] == "agnesi":
        a, q, p = of["a"], of["q"], of["p"]
        return np.asarray(1.0 / (1.0 + a * (r / r_0) ** q / (1.0 + (r / r_0) ** (q - p))))
    p_0, p_1 = 0.75 * r_0, 4.0 / 3.0 * r_0
    steps = 0.5 * (1.0 + np.tanh(of["alpha"] / (p_1 - p_0) * (r - 0.5 * (p_0 + p_1))))
    return np.asarray(p_0 + (r - p_0) * steps)


def _basis(of: Mapping[str, Any], t: Array) -> Array:
    if of["kind"] == "bessel":
        return np.asarray(of["prefactor"] * np.sin(of["weights"] * t) / t)
    if of["kind"] == "gaussian":
        return np.asarray(np.exp(of["coefficient"] * (t - of["centers"]) ** 2))
    found = [np.ones_like(t), t]
    while len(found) <= of["order"]:
        found.append(2.0 * t * found[-1] - found[-2])
    return np.concatenate(found[1 : of["order"] + 1], axis=1)
