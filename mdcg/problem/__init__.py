"""What is computed: irreps, Wigner 3j symbols, paths and the problem description."""

from .conv_problem import ConvProblem, Path
from .irreps import Irrep, Irreps, MulIrrep
from .wigner import wigner_3j

__all__ = ["ConvProblem", "Irrep", "Irreps", "MulIrrep", "Path", "wigner_3j"]
