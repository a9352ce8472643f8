"""CUDA C++ source of a symmetric contraction of the engine: a thread per node and channel.

Rows are component-major and padded as on the CPU, coefficients are those of the node's type, so
that every operand of a warp is one run of memory.
"""

from __future__ import annotations

from .._version import __version__
from ..plan.contraction import CudaContractionPlan
from ..plan.device import WARP
from ..plan.host import ITEMSIZE
from ..problem import Irreps, SymmetricContractionProblem
from .contraction import ContractionSpec
from .contraction_cuda import ContractionBody
from .cuda import CudaEntry, CudaKernel

__all__ = ["emit_engine_contraction_cuda"]

_POINTERS = {"types": "const int*", "out": "T*", "dx": "T*"}


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
    chunks = -(-body.stride // WARP)
    warps = plan.threads // WARP
    bounds = f"{plan.threads}, {plan.blocks}" if plan.blocks else str(plan.threads)
    fields = [
        f"    Long {name};"
        if name.startswith("n_")
        else f"    {_POINTERS.get(name, 'const T*')} __restrict__ {name};"
        for name in names
    ]
    lines = [
        f"const Long job = Long(blockIdx.x) * {warps} + threadIdx.x / {WARP};",
        f"const Long n = job / {chunks};",
        f"const int u = int(job % {chunks}) * {WARP} + threadIdx.x % {WARP};",
        f"if (n >= p.n_rows || u >= {body.stride}) return;",
        *body.write(),
    ]
    parts = [
        f"// mdcg {__version__}, problem {problem.key()}, engine contraction, {kind}",
        f"// {plan}",
        f"// arg: {', '.join(names)}",
        f"typedef {'float' if problem.dtype == 'float32' else 'double'} T;",
        "typedef long long Long;",
        "\n".join(["struct Arguments {", *fields, "};"]),
        f'extern "C" __global__ void __launch_bounds__({bounds}) mdcg_run(const Arguments p) {{',
        *(f"    {line}" for line in lines),
        "}",
        "",
    ]
    return CudaKernel(
        source="\n".join(parts),
        entries=(CudaEntry("mdcg_run", plan.threads, 0, warps),),
        arguments=names,
        packed_in1=problem.dim_in * body.stride,
        packs=False,
        run=chunks,
        zeroed=(),
    )
