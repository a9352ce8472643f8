"""Packed rows of node features and outputs: component-major, multiplicities padded."""

from __future__ import annotations

from ...plan import CudaPlan, HostPlan
from ...problem import Irreps

__all__ = ["packed_row"]


def packed_row(irreps: Irreps, plan: HostPlan | CudaPlan) -> tuple[int, tuple[int, ...]]:
    """Return items of a packed row and where each block starts in it."""
    offsets, total = [], 0
    for block in irreps:
        offsets.append(total)
        total += block.ir.dim * plan.padded(block.mul)
    return total, tuple(offsets)
