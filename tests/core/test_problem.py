"""ConvProblem: validation, counts, text forms, key."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from mdcg import UnsupportedProblemError
from mdcg.problem import ConvProblem, Path

from .helpers import mixed_problem, small_problem

IN1, IN2, OUT = "8x0e+4x1o", "0e+1o", "8x0e+8x1o+4x1o+4x1e"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((2, 0, 0), r"path 1 \(2, 0, 0, uvu\): irreps_in1 has 2 blocks, got index 2"),
        ((0, 2, 0), r"path 1 .*: irreps_in2 has 2 blocks, got index 2"),
        ((0, 0, -1), r"path 1 .*: irreps_out has 4 blocks, got index -1"),
        ((0, 1, 0), r"path 1 .*: parity of 0e x 1o does not give 0e"),
        ((1, 1, 2), r"path 1 .*: parity of 1o x 1o does not give 1o"),
        ((0, 0, 3), r"path 1 .*: 0e x 0e does not contain 1e"),
        ((1, 0, 1), r"path 1 .*: uvu needs equal multiplicities, got 4 in and 8 out"),
        ((1, 0, 1, "uvw", False), r"path 1 .*: uvw without weights is not defined"),
        ((0, 0, 0, "uvu", True, float("nan")), r"path 1 .*: path weight is nan, expected a finite"),
    ],
)
def test_paths_are_checked(path: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvProblem.build(IN1, IN2, OUT, [(0, 0, 0), path])


@pytest.mark.parametrize("mode", ["uuu", "uvv", "uuw", "uvuv", "uvu<v", ""])
def test_other_modes_are_unsupported(mode: str) -> None:
    with pytest.raises(
        UnsupportedProblemError, match="no generated kernel, only uvu and uvw do: keep"
    ):
        ConvProblem.build(IN1, IN2, OUT, [(0, 0, 0, mode)])


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("layout", "ir-mul", "mul_ir, ir_mul"), ("dtype", "float16", "float32, float64")],
)
def test_options_are_checked(option: str, value: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is '{value}', expected one of {allowed}"):
        small_problem(**{option: value})


def test_counts() -> None:
    problem = mixed_problem()
    assert len(problem.paths) == 7
    shapes = [problem.weight_shape(path) for path in problem.paths]
    assert shapes == [(5, 2), (5, 1, 6), (3, 2, 6), (0,), (3, 1), (3, 1, 5), (2, 1, 6)]
    assert problem.weight_numel == 10 + 30 + 36 + 0 + 3 + 15 + 12
    assert problem.weight_offsets == (0, 10, 40, 76, 76, 79, 94)
    # nonzeros per path: scalar coupling 2l+1, cross product 6, dot product 3
    assert problem.nnz == 1 + 3 + 3 + 3 + 6 + 3 + 6


def test_is_frozen_and_hashable() -> None:
    problem = small_problem()
    with pytest.raises(FrozenInstanceError):
        problem.dtype = "float64"  # type: ignore[misc]
    assert hash(problem) == hash(small_problem())
    assert problem == small_problem()
    assert problem != small_problem(layout="ir_mul")


def test_text_says_what_it_is() -> None:
    text = str(mixed_problem(dtype="float64", layout="ir_mul", shared_weights=True))
    assert text.startswith("ConvProblem ")
    for part in (
        "5x0e+3x1o+2x1e+4x2e (x) 2x0e+1x1o -> 5x0e+6x1o+3x1o+3x1e",
        "7 paths",
        "25 nonzeros",
        "106 weights (shared)",
        "float64",
        "ir_mul",
    ):
        assert part in text
    assert "(per edge)" in str(small_problem())


VARIANTS: list[dict[str, Any]] = [
    {},
    {"dtype": "float64"},
    {"layout": "ir_mul"},
    {"shared_weights": True},
    {"flipped": ((1, 1, 0),)},
    {"rounded": ((1, 1, 0),)},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("make", [small_problem, mixed_problem])
def test_json_round_trip(make: Any, options: dict[str, Any]) -> None:
    problem = make(**options)
    again = ConvProblem.from_json(problem.to_json())
    assert again == problem
    assert again.to_json() == problem.to_json()
    assert again.key() == problem.key()


def test_path_weights_survive_exactly() -> None:
    value = 0.1 + 0.2
    problem = ConvProblem.build("1x0e", "0e", "1x0e", [(0, 0, 0, "uvu", True, value)])
    assert ConvProblem.from_json(problem.to_json()).paths[0].path_weight == value


def test_key_tells_problems_apart() -> None:
    base = mixed_problem()
    changed = [mixed_problem(**options) for options in VARIANTS[1:]]
    changed.append(replace(base, paths=base.paths[:-1]))
    changed.append(replace(base, paths=(base.paths[1], base.paths[0], *base.paths[2:])))
    changed.append(replace(base, paths=(replace(base.paths[0], path_weight=1.2500000000000002),)))
    keys = {base.key(), *(problem.key() for problem in changed)}
    assert len(keys) == 1 + len(changed)
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)


def test_key_is_stable() -> None:
    """Keys of problems are fixed, because cached kernels are found by them.

    Hash seeds differ between processes, so the test also fails if a key depends on them.
    """
    assert small_problem().key() == "80029adff201cd8a"
    assert mixed_problem(dtype="float64").key() == "9191c4c43dcf6dc5"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"format": 1}', '{"format": 99}', '"x"']
)
def test_bad_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ConvProblem.from_json(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("irreps_in1", None),
        ("paths", [[0, 0]]),
        ("paths", 3),
        ("dtype", "int8"),
        ("flipped", [[1]]),
    ],
)
def test_damaged_json_is_refused(field: str, value: Any) -> None:
    data = json.loads(small_problem().to_json()) | {field: value}
    with pytest.raises(ValueError):
        ConvProblem.from_json(json.dumps(data))


def test_with_dtype() -> None:
    single = mixed_problem(flipped=((1, 1, 0),), rounded=((1, 1, 1),))
    double = single.with_dtype("float64")
    assert double.dtype == "float64"
    assert double.with_dtype("float32") == single
    assert single.with_dtype("float32") is single
    assert (double.w3j((1, 1, 0)) == single.w3j((1, 1, 0))).all()
    with pytest.raises(ValueError, match="dtype is 'bfloat16'"):
        single.with_dtype("bfloat16")


def test_flipped_and_rounded_symbols() -> None:
    plain = small_problem().w3j((1, 1, 0))
    assert (small_problem(flipped=((1, 1, 0),)).w3j((1, 1, 0)) == -plain).all()
    rounded = small_problem(rounded=((1, 1, 0),)).w3j((1, 1, 0))
    assert (rounded == plain.astype("float32")).all()
    assert (rounded != plain).any()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_are_equal(copied: Any) -> None:
    problem = mixed_problem(flipped=((1, 1, 0),))
    problem.w3j((1, 1, 0))
    assert copied(problem) == problem
    assert copied(problem).key() == problem.key()


def test_problems_without_paths_or_blocks() -> None:
    problem = ConvProblem.build("8x0e", "0e", "8x0e", [])
    assert (len(problem.paths), problem.nnz, problem.weight_numel) == (0, 0, 0)
    assert ConvProblem.build("", "", "", []).irreps_out.dim == 0


def test_build_takes_paths_of_any_length() -> None:
    full = Path(0, 0, 0, "uvu", True, 1.0)
    for path in ((0, 0, 0), (0, 0, 0, "uvu"), (0, 0, 0, "uvu", True), (0, 0, 0, "uvu", True, 1.0)):
        assert ConvProblem.build("8x0e", "0e", "8x0e", [path]).paths == (full,)
