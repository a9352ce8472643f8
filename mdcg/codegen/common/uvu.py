"""The sums of one uvu path and one channel, the same on every target.

Names: ``x`` and ``a`` are features and their cotangent, ``g`` the gradient of the output, ``wv``
and ``cv`` the weight and its cotangent, ``m`` and ``b`` nonzeros of the path matrix for the edge
attributes and for their cotangent, ``s`` and ``r`` weighted features, ``q`` and ``h`` gradients
pulled back, ``d``, ``dwv`` and ``p`` gradients of features, weight and nonzeros, ``o`` the message.
"""

from __future__ import annotations

from collections.abc import Iterable

from .expression import Statement, Sum, Term
from .lowering import Coupling
from .spec import KernelSpec

__all__ = ["output_sums", "sum_of", "uvu_sums"]


def sum_of(terms: Iterable[tuple[float, Iterable[str]]]) -> Sum:
    """Return a sum of products."""
    return Sum.of((k, tuple(f)) for k, f in terms)


def uvu_sums(coupling: Coupling, has_weight: bool, spec: KernelSpec) -> list[Statement]:
    """Return all sums of a path but the messages; nonzero gradients ``p`` are added to."""
    w = ("wv",) if has_weight else ()
    kind = spec.kind
    out: list[Statement] = []
    scaled: dict[int, list[Term]] = {}
    for a in range(coupling.dim_in):
        if kind == "double_backward":
            terms: list[Term] = []
            terms += [(1.0, (*w, f"a{a}"))] if spec.has("x") else []
            terms += [(1.0, ("cv", f"x{a}"))] if spec.has("w") and has_weight else []
        else:
            terms = [(1.0, (*w, f"x{a}"))]
        scaled[a] = terms
        if terms and (kind == "forward" or spec.wanted("y") or spec.wanted("g")):
            out.append(Statement(f"s{a}", sum_of(terms)))
        if spec.has("y") and spec.wanted("g"):
            out.append(Statement(f"r{a}", sum_of([(1.0, (*w, f"x{a}"))])))
    if kind == "forward":
        return out
    need_w = spec.wanted("w") and has_weight
    weighted_c = spec.has("w") and has_weight
    for a, entries in coupling.by_input().items():
        pulled = [(float(e.sign), (f"m{e.nonzero}", f"g{e.c}")) for e in entries]
        pulled_b = [(float(e.sign), (f"b{e.nonzero}", f"g{e.c}")) for e in entries]
        if kind == "backward":
            if spec.wanted("x") or need_w:
                out.append(Statement(f"q{a}", sum_of(pulled)))
            if spec.wanted("x"):
                out.append(Statement(f"d{a}", sum_of([(1.0, (*w, f"q{a}"))])))
            continue
        if (spec.wanted("x") and weighted_c) or (need_w and spec.has("x")):
            out.append(Statement(f"q{a}", sum_of(pulled)))
        if spec.has("y") and (spec.wanted("x") or need_w):
            out.append(Statement(f"h{a}", sum_of(pulled_b)))
        if spec.wanted("x"):
            terms = [(1.0, ("cv", f"q{a}"))] if weighted_c else []
            terms += [(1.0, (*w, f"h{a}"))] if spec.has("y") else []
            out.append(Statement(f"d{a}", sum_of(terms)))
    if need_w:
        terms = []
        for a in range(coupling.dim_in):
            if kind == "backward":
                terms.append((1.0, (f"x{a}", f"q{a}")))
            else:
                terms += [(1.0, (f"a{a}", f"q{a}"))] if spec.has("x") else []
                terms += [(1.0, (f"x{a}", f"h{a}"))] if spec.has("y") else []
        out.append(Statement("dwv", sum_of(terms)))
    if spec.wanted("y"):
        for nonzero, entries in coupling.by_nonzero().items():
            terms = [(1.0, (f"p{nonzero}",))]
            terms += [(float(e.sign), (f"s{e.a}", f"g{e.c}")) for e in entries if scaled[e.a]]
            out.append(Statement(f"p{nonzero}", sum_of(terms)))
    return out


def output_sums(coupling: Coupling, has_weight: bool, spec: KernelSpec) -> dict[int, Sum]:
    """Return the message of a path by output component: ``M_ac s_a + B_ac r_a`` over a."""
    found: dict[int, Sum] = {}
    double = spec.kind == "double_backward"
    if spec.kind == "backward" or (double and not spec.wanted("g")):
        return found
    has_scaled = not double or spec.has("x") or (spec.has("w") and has_weight)
    for i, entries in coupling.by_output().items():
        terms: list[Term] = []
        if has_scaled:
            terms += [(float(e.sign), (f"m{e.nonzero}", f"s{e.a}")) for e in entries]
        if spec.has("y"):
            terms += [(float(e.sign), (f"b{e.nonzero}", f"r{e.a}")) for e in entries]
        if terms:
            found[i] = sum_of(terms)
    return found
