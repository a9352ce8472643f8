"""mdcg: fast MACE, NequIP, SevenNet and Nequix potentials on generated Clebsch-Gordan kernels.

Names are resolved when first used, so that ``import mdcg`` loads neither torch nor ase.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    CheckpointError,
    DeviceError,
    KernelCompileError,
    MdcgError,
    MissingDependencyError,
    PackageError,
    UnsupportedProblemError,
    VerificationError,
    installation,
    show_warnings,
)

if TYPE_CHECKING:
    from .calculators import MDCGCalculator
    from .ops import ConvTensorProduct, TensorProduct, conv, symmetric_contraction, tensor_product
    from .package import ConversionOptions, Package, convert_checkpoint
    from .patch import PatchReport, patch_model, unpatch_model
    from .problem import ConvProblem, SymmetricContractionProblem

__all__ = [
    "CheckpointError",
    "ConvProblem",
    "ConvTensorProduct",
    "ConversionOptions",
    "DeviceError",
    "KernelCompileError",
    "MDCGCalculator",
    "MdcgError",
    "MissingDependencyError",
    "Package",
    "PackageError",
    "PatchReport",
    "SymmetricContractionProblem",
    "TensorProduct",
    "UnsupportedProblemError",
    "VerificationError",
    "__version__",
    "conv",
    "convert_checkpoint",
    "patch_model",
    "symmetric_contraction",
    "tensor_product",
    "unpatch_model",
]

_MODULE_OF = {
    "ConvProblem": "problem",
    "SymmetricContractionProblem": "problem",
    "ConvTensorProduct": "ops",
    "TensorProduct": "ops",
    "conv": "ops",
    "symmetric_contraction": "ops",
    "tensor_product": "ops",
    "ConversionOptions": "package",
    "Package": "package",
    "convert_checkpoint": "package",
    "PatchReport": "patch",
    "patch_model": "patch",
    "unpatch_model": "patch",
    "MDCGCalculator": "calculators",
}

show_warnings()


def __getattr__(name: str) -> Any:
    if name == "_core":
        return _import_core()
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'mdcg' has no attribute {name!r}")
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("mdcg"):  # the installation is broken
            raise
        raise MissingDependencyError(
            f"mdcg.{name} needs {error.name!r}, which is not installed: {installation(error.name)}"
        ) from error


def _import_core() -> Any:
    """Import the compiled module, or say what to do in a source tree that has none."""
    try:
        return import_module("._core", __name__)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"mdcg was imported from {__path__[0]}, which has no compiled core: start Python in "
            "another folder than the source tree, or install that tree with 'pip install -e .'"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
