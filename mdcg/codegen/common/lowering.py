"""From a problem to the sums a kernel evaluates, independent of the target.

For fixed edge attributes a path is a sparse matrix between input and output components,
``out_c += w sum_a M_ac x_a`` with ``M_ac = path_weight * sum_b w3j_abc y_b``. Its *nonzeros* do not
depend on the channel, so each is evaluated once per edge. Entries that are equal up to their sign
share one nonzero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ...problem import ConvProblem, MulIrrep
from .expression import LinearForm, signed_unique

__all__ = ["Coupling", "Entry", "LoweredPath", "LoweredProblem", "NonzeroGroup", "lower"]


@dataclass(frozen=True)
class Entry:
    """An entry of a path matrix: ``out[c] += sign * nonzero * x[a]``."""

    a: int
    c: int
    nonzero: int
    sign: int


@dataclass(frozen=True)
class Coupling:
    """Sparsity of a path matrix; paths with equal couplings share one generated function."""

    dim_in: int
    dim_out: int
    num_nonzeros: int
    entries: tuple[Entry, ...]

    def by_output(self) -> dict[int, list[Entry]]:
        """Return the entries of every output component."""
        return {c: [e for e in self.entries if e.c == c] for c in range(self.dim_out)}

    def by_input(self) -> dict[int, list[Entry]]:
        """Return the entries of every input component."""
        return {a: [e for e in self.entries if e.a == a] for a in range(self.dim_in)}

    def by_nonzero(self) -> dict[int, list[Entry]]:
        """Return the entries of every nonzero."""
        return {s: [e for e in self.entries if e.nonzero == s] for s in range(self.num_nonzeros)}


@dataclass(frozen=True)
class NonzeroGroup:
    """Consecutive nonzeros, as linear forms in the edge attributes of one edge."""

    first: int
    forms: tuple[LinearForm, ...]


@dataclass(frozen=True)
class LoweredPath:
    """One path for one index v of the second input."""

    in1: MulIrrep
    out: MulIrrep
    i_in1: int
    i_out: int
    mode: str
    has_weight: bool
    weight_offset: int
    v: int
    mul2: int
    coupling: Coupling
    first_nonzero: int


@dataclass(frozen=True)
class LoweredProblem:
    """All paths and nonzeros of a problem."""

    problem: ConvProblem
    groups: tuple[NonzeroGroup, ...]  # define nonzeros ``0 .. num_nonzeros - 1`` in order
    paths: tuple[LoweredPath, ...]  # in weight order, once per index v

    @property
    def num_nonzeros(self) -> int:
        """Number of nonzeros, the values per edge that all channels share."""
        return sum(len(group.forms) for group in self.groups)

    def forms(self, path: LoweredPath) -> tuple[LinearForm, ...]:
        """Return the nonzeros of a path."""
        if not path.coupling.num_nonzeros:
            return ()
        # an empty group starts at the same nonzero as the next one
        return next(g.forms for g in self.groups if g.forms and g.first == path.first_nonzero)

    def attributes(self, paths: Iterable[LoweredPath]) -> list[int]:
        """Return the edge attributes that paths read, in order."""
        return sorted({b for path in paths for form in self.forms(path) for b, _ in form.terms})

    def attribute_sums(self) -> dict[int, list[tuple[int, float]]]:
        """Return, for every edge attribute, its ``(nonzero, coefficient)`` pairs."""
        sums: dict[int, list[tuple[int, float]]] = {
            b: [] for b in range(self.problem.irreps_in2.dim)
        }
        for group in self.groups:
            for position, form in enumerate(group.forms):
                for b, value in form.terms:
                    sums[b].append((group.first + position, value))
        return sums


@lru_cache(maxsize=256)
def lower(problem: ConvProblem) -> LoweredProblem:
    """Lower a problem; empty blocks (multiplicity 0) disappear."""
    groups: list[NonzeroGroup] = []
    known: dict[tuple[int, int, tuple[int, int, int], float], tuple[int, Coupling]] = {}
    paths: list[LoweredPath] = []
    num_nonzeros = 0
    for path, offset in zip(problem.paths, problem.weight_offsets, strict=True):
        in1, in2, out = (
            problem.irreps_in1[path.i_in1],
            problem.irreps_in2[path.i_in2],
            problem.irreps_out[path.i_out],
        )
        if 0 in (in1.mul, in2.mul, out.mul):
            continue
        degrees = problem.degrees(path)
        for v in range(in2.mul):
            key = (path.i_in2, v, degrees, path.path_weight)
            if key not in known:
                coupling, forms = _couple(problem, degrees, path.path_weight, in2, v)
                groups.append(NonzeroGroup(num_nonzeros, forms))
                known[key] = (num_nonzeros, coupling)
                num_nonzeros += len(forms)
            first_nonzero, coupling = known[key]
            paths.append(
                LoweredPath(
                    in1=in1,
                    out=out,
                    i_in1=path.i_in1,
                    i_out=path.i_out,
                    mode=path.mode,
                    has_weight=path.has_weight,
                    weight_offset=offset,
                    v=v,
                    mul2=in2.mul,
                    coupling=coupling,
                    first_nonzero=first_nonzero,
                )
            )
    return LoweredProblem(problem, tuple(groups), tuple(paths))


def _couple(
    problem: ConvProblem,
    degrees: tuple[int, int, int],
    path_weight: float,
    in2: MulIrrep,
    v: int,
) -> tuple[Coupling, tuple[LinearForm, ...]]:
    w3j = problem.w3j(degrees)
    pairs, forms = [], []
    for c in range(w3j.shape[2]):
        for a in range(w3j.shape[0]):
            column = in2.offset + v * in2.ir.dim
            form = LinearForm.of(
                (column + b, float(w3j[a, b, c]) * path_weight) for b in range(w3j.shape[1])
            )
            if form.terms:
                pairs.append((a, c))
                forms.append(form)
    unique, uses = signed_unique(forms)
    entries = tuple(
        Entry(a, c, nonzero, sign) for (a, c), (nonzero, sign) in zip(pairs, uses, strict=True)
    )
    return Coupling(w3j.shape[0], w3j.shape[2], len(unique), entries), unique
