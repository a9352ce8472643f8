"""Kernels of symmetric contractions for CUDA devices: ``csrc/kernels/contraction.cuh``.

Python prints their constants, and the polynomials as straight-line code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ...plan.contraction import CudaContractionPlan
from ...plan.device import WARP
from ...problem import SymmetricContractionProblem
from ..common.emit import CudaEntry, CudaKernel, engine_stride, kernel_head, scalar_type, title
from ..common.expression import Statement, print_statements
from ..common.tables import Table, argument_names, constants, kernel_file
from .program import ContractionSpec, contraction_groups, operand_names

__all__ = ["emit_contraction_cuda", "emit_engine_contraction_cuda"]

_FILE = "contraction.cuh"

# Names in statements that stand for items of an array.
_ITEM = re.compile(r"\b(x|a|g|o|dx|dc)(\d+)\b")


def _polynomials(groups: Sequence[Sequence[Statement]]) -> tuple[str, list[int]]:
    """Print the function that evaluates all polynomials.

    Returns with it the coefficients whose gradients several groups add to. Others are stored as
    soon as they are complete, so that few values are alive at a time.
    """
    times = Counter(s.target for statements in groups for s in statements if s.add)
    lines = []
    for statements in groups:
        lines.append("{")
        for name in operand_names(statements):
            if name[0] in "cb":
                lines.append(f"    const T {name} = {name[0]}[{name[1:]}];")
        inner = [s for s in statements if not s.add]
        lines += [f"    {line}" for line in print_statements(inner, declare="const T")]
        for s in statements:
            if s.add and s.target.startswith("dc") and times[s.target] == 1:
                (value,) = print_statements([Statement("", s.value)])
                lines.append(f"    dc.store({s.target[2:]}, {value.removeprefix(' = ')[:-1]});")
            elif s.add:
                (line,) = print_statements([s])
                lines.append(f"    {line}")
        lines.append("}")
    head = [
        "struct Polynomials {",
        "    template <typename Gradients>",
        "    static MDCG_MEMBER void add(const T* x, const T* a, const T* g,",
        "                                const Coefficients& c, const Coefficients& b, T* o,",
        "                                T* dx, Gradients& dc) {",
    ]
    body = ["        " + _ITEM.sub(r"\1[\2]", line) for line in lines]
    summed = sorted(int(name[2:]) for name, n in times.items() if name.startswith("dc") and n > 1)
    return "\n".join([*head, *body, "    }", "};"]), summed


def _emit(
    problem: SymmetricContractionProblem,
    plan: CudaContractionPlan,
    spec: ContractionSpec,
    *,
    engine: bool,
    kernel: str,
) -> CudaKernel:
    """Print a kernel for rows of operators or of the engine; `kernel` appears in its title."""
    channels = engine_stride(problem.channels, problem.dtype) if engine else problem.channels
    groups = contraction_groups(problem, spec)
    polynomials, summed = _polynomials(groups)
    used = {f for group in groups for s in group for _, factors in s.value.terms for f in factors}
    wanted = problem.num_coefficients if "w" in spec.wants else 0
    known = {s.target for group in groups for s in group if s.add}
    summed += [r for r in range(wanted) if f"dc{r}" not in known]
    outputs, first = [], 0
    for block in problem.irreps_out:
        dim = block.ir.dim
        starts = range(first, first + dim)
        if engine:
            outputs += [(m * channels, 1) for m in starts]
        else:
            outputs += [(first * channels + m - first, dim) for m in starts]
        first += dim
    chunks, warps = -(-channels // WARP), plan.threads // WARP
    values: dict[str, int | Table] = {
        "WARPS": warps,
        "CHUNKS": chunks,
        "CHANNELS": channels,
        "COEFFICIENTS": max(problem.num_coefficients, 1),
        "DIM_IN": problem.dim_in,
        "DIM_OUT": problem.dim_out,
        "X_CHANNEL": 1 if engine else problem.dim_in,
        "X_COMPONENT": channels if engine else 1,
        "MIXED": spec.mixed,
        "BY_TYPE": engine,
        "ADDS": engine,
        "HAS_X": "x" in spec.given,
        "HAS_W": "w" in spec.given,
        "READS_G": any(name.startswith("g") for name in used),
        "SUMS": "out" in spec.results,
        "WANTS_X": "x" in spec.wants,
        "OUTPUT": Table("Output", outputs),
        "SUMMED_COEFFICIENTS": len(summed),
        "SUMMED": Table("int", sorted(summed) or [0]),
    }
    name = f"contraction_{spec.kind}"
    file = kernel_file(_FILE)
    parts = [
        title(problem, kernel),
        f"// {plan}",
        f"typedef {scalar_type(problem.dtype)} T;",
        file,
        constants("Pass", kernel, values),
        polynomials,
        kernel_head(name, plan.threads, plan.blocks),
        "    contraction<Pass, Polynomials>(p);",
        "}",
        "",
    ]
    return CudaKernel(
        source="\n".join(parts),
        entries=(CudaEntry(name, plan.threads, 0, warps),),
        arguments=argument_names(file, "Arguments"),
        packed_in1=channels * problem.dim_in,
        packs=False,
        run=chunks,
        zeroed=(),
    )


def emit_contraction_cuda(
    problem: SymmetricContractionProblem, plan: CudaContractionPlan, spec: ContractionSpec
) -> CudaKernel:
    """Generate the CUDA text of one kernel.

    It has one entry, whose ``rows`` are nodes times groups of 32 channels per block.
    """
    return _emit(problem, plan, spec, engine=False, kernel=f"kernel {spec}")


def emit_engine_contraction_cuda(
    problem: SymmetricContractionProblem, plan: CudaContractionPlan, kind: str
) -> CudaKernel:
    """Generate the CUDA text of one pass of the engine, whose rows are component-major and padded.

    The "forward" pass is the value; "backward" the gradient of x, which is added to where
    ``n_adds`` is not 0.
    """
    spec = ContractionSpec(kind, mixed=False, wants=() if kind == "forward" else ("x",))
    return _emit(problem, plan, spec, engine=True, kernel=f"engine contraction, {kind}")
