"""Results that must be equal to the last bit, and results that are equal only to rounding.

Equal operands in equal order give equal bits for any number of threads. Every sum over edges runs
in the order of the edges at one receiver, so a new edge order that keeps the order at each receiver
changes nothing, and any other order changes the sums by rounding. Per-edge results never depend on
other edges.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from mdcg.ops import conv, tensor_product
from mdcg.problem import ConvProblem

from .helpers import (
    Graph,
    assert_close,
    compile_ahead,
    derivatives,
    generator,
    mixed_problem,
    random_graph,
    random_operands,
    small_problem,
    threads,
    usual_specs,
)

pytestmark = pytest.mark.compiler

PROBLEMS = {
    "small": small_problem(),
    "mixed": mixed_problem(),
    "mixed, shared": mixed_problem(shared_weights=True),
    "float64": mixed_problem(dtype="float64"),
}
# enough edges for several tasks, blocks and rounds
GRAPH = random_graph(150, 130, 2500, seed=3)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    compile_ahead([(problem, usual_specs(True)) for problem in PROBLEMS.values()])
    compile_ahead([(PROBLEMS["mixed, shared"], usual_specs(False))])


def run(
    problem: ConvProblem, graph: Graph, operands: Any, order: int = 2
) -> dict[str, torch.Tensor]:
    """Return value and derivatives of a convolution."""
    x, y, w = (t.detach().clone().requires_grad_() for t in operands)
    out = conv(problem, x, y, w, graph.sender, graph.receiver, num_receivers=graph.n_receivers)
    return derivatives(out, [x, y, w], order)


def assert_equal_bits(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        assert torch.equal(got[name], value), f"{name} differs"


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_bits_every_time_and_for_any_number_of_threads(name: str) -> None:
    problem = PROBLEMS[name]
    operands = random_operands(problem, GRAPH.n_senders, GRAPH.n_edges)
    with threads(1):
        want = run(problem, GRAPH, operands)
    for count in (1, 2, 2, 3, 5):
        with threads(count):
            assert_equal_bits(run(problem, GRAPH, operands), want)


def test_batched_product_has_the_same_bits_for_any_number_of_threads() -> None:
    problem = PROBLEMS["mixed, shared"]
    operands = random_operands(problem, 700, 700)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            x, y, w = (t.clone().requires_grad_() for t in operands)
            results.append(derivatives(tensor_product(problem, x, y, w), [x, y, w], order=2))
    assert_equal_bits(results[1], results[0])
    assert_equal_bits(results[2], results[0])


def test_rows_do_not_depend_on_their_place() -> None:
    problem = PROBLEMS["mixed, shared"]
    x, y, w = random_operands(problem, 131, 131)
    whole = tensor_product(problem, x, y, w)
    parts = [tensor_product(problem, x[i:j], y[i:j], w) for i, j in ((0, 1), (1, 68), (68, 131))]
    assert torch.equal(torch.cat(parts), whole)


def permuted(graph: Graph, operands: Any, order: torch.Tensor) -> tuple[Graph, Any]:
    x, y, w = operands
    w = w if w.dim() == 1 else w[order]
    moved = Graph(graph.sender[order], graph.receiver[order], graph.n_senders, graph.n_receivers)
    return moved, (x, y[order], w)


@pytest.mark.parametrize("name", ["small", "mixed"])
def test_edge_order_that_keeps_the_order_at_each_receiver_changes_nothing(name: str) -> None:
    problem = PROBLEMS[name]
    operands = random_operands(problem, GRAPH.n_senders, GRAPH.n_edges)
    want = run(problem, GRAPH, operands, order=1)
    order = torch.argsort(GRAPH.receiver, stable=True)
    # random order of receivers, unchanged order of edges at each receiver
    shuffled = torch.randperm(GRAPH.n_receivers, generator=generator(2))
    for place in (order, torch.argsort(shuffled[GRAPH.receiver], stable=True)):
        got = run(problem, *permuted(GRAPH, operands, place), order=1)
        assert torch.equal(got["value"], want["value"])
        assert torch.equal(got["order 1, input 0"], want["order 1, input 0"])
        for k in (1, 2):
            assert torch.equal(got[f"order 1, input {k}"], want[f"order 1, input {k}"][place])


@pytest.mark.parametrize("name", ["small", "mixed"])
def test_any_other_edge_order_changes_sums_by_rounding_only(name: str) -> None:
    problem = PROBLEMS[name]
    operands = random_operands(problem, GRAPH.n_senders, GRAPH.n_edges)
    want = run(problem, GRAPH, operands, order=1)
    order = torch.randperm(GRAPH.n_edges, generator=generator(4))
    got = run(problem, *permuted(GRAPH, operands, order), order=1)
    for k in (1, 2):  # these are per edge
        assert torch.equal(got[f"order 1, input {k}"], want[f"order 1, input {k}"][order])
    for key in ("value", "order 1, input 0"):
        assert_close(got[key], want[key], 1e-6, key)
    # otherwise the test would not have changed the order of sums
    assert not torch.equal(got["value"], want["value"])


def test_python_threads_at_once() -> None:
    """Python threads with several problems and graphs give equal bits."""
    jobs = []
    for seed in range(8):
        problem = PROBLEMS["small"] if seed % 2 else PROBLEMS["mixed"]
        graph = random_graph(40, 40, 400, seed=seed)
        jobs.append((problem, graph, random_operands(problem, 40, 400, seed=seed)))
    want = [run(*job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, expected in zip(pool.map(lambda job: run(*job), jobs), want, strict=True):
                assert_equal_bits(got, expected)
