"""Sums of products as an expression graph: folding, shared subexpressions, and printing as C.

One layer serves every target. A graph holds hash-consed sums ``sum_i k_i * f_i1 * f_i2 ...`` of
named symbols; printing turns them into statements a compiler contracts into fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = [
    "LinearForm",
    "Statement",
    "Sum",
    "Term",
    "broadcast",
    "literal",
    "print_statements",
    "signed_unique",
]

# (coefficient, factors): the factors are names of symbols or of earlier statements
Term = tuple[float, tuple[str, ...]]


def literal(value: float) -> str:
    """Print a coefficient of type T exactly."""
    return f"T({float(value).hex()})"


def broadcast(value: float) -> str:
    """Print a coefficient exactly, as a vector of equal lanes."""
    return f"splat({literal(value)})"


@dataclass(frozen=True)
class LinearForm:
    """A sum of ``coefficient * symbol[index]``, indices ascending, no zero coefficient."""

    terms: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[int, float]]) -> LinearForm:
        """Collect equal indices and drop what cancels."""
        total: dict[int, float] = {}
        for index, value in terms:
            total[index] = total.get(index, 0.0) + value
        return cls(tuple(sorted((i, v) for i, v in total.items() if v != 0.0)))

    def key(self, sign: int = 1) -> tuple[tuple[int, float], ...]:
        """Return a key of equal forms: coefficients rounded, so that the last bits do not count."""
        return tuple((i, float(f"{sign * v:.13e}")) for i, v in self.terms)


def signed_unique(
    forms: Iterable[LinearForm],
) -> tuple[tuple[LinearForm, ...], tuple[tuple[int, int], ...]]:
    """Share forms that are equal up to sign.

    Returns them in order of first use, and for every input form its position there and its sign.
    """
    unique: list[LinearForm] = []
    position: dict[tuple[tuple[int, float], ...], int] = {}
    uses = []
    for form in forms:
        if form.key() in position:
            uses.append((position[form.key()], 1))
        elif form.key(-1) in position:
            uses.append((position[form.key(-1)], -1))
        else:
            position[form.key()] = len(unique)
            uses.append((len(unique), 1))
            unique.append(form)
    return tuple(unique), tuple(uses)


@dataclass(frozen=True)
class Sum:
    """A sum of products; ``Sum.of`` folds signs, units, zeros and repeated products."""

    terms: tuple[Term, ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[float, Iterable[str]]]) -> Sum:
        """Collect equal products in order of first appearance, and drop what cancels."""
        total: dict[tuple[str, ...], float] = {}
        for coefficient, factors in terms:
            key = tuple(factors)
            total[key] = total.get(key, 0.0) + coefficient
        return cls(tuple((k, f) for f, k in total.items() if k != 0.0))


@dataclass(frozen=True)
class Statement:
    """``target = sum`` or, with ``add``, ``target += sum``."""

    target: str
    value: Sum
    add: bool = False


def _product(coefficient: float, factors: tuple[str, ...], literal: Callable[[float], str]) -> str:
    parts = list(factors)
    if coefficient != 1.0 or not parts:
        parts.insert(0, literal(coefficient))
    return " * ".join(parts)


def print_statements(
    statements: Iterable[Statement],
    *,
    literal: Callable[[float], str] = literal,
    declare: str = "",
    declared: Iterable[str] = (),
) -> list[str]:
    """Print statements as C.

    A right-hand side that already has a name is replaced by that name, so equal sums are evaluated
    once. `literal` prints a coefficient in the target's type. The type `declare` is written before
    the first assignment of a name that is not `declared`; empty: all names exist already.
    """
    known = set(declared)
    named: dict[Sum, str] = {}
    lines = []
    for statement in statements:
        terms = statement.value.terms
        if not terms:
            if statement.add:
                continue
            text = literal(0.0) if not declare else f"{declare}{{}}"
        elif statement.value in named and len(terms) > 1:
            text = named[statement.value]
        else:
            text = ""
            for coefficient, factors in terms:
                sign = " - " if coefficient < 0 else " + "
                if not text:
                    sign = "-" if coefficient < 0 else ""
                text += sign + _product(abs(coefficient), factors, literal)
            if not statement.add:
                named[statement.value] = statement.target
        prefix = ""
        if declare and statement.target not in known and not statement.add:
            prefix = f"{declare} "
            known.add(statement.target)
        lines.append(f"{prefix}{statement.target} {'+=' if statement.add else '='} {text};")
    return lines
