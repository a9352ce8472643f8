"""Runs the generated CPU kernels of one symmetric contraction on torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .. import _core
from ..codegen import HostKernel
from ..codegen.contraction import ContractionSpec
from ..codegen.contraction_host import COLUMNS, emit_contraction_host
from ..plan import LEVELS
from ..plan.contraction import HostContractionPlan, plan_contraction_host
from ..problem import SymmetricContractionProblem
from ..runtime import load_host_kernel
from .contraction_kernels import ContractionKernels
from .host import host_device

__all__ = ["HostContraction", "host_contraction"]


@dataclass(frozen=True)
class _Loaded:
    """A kernel ready to launch; ``library`` keeps the addresses valid."""

    kernel: HostKernel
    library: _core.SharedLibrary
    run: int
    sum: int


class HostContraction(ContractionKernels[_Loaded]):
    """All kernels of one problem under one plan, loaded when first used.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    plan : HostContractionPlan, optional
        Default: :func:`mdcg.plan.contraction.plan_contraction_host` for this machine.
    """

    def __init__(
        self, problem: SymmetricContractionProblem, plan: HostContractionPlan | None = None
    ) -> None:
        super().__init__(problem)
        self.plan = plan if plan is not None else plan_contraction_host(problem, host_device())

    def _make(self, spec: ContractionSpec) -> _Loaded:
        kernel = emit_contraction_host(self.problem, self.plan, spec)
        march = LEVELS[self.plan.level][0]
        library = load_host_kernel(
            kernel.source, target=self.plan.level, flags=(march,) if march else ()
        )
        sums = spec.mixed and "w" in spec.wants
        return _Loaded(
            kernel, library, library.symbol("mdcg_run"), library.symbol("mdcg_sum") if sums else 0
        )

    def _launch(self, loaded: _Loaded, values: dict[str, int], nodes: int) -> None:
        _core.launch(
            loaded.run,
            [values[name] for name in loaded.kernel.arguments],
            -(-nodes // self.plan.nodes_per_task),
            torch.get_num_threads(),
            loaded.kernel.scratch_bytes,
        )

    def _sum(
        self, loaded: _Loaded, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        """Add up the nodes of every species, in their order."""
        present = attributes != 0
        nodes = present.t().nonzero()[:, 1].contiguous()
        ptr = torch.zeros(shape[0] + 1, dtype=torch.int64)
        torch.cumsum(present.sum(0), 0, out=ptr[1:])
        total = rows.new_empty(shape)
        columns = self.problem.num_coefficients * self.problem.channels
        arguments = [shape[0], *(t.data_ptr() for t in (attributes, rows, nodes, ptr, total))]
        tasks = shape[0] * -(-columns // COLUMNS)
        _core.launch(loaded.sum, arguments, tasks, torch.get_num_threads(), 0)
        return total


@lru_cache(maxsize=512)
def host_contraction(problem_json: str, plan_json: str) -> HostContraction:
    """Return the kernels of a problem; ``plan_json`` may be empty for the automatic plan."""
    plan = HostContractionPlan.from_json(plan_json) if plan_json else None
    return HostContraction(SymmetricContractionProblem.from_json(problem_json), plan)
