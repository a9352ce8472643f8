"""The scalar nonlinearities that a package may name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]


#: Activations by name; "ssp" is the shifted softplus, log((1 + e^x) / 2).
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
    "sigmoid": expit,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0.0),
    "ssp": lambda x: np.asarray(np.logaddexp(x, 0.0) - np.log(2.0)),
}

_POINTS = np.linspace(-4.0, 4.0, 33)


def name_of(function: Callable[[Array], Array]) -> str | None:
    """Return the name of the activation that has the values of a function, or None."""
    values = np.asarray(function(_POINTS))
    for name, known in ACTIVATIONS.items():
        if values.shape == _POINTS.shape and np.allclose(values, known(_POINTS), 1e-12, 1e-12):
            return name
    return None
