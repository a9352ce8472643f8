"""Polynomials of a contraction as straight-line programs, one per group of monomials.

Monomials of degree 2 to 4 are products of an *outer* factor (nothing, one or two components) and
an *inner* product of two components. A group has all inner products of one pair of input blocks:
what is linear in them is found once and shared by all polynomials. Groups add to the results, so
that few values are alive at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...problem import SymmetricContractionProblem
from ...problem.reduction import reduce_rows
from ..common.expression import Statement, Term, broadcast, print_statements
from ..common.spec import PassSpec
from ..common.straight_line import Program

__all__ = ["ContractionSpec", "arguments", "contraction_groups", "group_function", "operand_names"]

# Names of cotangents in the arguments of kernels.
COTANGENTS = {"x": "xa", "w": "wc"}
# the factorisation drops coefficients below this, which are rounding errors of others
_TOLERANCE = 1e-13

Key = tuple[int, ...]


@dataclass(frozen=True)
class ContractionSpec(PassSpec):
    """One generated kernel."""

    cotangents = COTANGENTS
    # forward: the value. backward: gradients of ``phi(x, w, g) = <g, out>`` with respect to x, w.
    # double_backward: gradients of ``<a, dphi/dx> + phi(x, b, g)`` with respect to x, w and g.
    kind: str
    # whether a node's coefficients are sums over species, weighted by its attributes; else each
    # node has its own row of coefficients
    mixed: bool
    # gradients to compute, from "x", "w", "g"; forward: empty. The gradient of w is per node.
    wants: tuple[str, ...] = ()
    given: tuple[str, ...] = ()  # cotangents present in a double backward: "x" for a, "w" for b

    def __str__(self) -> str:
        return self._text("contraction", self.kind, *([] if self.mixed else ["per_node"]))


@dataclass(frozen=True)
class _Entry:
    """One monomial of a polynomial, divided into an inner product and the remaining factors."""

    r: int
    m: int  # component of the output, counted over all blocks
    outer: Key
    inner: Key
    value: float


def contraction_groups(
    problem: SymmetricContractionProblem, spec: ContractionSpec
) -> list[list[Statement]]:
    """Return the statements of each group, in order.

    They read ``x0``, ``x1``, ... (``a0``, ...: the direction, ``c0``, ``b0``, ...: coefficients,
    ``g0``, ...) and add to ``o0``, ... (value, or gradient of g), ``dx0``, ... and ``dc0``, ...
    """
    groups = []
    for entries in _group(problem):
        statements = _statements(entries, spec)
        if statements:
            groups.append(statements)
    return groups


def arguments(spec: ContractionSpec) -> tuple[str, ...]:
    """Return the names of the arguments of a CPU kernel, in order."""
    operands = ["x", "w", "y", "n_types"] if spec.mixed else ["x", "w"]
    names = ("out" if name == "dg" else name for name in spec.tensors(*operands))
    return ("n_rows", *names)


def operand_names(statements: Sequence[Statement]) -> list[str]:
    """Return the operands that a group reads, by letter and number."""
    made = {s.target for s in statements if not s.add}
    used = {f for s in statements for _, factors in s.value.terms for f in factors}
    return sorted(used - made, key=lambda name: (name[0], int(name[1:])))


def group_function(
    name: str,
    parameters: str,
    statements: Sequence[Statement],
    load: Callable[[str], str],
    add: Callable[[str], str],
) -> str:
    """Print a C++ function of one group. Short functions keep values in registers and compile fast.

    `load` makes of the name of an operand the expression that reads its vector, `add` of the name
    of a result the statement that adds ``t`` to it.
    """
    lines = [f"static __attribute__((noinline)) void {name}({parameters}) {{"]
    lines += [f"    const V {symbol} = {load(symbol)};" for symbol in operand_names(statements)]
    inner = [s for s in statements if not s.add]
    printed = print_statements(inner, literal=broadcast, declare="const V")
    lines += [f"    {line}" for line in printed]
    for s in statements:
        if s.add:
            (line,) = print_statements([Statement("t", s.value)], literal=broadcast, declare="V")
            lines.append(f"    {{ {line} {add(s.target)} }}")
    return "\n".join([*lines, "}"])


# -- splitting ------------------------------------------------------------------------------------


def _group(problem: SymmetricContractionProblem) -> list[list[_Entry]]:
    """Split every monomial, and gather the entries by the blocks of their inner product."""
    block_of = [i for i, block in enumerate(problem.irreps_in) for _ in range(block.ir.dim)]
    families: dict[tuple[int, ...], list[tuple[int, int, Key, float]]] = {}
    for r, polynomial in enumerate(problem.polynomials):
        offset = problem.out_offset(polynomial.i_out)
        for m, terms in enumerate(polynomial.components):
            for value, indices in terms:
                family = tuple(block_of[i] for i in indices)
                families.setdefault(family, []).append((r, offset + m, indices, value))
    groups: dict[Key, list[_Entry]] = {}
    pairs: dict[Key, set[Key]] = {}
    # large families choose first; small families join existing inner products
    for family, entries in sorted(families.items(), key=lambda item: (-len(item[1]), item[0])):
        best = min(
            (_split(entries, places, pairs) for places in _choices(family)),
            key=lambda found: (found[0], found[1]),
        )
        _, _, key, split = best
        groups.setdefault(key, []).extend(split)
        pairs.setdefault(key, set()).update(entry.inner for entry in split)
    return [groups[key] for key in sorted(groups)]


def _choices(family: Key) -> list[tuple[int, ...]]:
    """Return which factors of a monomial may form the inner product."""
    degree = len(family)
    if degree <= 2:
        return [tuple(range(degree))]
    found: dict[tuple[Key, int], tuple[int, ...]] = {}
    for i in range(degree):
        for j in range(i + 1, degree):
            # try both ends of the ascending indices of equal blocks
            found.setdefault(((family[i], family[j]), 0), (i, j))
            found[(family[i], family[j]), 1] = (i, j)
    return list(dict.fromkeys(found.values()))


def _split(
    entries: Sequence[tuple[int, int, Key, float]],
    places: tuple[int, ...],
    pairs: dict[Key, set[Key]],
) -> tuple[int, tuple[int, ...], Key, list[_Entry]]:
    """Return the cost of an inner product of these factors, and the split entries."""
    split = [
        _Entry(
            r,
            m,
            tuple(i for n, i in enumerate(indices) if n not in places),
            tuple(indices[n] for n in places),
            value,
        )
        for r, m, indices, value in entries
    ]
    first = entries[0][2]
    key = tuple(first[n] for n in places)
    inner = {entry.inner for entry in split}
    # a block is named by its smallest component
    key = (len(key), *(min(pair[n] for pair in inner) for n in range(len(key))))
    new = len(inner - pairs.get(key, set())) if len(key) > 2 else 0
    rows = len({(entry.r, entry.m, entry.outer) for entry in split})
    return 3 * new + 3 * rows, key, key, split


# -- one group ------------------------------------------------------------------------------------


def _statements(entries: Sequence[_Entry], spec: ContractionSpec) -> list[Statement]:
    program = Program()
    values = _values(program, entries)
    moved: dict[str, str] = {}
    inputs = sorted({i for e in entries for i in (*e.outer, *e.inner)})
    if "x" in spec.given:
        moved = program.tangents({f"x{i}": f"a{i}" for i in inputs})
    weighted: list[tuple[str, int, int, str]] = []  # coefficient, r, m, polynomial
    for (r, m), name in values.items():
        if spec.kind != "double_backward":
            weighted.append((f"c{r}", r, m, name))
        else:
            if "x" in spec.given and name in moved:
                weighted.append((f"c{r}", r, m, moved[name]))
            if "w" in spec.given:
                weighted.append((f"b{r}", r, m, name))
    if spec.kind == "forward" or "g" in spec.wants:
        for c, _, m, name in weighted:
            program.emit(f"o{m}", [(1.0, (c, name))])
    if "w" in spec.wants:
        for c, r, m, name in weighted:
            if c == f"c{r}":
                program.emit(f"dc{r}", [(1.0, (f"g{m}", name))])
    if "x" in spec.wants:
        seeds: dict[str, list[Term]] = {}
        for c, _, m, name in weighted:
            seeds.setdefault(name, []).append((1.0, (c, f"g{m}")))
        for name, terms in program.adjoints(seeds, [f"x{i}" for i in inputs]).items():
            program.emit(f"d{name}", terms)
    return program.statements()


def _values(program: Program, entries: Sequence[_Entry]) -> dict[tuple[int, int], str]:
    """Return the names of the polynomials' components, by coefficient and output component."""
    inner = sorted({entry.inner for entry in entries})
    column = {key: n for n, key in enumerate(inner)}
    rows: dict[tuple[int, int, Key], dict[int, float]] = {}
    for entry in entries:
        row = rows.setdefault((entry.r, entry.m, entry.outer), {})
        row[column[entry.inner]] = row.get(column[entry.inner], 0.0) + entry.value
    products = [program.let([(1.0, tuple(f"x{i}" for i in key))]) for key in inner]
    forms = _linear_forms(program, list(rows.values()), products)
    terms: dict[tuple[int, int], list[Term]] = {}
    for (r, m, outer), (scale, form) in zip(rows, forms, strict=True):
        factors: tuple[str, ...] = (form,)
        if outer:
            if abs(scale) != 1.0:  # every derivative would multiply by a separate factor
                scale, form = 1.0, program.let([(scale, (form,))])
            factors = (program.let([(1.0, tuple(f"x{i}" for i in outer))]), form)
        terms.setdefault((r, m), []).append((scale, factors))
    return {key: program.let(value) for key, value in terms.items()}


