"""Edges in pairs: the two directions of one, and convolutions that share their weights."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from mdcg.codegen import KernelSpec
from mdcg.ops import conv
from mdcg.ops.graph import graph_of
from mdcg.ops.paired import can_pair, conv_of_pairs, find_pairs, mean_of_pairs
from mdcg.problem import ConvProblem

from .helpers import RTOL, assert_close, derivatives, generator, mixed_problem, recorded_specs

pytestmark = pytest.mark.compiler

NODES = 23
ISOLATED = 5


@dataclass(frozen=True)
class Edges:
    """Shuffled edges with vectors, what weights are made from, and the partner of each."""

    sender: torch.Tensor
    receiver: torch.Tensor
    vectors: torch.Tensor
    features: torch.Tensor
    partner: torch.Tensor

    def attrs(self, problem: ConvProblem) -> torch.Tensor:
        block = next(b for b in problem.irreps_in2 if b.ir.l == 1)
        gen = generator(8)
        y = torch.randn(len(self.sender), problem.irreps_in2.dim, generator=gen).double()
        y[:, block.offset : block.offset + 3] = self.vectors
        return y.to(getattr(torch, problem.dtype))


def make_edges(both: int = 70, alone: int = 12, seed: int = 1) -> Edges:
    """Return edges in both directions and others in one: double edges and self-images occur."""
    gen = generator(seed)
    nodes = torch.tensor([n for n in range(NODES) if n != ISOLATED])
    i, j, only_i, only_j = (
        nodes[torch.randint(len(nodes), (n,), generator=gen)] for n in (both, both, alone, alone)
    )
    i[:4], j[:4] = 3, 7  # four images between two nodes
    i[4:7] = j[4:7] = 2  # three images of one node
    v, w = (torch.randn(n, 3, generator=gen).double() for n in (both, alone))
    v[1] = v[0]  # a duplicate edge
    f, h = (torch.rand(n, 5, generator=gen).double() for n in (both, alone))
    f[1] = f[0]
    count = 2 * both + alone
    order = torch.randperm(count, generator=gen)
    where = torch.argsort(order)
    other = torch.cat(
        [torch.arange(both) + both, torch.arange(both), torch.arange(alone) + 2 * both]
    )
    return Edges(
        torch.cat([i, j, only_i])[order],
        torch.cat([j, i, only_j])[order],
        torch.cat([v, -v, w])[order],
        torch.cat([f, f, h])[order],
        where[other[order]],
    )


def problem_of(dtype: str = "float64") -> ConvProblem:
    paths = [
        (0, 0, 0),
        (0, 1, 1),
        (1, 1, 2),
        (1, 0, 3, "uvu", True, 0.7),
        (1, 2, 3),
        (1, 1, 0, "uvw"),
    ]
    return ConvProblem.build("11x0e+5x1o", "0e+1o+2e", "11x0e+11x1o+5x0e+5x1o", paths, dtype=dtype)


def pairs_of(problem: ConvProblem, edges: Edges):  # type: ignore[no-untyped-def]
    dtype = getattr(torch, problem.dtype)
    features = edges.features.to(dtype)
    return find_pairs(problem, edges.attrs(problem), features, edges.sender, edges.receiver, NODES)


# -- which edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_pairs_are_found(dtype: str, index: torch.dtype) -> None:
    edges, problem = make_edges(), problem_of(dtype)
    y, features = edges.attrs(problem), edges.features.to(getattr(torch, dtype))
    pairs = find_pairs(
        problem, y, features, edges.sender.to(index), edges.receiver.to(index), NODES
    )
    assert pairs is not None
    assert len(pairs) == 70 + 12
    for row, (a, b) in enumerate(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)):
        assert pairs.row[a] == row
        assert pairs.row[b] == row
        # equal edges are interchangeable as partners
        assert torch.equal(edges.vectors[b], edges.vectors[int(edges.partner[a])])
        assert (a == b) == (int(edges.partner[a]) == a)
        if a != b:
            assert (edges.sender[a], edges.receiver[a]) == (edges.receiver[b], edges.sender[b])
    assert sorted({*pairs.first.tolist(), *pairs.second.tolist()}) == list(range(152))


def test_edges_of_unequal_features_are_no_pairs() -> None:
    """Two directions of an edge are a pair only if their features are equal."""
    edges, problem = make_edges(), problem_of()
    features = edges.features.clone()
    one = int((edges.partner != torch.arange(152)).nonzero()[0])
    features[one, 2] *= 1 + 1e-9
    where = (edges.sender, edges.receiver, NODES)
    pairs = find_pairs(problem, edges.attrs(problem), features, *where)
    assert pairs is not None
    assert len(pairs) == 83
    features[one, 2] = float("nan")
    assert len(find_pairs(problem, edges.attrs(problem), features, *where) or ()) == 83
    differ = torch.rand(features.shape, generator=generator(3)).double()
    assert find_pairs(problem, edges.attrs(problem), differ, *where) is None


def test_digits_that_vector_code_loses_make_no_difference() -> None:
    edges, problem = make_edges(), problem_of()
    gen = generator(6)
    noise = 1 + 2e-16 * torch.randn(edges.features.shape, generator=gen).double()
    where = (edges.sender, edges.receiver, NODES)
    pairs = find_pairs(problem, edges.attrs(problem), edges.features * noise, *where)
    assert pairs is not None
    assert len(pairs) == 82


def test_new_vectors_on_an_old_list_are_seen() -> None:
    """Pairs are found again if edges exchange their vectors while senders and receivers stay."""
    edges, problem = make_edges(), problem_of()
    y = edges.attrs(problem)
    where = (edges.sender, edges.receiver, NODES)
    before = find_pairs(problem, y, edges.features, *where)
    forth = ((edges.sender == 3) & (edges.receiver == 7)).nonzero()[:, 0]
    apart = (edges.vectors[forth] != edges.vectors[forth[0]]).any(1)  # one of them is a duplicate
    forth = torch.stack([forth[0], forth[apart][0]])
    features = edges.features.clone()
    y[forth], features[forth] = y[forth.flip(0)], features[forth.flip(0)]
    after = find_pairs(problem, y, features, *where)
    assert before is not None
    assert after is not None
    assert len(after) == len(before)
    mixed = y[after.first, 1:4] + y[after.second, 1:4]
    assert float(mixed[(after.first != after.second)].abs().max()) == 0.0
    assert not torch.equal(after.second, before.second)


@pytest.mark.parametrize("why", ["no direction", "two vectors", "shared", "few", "empty", "type"])
def test_where_nothing_is_paired(why: str) -> None:
    edges = make_edges(4, 40) if why == "few" else make_edges()
    second = {"no direction": "0e+2e", "two vectors": "0e+2x1o"}.get(why, "0e+1o")
    options = {"shared_weights": True} if why == "shared" else {}
    problem = ConvProblem.build("3x0e", second, "3x0e", [(0, 0, 0)], **options)
    y = torch.randn(len(edges.sender), problem.irreps_in2.dim)
    if "1o" in second:
        y[:, 1:4] = edges.vectors.float()
    features = edges.features if why == "type" else edges.features.float()
    end = 0 if why == "empty" else len(y)
    cut = (y[:end], features[:end], edges.sender[:end], edges.receiver[:end])
    assert find_pairs(problem, *cut, NODES) is None


def test_not_where_values_cannot_be_looked_at() -> None:
    seen = []

    def record(x: torch.Tensor) -> torch.Tensor:
        seen.append(can_pair(x))
        return x.sum()

    x = torch.ones(3)
    record(x)
    torch.func.grad(record)(x)
    torch.func.jvp(record, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        record(x)
    with torch.autocast("cpu"):
        record(x)
    record(torch.nn.Parameter(x))
    record(x.to("meta"))
    assert seen == [True] + 6 * [False]


# -- convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("order", [1, 2])
def test_same_as_a_row_of_weights_per_edge(dtype: str, order: int) -> None:
    edges, problem = make_edges(), problem_of(dtype)
    kind = getattr(torch, dtype)
    pairs = pairs_of(problem, edges)
    gen = generator(2)
    x = torch.randn(NODES, problem.irreps_in1.dim, generator=gen).to(kind)
    matrix = torch.randn(5, problem.weight_numel, generator=gen).to(kind)
    given = [x, edges.attrs(problem), edges.features.to(kind), matrix]

    def paired(x: torch.Tensor, y: torch.Tensor, f: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        w = torch.tanh(mean_of_pairs(f, pairs) @ m)
        return conv_of_pairs(problem, x, y, w, edges.sender, edges.receiver, pairs)

    def single(x: torch.Tensor, y: torch.Tensor, f: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        means = (0.5 * (f[pairs.first] + f[pairs.second]))[pairs.row.long()]
        return conv(problem, x, y, torch.tanh(means @ m), edges.sender, edges.receiver)

    inputs = [value.clone().requires_grad_() for value in given]
    with recorded_specs() as specs:
        got = derivatives(paired(*inputs), inputs, order)
    inputs = [value.clone().requires_grad_() for value in given]
    want = derivatives(single(*inputs), inputs, order)
    for name, value in want.items():
        assert_close(got[name], value, RTOL[dtype], name)
    assert not bool(got["value"][ISOLATED].any())
    used = {"conv_forward_paired", "conv_backward_wants_xyw_paired"}
    assert used <= set(specs) if order == 1 else "conv_forward_paired" in specs


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_gradients_that_are_wanted_alone(wanted: tuple[int, ...]) -> None:
    edges, problem = make_edges(), mixed_problem(dtype="float64")
    pairs = pairs_of(problem, edges)
    assert pairs is not None
    gen = generator(2)
    given = [
        torch.randn(NODES, problem.irreps_in1.dim, generator=gen).double(),
        edges.attrs(problem),
        torch.randn(len(pairs), problem.weight_numel, generator=gen).double(),
    ]
    where = (edges.sender, edges.receiver)
    for slot in wanted:
        given[slot].requires_grad_()
    leaves = [given[slot] for slot in wanted]
    x, y, w = given
    g = torch.randn(NODES, problem.irreps_out.dim, generator=gen).double()
    got = torch.autograd.grad(conv_of_pairs(problem, x, y, w, *where, pairs), leaves, g)
    want = torch.autograd.grad(conv(problem, x, y, w[pairs.row.long()], *where), leaves, g)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-12)


def test_same_bits_for_every_number_of_threads() -> None:
    edges, problem = make_edges(400, 30), problem_of("float32")
    pairs = pairs_of(problem, edges)
    gen = generator(2)
    x = torch.randn(NODES, problem.irreps_in1.dim, generator=gen).requires_grad_()
    y = edges.attrs(problem).requires_grad_()
    w = torch.randn(len(pairs), problem.weight_numel, generator=gen).requires_grad_()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = conv_of_pairs(problem, x, y, w, edges.sender, edges.receiver, pairs)
            found.append([out.detach(), *torch.autograd.grad(out.sum(), (x, y, w))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_many_gradients_at_once() -> None:
    """Gradients with ``is_grads_batched``, which uses vmap, equal single ones."""
    edges, problem = make_edges(), problem_of()
    pairs = pairs_of(problem, edges)
    gen = generator(2)
    x = torch.randn(NODES, problem.irreps_in1.dim, generator=gen).double().requires_grad_()
    f = edges.features.clone().requires_grad_()
    m = torch.randn(5, problem.weight_numel, generator=gen).double()
    w = mean_of_pairs(f, pairs) @ m
    y = edges.attrs(problem)
    out = conv_of_pairs(problem, x, y, w, edges.sender, edges.receiver, pairs)
    many = torch.randn(3, *out.shape, generator=gen).double()
    got = torch.autograd.grad(out, (x, f), many, is_grads_batched=True, retain_graph=True)
    for row in range(3):
        want = torch.autograd.grad(out, (x, f), many[row], retain_graph=True)
        for a, b in zip(got, want, strict=True):
            assert_close(a[row], b, 1e-12)


def test_operands_that_do_not_fit_are_refused() -> None:
    edges, problem = make_edges(), problem_of()
    pairs = pairs_of(problem, edges)
    x = torch.zeros(NODES, problem.irreps_in1.dim).double()
    y = edges.attrs(problem)
    w = torch.zeros(82, problem.weight_numel).double()
    s, r = edges.sender, edges.receiver
    each = torch.zeros(152, problem.weight_numel).double()
    with pytest.raises(ValueError, match=r"weights of pairs has shape \(152, .*expected \(82, "):
        conv_of_pairs(problem, x, y, each, s, r, pairs)
    with pytest.raises(TypeError, match=r"node_feats is torch.float32"):
        conv_of_pairs(problem, x.float(), y, w, s, r, pairs)
    with pytest.raises(ValueError, match=r"edge_attrs has shape \(151, "):
        conv_of_pairs(problem, x, y[1:], w, s, r, pairs)
    with pytest.raises(ValueError, match=r"sender is \(151,\).*among 152 edges"):
        conv_of_pairs(problem, x, y, w, s[1:], r[1:], pairs)


def test_rows_that_are_not_contiguous_are_refused() -> None:
    edges = make_edges()
    graph = graph_of(edges.sender, edges.receiver, NODES, NODES)
    with pytest.raises(ValueError, match="contiguous rows"):
        graph.pairs(edges.vectors, edges.features.t().contiguous().t())


def test_other_kernels_take_no_pairs() -> None:
    with pytest.raises(ValueError, match="weights of pairs"):
        KernelSpec("forward", False, paired=True)
    with pytest.raises(ValueError, match="weights of pairs"):
        KernelSpec("double_backward", True, ("x",), ("w",), paired=True)
