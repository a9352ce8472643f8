"""The sums of one path and one channel, as expressions that every target prints.

Names: ``x`` and ``a`` are features and their cotangent, ``g`` the gradient of the output, ``wv``
and ``cv`` the weight and its cotangent, ``m`` and ``b`` nonzeros of the path matrix for the edge
attributes and for their cotangent, ``s`` and ``r`` weighted features, ``q`` and ``h`` gradients
pulled back, ``d``, ``dwv`` and ``p`` gradients of features, weight and nonzeros, ``o`` the message.
If a path has a weight matrix W, ``q`` is W g, and ``h`` is C g with its cotangent C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .expression import Statement, Sum, Term, literal, print_statements
from .lowering import Coupling
from .spec import KernelSpec

__all__ = ["left_sums", "output_sums", "pull_terms", "uvu_lines", "uvu_sums"]


def uvu_lines(
    coupling: Coupling,
    has_weight: bool,
    spec: KernelSpec,
    declare: str,
    add_output: Callable[[int], str],
    *,
    add_input: Callable[[int], str] = "dx{0} += d{0};".format,
    literal: Callable[[float], str] = literal,
) -> list[str]:
    """Print the sums of a uvu path. They add to gradients ``p``, which the caller has declared.

    `declare` is the type of a value. From the number of a component, `add_output` makes the
    statement that adds its message ``o`` to the total; `add_input` does so for its gradient ``d``.
    """
    lines = print_statements(
        uvu_sums(coupling, has_weight, spec),
        literal=literal,
        declare=declare,
        declared=[f"p{s}" for s in range(coupling.num_nonzeros)],
    )
    for i, message in output_sums(coupling, has_weight, spec).items():
        # the message first: adding each product to the large total would lose digits
        lines += print_statements([Statement(f"o{i}", message)], literal=literal, declare=declare)
        lines.append(add_output(i))
    return lines + [add_input(a) for a in range(coupling.dim_in) if spec.wanted("x")]


def left_sums(coupling: Coupling, spec: KernelSpec) -> Iterator[tuple[int, Sum, Sum]]:
    """Yield output components, and the sums that the weight matrix and its cotangent multiply."""
    for c, entries in coupling.by_output().items():
        mx = [(float(e.sign), (f"m{e.nonzero}", f"x{e.a}")) for e in entries]
        ma = [(float(e.sign), (f"m{e.nonzero}", f"a{e.a}")) for e in entries if spec.has("x")]
        bx = [(float(e.sign), (f"b{e.nonzero}", f"x{e.a}")) for e in entries if spec.has("y")]
        yield c, _sum_of(ma + bx if spec.kind == "double_backward" else mx), _sum_of(mx)


def pull_terms(
    coupling: Coupling, spec: KernelSpec
) -> tuple[dict[int, list[Term]], dict[int, list[Term]]]:
    """Return the terms of gradients of features and nonzeros, for a path with a weight matrix."""
    # (operand, matrix, gradient of the vector that is bilinear in the two)
    products = [("x", "m", "q")]
    if spec.kind == "double_backward":
        products = [("x", "m", "h")] if spec.has("w") else []
        products += [("x", "b", "q")] if spec.has("y") else []
        products += [("a", "m", "q")] if spec.has("x") else []
    features: dict[int, list[Term]] = {
        a: [
            (float(e.sign), (f"{matrix}{e.nonzero}", f"{letter}{e.c}"))
            for operand, matrix, letter in products
            if operand == "x"
            for e in entries
        ]
        for a, entries in coupling.by_input().items()
    }
    nonzeros: dict[int, list[Term]] = {
        nonzero: [
            (float(e.sign), (f"{operand}{e.a}", f"{letter}{e.c}"))
            for operand, matrix, letter in products
            if matrix == "m"
            for e in entries
        ]
        for nonzero, entries in coupling.by_nonzero().items()
    }
    return features, nonzeros


def _sum_of(terms: Iterable[tuple[float, Iterable[str]]]) -> Sum:
    """Return a sum of products."""
    return Sum.of((k, tuple(f)) for k, f in terms)


def uvu_sums(coupling: Coupling, has_weight: bool, spec: KernelSpec) -> list[Statement]:
    """Return all sums of a path except the messages. They add to nonzero gradients ``p``."""
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
            out.append(Statement(f"s{a}", _sum_of(terms)))
        if spec.has("y") and spec.wanted("g"):
            out.append(Statement(f"r{a}", _sum_of([(1.0, (*w, f"x{a}"))])))
    if kind == "forward":
        return out
    need_w = spec.wanted("w") and has_weight
    # (feature, its gradient) that add to the gradient of the weight; (weight, gradient) to dx
    double = kind == "double_backward"
    features, weights = [("x", "q")], [(*w, "q")]
    if double:
        features = [("a", "q")] if spec.has("x") else []
        features += [("x", "h")] if spec.has("y") else []
        weights = [("cv", "q")] if spec.has("w") and has_weight else []
        weights += [(*w, "h")] if spec.has("y") else []
    used = {g for _, g in features if need_w} | {f[-1] for f in weights if spec.wanted("x")}
    for a, entries in coupling.by_input().items():
        for matrix, letter in (("m", "q"), ("b", "h")):
            if letter in used:
                terms = [(float(e.sign), (f"{matrix}{e.nonzero}", f"g{e.c}")) for e in entries]
                out.append(Statement(f"{letter}{a}", _sum_of(terms)))
        if spec.wanted("x"):
            terms = [(1.0, (*f[:-1], f"{f[-1]}{a}")) for f in weights]
            out.append(Statement(f"d{a}", _sum_of(terms)))
    if need_w:
        terms = [
            (1.0, (f"{feature}{a}", f"{gradient}{a}"))
            for a in range(coupling.dim_in)
            for feature, gradient in features
        ]
        out.append(Statement("dwv", _sum_of(terms)))
    if spec.wanted("y"):
        for nonzero, entries in coupling.by_nonzero().items():
            terms = [(1.0, (f"p{nonzero}",))]
            terms += [(float(e.sign), (f"s{e.a}", f"g{e.c}")) for e in entries if scaled[e.a]]
            out.append(Statement(f"p{nonzero}", _sum_of(terms)))
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
            found[i] = _sum_of(terms)
    return found
