"""Kernels that copy or sum rows of node features: ``csrc/kernels/conv/rows.cuh``."""

from __future__ import annotations

from ...plan import CudaPlan
from ...problem import ConvProblem
from ..common.emit import kernel_head, packed_row
from ..common.tables import Table, constants

__all__ = ["ROW_THREADS", "row_kernels"]

# Threads of a block of these kernels.
ROW_THREADS = 256


def row_kernels(problem: ConvProblem, plan: CudaPlan) -> str:
    """Print kernels that pack rows, unpack them, and sum runs of packed rows to plain ones."""
    row, offsets = packed_row(problem.irreps_in1, plan.padded)
    blocks = []
    for block, packed in zip(problem.irreps_in1, offsets, strict=True):
        mul_ir = problem.layout == "mul_ir"
        strides = (1, block.ir.dim) if mul_ir else (block.mul, 1)
        padded = plan.padded(block.mul)
        if block.mul:
            blocks.append((packed, block.ir.dim, padded, block.offset, *strides, block.mul))
    members: dict[str, int | Table] = {
        "THREADS": ROW_THREADS,
        "PACKED": max(row, 4),
        "PLAIN": problem.irreps_in1.dim,
        "BLOCKS": len(blocks),
        "BLOCK": Table("RowBlock", blocks),
    }
    kernels = [
        f"{kernel_head(f'mdcg_{step}_in1', ROW_THREADS, argument=argument)}\n"
        f"    {step}_rows<Rows>(p);\n}}"
        for step, argument in (("pack", "RowCopy"), ("unpack", "RowCopy"), ("sum", "RowSum"))
    ]
    return "\n\n".join([constants("Rows", "rows of node features", members), *kernels])