def _linear_forms(
    program: Program, rows: Sequence[dict[int, float]], products: Sequence[str]
) -> list[tuple[float, str]]:
    """Return a factor and a name for every row of coefficients of the products.

    Rows of few dimensions go through a basis of them, where that takes fewer operations: this
    finds the products of two features of every degree that coupling coefficients are made of.
    """
    matrix = np.zeros((len(rows), len(products)))
    for n, row in enumerate(rows):
        matrix[n, list(row)] = list(row.values())
    basis, combination = reduce_rows(matrix, _TOLERANCE)
    combination = np.where(np.abs(combination) > _TOLERANCE, combination, 0.0)
    lost = np.abs(combination.T @ basis - matrix).max(axis=1)
    # rows much smaller than others are lost in a basis
    if np.all(lost <= 10 * _TOLERANCE * np.abs(matrix).max(axis=1)):
        direct = _cost(_distinct(matrix))
        through = _cost(basis) + _cost(_distinct(combination.T))
        if through < direct:
            names = [
                program.let((float(v), (products[q],)) for q, v in enumerate(row) if v)
                for row in basis
            ]
            return _named(program, combination.T, names)
    return _named(program, matrix, products)


def _distinct(matrix: np.ndarray) -> np.ndarray:
    """Return one of each set of rows that are multiples of each other."""
    found = {_shape(row)[1]: row for row in matrix}
    return np.array(list(found.values()))


def _cost(matrix: np.ndarray) -> int:
    """Count the operations of rows: a row that is a multiple of one symbol is free."""
    counts = np.count_nonzero(matrix, axis=1)
    return int(counts[counts > 1].sum())


def _shape(row: np.ndarray) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the first coefficient of a row, and the row divided by it, rounded."""
    nonzero = np.flatnonzero(row)
    scale = float(row[nonzero[0]])
    return scale, tuple((int(q), float(f"{row[q] / scale:.12e}")) for q in nonzero)


def _named(program: Program, matrix: np.ndarray, symbols: Sequence[str]) -> list[tuple[float, str]]:
    found: dict[tuple[tuple[int, float], ...], tuple[float, str]] = {}
    forms = []
    for row in matrix:
        scale, shape = _shape(row)
        if shape not in found:
            if len(shape) == 1:
                found[shape] = (1.0, symbols[shape[0][0]])
            else:
                terms = [(float(row[q]), (symbols[q],)) for q, _ in shape]
                found[shape] = (scale, program.let(terms))
        made, name = found[shape]
        forms.append((scale / made, name))
    return forms
