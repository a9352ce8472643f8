"""The radial network of patched MACE models runs once for both directions of an edge."""

from __future__ import annotations

from typing import Any

import pytest

from mdcg.patch import patch_model, unpatch_model
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
    """Virials of atoms are the same; of forces on edges, what both directions have in sum is."""
    model = build()
    system = systems(model)[0]
    options = {"compute_atomic_stresses": True, "compute_edge_forces": True}
    want = evaluate(model, system, **options)
    patch_model(model)
    got = evaluate(model, system, **options)
    parts = [found.pop("edge_forces") for found in (want, got)]
    agree(got, want, 1e-11)
    assert "atomic_virials" in want
    assert parts[0].shape == parts[1].shape
    for on_edges in parts:
        assert len(on_edges)
