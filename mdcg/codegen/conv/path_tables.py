"""Constants of a pass and tables of paths, which convolution kernels read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...plan import CudaPlan
from ...plan.device import WARP
from ...problem import MulIrrep
from ..common.emit import power_of_two
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec
from ..common.tables import Table

__all__ = ["Constants", "components", "pass_constants", "path_tables"]

Constants = dict[str, int | Table]


def components(block: MulIrrep, layout: str) -> tuple[list[int], int]:
    """Return where the components of a block start in the user's rows, and their stride."""
    if layout == "mul_ir":
        return [block.offset + c for c in range(block.ir.dim)], block.ir.dim
    return [block.offset + c * block.mul for c in range(block.ir.dim)], 1


def pass_constants(lowered: LoweredProblem, plan: CudaPlan, spec: KernelSpec) -> Constants:
    """Return the constants of a pass that csrc/kernels/conv/path_sums.cuh and the kernels read."""
    problem = lowered.problem
    return {
        "CONV": spec.conv,
        "DOUBLE": spec.kind == "double_backward",
        "SUMS": "out" in spec.results,
        "PULLS": spec.kind != "forward" and any(spec.wanted(n) for n in "xyw"),
        **{f"HAS_{n.upper()}": spec.has(n) for n in "xyw"},
        **{f"WANTS_{n.upper()}": spec.wanted(n) for n in "xyw"},
        "SHARED_WEIGHTS": problem.shared_weights,
        "DETERMINISTIC": plan.deterministic,
        "ATTRIBUTES": problem.irreps_in2.dim,
        "WEIGHTS": problem.weight_numel,
        "OUT_ROW": problem.irreps_out.dim,
    }


def path_tables(
    lowered: LoweredProblem,
    paths: Sequence[LoweredPath],
    first_output: Mapping[int, int],
    nonzeros: Mapping[int, int],
    weight: Callable[[LoweredPath], int],
) -> Constants:
    """Return the tables of the paths of one input block.

    `first_output`: number of the first component of an output block; `nonzeros`: where the
    nonzeros begin that a first nonzero stands for; `weight`: what ``Path`` has of a path's weight.
    """
    attributes = lowered.attributes(paths)
    low = attributes[0] if attributes else 0
    count = attributes[-1] + 1 - low if attributes else 0
    rows: list[tuple[int, ...]] = []
    entries: list[tuple[int, ...]] = []
    terms: list[tuple[int, int, float]] = []
    for path in paths:
        coupling = path.coupling
        forms = lowered.forms(path)
        new = [(n, b - low, k) for n, form in enumerate(forms) for b, k in form.terms]
        rows.append(
            (
                *(first_output[path.i_out], coupling.dim_out),
                *(nonzeros.get(path.first_nonzero, 0), coupling.num_nonzeros),
                *(len(entries), len(entries) + len(coupling.entries)),
                *(len(terms), len(terms) + len(new)),
                *((weight(path), path.mul2) if path.has_weight else (-1, 0)),
            )
        )
        entries += [(e.a, e.c, e.nonzero, e.sign) for e in coupling.entries]
        terms += sorted(new, key=lambda term: term[1])
    last = count % WARP
    return {
        "DIM": paths[0].in1.ir.dim,
        "PATHS": len(paths),
        "PATH": Table("Path", rows),
        "ENTRY": Table("Entry", entries),
        "ATTRIBUTE_TERM": Table("AttributeTerm", terms),
        "FIRST_ATTRIBUTE": low,
        "NUM_ATTRIBUTES": count,
        "DY_ITEMS": max(1, count - last + (power_of_two(last) if last else 0)),
    }
