"""Radial functions of a convolution: from the length of an edge to the weights of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
