"""Calculators: packages, and patched models, as ASE calculators.

What needs torch is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ase_calculator import MDCGCalculator
from .report import EngineReport

if TYPE_CHECKING:
    from .neighbors import Edges, SkinNeighborList

__all__ = ["Edges", "EngineReport", "MDCGCalculator", "SkinNeighborList"]


def __getattr__(name: str) -> Any:
    if name in ("Edges", "SkinNeighborList"):
        from . import neighbors

        return getattr(neighbors, name)
    raise AttributeError(f"module 'mdcg.calculators' has no attribute {name!r}")
