"""CUDA C++ source of a symmetric contraction of the engine: a thread per node and channel.

Rows are component-major and padded as on the CPU, coefficients are those of the node's type, so
that every operand of a warp is one run of memory.
"""

from __future__ import annotations

from ..plan.contraction import CudaContractionPlan
from ..plan.host import ITEMSIZE
from ..problem import Irreps, SymmetricContractionProblem
from .contraction import ContractionSpec
from .contraction_cuda import ContractionBody, contraction_kernel
from .cuda import CudaKernel

__all__ = ["emit_engine_contraction_cuda"]


class _Body(ContractionBody):
    """The same with rows of the engine."""

    def __init__(self, problem: SymmetricContractionProblem, spec: ContractionSpec) -> None:
        super().__init__(problem, spec)
        align = 64 // ITEMSIZE[problem.dtype]
        self.stride = -(-problem.channels // align) * align

    def _row(self) -> str:
        return f"n * {self.problem.dim_in * self.stride} + u"

    def _places(self, irreps: Irreps) -> list[int]:
        # every component takes one stride, as all blocks have the same multiplicity
        return [i * self.stride for i in range(sum(block.ir.dim for block in irreps))]

    def _output_places(self) -> list[str]:
        width = self.problem.dim_out * self.stride
        return [f"n * {width} + {at} + u" for at in self._places(self.problem.irreps_out)]

    def _rows(self, letter: str, address: str, used: set[str]) -> list[str]:
        return [f"const T* const row_{letter} = {address};"] + [
            f"const T {letter}{i} = __ldg(row_{letter} + {at});"
            for i, at in enumerate(self._places(self.problem.irreps_in))
            if f"{letter}{i}" in used
        ]

    def _store_rows(self, row: str) -> list[str]:
        places = [f"p.dx[{row} + {at}]" for at in self._places(self.problem.irreps_in)]
        lines = ["if (p.n_adds) {"]
        lines += [f"    dx{i} += {place};" for i, place in enumerate(places)]
        return [*lines, "}", *(f"{place} = dx{i};" for i, place in enumerate(places))]

    def _coefficients(self, operand: str, letter: str) -> list[str]:
        size = self.problem.num_coefficients * self.stride
        return [
            "const Long type = p.n_types > 1 ? p.types[n] : 0;",
            f"const T* const {letter} = p.{operand} + type * {size} + u;",
            f"constexpr int {letter}_stride = {self.stride};",
        ]


def emit_engine_contraction_cuda(
    problem: SymmetricContractionProblem, plan: CudaContractionPlan, kind: str
) -> CudaKernel:
    """Generate the CUDA text of one pass.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    plan : CudaContractionPlan
    kind : {"forward", "backward"}
        Value, or gradient of x, which is added to where ``n_adds`` is not 0.

    Returns
    -------
    CudaKernel
        One entry; ``run`` groups of 32 channels per node, ``rows`` of them per block.
    """
    spec = ContractionSpec(kind, mixed=False, wants=() if kind == "forward" else ("x",))
    results = ("out",) if kind == "forward" else ("g", "dx")
    names = ("n_rows", "n_types", "n_adds", "types", "x", "w", *results)
    body = _Body(problem, spec)
    return contraction_kernel(
        problem,
        plan,
        f"engine contraction, {kind}",
        names,
        ("typedef long long Long;",),
        (f"if (n >= p.n_rows || u >= {body.stride}) return;", *body.write()),
        channels=body.stride,
    )
