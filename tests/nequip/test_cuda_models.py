"""Patched NequIP models on a GPU: results, training and calculator; needs a CUDA device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg import patch_model
from mdcg.patch.evaluate import evaluate_structure
from mdcg.patch.models import model_info

pytestmark = pytest.mark.gpu

CHECKPOINT = Path(__file__).resolve().parents[2] / "examples" / "data" / "water.ckpt"
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.mark.parametrize("dtype", LIMITS, ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["parity", "preset-like", "per type", "pair potential"])
def test_results_and_state(
    name: str,
    dtype: torch.dtype,
    build: Callable[..., torch.nn.Module],
    systems: Any,
    evaluate: Any,
    agree: Any,
) -> None:
    model = build(name, dtype).to("cuda")
    patched = copy.deepcopy(model)
    report = patch_model(patched)
    assert report.complete
    for system in systems(model):
        agree(evaluate(patched, system), evaluate(model, system), LIMITS[dtype], system.name)
    assert set(patched.state_dict()) == set(model.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(patched.state_dict()[key], value)


def test_gradients_of_parameters(build: Callable[..., torch.nn.Module], systems: Any) -> None:
    """Gradients of a loss of energies and forces agree for every parameter."""
    model = build("preset-like").to("cuda").train()
    patched = copy.deepcopy(model)
    patch_model(patched)
    for system in systems(model)[:2]:
        gradients = []
        for candidate in (model, patched):
            found = evaluate_structure(candidate, model_info(candidate), system)[1]
            loss = found["energy"].sum() + found["forces"].square().sum()
            parameters = [p for p in candidate.parameters() if p.numel()]
            gradients.append(torch.autograd.grad(loss, parameters))
        largest = max(float(gradient.abs().max()) for gradient in gradients[0])
        assert largest > 0
        for got, want in zip(gradients[1], gradients[0], strict=True):
            assert (got - want).abs().max() <= 1e-10 * largest
