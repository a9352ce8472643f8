"""A layer that can be patched: the interface between adapters and :mod:`mdcg.patch.patching`."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np
import torch

from ..problem import ConvProblem, wigner_3j
from .report import LEFT, REFUSED, LayerReport

#: Packages whose layers are recognised, by the top-level module of their classes.
ACCELERATED = {"cuequivariance_torch": "cuEquivariance", "openequivariance": "OpenEquivariance"}
#: The attribute of a patched layer that holds the JSON text of its problem.
PROBLEM = "_mdcg_problem"

# a plain dict, because torch.compile cannot trace functions behind lru_cache
_problems: dict[tuple[str, str], ConvProblem] = {}


def parsed_problem(text: str, dtype: str) -> ConvProblem:
    """Return the problem of a JSON text in a dtype, parsed once per process."""
    found = _problems.get((text, dtype))
    if found is None:
        found = ConvProblem.from_json(text).with_dtype(dtype)
        _problems[text, dtype] = found
    return found


class Layer:
    """A layer that was found, unpatched or patched; adapters subclass it per kind.

    Parameters
    ----------
    name : str
        Path of the module in the model.
    module : torch.nn.Module
        The module whose class changes when it is patched.
    """

    #: Whether :func:`mdcg.patch_model` raises if a layer of this kind cannot be patched.
    required: ClassVar[bool] = True

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module

    @property
    def tensor_product(self) -> Any:
        """The tensor product whose irreps and instructions describe the layer."""
        return self.module

    @property
    def is_patched(self) -> bool:
        """Whether the module has the class that patching gives it."""
        return hasattr(type(self.module), PROBLEM)

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        return ""

    def describe(self, status: str, reason: str = "", problem: Any = None) -> LayerReport:
        """Return the row of a report.

        Parameters
        ----------
        status, reason : str
        problem : object, optional
            What :meth:`make_problem` returned.
        """
        return describe(self.name, self.tensor_product, status, reason)

    def make_problem(self) -> Any:
        """Describe the computation from the module's buffers; the methods below take the result.

        Raises
        ------
        UnsupportedProblemError
            No generated kernel can compute it.
        """
        return ConvProblem.from_e3nn(self.tensor_product)

    def probe(self, problem: Any) -> float:
        """Return the largest relative difference between kernels and the stock layer.

        Raises
        ------
        VerificationError
            The difference is larger than rounding explains.
        """
        raise NotImplementedError

    def patch(self, problem: Any) -> None:
        """Change the class of the module, in place."""
        raise NotImplementedError

    def restore(self) -> None:
        """Undo :meth:`patch`; does nothing on a module that is not patched."""
        raise NotImplementedError


def is_stock(module: Any, name: str, where: str) -> bool:
    """Whether a module is of a class of e3nn or NequIP, or of a copy of such a class.

    NequIP's packages contain copies of the classes of both. The copies are not identical to the
    installed classes, and their modules have a prefix: ``<torch_package_0>.e3nn.o3...``.

    Parameters
    ----------
    module : torch.nn.Module
    name : str
        Class name.
    where : str
        Beginning of the name of the module of the class.
    """
    cls = type(module)
    home = cls.__module__
    if home.startswith("<torch_package_"):
        home = home.partition(".")[2]
    return cls.__qualname__ == name and home.startswith(where)


def describe(name: str, tensor_product: Any, status: str, reason: str = "") -> LayerReport:
    """Return the row of a report for a tensor product."""
    in1, in2, out = (
        _text(getattr(tensor_product, f"irreps_{end}", "")) for end in ("in1", "in2", "out")
    )
    try:
        unknown = status in (LEFT, REFUSED)
        key = "" if unknown else ConvProblem.from_e3nn(tensor_product).key()
        degrees = [
            (
                tensor_product.irreps_in1[p.i_in1].ir.l,
                tensor_product.irreps_in2[p.i_in2].ir.l,
                tensor_product.irreps_out[p.i_out].ir.l,
            )
            for p in tensor_product.instructions
        ]
        nnz = sum(int(np.count_nonzero(wigner_3j(*triple))) for triple in degrees)
    except AttributeError:  # not an e3nn tensor product
        degrees, nnz, key = [], 0, ""
    weights = int(getattr(tensor_product, "weight_numel", 0))
    return LayerReport(name, in1, in2, out, len(degrees), nnz, weights, status, reason, key)


def stock_e3nn(name: str) -> Any:
    """Return a class of ``e3nn.o3``, or None; a model with e3nn layers has imported it."""
    return getattr(sys.modules.get("e3nn.o3"), name, None)


def frozen_dtype(module: torch.nn.Module) -> torch.dtype:
    """Return the dtype of an e3nn tensor product: that of its constants."""
    dtype: torch.dtype = module.output_mask.dtype  # type: ignore[assignment]
    return dtype


def forward_refusal(module: Any) -> str:
    """Return why a module whose forward is not its class's cannot be patched, or nothing."""
    if "forward" in module.__dict__:
        return "its forward has been replaced by another package: undo that first"
    return ""


def _text(irreps: Any) -> str:
    simplify = getattr(irreps, "simplify", None)
    return str(simplify() if callable(simplify) else irreps)
