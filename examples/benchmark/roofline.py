r"""Arithmetic and bytes that a convolution cannot do without, and what the machine could do.

Per edge and path, with multiplicities u, v (and w for ``uvw``), A nonzero (a, c) pairs of the 3j
symbol and C = 2 l_out + 1 components, a multiply-add counted as 2:

=====  =================================  ==============================
pass   uvu                                uvw
=====  =================================  ==============================
fwd    u v (2 A + 2 C)                    u v (2 A + 2 w C)
bwd    u v (6 A + 3 C)                    u v (6 A + 4 w C)
dbl    u v (8 A + 3 C)                    u v (8 A + 4 w C)
=====  =================================  ==============================

The matrix :math:`M_{ac} = \sum_b w_{abc} y_b` of an edge is formed once for all channels and not
counted. A pass named ``fwd+bwd`` sums the rows up to its last.

Compulsory bytes, with itemsize s, E edges, N nodes, bytes i of an edge's two indices, and row
lengths X (nodes), Y (edges), W (weights), O (output); every array is read or written once:

=====  ================================================
pass   bytes
=====  ================================================
fwd    s [E (W + Y) + N (X + O)] + E i
bwd    s [E (2 W + 2 Y) + N (2 X + O)] + E i
dbl    s [E (2 W + 3 Y) + N (3 X + O)] + E i
=====  ================================================

Shared weights count W once instead of E W.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mdcg.bench.timing import Clock
from mdcg.problem import ConvProblem

# Multiples of (nonzero pairs, output components for uvu, output components times w for uvw).
_FLOPS = {"fwd": (2, 2, 2), "bwd": (6, 3, 4), "dbl": (8, 3, 4)}
# Rows of weights and edge attributes per edge, of node features and outputs per node.
_ROWS = {"fwd": (1, 1, 1, 1), "bwd": (2, 2, 2, 1), "dbl": (2, 3, 3, 1)}


def problem_work(
    problem: ConvProblem, passes: str, n_nodes: int, n_edges: int
) -> tuple[float, float]:
    """Return floating-point operations and compulsory bytes of a pass, by the tables above."""
    itemsize = 8 if problem.dtype == "float64" else 4
    weight_rows = 1 if problem.shared_weights else n_edges
    flops = total_bytes = 0.0
    for part in passes.split("+"):
        pairs, uvu, uvw = _FLOPS[part]
        for path in problem.paths:
            mul1 = problem.irreps_in1[path.i_in1].mul
            mul2 = problem.irreps_in2[path.i_in2].mul
            out = problem.irreps_out[path.i_out]
            nonzero = int(np.count_nonzero(np.any(problem.w3j(problem.degrees(path)), axis=1)))
            summed = uvu if path.mode == "uvu" else uvw * out.mul
            flops += n_edges * mul1 * mul2 * (pairs * nonzero + summed * out.ir.dim)
        weights, edges, nodes, outputs = _ROWS[part]
        values = weights * weight_rows * problem.weight_numel
        values += edges * n_edges * problem.irreps_in2.dim
        values += n_nodes * (nodes * problem.irreps_in1.dim + outputs * problem.irreps_out.dim)
        total_bytes += itemsize * values + 16 * n_edges
    return flops, total_bytes


def machine_rates(dtype: torch.dtype, device: str, clock: Clock) -> tuple[float, float]:
    """Return FLOP/s of a matrix product and bytes per second of a copy, as torch reaches them."""
    size, megabytes = (2048, 256) if device == "cpu" else (8192, 4096)

    def best(run: Callable[[], object]) -> float:
        run()
        return min(clock(run, 1) for _ in range(5))

    with torch.no_grad():
        left = torch.ones(size, size, dtype=dtype, device=device)
        product = torch.empty_like(left)
        gemm = 2 * size**3 / best(lambda: torch.matmul(left, left, out=product))
        source = torch.ones(megabytes * 2**18, dtype=torch.float32, device=device)
        target = torch.zeros_like(source)
        return gemm, 2 * source.nbytes / best(lambda: target.copy_(source))
