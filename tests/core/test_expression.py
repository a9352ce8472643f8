"""The expression layer and the lowering of problems to it."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mdcg.codegen import lower
from mdcg.codegen.common.expression import (
    LinearForm,
    Statement,
    Sum,
    print_statements,
    signed_unique,
)
from mdcg.problem import ConvProblem, wigner_3j

from .helpers import all_paths, mixed_problem, small_problem

VALUES = st.sampled_from([-2.0, -1.0, -0.3, 0.3, 1.0, 1.7320508075688772])
TERMS = st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=8)


def text(statements: list[Statement], **options: object) -> list[str]:
    return print_statements(statements, literal=lambda v: f"{v:g}", **options)  # type: ignore[arg-type]


# -- linear forms ---------------------------------------------------------------------------------


def evaluate(form: LinearForm, point: np.ndarray) -> float:
    return float(sum(value * point[index] for index, value in form.terms))


@given(TERMS)
def test_linear_form_keeps_the_value(terms: list[tuple[int, float]]) -> None:
    point = np.linspace(0.5, 1.7, 6)
    form = LinearForm.of(terms)
    assert evaluate(form, point) == pytest.approx(sum(v * point[i] for i, v in terms), abs=1e-12)
    indices = [index for index, _ in form.terms]
    assert indices == sorted(set(indices))
    assert all(value != 0 for _, value in form.terms)


def test_linear_form_drops_what_cancels() -> None:
    assert LinearForm.of([(3, 0.5), (1, 2.0), (3, -0.5)]).terms == ((1, 2.0),)
    assert LinearForm.of([(3, 0.0)]).terms == ()


@given(st.lists(TERMS, max_size=8))
def test_shared_forms_are_equal_up_to_sign(parts: list[list[tuple[int, float]]]) -> None:
    forms = [LinearForm.of(terms) for terms in parts]
    unique, uses = signed_unique(forms)
    assert len(uses) == len(forms)
    point = np.linspace(0.5, 1.7, 6)
    for form, (position, sign) in zip(forms, uses, strict=True):
        assert sign in (1, -1)
        assert sign * evaluate(unique[position], point) == pytest.approx(evaluate(form, point))
    keys = {form.key(sign) for form in unique for sign in (1, -1)}
    assert len(keys) == sum(1 if form.key(1) == form.key(-1) else 2 for form in unique)


def test_forms_that_differ_by_rounding_are_shared() -> None:
    a, b = LinearForm.of([(0, 0.1 + 0.2)]), LinearForm.of([(0, -0.3)])
    unique, uses = signed_unique([a, b, LinearForm.of([(0, 0.30001)])])
    assert uses == ((0, 1), (0, -1), (1, 1))
    assert unique[0] is a


# -- sums and printing ----------------------------------------------------------------------------


def test_sum_folds_repeated_products() -> None:
    total = Sum.of([(2.0, ["x", "y"]), (1.0, ["z"]), (-0.5, ["x", "y"]), (-1.0, ["z"])])
    assert total.terms == ((1.5, ("x", "y")),)


def test_units_and_signs_are_folded_into_the_text() -> None:
    value = Sum.of([(-1.0, ["x"]), (1.0, ["y", "z"]), (-2.0, ["x", "y"]), (0.5, [])])
    assert text([Statement("t", value)]) == ["t = -x + y * z - 2 * x * y + 0.5;"]


def test_first_term_may_have_any_sign() -> None:
    assert text([Statement("t", Sum.of([(-3.0, ["x"])]))]) == ["t = -3 * x;"]
    assert text([Statement("t", Sum.of([(1.0, ["x"])]))]) == ["t = x;"]


def test_equal_sums_are_evaluated_once() -> None:
    value = Sum.of([(2.0, ["x"]), (1.0, ["y"])])
    lines = text([Statement("a", value), Statement("b", value), Statement("c", value, add=True)])
    assert lines == ["a = 2 * x + y;", "b = a;", "c += a;"]


def test_a_single_product_is_not_worth_a_name() -> None:
    value = Sum.of([(2.0, ["x"])])
    assert text([Statement("a", value), Statement("b", value)]) == ["a = 2 * x;", "b = 2 * x;"]


def test_what_is_added_to_a_name_is_not_its_value() -> None:
    value = Sum.of([(2.0, ["x"]), (1.0, ["y"])])
    lines = text([Statement("a", value, add=True), Statement("b", value)])
    assert lines == ["a += 2 * x + y;", "b = 2 * x + y;"]


def test_declarations() -> None:
    x = Sum.of([(1.0, ["x"])])
    statements = [Statement("a", x), Statement("a", Sum(())), Statement("p", x)]
    assert text(statements, declare="V", declared=["p"]) == ["V a = x;", "a = V{};", "p = x;"]
    assert text([Statement("a", x, add=True)], declare="V") == ["a += x;"]


def test_empty_sums() -> None:
    empty = Sum.of([(1.0, ["x"]), (-1.0, ["x"])])
    assert text([Statement("a", empty)]) == ["a = 0;"]
    assert text([Statement("a", empty)], declare="V") == ["V a = V{};"]
    assert text([Statement("a", empty, add=True)]) == []


@given(st.lists(st.tuples(VALUES, st.lists(st.sampled_from("xyz"), max_size=3)), max_size=6))
def test_text_has_the_value_of_the_sum(terms: list[tuple[float, list[str]]]) -> None:
    names = {"x": 0.7, "y": -1.3, "z": 2.1}
    (line,) = print_statements([Statement("t", Sum.of(terms))], literal=repr)
    match = re.fullmatch(r"t = (.*);", line)
    assert match is not None
    want = sum(k * np.prod([names[f] for f in factors]) for k, factors in terms)
    assert eval(match[1], {}, names) == pytest.approx(want, abs=1e-12)


# -- lowering -------------------------------------------------------------------------------------


def path_matrix(problem: ConvProblem, number: int, y: np.ndarray) -> np.ndarray:
    """Return M_ca of a lowered path from the nonzeros at y."""
    lowered = lower(problem)
    path = lowered.paths[number]
    nonzeros = [evaluate(form, y) for group in lowered.groups for form in group.forms]
    matrix = np.zeros((path.coupling.dim_out, path.coupling.dim_in))
    for entry in path.coupling.entries:
        matrix[entry.c, entry.a] += entry.sign * nonzeros[path.first_nonzero + entry.nonzero]
    return matrix


@pytest.mark.parametrize("problem", [small_problem(), mixed_problem()], ids=["small", "mixed"])
def test_nonzeros_are_the_couplings(problem: ConvProblem, rng: np.random.Generator) -> None:
    y = rng.normal(size=problem.irreps_in2.dim)
    number = 0
    for path, offset in zip(problem.paths, problem.weight_offsets, strict=True):
        block = problem.irreps_in2[path.i_in2]
        for v in range(block.mul):
            part = y[block.offset + v * block.ir.dim :][: block.ir.dim]
            want = path.path_weight * np.einsum(
                "abc,b->ca", wigner_3j(*problem.degrees(path)), part
            )
            assert np.abs(path_matrix(problem, number, y) - want).max() < 1e-14
            lowered = lower(problem).paths[number]
            assert (lowered.v, lowered.mul2, lowered.weight_offset) == (v, block.mul, offset)
            number += 1
    assert number == len(lower(problem).paths)


def test_nonzero_positions_are_consecutive() -> None:
    lowered = lower(mixed_problem())
    first = 0
    for group in lowered.groups:
        assert group.first == first
        first += len(group.forms)
    assert first == lowered.num_nonzeros
    for path in lowered.paths:
        used = {entry.nonzero for entry in path.coupling.entries}
        assert used == set(range(path.coupling.num_nonzeros))
        assert path.first_nonzero + path.coupling.num_nonzeros <= lowered.num_nonzeros


def test_attribute_sums_are_the_transpose_of_the_nonzeros() -> None:
    lowered = lower(mixed_problem())
    found = {
        (b, nonzero): value
        for b, terms in lowered.attribute_sums().items()
        for nonzero, value in terms
    }
    want = {
        (b, group.first + position): value
        for group in lowered.groups
        for position, form in enumerate(group.forms)
        for b, value in form.terms
    }
    assert found == want
    assert set(lowered.attribute_sums()) == set(range(5))


def test_equal_entries_share_a_nonzero() -> None:
    """0e x lo -> lo is a multiple of the unit matrix: one nonzero for all channels."""
    problem = ConvProblem.build("8x1o", "0e", "8x1o", [(0, 0, 0)])
    (path,) = lower(problem).paths
    assert path.coupling.num_nonzeros == 1
    assert [(e.a, e.c, e.sign) for e in path.coupling.entries] == [(i, i, 1) for i in range(3)]


def test_opposite_entries_share_a_nonzero() -> None:
    """The cross product is antisymmetric: six entries, three nonzeros."""
    problem = ConvProblem.build("8x1o", "1o", "8x1e", [(0, 0, 0)])
    (path,) = lower(problem).paths
    assert path.coupling.num_nonzeros == 3
    assert len(path.coupling.entries) == 6
    assert sum(entry.sign for entry in path.coupling.entries) == 0


def test_paths_of_equal_coupling_share_nonzeros() -> None:
    """Two paths with equal harmonics, degrees and weight: nonzeros are made once per edge."""
    problem = ConvProblem.build("8x1o+4x1o", "1o", "8x1e+4x1e", [(0, 0, 0), (1, 0, 1)])
    assert lower(problem).num_nonzeros == 3
    assert [path.first_nonzero for path in lower(problem).paths] == [0, 0]
    other = ConvProblem.build(
        "8x1o+4x1o", "1o", "8x1e+4x1e", [(0, 0, 0), (1, 0, 1, "uvu", True, 2.0)]
    )
    assert lower(other).num_nonzeros == 6


def test_sharing_pays_in_a_real_layer() -> None:
    """mace-large, second layer: far fewer values per edge than nonzero 3j symbols."""
    irreps = ("2x0e+2x1o+2x2e", "0e+1o+2e+3o", "2x0e+2x1o+2x2e+2x3o")
    problem = ConvProblem.build(*irreps, all_paths(*irreps))
    lowered = lower(problem)
    entries = sum(len(path.coupling.entries) for path in lowered.paths)
    assert lowered.num_nonzeros < entries < problem.nnz


def test_empty_blocks_disappear() -> None:
    problem = ConvProblem.build("0x0e+4x1o", "0e+0x1o", "0x0e+4x1o", [(0, 0, 0), (1, 0, 1)])
    assert len(lower(problem).paths) == 1
    assert lower(problem).num_nonzeros == 1
