"""The radial network of patched NequIP models runs once for both directions of an edge."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.patch import nequip_batch, patch_model, unpatch_model
from mdcg.patch.models import model_info
from mdcg.patch.paired_weights import DeferredRadialNetwork, PendingWeights

Batch = dict[str, torch.Tensor]
OUTPUTS = ("total_energy", "forces", "stress")


def networks(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith("conv.edge_mlp")]


@contextmanager
def rows_of_networks(model: torch.nn.Module) -> Iterator[list[int]]:
    """Record how many rows the first linear layers of the radial networks see."""
    seen: list[int] = []
    handles = [
        next(m for m in network.modules() if not list(m.children())).register_forward_hook(
            lambda module, args, out: seen.append(len(args[0]))
        )
        for network in networks(model)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def make_batch(model: torch.nn.Module, edges: str = "all", cell: float = 3.7) -> Batch:
    """Return ten atoms in a cell smaller than the cutoff sphere, the last one far from others."""
    from ase import Atoms
    from ase.neighborlist import neighbor_list

    generator = torch.Generator().manual_seed(4)
    positions = (torch.rand(10, 3, generator=generator) * cell).double()
    atoms = Atoms("HCOHCOHCOH", positions.numpy(), cell=[cell, cell, 40.0], pbc=True)
    atoms.positions[-1, 2] = 20.0
    i, j, shifts = neighbor_list("ijS", atoms, 2.0 if edges == "isolated" else 4.0)
    keep = torch.ones(len(i), dtype=torch.bool)
    if edges == "one way":  # as with ghosts, which receive no edges
        keep = torch.rand(len(i), generator=generator) < 0.9
    elif edges == "few":
        keep = torch.from_numpy(i < j)
    elif edges == "none":
        keep[:] = False
    chosen = keep.numpy()
    kinds = ["HCO".index(s) for s in atoms.get_chemical_symbols()]
    index = np.stack([i, j])[:, chosen]
    # The list has vectors r_j - r_i + S h; here edges go from sender i to receiver j.
    return nequip_batch(
        model_info(model),
        kinds,
        atoms.positions,
        atoms.cell.array,
        index,
        shifts[chosen],
    )


def evaluate(model: torch.nn.Module, batch: Batch) -> Batch:
    found = model(dict(batch))
    return {name: found[name] for name in OUTPUTS}


@pytest.mark.parametrize("name", ["parity", "preset-like", "per type", "pair potential"])
@pytest.mark.parametrize("edges", ["all", "one way", "few", "none"])
def test_same_results(name: str, edges: str, build: Any, agree: Any) -> None:
    model = build(name)
    batch = make_batch(model, edges)
    want = evaluate(model, batch)
    patch_model(model)
    with rows_of_networks(model) as rows:
        got = evaluate(model, batch)
    agree(got, want, 1e-12, edges)
    count = batch["edge_index"].shape[1]
    sender, receiver = batch["edge_index"]
    if edges == "all":
        assert bool((sender == receiver).any())  # edges of an atom with its own images
        if name != "per type":  # with cutoffs that depend on direction
            assert max(rows) == count / 2
    elif edges == "one way":
        if name != "per type":
            assert count / 2 < max(rows) < 0.7 * count
    else:
        assert max(rows, default=0) == count
    unpatch_model(model)
    assert not any(isinstance(network, DeferredRadialNetwork) for network in networks(model))
    agree(evaluate(model, batch), want, 1e-13, "unpatched")


def test_forces_are_derivatives(build: Any) -> None:
    model = build("preset-like")
    patch_model(model)
    batch = make_batch(model)
    forces = evaluate(model, batch)["forces"]
    step = 1e-4
    for atom, axis in ((0, 0), (4, 2), (8, 1)):
        energies = []
        for sign in (1, -1):
            moved = {**batch, "pos": batch["pos"].clone()}
            moved["pos"][atom, axis] += sign * step
            energies.append(float(evaluate(model, moved)["total_energy"].detach().sum()))
        slope = (energies[1] - energies[0]) / (2 * step)
        assert slope == pytest.approx(float(forces[atom, axis]), abs=1e-6, rel=1e-6)


def test_parameter_gradients_of_forces(build: Any) -> None:
    """Gradients of a loss of energies and forces agree for every parameter."""
    model = build("preset-like").train()
    other = copy.deepcopy(model)
    patch_model(other)
    found = []
    for one in (model, other):
        out = evaluate(one, make_batch(one))
        loss = out["total_energy"].square().sum() + out["forces"].square().sum()
        found.append(torch.autograd.grad(loss, list(one.parameters()), allow_unused=True))
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert float((a - b).abs().max()) <= 1e-11 * max(float(a.abs().max()), 1e-3)


def test_copies_and_pickles(build: Any, agree: Any) -> None:
    model = build("parity")
    batch = make_batch(model)
    want = evaluate(model, batch)
    keys = list(model.state_dict())
    patch_model(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert list(other.state_dict()) == keys
        assert all(isinstance(n, DeferredRadialNetwork) for n in networks(other))
        agree(evaluate(other, batch), want, 1e-12)
        unpatch_model(other)
        assert {type(n).__name__ for n in networks(other)} == {"ScalarMLPFunction"}


def test_hooks_see_weights(build: Any) -> None:
    """Hooks on a radial network get a tensor with the weights of all edges."""
    model = build("one layer")
    patch_model(model)
    (network,) = networks(model)
    seen: list[Any] = []
    network.register_forward_hook(lambda module, args, out: seen.append(out))
    batch = make_batch(model)
    evaluate(model, batch)
    assert [type(out) for out in seen] == [torch.Tensor]
    assert len(seen[0]) == batch["edge_index"].shape[1]


@pytest.mark.parametrize("how", ["torch", "product", "method"])
def test_pending_weights_are_computed_when_used(
    how: str, build: Callable[..., torch.nn.Module]
) -> None:
    model = build("one layer")
    patch_model(model)
    network: Any = networks(model)[0]
    features = torch.rand(5, 8).double()
    pending = network(features)
    assert isinstance(pending, PendingWeights)
    want = pending.compute()
    if how == "torch":
        assert torch.equal(torch.add(pending, 1.0), want + 1.0)
    elif how == "product":
        assert torch.equal(2.0 * pending, 2.0 * want)
        assert torch.equal(pending * want, want * want)
    else:
        assert torch.equal(pending.sum(0), want.sum(0))
        assert pending.shape == want.shape


def test_compiled_networks_are_whole(build: Any) -> None:
    """torch.compile makes one graph of a radial network, which returns a tensor."""
    model = build("one layer")
    patch_model(model)
    network: Any = networks(model)[0]
    features = torch.rand(5, 8).double()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(features), network(features).compute())
