"""Runs the generated CPU kernels of one symmetric contraction on torch tensors."""

from __future__ import annotations

import threading
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
from .host import host_device

__all__ = ["HostContraction", "host_contraction"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Loaded:
    """A kernel ready to launch; ``library`` keeps the addresses valid."""

    kernel: HostKernel
    library: _core.SharedLibrary
    run: int
    sum: int


class HostContraction:
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
        self.problem = problem
        self.plan = plan if plan is not None else plan_contraction_host(problem, host_device())
        self._loaded: dict[ContractionSpec, _Loaded] = {}
        self._lock = threading.Lock()

    def load(self, spec: ContractionSpec) -> _Loaded:
        """Return a kernel, compiling it if no cache holds it."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        kernel = emit_contraction_host(self.problem, self.plan, spec)
        march = LEVELS[self.plan.level][0]
        library = load_host_kernel(
            kernel.source, target=self.plan.level, flags=(march,) if march else ()
        )
        sums = spec.mixed and "w" in spec.wants
        loaded = _Loaded(
            kernel, library, library.symbol("mdcg_run"), library.symbol("mdcg_sum") if sums else 0
        )
        with self._lock:
            return self._loaded.setdefault(spec, loaded)

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
        given = tuple(name for name in ("x", "w") if name in cotangents)
        spec = ContractionSpec(kind, attributes is not None, wants, given)
        loaded = self.load(spec)
        x, w = operands["x"], operands["w"]
        nodes = x.shape[0]
        width = self.problem.num_coefficients, self.problem.channels
        results: Tensors = {}
        if kind == "forward":
            results["out"] = x.new_empty(nodes, self.problem.channels * self.problem.dim_out)
        for name in wants:
            like = (nodes, *width) if name == "w" else operands[name].shape
            results[f"d{name}"] = x.new_empty(like)
        values = {name: t.data_ptr() for name, t in (operands | results).items()}
        values |= {{"x": "a", "w": "b"}[name]: t.data_ptr() for name, t in cotangents.items()}
        values["n_rows"] = nodes
        if attributes is not None:
            values |= {"y": attributes.data_ptr(), "n_species": attributes.shape[1]}
        self._launch(loaded, values, -(-nodes // self.plan.nodes_per_task))
        if "dw" in results and attributes is not None:
            results["dw"] = self._sum(loaded, attributes, results["dw"], w.shape)
        return {name.removeprefix("d"): tensor for name, tensor in results.items()}

    def _launch(self, loaded: _Loaded, values: dict[str, int], tasks: int) -> None:
        _core.launch(
            loaded.run,
            [values[name] for name in loaded.kernel.arguments],
            tasks,
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
