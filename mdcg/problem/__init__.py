"""What the kernels compute: irreps, Wigner 3j symbols, paths and the problem descriptions."""

from .contraction_problem import FoldedTensors, Polynomial, SymmetricContractionProblem
from .conv_problem import ConvProblem, Path
from .irreps import Irrep, Irreps, MulIrrep
from .wigner import wigner_3j

__all__ = [
    "ConvProblem",
    "FoldedTensors",
    "Irrep",
    "Irreps",
    "MulIrrep",
    "Path",
    "Polynomial",
    "SymmetricContractionProblem",
    "wigner_3j",
]
