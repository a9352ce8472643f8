"""Calculators: packages, and patched models, as ASE calculators."""

from .ase_calculator import MDCGCalculator

__all__ = ["MDCGCalculator"]
