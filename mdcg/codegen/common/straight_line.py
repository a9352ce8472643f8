"""Straight-line programs of sums of products: building, tangents, adjoints.

A program is a list of named sums ``t = sum_i k_i * f_i1 * f_i2`` of at most two factors each; the
factors are inputs or earlier sums. Tangents and adjoints of such programs are programs again, so
derivatives of any order cost a small multiple of the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expression import Statement, Sum, Term

__all__ = ["Program"]


class Program:
    """Named sums in order of evaluation; equal sums share a name."""

    def __init__(self) -> None:
        self.sums: dict[str, Sum] = {}
        self._names: dict[Sum, str] = {}
        self.outputs: dict[str, list[Term]] = {}

    def let(self, terms: Iterable[Term]) -> str:
        """Return the name of a sum, or an empty string if it has no terms."""
        value = Sum.of((k, sorted(factors)) for k, factors in terms)
        if not value.terms:
            return ""
        if len(value.terms) == 1 and value.terms[0][0] == 1.0 and len(value.terms[0][1]) == 1:
            return value.terms[0][1][0]
        found = self._names.get(value)
        if found is None:
            found = f"t{len(self.sums)}"
            self._names[value] = found
            self.sums[found] = value
        return found

    def emit(self, output: str, terms: Iterable[Term]) -> None:
        """Add to an output; terms that name the empty sum vanish."""
        kept = [term for term in terms if all(term[1])]
        if kept:
            self.outputs.setdefault(output, []).extend(kept)

    def depending(self, inputs: Iterable[str]) -> set[str]:
        """Return the inputs and all sums that depend on them."""
        found = set(inputs)
        for name, value in self.sums.items():
            if any(f in found for _, factors in value.terms for f in factors):
                found.add(name)
        return found

    def tangents(self, directions: Mapping[str, str]) -> dict[str, str]:
        """Append directional derivatives. Return the nonzero tangents of sums and inputs.

        `directions` has the tangent of each input that varies.
        """
        found = dict(directions)
        for name, value in list(self.sums.items()):
            terms: list[Term] = []
            for k, factors in value.terms:
                for place, factor in enumerate(factors):
                    if factor in found:
                        rest = factors[:place] + factors[place + 1 :]
                        terms.append((k, (found[factor], *rest)))
            moved = self.let(terms)
            if moved:
                found[name] = moved
        return found

    def adjoints(
        self, seeds: Mapping[str, list[Term]], wanted: Iterable[str]
    ) -> dict[str, list[Term]]:
        """Append the derivatives of ``sum seeds[t] * t`` with respect to inputs.

        The seeds do not depend on the `wanted` inputs. Returns the terms of each derivative that is
        not zero.
        """
        wanted = list(wanted)
        needed = self.depending(wanted)
        bars: dict[str, list[Term]] = {name: list(terms) for name, terms in seeds.items()}
        for name, value in reversed(list(self.sums.items())):
            if name not in needed or name not in bars:
                continue
            bar = self.let(bars.pop(name))
            if not bar:
                continue
            for k, factors in value.terms:
                for place, factor in enumerate(factors):
                    if factor in needed:
                        rest = factors[:place] + factors[place + 1 :]
                        bars.setdefault(factor, []).append((k, (bar, *rest)))
        return {name: bars[name] for name in wanted if name in bars}

    def statements(self) -> list[Statement]:
        """Return the statements that the outputs need, in order. Statements add to outputs."""
        used: set[str] = set()
        stack = [f for terms in self.outputs.values() for _, fs in terms for f in fs]
        while stack:
            name = stack.pop()
            if name in self.sums and name not in used:
                used.add(name)
                stack.extend(f for _, fs in self.sums[name].terms for f in fs)
        lines = [Statement(name, value) for name, value in self.sums.items() if name in used]
        for name, terms in self.outputs.items():
            value = Sum.of((k, sorted(factors)) for k, factors in terms)
            if value.terms:
                lines.append(Statement(name, value, add=True))
        return lines
