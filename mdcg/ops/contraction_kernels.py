"""Runs the generated kernels of one symmetric contraction on torch tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import torch

from ..codegen.contraction.cuda import emit_contraction_cuda
from ..codegen.contraction.host import COLUMNS, emit_contraction_host
from ..codegen.contraction.program import COTANGENTS, ContractionSpec
from ..errors import UnsupportedProblemError
from ..plan.contraction import (
    CudaContractionPlan,
    HostContractionPlan,
    plan_contraction_cuda,
    plan_contraction_host,
)
from ..problem import SymmetricContractionProblem
from .cuda import aligned
from .kernels import CudaPass, HostProgram, Kernels, Names, Tensors, cuda_device, host_device

Loaded = TypeVar("Loaded")

_MAX_BLOCKS = 2**31 - 1


class _Contraction(Kernels[ContractionSpec, Loaded]):
    """All kernels of one problem under one plan, loaded when first used."""

    def __init__(self, problem: SymmetricContractionProblem) -> None:
        super().__init__()
        self.problem = problem

    def _ready(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an operand in the memory layout that kernels need."""
        return tensor

    def _launch(self, loaded: Loaded, values: dict[str, int], nodes: int) -> None:
        raise NotImplementedError

    def _sum(
        self, loaded: Loaded, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        """Sum the nodes' gradients of the coefficients, per species."""
        raise NotImplementedError

    def run(
        self,
        kind: str,
        operands: Tensors,
        attributes: torch.Tensor | None,
        cotangents: Tensors,
        wants: Names,
    ) -> Tensors:
        """Run one pass, see :class:`Kernels`; all tensors are contiguous.

        The `attributes` have the shape (n_nodes, n_species).
        """
        given = tuple(name for name in COTANGENTS if name in cotangents)
        spec = ContractionSpec(kind, attributes is not None, wants, given)
        loaded = self.load(spec)
        # kept alive until the launch, because kernels get their addresses
        tensors = {name: self._ready(t) for name, t in operands.items()}
        tensors |= {COTANGENTS[name]: self._ready(t) for name, t in cotangents.items()}
        x = tensors["x"]
        nodes = x.shape[0]
        width = self.problem.num_coefficients, self.problem.channels
        shapes: dict[str, Any] = {
            "out": (nodes, self.problem.channels * self.problem.dim_out),
            "dx": x.shape,
            "dw": (nodes, *width),
        }
        results = {name: x.new_empty(shapes[name]) for name in spec.results}
        values = {name: tensor.data_ptr() for name, tensor in (tensors | results).items()}
        values["n_rows"] = nodes
        if attributes is not None:
            values |= {"y": attributes.data_ptr(), "n_types": attributes.shape[1]}
        self._launch(loaded, values, nodes)
        if "dw" in results and attributes is not None:
            shape = operands["w"].shape
            results["dw"] = self._sum(loaded, attributes, results["dw"], shape)
        if kind == "forward":
            return results
        return {name: results["out" if name == "g" else f"d{name}"] for name in wants}


class HostContraction(_Contraction[HostProgram]):
    """The kernels of one problem for CPUs. Default plan: chosen for this machine."""

    def __init__(
        self, problem: SymmetricContractionProblem, plan: HostContractionPlan | None = None
    ) -> None:
        super().__init__(problem)
        self.plan = plan if plan is not None else plan_contraction_host(problem, host_device())

    def _make(self, spec: ContractionSpec) -> HostProgram:
        kernel = emit_contraction_host(self.problem, self.plan, spec)
        names = ("mdcg_run", "mdcg_sum") if spec.mixed and "w" in spec.wants else ("mdcg_run",)
        return HostProgram(kernel, self.plan.level, names)

    def _launch(self, loaded: HostProgram, values: dict[str, int], nodes: int) -> None:
        loaded.run(values, -(-nodes // self.plan.nodes_per_task))

    def _sum(
        self, loaded: HostProgram, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        # the nodes of each species, in ascending order
        present = attributes != 0
        nodes = present.t().nonzero()[:, 1].contiguous()
        ptr = torch.zeros(shape[0] + 1, dtype=torch.int64)
        torch.cumsum(present.sum(0), 0, out=ptr[1:])
        total = rows.new_empty(shape)
        columns = self.problem.num_coefficients * self.problem.channels
        arguments = [shape[0], *(t.data_ptr() for t in (attributes, rows, nodes, ptr, total))]
        loaded.call("mdcg_sum", arguments, shape[0] * -(-columns // COLUMNS))
        return total


class CudaContraction(_Contraction[CudaPass]):
    """The kernels of one problem on CUDA device `index`. Default plan: chosen for the device."""

    def __init__(
        self,
        problem: SymmetricContractionProblem,
        index: int,
        plan: CudaContractionPlan | None = None,
    ) -> None:
        super().__init__(problem)
        self.index = index
        self.plan = plan if plan is not None else plan_contraction_cuda(problem, cuda_device(index))

    def _make(self, spec: ContractionSpec) -> CudaPass:
        kernel = emit_contraction_cuda(self.problem, self.plan, spec)
        return CudaPass(self.index, self.plan.target, kernel)

    def _ready(self, tensor: torch.Tensor) -> torch.Tensor:
        return aligned(tensor)

    def _sum(
        self, loaded: CudaPass, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        # nothing here makes the host wait for the device
        return (attributes.t() @ rows.reshape(len(rows), -1)).reshape(shape)

    def _launch(self, loaded: CudaPass, values: dict[str, int], nodes: int) -> None:
        jobs = nodes * loaded.kernel.run
        if -(-jobs // loaded.kernel.entries[0].rows) > _MAX_BLOCKS:
            raise UnsupportedProblemError(
                f"{nodes} nodes of {self.problem.channels} channels are more than one launch can "
                "take: split them"
            )
        if jobs:
            loaded.launch(jobs, values)


@lru_cache(maxsize=512)
def host_contraction(problem_json: str, plan_json: str) -> HostContraction:
    """Return the CPU kernels of a problem; ``plan_json`` empty: the automatic plan."""
    plan = HostContractionPlan.from_json(plan_json) if plan_json else None
    return HostContraction(SymmetricContractionProblem.from_json(problem_json), plan)


@lru_cache(maxsize=512)
def cuda_contraction(problem_json: str, plan_json: str, index: int) -> CudaContraction:
    """Return the kernels of a problem on a device; ``plan_json`` empty: the automatic plan."""
    plan = CudaContractionPlan.from_json(plan_json) if plan_json else None
    return CudaContraction(SymmetricContractionProblem.from_json(problem_json), index, plan)
