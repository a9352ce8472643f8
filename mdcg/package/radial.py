"""Radial functions of a convolution: from the length of an edge to the weights of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import ACTIVATIONS, SLOPES

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
        ``kind`` (agnesi, soft) and its
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

    def evaluate(
        self, r: Array, receiver: int, sender: int, *, dtype: str = "float64"
    ) -> tuple[Array, Array]:
        """Return the outputs at lengths `r` for a pair of types, and their derivatives.

        For networks that are functions of the length and the types alone.

        Parameters
        ----------
        r : array, shape (n,)
            Å.
        receiver, sender : int
            Types.
        dtype : {"float32", "float64"}
            Of all arithmetic, as a model of that type does it.

        Returns
        -------
        outputs : array, shape (n, weight_numel)
        slopes : array, shape (n, weight_numel)
        """
        r_max = np.asarray(self.r_max)
        reach = float(r_max if r_max.ndim == 0 else r_max[receiver, sender])
        rows = r[:, None].astype(dtype)
        length = _Dual(rows, np.ones_like(rows))
        cutoff = _polynomial_cutoff(length / reach, self.p)
        t = _transformed(self.transform, length, receiver, sender)
        if self.basis.get("argument") == "normalized":
            t = length / reach
        x = _basis(self.basis, t)
        if self.cutoff_on == "basis":
            x = x * cutoff
        for number, layer in enumerate(self.layers):
            x = x @ layer.weight.astype(dtype)
            if layer.bias is not None:
                x = x + layer.bias.astype(dtype)
            if not number:
                for table, kind in ((self.sender, sender), (self.receiver, receiver)):
                    if table is not None:
                        x = x + table[kind].astype(dtype)
            if layer.norm is not None:
                weight, bias, epsilon = layer.norm
                x = x - x.mean()
                x = x * ((x * x).mean() + np.asarray(epsilon, dtype)).power(-0.5)
                x = x * weight.astype(dtype) + bias.astype(dtype)
            function, slope = ACTIVATIONS[layer.activation], SLOPES[layer.activation]
            factor = np.asarray(layer.factor, dtype)
            x = _Dual(factor * function(x.value), factor * slope(x.value) * x.slope)
        if self.cutoff_on == "weights":
            x = x * cutoff
        return x.value, x.slope


@dataclass(frozen=True)
class _Dual:
    """Numbers and their derivatives with respect to the length."""

    value: Array
    slope: Array

    def __add__(self, other: _Dual | Array | float) -> _Dual:
        if isinstance(other, _Dual):
            return _Dual(self.value + other.value, self.slope + other.slope)
        return _Dual(self.value + other, self.slope)

    def __sub__(self, other: _Dual | Array | float) -> _Dual:
        return self + (other * -1.0)

    def __mul__(self, other: _Dual | Array | float) -> _Dual:
        if isinstance(other, _Dual):
            slope = self.value * other.slope + self.slope * other.value
            return _Dual(self.value * other.value, slope)
        return _Dual(self.value * other, self.slope * other)

    def __truediv__(self, other: float) -> _Dual:
        return self * (1.0 / other)

    def __matmul__(self, matrix: Array) -> _Dual:
        return _Dual(self.value @ matrix, self.slope @ matrix)

    def mean(self) -> _Dual:
        return _Dual(self.value.mean(1, keepdims=True), self.slope.mean(1, keepdims=True))

    def power(self, exponent: float) -> _Dual:
        lower = self.value ** (exponent - 1.0)
        return _Dual(lower * self.value, exponent * lower * self.slope)

    def through(self, value: Array, slope: Array) -> _Dual:
        """Return a function of the numbers from its value and its derivative."""
        return _Dual(value, slope * self.slope)


def _polynomial_cutoff(x: _Dual, p: float) -> _Dual:
    one = _Dual(np.ones_like(x.value), np.zeros_like(x.value))
    found = one - x.power(p) * ((p + 1.0) * (p + 2.0) / 2.0)
    found = found + x.power(p + 1.0) * (p * (p + 2.0)) - x.power(p + 2.0) * (p * (p + 1.0) / 2.0)
    inside = x.value < 1.0
    return _Dual(np.where(inside, found.value, 0.0), np.where(inside, found.slope, 0.0))


def _transformed(of: Mapping[str, Any] | None, r: _Dual, receiver: int, sender: int) -> _Dual:
    if of is None:
        return r
    r_0 = float(of["r_0"][receiver, sender])
    if of["kind"] == "agnesi":
        a, q, p = (float(of[name]) for name in "aqp")
        x = r / r_0
        return (x.power(q) * a * (x.power(q - p) + 1.0).power(-1.0) + 1.0).power(-1.0)
    p_0, p_1 = 0.75 * r_0, 4.0 / 3.0 * r_0
    steep = of["alpha"] / (p_1 - p_0)
    step = np.tanh(steep * (r.value - 0.5 * (p_0 + p_1)))
    smooth: _Dual = r.through(0.5 * (1.0 + step), 0.5 * steep * (1.0 - step**2))
    shifted: _Dual = r - p_0
    return shifted * smooth + p_0


def _basis(of: Mapping[str, Any], t: _Dual) -> _Dual:
    if of["kind"] == "bessel":
        weights = of["weights"].astype(t.value.dtype)
        phase = weights * t.value
        waves: _Dual = t.through(np.sin(phase), weights * np.cos(phase))
        return waves * t.power(-1.0) * float(of["prefactor"])
    if of["kind"] == "gaussian":
        away = t.value - of["centers"].astype(t.value.dtype)
        value = np.exp(of["coefficient"] * away**2)
        return t.through(value, 2.0 * of["coefficient"] * away * value)
    found = [_Dual(np.ones_like(t.value), np.zeros_like(t.value)), t]
    while len(found) <= of["order"]:
        found.append(t * found[-1] * 2.0 - found[-2])
    kept = found[1 : of["order"] + 1]
    return _Dual(
        np.concatenate([each.value for each in kept], axis=1),
        np.concatenate([each.slope for each in kept], axis=1),
    )
