"""What running a symmetric contraction has in common on CPUs and on CUDA devices."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import torch

from ..codegen.contraction import ContractionSpec
from ..problem import SymmetricContractionProblem

__all__ = ["ContractionKernels", "Tensors"]

Tensors = dict[str, torch.Tensor]
Loaded = TypeVar("Loaded")

#: Names of cotangents in kernels.
_COTANGENTS = {"x": "a", "w": "b"}


class ContractionKernels(Generic[Loaded]):
    """All kernels of one problem under one plan, loaded when first used.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    """

    def __init__(self, problem: SymmetricContractionProblem) -> None:
        self.problem = problem
        self._loaded: dict[ContractionSpec, Loaded] = {}
        self._lock = threading.Lock()

    def _make(self, spec: ContractionSpec) -> Loaded:
        """Compile a kernel, or take it from the cache."""
        raise NotImplementedError

    def _ready(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an operand as kernels want it in memory."""
        return tensor

    def _launch(self, loaded: Loaded, values: dict[str, int], nodes: int) -> None:
        raise NotImplementedError

    def _sum(
        self, loaded: Loaded, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        """Add up the coefficients' gradients of nodes, per species."""
        raise NotImplementedError

    def load(self, spec: ContractionSpec) -> Loaded:
        """Return a kernel, compiling it if no cache holds it."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        made = self._make(spec)
        with self._lock:
            return self._loaded.setdefault(spec, made)

    def run(
        self,
        kind: str,
        operands: Tensors,
        attributes: torch.Tensor | None,
        cotangents: Tensors,
        wants: tuple[str, ...],
    ) -> Tensors:
        """Return the results of one pass: "out", or the gradients named in `wants`.

        Parameters
        ----------
        kind : str
            Of :class:`~mdcg.codegen.contraction.ContractionSpec`.
        operands : dict
            "x", "w", and "g" except for the value; contiguous.
        attributes : torch.Tensor or None
            Shape (n_nodes, n_species), contiguous.
        cotangents : dict
            Those present of "x" and "w", for a double backward.
        wants : tuple of str
        """
        given = tuple(name for name in _COTANGENTS if name in cotangents)
        spec = ContractionSpec(kind, attributes is not None, wants, given)
        loaded = self.load(spec)
        # kept until the launch: their addresses are what kernels get
        tensors = {name: self._ready(t) for name, t in operands.items()}
        tensors |= {_COTANGENTS[name]: self._ready(t) for name, t in cotangents.items()}
        x = tensors["x"]
        nodes = x.shape[0]
        width = self.problem.num_coefficients, self.problem.channels
        results: Tensors = {}
        if kind == "forward":
            results["out"] = x.new_empty(nodes, self.problem.channels * self.problem.dim_out)
        for name in wants:
            like: Any = (nodes, *width) if name == "w" else tensors[name].shape
            results[f"d{name}"] = x.new_empty(like)
        values = {name: tensor.data_ptr() for name, tensor in (tensors | results).items()}
        values["n_rows"] = nodes
        if attributes is not None:
            values |= {"y": attributes.data_ptr(), "n_species": attributes.shape[1]}
        self._launch(loaded, values, nodes)
        if "dw" in results and attributes is not None:
            shape = operands["w"].shape
            results["dw"] = self._sum(loaded, attributes, results["dw"], shape)
        return {name.removeprefix("d"): tensor for name, tensor in results.items()}
