"""The radial network of patched MACE models runs once for both directions of an edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdcg.patch import model_info, patch_model, unpatch_model
from mdcg.patch.models import neighbor_list
from mdcg.patch.paired_weights import DeferredRadialNetwork

PAIRED = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
)


def rows_of_networks(model: Any) -> list[tuple[int, int]]:
    """Return a list that fills with the rows each radial network sees, and the edges there are."""
    seen: list[tuple[int, int]] = []
    for block in model.interactions:
        count = {}
        block.register_forward_pre_hook(
            lambda module, args, kwargs, count=count: count.update(
                edges=(kwargs.get("edge_index", args[-1] if args else None)).shape[1]
            ),
            with_kwargs=True,
        )
        next(block.conv_tp_weights.children()).register_forward_hook(
            lambda module, args, out, count=count: seen.append((len(args[0]), count["edges"]))
        )
    return seen


@pytest.mark.parametrize("block", PAIRED)
def test_same_results_with_half_of_the_rows(
    block: str, build: Any, systems: Any, evaluate: Any, agree: Any
) -> None:
    model = build(block, block)
    patch_model(model)
    assert all(isinstance(b.conv_tp_weights, DeferredRadialNetwork) for b in model.interactions)
    rows = rows_of_networks(model)
    got = [evaluate(model, system) for system in systems(model)]
    assert rows
    assert all(edges == 2 * count for count, edges in rows if edges)
    unpatch_model(model)
    assert not any(isinstance(m, DeferredRadialNetwork) for m in model.modules())
    for system, found in zip(systems(model), got, strict=True):
        agree(found, evaluate(model, system), 1e-11, system.name)


def test_weights_that_depend_on_nodes_are_left_alone(build: Any) -> None:
    model = build(
        "RealAgnosticAttResidualInteractionBlock", "RealAgnosticAttResidualInteractionBlock"
    )
    patch_model(model)
    assert not any(isinstance(m, DeferredRadialNetwork) for m in model.modules())


def test_parts_of_atoms_and_edges(build: Any, systems: Any, evaluate: Any, agree: Any) -> None:
    """Atomic virials agree, and edge forces agree summed over both directions of an edge."""
    model = build()
    system = systems(model)[0]
    options = {"compute_atomic_stresses": True, "compute_edge_forces": True}
    want = evaluate(model, system, **options)
    patch_model(model)
    got = evaluate(model, system, **options)
    agree({**got, "edge_forces": want["edge_forces"]}, want, 1e-11)
    assert "atomic_virials" in want
    edges, _ = neighbor_list(system.positions, system.cell, system.pbc, model_info(model).r_max)
    sender, receiver = torch.from_numpy(edges)
    net = []
    for found in (want, got):
        forces = found["edge_forces"].detach()
        total = torch.zeros(len(system.positions), 3, dtype=forces.dtype)
        net.append(total.index_add(0, sender, forces).index_add(0, receiver, -forces))
    scale = float(net[0].abs().max())
    assert scale > 1e-3
    assert float((net[1] - net[0]).abs().max()) < 1e-11 * scale
    assert float((net[1].abs() - got["forces"].detach().abs()).abs().max()) < 1e-11 * scale
