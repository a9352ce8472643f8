"""CUDA text of the kernels that copy or sum rows of node features."""

from __future__ import annotations

from ...plan import CudaPlan
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem, MulIrrep
from ..common.emit import packed_row

__all__ = ["ROW_THREADS", "row_functions"]

# Threads of a block of these kernels.
ROW_THREADS = 256

_STRUCTS = """struct RowCopy {
    const T* source;
    T* target;
    Long n_rows;
};
struct RowSum {
    const T* source;
    T* target;
    Long n_rows;
    const int* row_ptr;
};"""


def row_functions(problem: ConvProblem, plan: CudaPlan) -> str:
    """Return kernels that pack rows, unpack them, and sum runs of packed rows to plain ones.

    One thread takes an item of a row, or a vector of them.
    """
    row, offsets = packed_row(problem.irreps_in1, plan.padded)
    texts = [_STRUCTS]
    for step, struct in (("pack", "RowCopy"), ("unpack", "RowCopy"), ("sum", "RowSum")):
        # padded blocks are whole vectors
        width = 16 // ITEMSIZE[problem.dtype] if step == "sum" else 1
        size = max(row // width, 1)
        lines = [
            f'extern "C" __global__ void __launch_bounds__({ROW_THREADS}) '
            f"mdcg_{step}_in1(const {struct} p) {{",
            f"    const Long i = Long(blockIdx.x) * {ROW_THREADS} + threadIdx.x;",
            f"    if (i >= p.n_rows * {size}) return;",
            f"    const Long r = i / {size};",
            f"    const int c = int(i - r * {size}) * {width};",
        ]
        if step == "sum":
            lines += [
                f"    Vec<{width}> total = {{}};",
                "    const int end = p.row_ptr[r + 1];",
                "#pragma unroll 4",
                "    for (int k = p.row_ptr[r]; k < end; ++k) "
                f"total += load_stream(p.source + Long(k) * {row} + c, Vec<{width}>());",
            ]
        for block, offset in zip(problem.irreps_in1, offsets, strict=True):
            pad = plan.padded(block.mul)
            if block.mul:
                lines += [
                    f"    if (c >= {offset} && c < {offset + block.ir.dim * pad}) {{",
                    f"        const int a = (c - {offset}) / {pad}, u = (c - {offset}) % {pad};",
                    f"        {_copy(step, problem, block, width)}",
                    "    }",
                ]
        texts.append("\n".join([*lines, "}"]))
    return "\n\n".join(texts)


def _copy(step: str, problem: ConvProblem, block: MulIrrep, width: int) -> str:
    mul_ir = problem.layout == "mul_ir"
    place = f"u * {block.ir.dim} + a" if mul_ir else f"a * {block.mul} + u"
    plain = f"r * {problem.irreps_in1.dim} + {block.offset} + {place}"
    if step == "pack":
        return f"p.target[i] = u < {block.mul} ? p.source[{plain}] : T(0);"
    if step == "unpack":
        return f"if (u < {block.mul}) p.target[{plain}] = p.source[i];"
    stride = block.ir.dim if mul_ir else 1
    return f"store_some<{width}, {stride}>(p.target + {plain}, total, {block.mul} - u);"
