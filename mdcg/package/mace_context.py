"""The context in which the parts of a MACE model are converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .builder import Builder
from .mace_radial import RadialEmbedding


@dataclass(frozen=True)
class MaceContext:
    """The facts that all parts of a model's conversion need.

    Parameters
    ----------
    model : mace.modules.MACE
    builder : Builder
    columns : list of int
        Columns of the model's one-hot vectors that become the types, in their order.
    head : int
        The head that is converted.
    n_heads : int
    radial : RadialEmbedding
    """

    model: Any
    builder: Builder
    columns: list[int]
    head: int
    n_heads: int
    radial: RadialEmbedding

    @property
    def one_hot(self) -> NDArray[np.float64]:
        """The model's one-hot vector of each type, shape (n_types, number of elements)."""
        return np.eye(len(self.model.atomic_numbers))[self.columns]
