"""Calculators: patched models as ASE calculators."""

from __future__ import annotations

from .ase_calculator import MDCGCalculator
from .neighbors import Edges, SkinNeighborList

__all__ = ["Edges", "MDCGCalculator", "SkinNeighborList"]
