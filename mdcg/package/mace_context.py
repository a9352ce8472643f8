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
    """The facts that all parts of a model's conversion need."""

    model: Any
    builder: Builder
    columns: list[int]  # of the model's one-hot vectors, which become the types in this order
    head: int  # the one that is converted
    n_heads: int
    radial: RadialEmbedding

    @property
    def one_hot(self) -> NDArray[np.float64]:
        """The model's one-hot vector of each type, shape (n_types, number of elements)."""
        return np.eye(len(self.model.atomic_numbers))[self.columns]
