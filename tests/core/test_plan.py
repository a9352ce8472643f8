"""Plans: what the heuristics choose and what can be given by hand; results do not depend on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdcg.ops import ConvTensorProduct, TensorProduct, conv, tensor_product
from mdcg.ops.host import HostKernels, host_device
from mdcg.plan import LEVELS, HostDevice, HostPlan, plan_host
from mdcg.plan.table_conv import TableConvTile
from mdcg.problem import ConvProblem

from .helpers import (
    check_conv,
    compile_ahead,
    mixed_problem,
    random_graph,
    random_operands,
    small_problem,
    usual_specs,
)

pytestmark = pytest.mark.compiler


def problem_of(mul: int, dtype: str = "float32") -> ConvProblem:
    return ConvProblem.build(f"{mul}x0e", "0e", f"{mul}x0e", [(0, 0, 0)], dtype=dtype)


@pytest.mark.parametrize(
    ("level", "dtype", "mul", "lanes"),
    [
        ("x86-64-v4", "float32", 128, 16),
        ("x86-64-v4", "float64", 128, 8),
        ("x86-64-v3", "float32", 128, 8),
        ("x86-64-v3", "float64", 128, 4),
        ("x86-64-v2", "float32", 128, 4),
        ("x86-64-v2", "float64", 128, 2),
        ("aarch64", "float32", 128, 4),
        ("generic", "float32", 128, 4),
        # The widest vector is used only if more than half of it is filled.
        ("x86-64-v4", "float32", 8, 8),
        ("x86-64-v4", "float32", 9, 16),
        ("x86-64-v4", "float32", 4, 4),
        ("x86-64-v4", "float32", 1, 4),
        ("x86-64-v4", "float64", 3, 4),
    ],
)
def test_lanes(level: str, dtype: str, mul: int, lanes: int) -> None:
    plan = plan_host(problem_of(mul, dtype), HostDevice(level=level))
    assert (plan.level, plan.lanes) == (level, lanes)


def test_larger_rows_make_smaller_blocks_of_senders() -> None:
    device = HostDevice("x86-64-v3", l2_bytes=1024 * 1024)
    chosen = [
        plan_host(problem_of(mul), device).senders_per_block for mul in (8, 1024, 4096, 10**6)
    ]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[2] >= chosen[3] >= 1
    small = HostDevice("x86-64-v3", l2_bytes=64 * 1024)
    assert plan_host(problem_of(1024), small).senders_per_block < chosen[1]


def test_plan_is_a_function_of_problem_and_device() -> None:
    device = HostDevice("x86-64-v3")
    assert plan_host(mixed_problem(), device) == plan_host(mixed_problem(), device)
    assert hash(plan_host(mixed_problem(), device)) == hash(plan_host(mixed_problem(), device))


def test_problems_without_channels_have_a_plan() -> None:
    for problem in (ConvProblem.build("", "", "", []), problem_of(0)):
        assert plan_host(problem, HostDevice()).lanes >= 1


# One changed field each; results must not depend on any.
CHANGES: list[dict[str, Any]] = [
    {"senders_per_block": 1},
    {"senders_per_block": 1000},
    {"accumulator_bytes": 1},
    {"accumulator_bytes": 10**9},
    {"prefetch_edges": 0},
    {"prefetch_edges": 50},
    {"streaming_stores": False},
]


def test_text_form() -> None:
    plan = plan_host(small_problem(), HostDevice("x86-64-v3"))
    text = str(plan)
    assert text.startswith("HostPlan(level='x86-64-v3', lanes=8, ")
    for name in (
        "senders_per_block",
        "accumulator_bytes",
        "prefetch_edges",
        "streaming_stores=True",
    ):
        assert name in text
    for changes in CHANGES:
        assert str(plan.with_changes(**changes)) != text, changes


def test_json_round_trip() -> None:
    plan = plan_host(small_problem(), HostDevice("x86-64-v3")).with_changes(
        lanes=2, prefetch_edges=9, streaming_stores=False
    )
    assert HostPlan.from_json(plan.to_json()) == plan
    assert plan.lanes == 2


@pytest.mark.parametrize(("mul", "padded"), [(0, 0), (1, 8), (8, 8), (9, 16), (128, 128)])
def test_padding(mul: int, padded: int) -> None:
    assert HostPlan("x86-64-v3", 8, 16).padded(mul) == padded


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "avx512"}, "plan level is 'avx512', expected one of x86-64-v4, "),
        ({"lanes": 3}, "plan has 3 lanes, expected a power of two"),
        ({"lanes": 0}, "plan has 0 lanes, expected a power of two"),
        ({"lanes": -4}, "plan has -4 lanes, expected a power of two"),
        ({"senders_per_block": 0}, "plan blocks must hold at least one sender"),
        ({"prefetch_edges": -1}, "edges ahead cannot be negative"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    good = HostPlan("x86-64-v3", 8, 16)
    with pytest.raises(ValueError, match=message):
        good.with_changes(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 33}, "batch 33 and 4 warps, expected 1 to 32"),
        ({"imbalance": 0}, "imbalance 0, expected at least 1"),
        (
            {"max_values_for_two_channels": -1},
            "max_values_for_two_channels -1 and max_values_for_two_edges 0, expected numbers",
        ),
        ({"registers": ((8, 128), (16, 256))}, "expected 0 to 255 per thread"),
        ({"degree": 8}, "polynomials of degree 8, expected an odd number from 3 on"),
        ({"degree": 1}, "polynomials of degree 1, expected an odd number from 3 on"),
    ],
)
def test_bad_tiles_of_table_convolutions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableConvTile(**changes)


def test_unknown_level_of_a_device_is_refused() -> None:
    with pytest.raises(ValueError, match="level is 'sse', expected one of x86-64-v4, "):
        HostDevice("sse")


# -- plans by hand --------------------------------------------------------------------------------


def supported_levels() -> list[str]:
    """Return the levels this machine runs, best first, without the automatic one."""
    best = host_device().level
    lower = list(LEVELS)[list(LEVELS).index(best) :]
    return [
        name for name in lower if name == best or (best.startswith("x86") and name != "aarch64")
    ] + ["generic"]


def plan_for(problem: ConvProblem, level: str, **changes: Any) -> HostPlan:
    return plan_host(problem, HostDevice(level)).with_changes(**changes)


GRAPH = random_graph(25, 22, 200, seed=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", list(LEVELS))
def test_instruction_set_levels(level: str, dtype: str) -> None:
    if level not in supported_levels():
        pytest.skip(f"this machine is {host_device().level}: it does not run {level}")
    problem = mixed_problem(dtype=dtype)
    plan = plan_for(problem, level)
    compile_ahead([(problem, usual_specs(True))], plan)
    check_conv(problem, GRAPH, plan=plan)


@pytest.mark.parametrize("lanes", [1, 2, 32])
def test_any_number_of_lanes(lanes: int) -> None:
    """Kernels with any number of lanes agree with the reference."""
    problem = mixed_problem()
    plan = plan_for(problem, host_device().level, lanes=lanes)
    compile_ahead([(problem, usual_specs(True))], plan)
    check_conv(problem, GRAPH, plan=plan)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_other_choices_do_not_change_results(changes: dict[str, Any]) -> None:
    problem = small_problem()
    plan = plan_for(problem, host_device().level, **changes)
    compile_ahead([(problem, usual_specs(True))], plan)
    check_conv(problem, GRAPH, plan=plan)


def test_plan_given_by_hand_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem()
    automatic = plan_host(problem, host_device())
    other = automatic.with_changes(lanes=2 if automatic.lanes != 2 else 4)
    used = []
    load = HostKernels.load
    monkeypatch.setattr(HostKernels, "load", lambda s, spec: used.append(s.plan) or load(s, spec))
    x, y, w = random_operands(problem, GRAPH.n_senders, GRAPH.n_edges, grad=True)
    sides = (GRAPH.sender, GRAPH.receiver, GRAPH.n_receivers)
    for plan in (None, other):
        out = ConvTensorProduct(problem, plan)(x, y, w, *sides)
        torch.autograd.grad(out.sum(), [x, y, w])
        TensorProduct(problem, plan)(x[:5], y[:5], w[:5])
        conv(problem, x, y, w, *sides[:2], num_receivers=sides[2], plan=plan)
        tensor_product(problem, x[:5], y[:5], w[:5], plan=plan)
    assert used == [automatic] * 5 + [other] * 5
