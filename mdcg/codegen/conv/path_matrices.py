"""Places the path matrices of an edge in shared memory, and assigns them to warps."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.expression import LinearForm
from ..common.lowering import LoweredProblem
from ..common.tables import Table
from .warp_tasks import TaskSet

__all__ = ["PathMatrices"]


@dataclass(frozen=True)
class PathMatrices:
    """The row of an edge: the nonzeros of groups, each group aligned to 16 bytes."""

    starts: dict[int, int]  # first nonzero of a group: its item in the row
    forms: tuple[LinearForm, ...]  # the form of each item; padding has no terms
    first_quads: tuple[int, ...]  # first 16-byte word that each warp evaluates, and the end
    stride: int  # items from row to row, chosen for few bank conflicts

    @classmethod
    def of(cls, lowered: LoweredProblem, kernel: TaskSet, warps: int, quad: int) -> PathMatrices:
        """Distribute the groups of a kernel's paths over warps, and lay them out in that order.

        `quad` is the number of items in 16 bytes.
        """
        starts: dict[int, int] = {}
        forms: list[LinearForm] = []
        first_quads = [0]
        for groups in _shared_groups(lowered, kernel, warps):
            for group in (lowered.groups[i] for i in groups):
                starts[group.first] = len(forms)
                forms += group.forms
                forms += [LinearForm(())] * (-len(forms) % quad)
            first_quads.append(len(forms) // quad)
        stride = len(forms) + (quad if len(forms) % (2 * quad) == 0 else 0)
        return cls(starts, tuple(forms), tuple(first_quads), stride)

    def tables(self) -> dict[str, int | Table]:
        """Return the tables that write_path_matrices of csrc/kernels/conv/table_edges.cuh reads."""
        terms = [term for form in self.forms for term in form.terms]
        ends = [0]
        for form in self.forms:
            ends.append(ends[-1] + len(form.terms))
        return {
            "STRIDE": self.stride,
            "FIRST_QUAD": Table("int", self.first_quads),
            "FIRST_TERM": Table("int", ends),
            "TERMS": Table("Term", terms),
        }


def _shared_groups(lowered: LoweredProblem, kernel: TaskSet, warps: int) -> list[list[int]]:
    """Return indices of the nonzero groups of each warp, so that warps have similar work."""
    work: list[list[int]] = [[] for _ in range(warps)]
    loads = [0] * warps
    cost = {i: sum(len(f.terms) + 1 for f in lowered.groups[i].forms) for i in kernel.groups}
    for i in sorted(kernel.groups, key=lambda i: (-cost[i], i)):
        least = loads.index(min(loads))
        work[least].append(i)
        loads[least] += cost[i]
    return [sorted(groups) for groups in work]
