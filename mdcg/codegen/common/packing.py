"""Packed rows of node features and outputs: component-major, multiplicities padded."""

from __future__ import annotations

from collections.abc import Callable

from ...problem import Irreps

__all__ = ["packed_row"]


def packed_row(irreps: Irreps, padded: Callable[[int], int]) -> tuple[int, tuple[int, ...]]:
    """Return items of a packed row and where each block starts, from padded multiplicities."""
    offsets, total = [], 0
    for block in irreps:
        offsets.append(total)
        total += block.ir.dim * padded(block.mul)
    return total, tuple(offsets)
