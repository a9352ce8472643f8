"""Choices of the generator of the engine's CPU convolutions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EnginePlan"]


@dataclass(frozen=True)
class EnginePlan:
    """Choices of the emitter of engine kernels; printable, and can be given by hand.

    Parameters
    ----------
    edges : int
        Edges of a block, a multiple of 48 (whole vectors and whole register tiles).
    panels : int
        Panels of 64 bytes of channels taken at a time where a multiplicity is a multiple of them.
    nonzeros_per_sum : int
        Gradients of nonzeros that are summed in registers at a time.
    """

    edges: int = 96
    panels: int = 2
    nonzeros_per_sum: int = 8

    def __post_init__(self) -> None:
        if self.edges < 48 or self.edges % 48:
            raise ValueError(f"plan has blocks of {self.edges} edges, expected a multiple of 48")
        if self.panels not in (1, 2, 4):
            raise ValueError(f"plan takes {self.panels} panels at a time, expected 1, 2 or 4")
        if self.nonzeros_per_sum < 1:
            raise ValueError(
                f"plan sums {self.nonzeros_per_sum} nonzeros at a time, expected 1 or more"
            )
