"""Features of atoms, layer by layer, and those of them that MACE's calculator returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerFeatures:
    """Features of atoms, and for each layer the blocks (width, whether it is invariant)."""

    rows: FloatArray  # [n_nodes, widths of all blocks of all layers]
    layers: tuple[tuple[tuple[int, bool], ...], ...]

    @classmethod
    def of(cls, rows: npt.ArrayLike, irreps: Sequence[str]) -> LayerFeatures:
        """Return the features of layers with such irreps, and leave out what follows them."""
        layers = tuple(
            tuple(
                (int(mul or 1) * (2 * int(l) + 1), l + parity == "0e")
                for mul, l, parity in re.findall(r"(?:(\d+)x)?(\d+)([eo])", text)
            )
            for text in irreps
        )
        width = sum(width for layer in layers for width, _ in layer)
        return cls(np.asarray(rows)[:, :width], layers)

    def select(self, invariants_only: bool, num_layers: int) -> FloatArray:
        """Return the features of the first layers; -1 stands for all.

        Like in MACE's calculator, the last of all layers has only its invariants. Raises
        ``ValueError`` if there are fewer layers.
        """
        count = len(self.layers)
        if not (num_layers == -1 or 1 <= num_layers <= count):
            raise ValueError(
                f"num_layers is {num_layers}, expected 1 to {count}, or -1 for all layers"
            )
        kept = [
            (number < num_layers or num_layers == -1)
            and (invariant or not (invariants_only or number == count - 1))
            for number, layer in enumerate(self.layers)
            for width, invariant in layer
            for _ in range(width)
        ]
        return np.asarray(self.rows[:, np.array(kept, dtype=bool)])
