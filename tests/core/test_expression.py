"""Values that kernels compute once: equal sums, and couplings with shared values."""

from __future__ import annotations

from mdcg.codegen import lower
from mdcg.codegen.common.expression import (
    LinearForm,
    Statement,
    Sum,
    print_statements,
    signed_unique,
)
from mdcg.problem import ConvProblem

from .helpers import all_paths


def text(statements: list[Statement], **options: object) -> list[str]:
    return print_statements(statements, literal=lambda v: f"{v:g}", **options)  # type: ignore[arg-type]


# -- linear forms ---------------------------------------------------------------------------------


def test_forms_that_differ_by_rounding_are_shared() -> None:
    a, b = LinearForm.of([(0, 0.1 + 0.2)]), LinearForm.of([(0, -0.3)])
    unique, uses = signed_unique([a, b, LinearForm.of([(0, 0.30001)])])
    assert uses == ((0, 1), (0, -1), (1, 1))
    assert unique[0] is a


# -- sums and printing ----------------------------------------------------------------------------


def test_equal_sums_are_evaluated_once() -> None:
    value = Sum.of([(2.0, ["x"]), (1.0, ["y"])])
    lines = text([Statement("a", value), Statement("b", value), Statement("c", value, add=True)])
    assert lines == ["a = 2 * x + y;", "b = a;", "c += a;"]


def test_a_single_product_is_not_worth_a_name() -> None:
    value = Sum.of([(2.0, ["x"])])
    assert text([Statement("a", value), Statement("b", value)]) == ["a = 2 * x;", "b = 2 * x;"]


# -- lowering -------------------------------------------------------------------------------------


def test_equal_entries_share_a_nonzero() -> None:
    """1o x 0e -> 1o is a multiple of the unit matrix and has one nonzero value."""
    problem = ConvProblem.build("8x1o", "0e", "8x1o", [(0, 0, 0)])
    (path,) = lower(problem).paths
    assert path.coupling.num_nonzeros == 1
    assert [(e.a, e.c, e.sign) for e in path.coupling.entries] == [(i, i, 1) for i in range(3)]


def test_opposite_entries_share_a_nonzero() -> None:
    """The six entries of the antisymmetric cross product share three nonzero values."""
    problem = ConvProblem.build("8x1o", "1o", "8x1e", [(0, 0, 0)])
    (path,) = lower(problem).paths
    assert path.coupling.num_nonzeros == 3
    assert len(path.coupling.entries) == 6
    assert sum(entry.sign for entry in path.coupling.entries) == 0


def test_paths_of_equal_coupling_share_nonzeros() -> None:
    """Paths with equal harmonics, degrees and path weight share nonzero values per edge."""
    problem = ConvProblem.build("8x1o+4x1o", "1o", "8x1e+4x1e", [(0, 0, 0), (1, 0, 1)])
    assert lower(problem).num_nonzeros == 3
    assert [path.first_nonzero for path in lower(problem).paths] == [0, 0]
    other = ConvProblem.build(
        "8x1o+4x1o", "1o", "8x1e+4x1e", [(0, 0, 0), (1, 0, 1, "uvu", True, 2.0)]
    )
    assert lower(other).num_nonzeros == 6


def test_sharing_pays_in_a_real_layer() -> None:
    """The paths of mace-large's second layer need fewer values per edge than nonzero 3j symbols."""
    irreps = ("2x0e+2x1o+2x2e", "0e+1o+2e+3o", "2x0e+2x1o+2x2e+2x3o")
    problem = ConvProblem.build(*irreps, all_paths(*irreps))
    lowered = lower(problem)
    entries = sum(len(path.coupling.entries) for path in lowered.paths)
    assert lowered.num_nonzeros < entries < problem.nnz


def test_empty_blocks_disappear() -> None:
    problem = ConvProblem.build("0x0e+4x1o", "0e+0x1o", "0x0e+4x1o", [(0, 0, 0), (1, 0, 1)])
    assert len(lower(problem).paths) == 1
    assert lower(problem).num_nonzeros == 1
